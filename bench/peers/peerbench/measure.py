"""The process that measures: one peer and ropewalk beside it, on a given number of threads, case after case.

Each event is a JSON line of the report file, so that the parent knows how far a process came that crashed or hangs."""
from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
import traceback
from pathlib import Path

import numpy as np

from . import cases, peers
from .cases import Case
from .shim import Ropewalk
from .tensors import Tensors
from .work import Implementation, Refused, Work

TURN_SECONDS = 0.05  # of work that is timed in one go
MOST_CALLS = 20000
PAUSE_SECONDS = 0.02  # between turns: the other pool's threads stop spinning
WARM_UP_SECONDS = 0.5  # a call longer than this is not run once untimed before each turn


class Turn:
    """Times an implementation, a turn at a time, over ever the next buffers."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._next = 1
        single = self._timed(1)
        self._warm = single < WARM_UP_SECONDS
        if self._warm:
            single = self._timed(max(1, min(20, int(TURN_SECONDS / max(single, 1e-7)))))
        self._calls = max(1, min(MOST_CALLS, int(TURN_SECONDS / max(single, 1e-7))))

    def _timed(self, calls: int) -> float:
        """Seconds a call."""
        call, first = self._work.call, self._next
        self._next += calls
        start = time.perf_counter()
        for i in range(first, first + calls):
            call(i)
        return (time.perf_counter() - start) / calls

    def seconds(self) -> float:
        time.sleep(PAUSE_SECONDS)
        if self._warm:
            self._timed(1)
        return self._timed(self._calls)


def largest_error(work: Work, tensors: Tensors, expected: np.ndarray | None) -> float | None:
    if expected is None or work.output is None:
        return None
    rows = work.output()[list(tensors.checked_rows)]
    difference = np.abs(rows - expected)
    return float(difference.max()) if np.isfinite(difference).all() else float("inf")


class Side:
    """One of the two that are compared: its error, then its times."""

    def __init__(self, implementation: Implementation, case: Case, tensors: Tensors, expected: np.ndarray | None) -> None:
        self.seconds: list[float] = []
        self.refusal: str | None = None
        self.error: float | None = None
        self._tolerance = tensors.tolerance
        try:
            self._work = implementation.prepare(case, tensors)
            self._work.call(0)
            self.error = largest_error(self._work, tensors, expected)
            self._turn = Turn(self._work)
        except Refused as reason:
            self.refusal = str(reason)
        except Exception as failure:  # a peer may raise anything: it is listed with it
            traceback.print_exc()
            self.refusal = f"{type(failure).__name__}: {str(failure).strip().splitlines()[-1] if str(failure).strip() else 'no text'}"

    def take_turn(self) -> None:
        if self.refusal is None:
            self.seconds.append(self._turn.seconds())

    def result(self) -> dict:
        if self.refusal is not None:
            return {"reason": self.refusal}
        seconds = statistics.median(self.seconds)
        return {"seconds": seconds, "lowest": min(self.seconds), "highest": max(self.seconds), "rate": self._work.amount / seconds,
                "error": self.error, "agrees": self.error is None or self.error <= self._tolerance, "note": self._work.note}


def median_quotient(numerators: list[float], denominators: list[float]) -> dict | None:
    quotients = [n / d for n, d in zip(numerators, denominators)]
    return {"median": statistics.median(quotients), "lowest": min(quotients), "highest": max(quotients)} if quotients else None


def measure(case: Case, peer: Implementation, own: Ropewalk, repetitions: int) -> dict:
    tensors = Tensors(case)
    expected = tensors.expected()
    peer_side = Side(peer, case, tensors, expected)
    if peer_side.refusal is not None:
        return {"peer": peer_side.result()}
    own_side = Side(own, case, tensors, expected)
    roofs = []
    for _ in range(repetitions):
        peer_side.take_turn()
        own_side.take_turn()
        roofs.append(own.roof(case, TURN_SECONDS))
    result = {"peer": peer_side.result(), "ropewalk": own_side.result(), "speedup": median_quotient(peer_side.seconds, own_side.seconds)}
    if own_side.refusal is None and roofs[0] is not None:
        amount = own_side.result()["rate"] * own_side.result()["seconds"]
        result["roof"] = statistics.median(roofs)
        result["roof_share"] = median_quotient([amount / s for s in own_side.seconds], roofs)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="peerbench.measure")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--repetitions", type=int, required=True)
    parser.add_argument("--shim", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("cases", nargs="+")
    arguments = parser.parse_args()

    with arguments.report.open("a") as report:
        def tell(**event) -> None:
            report.write(json.dumps(event) + "\n")
            report.flush()

        tell(event="start")
        # the peer first: it brings a TBB or OpenMP of its own, which the shim then shares
        peer = importlib.import_module(f".peers.{peers.NAMES[arguments.peer]}", __package__).Peer(arguments.threads)
        own = Ropewalk(arguments.shim, arguments.threads)
        tell(event="ready", versions=peer.versions() | own.versions())
        for name in arguments.cases:
            tell(event="begin", case=name)
            tell(event="end", case=name, result=measure(cases.from_name(name), peer, own, arguments.repetitions))


if __name__ == "__main__":
    main()
