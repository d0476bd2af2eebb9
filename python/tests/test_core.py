"""The bindings with numpy: values against reference.py, arguments that are refused, executors, lifetime."""

import gc
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import ropewalk as rw
from reference import attention, bf16_bits, from_bf16, generator, rotate_half

EPS = float(np.finfo(np.float32).eps)


def near(actual, expected, norm, eps_units):
    """|actual - expected| <= eps_units * eps * norm; the worst element is shown."""
    error = np.abs(np.asarray(actual, np.float64) - expected) / (EPS * norm)
    worst = np.unravel_index(np.argmax(error), error.shape)
    assert error[worst] <= eps_units, f"element {worst}: {actual[worst]} for {expected[worst]}, {error[worst]:.1f} of {eps_units} eps"


def problem(heads=8, kv_heads=2, dim=32, **more):
    return rw.AttentionProblem(heads=heads, kv_heads=kv_heads, k_dim=dim, **more)


def draw(random, *shape):
    return random.standard_normal(shape).astype(np.float32)


def plain(p, q, k, v, *, run=None, **batch):
    plan = rw.AttentionPlan()
    plan.build_plain(p, rw.AttentionBatch(q_indptr=[0, len(q)], kv_lens=[len(k)], kv_indptr=[0, len(k)], **batch))
    lse = np.empty(q.shape[:2], np.float32)
    return plan.run_plain(q, k, v, lse=lse, **(run or {})), lse


# A sum of n products of rounded factors errs by some sqrt(n) eps; 40 covers dim 32 and softmax sums of a few hundred keys, values being of size 1.
UNITS = 40


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, {}),
        ({"scale": 0.5, "softcap": 3.0}, {"scale": 0.5, "softcap": 3.0}),
        ({"span": rw.AttentionSpan.sliding_window(7)}, {"left": 6}),
        ({"span": rw.AttentionSpan.full()}, {"right": None}),
        ({"sinks": np.linspace(-1, 2, 8, dtype=np.float32)}, {"sinks": np.linspace(-1, 2, 8)}),
    ],
    ids=["causal", "softcap", "window", "full", "sinks"],
)
def test_attention_is_its_definition(options, expected):
    random = generator()
    q, k, v = draw(random, 5, 8, 32), draw(random, 200, 2, 32), draw(random, 200, 2, 32)
    out, lse = plain(problem(**options), q, k, v)
    out_expected, lse_expected = attention(q, k, v, **expected)
    near(out, out_expected, 1.0, UNITS)
    near(lse, lse_expected, 10.0, UNITS)


def test_left_padding_is_never_seen():
    random = generator()
    q, k, v = draw(random, 30, 8, 32), draw(random, 30, 2, 32), draw(random, 30, 2, 32)
    v[:9] = np.nan
    out, lse = plain(problem(), q, k, v, key_first=np.full(30, 9))
    expected, _ = attention(q, k, np.nan_to_num(v), first_key=9)
    near(out, expected, 1.0, UNITS)
    assert np.all(out[:9] == 0) and np.all(np.isneginf(lse[:9]))


def test_alibi_and_biases_agree_with_their_tables():
    random = generator()
    q, k, v = draw(random, 20, 8, 32), draw(random, 20, 2, 32), draw(random, 20, 2, 32)
    delta = np.arange(20)[None, :] - np.arange(20)[:, None]
    slopes = rw.alibi_slopes(8)
    np.testing.assert_allclose(slopes, 2.0 ** -np.arange(1, 9), rtol=1e-7)  # Press et al., section 3, 8 heads
    near(plain(problem(alibi_slopes=slopes), q, k, v)[0], attention(q, k, v, bias=-slopes[:, None, None] * np.abs(delta))[0], 1.0, UNITS)

    table = draw(random, 8, 39)
    dense = table[:, delta + 19]
    by_distance = rw.AttentionBias.over_distance(table, -19)
    expected = attention(q, k, v, bias=dense)[0]
    near(plain(problem(bias=by_distance), q, k, v)[0], expected, 1.0, UNITS)
    rows = rw.AttentionBias.of_rows(np.ascontiguousarray(dense.transpose(1, 0, 2)))
    near(plain(problem(bias=rows), q, k, v)[0], expected, 1.0, UNITS)


