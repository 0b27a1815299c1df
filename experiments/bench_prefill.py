"""How near prefill comes to the machine's matrix product, and what captures in it cost.

For every tile the prefill of one prompt is timed in turns with matrix products of the same machine:
the model's own (a tile of rows times its widest weights) and a large square one. The best tile is
then timed with and without captures, pair by pair.

    python -m experiments.bench_prefill

Hardware: two CPU cores and 4 GB are enough for the default preset.
Expected time: about five minutes on two cores.
Expected result: at the best tile prefill reaches at least half of the best product's rate, and
eight captures cost at most 2%. FLOPs are those of matrix products, causal attention and the scan.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.errors import UserError, as_user_error, check_at_least, run_main
from experiments.measure import gemm, interleaved_pairs, median_interval, ratios, timed
from experiments.options import Options, parse, started
from experiments.progress import SweepProgress
from experiments.run_folder import RunFolder, read_rows
from experiments.tables import print_table, write_csv
from planner.costs import prefill_flops
from planner.schedule import Chunk, Schedule

if TYPE_CHECKING:
    from hybrid.runner import ModelRunner


@dataclass(frozen=True)
class BenchPrefill(Options):
    """Time prefill against matrix products, and with captures against without."""

    tokens: int = 4096
    """Prompt length."""
    tiles: tuple[int, ...] = (64, 128, 256)
    """Tiles to try; --tile is not used."""
    rounds: int = 7
    """How often each tile's prefill is timed."""
    captures: int = 8
    """States captured in the prompt."""
    pairs: int = 40
    """Pairs of prefills with and without captures, at the best tile."""

    def __post_init__(self) -> None:
        """Check what can be checked without a model."""
        super().__post_init__()
        check_at_least(self, tiles=1, captures=1, rounds=1, pairs=1)
        for tile in self.tiles:
            if tile % self.block_size:
                raise UserError(f"--tiles {tile}: expected multiples of {self.block_size}")
        if self.captures * max(self.tiles) > self.tokens:
            raise UserError(
                f"--captures {self.captures}: expected at most a capture a tile of {self.tokens}"
            )


def build(options: BenchPrefill, tile: int) -> "ModelRunner":
    """A model compiled for a tile."""
    from hybrid.runner import ModelRunner

    with as_user_error(f"--preset {options.preset}"):
        return ModelRunner.from_preset(
            options.preset,
            dtype=options.dtype,
            seed=options.seed,
            capacity=options.tokens,
            tile=tile,
            block_size=options.block_size,
        )


def prefill(options: BenchPrefill, runner: "ModelRunner") -> Callable[[int], Any]:
    """A function that runs one prefill with so many captures, spread evenly over the prompt."""
    prompt = np.random.default_rng(options.seed).integers(0, 256, options.tokens)
    tokens = runner.device_tokens(prompt)
    workspace = [runner.new_workspace()]

    def run(captures: int) -> Any:
        step = options.tokens // max(captures, 1) // runner.shapes.tile * runner.shapes.tile
        positions = tuple(step * n for n in range(1, captures + 1))
        chunk = Chunk(0, options.tokens, ((0, options.tokens),), positions)
        result = runner.prefill(tokens, Schedule(options.tokens, 0, (chunk,)), workspace[0])
        assert len(result.snapshots) == captures
        workspace[0] = result.workspace
        return result.logits, result.snapshots

    return run


def measure_tile(options: BenchPrefill, tile: int) -> Iterator[dict[str, Any]]:
    """Rates of prefill and of products at one tile, in turns; one line a round."""
    from experiments.model_costs import model_costs

    runner = build(options, tile)
    run = prefill(options, runner)
    compile_s = timed(lambda: run(0))
    flops = prefill_flops(model_costs(runner.config, runner.compute), 0, options.tokens)
    inner, columns = widest_product(runner)
    shapes = {"tile rows": (tile, inner, columns), "square": (2048, 2048, 2048)}
    products = {name: gemm(*shape, dtype=options.dtype) for name, shape in shapes.items()}
    for round_ in range(options.rounds):
        seconds = timed(lambda: run(0))
        row: dict[str, Any] = {"round": round_, "first_call_s": compile_s}
        row |= {"prefill_s": seconds, "prefill_flops_per_s": flops / seconds}
        for name, shape in shapes.items():
            repeats = max(1, int(0.2e9 / np.prod(shape)))
            once = min(timed(products[name]) for _ in range(repeats + 2))
            row[f"{name.replace(' ', '_')}_flops_per_s"] = 2.0 * float(np.prod(shape)) / once
        yield row


def widest_product(runner: "ModelRunner") -> tuple[int, int]:
    """Sizes of the largest weight that a row is multiplied with."""
    import jax

    shapes = [leaf.shape for leaf in jax.tree.leaves(runner.params) if leaf.ndim == 2]
    return max(shapes, key=lambda shape: int(np.prod(shape)))


