"""The statistics and verdicts of tools/bench-compare, without building or running anything."""

import importlib.machinery
import importlib.util
import json
import math
import pathlib
import random
import sys
import unittest

sys.dont_write_bytecode = True
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "bench-compare"
loader = importlib.machinery.SourceFileLoader("bench_compare", str(SCRIPT))
bench_compare = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_compare", loader))
sys.modules["bench_compare"] = bench_compare  # dataclasses look their module up
loader.exec_module(bench_compare)


def report_of(**run):
    return json.dumps({"context": {}, "benchmarks": [{"name": "a/b", "run_type": "iteration", "real_time": 4.0, **run}]})


def noisy_pairs(factor, noise, count, generator):
    """A machine whose speed drifts by a factor of two, pairs that differ by `factor` and noise."""
    pairs = []
    for _ in range(count):
        speed = generator.uniform(1.0, 2.0)
        pairs.append((speed * math.exp(generator.gauss(0.0, noise)), speed * factor * math.exp(generator.gauss(0.0, noise))))
    return pairs


class Statistics(unittest.TestCase):
    def test_interval_ranks_are_those_of_the_sign_test(self):
        # Tables of the sign test, two-sided 5 %: 6 values are the fewest, and their interval is the whole range.
        self.assertEqual([bench_compare.interval_rank(n, 0.05) for n in (1, 5, 6, 8, 9, 12, 20)], [0, 0, 1, 1, 2, 3, 6])
        self.assertEqual(bench_compare.interval_rank(12, 0.005), 1)
        self.assertEqual(bench_compare.pairs_needed(1), 6)
        self.assertEqual(bench_compare.pairs_needed(10), 9)

    def test_median_quartiles_and_interval(self):
        pairs = [(2.0, 2.0 * quotient) for quotient in (1.05, 0.95, 1.01, 0.99, 1.0, 3.0, 1.02)]
        c = bench_compare.compare("x", pairs, 0.02)
        self.assertAlmostEqual(c.median, 1.01)
        self.assertAlmostEqual(c.quartiles[0], 0.995)
        self.assertAlmostEqual(c.quartiles[1], 1.035)
        self.assertAlmostEqual(c.interval[0], 0.95)
        self.assertAlmostEqual(c.interval[1], 3.0)

    def test_too_few_pairs_say_nothing(self):
        c = bench_compare.compare("x", [(1.0, 0.1)] * 5, 0.02)
        self.assertEqual((c.interval, c.verdict), ((0.0, math.inf), "unclear"))
        self.assertEqual(bench_compare.compare("x", [(1.0, 0.1)] * 6, 0.02).verdict, "slower")
        self.assertEqual(bench_compare.compare("x", [(1.0, 0.1)] * 6, 0.02, benchmarks=10).verdict, "unclear")
        self.assertEqual(bench_compare.compare("x", [(1.0, 1.0)], 0.02).verdict, "unclear")


class Verdicts(unittest.TestCase):
    def test_verdict_needs_size_and_certainty(self):
        verdict = bench_compare.verdict_of
        self.assertEqual(verdict(0.90, (0.85, 0.97), 0.02), "slower")
        self.assertEqual(verdict(0.90, (0.85, 1.01), 0.02), "unclear")  # not certain
        self.assertEqual(verdict(0.99, (0.985, 0.995), 0.02), "same")  # certain, but small
        self.assertEqual(verdict(0.99, (0.97, 0.995), 0.02), "unclear")
        self.assertEqual(verdict(1.10, (1.03, 1.20), 0.02), "faster")
        self.assertEqual(verdict(1.10, (0.99, 1.20), 0.02), "unclear")
        self.assertEqual(verdict(1.00, (0.50, 2.00), 0.02), "unclear")
        self.assertEqual(verdict(1.00, (1.00, 1.00), 0.0), "same")

    def test_threshold_is_the_same_factor_both_ways(self):
        for factor in (1.019, 1.021):
            up = bench_compare.compare("x", [(1.0, factor)] * 8, 0.02).verdict
            down = bench_compare.compare("x", [(factor, 1.0)] * 8, 0.02).verdict
            self.assertEqual((up, down), ("same", "same") if factor < 1.02 else ("faster", "slower"))

    def test_drift_hides_no_slowdown_and_makes_none(self):
        generator = random.Random(1)
        slower = [bench_compare.compare("x", noisy_pairs(0.9, 0.03, 12, generator), 0.03, 10).verdict for _ in range(200)]
        self.assertGreater(slower.count("slower"), 180)
        equal = [bench_compare.compare("x", noisy_pairs(1.0, 0.1, 12, generator), 0.0, 10).verdict for _ in range(2000)]
        self.assertLess(equal.count("slower") + equal.count("faster"), 2000 * 0.05 / 10 * 2)

    def test_order_alternates(self):
        for benchmark in range(3):
            first = [bench_compare.order_of(pair, benchmark)[0] for pair in range(14)]
            self.assertEqual(sum(first), 7)
            self.assertNotIn((first[0], first[0]), zip(first[::2], first[1::2]))


class Reports(unittest.TestCase):
    def test_figure_is_the_counter_or_else_runs_a_second(self):
        report = report_of(**{"GB/s": 12.0, "roof_GB/s": 15.0, "roof_share": 0.75})
        self.assertEqual(bench_compare.figure_in(report, "a/b", "speed"), 12.0)
        self.assertEqual(bench_compare.figure_in(report, "a/b", "share"), 0.75)
        self.assertEqual(bench_compare.figure_in(report_of(**{"GFLOP/s": 90.0}), "a/b", "speed"), 90.0)
        self.assertEqual(bench_compare.figure_in(report_of(), "a/b", "share"), 0.25)

    def test_what_is_no_figure_is_refused(self):
        for report in ("", "[]", "{}", "null", report_of(name="other"), report_of(run_type="aggregate"), report_of(roof_share=math.nan),
                       report_of(error_occurred=True, error_message="no memory")):
            with self.assertRaises(bench_compare.Failure, msg=report):
                bench_compare.figure_in(report, "a/b", "share")

    def test_table_has_a_line_a_benchmark(self):
        heads = {"long/name": 0.5, "b": 1.0}
        lines = bench_compare.table_of([bench_compare.compare(name, [(1.0, head)] * 8, 0.02) for name, head in heads.items()])
        self.assertEqual([line.split()[-1] for line in lines.splitlines()], ["verdict", "slower", "same"])


class CommandLine(unittest.TestCase):
    def test_builds_what_the_processor_can_run(self):
        self.assertEqual(bench_compare.targets_for("flags : fma avx2 f16c"), "avx2")
        self.assertEqual(bench_compare.targets_for("flags : avx2 avx512f avx512bw"), "")
        self.assertEqual(bench_compare.targets_for("Features : asimd bf16"), "")

    def test_defaults_and_refusals(self):
        chosen = bench_compare.parse_arguments(["v0.1"])
        self.assertEqual((chosen.base, chosen.head, chosen.pairs), ("v0.1", "HEAD", 20))
        for wrong in ([], ["a", "--pairs", "0"], ["a", "--threshold", "-1"], ["a", "--seconds", "nan"], ["a", "--by", "luck"]):
            with self.assertRaises(SystemExit) as ended, open("/dev/null", "w") as nowhere:
                stderr, sys.stderr = sys.stderr, nowhere
                try:
                    bench_compare.parse_arguments(wrong)
                finally:
                    sys.stderr = stderr
            self.assertEqual(ended.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
