"""deberta/: log buckets and disentangled attention of v1, v2 and v3."""

import math

import torch

from cases import Gives, Kind, heads_first, load, softmax64, tokens_heads

V2 = "transformers.models.deberta_v2."
V1 = "transformers.models.deberta."


def bucket64(relative, buckets, most):
    """The formula with an fp64 logarithm; relative is query minus key."""
    mid, distance = buckets // 2, relative.abs()
    steps = torch.log(distance.clamp(min=1).double() / mid) / math.log((most - 1) / mid) * (mid - 1)
    return torch.where(distance <= mid, relative, (steps.ceil() + mid).long() * relative.sign())


def relative_positions(tokens, buckets, most):
    rows = torch.zeros(1, tokens, 1)
    return load(V2 + "modeling_deberta_v2.build_relative_position")(rows, rows, bucket_size=buckets, max_position=most)


def buckets(case):
    published, outputs = load(V2 + "modeling_deberta_v2.make_log_bucket_position"), {}
    for count, most in case.params["combos"]:
        outputs[f"bucket_b{count}_m{most}"] = published(case.relative_position, count, most).long()
        outputs[f"bucket_b{count}_m{most}_f64"] = bucket64(case.relative_position, count, most)
    return outputs | {"rel_pos_s24_b16_m32": relative_positions(24, 16, 32), "rel_pos_s24_nobucket": relative_positions(24, -1, -1)}


def table(case, name):
    """A stored table [H, 2 * span, D] as a projection of the relative embeddings: [1, 2 * span, H * D]. Unused ones are not stored."""
    heads, dim, span = (case.params[key] for key in ("H", "D", "att_span"))
    return tokens_heads(case.tensors[name][None]) if case.has(name) else torch.zeros(1, 2 * span, heads * dim)


def published(case, relative):
    params, first = case.params, case.source.startswith(V1)
    tokens, heads, width, span = params["S"], params["H"], params["H"] * params["D"], params["att_span"]
    keys = ("pos_att_type", "max_relative_positions", "position_buckets", "share_att_key")
    options = {key: params[key] for key in keys} | {"hidden_size": width, "num_attention_heads": heads, "relative_attention": True}
    config = load(V1 + "configuration_deberta.DebertaConfig" if first else V2 + "configuration_deberta_v2.DebertaV2Config")(**options)
    module = load(case.source)(config).eval()
    hidden, embeddings = torch.zeros(params["B"], tokens, width), torch.zeros(2 * max(span, params["max_relative_positions"]), width)
    pos_key, pos_query = table(case, "pos_key"), table(case, "pos_query")
    if first:
        fused = torch.stack([x.transpose(1, 2) for x in (case.q, case.k, case.v)], dim=3)
        module.in_proj, module.pos_proj, module.pos_q_proj = Gives(fused.flatten(2)), Gives(pos_key), Gives(lambda x: pos_query.clone())
    else:
        q, k, v = (tokens_heads(x) for x in (case.q, case.k, case.v))
        shared = params["share_att_key"]
        module.query_proj = Gives(lambda x: pos_query if shared and x.shape[1] == 2 * span else q)
        module.key_proj = Gives(lambda x: pos_key if shared and x.shape[1] == 2 * span else k)
        module.value_proj, module.pos_key_proj, module.pos_query_proj = Gives(v), Gives(pos_key), Gives(pos_query)
    mask = (case.kv_valid[:, None, None, :] * torch.ones(1, 1, tokens, 1)).bool()
    return heads_first(module(hidden, mask, relative_pos=relative, rel_embeddings=embeddings)[0], heads)


def attention(case):
    params = case.params
    tokens, span = params["S"], params["att_span"]
    delta = torch.arange(tokens)[:, None] - torch.arange(tokens)[None, :]
    bucketed = params["position_buckets"] > 0
    relative = bucket64(delta, params["position_buckets"], params["max_relative_positions"]) if bucketed else delta
    index = (relative + span).clamp(0, 2 * span - 1)  # the same for p2c: the bucket is odd
    q, k = case.q.double(), case.k.double()
    scores = q @ k.transpose(-1, -2)
    if "c2p" in params["pos_att_type"]:
        scores = scores + torch.einsum("bhid,hijd->bhij", q, case.pos_key.double()[:, index])
    if "p2c" in params["pos_att_type"]:
        scores = scores + torch.einsum("bhjd,hijd->bhij", k, case.pos_query.double()[:, index])
    truth, lse, _ = softmax64(scores * params["scale"], case.v, case.kv_valid[:, None, None].bool())
    outputs = {"out": published(case, relative[None]), "out_f64": truth, "lse_f64": lse}
    return outputs | ({"rel_pos": relative} if case.has("rel_pos") else {})


KINDS = {
    "deberta_buckets": Kind(buckets),
    "deberta_attention": Kind(attention, ("q", "k", "v", "pos_key", "pos_query"), lambda case: 1e-5),
}
