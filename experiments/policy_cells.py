"""One replay of one trace under one policy and budget, as a line of figures; many in parallel."""

import functools
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.errors import UserError
from experiments.policy_options import TraceSource, placement_for
from experiments.progress import SweepProgress
from experiments.run_folder import RunFolder
from planner.clairvoyant import Clairvoyant
from planner.costs import CostModel
from planner.demand_constants import DemandConstants
from planner.eviction import Budget, EvictionPolicy
from planner.eviction_policies import EVICTIONS, make_eviction
from planner.offline import offline_bounds
from planner.prefix_paths import PrefixPaths
from planner.served_demand import ServedDemand
from planner.session import Scheduling
from planner.simulator import SimulationResult, Timing, simulate
from planner.trace import TraceRequest

Row = dict[str, Any]
PLACEMENTS = (
    "every:8192tok",
    "chunk_ends:8192tok",
    "last",
    "tail",
    "marconi",
    "sglang",
    "vllm:8192",
    "megatron",
    "balanced:4",
    "sqrt",
    "dyadic",
    "dp:4",
    "llama_cpp",
)
"""Placements that are compared by default; `vllm:0` asks for the same positions as `sglang`."""
COMPARED_EVICTIONS = (*EVICTIONS, Clairvoyant.name)
"""Evictions that are compared by default: all there are, and one that knows the future."""
DEPTH_BINS = 20
"""Parts of a prompt in the count of where restores fall."""
TOTALS = (
    "total",
    "matched",
    "restored",
    "replayed",
    "recomputed",
    "suffix",
    "flops",
    "replayed_flops",
    "saved_flops",
    "captured",
    "snapshots",
    "bytes_written",
    "passes",
    "evicted_snapshots",
    "evicted_blocks",
    "skipped_snapshots",
    "skipped_blocks",
)


@dataclass(frozen=True)
class Setting:
    """How a trace is replayed, whatever the policy.

    Attributes:
        source: the trace.
        costs: of the model.
        tile: tokens, the grid of snapshots.
        chunk: tokens that the scheduler runs in one call.
        concurrency: requests in flight.
        timing: of predicted times.
    """

    source: TraceSource
    costs: CostModel
    tile: int
    chunk: int
    concurrency: int
    timing: Timing


@dataclass(frozen=True)
class Replay:
    """One policy at one budget.

    Attributes:
        setting: how the trace is replayed.
        cell: parameters of the cell.
        placement, eviction: the policy.
        budget: limits in bytes.
        constants: of served demand; None for the defaults.
    """

    setting: Setting
    cell: Row
    placement: str
    eviction: str
    budget: Budget
    constants: DemandConstants | None = None

    def run(self) -> list[tuple[Row, Row]]:
        """Replay the trace; (cell, its row)."""
        requests, setting = _requests(self.setting.source), self.setting
        began_s = time.perf_counter()
        block_size = requests[0].block_size
        result = simulate(
            requests,
            Scheduling(
                tile=setting.tile,
                budget=setting.chunk,
                placement=placement_for(self.placement, block_size),
            ),
            setting.costs,
            budget=self.budget,
            eviction=self._policy(block_size),
            concurrency=setting.concurrency,
            timing=setting.timing,
        )
        return [(self.cell, figures(result) | {"wall_s": time.perf_counter() - began_s})]

    def _policy(self, block_size: int) -> EvictionPolicy:
        if self.eviction == Clairvoyant.name:
            return Clairvoyant(_paths(self.setting.source, self.setting.tile))
        if self.eviction == ServedDemand.name and self.constants is not None:
            return ServedDemand(block_size, self.constants)
        return make_eviction(self.eviction, self.setting.costs, block_size)


@dataclass(frozen=True)
class OfflineBounds:
    """The bounds of one trace at several budgets of snapshots.

    Attributes:
        setting: how the trace is replayed.
        cells: parameters of a cell a budget, "snapshots" among them.
    """

    setting: Setting
    cells: tuple[Row, ...]

    def run(self) -> list[tuple[Row, Row]]:
        """Solve for all budgets in one flow; (cell, its row) each."""
        began_s = time.perf_counter()
        paths = _paths(self.setting.source, self.setting.tile)
        bounds = offline_bounds(paths, [cell["snapshots"] for cell in self.cells])
        share_s = (time.perf_counter() - began_s) / len(bounds)
        return [
            (
                cell,
                {
                    "bound": bound.kind,
                    "total": bound.total_tokens,
                    "matched": bound.matched_tokens,
                    "replayed": bound.replayed_tokens,
                    "recomputed": bound.recomputed_tokens,
                    "achieved_replayed": bound.achieved_tokens,
                    "wall_s": share_s,
                },
            )
            for cell, bound in zip(self.cells, bounds, strict=True)
        ]


Task = Replay | OfflineBounds


@functools.lru_cache(maxsize=2)
def _requests(source: TraceSource) -> list[TraceRequest]:
    """A trace, kept between tasks of one process: they come trace by trace."""
    return source.load()


