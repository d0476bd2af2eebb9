#!/usr/bin/env python3
"""Measures ropewalk beside other attention libraries on this machine. See README.md."""
from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
from peerbench import cases, children, environment, peers, report  # noqa: E402

SKIPPED = 77  # what ctest takes for a test that was skipped


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Installs pinned peers in their own environment, builds ropewalk, measures them in turn.")
    parser.add_argument("--peers", default=",".join(peers.NAMES), help="comma separated (default: %(default)s)")
    parser.add_argument("--cases", default="", help="comma separated prefixes or shell patterns of names, e.g. decode/bf16,prefill")
    parser.add_argument("--threads", default="1,all", help="comma separated (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few cases only")
    parser.add_argument("--repetitions", type=int, default=5, help="pairs of which the median is taken (default: %(default)s)")
    parser.add_argument("--seconds-a-case", type=float, default=300.0, help="after which a peer is given up (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=environment.ROOT / "build" / "peers" / "results", help="folder of results.json and the charts")
    parser.add_argument("--merge", action="store_true", help="keep what results.json has of other peers, cases and threads")
    parser.add_argument("--environment", type=Path, default=environment.default_folder(), help="where the wheels go (default: %(default)s)")
    parser.add_argument("--shim", type=Path, help="a libropewalk_peers.so that is already built")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and end")
    parser.add_argument("--self-test", action="store_true", help="test this program: needs numpy and --shim, no peer")
    arguments = parser.parse_args()
    if arguments.self_test and arguments.shim is None:
        parser.error("--self-test needs --shim")
    arguments.peers = arguments.peers.split(",")
    arguments.chosen = cases.select([p for p in arguments.cases.split(",") if p], arguments.quick)
    if unknown := [name for name in arguments.peers if name not in peers.NAMES]:
        parser.error(f"unknown peer {unknown[0]}; known: {', '.join(peers.NAMES)}")
    if not arguments.chosen:
        parser.error("no case has such a name; --list shows all")
    available = len(os.sched_getaffinity(0))
    try:
        arguments.threads = list(dict.fromkeys(available if t == "all" else int(t) for t in arguments.threads.split(",")))
    except ValueError:
        parser.error("--threads takes numbers and 'all'")
    if not all(1 <= t <= available for t in arguments.threads):
        parser.error(f"--threads must be 1 to {available} on this machine")
    return arguments


def processor() -> str:
    text = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return f"{fields.get('Model name', platform.machine()).strip()}, L3 {fields.get('L3 cache', 'unknown').strip()}"


def measure(arguments: argparse.Namespace, python: Path, shim: Path) -> tuple[list[dict], dict[str, str]]:
    rows: list[dict] = []
    versions: dict[str, str] = {}
    names = [case.name for case in arguments.chosen]
    for threads in arguments.threads:
        for peer in arguments.peers:
            def command(left: list[str], peer=peer, threads=threads) -> list[str]:
                fixed = ["--peer", peer, "--threads", str(threads), "--repetitions", str(arguments.repetitions), "--shim", str(shim)]
                return [str(python), "-m", "peerbench.measure", *fixed, *left]

            def told(case: str, result: dict, peer=peer, threads=threads) -> None:
                row = {"case": case, "unit": cases.from_name(case).unit, "peer": peer, "threads": threads, "peer_side": result.pop("peer"), **result}
                rows.append(row)
                environment.say("  ".join(report.cells(row)))

            versions |= children.run_peer(command, names, threads, arguments.seconds_a_case, told).versions
    return rows, versions


def merged(old: list[dict], fresh: list[dict]) -> list[dict]:
    """All rows, a fresh one in place of an old one of the same case, peer and threads."""
    def key(row: dict) -> tuple:
        return row["case"], row["peer"], row["threads"]

    return list(({key(row): row for row in old} | {key(row): row for row in fresh}).values())


def ordered(rows: list[dict]) -> list[dict]:
    case_order = {name: i for i, name in enumerate(cases.ALL)}
    peer_order = {name: i for i, name in enumerate(peers.NAMES)}
    return sorted(rows, key=lambda r: (r["threads"], case_order.get(r["case"], 0), peer_order.get(r["peer"], 0)))


def publish(arguments: argparse.Namespace, python: Path, rows: list[dict], versions: dict[str, str]) -> bool:
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / "results.json"
    old = json.loads(path.read_text()) if arguments.merge and path.exists() else {"rows": [], "versions": {}, "commands": []}
    rows, versions = merged(old["rows"], rows), old["versions"] | versions
    rows = ordered(rows)
    commands = [*old["commands"], shlex.join(["bench/peers/run.py", *sys.argv[1:]])]
    facts = {"commands": commands, "date": datetime.date.today().isoformat(), "machine": processor(),
             "system": platform.platform(), "python": platform.python_version(), "versions": versions, "rows": rows}
    path.write_text(json.dumps(facts, indent=1, ensure_ascii=False))
    subprocess.run([python, "-m", "peerbench.draw", path], env=children.environment(1), check=True)
    print(f"{facts['machine']}; {', '.join(f'{name} {version}' for name, version in versions.items())}\n")
    print(f"{report.table(rows)}\n\n{path} and charts beside it")
    return report.all_agree(rows)


def self_test(shim: Path) -> int:
    if importlib.util.find_spec("numpy") is None:
        print("peers: self-test skipped: this python has no numpy (tools/setup.sh --test installs python3-numpy)")
        return SKIPPED
    from peerbench import self_test as tests
    return tests.run(shim)


def main() -> int:
    arguments = parse()
    if arguments.list:
        print("\n".join(cases.ALL))
        return 0
    if arguments.self_test:
        return self_test(arguments.shim)
    python = environment.install(arguments.environment)
    if "ggml" in arguments.peers:
        os.environ["ROPEWALK_PEERS_GGML"] = str(environment.build_ggml(arguments.environment, python))
    shim = arguments.shim or environment.build_shim()
    rows, versions = measure(arguments, python, shim.resolve())
    return 0 if publish(arguments, python, rows, versions) else 1


if __name__ == "__main__":
    sys.exit(main())
