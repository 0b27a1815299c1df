"""The failure that this project answers, and its cures, on the prompt that showed it.

A prompt of 32,772 tokens is prefilled in chunks of 8,193 and then 8,192 tokens, so every chunk ends
one token past a block boundary; then the same prompt comes again. "naive" has snapshots at chunk
ends only and must restore far below the match; "chunk_end" moves the ends and splits the last
chunk; "planned" and "in_pass" capture states inside the pass, on the tile grid, where restores are
exact.

    python -m experiments.tail_split

Hardware: two CPU cores and 4 GB are enough for the default preset.
Expected time: about three minutes on two cores.
Expected result: naive restores at 24,577 and computes 8,195 tokens again; chunk_end restores at
32,752 and computes 20; in_pass restores at 32,768 and computes 4, at least a hundred times faster
than cold. The last column is what the number of FLOPs would allow: whole tiles are computed, and
every position attends to all before it.
"""

import dataclasses
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from experiments.errors import UserError, as_user_error, check_at_least, run_main
from experiments.options import Options, parse, started
from experiments.progress import SweepProgress
from experiments.run_folder import RunFolder, read_rows
from experiments.tables import print_table, write_csv
from experiments.warm_up import warm_up
from planner.costs import CostModel, schedule_flops
from planner.schedule import plan_prefill

if TYPE_CHECKING:
    from hybrid.runner import ModelRunner

Mode = Literal["naive", "chunk_end", "planned", "in_pass"]
GRID_OF_MODE = {"naive": "block", "chunk_end": "block", "planned": "tile", "in_pass": "tile"}


