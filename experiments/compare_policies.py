"""Which placement and eviction of snapshots replays least, and how far is it from optimal?

Replays real traces against the engine's own prefix index, without a model: every placement with
every eviction at every budget of snapshots, beside a bound that no policy can beat. Keys and values
have room without limit unless --kv-gb says otherwise, so that budgets buy snapshots alone.

    python -m experiments.compare_policies --trace mooncake=conversation_trace.jsonl.gz
    python -m experiments.compare_policies --trace a.jsonl b.jsonl --model nemotron-h-8b \\
        --placements sglang tail|every:8192tok --evictions lru served_demand --snapshots 100 1000

Hardware: a CPU core a worker, about 1 GB of memory each for the largest trace.
Expected time: 2 to 20 seconds a policy and budget for traces of ten thousand requests and more.
Expected result: no published pair is best everywhere; where snapshots are few, what is evicted
matters more than where they are placed; all stay far above the offline bound.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from experiments.environment import describe_environment
from experiments.errors import UserError, check_distinct, run_main
from experiments.policy_cells import (
    COMPARED_EVICTIONS,
    PLACEMENTS,
    OfflineBounds,
    Replay,
    Setting,
    Task,
    default_budgets,
    run_missing,
)
from experiments.policy_options import (
    ReplayOptions,
    TraceSource,
    check_table,
    describe_trace,
)
from experiments.run_folder import RunFolder
from planner.eviction import Budget
from planner.trace import TraceRequest


@dataclass(frozen=True, kw_only=True)
class ComparePolicies(ReplayOptions):
    """Compare where snapshots go and which go first, on recorded traces."""

    trace: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME=]PATH")]
    """Recorded requests: Mooncake JSONL, WEKA sessions, agent JSONL; plain or .gz."""
    placements: tuple[str, ...] = PLACEMENTS
    """Placement policies; "|" unites two, a number that ends in "tok" is in tokens."""
    evictions: tuple[str, ...] = COMPARED_EVICTIONS
    """Eviction policies; "clairvoyant" knows the trace, and shows what is left to eviction."""
    snapshots: tuple[int, ...] = ()
    """Budgets, in snapshots; by default four that fit the length of each trace."""
    kv_gb: float = math.inf
    """Budget of keys and values, in GB; inf is no limit."""
    concurrency: int = 1
    """Requests in flight: each is looked up before the ones in flight have left anything."""
    out: Path | None = None
    """Run folder; finished cells in it are skipped. By default a dated one under runs/."""
    table: Path | None = None
    """Write the tables to this Markdown file too."""
    quick: bool = False
    """Shrink everything, to see that it runs; the figures mean nothing."""

    def __post_init__(self) -> None:
        """Check what can be checked without the traces."""
        super().__post_init__()
        check_distinct(self, "trace", "placements", "evictions")
        for name in self.evictions:
            if name not in COMPARED_EVICTIONS:
                known = ", ".join(COMPARED_EVICTIONS)
                raise UserError(f"--evictions {name}: expected one of {known}")
        if self.snapshots and min(self.snapshots) < 1:
            raise UserError(f"--snapshots {min(self.snapshots)}: expected at least 1")
        if not self.kv_gb > 0:
            raise UserError(f"--kv-gb {self.kv_gb}: expected more than 0")
        if self.concurrency < 1:
            raise UserError(f"--concurrency {self.concurrency}: expected at least 1")

    def shrunk(self) -> "ComparePolicies":
        """The same run on few requests and policies, where --quick asks for it."""
        if not self.quick:
            return self
        return dataclasses.replace(
            self,
            max_requests=min(200, self.max_requests or 200),
            placements=self.placements if self.placements != PLACEMENTS else ("last", "sglang"),
            snapshots=self.snapshots or (3, 10),
            workers=1,
        )

    def sources(self) -> list[TraceSource]:
        """The traces.

        Raises:
            UserError: two of one name.
        """
        return self.sources_of(self.trace)

    def budgets(self, requests: int) -> tuple[int, ...]:
        """Numbers of snapshots for a trace of so many requests, ascending."""
        return tuple(sorted(set(self.snapshots))) or default_budgets(requests)

    def config(self, traces: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """All that figures depend on, and no path.

        Args:
            traces: see `describe_trace`.

        Returns:
            JSON values.
        """
        own = ("concurrency", "placements", "evictions", "snapshots", "quick")
        return {
            "traces": list(traces),
            **self.replay_config(),
            **{name: getattr(self, name) for name in own},
            "kv_gb": self.kv_gb if math.isfinite(self.kv_gb) else None,
            "times": self.timing_words(),
        }


def tasks_of(
    options: ComparePolicies, source: TraceSource, requests: Sequence[TraceRequest]
) -> list[Task]:
    """All that is to be run on a trace: the bounds, then every policy at every budget.

    Args:
        options: the command line.
        source, requests: the trace.

    Returns:
        Tasks.
    """
    costs = options.costs()
    setting = Setting(
        source,
        costs,
        options.tile_for(requests, source.name),
        options.chunk,
        options.concurrency,
        options.timing(),
    )
    budgets = options.budgets(len(requests))
    bounds = tuple({"kind": "bound", "trace": source.name, "snapshots": count} for count in budgets)
    kv_bytes = round(options.kv_gb * 1e9) if math.isfinite(options.kv_gb) else None
    return [
        OfflineBounds(setting, bounds),
        *(
            Replay(
                setting,
                {
                    "kind": "policy",
                    "trace": source.name,
                    "placement": placement,
                    "eviction": eviction,
                    "snapshots": count,
                },
                placement,
                eviction,
                Budget(kv_bytes=kv_bytes, snapshot_bytes=count * costs.snapshot_bytes),
            )
            for placement in options.placements
            for eviction in options.evictions
            for count in budgets
        ),
    ]


def main() -> None:
    """Parse the command line and run what is missing."""
    options = tyro.cli(
        ComparePolicies, prog="python -m experiments.compare_policies", description=__doc__
    ).shrunk()
    tasks: list[Task] = []
    described = []
    for source in options.sources():
        requests = source.load()
        options.check_placements(options.placements, source, requests)
        tasks += tasks_of(options, source, requests)
        described.append(describe_trace(source.name, requests))
    check_table(options.table)
    environment = describe_environment(devices=False)
    config = options.config(described)
    with RunFolder.open(options.out, "compare_policies", config, environment) as run:
        for notice in run.notices:
            print(f"note: {notice}")
        run_missing(run, tasks, options.workers)

        from experiments.policy_report import report

        report(run.path, options.table)


if __name__ == "__main__":
    run_main(main)
