"""rope/: tables and rotated q, k of the model that `source` names, and the same in fp64."""

import inspect
import math

import torch

from cases import Kind, load


def rotary(case):
    """inv_freq, attention factor, cos and sin as the class returns them, and what its rotation takes for cos, sin."""
    params, (make, _) = case.params, sources(case)
    if make.endswith("create_sinusoidal_positions"):  # GPT-J: one table, no class
        dim = params["rotary_dim"]
        sin, cos = load(make)(params["hf_config"]["n_positions"], dim)[case.position_ids].chunk(2, dim=-1)
        return 1.0 / (10000 ** (torch.arange(0, dim, 2) / dim)), 1.0, cos, sin, (sin, cos)
    made = load(make)
    config = inspect.signature(made.__init__).parameters["config"].annotation
    config = config.sub_configs.get("text_config", config)(**params["hf_config"])
    module, layer = made(config), params["layer_type"]
    turns = module(case.q, case.position_ids, *([layer] if layer else []))
    prefix = f"{layer}_" if layer else ""
    frequencies, factor = getattr(module, prefix + "inv_freq"), getattr(module, prefix + "attention_scaling")
    if isinstance(turns, tuple):
        return frequencies, factor, *turns, turns
    return frequencies, factor, turns.real, turns.imag, (turns,)


def yarn64(w, theta, dim, rule, original):
    def pair(turns):  # the pair that makes so many turns within the original length
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(rule.get("beta_fast", 32)), pair(rule.get("beta_slow", 1))
    if rule.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2).double() - low) / max(high - low, 0.001)).clamp(0, 1)
    amplitude = {key: 0.1 * rule.get(key, 0) * math.log(rule["factor"]) + 1 for key in ("mscale", "mscale_all_dim")}
    both = rule.get("mscale") and rule.get("mscale_all_dim")
    factor = amplitude["mscale"] / amplitude["mscale_all_dim"] if both else 0.1 * math.log(rule["factor"]) + 1
    return w / rule["factor"] * ramp + w * (1 - ramp), factor


def llama3_64(w, rule, original):
    low, high = rule["low_freq_factor"], rule["high_freq_factor"]
    turns = original * w / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return w * kept + w / rule["factor"] * (1 - kept)


def frequencies64(params):
    """inv_freq and attention factor of the family, from the published formulas in fp64."""
    config, dim, most = params["hf_config"], params["rotary_dim"], params["max_position_embeddings"]
    rule = config.get("rope_parameters", {"rope_type": "default", "rope_theta": 10000.0})
    rule = rule[params["layer_type"]] if params["layer_type"] else rule
    kind, theta, factor = rule["rope_type"], rule["rope_theta"], rule.get("factor", 1.0)
    original = config.get("original_max_position_embeddings", rule.get("original_max_position_embeddings"))
    if kind == "dynamic":
        theta *= (factor * max(params["seq_len"], most) / most - (factor - 1)) ** (dim / (dim - 2))
    w = theta ** (-torch.arange(0, dim, 2).double() / dim)
    if kind == "yarn":
        return yarn64(w, theta, dim, rule, original)
    if kind == "llama3":
        return llama3_64(w, rule, original), 1.0
    if kind == "longrope":
        divisor = torch.tensor(rule["long_factor" if params["seq_len"] > original else "short_factor"], dtype=torch.float64)
        return w / divisor, rule.get("attention_factor") or math.sqrt(1 + math.log(most / original) / math.log(original))
    if kind == "proportional":
        w[int(rule["partial_rotary_factor"] * dim // 2) :] = 0
    return (w / factor if kind in ("linear", "proportional") else w), 1.0


def sources(case):
    return (part.split(" (")[0].strip() for part in case.source.split(" + "))


def rotated(case, turns):
    """q and k through the published rotation; dims from rotary_dim on pass through, as models arrange it around partial rotations."""
    _, apply = sources(case)
    rotate, dim = load(apply), case.params["rotary_dim"]
    q, k = case.q[..., :dim], case.k[..., :dim]
    tokens_first = ".gptj." in apply or ".llama4." in apply  # these want [B, S, H, D]
    if tokens_first:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    one = next(iter(inspect.signature(rotate).parameters)) in ("x", "tensor")  # a tensor at a time
    q, k = (rotate(q, *turns), rotate(k, *turns)) if one else rotate(q, k, *turns)
    if tokens_first:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    return (torch.cat([y, x[..., dim:]], dim=-1) for y, x in ((q, case.q), (k, case.k)))


def axis_of_pair(params):
    pairs = params["rotary_dim"] // 2
    if params["mrope"] is None:
        return torch.zeros(pairs, dtype=torch.int64)
    section = params["mrope_section"]
    if params["mrope"] == "contiguous":
        return torch.arange(3).repeat_interleave(torch.tensor(section))
    i = torch.arange(pairs)
    axis = torch.zeros(pairs, dtype=torch.int64)
    for stream in (1, 2):
        axis[(i % 3 == stream) & (i < 3 * section[stream])] = stream
    return axis


def turns64(case, frequencies, factor):
    positions = case.position_ids.double().reshape(-1, 1, case.position_ids.shape[-1])  # [axes, 1, S]
    angles = positions[axis_of_pair(case.params)].permute(1, 2, 0) * frequencies.double()  # [1, S, pairs]
    return angles.cos() * factor, angles.sin() * factor


def rotated64(case, x, cos, sin):
    params, x = case.params, x.double()
    style, dim = params["pair_style"], params["rotary_dim"]
    pairs, out = dim // 2, x.clone()
    half, interleaved = (slice(0, pairs), slice(pairs, dim)), (slice(0, dim, 2), slice(1, dim, 2))
    into = interleaved if style == "interleaved" else half
    x0, x1 = (x[..., part] for part in (half if style == "half" else interleaved))
    out[..., into[0]], out[..., into[1]] = x0 * cos - x1 * sin, x1 * cos + x0 * sin
    return out


def rope(case):
    frequencies, factor, cos, sin, turns = rotary(case)
    q, k = rotated(case, turns)
    exact, factor64 = frequencies64(case.params)
    cos64, sin64 = turns64(case, exact, factor64)
    cos32, sin32 = turns64(case, frequencies, factor64)
    return {
        "inv_freq_f64": exact, "attention_factor_f64": torch.tensor([factor64], dtype=torch.float64),
        "inv_freq": frequencies, "attention_factor": torch.tensor([factor], dtype=torch.float32), "cos": cos, "sin": sin, "q_out": q, "k_out": k,
        "cos_f64": cos64, "sin_f64": sin64, "cos_inv32_f64": cos32, "sin_inv32_f64": sin32,
        "q_out_f64": rotated64(case, case.q, cos64, sin64), "k_out_f64": rotated64(case, case.k, cos64, sin64),
    }


# The same library gives the same bits; another processor's powf may give an inv_freq one ulp off, which is 2^-24 of the largest angle.
KINDS = {"rope": Kind(rope, ("q", "k"), lambda case: 1e-5)}
