"""Draws the charts of a results.json, in the environment that has matplotlib, or a summary of chosen cases:
python -m peerbench.draw FILE [--summary PNG CASE ...]"""
from __future__ import annotations

import argparse
import json
from pathlib import Path

from . import report


def main() -> None:
    parser = argparse.ArgumentParser(prog="peerbench.draw")
    parser.add_argument("results", type=Path)
    parser.add_argument("--summary", nargs="+", metavar="PNG CASE", help="instead of all charts: one, and a table, of these cases on most threads")
    arguments = parser.parse_args()
    facts = json.loads(arguments.results.read_text())
    if arguments.summary:
        path, *cases = arguments.summary
        threads = max(row["threads"] for row in facts["rows"])
        rows = [row for row in facts["rows"] if row["threads"] == threads]
        print(report.markdown(rows, cases))
        report.chart(rows, cases, f"{facts['machine']}, {threads} threads: {report.CAPTION}", Path(path))
    else:
        report.charts(facts["rows"], facts["machine"], arguments.results.parent)


if __name__ == "__main__":
    main()
