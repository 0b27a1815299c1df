"""Where the policies of a comparison stand: replay and regret on each trace at each budget."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.errors import UserError
from planner.clairvoyant import Clairvoyant

Row = dict[str, Any]
Pair = tuple[str, str]
"""Placement and eviction."""
OWN: Pair = ("sglang", "served_demand")
"""This project's policy: snapshots at the last boundary and at the match, kept by served demand."""
OWN_EVICTIONS = frozenset({"served_demand"})
KNOWING = Clairvoyant.name
"""The eviction that knows the future: no policy to choose, and ranked with none."""
SYSTEMS: dict[str, Pair] = {
    "Marconi": ("marconi", "flop_aware"),
    "SGLang, vLLM": ("sglang", "lru"),
    "Megatron-LM": ("megatron", "lru"),
    "llama.cpp": ("llama_cpp", "lru"),
}
"""What published systems do, as far as a pair can say it."""


@dataclass(frozen=True)
class Standing:
    """Where the policies stand on one trace at one budget.

    Attributes:
        trace: its name.
        snapshots: the budget.
        bound: row of the offline bound.
        policies: pair to row.
    """

    trace: str
    snapshots: int
    bound: Row
    policies: dict[Pair, Row]

    def best(self, pairs: Iterable[Pair]) -> Pair | None:
        """The pair that computes least, of some; None of none."""
        there = [pair for pair in pairs if pair in self.policies]
        return min(there, key=lambda pair: self.policies[pair]["recomputed"], default=None)

    @property
    def published(self) -> Pair | None:
        """The best pair of published placement and eviction."""
        return self.best(p for p in self.policies if p[1] not in OWN_EVICTIONS | {KNOWING})

    def replayed_share(self, pair: Pair | None) -> float | None:
        """Replayed tokens as a share of what matches with unlimited keys and values.

        Args:
            pair: a policy; None is the bound.

        Returns:
            The share, counting tokens that no longer match as replayed; None where it did not run.
        """
        row = self.bound if pair is None else self.policies.get(pair)
        if row is None:
            return None
        new = self.bound["total"] - self.bound["matched"]
        return (row["recomputed"] - new) / max(self.bound["matched"], 1)

    def regret(self, pair: Pair) -> float | None:
        """Replayed share above the bound's."""
        share, least = self.replayed_share(pair), self.replayed_share(None)
        return None if share is None or least is None else share - least

    def gain(self) -> float | None:
        """The share of the best published pair's replay that this project's policy spares."""
        ours, theirs = self.replayed_share(OWN), self.replayed_share(self.published)
        if self.published is None or ours is None or not theirs:
            return None
        return 1 - ours / theirs

    def gap_closed(self) -> float | None:
        """The share of the best published pair's regret that this project's policy spares."""
        ours, theirs = self.regret(OWN), self.regret(self.published) if self.published else None
        return None if ours is None or not theirs else 1 - ours / theirs


def standings(rows: Iterable[Row]) -> list[Standing]:
    """Put the rows of a run in order.

    Args:
        rows: of metrics.jsonl.

    Returns:
        One entry a trace and budget, in order of first appearance and of size.

    Raises:
        UserError: the run has no finished bound or no finished policy.
    """
    found: dict[tuple[str, int], Standing] = {}
    rows = list(rows)
    for row in rows:
        if row["kind"] == "bound":
            key = row["trace"], row["snapshots"]
            found[key] = Standing(*key, bound=row, policies={})
    for row in rows:
        standing = found.get((row["trace"], row["snapshots"]))
        if row["kind"] == "policy" and standing is not None:
            standing.policies[row["placement"], row["eviction"]] = row
    found = {key: standing for key, standing in found.items() if standing.policies}
    if not found:
        raise UserError("no trace has both a bound and a policy that are finished")
    traces = list(dict.fromkeys(trace for trace, _ in found))
    return [found[key] for key in sorted(found, key=lambda key: (traces.index(key[0]), key[1]))]


def by_trace(found: Sequence[Standing]) -> dict[str, list[Standing]]:
    """Standings of each trace, budgets ascending."""
    names = dict.fromkeys(standing.trace for standing in found)
    return {name: [standing for standing in found if standing.trace == name] for name in names}


NEAR = 0.01
"""A regret below a point of what matches: there is nothing left to win."""


def hardest(found: Sequence[Standing]) -> Standing:
    """The budget of a trace at which the best published pair is farthest from the bound."""
    return max(found, key=lambda s: s.regret(s.published) or 0.0 if s.published else 0.0)


def ranking(found: Sequence[Standing], knowing: bool = False) -> list[Pair]:
    """The policies of one trace, least mean regret first.

    Args:
        found: standings of the trace.
        knowing: whether to rank those whose eviction knows the future, instead of the others.

    Returns:
        Those that ran at all its budgets.
    """
    pairs = [
        pair
        for pair in found[0].policies
        if (pair[1] == KNOWING) == knowing and all(pair in s.policies for s in found)
    ]
    return sorted(pairs, key=lambda pair: mean_regret(found, pair))


def mean_regret(found: Sequence[Standing], pair: Pair) -> float:
    """A policy's regret, averaged over the budgets of a trace."""
    return statistics.fmean(standing.regret(pair) or 0.0 for standing in found)


def title(pair: Pair) -> str:
    """A policy as a reader sees it."""
    return f"{pair[0]} + {pair[1]}"


def percent(value: float | None) -> str | None:
    """A share with two digits below ten percent.

    >>> percent(0.0523), percent(0.5), percent(None)
    ('5.23%', '50.0%', None)
    """
    if value is None:
        return None
    return f"{value:.2%}" if abs(value) < 0.1 else f"{value:.1%}"


def change(gain: float | None) -> str | None:
    """A gain as the change that it is; doublings and more as a multiple.

    >>> change(0.25), change(-0.5), change(-35.7), change(None)
    ('-25.0%', '+50.0%', '36.7 times', None)
    """
    if gain is None:
        return None
    return f"{1 - gain:.1f} times" if gain <= -1 else f"{-gain:+.1%}"
