"""What does the snapshot interval buy, and what does it cost?

Runs a workload on a real model, once for every interval, mode and cache budget, and reports how
many prompt tokens were computed, the time to the first token, and the bytes of the snapshots. The
model's answers are generated once without a cache, recorded, and replayed in every cell, so that
all cells see the same prompts.

    python -m experiments.ablate_interval
    python -m experiments.ablate_interval --trace conversation_trace.jsonl.gz --scale 0.03125 \\
        --max-requests 60

Hardware: two CPU cores and 4 GB are enough for the default; `--preset` and `--tile` scale it up.
Expected time: about a minute and a half on two cores.
Expected result: recomputed tokens fall as the interval gets finer, down to what the tile grid
allows, while snapshot bytes rise as its inverse; "in_pass" gets more from a fine interval than
"planned", whose snapshots can only stand where a chunk ends; under a cache budget that evicts, a
fine interval pushes out what it would have restored from.
"""

import collections
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from experiments.ablate_report import report
from experiments.errors import UserError, as_user_error, check_at_least, option_name, run_main
from experiments.options import Options, parse, started
from experiments.progress import SweepProgress
from experiments.run_folder import RunFolder
from experiments.traces import read_trace
from experiments.warm_up import warm_up
from experiments.workloads import Outputs, Request, Workload, stdlib_sessions, trace_workload

if TYPE_CHECKING:
    from hybrid.engine import Engine
    from hybrid.runner import ModelRunner

ANSWERS = "answers.json"
Mode = Literal["planned", "chunk_end", "in_pass", "split", "naive"]


@dataclass(frozen=True)
class AblateInterval(Options):
    """Ablate the snapshot interval on a real model run."""

    intervals: tuple[int, ...] = (0, 4, 16, 32)
    """Snapshot intervals, in blocks; 0 takes none but at the prompt's tail."""
    modes: tuple[Mode, ...] = ("planned", "in_pass")
    """How snapshots are taken. A run without a cache is always added."""
    cache_mb: tuple[float, ...] = (math.inf, 8.0)
    """Budgets of the prefix cache, in MB (keys, values and snapshots); inf is no limit."""
    grid: Literal["tile", "block"] = "tile"
    """Where snapshots may stand: on tile boundaries (exact) or on block boundaries."""
    first_chunk: int = 192
    """Tokens that the first chunk of a prompt may have."""
    chunk: int = 192
    """Tokens that each later chunk may have."""
    repeats: int = 3
    """How often every cell is measured."""
    sessions: int = 3
    """Conversations of the default workload."""
    turns: int = 2
    """Turns of each conversation."""
    turn_tokens: int = 160
    """Tokens that a turn adds, about."""
    output_tokens: int = 16
    """Tokens of an answer."""
    trace: Path | None = None
    """Recorded requests instead: Mooncake JSONL, WEKA sessions, agent JSONL; plain or .gz."""
    max_requests: int | None = None
    """Take the trace's first requests only."""
    scale: float = 1.0
    """Shrink the trace's prompts; what they share stays shared."""

    def __post_init__(self) -> None:
        """Check what can be checked without a model."""
        super().__post_init__()
        for name in ("intervals", "modes", "cache_mb"):
            option, values = option_name(name), getattr(self, name)
            if not values:
                raise UserError(f"{option}: expected at least one value")
            if len(set(values)) < len(values):
                raise UserError(f"{option} {' '.join(map(str, values))}: expected each value once")
        check_at_least(self, first_chunk=1, chunk=1, repeats=1, intervals=0)
        if not min(self.cache_mb) > 0:
            raise UserError(f"--cache-mb {min(self.cache_mb)}: expected more than 0")

    def shrunk(self) -> "AblateInterval":
        """The same run with everything small, where --quick asks for it."""
        if not self.quick:
            return self
        return dataclasses.replace(
            self,
            preset="tiny" if self.preset == "default" else self.preset,
            intervals=self.intervals[:2],
            repeats=1,
            sessions=min(2, self.sessions),
            turns=min(2, self.turns),
            turn_tokens=min(120, self.turn_tokens),
            output_tokens=min(4, self.output_tokens),
            max_requests=min(6, self.max_requests or 6),
        )

    def workload(self) -> Workload:
        """The workload that the options name."""
        if self.trace is None:
            return stdlib_sessions(
                self.seed, self.sessions, self.turns, self.turn_tokens, self.output_tokens
            )
        return trace_workload(
            self.trace.name, read_trace(self.trace, self.max_requests), self.scale
        )

    def cells(self) -> list[dict[str, Any]]:
        """Parameters of every cell, the run without a cache first, repeats outermost.

        Two repeats of a cell are far apart in time, so that a slow spell of the machine does not
        fall on one cell alone.
        """
        found = [self.cell("off", 0, math.inf, 0)]
        for repeat in range(self.repeats):
            found += [
                self.cell(mode, interval, cache_mb, repeat)
                for cache_mb in self.cache_mb
                for mode in self.modes
                for interval in self.intervals
            ]
        return found

    def cell(self, mode: str, interval: int, cache_mb: float, repeat: int) -> dict[str, Any]:
        """Parameters of one cell."""
        return {
            "mode": mode,
            "interval": interval,
            "grid": self.grid,
            "cache_mb": cache_mb if math.isfinite(cache_mb) else None,
            "repeat": repeat,
        }


