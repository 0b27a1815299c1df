"""Tables and plots of the interval ablation; reads metrics.jsonl and nothing else."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import plots
from experiments.run_folder import read_rows
from experiments.tables import megabytes, print_table, write_csv

Row = dict[str, Any]
CELL = ("mode", "grid", "cache_mb", "interval")


def summarise(rows: Sequence[Row]) -> list[Row]:
    """One line a cell: sums over its requests, medians and spread over its repeats.

    Args:
        rows: of metrics.jsonl.

    Returns:
        Cells in order of first appearance.

    Raises:
        ValueError: repeats of a cell whose counts differ, which replayed answers rule out.
    """
    cells: dict[tuple[Any, ...], dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        cells[tuple(row[name] for name in CELL)][row["repeat"]].append(row)
    return [
        dict(zip(CELL, key, strict=True)) | _summary(list(repeats.values()))
        for key, repeats in cells.items()
    ]


SUMS = (
    "total",
    "matched",
    "restored",
    "replayed",
    "recomputed",
    "snapshots",
    "snapshot_bytes",
    "bytes_written",
    "evicted_snapshots",
    "evicted_blocks",
    "skipped_snapshots",
)


def _summary(repeats: list[list[Row]]) -> Row:
    sums = [{name: sum(row[name] for row in rows) for name in SUMS} for rows in repeats]
    if any(other != sums[0] for other in sums):
        raise ValueError(f"repeats of a cell differ in their counts: {sums}")
    means_s = [float(np.mean([row["time_to_first_token_s"] for row in rows])) for rows in repeats]
    reasons = Counter(row["reason"] for row in repeats[0])
    return {
        "requests": len(repeats[0]),
        "repeats": len(repeats),
        **sums[0],
        "restored_share": sums[0]["restored"] / sums[0]["total"],
        "mean_time_to_first_token_s": float(np.median(means_s)),
        "mean_time_to_first_token_low_s": min(means_s),
        "mean_time_to_first_token_high_s": max(means_s),
        "reasons": ", ".join(f"{name} {count}" for name, count in reasons.most_common()),
    }


def report(folder: Path) -> None:
    """Write summary.csv and the plot of a run folder, and print its table.

    Args:
        folder: the run folder.
    """
    rows = read_rows(folder)
    summary = summarise(rows)
    write_csv(folder / "summary.csv", summary)
    _print(summary)
    draw(rows, folder / "interval.png")
    print(f"{folder}: metrics.jsonl, summary.csv, interval.png")


def headline(rows: Sequence[Row]) -> str:
    """The run in one line: what the best cell with an unlimited cache computed, against no cache.

    Args:
        rows: of metrics.jsonl.

    Returns:
        A sentence without a full stop.
    """
    off, *cached = summarise(rows)
    cell = min(cached, key=lambda row: (row["recomputed"], row["snapshot_bytes"]))
    return (
        f"{cell['mode']} at interval {cell['interval']} computes {cell['recomputed']:,} of "
        f"{off['total']:,} prompt tokens; first token {_ms(cell)} ms, without a cache {_ms(off)} ms"
    )


def _ms(row: Row) -> str:
    return f"{row['mean_time_to_first_token_s'] * 1e3:,.0f}"


def _print(summary: Sequence[Row]) -> None:
    header = (
        "mode",
        "cache\nMB",
        "inter-\nval",
        "com-\nputed",
        "re-\nplayed",
        "re-\nused",
        "first\ntok ms",
        "\n±",
        "snap-\nshots",
        "their\nMB",
        "evic-\nted",
    )
    table = [
        (
            row["mode"],
            _budget(row),
            None if row["mode"] == "off" else row["interval"],
            f"{row['recomputed']:,}",
            f"{row['replayed']:,}",
            f"{row['restored_share']:.0%}",
            _ms(row),
            _spread(row),
            row["snapshots"],
            megabytes(row["snapshot_bytes"]),
            row["evicted_snapshots"],
        )
        for row in summary
    ]
    print_table(f"Sums over {summary[0]['requests']} requests", header, table)
    print(
        "interval: in blocks, 0 is at the prompt's tail only. computed: prompt tokens run.\n"
        "replayed: those that matched the cache but had no snapshot nearer. reused: share\n"
        "of prompt tokens restored. first tok ms: mean time to the first token over the\n"
        "requests; median over repeats, ± half their range. evicted: snapshots."
    )


def _budget(row: Row) -> str | None:
    if row["mode"] == "off":
        return None
    return "none" if row["cache_mb"] is None else f"{row['cache_mb']:g}"


def _spread(row: Row) -> str | None:
    low, high = row["mean_time_to_first_token_low_s"], row["mean_time_to_first_token_high_s"]
    if row["repeats"] == 1:
        return None
    return f"{(high - low) / 2 / row['mean_time_to_first_token_s']:.0%}"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw recomputed tokens, time to first token and snapshot bytes against the interval.

    Args:
        rows: of metrics.jsonl.
        path: the PNG file.
    """
    cached = [row for row in rows if row["mode"] != "off"]
    baseline = [row for row in rows if row["mode"] == "off"]
    intervals = sorted({row["interval"] for row in cached}, key=lambda n: (n == 0, n))
    series = list(dict.fromkeys((row["mode"], row["cache_mb"]) for row in cached))
    modes, budgets = (list(dict.fromkeys(column)) for column in zip(*series, strict=True))
    panels: tuple[tuple[str, Callable[[Sequence[Row]], float]], ...] = (
        ("Prompt tokens computed (thousands)", lambda r: sum(x["recomputed"] for x in r) / 1e3),
        ("Mean time to first token (s)", lambda r: _mean(r, "time_to_first_token_s")),
        ("Snapshots written (MB)", lambda r: sum(x["snapshot_bytes"] for x in r) / 1e6),
    )
    figure, axes = plots.new_figure(columns=len(panels), width_in=3.6, height_in=3.7)
    for place, (ax, (label, measure)) in enumerate(zip(axes, panels, strict=True)):
        for mode, cache_mb in series:
            look = plots.variant(modes.index(mode), budgets.index(cache_mb))
            values: dict[float, list[float]] = {}
            for x, interval in enumerate(intervals):
                here = [r for r in cached if _is(r, mode, cache_mb, interval)]
                repeats = sorted({row["repeat"] for row in here})
                if here:
                    values[x] = [
                        measure([row for row in here if row["repeat"] == repeat])
                        for repeat in repeats
                    ]
            budget = "no limit" if cache_mb is None else f"{cache_mb:g} MB cache"
            plots.plot_spread(ax, values, f"{mode}, {budget}", look)
        if baseline and place < 2:
            ax.axhline(
                measure(baseline), color=plots.GREY, linewidth=1.2, linestyle=":", label="no cache"
            )
        plots.category_axis(ax, [_tick(n) for n in intervals], "Snapshot interval (blocks)")
        ax.set_title(label, fontsize=10, loc="left")
        ax.set_ylim(bottom=0)
    plots.legend_below(figure, axes, columns=min(len(series) + 1, 5))
    plots.save(figure, path)


def _is(row: Row, mode: str, cache_mb: float | None, interval: int) -> bool:
    return (row["mode"], row["cache_mb"], row["interval"]) == (mode, cache_mb, interval)


def _tick(interval: int) -> str:
    return "tail\nonly" if interval == 0 else str(interval)


def _mean(rows: Sequence[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))
