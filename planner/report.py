"""What one request did with the cache, and why not better: shared by engine and simulator."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from planner.checks import check_int


class Reason(StrEnum):
    """Why a request did not restore more of its prompt. Exactly one holds for each request."""

    HIT = "hit"
    """Restored at the deepest position of the restore grid under its match: nothing to gain."""
    PARTIAL = "partial"
    """Restored, but the grid has a position between the deepest usable snapshot and the match."""
    COLD = "cold"
    """Its first block was never seen."""
    TOO_SHORT = "too_short"
    """The prompt, or its match, is shorter than one unit of the restore grid."""
    NO_SNAPSHOT_BELOW_MATCH = "no_snapshot_below_match"
    """Blocks matched, but no snapshot was ever taken at or below the match."""
    EVICTED = "evicted"
    """A block or a snapshot on its path, past where it restored, had to go or found no room."""
    INEXACT_ONLY = "inexact_only"
    """An exact request: only blocks or snapshots that are not exact reach further."""
    CACHE_OFF = "cache_off"
    """The request asked for no reuse."""
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    """A stored snapshot belongs to another model, configuration or environment."""
    CORRUPT = "corrupt"
    """A stored snapshot or block did not verify."""
    INCOMPLETE = "incomplete"
    """A stored snapshot lacks a part (a save that did not finish)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReport:
    """The account of one request; counts come from what was executed.

    Attributes:
        total: prompt tokens.
        matched: block-floored longest cached prefix, capped at total - 1 before flooring, tokens.
        restored: position of the snapshot that was restored, 0 if none.
        recomputed: tokens that prefill ran; must be total - restored.
        reason: why it was not better.
        captured: states that the passes gave, kept or not.
        snapshots: snapshots that were kept.
        bytes_written: bytes of snapshots and blocks that were kept.
        passes: passes that ran.
        evicted_snapshots: snapshots that had to go to make room.
        evicted_blocks: blocks that had to go to make room.
        evicted_bytes: bytes of both.
        skipped_snapshots: captures for which there was no room.
        skipped_blocks: blocks for which there was no room.
        time_to_first_token_s: seconds from the request to its first token, None where not known.
    """

    total: int
    matched: int
    restored: int
    recomputed: int
    reason: Reason
    captured: int = 0
    snapshots: int = 0
    bytes_written: int = 0
    passes: int = 0
    evicted_snapshots: int = 0
    evicted_blocks: int = 0
    evicted_bytes: int = 0
    skipped_snapshots: int = 0
    skipped_blocks: int = 0
    time_to_first_token_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse an account that does not add up.

        Raises:
            ValueError: a count out of its bounds, or an unknown reason.
        """
        check_int("total", self.total, 0)
        check_int("matched", self.matched, 0, max(self.total - 1, 0))
        check_int("restored", self.restored, 0, self.matched)
        check_int("recomputed", self.recomputed, 0)
        if self.recomputed != self.total - self.restored:
            raise ValueError(
                f"recomputed must be total - restored = {self.total - self.restored}, "
                f"got {self.recomputed}"
            )
        for name in _COUNTS:
            check_int(name, getattr(self, name), 0)
        object.__setattr__(self, "reason", Reason(self.reason))

    @property
    def replayed(self) -> int:
        """Matched tokens computed again because no snapshot was nearer."""
        return self.matched - self.restored

    @property
    def suffix(self) -> int:
        """Tokens that are new."""
        return self.total - self.matched

    def as_dict(self) -> dict[str, Any]:
        """All fields and the derived counts, ready for JSON.

        >>> counts = dict(total=40, matched=32, restored=16, recomputed=24)
        >>> report = RequestReport(reason=Reason.PARTIAL, **counts)
        >>> row = report.as_dict()
        >>> row["replayed"], row["suffix"], row["reason"]
        (16, 8, 'partial')
        """
        row = asdict(self)
        row["reason"] = self.reason.value
        return row | {"replayed": self.replayed, "suffix": self.suffix}


_COUNTS = (
    "captured",
    "snapshots",
    "bytes_written",
    "passes",
    "evicted_snapshots",
    "evicted_blocks",
    "evicted_bytes",
    "skipped_snapshots",
    "skipped_blocks",
)
