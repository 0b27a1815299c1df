"""Which snapshot policy to set, in plain words, for one's own traffic, model and memory.

Replays a recorded trace under policies worth setting, with keys, values and snapshots in one
budget, and says which to take, what to expect of it, and what other memory would buy.

    python -m experiments.recommend --trace conversation_trace.jsonl.gz --model bamba-9b \\
        --budget-gb 100

Hardware: a CPU core a worker. Expected time: about 40 replays of 2 to 20 seconds for traces of ten
thousand requests and more; --max-requests shortens it.
Expected result: a paragraph, a table of memory against hit share and time to first token, and the
best that can be had where an interval is all that can be set.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from experiments.errors import UserError, run_main
from experiments.policy_cells import Replay, Setting, run_tasks
from experiments.policy_options import ReplayOptions, TraceSource, placement_for
from experiments.progress import SweepProgress
from experiments.tables import print_lines, print_table, seconds
from planner.eviction import Budget
from planner.trace import TraceRequest

Row = dict[str, Any]
PLACEMENTS = ("last", "tail", "marconi", "sglang", "llama_cpp")
UNITED = "sglang"
"""The placement that is also tried together with an interval."""
EVICTIONS = ("lru", "flop_aware", "superseded_first", "served_demand")
INTERVALS_TOKENS = (4096, 8192, 16384, 32768)
_ENOUGH = 0.01
"""A policy whose mean time is within this of the best is as good; then fewer captures win."""
_ROUND_TWO = 3

_PLACED = {
    "last": "at the last block boundary of every prompt",
    "tail": "at the last two block boundaries of every prompt",
    "marconi": "at the last block boundary of every prompt and where prompts fork",
    "sglang": "at the last block boundary of every prompt and where its match with earlier ones "
    "ends",
    "llama_cpp": "before the last message, near the end of every prompt and every 8,192 tokens",
}
_EVICTED = {
    "lru": "drop what was used longest ago",
    "flop_aware": "drop what saves the fewest FLOPs a byte, weighed against how long ago it was "
    "used",
    "superseded_first": "drop first what a later turn has superseded, then what was used longest "
    "ago",
    "served_demand": "drop what is expected to spare the least replay, learnt from the traffic",
}


@dataclass(frozen=True, kw_only=True)
class Recommend(ReplayOptions):
    """Recommend a snapshot policy for a trace, a model and an amount of memory."""

    trace: Annotated[str, tyro.conf.arg(metavar="[NAME=]PATH")]
    """Recorded requests: Mooncake JSONL, WEKA sessions, agent JSONL; plain or .gz."""
    budget_gb: float
    """Memory of the prefix cache in GB: keys, values and snapshots together."""

    def __post_init__(self) -> None:
        """Check what can be checked without the trace."""
        super().__post_init__()
        if not 0 < self.budget_gb < math.inf:
            raise UserError(f"--budget-gb {self.budget_gb}: expected a number above 0")


@dataclass(frozen=True)
class Choice:
    """A policy that could be set.

    Attributes:
        placement, eviction: specs.
        interval: in blocks, 0 for none.
        only_interval: whether setting an interval is all that it takes.
    """

    placement: str
    eviction: str
    interval: int = 0
    only_interval: bool = False


def choices(block_size: int, tile: int) -> list[Choice]:
    """What is tried.

    Args:
        block_size: of the trace, tokens.
        tile: the grid of snapshots, tokens.

    Returns:
        Placements with and without an interval, under each eviction; then intervals alone.
    """
    steps = dict.fromkeys(max(round(tokens / tile), 1) * tile for tokens in INTERVALS_TOKENS)
    intervals = [step // block_size for step in steps]
    placements = [(name, 0) for name in PLACEMENTS]
    placements += [(f"{UNITED}|every:{interval}", interval) for interval in intervals]
    found = [Choice(p, e, interval) for p, interval in placements for e in EVICTIONS]
    return found + [Choice(f"tail|every:{i}", "lru", i, only_interval=True) for i in intervals]


def best(measured: dict[Choice, Row], among: Iterable[Choice]) -> Choice:
    """The choice with the least mean time; of those as good, the one with the fewest captures.

    Args:
        measured: figures of each.
        among: those to choose from, at least one.

    Returns:
        The choice.
    """
    name = "mean_time_to_first_token_s"
    some = list(among)
    least_s = min(measured[choice][name] for choice in some)
    good = [choice for choice in some if measured[choice][name] <= least_s * (1 + _ENOUGH)]
    return min(good, key=lambda choice: (measured[choice]["captured"], measured[choice][name]))


@dataclass(frozen=True)
class Bench:
    """Replays choices on one trace.

    Attributes:
        options: the command line.
        setting: how the trace is replayed.
    """

    options: Recommend
    setting: Setting

    def measure(self, wanted: Sequence[tuple[Choice, float]]) -> dict[tuple[Choice, float], Row]:
        """Figures of choices at budgets in GB; infinity is no limit."""
        tasks = []
        for place, (choice, gigabytes) in enumerate(wanted):
            limit = round(gigabytes * 1e9) if math.isfinite(gigabytes) else None
            cell = {"trace": self.setting.source.name, **dataclasses.asdict(choice)}
            cell |= {"budget_gb": gigabytes, "place": place}
            tasks.append(
                Replay(self.setting, cell, choice.placement, choice.eviction, Budget(limit))
            )
        found = {}
        with SweepProgress(len(tasks), 1, "replays") as progress:
            for cell, row in run_tasks(tasks, self.options.workers):
                progress.start_cell(f"{cell['placement']} + {cell['eviction']}")
                (found[wanted[cell["place"]]],) = progress.count([row])
                progress.end_cell(row["wall_s"])
        return found


def run(options: Recommend) -> None:
    """Try the choices and print the recommendation.

    Args:
        options: the command line.

    Raises:
        UserError: a budget below one snapshot, or anything wrong with trace or model.
    """
    source = options.source(options.trace)
    costs = options.costs()
    if options.budget_gb * 1e9 / 2 < costs.snapshot_bytes:
        raise UserError(
            f"--budget-gb {options.budget_gb:g}: half of it must hold a snapshot of {options.model}"
            f" too, so expected at least {2 * costs.snapshot_bytes / 1e9:.3g}"
        )
    requests = source.load()
    tile = options.tile_for(requests, source.name)
    setting = Setting(source, costs, tile, options.chunk, 1, options.timing())
    bench, budget = Bench(options, setting), options.budget_gb
    tried = choices(requests[0].block_size, tile)
    off = Choice("none", "lru")
    first = bench.measure([(off, math.inf), *((choice, budget) for choice in tried)])
    here = {choice: first[choice, budget] for choice in tried}
    chosen = best(here, tried)
    ranked = sorted(tried, key=lambda choice: here[choice]["mean_time_to_first_token_s"])
    again = list(dict.fromkeys([chosen, *ranked[:_ROUND_TWO]]))
    only = best(here, [choice for choice in tried if choice.only_interval])
    later = bench.measure(
        [(choice, gb) for gb in (budget / 2, 2 * budget) for choice in again] + [(chosen, math.inf)]
    )
    lines: list[Line] = [("no cache", None, first[off, math.inf])]
    for label, gb in (("half", budget / 2), ("as asked", budget), ("twice", 2 * budget)):
        rows = here if gb == budget else {choice: later[choice, gb] for choice in again}
        pick = chosen if gb == budget else best(rows, again)
        lines.append((f"{gb:g} GB, {label}", pick, rows[pick]))
    lines.append(("no limit", chosen, later[chosen, math.inf]))
    print_recommendation(options, source, requests, chosen, lines)
    _print_interval(requests[0].block_size, only, here[only], here[chosen])


Line = tuple[str, Choice | None, Row]


def print_recommendation(
    options: Recommend,
    source: TraceSource,
    requests: Sequence[TraceRequest],
    chosen: Choice,
    lines: Sequence[Line],
) -> None:
    """Print what to set, what to expect, and what other memory would buy.

    Args:
        options: the command line.
        source, requests: the trace.
        chosen: the recommendation.
        lines: no cache, half, as asked, twice, no limit.
    """
    off, half, asked, twice, unlimited = (row for _, _, row in lines)
    total = sum(request.total_tokens for request in requests)
    print_lines(
        f"\nFor traffic like {source.name} ({len(requests):,} requests, {total:,} prompt tokens) "
        f"on {options.model}, with {options.budget_gb:g} GB for the prefix cache:\n"
    )
    block_size = requests[0].block_size
    print_lines(
        f"Take snapshots {_placed(chosen, block_size)}. {_interval(chosen, block_size)} When "
        f"memory runs out, {_EVICTED[chosen.eviction]}.\n"
    )
    spec = placement_for(chosen.placement, block_size).spec
    for text in (
        f'placement=parse_placement("{spec}")',
        f'eviction=make_eviction("{chosen.eviction}", costs, block_size={block_size})',
        f"cache_budget_bytes={round(options.budget_gb * 1e9)}",
    ):
        print(f"    {text}")
    print_lines(
        f"\nExpect {asked['restored_share']:.1%} of all prompt tokens to come from the cache "
        f"({unlimited['matched'] / unlimited['total']:.1%} match an earlier prompt) and a mean "
        f"time to first token of {_time(asked)}, against {_time(off)} without a cache."
    )
    print_lines(f"{_memory(twice, asked, 'Twice the memory')} {_memory(half, asked, 'Half of it')}")
    if asked["peak_bytes"] < 0.95 * options.budget_gb * 1e9:
        print_lines(f"No more than {asked['peak_bytes'] / 1e9:.3g} GB were ever in use.")
    print_table(
        "",
        (
            "memory",
            "from\ncache",
            "mean time to\nfirst token",
            "median",
            "99 of 100\nwithin",
            "policy",
        ),
        [
            (
                label,
                f"{row['restored_share']:.1%}",
                _time(row),
                seconds(row["p50_time_to_first_token_s"]),
                seconds(row["p99_time_to_first_token_s"]),
                f"{choice.placement} + {choice.eviction}" if choice else None,
            )
            for label, choice, row in lines
        ],
    )
    print_lines(
        f"{options.timing_words()} One request at a time, keys and values in the same budget."
    )


def _print_interval(block_size: int, only: Choice, row: Row, chosen: Row) -> None:
    more = row["mean_time_to_first_token_s"] / chosen["mean_time_to_first_token_s"] - 1
    print_lines(
        f"\nWhere an interval is all that can be set: {only.interval} blocks "
        f"({only.interval * block_size:,} tokens). It restores {row['restored_share']:.1%}, in "
        f"{_time(row)} on average, {_relative(more)}."
    )


def _relative(more: float) -> str:
    if abs(more) < _ENOUGH / 2:
        return "as fast as the policy above"
    return f"{abs(more):.1%} {'more' if more > 0 else 'less'} than the policy above"


def _memory(other: Row, asked: Row, what: str) -> str:
    """What another budget does to hit share and time."""
    points = 100 * (other["restored_share"] - asked["restored_share"])
    spared_s = asked["mean_time_to_first_token_s"] - other["mean_time_to_first_token_s"]
    share = spared_s / asked["mean_time_to_first_token_s"]
    if abs(points) < 0.05 and abs(share) < _ENOUGH / 10:
        return f"{what} would change nothing."
    faster = "faster" if spared_s >= 0 else "slower"
    return (
        f"{what} would bring {points:+.1f} points of hit share and first tokens "
        f"{seconds(abs(spared_s))} ({abs(share):.1%}) {faster}."
    )


def _placed(choice: Choice, block_size: int) -> str:
    name, _, _ = choice.placement.partition("|")
    text = _PLACED[name]
    if choice.interval:
        text += f", and every {choice.interval * block_size:,} tokens"
    return text


def _interval(choice: Choice, block_size: int) -> str:
    if not choice.interval:
        return "Leave the interval at 0: periodic snapshots did not pay."
    return f"That is an interval of {choice.interval} blocks of {block_size}."


def _time(row: Row) -> str:
    return str(seconds(row["mean_time_to_first_token_s"]))


def main() -> None:
    """Parse the command line and recommend."""
    run(tyro.cli(Recommend, prog="python -m experiments.recommend", description=__doc__))


if __name__ == "__main__":
    run_main(main)
