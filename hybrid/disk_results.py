"""What the disk tier has done, and what it offers for a prompt."""

import dataclasses

from hybrid.state import Rows, Snapshot
from planner.report import Reason


@dataclasses.dataclass
class DiskStats:
    """What has happened on the disk, ever since the tier was opened.

    Args:
        saves, saved_bytes: written and visible.
        skipped_saves: not written: no room, no permission, or too many waiting.
        restores: snapshots read back.
        unusable_saves: found but not used, by reason.
    """

    saves: int = 0
    saved_bytes: int = 0
    skipped_saves: int = 0
    restores: int = 0
    unusable_saves: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class DiskMatch:
    """What the disk offers for a prompt.

    Args:
        matched: block-floored longest prefix that saves hold, tokens.
        restored: position of `states`, 0 if the disk has nothing deeper than was asked for.
        exact: whether they are exact.
        reason: why it is not more; None where the disk knows of nothing in the way.
        states: the snapshot, on the host.
        rows: keys and values of the blocks from `base` up to `restored`; None where the caller
            holds them all.
        base: position of their first row.
    """

    matched: int
    restored: int = 0
    exact: bool = True
    reason: Reason | None = None
    states: Snapshot | None = None
    rows: Rows | None = None
    base: int = 0
