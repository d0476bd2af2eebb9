"""Table and charts of the rows that a run gives. A row: case, unit, peer, threads, and what measure.measure returned."""
from __future__ import annotations

import statistics
from pathlib import Path

HEADER = ("case", "threads", "peer", "peer", "ropewalk", "ropewalk is", "of roof", "error", "ropewalk's")
CAPTION = "time of a call, in times of ropewalk's"
OWN_COLOUR, PEER_COLOUR = "#1f6f8b", "#c8c8c8"


def duration(seconds: float) -> str:
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def measured(side: dict | None, unit: str) -> str:
    if side is None or "reason" in side:
        return "-"
    return duration(side["seconds"]) + (f" {side['rate']:.3g} {unit}" if side["rate"] else "")


def error(side: dict | None) -> str:
    if side is None or side.get("error") is None:
        return "-"
    return f"{side['error']:.1e}" + ("" if side.get("agrees", True) else " WRONG")


def all_agree(rows: list[dict]) -> bool:
    return all(side.get("agrees", True) for row in rows for side in (row["peer_side"], row.get("ropewalk", {})))


def cells(row: dict) -> tuple[str, ...]:
    peer, own = row["peer_side"], row.get("ropewalk")
    front = (row["case"], str(row["threads"]), row["peer"])
    if "reason" in peer:
        return (*front, f"not run: {peer['reason']}")
    share, speedup = row.get("roof_share"), row.get("speedup")
    faster = f"{speedup['median']:.2f} x ({speedup['lowest']:.2f}-{speedup['highest']:.2f})" if speedup else f"not run: {own['reason']}"
    of_roof = f"{share['median']:.0%}" if share else "-"
    return (*front, measured(peer, row["unit"]), measured(own, row["unit"]), faster, of_roof, error(peer), error(own))


def table(rows: list[dict]) -> str:
    """Fixed columns; a reason may run over the columns to its right."""
    lines = [HEADER, *(cells(row) for row in rows)]
    widths = [max((len(line[i]) for line in lines if len(line) > i and not line[i].startswith("not run")), default=0) for i in range(len(HEADER))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def markdown(rows: list[dict], cases: list[str]) -> str:
    """A line a case: ropewalk's rate, share of the roof and error (medians over its pairs), then how many times as fast it is as each peer, and the
    peer's error."""
    rows = [row for row in rows if row["case"] in cases and row.get("speedup")]
    names = list(dict.fromkeys(row["peer"] for row in rows))
    lines = [["case", "ropewalk", "of the roof", "error", *names], ["---"] * (4 + len(names))]
    for case in cases:
        found = {row["peer"]: row for row in rows if row["case"] == case}
        own = [row["ropewalk"] for row in found.values()]
        shares = [row["roof_share"]["median"] for row in found.values() if row.get("roof_share")]
        rate = statistics.median(side["rate"] for side in own)
        unit = next(iter(found.values()))["unit"]
        speed = f"{rate:.3g} {unit}" if rate else duration(statistics.median(side["seconds"] for side in own))
        line = [case, speed, f"{statistics.median(shares):.0%}" if shares else "-", error(own[0])]
        for name in names:
            row = found.get(name)
            line.append(f"{row['speedup']['median']:.2f} ×, {error(row['peer_side'])}" if row else "-")
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bars(rows: list[dict], case: str) -> list[tuple[str, float]]:
    """How many times ropewalk's time each implementation takes, fastest first: medians of pairs, since absolute times drift between the runs of two
    peers. Empty where ropewalk does not run the case."""
    found = [(row["peer"], row["speedup"]["median"]) for row in rows if row["case"] == case and row.get("speedup")]
    return sorted([*found, ("ropewalk", 1.0)], key=lambda bar: bar[1]) if found else []


def chart(rows: list[dict], cases: list[str], title: str, path: Path) -> None:
    """One panel a case, fastest on top."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [(case, found) for case in cases if (found := bars(rows, case))]
    if not panels:
        return
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(4.2 * columns, 2.1 * lines + 0.5), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels):]:
        axis.axis("off")
    for axis, (case, found) in zip(axes.flat, panels):
        names, times = zip(*found)
        drawn = axis.barh(names, times, color=[OWN_COLOUR if n == "ropewalk" else PEER_COLOUR for n in names])
        axis.bar_label(drawn, [f"{t:.2f}" for t in times], padding=3, fontsize=7)
        axis.invert_yaxis()
        axis.set_title(case, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.set_xlim(right=1.2 * times[-1])
        axis.set_xticks([])
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def charts(rows: list[dict], title: str, folder: Path) -> None:
    """A chart for every kind of case and number of threads."""
    for kind in dict.fromkeys(row["case"].split("/")[0] for row in rows):
        for threads in dict.fromkeys(row["threads"] for row in rows):
            chosen = [row for row in rows if row["threads"] == threads and row["case"].startswith(kind + "/")]
            chart(chosen, list(dict.fromkeys(row["case"] for row in chosen)), f"{title}, {threads} threads: {CAPTION}",
                  folder / f"{kind}-{threads}.png")
