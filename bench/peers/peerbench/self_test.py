"""Tests this program itself: cases, the fp64 reference, ropewalk through its shim, and how a peer that cannot run ends up in the table. Needs numpy
and no wheel of a peer."""
from __future__ import annotations

import json
import sys
import unittest
from pathlib import Path
from unittest import mock

import numpy as np

from . import cases, children, report, tensors
from .cases import Case
from .measure import measure
from .shim import Library, Ropewalk
from .tensors import Tensors, to_bits, to_float
from .work import Refused, Work

shim_path = Path()  # of the library under test; run() sets it


def ropewalk(threads: int = 1) -> Ropewalk:
    return Ropewalk(shim_path, threads)


class Reference:
    """A peer that is right and needs no wheel: the fp64 reference."""

    def versions(self) -> dict[str, str]:
        return {"reference": "1"}

    def prepare(self, case: Case, tensors: Tensors) -> Work:
        rows = np.zeros((max(tensors.checked_rows) + 1, case.heads, case.dim))
        rows[list(tensors.checked_rows)] = tensors.expected()
        return Work(lambda i: None, 1.0, lambda: rows)


class Refusing(Reference):
    def prepare(self, case: Case, tensors: Tensors) -> Work:
        raise Refused("it never does")


class Failing(Reference):
    def prepare(self, case: Case, tensors: Tensors) -> Work:
        raise RuntimeError("first line\nsecond line")


def small(kind: str, element_type: str, batch: int = 1, tokens: int = 70) -> Case:
    return Case(kind, element_type, batch, tokens, heads=4, kv_heads=2, dim=32)


class CasesTest(unittest.TestCase):
    def test_names_can_be_read_back(self) -> None:
        self.assertEqual([cases.from_name(name).name for name in cases.ALL], cases.ALL)
        self.assertEqual(len(set(cases.ALL)), len(cases.ALL))
        self.assertLessEqual(set(cases.QUICK), set(cases.ALL))

    def test_selection(self) -> None:
        self.assertEqual([c.name for c in cases.select(["decode/bf16/b8"], quick=False)], ["decode/bf16/b8/n4096"])
        self.assertEqual({c.kind for c in cases.select(["*/n512", "alibi"], quick=False)}, {"prefill", "alibi"})
        self.assertEqual(cases.select(["nothing"], quick=False), [])

    def test_every_kind_has_a_unit(self) -> None:
        self.assertEqual({cases.from_name(name).unit for name in cases.ALL}, {"GB/s", "GFLOP/s", "µs"})


class TensorsTest(unittest.TestCase):
    def test_bf16_rounds_to_nearest_even(self) -> None:
        values = np.array([1.0, 1.00390625, 1.01171875, -2.5], dtype=np.float32)  # the second and third lie half way
        self.assertEqual(to_float(to_bits(values, "bf16")).tolist(), [1.0, 1.0, 1.015625, -2.5])

    def test_same_case_same_tensors(self) -> None:
        case = small("decode", "bf16")
        self.assertTrue(np.array_equal(Tensors(case).k, Tensors(case).k))


class RopewalkTest(unittest.TestCase):
    def agrees(self, case: Case, threads: int, tolerance: float) -> None:
        result = measure(case, Reference(), ropewalk(threads), repetitions=1)
        self.assertNotIn("reason", result["ropewalk"])
        self.assertLess(result["ropewalk"]["error"], tolerance)
        self.assertGreater(result["roof"], 0.0)

    def test_agrees_with_the_reference(self) -> None:
        threads = min(2, Library(shim_path).threads())
        for kind in ("decode", "alibi", "prefill", "rope"):
            for element_type, tolerance in (("fp32", 1e-5), ("bf16", 3e-2), ("fp16", 3e-3)):
                with self.subTest(kind=kind, type=element_type):
                    self.agrees(small(kind, element_type, batch=2 if kind == "decode" else 1), threads, tolerance)

    def test_appends(self) -> None:
        own, case = ropewalk(), small("append", "bf16")
        own.prepare(case, Tensors(case)).call(0)
        self.assertTrue(own.buffers[0].any())
        self.assertFalse(own.buffers[1].any())

    def test_unknown_type_is_refused_with_the_status(self) -> None:
        case = small("decode", "fp32")
        with mock.patch.dict(cases.DTYPES, fp32=99), self.assertRaisesRegex(Refused, "k_type is 99"):
            ropewalk().prepare(case, Tensors(case))


