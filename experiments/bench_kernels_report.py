"""Tables and plot of the kernel benchmark; reads metrics.jsonl and nothing else."""

from pathlib import Path
from typing import Any

from experiments.measure import median_interval, ratios
from experiments.plots import category_axis, legend_below, log_axis, new_figure, save, style
from experiments.run_folder import read_rows
from experiments.tables import print_table, seconds, write_csv

NAMES = {
    "reference": "token loop",
    "associative": "associative scan",
    "xla": "chunked XLA",
    "pallas": "Pallas",
}


def run_summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a shape and implementation: times, rates, and how much slower the baselines are."""
    found = []
    for shape in dict.fromkeys(row["shape"] for row in rows if row["what"] == "run"):
        mine = [row for row in rows if row["what"] == "run" and row["shape"] == shape]
        names = [key.removesuffix("_compile_s") for key in mine[0] if key.endswith("_compile_s")]
        for name in names:
            scale = mine[0].get("associative_scale", 1.0) if name == "associative" else 1.0
            run_s = [row[f"{name}_s"] * scale for row in mine]
            middle = median_interval(run_s)
            line = {
                "shape": shape,
                "implementation": name,
                "lower_s": mine[0][f"{name}_lower_s"],
                "compile_s": mine[0][f"{name}_compile_s"],
                "run_s": middle.median,
                "run_low_s": middle.low,
                "run_high_s": middle.high,
                "flops_per_s": mine[0]["flops"] / middle.median,
                "bytes_per_s": mine[0]["bytes"] / middle.median,
                "scaled_by": scale,
            }
            if "xla_s" in mine[0]:
                line["times_of_xla"] = ratios([row["xla_s"] for row in mine], run_s).median
            found.append(line)
    return found


def pair_summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a cell of pairs: the ratio to the scan without captures."""
    found = []
    keys = ("what", "shape", "implementation", "captures")
    for cell in dict.fromkeys(row["cell"] for row in rows if row["what"] in ("captures", "split")):
        mine = [row for row in rows if row["cell"] == cell]
        ratio = ratios([row["without_s"] for row in mine], [row["with_s"] for row in mine])
        found.append({key: mine[0][key] for key in keys} | ratio._asdict())
    return found


def headline(rows: list[dict[str, Any]]) -> str:
    """The run in one line: the dearest four captures, the cheapest split, the loop at its best."""
    pairs = pair_summary(rows)
    parts = []
    for what, choose in (("captures", max), ("split", min)):
        mine = [pair for pair in pairs if pair["what"] == what and pair["captures"] == 4]
        if mine:
            one = choose(mine, key=lambda pair: pair["median"])
            parts.append(
                f"{what} at 4 offsets: at {'most' if choose is max else 'least'} "
                f"{one['median']:.3f} of one pass ({one['shape']}, {one['implementation']}, "
                f"95% {one['low']:.3f}..{one['high']:.3f})"
            )
    loops = [line for line in run_summary(rows) if line["implementation"] == "reference"]
    loops = [line for line in loops if "times_of_xla" in line]
    if loops:
        least = min(loops, key=lambda line: line["times_of_xla"])
        parts.append(f"the token loop takes at least {least['times_of_xla']:.2f} of chunked XLA")
    return "; ".join(parts) or "nothing was timed in pairs"


def draw(runs: list[dict[str, Any]], pairs: list[dict[str, Any]], path: Path) -> None:
    """Run times by shape, and cost of captures by their number."""
    figure, (times, costs) = new_figure(columns=2, width_in=5.2)
    shapes = list(dict.fromkeys(line["shape"] for line in runs))
    for index, name in enumerate(NAMES):
        by_shape = {line["shape"]: line["run_s"] for line in runs if line["implementation"] == name}
        if by_shape:
            look = {**style(index), "linestyle": "none"}
            times.plot(
                [shapes.index(s) for s in by_shape],
                list(by_shape.values()),
                label=NAMES[name],
                **look,
            )
    category_axis(times, [shape.replace("-", "\n", 1) for shape in shapes], "size of")
    times.set_xlim(-0.5, len(shapes) - 0.5)
    log_axis(times, [10.0**n for n in range(-4, 3)], " s")
    times.set_ylabel("one scan", fontsize=9.5)
    captures = [pair for pair in pairs if pair["what"] == "captures"]
    series = list(dict.fromkeys((pair["shape"], pair["implementation"]) for pair in captures))
    for index, key in enumerate(series):
        mine = [p for p in captures if (p["shape"], p["implementation"]) == key]
        costs.errorbar(
            [pair["captures"] for pair in mine],
            [pair["median"] for pair in mine],
            [
                [pair["median"] - pair["low"] for pair in mine],
                [pair["high"] - pair["median"] for pair in mine],
            ],
            label=f"{key[0]}, {NAMES[key[1]]}",
            **style(index),
        )
    costs.set_xlabel("captures in one scan", fontsize=9.5)
    costs.set_ylabel("time over a scan without", fontsize=9.5)
    legend_below(figure, [times, costs], 3)
    save(figure, path)


def report(folder: Path) -> None:
    """Write the summaries and the plot of a run folder, print its tables.

    Args:
        folder: the run folder.
    """
    rows = read_rows(folder)
    runs, pairs = run_summary(rows), pair_summary(rows)
    write_csv(folder / "summary.csv", runs)
    write_csv(folder / "pairs.csv", pairs)
    draw(runs, pairs, folder / "kernels.png")
    ceilings = [row for row in rows if row["what"] == "ceilings"]
    print_table(
        "one scan (the associative scan's time is that of one head, scaled)",
        ("size", "implementation", "lower", "compile", "run", "GFLOP/s", "GB/s", "over\nXLA"),
        [
            (
                line["shape"],
                NAMES[line["implementation"]],
                seconds(line["lower_s"]),
                seconds(line["compile_s"]),
                seconds(line["run_s"]),
                f"{line['flops_per_s'] / 1e9:.3g}",
                f"{line['bytes_per_s'] / 1e9:.3g}",
                f"{line['times_of_xla']:.2f}" if "times_of_xla" in line else None,
            )
            for line in runs
        ],
    )
    gemm_rate = max(row["gemm_flops_per_s"] for row in ceilings) / 1e9
    copy_rate = max(row["copy_bytes_per_s"] for row in ceilings) / 1e9
    print(f"ceilings: matrix product {gemm_rate:.3g} GFLOP/s, copy {copy_rate:.3g} GB/s")
    print_table(
        "time over one scan without captures",
        ("size", "implementation", "what", "offsets", "median", "95% low", "high", "pairs"),
        [
            (
                pair["shape"],
                NAMES[pair["implementation"]],
                "captures" if pair["what"] == "captures" else "split passes",
                pair["captures"],
                *(f"{pair[name]:.3f}" for name in ("median", "low", "high")),
                pair["samples"],
            )
            for pair in pairs
        ],
    )
    print(headline(rows).replace("; ", "\n"))
    print(f"{folder}: metrics.jsonl, summary.csv, pairs.csv, kernels.png")