def test_t5_buckets_by_hand():
    weight = np.arange(8, dtype=np.float32)[:, None].repeat(8, axis=1)  # bucket b adds b
    q, k = np.zeros((4, 8, 32), np.float32), np.zeros((4, 2, 32), np.float32)
    v = np.eye(4, 32, dtype=np.float32)[:, None].repeat(2, axis=1)
    out, _ = plain(problem(bias=rw.AttentionBias.t5(weight, max_distance=20, bidirectional=False), span=rw.AttentionSpan.full()), q, k, v)
    weights = np.exp(np.array([3.0, 2.0, 1.0, 0.0]))  # one-sided, buckets 0 .. 3 are distances 0 .. 3
    near(out[3, :, :4], np.broadcast_to(weights / weights.sum(), (8, 4)), 1.0, UNITS)


def test_relative_rows_are_added_to_scores():
    random = generator()
    q, k, v, table = draw(random, 6, 8, 32), draw(random, 6, 2, 32), draw(random, 6, 2, 32), draw(random, 9, 8, 32)
    delta = np.clip(np.arange(6)[None, :] - np.arange(6)[:, None], -4, 4) + 4
    term = np.einsum("ihd,ijhd->hij", q.astype(np.float64), table[delta].astype(np.float64)) * 32**-0.5
    terms = rw.RelativeTerms(rows=True, index=rw.RelativeIndex.shaw(4, 4))
    out, _ = plain(problem(relative=terms, span=rw.AttentionSpan.full()), q, k, v, run={"relative": rw.RelativeTensors(rows=table)})
    near(out, attention(q, k, v, right=None, bias=term)[0], 1.0, 2 * UNITS)


def test_rope_is_a_rotation():
    random = generator()
    spec = rw.RopeSpec.standard(32, 10000.0)
    np.testing.assert_allclose(spec.inv_freq, 10000.0 ** (-np.arange(16) / 16), rtol=1e-15)
    q, k, positions = draw(random, 6, 8, 32), draw(random, 6, 2, 32), np.array([5, 0, 5, 70000, 1, 2])
    rotated_q, rotated_k = q.copy(), k.copy()
    rw.rope_apply(rw.RopeTable(spec), positions, rotated_q, rotated_k)
    near(rotated_q, rotate_half(q, positions, spec.inv_freq), 4.0, 4)
    near(rotated_k, rotate_half(k, positions, spec.inv_freq), 4.0, 4)
    rw.rope_shift(rw.RopeTable(spec), np.full(6, 3), rotated_k)
    near(rotated_k, rotate_half(k, positions + 3, spec.inv_freq), 4.0, 8)
    rw.rope_apply(rw.RopeTable(spec), positions, rotated_q, inverse=True)
    near(rotated_q, q, 4.0, 8)


def test_rare_rope_families():
    d, theta, i = 16, 10000.0, np.arange(8)
    standard = theta ** (-2 * i / d)
    rate = np.log(4.0) / 8**0.6
    np.testing.assert_allclose(rw.RopeSpec.ntk_mixed(d, theta, 4.0, 0.6).inv_freq, standard / np.exp(rate * (i + 1) ** 0.6), rtol=1e-13)
    np.testing.assert_allclose(rw.RopeSpec.ntk_alpha(d, theta, 3.0).inv_freq, (theta * 3.0 ** (d / (d - 2))) ** (-2 * i / d), rtol=1e-13)
    scaled = theta ** (np.log(512 * 4.0 / (2 * np.pi)) / np.log(512 / (2 * np.pi)))
    np.testing.assert_allclose(rw.RopeSpec.theta_scale(d, theta, 4.0, 512).inv_freq, scaled ** (-2 * i / d), rtol=1e-12)
    grok = np.array(rw.RopeSpec.yarn_log(d, theta, 4.0, 512).inv_freq)
    assert np.all(grok <= standard * (1 + 1e-12)) and np.all(grok >= standard / 4.0 * (1 - 1e-12)) and grok[0] == standard[0]
    with pytest.raises(rw.InvalidArgument, match="factor"):
        rw.RopeSpec.ntk_mixed(d, theta, 0.5, 0.6)


