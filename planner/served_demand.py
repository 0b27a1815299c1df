"""Our own eviction policy: keep the snapshots that will spare the most replay per request held.

A snapshot serves every position at or below it, held or evicted, that has no nearer snapshot above:
requests that match there restore from it. Its worth is

    (sum over the positions it serves of how soon they are asked for again)  x  (tokens to the next
                                                                                 snapshot above)

and the least worth goes first; a new snapshot that would be the least is not taken in. How soon a
position comes back is learnt online, from matches rather than restores, so that positions that were
evicted or refused still teach:

    root ----o-----------x--------o------------x      o held   x not held, remembered
             A  serves itself, x  B  serves itself, x

Classes of positions: where they stand on their conversation's path, its turn, how often they were
asked for. The constants (`planner.demand_constants`) are round numbers settled on the Mooncake
conversation trace and a small agent trace ("magagent"); WEKA and miniswe had no say in them, but
the form of the policy was found with all four at hand. `python -m experiments.leave_one_out` picks
the constants for each trace on the others alone.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from planner.demand_constants import DemandConstants
from planner.eviction import Candidate, EvictionPolicy, LeastRecentlyUsed
from planner.radix_tree import Node, Snapshot, nearest_above
from planner.reuse_statistics import ReuseStatistics, bucket_of

# Where a position stands: a prompt's last; one that a later turn went past; asked for by several;
# captured at a match.
_LEAF, _PASSED, _SHARED, _FORK = range(4)
_LEVELS = 4
"""Turns 0, 1, 2-3, 4 and more; uses 0, 1, 2, 3 and more."""
_LEARN_EVERY = 100

_Name = tuple[int, int]


class _Position:
    """What is remembered of a position."""

    __slots__ = ("kind", "position", "slot", "turn", "uses")

    def __init__(self, slot: int, position: int, kind: int, turn: int) -> None:
        """A position that was captured for the first time."""
        self.slot, self.position, self.kind, self.turn, self.uses = slot, position, kind, turn, 0

    @property
    def klass(self) -> int:
        """Index of its class."""
        turn = self.turn if self.turn < 2 else 2 if self.turn < 4 else 3
        return (self.kind * _LEVELS + turn) * _LEVELS + min(self.uses, _LEVELS - 1)


class ServedDemand(EvictionPolicy):
    """Least served demand first, see the module's docstring; blocks least recently used first."""

    name = "served_demand"
    tracks_gaps = True

    def __init__(self, block_size: int, constants: DemandConstants | None = None) -> None:
        """Start with nothing held and nothing learnt.

        Args:
            block_size: the index's, tokens.
            constants: what it takes for given; None for the defaults.
        """
        self.constants = constants or DemandConstants()
        self._block_size = block_size
        self._blocks = LeastRecentlyUsed()
        self._statistics = ReuseStatistics(4, _LEVELS * _LEVELS, self.constants)
        self._index: np.ndarray | None = None
        self._clock = 0
        self._turn = 0
        self._matched = 0
        self._known: dict[_Name, _Position] = {}
        self._owner: list[_Name] = []  # slot -> name
        self._held: dict[int, tuple[Snapshot, int]] = {}  # snapshot id -> itself, slot
        self._in_slot: dict[int, Snapshot] = {}
        self._newcomer: tuple[float, float] | None = None
        # Columns: last asked for, class, slot of the snapshot that serves it, tokens to the next
        # snapshot above, whether it may be evicted.
        self._asked, self._gap = np.zeros(64), np.zeros(64)
        self._class, self._server = np.zeros(64, np.int64), np.full(64, -1)
        self._evictable = np.zeros(64, bool)

    def observe(self, path: Sequence[Node], matched_tokens: int) -> None:
        """Learn: the deepest known position on the match was asked for, those above passed."""
        self._clock += 1
        self._matched, self._turn = matched_tokens, 0
        on_path = [
            known
            for node in path
            for position in sorted({*node.positions, *node.lost})
            if position <= matched_tokens
            and (known := self._known.get(self._name(node, position))) is not None
        ]
        for known in on_path:
            used = known is on_path[-1]
            age = self._clock - self._asked[known.slot]
            self._statistics.record(known.klass, age, used)
            self._asked[known.slot] = self._clock
            if used:
                self._turn = known.turn + 1
                known.uses += 1
                if known.kind in (_LEAF, _PASSED, _SHARED):
                    known.kind = _PASSED if known.kind == _LEAF else _SHARED
                self._class[known.slot] = known.klass
        if self._clock % _LEARN_EVERY == 0 or (self._clock < 200 and self._clock % 10 == 0):
            self._learn()

    def arriving(self, node: Node, position: int) -> None:
        """Weigh a newcomer, which serves itself alone at first."""
        known = self._known.get(self._name(node, position)) or self._first_seen(position, -1)
        above = nearest_above(node, position)
        gap = position - (above.position if above else 0)
        age = 0.0 if known.slot < 0 else self._clock - self._asked[known.slot]
        self._newcomer = float(self._soon(np.array([known.klass]), np.array([age]))[0]), gap

    def update(self, candidate: Candidate) -> None:
        """Take in a new snapshot, or note that one may be evicted again or has other neighbours."""
        if isinstance(candidate, Node):
            self._blocks.update(candidate)
            return
        entry = self._held.get(candidate.id)
        slot = self._take_in(candidate) if entry is None else entry[1]
        self._gap[slot] = candidate.gap_tokens
        self._evictable[slot] = True
        self._newcomer = None

    def discard(self, candidate: Candidate) -> None:
        """Withdraw a candidate; a pinned snapshot goes on serving."""
        if isinstance(candidate, Node):
            self._blocks.discard(candidate)
        elif candidate.id in self._held:
            self._evictable[self._held[candidate.id][1]] = False

    def refused(self, node: Node, position: int) -> None:
        """Remember the position; the snapshot above serves it."""
        known, above = self._remember(node, position), nearest_above(node, position)
        self._server[known.slot] = self._held[above.id][1] if above is not None else -1
        self._newcomer = None

    def gone(self, snapshot: Snapshot) -> None:
        """Remember the position; what it served falls to the snapshot above."""
        _, slot = self._held.pop(snapshot.id)
        del self._in_slot[slot]
        above = snapshot.above()
        heir = self._held[above.id][1] if above is not None else -1
        self._server[self._server == slot] = heir

    def pick(self, kind: str | None) -> Candidate | None:
        """The next to go; None where the newcomer is worth less than all that are held."""
        blocks = self._blocks.pick("kv") if kind != "snapshot" else None
        snapshot = self._lowest() if kind != "kv" else None
        if blocks is None or snapshot is None:
            return blocks or snapshot
        return blocks if blocks.last_use <= snapshot.last_use else snapshot

    def _lowest(self) -> Snapshot | None:
        count = len(self._owner)
        candidates = np.flatnonzero(self._evictable[:count])
        if not len(candidates):
            return None
        soon = self._soon(self._class[:count], self._clock - self._asked[:count])
        served = self._server[:count] >= 0
        demand = np.bincount(self._server[:count][served], soon[served], count)
        worth = demand[candidates] * self._gap[candidates]
        lowest = int(worth.argmin())
        if self._newcomer is not None:
            soon_new, gap = self._newcomer
            if soon_new * gap < worth[lowest]:
                return None
        return self._in_slot[int(candidates[lowest])]

    def _soon(self, kinds: np.ndarray, ages: np.ndarray) -> np.ndarray:
        ages = ages + 1.0  # this request's chance is over: the next one asks first
        return 1.0 / ages if self._index is None else self._index[kinds, bucket_of(ages)]

    def _learn(self) -> None:
        count = len(self._owner)
        ages = self._clock - self._asked[:count]
        self._index = self._statistics.indices(self._class[:count], ages)
        self._statistics.forget(self.constants.forget)

    def _take_in(self, snapshot: Snapshot) -> int:
        slot = self._remember(snapshot.node, snapshot.position).slot
        self._held[snapshot.id] = snapshot, slot
        self._in_slot[slot] = snapshot
        self._server[slot] = slot
        for node, position in _evicted_below(snapshot):
            below = self._known.get(self._name(node, position))
            if below is not None:
                self._server[below.slot] = slot
        return slot

    def _remember(self, node: Node, position: int) -> _Position:
        """What is known of a position, from now on if nothing was."""
        owner = self._name(node, position)
        known = self._known.get(owner)
        if known is None:
            known = self._first_seen(position, self._new_slot(owner))
            self._known[owner] = known
            self._asked[known.slot] = self._clock
            self._class[known.slot] = known.klass
        return known

    def _first_seen(self, position: int, slot: int) -> _Position:
        kind = _FORK if position <= self._matched else _LEAF
        return _Position(slot, position, kind, self._turn)

    def _name(self, node: Node, position: int) -> _Name:
        """What a position is known by: the block that ends it, whose id outlives node splits."""
        block = (position - 1) // self._block_size
        return int(node.ids[block - node.start]), position

    def _new_slot(self, owner: _Name) -> int:
        if len(self._owner) > self.constants.remembered * len(self._held) + 1024:
            self._drop_oldest()
        slot = len(self._owner)
        self._owner.append(owner)
        if slot == len(self._asked):
            for name in ("_asked", "_gap", "_class", "_server", "_evictable"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self._server[slot], self._evictable[slot], self._gap[slot] = -1, False, 0
        return slot

    def _drop_oldest(self) -> None:
        """Forget the quarter of the evicted positions that were asked for longest ago."""
        count = len(self._owner)
        evicted = [slot for slot in range(count) if slot not in self._in_slot]
        evicted.sort(key=lambda slot: self._asked[slot])
        dropped = set(evicted[: len(evicted) // 4])
        for slot in dropped:
            known = self._known.pop(self._owner[slot])
            age = self._clock - self._asked[slot]
            self._statistics.record(known.klass, age, used=False)
        kept = [slot for slot in range(count) if slot not in dropped]
        moved = np.full(count + 1, -1)
        moved[kept] = np.arange(len(kept))
        for name in ("_asked", "_gap", "_class", "_evictable"):
            column = getattr(self, name)
            column[: len(kept)] = column[kept]
        self._server[: len(kept)] = moved[self._server[kept]]
        self._owner = [self._owner[slot] for slot in kept]
        for known in self._known.values():
            known.slot = int(moved[known.slot])
        self._held = {i: (snapshot, int(moved[s])) for i, (snapshot, s) in self._held.items()}
        self._in_slot = {slot: snapshot for snapshot, slot in self._held.values()}


def _evicted_below(snapshot: Snapshot) -> Iterator[tuple[Node, int]]:
    """Evicted positions that are remembered below a snapshot and above the next held ones."""
    stack: list[tuple[Node, int]] = [(snapshot.node, snapshot.position)]
    while stack:
        node, above = stack.pop()
        stop = next((p for p in node.positions if p > above), None)
        yield from ((node, p) for p in node.lost if p > above and (stop is None or p < stop))
        if stop is None:
            stack.extend((child, above) for child in node.children.values())