def measure_captures(options: BenchPrefill, tile: int) -> Iterator[dict[str, Any]]:
    """Seconds without and with captures, one line a pair."""
    run = prefill(options, build(options, tile))
    without_s, with_s = interleaved_pairs(
        lambda: run(0), lambda: run(options.captures), options.pairs
    )
    for pair, (a, b) in enumerate(zip(without_s, with_s, strict=True)):
        yield {"round": pair, "without_s": a, "with_s": b}


def best_rates(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a tile: the median prefill, the best product of all rounds, their ratio."""
    rates = [row for row in rows if row["what"] == "prefill"]
    top = max(max(r["tile_rows_flops_per_s"], r["square_flops_per_s"]) for r in rates)
    found = []
    for tile in dict.fromkeys(row["tile"] for row in rates):
        mine = [row for row in rates if row["tile"] == tile]
        rate = median_interval([row["prefill_flops_per_s"] for row in mine])
        found.append(
            {
                "tile": tile,
                "prefill_s": median_interval([row["prefill_s"] for row in mine]).median,
                "flops_per_s": rate.median,
                "flops_per_s_low": rate.low,
                "flops_per_s_high": rate.high,
                "tile_rows_flops_per_s": max(row["tile_rows_flops_per_s"] for row in mine),
                "square_flops_per_s": max(row["square_flops_per_s"] for row in mine),
                "share_of_best": rate.median / top,
                "first_call_s": mine[0]["first_call_s"],
            }
        )
    return found


def capture_cost(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The ratio of prefill with captures to prefill without."""
    pairs = [row for row in rows if row["what"] == "captures"]
    ratio = ratios([row["without_s"] for row in pairs], [row["with_s"] for row in pairs])
    return {"tile": pairs[0]["tile"], "captures": pairs[0]["captures"], **ratio._asdict()}


def headline(rows: list[dict[str, Any]]) -> str:
    """The run in one line."""
    best = max(best_rates(rows), key=lambda row: row["flops_per_s"])
    cost = capture_cost(rows)
    return (
        f"tile {best['tile']}: {best['share_of_best']:.2f} of the best product; "
        f"{cost['captures']} captures take {cost['median']:.3f} times as long as none "
        f"(95% {cost['low']:.3f}..{cost['high']:.3f}, {cost['samples']} pairs)"
    )


def report(run: RunFolder) -> None:
    """Write summary.csv and print the table."""
    rows = read_rows(run.path)
    rates = best_rates(rows)
    write_csv(run.path / "summary.csv", rates)
    giga = [
        (
            row["tile"],
            f"{row['prefill_s']:.3g}",
            f"{row['flops_per_s'] / 1e9:.0f}",
            f"{row['tile_rows_flops_per_s'] / 1e9:.0f}",
            f"{row['square_flops_per_s'] / 1e9:.0f}",
            f"{row['share_of_best']:.2f}",
            f"{row['first_call_s']:.3g}",
        )
        for row in rates
    ]
    header = (
        "tile",
        "prefill\ns",
        "prefill\nGFLOP/s",
        "tile rows\nGFLOP/s",
        "square\nGFLOP/s",
        "share\nof best",
        "first\ncall s",
    )
    print_table("prefill against matrix products", header, giga)
    print(headline(rows).replace("; ", "\n"))
    print(f"{run.path}: metrics.jsonl, summary.csv")


def main() -> None:
    """Parse the command line, time the tiles, then captures at the best one."""
    options = parse(BenchPrefill, "bench_prefill")
    if options.quick:
        shrunk = {"preset": "tiny", "tokens": 1024, "tiles": (64,), "rounds": 2, "pairs": 2}
        options = BenchPrefill(**{**vars(options), **shrunk})
    with started(options), RunFolder.open(options.out, "bench_prefill", options.config()) as run:
        for notice in run.notices:
            print(f"note: {notice}")
        cells = [{"what": "prefill", "tile": tile} for tile in options.tiles]
        missing = run.unfinished(cells)
        with SweepProgress(len(missing) + 1, options.rounds) as progress:
            for cell in missing:
                progress.start_cell(f"tile {cell['tile']}")
                rows = progress.count(measure_tile(options, cell["tile"]))
                run.write_cell(cell, rows, options.rounds)
                progress.end_cell()
            best = max(best_rates(read_rows(run.path)), key=lambda row: row["flops_per_s"])
            cell = {"what": "captures", "tile": best["tile"], "captures": options.captures}
            if not run.is_finished(cell):
                progress.start_cell(f"{options.captures} captures, tile {best['tile']}")
                run.write_cell(cell, measure_captures(options, best["tile"]), options.pairs)
                progress.end_cell()
        report(run)


if __name__ == "__main__":
    run_main(main)
