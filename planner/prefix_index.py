"""The prefix index: which prompt blocks are held, which snapshots, and what a request may reuse.

One index serves the engine, which holds payloads under the ids given out here, and the simulator,
which holds none. Blocks are named by int64 keys: an interner's for tokens
(`planner.interner.BlockInterner`), a trace's own ids otherwise. Two prompts share block i where
their keys 0..i agree.

The life of a request::

    match = index.lookup(keys, total)                       # what may be reused, and why not more
    pin = index.pin(keys, match.matched // block_size, match.snapshot)
    ...                                                     # prefill runs
    insertion = index.insert(keys[: total // block_size])   # full blocks only
    index.unpin_snapshot(pin)                               # it has served: its room is free
    attachment = index.attach(keys, position)               # each capture
    index.unpin(pin)

Insertions and attachments evict to make room and say what went; where there is no room they skip,
count and go on. No snapshot outlives a block that it needs.
"""

from typing import Any

import numpy as np

from planner import radix_tree
from planner.checks import check_int
from planner.eviction import Budget, EvictionPolicy, Evictions, LeastRecentlyUsed
from planner.holdings import NO_BLOCK, Holdings
from planner.index_results import Attachment, AttachStatus, Insertion, Match, Pin
from planner.radix_tree import Node, Snapshot
from planner.report import Reason

__all__ = ["AttachStatus", "Attachment", "Insertion", "Match", "Pin", "PrefixIndex"]


