"""Runs peerbench.measure as child processes: a crash or a hang ends a case, not the run."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

POLL_SECONDS = 0.2
PACKAGE_ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Outcome:
    """What a peer gave on one number of threads, by case."""
    versions: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict] = field(default_factory=dict)


def environment(threads: int) -> dict[str, str]:
    """The children's. The tunable lets malloc ask for huge pages, in which peers then have their caches, as ropewalk has."""
    fixed = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONPATH": str(PACKAGE_ROOT), "PYTHONDONTWRITEBYTECODE": "1",
             "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    return os.environ | fixed


def ended(code: int, log: Path) -> str:
    """Why a process ended before its time, for the table."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}: " + ("an instruction that this processor lacks" if name == "SIGILL" else lines[-1] if lines else "no text")
    return lines[-1] if lines else f"exit code {code}"


class Follower:
    """Reads the events that a child appends to its report."""

    def __init__(self, report: Path) -> None:
        self._report, self._read = report, 0
        self.outcome = Outcome()
        self.running: str | None = None
        self.ready = False
        self.last_event = time.monotonic()

    def update(self) -> None:
        with self._report.open() as stream:
            stream.seek(self._read)
            for line in iter(stream.readline, ""):
                if not line.endswith("\n"):
                    break
                self._read += len(line.encode())
                self._take(json.loads(line))

    def _take(self, event: dict) -> None:
        self.last_event = time.monotonic()
        if event["event"] == "ready":
            self.ready, self.outcome.versions = True, event["versions"]
        elif event["event"] == "begin":
            self.running = event["case"]
        elif event["event"] == "end":
            self.outcome.results[event["case"]] = event["result"]
            self.running = None


def run_child(command: Sequence[str], threads: int, seconds_a_case: float) -> tuple[Follower, str | None]:
    """Runs the command with --report appended until it ends, or until an event is overdue. Returns what it told, and why it ended too early."""
    with tempfile.TemporaryDirectory() as folder:
        report, log = Path(folder, "report"), Path(folder, "log")
        report.touch()
        follower = Follower(report)
        with log.open("w") as sink:
            child = subprocess.Popen([*command, "--report", str(report)], env=environment(threads), stdout=sink, stderr=subprocess.STDOUT)
        while child.poll() is None:
            time.sleep(POLL_SECONDS)
            follower.update()
            if time.monotonic() - follower.last_event > seconds_a_case:
                child.kill()
                child.wait()
                return follower, f"slower than {seconds_a_case:g} s"
        follower.update()
        return follower, ended(child.returncode, log) if child.returncode != 0 else None


def run_peer(command: Callable[[list[str]], Sequence[str]], cases: list[str], threads: int, seconds_a_case: float,
             told: Callable[[str, dict], None]) -> Outcome:
    """Measures all cases; after a failure a new child goes on with the case behind it. told(case, result) is called for every case."""
    total = Outcome()
    left = list(cases)
    while left:
        follower, failure = run_child(command(left), threads, seconds_a_case)
        total.versions |= follower.outcome.versions
        results = follower.outcome.results
        if failure is not None:
            lost = [follower.running] if follower.ready and follower.running else [c for c in left if c not in results]
            results |= {case: {"peer": {"reason": failure}} for case in lost}
        for case, result in results.items():
            told(case, result)
        total.results |= results
        left = [case for case in left if case not in results]
    return total