class FailureTest(unittest.TestCase):
    def row(self, result: dict) -> dict:
        return {"case": "decode/fp32/b1/n70", "unit": "GB/s", "peer": "someone", "threads": 1, "peer_side": result.pop("peer"), **result}

    def test_refusal_and_exception_are_reasons(self) -> None:
        for peer, reason in ((Refusing(), "it never does"), (Failing(), "RuntimeError: second line")):
            result = measure(small("decode", "fp32"), peer, ropewalk(), repetitions=1)
            self.assertIn("not run: " + reason, report.table([self.row(result)]))

    def child(self, body: str, left: list[str]) -> list[str]:
        script = f"import json, os, sys, time; report = open(sys.argv[-1], 'a', 1)\ndef tell(**e): print(json.dumps(e), file=report)\n{body}"
        return [sys.executable, "-c", script, *left]

    def outcome(self, body: str, seconds: float = 20.0) -> tuple[dict, list[str]]:
        told: list[str] = []
        outcome = children.run_peer(lambda left: self.child(body, left), ["first", "second"], 1, seconds, lambda case, result: told.append(case))
        return outcome.results, told

    def test_a_crash_ends_one_case(self) -> None:
        results, told = self.outcome("tell(event='ready', versions={})\ncase = sys.argv[1]\ntell(event='begin', case=case)\n"
                                     "if case == 'first': os.kill(os.getpid(), 4)\ntell(event='end', case=case, result={'peer': {'seconds': 1}})\n")
        self.assertEqual(told, ["first", "second"])
        self.assertIn("SIGILL", results["first"]["peer"]["reason"])
        self.assertEqual(results["second"]["peer"], {"seconds": 1})

    def test_one_that_does_not_start_loses_all_cases(self) -> None:
        results, _ = self.outcome("sys.exit('cannot be loaded')")
        self.assertEqual({result["peer"]["reason"] for result in results.values()}, {"cannot be loaded"})

    def test_a_hang_is_ended(self) -> None:
        results, _ = self.outcome("tell(event='ready', versions={})\ntell(event='begin', case=sys.argv[1])\ntime.sleep(60)", seconds=1.0)
        self.assertEqual(results["first"]["peer"]["reason"], "slower than 1 s")


class ReportTest(unittest.TestCase):
    def test_rows_survive_json_and_fill_the_table(self) -> None:
        result = measure(small("decode", "fp32"), Reference(), ropewalk(), repetitions=3)
        row = json.loads(json.dumps({"case": "decode/fp32/b1/n70", "unit": "GB/s", "peer": "reference", "threads": 1,
                                     "peer_side": result.pop("peer"), **result}))
        self.assertEqual(len(report.cells(row)), len(report.HEADER))
        self.assertTrue(report.all_agree([row]))
        row["ropewalk"] |= {"error": 1.0, "agrees": False}
        self.assertFalse(report.all_agree([row]))
        self.assertIn("WRONG", report.table([row]))
        self.assertEqual([name for name, _ in report.bars([row], row["case"])], ["reference", "ropewalk"])


def run(shim: Path) -> int:
    global shim_path
    shim_path = shim
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    with mock.patch.object(tensors, "WORKING_SET", 1 << 20), mock.patch("traceback.print_exc"):
        return 0 if unittest.TextTestRunner().run(suite).wasSuccessful() else 1
