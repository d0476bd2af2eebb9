"""xlnet/: relative encodings and attention with the four terms of Transformer-XL and XLNet."""

import torch

from cases import Kind, load, softmax64

XLNET = "transformers.models.xlnet."


def encodings(params, d_model, batch, bi_data=False):
    config = load(XLNET + "configuration_xlnet.XLNetConfig")(
        d_model=d_model, n_head=1, n_layer=1, d_inner=8, vocab_size=8, attn_type=params["attn_type"], bi_data=bi_data, clamp_len=params["clamp_len"]
    )
    model = load(XLNET + "modeling_xlnet.XLNetModel")(config)
    return model.relative_positional_encoding(params["qlen"], params["klen"], bsz=batch)


def encodings64(params, d_model, batch, bi_data=False):
    query, keys, clamp = params["qlen"], params["klen"], params["clamp_len"]
    positions = torch.arange(keys, -query if params["attn_type"] == "bi" else -1, -1).double()
    if clamp > 0:
        positions = positions.clamp(-clamp, clamp)
    angles = positions[:, None] * 10000.0 ** (-torch.arange(0, d_model, 2).double() / d_model)
    one_way, other = (torch.cat([s * angles.sin(), angles.cos()], dim=-1) for s in (1, -1))
    return torch.stack([other if bi_data and b >= batch // 2 else one_way for b in range(batch)], dim=1)


def pos_enc(case):
    outputs = {}
    for one in case.params["cases"]:
        more = (case.params["d_model"], 2, one["bi_data"])
        outputs |= {one["key"]: encodings(one, *more), one["key"] + "_f64": encodings64(one, *more)}
    return outputs


def attention(case):
    params = case.params
    query, keys, heads, dim = params["qlen"], params["klen"], params["H"], params["D"]
    config = load(XLNET + "configuration_xlnet.XLNetConfig")(d_model=heads * dim, n_head=heads, n_layer=1, d_inner=8, vocab_size=8)
    module = load(XLNET + "modeling_xlnet.XLNetRelativeAttention")(config).eval()
    pos_emb = encodings(params, case.pos_emb.shape[-1], params["B"])
    k_head_r = torch.einsum("ibh,hnd->ibnd", pos_emb, case.w_r)
    for name in ("r_w_bias", "r_r_bias", "r_s_bias", "seg_embed"):
        if case.has(name):
            setattr(module, name, torch.nn.Parameter(case.tensors[name]))
    seg_mat = case.tensors.get("seg_mat")
    out = module.rel_attn_core(case.q_head, case.k_head_h, case.v_head_h, k_head_r, seg_mat, case.attn_mask)

    q, k, v, r = (x.double().permute(1, 2, 0, 3) for x in (case.q_head, case.k_head_h, case.v_head_h, case.k_head_r))
    u, w = (case.tensors[name].double()[None, :, None] for name in ("r_w_bias", "r_r_bias"))
    row = query - torch.arange(query)[:, None] + torch.arange(keys)[None, :]  # of r, for relative position mlen + i - j
    inside = row.clamp(max=r.shape[2] - 1)  # uni: keys after the query, masked
    scores = (q + u) @ k.transpose(-1, -2) + ((q + w) @ r.transpose(-1, -2)).gather(-1, inside.expand(*q.shape[:2], -1, -1))
    if seg_mat is not None:
        ef = torch.einsum("bnid,snd->bnis", q + case.r_s_bias.double()[None, :, None], case.seg_embed.double())
        scores = scores + torch.einsum("ijbs,bnis->bnij", seg_mat.double(), ef)
    keep = (case.attn_mask == 0).permute(2, 3, 0, 1)
    truth, lse, _ = softmax64(scores * params["scale"], v, keep)
    return {"pos_emb": pos_emb, "k_head_r": k_head_r, "attn_vec": out, "attn_vec_f64": truth.permute(2, 0, 1, 3), "lse_f64": lse}


RANDOM = ("q_head", "k_head_h", "v_head_h", "r_w_bias", "r_r_bias", "r_s_bias", "seg_embed", "w_r")
KINDS = {"xlnet_pos_enc": Kind(pos_enc), "xlnet_attention": Kind(attention, RANDOM)}
