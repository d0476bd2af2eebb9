"""alibi/: slopes of BLOOM, Falcon and MPT, and attention with them."""

import math

import torch

from cases import Gives, Kind, attend64, additive, heads_first, load, tokens_heads

BLOOM = "transformers.models.bloom.modeling_bloom"
MPT = "transformers.models.mpt.modeling_mpt"
FALCON = "transformers.models.falcon.modeling_falcon"


def ones(tokens):
    return torch.ones(1, tokens, dtype=torch.int64)


def bloom(heads, tokens, module=BLOOM):
    """[heads, tokens]: slope * key."""
    return load(module + ".build_alibi_tensor")(ones(tokens), heads, torch.float32).reshape(heads, tokens)


def mpt(heads, tokens, most):
    return load(MPT + ".build_mpt_alibi_tensor")(heads, tokens, alibi_bias_max=most).reshape(heads, tokens)


def slopes64(heads, family, most):
    """Closed forms: Press et al., and the next power of two of MPT."""
    if family == "mpt":
        power = 2 ** math.ceil(math.log2(heads))
        series = [2 ** (-most * k / power) for k in range(1, power + 1)]
        return torch.tensor((series if power == heads else series[1::2] + series[::2])[:heads], dtype=torch.float64)
    power = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return torch.tensor(first + [2 ** (-4 * (2 * h + 1) / power) for h in range(heads - power)], dtype=torch.float64)


def table(rows_of):
    rows = [rows_of(heads) for heads in range(1, 129)]
    return torch.stack([torch.nn.functional.pad(row, (0, 128 - len(row))) for row in rows])


def slopes(case):
    length, outputs = case.params["L"], {}
    for heads in (8, 12):
        outputs[f"alibi_bloom_h{heads}"] = bloom(heads, length)
        outputs[f"alibi_falcon_h{heads}"] = bloom(heads, length, FALCON)
        outputs[f"alibi_mpt8_h{heads}"] = mpt(heads, length, 8)
    outputs["slopes_bloom"] = table(lambda heads: bloom(heads, 2)[:, 1])
    outputs["slopes_falcon"] = table(lambda heads: bloom(heads, 2, FALCON)[:, 1])
    outputs["slopes_bloom_f64"] = table(lambda heads: slopes64(heads, "paper", 8))
    outputs["slopes_mpt8_f64"] = table(lambda heads: slopes64(heads, "mpt", 8))
    for most in (8, 16):
        outputs[f"slopes_mpt{most}"] = table(lambda heads, most=most: -mpt(heads, 2, most)[:, 0])
    padded = load(BLOOM + ".build_alibi_tensor")(case.padded_attention_mask, 6, torch.float32)
    outputs["alibi_bloom_padded_h6"] = padded.reshape(case.alibi_bloom_padded_h6.shape)
    return outputs


def published(case):
    """BLOOM's or MPT's own attention module, with projections that hand it q, k, v."""
    params, heads, tokens = case.params, case.params["H"], case.params["S"]
    keep, hidden = torch.ones(tokens, tokens, dtype=torch.bool).tril(), torch.zeros(1, tokens, heads * params["D"])
    if params["slope_family"] == "paper":
        config = load(BLOOM.replace("modeling", "configuration") + ".BloomConfig")(hidden_size=heads * params["D"], n_head=heads)
        module = load(case.source)(config, layer_idx=0).eval()
        fused = torch.stack([x.transpose(1, 2) for x in (case.q, case.k, case.v)], dim=3)  # [1, S, H, 3, D]
        module.query_key_value, module.dense = Gives(fused.flatten(2)), torch.nn.Identity()
        out = module(hidden, torch.zeros_like(hidden), bloom(heads, tokens)[:, None], additive(keep)[None, None])[0]
    else:
        config = load(MPT.replace("modeling", "configuration") + ".MptConfig")(d_model=heads * params["D"], n_heads=heads)
        module = load(case.source)(config, layer_idx=0).eval()
        module.Wqkv, module.out_proj = Gives(torch.cat([tokens_heads(x) for x in (case.q, case.k, case.v)], dim=-1)), torch.nn.Identity()
        bias = mpt(heads, tokens, params["alibi_bias_max"])[:, None]
        out = module(hidden, bias, attention_mask=~keep)[0]
    return heads_first(out, heads)


def attention(case):
    params, tokens = case.params, case.params["S"]
    slope = slopes64(params["H"], params["slope_family"], params["alibi_bias_max"])
    i, j = torch.arange(tokens)[:, None], torch.arange(tokens)[None, :]
    truth, lse, _ = attend64(case.q, case.k, case.v, params["scale"], j <= i, -slope[None, :, None, None] * (i - j))
    rows = {f"decode_out_f64_row{row}": truth[:, :, row : row + 1] for row in case.decode_rows.tolist()}
    return {"slopes_f64": slope, "out": published(case), "out_f64": truth, "lse_f64": lse} | rows


KINDS = {"alibi_slopes": Kind(slopes), "alibi_attention": Kind(attention, ("q", "k", "v"))}