class PrefixIndex(Holdings):
    """Block-granular index over prefilled prompt blocks and the snapshots on their paths."""

    def __init__(
        self,
        block_size: int,
        *,
        block_bytes: int = 0,
        snapshot_bytes: int = 0,
        budget: Budget | None = None,
        policy: EvictionPolicy | None = None,
        restore_grid_tokens: int | None = None,
        remembered_evictions: int = 65536,
    ) -> None:
        """Make an empty index.

        Args:
            block_size: tokens a block.
            block_bytes: KV bytes a block.
            snapshot_bytes: bytes a snapshot, where `attach` is not told otherwise.
            budget: limits in bytes; none by default.
            policy: what goes first; LRU by default. It must serve no other index.
            restore_grid_tokens: positions at whose multiples snapshots can lie, for `reason`; the
                tile where restores are exact, the block size by default.
            remembered_evictions: how many evicted paths are told from those never seen.

        Raises:
            ValueError: a number out of its bounds.
        """
        super().__init__(
            block_size,
            block_bytes,
            budget or Budget(),
            policy or LeastRecentlyUsed(),
            remembered_evictions,
        )
        self.snapshot_bytes = check_int("snapshot_bytes", snapshot_bytes, 0)
        grid = block_size if restore_grid_tokens is None else restore_grid_tokens
        self.restore_grid_tokens = check_int("restore_grid_tokens", grid, 1)
        self.clock: float = 0
        self.skipped_blocks = self.skipped_snapshots = 0
        self._next_block_id = self._next_snapshot_id = 0

    def lookup(
        self,
        keys: np.ndarray,
        total: int,
        *,
        exact: bool = True,
        touch: bool = True,
        now: float | None = None,
    ) -> Match:
        """What a prompt may reuse.

        Args:
            keys: int64 [blocks], the prompt's block keys, at least (total - 1) // block_size.
            total: prompt tokens.
            exact: whether only exact blocks and snapshots will do.
            touch: whether the snapshot counts as restored. The blocks count as used when the
                request inserts its own.
            now: time on the clock; the count of calls by default.

        Returns:
            The match.

        Raises:
            ValueError: too few keys, keys that are no integers, or a negative total.
        """
        total = check_int("total", total, 0)
        cap = max(total - 1, 0) // self.block_size
        keys = _as_keys(keys)
        if len(keys) < cap:
            raise ValueError(f"keys must name {cap} blocks for {total} tokens, got {len(keys)}")
        path, at = radix_tree.walk(self.root, keys[:cap])
        usable = at
        if exact and path and path[-1].num_exact < at - path[-1].start:
            usable = next((n.start + n.num_exact for n in reversed(path) if n.num_exact), 0)
        matched = usable * self.block_size
        snapshot = radix_tree.deepest(path, matched, exact)
        reason = self._reason(keys, cap, path, at, matched, snapshot)
        if touch:
            self._tick(now)
            self.policy.observe(path, matched)
            if snapshot is not None:
                snapshot.hits += 1
                self._use(snapshot)
        return Match(total, matched, snapshot.position if snapshot else 0, reason, snapshot)

    def insert(
        self, keys: np.ndarray, *, exact: bool = True, now: float | None = None
    ) -> Insertion:
        """Hold the blocks of a prompt that was prefilled.

        Args:
            keys: int64 [blocks], its full blocks.
            exact: whether all of it was computed exactly; exact blocks take the place of others.
            now: time on the clock; the count of calls by default.

        Returns:
            The new blocks' ids and what else changed.

        Raises:
            ValueError: keys that are no integers.
        """
        keys = _as_keys(keys)
        now = self._tick(now)
        evicted = Evictions([], [])
        path, at = radix_tree.walk(self.root, keys)
        if path and at < path[-1].end:
            lower = path[-1]
            path[-1] = radix_tree.split(lower, at, self.block_size)
            self._offer(lower)
        for node in path:
            node.last_use = now
            node.hits += 1
        last = path[-1] if path else self.root
        upgraded = radix_tree.upgrade(path) if exact else ()
        self._guarded = last
        self.policy.discard(last)
        fit = self._room_for_blocks(len(keys) - at, evicted)
        self._guarded = None
        ids = np.arange(self._next_block_id, self._next_block_id + fit)
        leaf = last
        if fit:
            leaf = radix_tree.extend(last, keys[at : at + fit], ids, exact)
            leaf.last_use = now
            self._next_block_id += fit
            self.num_blocks += fit
        self._offer(leaf)
        if self.policy.tracks_gaps and leaf is not last:
            self._notify_above(last)
        skipped = len(keys) - at - fit
        self.skipped_blocks += skipped
        return Insertion(at, ids, upgraded, skipped, evicted)

    def attach(
        self,
        keys: np.ndarray,
        position: int,
        *,
        exact: bool = True,
        num_bytes: int | None = None,
        tag: Any = None,
        now: float | None = None,
    ) -> Attachment:
        """Hold a snapshot on a path that is held.

        Args:
            keys: int64 [blocks], the prompt's block keys.
            position: tokens consumed, at least 1; on the block grid or off it.
            exact: whether it was computed exactly.
            num_bytes: its size; the index's `snapshot_bytes` by default.
            tag: kept with it, for the policy.
            now: time on the clock, where it has moved since the insert.

        Returns:
            The snapshot, or why it was refused.

        Raises:
            ValueError: keys that are no integers, or a number out of its bounds.
        """
        position = check_int("position", position, 1)
        num_bytes = (
            self.snapshot_bytes if num_bytes is None else check_int("num_bytes", num_bytes, 0)
        )
        self.clock = self.clock if now is None else max(self.clock, now)
        evicted = Evictions([], [])
        blocks = -(-position // self.block_size)
        path, at = radix_tree.walk(self.root, _as_keys(keys)[:blocks])
        if at < blocks:
            return Attachment(AttachStatus.BEYOND_PATH, None, None, evicted)
        node = path[-1]
        if exact and node.num_exact < blocks - node.start:
            return Attachment(AttachStatus.INEXACT_PATH, None, None, evicted)
        held, replaced_id = node.find(position), None
        if held is not None and (held.exact or not exact):
            self._use(held)
            return Attachment(AttachStatus.HELD, held, None, evicted)
        if held is not None:
            replaced_id = held.id
            self._remove(held, remember=False)
        if not self._fits("snapshot", num_bytes):
            self._add_pin(node, blocks)
            self.policy.arriving(node, position)
            fits = self._make_room("snapshot", num_bytes, evicted)
            self._remove_pin(node, blocks)
            if not fits:
                self.skipped_snapshots += 1
                node.lose(position)
                self.policy.refused(node, position)
                return Attachment(AttachStatus.NO_ROOM, None, replaced_id, evicted)
        snapshot = Snapshot(
            self._next_snapshot_id, position, node, exact, num_bytes, self.clock, tag
        )
        self._next_snapshot_id += 1
        self.used_snapshot_bytes += num_bytes
        self.snapshots[snapshot.id] = snapshot
        node.add_snapshot(snapshot)
        self.policy.update(snapshot)
        if self.policy.tracks_gaps:
            self._notify([snapshot.above(), *snapshot.below()])
        return Attachment(AttachStatus.ATTACHED, snapshot, replaced_id, evicted)

    def pin(self, keys: np.ndarray, num_blocks: int, snapshot: Snapshot | None = None) -> Pin:
        """Keep a path and a snapshot on it from going until `unpin`.

        Args:
            keys: int64 [blocks], the prompt's block keys.
            num_blocks: how many of them to keep; all must be held.
            snapshot: a snapshot within them.

        Returns:
            What to give to `unpin`.

        Raises:
            ValueError: the path is not held so far, or the snapshot is not held or lies past it.
        """
        num_blocks = check_int("num_blocks", num_blocks, 0)
        path, at = radix_tree.walk(self.root, _as_keys(keys)[:num_blocks])
        if at < num_blocks:
            raise ValueError(f"num_blocks must be at most the {at} blocks held, got {num_blocks}")
        if snapshot is not None:
            if snapshot.id not in self.snapshots:
                raise ValueError(f"snapshot {snapshot.id} is not held")
            check_int("snapshot position", snapshot.position, 1, num_blocks * self.block_size)
            snapshot.pins += 1
            self.policy.discard(snapshot)
        if path:
            self._add_pin(path[-1], num_blocks)
        return Pin(path[-1] if path else None, num_blocks, snapshot)

    def unpin(self, pin: Pin) -> None:
        """Let go of what a pin holds.

        Args:
            pin: what `pin` returned.

        Raises:
            ValueError: it was let go before.
        """
        if pin.released:
            raise ValueError("the pin was released before")
        pin.released = True
        if pin.node is not None:
            self._remove_pin(pin.node, pin.depth)
        self.unpin_snapshot(pin)

    def unpin_snapshot(self, pin: Pin) -> None:
        """Let go of a pin's snapshot alone, once the run that restored it needs it no longer.

        Args:
            pin: what `pin` returned.
        """
        snapshot, pin.snapshot = pin.snapshot, None
        if snapshot is not None:
            snapshot.pins -= 1
            if snapshot.id in self.snapshots and not snapshot.pins:
                self.policy.update(snapshot)

    def drop_snapshot(self, snapshot_id: int) -> bool:
        """Take out a snapshot that turned out to be unusable, pinned or not.

        Args:
            snapshot_id: its id.

        Returns:
            Whether it was held.
        """
        snapshot = self.snapshots.get(snapshot_id)
        if snapshot is not None:
            self._remove(snapshot, remember=False)
        return snapshot is not None

    def block_ids(self, keys: np.ndarray, num_blocks: int) -> np.ndarray:
        """The ids of the first blocks of a prompt.

        Args:
            keys: int64 [blocks], the prompt's block keys.
            num_blocks: how many; all must be held.

        Returns:
            int64 [num_blocks].

        Raises:
            ValueError: the path is not held so far.
        """
        num_blocks = check_int("num_blocks", num_blocks, 0)
        path, at = radix_tree.walk(self.root, _as_keys(keys)[:num_blocks])
        if at < num_blocks:
            raise ValueError(f"num_blocks must be at most the {at} blocks held, got {num_blocks}")
        parts = [node.ids for node in path]
        return np.concatenate([self.root.ids, *parts])[:num_blocks]

    def live_keys(self) -> np.ndarray:
        """The keys of all blocks held, each once, int64."""
        parts = [node.keys for node in radix_tree.nodes(self.root)]
        return np.unique(np.concatenate([self.root.keys, *parts]))

    def _tick(self, now: float | None) -> float:
        self.clock = self.clock + 1 if now is None else max(self.clock, now)
        return self.clock

    def _use(self, snapshot: Snapshot) -> None:
        snapshot.last_use = self.clock
        if not snapshot.pins:
            self.policy.update(snapshot)

    def _reason(
        self,
        keys: np.ndarray,
        cap: int,
        path: list[Node],
        at: int,
        matched: int,
        snapshot: Snapshot | None,
    ) -> Reason:
        grid, held = self.restore_grid_tokens, at * self.block_size
        restored = snapshot.position if snapshot else 0
        goal = matched // grid * grid
        before = int(path[-1].ids[at - 1 - path[-1].start]) if path else NO_BLOCK
        path_evicted = at < cap and (before, int(keys[at])) in self._evicted_paths
        if cap * self.block_size < grid:
            return Reason.TOO_SHORT
        if restored < goal:
            inexact = radix_tree.deepest(path, held, exact=False)
            if inexact is not None and inexact.position > restored:
                return Reason.INEXACT_ONLY
            if path_evicted or any(restored < p <= matched for n in path for p in n.lost):
                return Reason.EVICTED
            return Reason.PARTIAL if restored else Reason.NO_SNAPSHOT_BELOW_MATCH
        if held // grid * grid > goal:
            return Reason.INEXACT_ONLY
        if path_evicted:
            return Reason.EVICTED
        if goal:
            return Reason.HIT
        return Reason.TOO_SHORT if matched else Reason.COLD


def _as_keys(keys: np.ndarray) -> np.ndarray:
    if type(keys) is np.ndarray and keys.dtype == np.int64 and keys.ndim == 1:
        return keys
    array = np.asarray(keys)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"keys must be integers of one axis, got {array.dtype} {array.shape}")
    return array.astype(np.int64)
