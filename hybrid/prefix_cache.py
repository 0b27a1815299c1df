"""The memory tier: payloads under the ids of a prefix index, and the buffer that is lent to passes.

A block's keys and values are copies of their own, so that what the index evicts is really freed.
The working buffer of a pass is not part of the cache, yet it often holds the rows that the next
request needs: a conversation's next turn, or a repeat. Those are lent instead of copied.
"""

from collections.abc import Callable, Mapping

import jax
import numpy as np

from hybrid.prefill import Workspace
from hybrid.runner import ModelRunner
from hybrid.state import Rows, Snapshot, kv_only, tree_bytes
from planner.eviction import Budget, EvictionPolicy
from planner.index_results import AttachStatus
from planner.interner import BlockInterner
from planner.prefix_index import PrefixIndex
from planner.session import CacheSession, Outcome, Scheduling

ReadRows = Callable[[int, int], Rows]
"""Copies the rows of positions start..end to the host."""


class PrefixCache:
    """Prefix index with payloads.

    Args:
        runner: whose states it holds; decides sizes.
        scheduling: how prompts are cut and captured.
        budget: limits in bytes.
        eviction: what goes first; LRU if None.
    """

    def __init__(
        self,
        runner: ModelRunner,
        scheduling: Scheduling,
        budget: Budget,
        eviction: EvictionPolicy | None,
    ) -> None:
        shapes = runner.shapes
        kv_bytes = tree_bytes(kv_only(runner.state_shapes))
        self.block_size = shapes.block_size
        self.index = PrefixIndex(
            shapes.block_size,
            block_bytes=kv_bytes // shapes.capacity * shapes.block_size,
            snapshot_bytes=tree_bytes(runner.snapshot_shapes),
            budget=budget,
            policy=eviction,
            restore_grid_tokens=shapes.tile if scheduling.grid == "tile" else shapes.block_size,
        )
        self.session = CacheSession(self.index, scheduling)
        self.interner = BlockInterner(shapes.block_size, self.index.live_keys)
        self._blocks: dict[int, Rows] = {}
        self._snapshots: dict[int, Snapshot] = {}

    def clear(self) -> None:
        """Forget everything: for when a request broke off between the index and the payloads."""
        self.index.clear()
        self._blocks.clear()
        self._snapshots.clear()

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """The states of a snapshot that the index holds."""
        return self._snapshots[snapshot_id]

    def rows(self, keys: np.ndarray, start: int, end: int) -> Rows:
        """Keys and values of positions start..end, which the index must hold."""
        first = start // self.block_size
        ids = self.index.block_ids(keys, -(-end // self.block_size))[first:].tolist()
        blocks = [self._blocks[block_id] for block_id in ids]
        cut = slice(start - first * self.block_size, end - first * self.block_size)
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=2)[:, :, cut], *blocks)

    def keep(self, outcome: Outcome, captured: Mapping[int, Snapshot], read_rows: ReadRows) -> None:
        """Drop the payloads of what went and take those of what came.

        Args:
            outcome: of a request that has ended.
            captured: its states by position.
            read_rows: reads what the request computed.
        """
        gone = set(outcome.evicted.each_block())
        for block_id in gone:
            self._blocks.pop(block_id, None)
        for snapshot_id in outcome.evicted.snapshot_ids:
            self._snapshots.pop(snapshot_id, None)
        insertion = outcome.insertion
        for first, ids in [*insertion.upgraded, (insertion.first_block, insertion.block_ids)]:
            self._take_blocks(first, [i for i in ids.tolist() if i not in gone], read_rows)
        for position, attachment in outcome.attachments.items():
            if attachment.replaced_id is not None:
                self._snapshots.pop(attachment.replaced_id, None)
            snapshot = attachment.snapshot
            if attachment.status is not AttachStatus.ATTACHED or snapshot is None:
                continue
            if snapshot.id in self.index.snapshots:
                self._snapshots[snapshot.id] = jax.tree.map(np.asarray, captured[position])

    def _take_blocks(self, first: int, ids: list[int], read_rows: ReadRows) -> None:
        """Blocks go from the tail of a path, so those that stay are the first of `ids`."""
        if not ids:
            return
        size = self.block_size
        rows = read_rows(first * size, (first + len(ids)) * size)
        leaves, tree = jax.tree.flatten(rows)
        for offset, block_id in enumerate(ids):
            cut = slice(offset * size, (offset + 1) * size)
            self._blocks[block_id] = jax.tree.unflatten(
                tree, [leaf[:, :, cut].copy() for leaf in leaves]
            )

    @property
    def payload_bytes(self) -> tuple[int, int]:
        """Bytes of the blocks and of the snapshots held; the index counts the same."""
        return tree_bytes(list(self._blocks.values())), tree_bytes(list(self._snapshots.values()))


class WorkingBuffer:
    """The workspace of one engine, with the prompt whose keys and values it holds.

    Rows beyond the prompt are decode's, or leftovers, and are never lent; nor are rows that an
    inexact restore computed.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._workspace: Workspace | None = None
        self._tokens = np.empty(0, np.int32)

    def agreement(self, prompt: np.ndarray) -> int:
        """How many rows from the first are those of `prompt`, computed exactly."""
        shared = min(len(self._tokens), len(prompt))
        differs = self._tokens[:shared] != prompt[:shared]
        return int(differs.argmax()) if differs.any() else shared

    def take(self) -> Workspace:
        """Lend the workspace for donation; until `put` the buffer claims to hold nothing."""
        workspace, self._workspace = self._workspace, None
        self._tokens = self._tokens[:0]
        return self._runner.new_workspace() if workspace is None else workspace

    def put(self, workspace: Workspace, exact_tokens: np.ndarray) -> None:
        """Take the workspace back, with the prompt tokens whose rows are exact."""
        self._workspace, self._tokens = workspace, exact_tokens
