"""What a prefix index holds and gives up: accounting, eviction and pins over a radix tree."""

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from planner import radix_tree
from planner.checks import check_int
from planner.eviction import Budget, EvictionPolicy, Evictions
from planner.radix_tree import Node, Snapshot

NO_BLOCK = -1
"""In place of a block id above the first block."""


class Holdings:
    """Blocks and snapshots within a budget. `planner.prefix_index.PrefixIndex` is its only user.

    Attributes:
        snapshots: those held, by id.
        num_blocks: blocks held.
        used_snapshot_bytes: bytes of the snapshots held.
        evicted_blocks: blocks that went, ever.
        evicted_snapshots: snapshots that went, ever.
    """

    def __init__(
        self,
        block_size: int,
        block_bytes: int,
        budget: Budget,
        policy: EvictionPolicy,
        remembered_evictions: int,
    ) -> None:
        """Hold nothing yet; arguments as `PrefixIndex` has them."""
        self.block_size = check_int("block_size", block_size, 1)
        self.block_bytes = check_int("block_bytes", block_bytes, 0)
        self.budget = budget
        if not isinstance(policy, EvictionPolicy):
            raise ValueError(f"policy must be an EvictionPolicy, got {policy!r}")
        self.policy = policy
        self.snapshots: dict[int, Snapshot] = {}
        self.num_blocks = 0
        self.used_snapshot_bytes = 0
        self.evicted_blocks = self.evicted_snapshots = 0
        self.root = Node(None, 0, np.empty(0, np.int64), np.empty(0, np.int64), 0)
        self._guarded: Node | None = None
        self._evicted_paths: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._remembered = check_int("remembered_evictions", remembered_evictions, 0)

    @property
    def used_kv_bytes(self) -> int:
        """KV bytes held."""
        return self.num_blocks * self.block_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes held, KV and snapshots."""
        return self.used_kv_bytes + self.used_snapshot_bytes

    def _fits(self, kind: str, num_bytes: int) -> bool:
        return max(self._excess(kind, num_bytes)) <= 0

    def _excess(self, kind: str, num_bytes: int) -> tuple[int, int]:
        """Bytes too many, with `num_bytes` more of a kind: by that kind's limit, by the total."""
        if kind == "kv":
            used, limit = self.used_kv_bytes, self.budget.kv_bytes
        else:
            used, limit = self.used_snapshot_bytes, self.budget.snapshot_bytes
        total = self.budget.total_bytes
        return (
            0 if limit is None else used + num_bytes - limit,
            0 if total is None else self.used_bytes + num_bytes - total,
        )

    def _room_for_blocks(self, num_blocks: int, evicted: Evictions) -> int:
        """Make room for as many of `num_blocks` as can be; how many those are."""
        if not num_blocks or not self.block_bytes:
            return num_blocks
        limits = [self.budget.kv_bytes, self.budget.total_bytes]
        most = min((limit // self.block_bytes for limit in limits if limit is not None), default=-1)
        num_blocks = num_blocks if most < 0 else min(num_blocks, most)
        if self._make_room("kv", num_blocks * self.block_bytes, evicted):
            return num_blocks
        return num_blocks - -(
            -max(self._excess("kv", num_blocks * self.block_bytes)) // self.block_bytes
        )

    def _make_room(self, kind: str, num_bytes: int, evicted: Evictions) -> bool:
        limit = self.budget.kv_bytes if kind == "kv" else self.budget.snapshot_bytes
        limits = [value for value in (limit, self.budget.total_bytes) if value is not None]
        if limits and num_bytes > min(limits):
            return False
        while True:
            own, total = self._excess(kind, num_bytes)
            if max(own, total) <= 0:
                return True
            wanted = kind if own > 0 else None if self.block_bytes else "snapshot"
            candidate = self.policy.pick(wanted)
            if candidate is None:
                return False
            if isinstance(candidate, Snapshot):
                self._evict_snapshot(candidate, evicted, remember=True)
            else:
                self._evict_tail(candidate, max(own, total), evicted)

    def clear(self) -> None:
        """Give up all that is held, pinned or not, where its owner has lost track of the payloads.

        What the policy has learnt stays; pins taken before are not to be released after.
        """
        for snapshot in list(self.snapshots.values()):
            self._remove(snapshot, remember=False)
        for node in radix_tree.nodes(self.root):
            self.policy.discard(node)
        for key in self.root.children:
            self._remember_path(NO_BLOCK, key)
        self.root = Node(None, 0, np.empty(0, np.int64), np.empty(0, np.int64), 0)
        self.num_blocks = 0
        self._guarded = None

    def _evict_snapshot(self, snapshot: Snapshot, evicted: Evictions, remember: bool) -> None:
        self._remove(snapshot, remember)
        self.evicted_snapshots += 1
        evicted.snapshot_ids.append(snapshot.id)
        evicted.snapshot_bytes += snapshot.num_bytes

    def _remove(self, snapshot: Snapshot, remember: bool) -> None:
        neighbours = []
        if self.policy.tracks_gaps:
            neighbours = [snapshot.above(), *snapshot.below()]
        self.policy.discard(snapshot)
        self.policy.gone(snapshot)
        del self.snapshots[snapshot.id]
        self.used_snapshot_bytes -= snapshot.num_bytes
        snapshot.node.remove_snapshot(snapshot, remember)
        self._notify(neighbours)

    def _evict_tail(self, node: Node, num_bytes: int, evicted: Evictions) -> None:
        """Take blocks off a leaf: what is asked for, but one snapshot's worth at a time."""
        count = min(node.evictable_blocks, -(-num_bytes // self.block_bytes))
        if node.snapshots:
            needed = -(-node.positions[-1] // self.block_size)
            count = min(count, node.end - needed) or 1
        keep = node.end - count
        while node.positions and node.positions[-1] > keep * self.block_size:
            self._evict_snapshot(node.snapshots[-1], evicted, remember=False)
        parent = node.parent
        assert parent is not None
        above = node if keep > node.start else parent
        before = int(above.ids[keep - 1 - above.start]) if keep else NO_BLOCK
        self._remember_path(before, int(node.keys[keep - node.start]))
        ids = radix_tree.cut_tail(node, count)
        node.lost = [p for p in node.lost if p <= keep * self.block_size]
        evicted.block_ids.append(ids)
        evicted.kv_bytes += count * self.block_bytes
        self.num_blocks -= count
        self.evicted_blocks += count
        if len(node.keys):
            self._offer(node)
            return
        self.policy.discard(node)
        self._offer(parent)
        if self.policy.tracks_gaps:
            self._notify_above(parent)

    def _remember_path(self, before: int, key: int) -> None:
        self._evicted_paths[before, key] = None
        while len(self._evicted_paths) > self._remembered:
            self._evicted_paths.popitem(last=False)

    def _offer(self, node: Node) -> None:
        """Tell the policy of a node, if any of it may go."""
        if node is not self._guarded and node.evictable_blocks > 0:
            self.policy.update(node)
        else:
            self.policy.discard(node)

    def _add_pin(self, node: Node, depth: int) -> None:
        node.pins[depth] = node.pins.get(depth, 0) + 1
        self._offer(node)

    def _remove_pin(self, node: Node, depth: int) -> None:
        while depth <= node.start:  # it was split since
            assert node.parent is not None
            node = node.parent
        node.pins[depth] -= 1
        if not node.pins[depth]:
            del node.pins[depth]
        self._offer(node)

    def _notify(self, snapshots: Iterable[Snapshot | None]) -> None:
        for snapshot in snapshots:
            if snapshot is not None and not snapshot.pins:
                self.policy.update(snapshot)

    def _notify_above(self, node: Node | None) -> None:
        """Tell the policy of the nearest snapshot at or above the end of a node."""
        while node is not None and not node.snapshots:
            node = node.parent
        if node is not None:
            self._notify([node.snapshots[-1]])
