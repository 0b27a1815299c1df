"""Does served demand win on a trace that had no say in its constants?

Replays every trace with this project's policy (placement sglang, eviction served_demand) under a
small grid of constants, and with the published evictions. For each trace the constants are then
taken that replay least on the *other* traces (least mean of the logarithm of replayed tokens), and
what they replay on the trace that was left out is compared with the best published policy. The
worst constants of the grid are shown too: they bound what any choice among them can be worth.

    python -m experiments.leave_one_out --trace chat=chat.jsonl.gz agents=agents.jsonl.gz \\
        --snapshots 100 3 --table table.md
    python -m experiments.leave_one_out --trace a.jsonl b.jsonl --against runs/compared

Keys and values have room without limit, so budgets buy snapshots alone. Published evictions run
under the same placement unless --placements names more; --against takes the best published pair of
finished runs of compare_policies into account as well.

Hardware: a CPU core a worker, about 1 GB of memory each for the largest trace.
Expected time: 5 to 60 seconds a trace and set of constants for traces of ten thousand requests.
Expected result: the constants hardly matter; where snapshots are scarce, served demand wins under
all of them, and where a published policy is near the bound, it loses under all.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from experiments.differences import as_text, changed
from experiments.environment import describe_environment
from experiments.errors import UserError, check_at_least, check_distinct, run_main
from experiments.leave_one_out_report import DEFAULTS, report
from experiments.policy_cells import (
    COMPARED_EVICTIONS,
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
from experiments.policy_standings import KNOWING, OWN, OWN_EVICTIONS, standings
from experiments.run_folder import RunFolder, read_config, read_rows
from planner.demand_constants import DemandConstants
from planner.eviction import Budget
from planner.trace import TraceRequest

Row = dict[str, Any]
PUBLISHED_EVICTIONS = tuple(
    name for name in COMPARED_EVICTIONS if name not in OWN_EVICTIONS | {KNOWING}
)
CONSTANTS = tuple(field.name for field in dataclasses.fields(DemandConstants))
_SAME = ("model", "dtype", "chunk", "snapshot_bytes", "kv_bytes_per_token")
"""What a run that is compared with must have been asked for likewise."""


def grid(vary: Sequence[str]) -> dict[str, DemandConstants]:
    """The constants that are tried: the defaults, and some of them halved and doubled.

    Args:
        vary: names of constants; of `forget` it is the share lost that is halved and doubled.

    Returns:
        Constants by what tables call them, the defaults first.

    >>> grid(["forget"])["1 - forget x 2"].forget
    0.96
    """
    base = DemandConstants()
    found = {DEFAULTS: base}
    for name in vary:
        value = getattr(base, name)
        for words, factor in (("/ 2", 0.5), ("x 2", 2.0)):
            if name == "forget":
                label, other = f"1 - forget {words}", round(1 - (1 - value) * factor, 12)
            else:
                label, other = f"{name} {words}", type(value)(value * factor)
            found[label] = dataclasses.replace(base, **{name: other})
    return found


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(ReplayOptions):
    """Judge this project's eviction on traces that had no say in its constants."""

    trace: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME=]PATH")]
    """Recorded requests, two traces or more: Mooncake JSONL, WEKA sessions, agent JSONL; or .gz."""
    snapshots: tuple[int, ...] = ()
    """Budgets in snapshots, one a trace in their order; by default the least that compare_policies
    takes."""
    vary: tuple[str, ...] = CONSTANTS
    """Constants that are halved and doubled, one at a time."""
    placements: tuple[str, ...] = (OWN[0],)
    """Placements that the published evictions run with."""
    against: tuple[Path, ...] = ()
    """Finished run folders of compare_policies, whose best published pairs count as well."""
    out: Path | None = None
    """Run folder; finished cells in it are skipped. By default a dated one under runs/."""
    table: Path | None = None
    """Write the tables to this Markdown file too."""
    quick: bool = False
    """Shrink everything, to see that it runs; the figures mean nothing."""

    def __post_init__(self) -> None:
        """Check what can be checked without the traces."""
        super().__post_init__()
        if len(self.trace) < 2:
            raise UserError(
                f"--trace {' '.join(self.trace)}: expected at least two, to leave one out"
            )
        check_distinct(self, "vary", "placements")
        for name in self.vary:
            if name not in CONSTANTS:
                raise UserError(f"--vary {name}: expected one of {', '.join(CONSTANTS)}")
        if self.snapshots:
            check_at_least(self, snapshots=1)
            if len(self.snapshots) != len(self.trace):
                raise UserError(
                    f"--snapshots {' '.join(map(str, self.snapshots))}: expected one a trace, "
                    f"{len(self.trace)}"
                )

    def shrunk(self) -> "LeaveOneOut":
        """The same run on few requests and constants, where --quick asks for it."""
        if not self.quick:
            return self
        return dataclasses.replace(
            self,
            max_requests=min(200, self.max_requests or 200),
            snapshots=tuple(min(count, 10) for count in self.snapshots),
            vary=self.vary[:1],
            workers=1,
        )

    def budget(self, place: int, requests: int) -> int:
        """Snapshots for the trace at a place, of so many requests."""
        return self.snapshots[place] if self.snapshots else default_budgets(requests)[0]

    def config(self, traces: Sequence[Row]) -> Row:
        """All that figures depend on, and no path; not which published pairs are run.

        Args:
            traces: see `describe_trace`, with the budget of each.

        Returns:
            JSON values.
        """
        return {
            "traces": list(traces),
            **self.replay_config(),
            "quick": self.quick,
            "kv_gb": None,
            "grid": {
                name: dataclasses.asdict(constants) for name, constants in grid(self.vary).items()
            },
            "vary": self.vary,
        }