def test_xpos_and_fope():
    """A pair of q and of k by the formulas of both papers."""
    d, p = 8, 300
    spec = rw.RopeSpec.standard(d)
    x = np.zeros((1, 1, d), np.float32)
    x[0, 0, 1] = 1.0  # the first half of pair 1
    q, k = x.copy(), x.copy()
    rw.rope_apply(rw.RopeTable(spec.with_xpos(512.0, 100.0)), [p], q, k)
    angle, grown = p * spec.inv_freq[1], ((2 * 1 + 0.4 * d) / (1.4 * d)) ** ((p - 100) / 512)
    near(q[0, 0, [1, 5]], np.array([np.cos(angle), np.sin(angle)]) * grown, 1.0, 4)
    near(k[0, 0, [1, 5]], np.array([np.cos(angle), np.sin(angle)]) / grown, 1.0, 4)

    random = generator()
    cos_mix, sin_mix = draw(random, 2, 3, 3), draw(random, 2, 3, 3)
    k = np.repeat(x, 2, axis=1)
    rw.rope_apply(rw.RopeTable(spec.with_fope(cos_mix, sin_mix)), [p], k)
    angles = p * np.array(spec.inv_freq[:3])
    for head in range(2):
        expected = np.array([np.cos(angles) @ cos_mix[head, :, 1], np.sin(angles) @ sin_mix[head, :, 1]])
        near(k[0, head, [1, 5]], expected, 3 * np.abs(cos_mix).max() + 3 * np.abs(sin_mix).max(), 4)
    with pytest.raises(ValueError, match="cos_mix has 2 axes; expected three"):
        spec.with_fope(cos_mix[0], sin_mix[0])
    with pytest.raises(rw.Error, match="sin_mix"):
        spec.with_fope(cos_mix, sin_mix[:1])
    with pytest.raises(rw.Error, match="xpos"):
        spec.with_xpos(-1.0)


def test_presets_are_those_of_the_core():
    with pytest.raises(ValueError, match="one of fp32, bf16, .*k4v4h"):
        rw.KvLayout.preset("k9", kv_heads=1, k_dim=16)
    assert "k8v4h" in rw.KvLayout.preset.__doc__


def test_absolute_positions():
    positions = np.array([0, 7, 3])
    rows = np.empty((3, 1, 8), np.float32)
    rw.sinusoid_rows(rw.SinusoidSpec.vaswani(8), positions, rows)
    angle = positions[:, None] * 10000.0 ** (-np.arange(4) / 4)
    near(rows[:, 0], np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(3, 8), 1.0, 1)
    table = np.arange(80, dtype=np.float32).reshape(10, 1, 8)
    rw.learned_rows(table, positions, rows, offset=2)
    np.testing.assert_array_equal(rows, table[positions + 2])
    assert rw.positions_from_mask(np.array([0, 1, 1], np.uint8)).tolist() == [-1, 0, 1]
    assert rw.positions_from_tokens([1, 5, 6], padding_idx=1).tolist() == [1, 2, 3]
    spec, shifted, expected = rw.SinusoidSpec.vaswani(8), np.empty((1, 1, 8), np.float32), np.empty((1, 1, 8), np.float32)
    rw.sinusoid_rows(spec, [40], shifted)
    rw.sinusoid_shift(spec, -37, shifted)
    rw.sinusoid_rows(spec, [3], expected)
    near(shifted, expected, 1.0, 4)
    assert rw.xlnet_positions(2, 3).tolist() == [3, 2, 1, 0, -1]
    assert rw.xlnet_positions(2, 3, bidirectional=False, clamp_len=2).tolist() == [2, 2, 1, 0]


def test_buckets_below_the_logarithm_are_distances():
    assert rw.t5_buckets(-3, 4, num_buckets=8, max_distance=20, bidirectional=False).tolist() == [3, 2, 1, 0]
    assert rw.deberta_buckets(-2, 5, position_buckets=8, max_relative_positions=32).tolist() == [-2, -1, 0, 1, 2]


def test_frequencies_that_follow_the_length():
    schedule = rw.RopeSchedule.dynamic_ntk(32, 10000.0, 2.0, 64)
    schedule.check_growth(10, 64)
    assert schedule.spec_at(64) == rw.RopeSpec.standard(32, 10000.0)
    with pytest.raises(rw.NeedsRerotation):
        schedule.check_growth(64, 65)


def test_query_temperature():
    q = np.ones((3, 2, 8), np.float32)
    rw.scale_queries(q, np.array([0, 8191, 3 * 8192]), beta=0.1, floor_length=8192)
    near(q[:, 0, 0], np.array([1.0, 1.0, 1 + 0.1 * np.log(4)]), 1.0, 1)