@functools.lru_cache(maxsize=1)
def _paths(source: TraceSource, tile: int) -> PrefixPaths:
    """A trace's tree, likewise."""
    return PrefixPaths(_requests(source), tile)


def figures(result: SimulationResult) -> Row:
    """The figures of a replay: totals, shares, quantiles over requests, where restores fall.

    Args:
        result: of the simulator, with predicted times.

    Returns:
        JSON values. `restored_at` and `matched_at` count prompt tokens: first of the prompts that
        restored or matched nothing, then by the part of the prompt (a twentieth each) in which the
        position lies.
    """
    reports = [request.report for request in result.requests]
    replayed = np.array([report.replayed for report in reports])
    times_s = np.array([report.time_to_first_token_s for report in reports], dtype=np.float64)
    total = np.array([report.total for report in reports])
    return {
        "requests": len(reports),
        **{name: result.total(name) for name in TOTALS if name != "snapshots"},
        "kept_snapshots": result.total("snapshots"),
        "restored_share": result.restored_share,
        "replayed_share": result.replayed_share,
        "peak_bytes": result.peak_bytes,
        **_quantiles("replayed", replayed),
        "mean_time_to_first_token_s": float(times_s.mean()),
        **_quantiles("time_to_first_token_s", times_s),
        "restored_at": _depths(np.array([report.restored for report in reports]), total),
        "matched_at": _depths(np.array([report.matched for report in reports]), total),
        "reasons": dict(Counter(report.reason.value for report in reports).most_common()),
    }


def _quantiles(name: str, values: np.ndarray) -> Row:
    return {f"p{q}_{name}": float(np.quantile(values, q / 100)) for q in (50, 90, 99)}


def _depths(positions: np.ndarray, total: np.ndarray) -> list[int]:
    places = np.ceil(DEPTH_BINS * positions / total).astype(np.int64)
    counts = np.bincount(places, weights=total, minlength=DEPTH_BINS + 1)
    return counts.astype(np.int64).tolist()


def default_budgets(requests: int) -> tuple[int, ...]:
    """Budgets at which policies tend to differ: four rungs of 1, 3, 10, ... up to a quarter of the
    requests.

    Args:
        requests: of the trace.

    Returns:
        Numbers of snapshots, ascending.

    >>> default_budgets(12031), default_budgets(402), default_budgets(9)
    ((100, 300, 1000, 3000), (3, 10, 30, 100), (1,))
    """
    ladder = [head * 10**power for power in range(9) for head in (1, 3)]
    return tuple([rung for rung in ladder if rung <= max(requests // 4, 1)][-4:])


def run_tasks(tasks: Sequence[Task], workers: int) -> Iterator[tuple[Row, Row]]:
    """Run tasks, in other processes where that helps.

    Args:
        tasks: in the order in which to begin; those of one trace together.
        workers: processes; 1 runs them in this one.

    Yields:
        (cell, its row), as they finish.

    Raises:
        UserError: a policy that does not fit the trace, e.g. one off its grid.
    """
    if min(workers, len(tasks)) <= 1:
        for task in tasks:
            yield from _run(task)
        return
    pool = ProcessPoolExecutor(
        min(workers, len(tasks)), mp_context=multiprocessing.get_context("spawn")
    )
    try:
        for future in as_completed([pool.submit(_run, task) for task in tasks]):
            yield from future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _run(task: Task) -> list[tuple[Row, Row]]:
    try:
        return task.run()
    except ValueError as error:
        raise UserError(f"{describe_cell(_cells(task)[0])}: {error}") from error


def describe_cell(cell: Row) -> str:
    """A cell in a few words."""
    what = "bound" if "placement" not in cell else f"{cell['placement']} + {cell['eviction']}"
    if "constants" in cell:
        what += f" ({cell['constants']})"
    limit = f"{cell['snapshots']} snapshots" if "snapshots" in cell else f"{cell['budget_gb']:g} GB"
    return f"{cell['trace']}, {what}, {limit}"


def unfinished(run: RunFolder, tasks: Sequence[Task]) -> list[Task]:
    """The tasks, without the cells that the run folder holds already."""
    found: list[Task] = []
    for task in tasks:
        if isinstance(task, Replay):
            found += [task] * (not run.is_finished(task.cell))
        elif missing := tuple(cell for cell in task.cells if not run.is_finished(cell)):
            found.append(replace(task, cells=missing))
    return found


def run_missing(run: RunFolder, tasks: Sequence[Task], workers: int) -> None:
    """Run what a run folder lacks, in so many processes, and record each cell as it comes."""
    missing = unfinished(run, tasks)
    count, total = (sum(len(_cells(task)) for task in some) for some in (missing, tasks))
    print(f"{count:,} of {total:,} cells to run, {workers} at a time")
    with SweepProgress(count, 1, "replays") as progress:
        for cell, row in run_tasks(missing, workers):
            progress.start_cell(describe_cell(cell))
            run.write_cell(cell, progress.count([row]), 1)
            progress.end_cell(row["wall_s"])


def _cells(task: Task) -> tuple[Row, ...]:
    return (task.cell,) if isinstance(task, Replay) else task.cells