def tasks_of(
    options: LeaveOneOut, source: TraceSource, requests: Sequence[TraceRequest], snapshots: int
) -> list[Task]:
    """All replays of a trace: every set of constants, then the published pairs.

    Args:
        options: the command line.
        source, requests: the trace.
        snapshots: its budget.

    Returns:
        Tasks.

    Raises:
        UserError: an unknown placement, or one off the grid of snapshots.
    """
    costs = options.costs()
    tile = options.tile_for(requests, source.name)
    options.check_placements((OWN[0], *options.placements), source, requests)
    setting = Setting(source, costs, tile, options.chunk, 1, options.timing())
    budget = Budget(snapshot_bytes=snapshots * costs.snapshot_bytes)

    def cell(kind: str, placement: str, eviction: str) -> Row:
        return {
            "kind": kind,
            "trace": source.name,
            "placement": placement,
            "eviction": eviction,
            "snapshots": snapshots,
        }

    return [
        *(
            Replay(setting, cell("own", *OWN) | {"constants": name}, *OWN, budget, constants)
            for name, constants in grid(options.vary).items()
        ),
        *(
            Replay(setting, cell("published", placement, eviction), placement, eviction, budget)
            for placement in options.placements
            for eviction in PUBLISHED_EVICTIONS
        ),
    ]


def best_published(folder: Path, config: Row) -> list[tuple[Row, Row]]:
    """The best published pair of a run of compare_policies on each of our traces that it holds.

    Args:
        folder: its run folder.
        config: of this run.

    Returns:
        (cell, row) each, for this run's folder.

    Raises:
        UserError: another experiment, one asked for other things, none of our traces, one of them
            at other budgets alone, or a run that is not finished.
    """
    option = f"--against {folder}"
    there = read_config(folder)
    if there["experiment"] != "compare_policies":
        raise UserError(f"{option}: a run of {there['experiment']}, expected compare_policies")
    asked = there["config"]
    same = {name: config[name] for name in _SAME} | {"concurrency": 1, "kv_gb": None}
    for name, value, expected in changed({name: asked.get(name) for name in same}, same):
        raise UserError(f"{option}: {name} {as_text(value)} there, {as_text(expected)} here")
    digests = {trace["digest"]: trace["name"] for trace in asked["traces"]}
    ours = [trace for trace in config["traces"] if trace["digest"] in digests]
    if not ours:
        names = ", ".join(trace["name"] for trace in config["traces"])
        raise UserError(f"{option}: holds none of {names}")
    rows = read_rows(folder)
    return [
        _best_on(option, standings(rows), there, digests[trace["digest"]], trace, config["tile"])
        for trace in ours
    ]


def _best_on(
    option: str, found: Sequence[Any], there: Row, name: str, trace: Row, tile: int | None
) -> tuple[Row, Row]:
    """The best published pair on one trace; `name` is what it is called there."""
    asked, block_size = there["config"], trace["block_size"]
    if (asked["tile"] or block_size) != (tile or block_size):
        raise UserError(f"{option}: tile {asked['tile']} there, {tile} here")
    wanted = [
        (placement, eviction)
        for placement in asked["placements"]
        for eviction in asked["evictions"]
        if eviction in PUBLISHED_EVICTIONS
    ]
    at = {standing.snapshots: standing for standing in found if standing.trace == name}
    if trace["snapshots"] not in at:
        counts = ", ".join(map(str, at)) or "none that is finished"
        raise UserError(
            f"{option}: {name} at {counts} snapshots, expected {trace['snapshots']} among them"
        )
    standing = at[trace["snapshots"]]
    missing = sum(pair not in standing.policies for pair in wanted)
    if missing or not wanted:
        raise UserError(
            f"{option}: {name} has {len(wanted) - missing} of {len(wanted)} published pairs; "
            "expected a finished run"
        )
    pair = standing.best(wanted)
    assert pair is not None
    row = standing.policies[pair]
    cell = {
        "kind": "published",
        "trace": trace["name"],
        "placement": pair[0],
        "eviction": pair[1],
        "snapshots": trace["snapshots"],
        "commits": [commit["commit"] for commit in there["commits"]],
    }
    names = ("requests", "total", "matched", "restored", "replayed", "recomputed")
    return cell, {name: row[name] for name in names} | {"best_of": len(wanted)}


def main() -> None:
    """Parse the command line and run what is missing."""
    options = tyro.cli(
        LeaveOneOut, prog="python -m experiments.leave_one_out", description=__doc__
    ).shrunk()
    tasks: list[Task] = []
    described = []
    for place_, source in enumerate(options.sources_of(options.trace)):
        requests = source.load()
        snapshots = options.budget(place_, len(requests))
        tasks += tasks_of(options, source, requests, snapshots)
        described.append(describe_trace(source.name, requests) | {"snapshots": snapshots})
    check_table(options.table)
    config = options.config(described)
    others = [found for folder in options.against for found in best_published(folder, config)]
    environment = describe_environment(devices=False)
    with RunFolder.open(options.out, "leave_one_out", config, environment) as run:
        for notice in run.notices:
            print(f"note: {notice}")
        for cell, row in others:
            if not run.is_finished(cell):
                run.write_cell(cell, [row], 1)
        run_missing(run, tasks, options.workers)
        report(run.path, options.table)


if __name__ == "__main__":
    run_main(main)