def cache_of(page_count=32, **layout):
    layout = {"kv_heads": 2, "k_dim": 32, "k_type": "fp32", "v_type": "fp32", "page_tokens": 16, **layout}
    return rw.KvCache(rw.KvLayout(**layout), layers=2, page_count=page_count)


def test_cache_steps_equal_plain_attention():
    random = generator()
    cache, table = cache_of(), rw.RopeTable(rw.RopeSpec.standard(32))
    first, second = cache.create_sequence(), cache.create_sequence()
    keys, values = draw(random, 53, 2, 32), draw(random, 53, 2, 32)
    slots, positions = cache.append([first, second], [33, 20])
    assert positions.tolist() == [*range(33), *range(20)]
    rw.kv_append(cache.pages(1), slots, keys, values, rope=table, positions=positions)
    child = cache.fork(first)
    q = draw(random, 3, 8, 32)
    plan = rw.AttentionPlan()
    plan.build(problem(), cache.batch([first, second, child], [1, 1, 1]), cache.layout, 32)
    out = plan.run(q, cache.pages(1))
    turned = rotate_half(keys, positions, table.spec.inv_freq)
    for row, part in ((0, slice(0, 33)), (1, slice(33, 53)), (2, slice(0, 33))):
        near(out[row : row + 1], attention(q[row : row + 1], turned[part], values[part])[0], 1.0, UNITS)

    read = np.empty((20, 2, 32), np.float32)
    rw.kv_gather(cache.pages(1), cache.slots(second, 0, 20), None, read)
    np.testing.assert_array_equal(read, values[33:])
    stats = cache.stats()
    assert (stats.sequences, stats.tokens, stats.shared_pages, stats.total_pages) == (3, 86, 3, 32)
    cache.truncate(child, 5)
    assert cache.length(child) == 5 and cache.next_position(child) == 5 and len(cache.page_table(child)) == 1
    assert cache.trim_front(first, 32) == 32 and cache.length(first) == 1 and cache.next_position(first) == 33
    for sequence in (first, second, child):
        cache.free(sequence)
    assert cache.stats().free_pages == 32


def test_quantised_pages_have_the_error_of_their_steps():
    random = generator()
    cache = cache_of(k_type="int8", v_type="int8")
    rows = draw(random, 16, 2, 32)
    slots, _ = cache.append([cache.create_sequence()], [16])
    rw.kv_append(cache.pages(0), slots, rows, rows)
    read = np.empty_like(rows)
    rw.kv_gather(cache.pages(0), slots, read, None)
    step = np.abs(rows).max(axis=-1, keepdims=True) / 127
    assert np.all(np.abs(read - rows) <= step * 0.5001) and not np.array_equal(read, rows)


def test_pages_in_foreign_memory():
    layout = rw.KvLayout.preset("fp32", kv_heads=1, k_dim=16, page_tokens=16)
    memory = np.zeros(2 * layout.page_bytes + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :][: 2 * layout.page_bytes]
    pages = rw.KvPages(memory, layout, 2)
    row = np.arange(16, dtype=np.float32).reshape(1, 1, 16)
    rw.kv_append(pages, [17], row, row)
    assert memory[: layout.page_bytes].sum() == 0 and memory[layout.page_bytes :].any()
    with pytest.raises(ValueError, match="memory has .* bytes; expected 3 pages"):
        rw.KvPages(memory, layout, 3)


def test_merge_of_parts_is_the_whole():
    random = generator()
    q, k, v = draw(random, 4, 8, 32), draw(random, 60, 2, 32), draw(random, 60, 2, 32)
    full = problem(span=rw.AttentionSpan.full())
    (a, lse_a), (b, lse_b) = plain(full, q, k[:25], v[:25]), plain(full, q, k[25:], v[25:])
    out, lse = np.empty_like(a), np.empty_like(lse_a)
    rw.merge(a, lse_a, b, lse_b, out, lse)
    expected, lse_expected = attention(q, k, v, right=None)
    near(out, expected, 1.0, UNITS)
    near(lse, lse_expected, 10.0, UNITS)


