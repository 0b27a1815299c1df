"""Eviction policies by name: published ones, over the interface of `planner.eviction`, and ours.

They differ in how they rank snapshots; blocks go least recently used first under all of them. Where
one budget covers both kinds, the older of the two front runners goes.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.costs import CostModel, prefill_flops
from planner.eviction import Candidate, EvictionPolicy, LeastRecentlyUsed
from planner.radix_tree import Node, Snapshot
from planner.served_demand import ServedDemand


class RankedSnapshots(EvictionPolicy):
    """Ranks all snapshots anew at every pick, for scores that change without the candidate.

    A pick costs a few numpy calls over the snapshots held; ties go to the lowest id.
    """

    tracks_gaps = True

    def __init__(self) -> None:
        """Start without candidates."""
        self._blocks = LeastRecentlyUsed()
        self._place: dict[int, int] = {}
        self._held: list[Snapshot] = []
        self._columns = np.empty((3, 64))

    @abstractmethod
    def measure(self, snapshot: Snapshot) -> tuple[float, float]:
        """Two numbers that the order is made of; they hold until the snapshot is updated."""

    @abstractmethod
    def scores(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """The order: the smallest goes first.

        Args:
            first, second: float64 [snapshots], see `measure`.

        Returns:
            float64 [snapshots].
        """

    def may_go(self, score: float) -> bool:
        """Whether the one of the smallest score may go; if not, the newcomer is refused."""
        return True

    def update(self, candidate: Candidate) -> None:
        """Enter a candidate, or note its values of now."""
        if isinstance(candidate, Node):
            self._blocks.update(candidate)
            return
        place = self._place.setdefault(candidate.id, len(self._held))
        if place == len(self._held):
            self._held.append(candidate)
            if len(self._held) > self._columns.shape[1]:
                self._columns = np.concatenate([self._columns, np.empty_like(self._columns)], 1)
        self._columns[:, place] = *self.measure(candidate), candidate.id

    def discard(self, candidate: Candidate) -> None:
        """Forget a candidate; the last one takes its place."""
        if isinstance(candidate, Node):
            self._blocks.discard(candidate)
            return
        place = self._place.pop(candidate.id, None)
        if place is None:
            return
        last = self._held.pop()
        if place < len(self._held):
            self._held[place] = last
            self._place[last.id] = place
            self._columns[:, place] = self._columns[:, len(self._held)]

    def pick(self, kind: str | None) -> Candidate | None:
        """The next to go."""
        blocks = self._blocks.pick("kv") if kind != "snapshot" else None
        snapshot = self._lowest() if kind != "kv" else None
        if blocks is None or snapshot is None:
            return blocks or snapshot
        return blocks if blocks.last_use <= snapshot.last_use else snapshot

    def _lowest(self) -> Snapshot | None:
        if not self._held:
            return None
        first, second, ids = self._columns[:, : len(self._held)]
        scores = self.scores(first, second)
        least = scores.min()
        lowest = np.flatnonzero(scores == least)
        return self._held[int(lowest[ids[lowest].argmin()])] if self.may_go(least) else None


def _normalised(x: np.ndarray) -> np.ndarray:
    """Scaled to 0..1; zeros where all are equal."""
    low, high = x.min(), x.max()
    return (x - low) / (high - low) if high > low else np.zeros_like(x)


class FlopAware(RankedSnapshots):
    """Recency plus `alpha` times the FLOPs that a restore saves per byte, both scaled to 0..1.

    The FLOPs are those between the nearest state above and this one: what is lost with it. The
    system tunes alpha on a replay of its recent past; here it is fixed.

    Source: Pan et al., "Marconi: Prefix Caching for the Era of Hybrid LLMs", 2024, section 4.2.
    """

    name = "flop_aware"

    def __init__(self, costs: CostModel, alpha: float = 1.0) -> None:
        """Rank by the costs of a model.

        Args:
            costs: FLOPs by position.
            alpha: weight of the FLOPs against recency.
        """
        super().__init__()
        self._costs, self._alpha = costs, alpha

    def measure(self, snapshot: Snapshot) -> tuple[float, float]:
        """Last use; FLOPs per byte."""
        start = snapshot.position - snapshot.gap_tokens
        flops = prefill_flops(self._costs, start, snapshot.position)
        return snapshot.last_use, flops / max(snapshot.num_bytes, 1)

    def scores(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Recency plus weighted FLOPs per byte."""
        return _normalised(first) + self._alpha * _normalised(second)


class SegmentLength(RankedSnapshots):
    """Recency plus the tokens to the nearest remaining state above, both scaled to 0..1.

    Source: the segment-length score of hybrid prefix caches that follow Marconi: what a miss would
    replay, in tokens instead of FLOPs.
    """

    name = "segment_length"

    def measure(self, snapshot: Snapshot) -> tuple[float, float]:
        """Last use; tokens that would be replayed."""
        return snapshot.last_use, snapshot.gap_tokens

    def scores(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Recency plus length."""
        return _normalised(first) + _normalised(second)


class CoverageThinning(RankedSnapshots):
    """Drops the snapshot whose loss costs least replay, whenever it was used; ties by age.

    Source: thinning of checkpoint sets to even coverage, as in Griewank and Walther's checkpoint
    schedules ("revolve", 2000), applied to paths of a prefix tree.
    """

    name = "coverage"

    def measure(self, snapshot: Snapshot) -> tuple[float, float]:
        """Last use; tokens that would be replayed."""
        return snapshot.last_use, snapshot.gap_tokens

    def scores(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Length first; recency, below one token, breaks ties."""
        return second + 0.5 * _normalised(first)


class SupersededFirst(RankedSnapshots):
    """Least recently used, but what a deeper snapshot on its only path has superseded goes first.

    A conversation's earlier tails go before its last one. What somebody has restored since the
    deeper one came is not superseded, for that request could not use the deeper one; so the only
    state under a hot prefix does not go while a deeper one stays that the prefix cannot use.
    """

    name = "superseded_first"

    def measure(self, snapshot: Snapshot) -> tuple[float, float]:
        """Last use; 0 if superseded, else 1."""
        return snapshot.last_use, 0.0 if snapshot.superseded else 1.0

    def scores(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Superseded ones first, each group by age."""
        return second + 0.5 * _normalised(first)


@dataclass(frozen=True, slots=True)
class PolicyNeeds:
    """What a policy may need to know when it is made.

    Attributes:
        costs: of the model.
        block_size: of the index, tokens.
    """

    costs: CostModel
    block_size: int


EVICTIONS: dict[str, Callable[[PolicyNeeds], EvictionPolicy]] = {
    LeastRecentlyUsed.name: lambda needs: LeastRecentlyUsed(),
    FlopAware.name: lambda needs: FlopAware(needs.costs),
    SegmentLength.name: lambda needs: SegmentLength(),
    CoverageThinning.name: lambda needs: CoverageThinning(),
    SupersededFirst.name: lambda needs: SupersededFirst(),
    ServedDemand.name: lambda needs: ServedDemand(needs.block_size),
}


def make_eviction(name: str, costs: CostModel, block_size: int) -> EvictionPolicy:
    """A fresh policy object for one index.

    Args:
        name: see `EVICTIONS`.
        costs: of the model, for policies that weigh FLOPs.
        block_size: of the index, tokens.

    Returns:
        The policy.

    Raises:
        ValueError: an unknown name; the message lists those that exist.
    """
    if name not in EVICTIONS:
        known = ", ".join(sorted(EVICTIONS))
        raise ValueError(f"eviction must be one of {known}, got {name!r}")
    return EVICTIONS[name](PolicyNeeds(costs, block_size))
