"""sinusoidal/ and learned/: absolute encodings."""

import torch

from cases import Kind, load


def rows64(positions, params, layout=None):
    dim, sines = params["d"], (params["d"] + 1) // 2
    angles = positions.double()[:, None] * params["base"] ** (-torch.arange(sines).double() / params.get("denom", dim / 2))
    if (layout or params["layout"]) == "interleaved":
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    rows = torch.cat([angles.sin(), angles.cos()], dim=-1)
    if "padding_idx" in params:
        rows[params["padding_idx"]] = 0
    return rows


def sinusoidal(case):
    params, source = case.params, case.source
    if params["layout"] == "interleaved":
        pe = load(source)(int(case.positions.max()) + 1, params["d"], torch.empty(int(case.positions.max()) + 1, params["d"]))[case.positions]
        return {"pe": pe, "pe_f64": rows64(case.positions, params), "far_pe_f64": rows64(case.far_positions, params)}
    count = case.weights.shape[0]
    truth = {"weights_f64": rows64(torch.arange(count), params)}
    if ".m2m_100." in source:
        module = load(source)(count - params["offset"], params["d"], params["padding_idx"])
        ids = module.create_position_ids_from_input_ids(case.input_ids, params["padding_idx"], params["past_key_values_length"])
        return truth | {"weights": module.weights, "position_ids": ids, "out": module(case.input_ids)}
    if ".marian." in source:
        made = load(source.rpartition(".")[0])(count, params["d"])
        weights = made.create_weight()
        return truth | {"weights": made.weight.data if weights is None else weights}
    return truth | {"weights": load(source)(count, params["d"])}


def shift(case):
    params, outputs = case.params, {}
    dim = params["d"]
    angles = case.ks.double()[:, None] * params["base"] ** (-torch.arange(0, dim, 2).double() / dim)
    for layout in ("concat", "interleaved"):
        matrices, i = torch.zeros(len(case.ks), dim, dim, dtype=torch.float64), torch.arange(dim // 2)
        sine, cosine = (i, dim // 2 + i) if layout == "concat" else (2 * i, 2 * i + 1)
        matrices[:, sine, sine] = matrices[:, cosine, cosine] = angles.cos()
        matrices[:, sine, cosine], matrices[:, cosine, sine] = angles.sin(), -angles.sin()
        shifted = torch.stack([rows64(case.positions + k, params, layout) for k in case.ks])
        outputs |= {f"M_{layout}_f64": matrices, f"pe_{layout}_f64": rows64(case.positions, params, layout), f"pe_shifted_{layout}_f64": shifted}
    return outputs


def learned(case):
    params, x = case.params, case.x
    if ".opt." in case.source:
        table = load(case.source)(params["num_embeddings"], x.shape[-1])
        table.weight.data = case.table
        pe, past = table(case.attention_mask), params["past"]
        mask = case.attention_mask
        return {"pe": pe, "pe_past": table(mask, past), "position_ids": mask.cumsum(1) * mask - 1, "out": x + pe}
    if case.has("token_type_table"):
        x = x + case.token_type_table[case.token_type_ids]
    return {"out": x + torch.nn.functional.embedding(case.position_ids, case.table)}


KINDS = {
    "sinusoidal": Kind(sinusoidal, (), lambda case: 1e-5),  # M2M and Whisper form angles in fp32
    "sinusoidal_shift": Kind(shift),
    "learned": Kind(learned, ("x", "table", "token_type_table"), lambda case: 0.0),
}
