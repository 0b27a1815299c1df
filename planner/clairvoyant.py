"""Eviction that knows the whole trace: how little a placement could replay, were its snapshots kept
well. No policy to serve with, and no bound either: a greedy choice, made with full knowledge."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from planner.eviction import Candidate
from planner.eviction_policies import RankedSnapshots
from planner.prefix_paths import PrefixPaths
from planner.radix_tree import Node, Snapshot, nearest_above

NEVER = np.inf


class Clairvoyant(RankedSnapshots):
    """Drops the snapshot that spares least replay per request until it is next restored.

    What it spares is its distance to the state above; who restores it next follows from the trace
    and from what is held now. A new snapshot that would be the least is not taken in. The future
    is that of unlimited keys and values. One object serves one replay of the trace from its start.

    Source: Belady, "A study of replacement algorithms for a virtual-storage computer", 1966 (drop
    what is needed furthest in the future), with what a miss costs put in the numerator.
    """

    name = "clairvoyant"

    def __init__(self, paths: PrefixPaths) -> None:
        """Know a trace.

        Args:
            paths: the trace, on the grid of the snapshots.
        """
        super().__init__()
        self._paths = paths
        self._now = -1
        self._users: list[list[int]] = [[] for _ in paths.parent]  # whose match is there or below
        for request, match in enumerate(paths.match_node):
            for node in paths.upward(match):
                self._users[node].append(request)
        self._place_of: dict[int, int] = {}  # snapshot id -> node of the trace's tree
        self._held_at: dict[int, set[int]] = {}  # node of the trace's tree -> positions held there
        self._newcomer: int | None = None
        self._newcomer_score = 0.0

    def observe(self, path: Sequence[Node], matched_tokens: int) -> None:
        """The next request of the trace has come."""
        self._now += 1

    def measure(self, snapshot: Snapshot) -> tuple[float, float]:
        """Tokens to the state above, and the request that restores it next."""
        place = self._place_of[snapshot.id]
        return snapshot.gap_tokens, self._next_use(place, snapshot.position)

    def scores(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Tokens spared per request of holding on."""
        return first / (second - self._now)

    def update(self, candidate: Candidate) -> None:
        """Find a new snapshot's place in the trace; weigh it."""
        if isinstance(candidate, Snapshot) and candidate.id not in self._place_of:
            place = self._find(candidate.node, candidate.position)
            self._place_of[candidate.id] = place
            self._held_at.setdefault(place, set()).add(candidate.position)
            self._newcomer = None
        super().update(candidate)

    def arriving(self, node: Node, position: int) -> None:
        """Weigh a newcomer; the snapshot above it would lose to it whom it serves."""
        place = self._newcomer = self._find(node, position)
        self._held_at.setdefault(place, set()).add(position)
        above = nearest_above(node, position)
        gap = position - (above.position if above else 0)
        self._newcomer_score = gap / (self._next_use(place, position) - self._now)
        self._weigh(above)

    def refused(self, node: Node, position: int) -> None:
        """The snapshot above the newcomer serves as before."""
        if self._newcomer is not None:
            self._held_at[self._newcomer].discard(position)
            self._newcomer = None
            self._weigh(nearest_above(node, position))

    def gone(self, snapshot: Snapshot) -> None:
        """Forget its place."""
        self._held_at[self._place_of.pop(snapshot.id)].discard(snapshot.position)

    def pick(self, kind: str | None) -> Candidate | None:
        """The next to go; first weighs anew what was not asked for when it might have been."""
        for place in np.flatnonzero(self._columns[1, : len(self._held)] <= self._now).tolist():
            self.update(self._held[place])
        return super().pick(kind)

    def may_go(self, score: float) -> bool:
        """Whether the newcomer is worth no less."""
        return self._newcomer is None or self._newcomer_score >= score

    def _next_use(self, place: int, position: int) -> float:
        """The next request that restores at a position, if nothing else comes or goes."""
        users = self._users[place]
        for request in users[bisect_right(users, self._now) :]:
            for node in self._paths.upward(self._paths.match_node[request]):
                if held := self._held_at.get(node):
                    if node == place and max(held) == position:
                        return request
                    break
        return NEVER

    def _find(self, node: Node, position: int) -> int:
        """The node of the trace's tree on whose edge a position lies."""
        blocks = -(-position // self._paths.block_size)
        parts = [node.keys[: blocks - node.start]]
        while (above := node.parent) is not None:
            parts.append(above.keys)
            node = above
        return self._paths.find(np.concatenate(parts[::-1]))

    def _weigh(self, snapshot: Snapshot | None) -> None:
        if snapshot is not None and not snapshot.pins:
            self.update(snapshot)
