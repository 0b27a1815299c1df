"""What goes first when memory is short: the interface of eviction policies, and LRU.

The index tells a policy about every candidate and every change of one, and asks it for the next to
go. There are two kinds of candidate:

- kind "kv": a leaf `Node`, whose blocks go from its tail (`evictable_blocks` of them may);
- kind "snapshot": a `Snapshot`, which may go by itself, wherever it is.

Candidates that a running request has pinned are withdrawn (`discard`) until it lets go of them. A
snapshot of which a block goes is dropped with it, whatever the policy thinks of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import ClassVar

import numpy as np

from planner.checks import check_int
from planner.radix_tree import Node, Snapshot

Candidate = Node | Snapshot


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits in bytes; None is no limit. Several may hold at once.

    Attributes:
        total_bytes: for blocks and snapshots together.
        kv_bytes: for blocks.
        snapshot_bytes: for snapshots.
    """

    total_bytes: int | None = None
    kv_bytes: int | None = None
    snapshot_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse limits that are no byte counts.

        Raises:
            ValueError: a limit is no integer, or negative.
        """
        for name in ("total_bytes", "kv_bytes", "snapshot_bytes"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_int(name, value, 0))

    @property
    def bounded_bytes(self) -> int:
        """The most that may be held, leaving out a kind that has no limit.

        >>> Budget(total_bytes=100, kv_bytes=30, snapshot_bytes=20).bounded_bytes
        50
        """
        kinds = [limit for limit in (self.kv_bytes, self.snapshot_bytes) if limit is not None]
        if self.total_bytes is None:
            return sum(kinds)
        return min(self.total_bytes, sum(kinds)) if len(kinds) == 2 else self.total_bytes


class EvictionPolicy(ABC):
    """Chooses what goes next. One object serves one index."""

    name: ClassVar[str]
    tracks_gaps: ClassVar[bool] = False
    """Whether `update` must be called for a snapshot whose neighbours on its path change."""

    @abstractmethod
    def update(self, candidate: Candidate) -> None:
        """A candidate is new, or something about it has changed."""

    @abstractmethod
    def discard(self, candidate: Candidate) -> None:
        """A candidate is gone or pinned; it may be one that the policy does not hold."""

    @abstractmethod
    def pick(self, kind: str | None) -> Candidate | None:
        """The next to go, of one kind ("kv", "snapshot") or of both (None); None if none is left.

        It stays a candidate until the index says otherwise.
        """

    def observe(self, path: Sequence[Node], matched_tokens: int) -> None:
        """A request matched so many tokens along `path`, the nodes below the root, in order."""
        return

    def arriving(self, node: Node, position: int) -> None:
        """A snapshot at `position` of `node` wants room; `pick` may answer None to refuse it."""
        return

    def refused(self, node: Node, position: int) -> None:
        """No room was found for the snapshot that was arriving."""
        return

    def gone(self, snapshot: Snapshot) -> None:
        """A snapshot is about to leave the tree."""
        return


class PriorityPolicy(EvictionPolicy):
    """A policy whose order is a number a candidate has until it changes: a heap a kind.

    Ties go to the kind "kv", then to the candidate that was updated first.
    """

    def __init__(self) -> None:
        """Start without candidates."""
        self._heaps: dict[str, list[tuple[float, int, Candidate]]] = {"kv": [], "snapshot": []}
        self._tickets: dict[str, dict[Candidate, int]] = {"kv": {}, "snapshot": {}}
        self._next_ticket = 0

    @abstractmethod
    def priority(self, candidate: Candidate) -> float:
        """The candidate's number now; the smallest goes first."""

    def update(self, candidate: Candidate) -> None:
        """Enter a candidate under its number of now."""
        heap, tickets = self._heaps[candidate.kind], self._tickets[candidate.kind]
        self._next_ticket += 1
        tickets[candidate] = self._next_ticket
        if len(heap) > 2 * len(tickets) + 64:
            heap[:] = [entry for entry in heap if tickets.get(entry[2]) == entry[1]]
            heapify(heap)
        heappush(heap, (self.priority(candidate), self._next_ticket, candidate))

    def discard(self, candidate: Candidate) -> None:
        """Forget a candidate; its entry in the heap is skipped when it comes up."""
        self._tickets[candidate.kind].pop(candidate, None)

    def pick(self, kind: str | None) -> Candidate | None:
        """The candidate with the smallest number."""
        kinds = (kind,) if kind else ("kv", "snapshot")
        tops = [top for top in map(self._top, kinds) if top is not None]
        return min(tops, key=lambda top: top[0])[2] if tops else None

    def _top(self, kind: str) -> tuple[float, int, Candidate] | None:
        heap, tickets = self._heaps[kind], self._tickets[kind]
        while heap:
            if tickets.get(heap[0][2]) == heap[0][1]:
                return heap[0]
            heappop(heap)
        return None


class LeastRecentlyUsed(PriorityPolicy):
    """What was used longest ago goes first: blocks by last insert, snapshots by last restore."""

    name = "lru"

    def priority(self, candidate: Candidate) -> float:
        """The clock of the last use."""
        return candidate.last_use


@dataclass(slots=True)
class Evictions:
    """What had to go during one call, so that the owner of the payloads can drop them.

    Attributes:
        snapshot_ids: ids of the snapshots.
        block_ids: int64 arrays of the ids of the blocks.
        kv_bytes: bytes of the blocks.
        snapshot_bytes: bytes of the snapshots.
    """

    snapshot_ids: list[int]
    block_ids: list[np.ndarray]
    kv_bytes: int = 0
    snapshot_bytes: int = 0

    @property
    def num_blocks(self) -> int:
        """How many blocks went."""
        return sum(map(len, self.block_ids))

    @property
    def num_bytes(self) -> int:
        """Bytes of all that went."""
        return self.kv_bytes + self.snapshot_bytes

    def each_block(self) -> Iterator[int]:
        """The ids of the blocks, one by one."""
        for ids in self.block_ids:
            yield from ids.tolist()