def test_bf16_bits_are_explicit():
    random = generator()
    q, k, v = (bf16_bits(draw(random, *shape)) for shape in ((3, 8, 32), (40, 2, 32), (40, 2, 32)))
    plan = rw.AttentionPlan()
    batch = rw.AttentionBatch(q_indptr=[0, 3], kv_lens=[40], kv_indptr=[0, 40])
    plan.build_plain(problem(q_type="bf16", out_type="fp32"), batch)
    out = np.empty((3, 8, 32), np.float32)
    plan.run_plain(rw.bf16(q), rw.bf16(k), rw.bf16(v), out)
    near(out, attention(*map(from_bf16, (q, k, v)))[0], 1.0, 2.0**-7 / EPS)  # targets with bf16 dots round probabilities to 2^-8
    with pytest.raises(TypeError, match="q is uint16; expected float32, bfloat16 or float16"):
        plan.run_plain(q, rw.bf16(k), rw.bf16(v), out)
    with pytest.raises(TypeError, match="bits is float32"):
        rw.bf16(out)


def test_strided_views_are_not_copied():
    random = generator()
    packed = draw(random, 7, 12, 32)
    spec = rw.RopeSpec.standard(32)
    before = packed.copy()
    rw.rope_apply(rw.RopeTable(spec), np.arange(7), packed[:, :8], packed[:, 8:10])
    near(packed[:, :10], rotate_half(before[:, :10], np.arange(7), spec.inv_freq), 4.0, 4)
    np.testing.assert_array_equal(packed[:, 10:], before[:, 10:])


READ_ONLY = np.zeros((2, 8, 32), np.float32)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "error, text, call",
    [
        (TypeError, "q is float64; expected", lambda t: rw.rope_apply(t, [0, 1], np.zeros((2, 8, 32)))),
        (TypeError, "q is int; expected", lambda t: rw.rope_apply(t, [0, 1], 7)),
        (TypeError, "q is ndarray; expected a writable array", lambda t: rw.rope_apply(t, [0, 1], READ_ONLY)),
        (TypeError, "positions is int32; expected int64", lambda t: rw.rope_apply(t, np.zeros(2, np.int32), np.zeros((2, 8, 32), np.float32))),
        (ValueError, r"q has shape \[2, 32\]; expected three axes", lambda t: rw.rope_apply(t, [0, 1], np.zeros((2, 32), np.float32))),
        (ValueError, "pairing is 'halves'; expected one of: half", lambda t: rw.rope_shift(t, [0], np.zeros((1, 1, 32), "f4"), pairing="halves")),
        (rw.OutOfRange, "position", lambda t: rw.rope_apply(t, [-1], np.zeros((1, 1, 32), np.float32))),
        (rw.InvalidArgument, "theta", lambda t: rw.RopeSpec.standard(32, -1.0)),
        (ValueError, "k_type is 'int3'; expected one of: fp32", lambda t: rw.KvLayout(kv_heads=1, k_dim=8, k_type="int3")),
        (ValueError, "sinks has 3 entries; expected one for each of 8 heads", lambda t: problem(sinks=np.zeros(3, np.float32))),
        (rw.NotFound, "sequence", lambda t: cache_of().free(99)),
        (ValueError, "layer has 2; expected 0 to 1", lambda t: cache_of().pages(2)),
        (rw.Unsupported, "model_type", lambda t: rw.read_hf_config('{"model_type": "no_such_model"}')),
        (rw.CorruptData, "JSON", lambda t: rw.read_hf_config("{")),
        (ValueError, "concurrency has 0", lambda t: rw.CallbackExecutor(0, print)),
    ],
)
def test_refusals_name_argument_value_and_rule(error, text, call):
    table = rw.RopeTable(rw.RopeSpec.standard(32))
    with pytest.raises(error, match=text) as raised:
        call(table)
    if issubclass(error, rw.Error) and error is not rw.Unsupported:
        assert isinstance(raised.value, (ValueError, LookupError))


def test_out_of_pages_changes_nothing():
    cache = cache_of(page_count=2)
    sequence = cache.create_sequence()
    with pytest.raises(rw.OutOfPages):
        cache.append([sequence], [33])
    assert cache.length(sequence) == 0 and cache.stats().free_pages == 2


def test_views_keep_their_owners():
    cache = cache_of()
    slots, _ = cache.append([cache.create_sequence()], [1])
    pages, row = cache.pages(0), np.ones((1, 2, 32), np.float32)
    del cache
    gc.collect()
    rw.kv_append(pages, slots, row, row)
    read = np.zeros_like(row)
    rw.kv_gather(pages, slots, read, None)
    assert np.all(read == 1)


