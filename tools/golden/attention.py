"""attention/: causal, windowed, chunked, capped, with sinks; ragged batches, chunked prefill, trees, additive bias, MLA."""

import torch

from cases import Kind, additive, attend64, grouped, load, stub

QKV = ("q", "k", "v")


def kept(rows, keys, first_position, params):
    i, j = first_position + torch.arange(rows)[:, None], torch.arange(keys)[None, :]
    keep = j <= i if params.get("causal") else torch.ones(rows, keys, dtype=torch.bool)
    if params.get("sliding_window"):
        keep = keep & (j > i - params["sliding_window"])
    if params.get("attention_chunk_size"):
        keep = keep & (j // params["attention_chunk_size"] == i // params["attention_chunk_size"])
    return keep


def published(case, q, k, v, mask):
    """The eager attention of the model that `source` names, [B, H, S, D]."""
    params = case.params
    module = stub(num_key_value_groups=q.shape[1] // k.shape[1], sinks=case.tensors.get("sinks"))
    more = {"softcap": params["softcap"]} if params.get("softcap") else {}
    return load(case.source)(module, q, k, v, mask, scaling=params["scale"], **more)[0].transpose(1, 2)


def plain(case, keep, bias=None):
    params = case.params
    mask = additive(keep)[None, None] if bias is None else bias
    truth, lse, with_sink = attend64(case.q, case.k, case.v, params["scale"], keep, bias, params.get("softcap"), case.tensors.get("sinks"))
    outputs = {"out": published(case, case.q, case.k, case.v, mask), "out_f64": truth, "lse_f64": lse}
    if case.has("sinks"):
        outputs["lse_with_sink_f64"] = with_sink
    return outputs


def attention(case):
    keep = kept(case.q.shape[2], case.k.shape[2], case.params["q_offset"], case.params)
    return plain(case, keep) | {"keep": keep.to(torch.uint8)}


def chunked(case):
    params, tokens = case.params, case.q.shape[2]
    outputs, parts, first = plain(case, kept(tokens, tokens, 0, params)), [], 0
    for size in params["chunks"]:
        last = first + size
        mask = additive(kept(size, last, first, params))[None, None]
        parts.append(published(case, case.q[:, :, first:last], case.k[:, :, :last], case.v[:, :, :last], mask))
        first = last
    outputs["out_chunked"] = torch.cat(parts, dim=2)
    if params["sliding_window"] is None:
        cut, rows = params["kv_split"], case.q[:, :, params["kv_split"] :]
        for part, keys, keep in (("a", slice(0, cut), None), ("b", slice(cut, tokens), kept(tokens - cut, tokens - cut, 0, params))):
            truth, lse, _ = attend64(rows, case.k[:, :, keys], case.v[:, :, keys], params["scale"], keep)
            outputs |= {f"part_{part}_out_f64": truth, f"part_{part}_lse_f64": lse}
    return outputs


def ragged(case):
    params = case.params
    names = ("out", "out_f64", "lse_f64")
    outputs = {name: torch.zeros_like(case.tensors[name]) for name in names}
    packed = {name: [] for name in ("q", "k", "v", "out_f64", "lse_f64")}
    for b, (rows, keys) in enumerate(zip(params["q_lens"], params["kv_lens"])):
        q, k, v = case.q[b : b + 1, :, :rows], case.k[b : b + 1, :, :keys], case.v[b : b + 1, :, :keys]
        keep = kept(rows, keys, keys - rows, params)
        truth, lse, _ = attend64(q, k, v, params["scale"], keep)
        for name, x in zip(names, (published(case, q, k, v, additive(keep)[None, None]), truth, lse)):
            outputs[name][b, :, :rows] = x[0]
        for name, x in (("q", q), ("k", k), ("v", v), ("out_f64", truth), ("lse_f64", lse)):
            packed[name].append(x[0].transpose(0, 1))
    for name, parts in packed.items():
        outputs[name.replace("_f64", "_packed_f64") if "_f64" in name else name + "_packed"] = torch.cat(parts)
    for name in ("q", "kv"):
        lengths = torch.tensor(params[f"{name}_lens"])
        outputs |= {f"{name}_lens": lengths, f"cu_seqlens_{name}": torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])}
    return outputs


def tree(case):
    past, parent = case.params["past"], case.parent.tolist()
    keep = torch.zeros(len(parent), past + len(parent), dtype=torch.bool)
    keep[:, :past] = True
    for node in range(len(parent)):
        ancestor = node
        while ancestor >= 0:
            keep[node, past + ancestor] = True
            ancestor = parent[ancestor]
    depth = keep[:, past:].sum(-1) - 1
    return plain(case, keep) | {"keep": keep.to(torch.uint8), "position_ids": past + depth}


def biased(case):
    return plain(case, torch.ones(case.bias.shape[-2:], dtype=torch.bool), case.bias)


def mla(case):
    params, tokens = case.params, case.ckv.shape[1]
    prefix = case.source.rpartition(".")[0]
    config = load(prefix.replace("modeling", "configuration") + ".DeepseekV3Config")(
        rope_parameters=params["rope_parameters"], qk_rope_head_dim=params["rotary_dim"], max_position_embeddings=163840
    )
    rotary = load(prefix + ".DeepseekV3RotaryEmbedding")(config)
    cos, sin = rotary(case.q_pe, torch.arange(tokens)[None])
    q_rot, k_rot = load(prefix + ".apply_rotary_pos_emb_interleave")(case.q_pe, case.k_pe, cos, sin)

    def expanded(ckv, w):
        return torch.einsum("bsc,hdc->bhsd", ckv, w)

    def joined(q_pe, k_pe, wide):
        k_nope = expanded(wide(case.ckv), wide(case.w_uk))
        k = torch.cat([k_nope, wide(grouped(k_pe, params["H"]))], dim=-1)
        return torch.cat([wide(case.q_nope), wide(q_pe)], dim=-1), k, expanded(wide(case.ckv), wide(case.w_uv))

    keep = kept(tokens, tokens, 0, params)
    q, k, v = joined(q_rot, k_rot, lambda x: x)
    out = load(prefix + ".eager_attention_forward")(stub(num_key_value_groups=1), q, k, v, additive(keep)[None, None], scaling=params["scale"])[0]
    q, k, v = joined(case.q_pe_rot, case.k_pe_rot, lambda x: x.double())
    truth, lse, _ = attend64(q, k, v, params["scale"], keep)
    latent, _, _ = attend64(q, k, case.ckv[:, None].expand(-1, params["H"], -1, -1), params["scale"], keep)
    return {"q_pe_rot": q_rot, "k_pe_rot": k_rot, "inv_freq": rotary.inv_freq, "out": out.transpose(1, 2), "out_f64": truth, "lse_f64": lse,
            "latent_f64": latent, "position_ids": torch.arange(tokens)[None]}


def tolerance(case):
    if case.params.get("softcap"):
        return 2e-5
    return 1e-4 if case.lse_f64.abs().max() > 50 else 5e-6


KINDS = {
    "attention": Kind(attention, (*QKV, "sinks"), tolerance),
    "attention_chunked": Kind(chunked, QKV),
    "attention_ragged": Kind(ragged, QKV),
    "attention_mask": Kind(tree, QKV),
    "attention_bias": Kind(biased, (*QKV, "bias")),
    "attention_mla": Kind(mla, ("q_nope", "q_pe", "k_pe", "ckv", "w_uk", "w_uv")),
}
