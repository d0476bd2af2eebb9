"""What attention and rope are, in numpy, fp64: expected values of the tests."""

import os

import numpy as np


def generator():
    """A random generator whose seed is printed with a failing test; ROPEWALK_SEED repeats it."""
    seed = int(os.environ.get("ROPEWALK_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"ROPEWALK_SEED={seed}")
    return np.random.default_rng(seed)


def bf16_bits(values):
    """fp32 to the bits of the nearest bf16, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rotate_half(x, positions, inv_freq):
    """x [tokens, heads, dim] by positions [tokens], pairs (i, i + dim / 2)."""
    angle = np.asarray(positions, np.float64)[:, None] * np.asarray(inv_freq)[None, :]
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    first, second = np.split(np.asarray(x, np.float64), 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(q, k, v, *, scale=None, start=None, left=None, right=0, softcap=0.0, sinks=None, bias=None, first_key=0):
    """q [rows, heads, dim], k and v [keys, kv_heads, dim]: (out [rows, heads, dim], lse [rows, heads]). Query i stands at start + i; None:
    end-aligned. bias [heads, rows, keys] is added after softcap."""
    rows, heads, dim = q.shape
    keys, kv_heads, _ = k.shape
    k, v = (np.repeat(np.asarray(x, np.float64), heads // kv_heads, axis=1) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", np.asarray(q, np.float64), k) * (dim**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    delta = np.arange(keys)[None, :] - (np.arange(rows)[:, None] + (keys - rows if start is None else start))
    seen = np.arange(keys)[None, :] >= first_key
    if right is not None:
        seen = seen & (delta <= right)
    if left is not None:
        seen = seen & (delta >= -left)
    scores = np.where(np.broadcast_to(seen, delta.shape)[None], scores, -np.inf)
    extra = np.full((heads, rows, 1), -np.inf) if sinks is None else np.broadcast_to(np.asarray(sinks, np.float64)[:, None, None], (heads, rows, 1))
    scores = np.concatenate([scores, extra], axis=-1)
    peak = scores.max(axis=-1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    weights = np.exp(scores - peak)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + peak)[..., 0].T
    out = np.einsum("hij,jhd->ihd", np.divide(weights[..., :-1], total, out=np.zeros_like(weights[..., :-1]), where=total > 0), v)
    return out, lse