@dataclass(frozen=True)
class TailSplit(Options):
    """Run a long prompt cold and warm, with snapshots placed in four ways."""

    modes: tuple[Mode, ...] = ("naive", "chunk_end", "planned", "in_pass")
    """Placements; the first two on the block grid, the others on the tile grid."""
    total_tokens: int = 32_772
    """Prompt length."""
    first_chunk: int = 8193
    """Tokens that the first chunk may have."""
    chunk: int = 8192
    """Tokens that each later chunk may have."""
    interval: int = 16
    """Snapshot interval, in blocks."""
    repeats: int = 3
    """How often the warm request is repeated."""

    def __post_init__(self) -> None:
        """Check what can be checked without a model."""
        super().__post_init__()
        check_at_least(self, total_tokens=2, first_chunk=1, chunk=1, interval=0, repeats=1)
        if not self.modes or len(set(self.modes)) < len(self.modes):
            raise UserError(f"--modes {' '.join(self.modes)}: expected each mode at most once")

    def shrunk(self) -> "TailSplit":
        """The same story on a thirty-second of the prompt, where --quick asks for it."""
        if not self.quick:
            return self
        return dataclasses.replace(
            self,
            preset="tiny" if self.preset == "default" else self.preset,
            total_tokens=min(1028, self.total_tokens),
            first_chunk=min(257, self.first_chunk),
            chunk=min(256, self.chunk),
            repeats=1,
        )

    def cells(self) -> list[dict[str, Any]]:
        """Parameters of every cell, grid by grid, as each grid has its own compiled programs."""
        ordered = sorted(self.modes, key=lambda mode: (GRID_OF_MODE[mode], self.modes.index(mode)))
        return [{"mode": mode, "grid": GRID_OF_MODE[mode]} for mode in ordered]

    def scheduling(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments that an engine and a plan share."""
        return {
            "mode": cell["mode"],
            "interval": self.interval,
            "first_budget": self.first_chunk,
            "budget": self.chunk,
        }


def build(options: TailSplit, grid: str) -> "ModelRunner":
    """A model compiled for a grid."""
    from hybrid.runner import ModelRunner

    with as_user_error(f"--preset {options.preset}"):
        runner = ModelRunner.from_preset(
            options.preset,
            dtype=options.dtype,
            seed=options.seed,
            capacity=options.total_tokens + 1,
            tile=options.tile,
            block_size=options.block_size,
            grid=grid,
        )
    warm_up(runner, options.seed, new_tokens=1)
    return runner


def measure(
    options: TailSplit, cell: Mapping[str, Any], runner: "ModelRunner", costs: CostModel
) -> Iterator[dict[str, Any]]:
    """The cold request, then the warm ones; one line each."""
    from hybrid.engine import Engine

    prompt = np.random.default_rng(options.seed).integers(0, 256, options.total_tokens)
    engine = Engine(runner, **options.scheduling(cell))
    for repeat in range(options.repeats + 1):
        completion = engine.generate(prompt, 1)
        report = completion.report.as_dict()
        plan = plan_prefill(
            options.total_tokens,
            start=report["restored"],
            block_size=options.block_size,
            tile=options.tile,
            grid=cell["grid"],
            **options.scheduling(cell),
        )
        yield {
            "request": "warm" if repeat else "cold",
            "repeat": max(repeat - 1, 0),
            **report,
            "flops": schedule_flops(costs, plan, options.tile),
            "first_token": int(completion.tokens[0]),
        }


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a mode.

    Args:
        rows: of metrics.jsonl.

    Returns:
        Counts of the first warm request, times, their ratio and what FLOPs allow.
    """
    found = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        cold, *warm = [row for row in rows if row["mode"] == mode]
        warm_s = [row["time_to_first_token_s"] for row in warm]
        counts = ("grid", "total", "matched", "restored", "replayed", "recomputed", "reason")
        found.append(
            {"mode": mode}
            | {name: warm[0][name] for name in counts}
            | {
                "cold_s": cold["time_to_first_token_s"],
                "warm_s": statistics.median(warm_s),
                "warm_low_s": min(warm_s),
                "warm_high_s": max(warm_s),
                "ratio": cold["time_to_first_token_s"] / statistics.median(warm_s),
                "ratio_of_flops": cold["flops"] / warm[0]["flops"],
                "same_first_token": len({row["first_token"] for row in (cold, *warm)}) == 1,
            }
        )
    return found


def headline(rows: list[dict[str, Any]]) -> str:
    """The run in one line.

    Args:
        rows: of metrics.jsonl.

    Returns:
        What each mode computed again, and how many times faster than cold it was.
    """
    return "; ".join(
        f"{row['mode']} computes {row['recomputed']:,}, {row['ratio']:,.3g}x faster than cold "
        f"(FLOPs allow {row['ratio_of_flops']:,.3g}x)"
        for row in summarise(rows)
    )


def report(run: RunFolder) -> None:
    """Write summary.csv and print the table.

    Args:
        run: the run folder.
    """
    summary = summarise(read_rows(run.path))
    write_csv(run.path / "summary.csv", summary)
    header = (
        "mode",
        "grid",
        "mat-\nched",
        "re-\nstored",
        "re-\nplayed",
        "com-\nputed",
        "cold\ns",
        "warm\ns",
        "\nfaster",
        "FLOPs\nallow",
    )
    table = [
        (
            row["mode"],
            row["grid"],
            f"{row['matched']:,}",
            f"{row['restored']:,}",
            f"{row['replayed']:,}",
            f"{row['recomputed']:,}",
            f"{row['cold_s']:.3g}",
            f"{row['warm_s']:.3g}",
            f"{row['ratio']:,.3g}x",
            f"{row['ratio_of_flops']:,.3g}x",
        )
        for row in summary
    ]
    print_table(
        f"{summary[0]['total']:,} tokens, cold and again; time to the first token", header, table
    )
    print(f"{run.path}: metrics.jsonl, summary.csv")


def main() -> None:
    """Parse the command line and run the modes."""
    options = parse(TailSplit, "tail_split").shrunk()
    with started(options), RunFolder.open(options.out, "tail_split", options.config()) as run:
        for notice in run.notices:
            print(f"note: {notice}")
        missing = run.unfinished(options.cells())
        runners: dict[str, ModelRunner] = {}
        with SweepProgress(len(missing), options.repeats + 1) as progress:
            for cell in missing:
                from experiments.model_costs import model_costs

                progress.start_cell(f"{cell['mode']}, {cell['grid']} grid")
                if cell["grid"] not in runners:
                    runners = {cell["grid"]: build(options, cell["grid"])}
                runner = runners[cell["grid"]]
                costs = model_costs(runner.config, runner.compute)
                rows = progress.count(measure(options, cell, runner, costs))
                run.write_cell(cell, rows, options.repeats + 1)
                progress.end_cell()
        report(run)


if __name__ == "__main__":
    run_main(main)