def executors():
    pool = []

    def threads(items, item):
        pool[:] = [threading.Thread(target=item, args=(i,)) for i in range(items)]
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()

    yield rw.SerialExecutor()
    yield rw.default_executor()
    yield rw.OpenMPExecutor()
    yield rw.CallbackExecutor(3, threads)
    yield rw.CallbackExecutor(2, lambda items, item: None)  # leaves all items out: they run on the calling thread


def big_step(random):
    q, k, v = draw(random, 300, 8, 32), draw(random, 3000, 2, 32), draw(random, 3000, 2, 32)
    plan = rw.AttentionPlan()
    plan.build_plain(problem(), rw.AttentionBatch(q_indptr=[0, 300], kv_lens=[3000], kv_indptr=[0, 3000]), concurrency=2)
    return plan, q, k, v


def test_same_bits_on_all_executors():
    plan, q, k, v = big_step(generator())
    results = [plan.run_plain(q, k, v, executor=executor) for executor in executors()]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_errors_of_a_callback_are_raised_after_the_work():
    plan, q, k, v = big_step(generator())

    def broken(items, item):
        item(0)
        item(0)

    out = np.zeros_like(q)
    with pytest.raises(RuntimeError, match="called twice"):
        plan.run_plain(q, k, v, out, executor=rw.CallbackExecutor(2, broken))
    np.testing.assert_array_equal(out, plan.run_plain(q, k, v, executor=rw.SerialExecutor()))


def test_the_gil_is_free_while_it_works():
    plan, q, k, v = big_step(generator())
    out, ticks, done = np.empty_like(q), 0, threading.Event()

    def work():
        for _ in range(20):
            plan.run_plain(q, k, v, out, executor=rw.SerialExecutor())
        done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is asked for the GIL: a thread that runs beside the work got it from the work
    try:
        thread = threading.Thread(target=work)
        thread.start()
        while not done.is_set():
            ticks += 1
            time.sleep(0)
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert ticks > 5


def test_default_executor_can_be_replaced():
    before, serial = rw.default_executor(), rw.SerialExecutor()
    try:
        rw.set_default_executor(serial)
        assert rw.default_executor() is serial
    finally:
        rw.set_default_executor(before)


def in_process(code, **environment):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_works_in_a_child_after_fork():
    in_process("""
import os, sys
sys.path.insert(0, {path!r})
from test_core import big_step, np
plan, q, k, v = big_step(np.random.default_rng(1))
before = plan.run_plain(q, k, v)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(plan.run_plain(q, k, v), before) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""".format(path=os.path.dirname(__file__)))


def test_import_is_quick():
    code = "import numpy, time; t = time.perf_counter(); import ropewalk; print(time.perf_counter() - t)"
    assert min(float(in_process(code)) for _ in range(3)) <= 0.2


def test_info_of_the_package():
    info = json.loads(subprocess.check_output([sys.executable, "-m", "ropewalk", "--json"]))
    assert info["active"] == rw.active_target() and info["version"] == rw.__version__
    assert info["xsimd"][0].isdigit()
    assert info["executor"] == type(rw.default_executor()).__name__ and info["concurrency"] == rw.default_executor().concurrency
    assert {t["name"] for t in info["targets"] if t["compiled"] and t["supported"]} == set(rw.supported_targets())
    assert in_process("import ropewalk; print(ropewalk.active_target())", ROPEWALK_ISA="scalar").strip() == "scalar"


def test_the_ten_lines_of_the_documentation():
    page = pathlib.Path(__file__).parents[2] / "docs" / "python.md"
    names = {}
    exec(re.search(r"```python\n(.*?)```", page.read_text(), re.S).group(1), names)
    assert names["out"].shape == (100, 32, 128) and np.isfinite(names["out"]).all()


def test_configuration_of_a_model():
    config = rw.read_hf_config(json.dumps({
        "model_type": "gemma2", "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_size": 2304,
        "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "sliding_window": 4096, "rope_theta": 10000.0, "max_position_embeddings": 8192,
    }))  # fmt: skip
    first, second = config.layers[0], config.layers[-1]
    assert (len(config.layers), first.heads, first.kv_heads, first.softcap, first.scale) == (2, 8, 4, 50.0, 256**-0.5)
    assert first.span == rw.AttentionSpan.sliding_window(4096) and second.span == rw.AttentionSpan.causal()
    assert first.rope.spec == rw.RopeSpec.standard(256, 10000.0) and first.rope.pairing == "half" and first.alibi is None
    assert first.rope.schedule().spec_at(5000) == first.rope.at(5000)
    assert "gemma2" in str(config)
