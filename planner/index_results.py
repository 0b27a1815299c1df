"""What the calls of `planner.prefix_index.PrefixIndex` return."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from planner.eviction import Evictions
from planner.radix_tree import Node, Snapshot
from planner.report import Reason


@dataclass(frozen=True, slots=True)
class Match:
    """What a request may reuse.

    Attributes:
        total: prompt tokens.
        matched: block-floored longest cached prefix, capped at total - 1 before flooring, tokens.
        restored: position of `snapshot`, 0 where there is none.
        reason: why it is not more.
        snapshot: the deepest usable snapshot at or below `matched`.
    """

    total: int
    matched: int
    restored: int
    reason: Reason
    snapshot: Snapshot | None

    @property
    def replayed(self) -> int:
        """Matched tokens that are computed again because no snapshot is nearer."""
        return self.matched - self.restored


@dataclass(frozen=True, slots=True)
class Insertion:
    """What an insert did.

    Attributes:
        first_block: index in the prompt of the first new block.
        block_ids: int64 [new blocks], the ids of the blocks from there on that are now held.
        upgraded: (first block, ids) of blocks that were inexact and whose payload must be replaced.
        skipped_blocks: blocks at the end for which there was no room.
        evicted: what went.
    """

    first_block: int
    block_ids: np.ndarray
    upgraded: tuple[tuple[int, np.ndarray], ...]
    skipped_blocks: int
    evicted: Evictions


class AttachStatus(StrEnum):
    """What became of a snapshot."""

    ATTACHED = "attached"
    HELD = "held"
    """One as good is there already; it counts as used now."""
    BEYOND_PATH = "beyond_path"
    """The index does not hold the block that the position lies in or at the end of."""
    INEXACT_PATH = "inexact_path"
    """An exact snapshot on blocks that are not exact."""
    NO_ROOM = "no_room"


@dataclass(frozen=True, slots=True)
class Attachment:
    """What an attach did.

    Attributes:
        status: whether the snapshot is held now.
        snapshot: the one held, None where it was refused.
        replaced_id: id of the inexact snapshot that an exact one took the place of.
        evicted: what went.
    """

    status: AttachStatus
    snapshot: Snapshot | None
    replaced_id: int | None
    evicted: Evictions


class Pin:
    """Holds a path, and the snapshot restored from it, while a request runs."""

    __slots__ = ("depth", "node", "released", "snapshot")

    def __init__(self, node: Node | None, depth: int, snapshot: Snapshot | None) -> None:
        """Hold what is given."""
        self.node = node
        self.depth = depth
        self.snapshot = snapshot
        self.released = False