def describe(cell: Mapping[str, Any]) -> str:
    """A cell in a few words, for the progress bar."""
    if cell["mode"] == "off":
        return "no cache"
    budget = "no limit" if cell["cache_mb"] is None else f"{cell['cache_mb']:g} MB"
    return f"{cell['mode']}, interval {cell['interval']}, {budget}"


@dataclass
class Sweep:
    """A model and a workload; runs cells.

    Attributes:
        options: of the experiment.
        runner: the compiled model.
        workload: what is asked.
        snapshot_bytes: bytes of one snapshot.
    """

    options: AblateInterval
    runner: "ModelRunner"
    workload: Workload
    snapshot_bytes: int

    @staticmethod
    def build(options: AblateInterval, workload: Workload) -> "Sweep":
        """Build the model for a workload and compile its programs."""
        from hybrid.runner import ModelRunner
        from hybrid.state import tree_bytes

        with as_user_error(f"--preset {options.preset}"):
            runner = ModelRunner.from_preset(
                options.preset,
                dtype=options.dtype,
                seed=options.seed,
                capacity=workload.longest(),
                tile=options.tile,
                block_size=options.block_size,
                grid=options.grid,
            )
        warm_up(runner, options.seed, new_tokens=1 if options.trace else 2)
        return Sweep(options, runner, workload, tree_bytes(runner.snapshot_shapes))

    def engine(self, cell: Mapping[str, Any]) -> "Engine":
        """An engine with an empty cache."""
        from hybrid.engine import Engine

        cache_mb = cell["cache_mb"]
        with as_user_error(describe(cell)):
            return Engine(
                self.runner,
                mode=cell["mode"],
                interval=cell["interval"],
                first_budget=self.options.first_chunk,
                budget=self.options.chunk,
                cache_budget_bytes=None if cache_mb is None else round(cache_mb * 1e6),
            )

    def row(self, index: int, request: Request, report: Any) -> dict[str, Any]:
        """One line of metrics.jsonl."""
        values = report.as_dict()
        return {
            "request": index,
            "session": request.session,
            **values,
            "snapshot_bytes": values["snapshots"] * self.snapshot_bytes,
        }

    def record(self, cell: Mapping[str, Any], path: Path) -> Iterator[dict[str, Any]]:
        """Run without a cache and record the answers."""
        engine = self.engine(cell)

        def generate(index: int, request: Request, prompt: Any) -> tuple[Any, dict[str, Any]]:
            completion = engine.generate(
                prompt,
                max(1, request.output_tokens),
                temperature=1.0,
                seed=self.options.seed + index,
            )
            return completion.tokens, self.row(index, request, completion.report)

        return Outputs.record(self.workload, generate, path)

    def replay(self, cell: Mapping[str, Any], outputs: Outputs) -> Iterator[dict[str, Any]]:
        """Run with recorded answers; only the first token of each is asked."""
        engine = self.engine(cell)
        for index, prompt in enumerate(outputs.prompts()):
            completion = engine.generate(prompt, 1)
            yield self.row(index, self.workload.requests[index], completion.report)


def run_cells(options: AblateInterval, run: RunFolder, workload: Workload) -> None:
    """Run the cells that are not finished; the first records the answers for all others."""
    path = run.path / ANSWERS
    baseline, *_ = options.cells()
    outputs = Outputs.load(path, workload) if run.is_finished(baseline) else None
    missing = [cell for cell in run.unfinished(options.cells()) if cell != baseline]
    if outputs is not None and not missing:
        return
    began_s = time.perf_counter()
    sweep = Sweep.build(options, workload)
    print(f"model built and compiled in {time.perf_counter() - began_s:.1f} s")
    count = len(workload.requests)
    with SweepProgress(len(missing) + (outputs is None), count) as progress:
        if outputs is None:
            progress.start_cell(describe(baseline))
            rows = progress.count(sweep.record(baseline, path))
            if run.is_finished(baseline):
                collections.deque(rows, maxlen=0)  # only the recorded answers are gone
            else:
                run.write_cell(baseline, rows, count)
            outputs = Outputs.load(path, workload)
            assert outputs is not None
            progress.end_cell()
        for cell in missing:
            progress.start_cell(describe(cell))
            run.write_cell(cell, progress.count(sweep.replay(cell, outputs)), count)
            progress.end_cell()


def describe_workload(workload: Workload, lengths: Sequence[int]) -> dict[str, Any]:
    """The workload for config.json: enough to know that two runs were asked the same."""
    return {
        "name": workload.name,
        "digest": workload.digest(),
        "requests": len(lengths),
        "prompt_tokens": sum(lengths),
        "longest_prompt_tokens": max(lengths),
    }


def main() -> None:
    """Parse the command line and run the sweep."""
    options = parse(AblateInterval, "ablate_interval").shrunk()
    workload = options.workload()
    config = options.config() | {"workload": describe_workload(workload, workload.prompt_lengths())}
    with started(options), RunFolder.open(options.out, "ablate_interval", config) as run:
        for notice in run.notices:
            print(f"note: {notice}")
        print(
            f"{workload.name}: {len(workload.requests)} requests, "
            f"{sum(workload.prompt_lengths()):,} prompt tokens a cell, "
            f"{len(options.cells())} cells"
        )
        run_cells(options, run, workload)
        report(run.path)


if __name__ == "__main__":
    run_main(main)
