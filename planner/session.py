"""What one request does to the prefix index, in order: the part that engine and simulator share.

::

    admission = session.begin(keys, total)          # look up, pin, plan
    ...                                             # restore, run admission.schedule
    outcome = session.finish(admission)             # insert, attach each capture, unpin

The engine drops the payloads of what `outcome` says went, and keeps those of what it says is held;
the simulator does neither. Nothing else calls the index while requests come.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner import radix_tree
from planner.checks import check_choice, check_int
from planner.eviction import Evictions
from planner.index_results import Attachment, AttachStatus, Insertion, Match, Pin
from planner.placement.context import (
    PlacementContext,
    PlacementPolicy,
    checked_positions,
    place,
)
from planner.prefix_index import PrefixIndex
from planner.radix_tree import Snapshot
from planner.report import Reason, RequestReport
from planner.schedule import (
    GRIDS,
    MODES,
    Schedule,
    plan_positions,
    plan_prefill,
    uncached_chunk_ends,
)


@dataclass(frozen=True, kw_only=True)
class Scheduling:
    """How prompts are cut and where states are captured.

    Attributes:
        tile: tokens a tile, a multiple of the index's block size.
        mode: one of `planner.schedule.MODES`; not used where `placement` is given.
        interval: in blocks, for the modes that have one.
        first_budget: tokens of the first chunk; None for `budget`.
        budget: tokens of each later chunk.
        grid: "tile" restores exactly and only that; "block" takes inexact snapshots too.
        min_tail_tokens: least number of tokens after the split point.
        placement: a policy that chooses the positions instead of a mode.
    """

    tile: int
    mode: str = "planned"
    interval: int = 16
    first_budget: int | None = None
    budget: int = 8192
    grid: str = "tile"
    min_tail_tokens: int = 0
    placement: PlacementPolicy | None = None

    def __post_init__(self) -> None:
        """Refuse what `plan_prefill` would refuse later.

        Raises:
            ValueError: names the argument and its value.
        """
        check_int("tile", self.tile, 1)
        check_choice("mode", self.mode, MODES)
        check_int("interval", self.interval, 0)
        check_int("budget", self.budget, 1)
        if self.first_budget is not None:
            check_int("first_budget", self.first_budget, 1)
        check_choice("grid", self.grid, GRIDS)
        check_int("min_tail_tokens", self.min_tail_tokens, 0)
        if self.placement is not None and not isinstance(self.placement, PlacementPolicy):
            raise ValueError(f"placement must be a PlacementPolicy, got {self.placement!r}")


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that has been looked up and planned.

    Attributes:
        keys: int64 [total // block_size], the keys of its full blocks.
        context: the prompt as placements see it.
        snapshot: the one in the index that it resumes from, if it does.
        matched: length of the cached prefix, tokens.
        restored: position that the run resumes from.
        exact: whether what the run computes is exact: it resumes from an exact state or from 0.
        reason: why it restores no more.
        schedule: what to run, with the positions to capture.
        pin: holds the matched path until `finish` or `abandon`.
    """

    keys: np.ndarray
    context: PlacementContext
    snapshot: Snapshot | None
    matched: int
    restored: int
    exact: bool
    reason: Reason
    schedule: Schedule
    pin: Pin


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the end of a request changed.

    Attributes:
        insertion: the blocks that were new or replaced.
        attachments: what became of each capture, by position.
        evicted: all that went to make room; it may hold blocks and snapshots of this very request.
        snapshots: captures that were attached.
        skipped_snapshots: captures for which there was no room.
        bytes_written: bytes of the blocks and snapshots that were added or replaced.
    """

    insertion: Insertion
    attachments: dict[int, Attachment]
    evicted: Evictions
    snapshots: int
    skipped_snapshots: int
    bytes_written: int


class CacheSession:
    """Runs requests against one index, each from `begin` to `finish`."""

    def __init__(self, index: PrefixIndex, scheduling: Scheduling) -> None:
        """Join an index with a way to schedule.

        Args:
            index: the index; its `restore_grid_tokens` should be the tile on grid "tile".
            scheduling: how prompts are cut and captured.

        Raises:
            ValueError: the tile is no multiple of the index's block size.
        """
        if scheduling.tile % index.block_size:
            raise ValueError(
                f"tile must be a multiple of block_size = {index.block_size}, got {scheduling.tile}"
            )
        self.index = index
        self.scheduling = scheduling

    def begin(
        self,
        keys: np.ndarray,
        total: int,
        *,
        reuse: bool = True,
        boundaries: Iterable[int] = (),
        previous_totals: Iterable[int] = (),
        now: float | None = None,
    ) -> Admission:
        """Look a prompt up, pin what it matched, plan its prefill.

        Args:
            keys: int64 [total // block_size], the keys of its full blocks.
            total: prompt tokens.
            reuse: whether it may restore at all.
            boundaries: positions where messages start, for placements that look at them.
            previous_totals: lengths of the earlier prompts of its conversation, likewise.
            now: time on the index's clock.

        Returns:
            The admission; give it to `finish` or `abandon`.

        Raises:
            ValueError: keys or lengths that do not fit.
        """
        exact_only = self.scheduling.grid == "tile"
        match = self.index.lookup(keys, total, exact=exact_only, touch=reuse, now=now)
        if not reuse:
            match = replace(match, matched=0, restored=0, snapshot=None, reason=Reason.CACHE_OFF)
        context = self._context(keys, match, tuple(boundaries), tuple(previous_totals))
        positions = None
        if self.scheduling.placement is not None:
            positions = place(self.scheduling.placement, context)
        return Admission(
            keys=keys,
            context=context,
            snapshot=match.snapshot,
            matched=match.matched,
            restored=match.restored,
            exact=match.snapshot is None or match.snapshot.exact,
            reason=match.reason,
            schedule=self._schedule(context, positions),
            pin=self.index.pin(keys, match.matched // self.index.block_size, match.snapshot),
        )

    def resume_at(
        self, admission: Admission, *, matched: int, restored: int, exact: bool, reason: Reason
    ) -> Admission:
        """Plan again from a state that comes from elsewhere than the index.

        Args:
            admission: from `begin`.
            matched: length of the prefix that is cached there, tokens.
            restored: position of the state; 0 to start over.
            exact: whether the state is exact.
            reason: why it is not more.

        Returns:
            The admission to go on with, in place of the first.

        Raises:
            ValueError: a policy that plans positions off its grid.
        """
        context = replace(admission.context, matched=matched, restored=restored)
        positions = None
        if self.scheduling.placement is not None:
            positions = checked_positions(self.scheduling.placement, context)
        return replace(
            admission,
            context=context,
            snapshot=None,
            matched=matched,
            restored=restored,
            exact=exact or not restored,
            reason=reason,
            schedule=self._schedule(context, positions),
        )

    def finish(
        self,
        admission: Admission,
        captured: Sequence[int] | None = None,
        *,
        now: float | None = None,
    ) -> Outcome:
        """Hold what the run computed.

        Args:
            admission: from `begin` or `resume_at`.
            captured: positions whose states the run gave; those of the schedule by default.
            now: time on the index's clock.

        Returns:
            What changed in the index.
        """
        index, tile = self.index, self.scheduling.tile
        captured = admission.schedule.captures if captured is None else captured
        insertion = index.insert(admission.keys, exact=admission.exact, now=now)
        index.unpin_snapshot(admission.pin)  # with room for one, a turn's tail replaces the last
        new_blocks = len(insertion.block_ids) + sum(len(ids) for _, ids in insertion.upgraded)
        evicted, attachments, written = Evictions([], []), {}, new_blocks * index.block_bytes
        _add(evicted, insertion.evicted)
        for position in sorted(captured):
            attachment = index.attach(
                admission.keys, position, exact=admission.exact and position % tile == 0
            )
            attachments[position] = attachment
            _add(evicted, attachment.evicted)
            if attachment.status is AttachStatus.ATTACHED and attachment.snapshot is not None:
                written += attachment.snapshot.num_bytes
        index.unpin(admission.pin)
        statuses = [attachment.status for attachment in attachments.values()]
        return Outcome(
            insertion=insertion,
            attachments=attachments,
            evicted=evicted,
            snapshots=statuses.count(AttachStatus.ATTACHED),
            skipped_snapshots=statuses.count(AttachStatus.NO_ROOM),
            bytes_written=written,
        )

    def abandon(self, admission: Admission) -> None:
        """Let go of a request that did not run to its end; nothing is held of it."""
        self.index.unpin(admission.pin)

    def _context(
        self,
        keys: np.ndarray,
        match: Match,
        boundaries: tuple[int, ...],
        previous_totals: tuple[int, ...],
    ) -> PlacementContext:
        block_size = self.index.block_size
        branches, visits = False, 0
        if self.scheduling.placement is not None and match.matched:
            path, at = radix_tree.walk(self.index.root, keys)
            last = path[-1]
            goes_on = at < last.end or bool(last.children)
            branches = at * block_size == match.matched and goes_on
            visits = next(n for n in path if n.end * block_size >= match.matched).hits + 1
        return PlacementContext(
            total=match.total,
            block_size=block_size,
            grid=self.scheduling.tile if self.scheduling.grid == "tile" else block_size,
            matched=match.matched,
            restored=match.restored,
            chunk_ends=self._chunk_ends(match),
            branches=branches,
            visits=visits,
            boundaries=boundaries,
            previous_totals=previous_totals,
        )

    def _chunk_ends(self, match: Match) -> tuple[int, ...]:
        """Where chunks end with the cache off, for placements that look at them."""
        if self.scheduling.placement is None:
            return ()
        return uncached_chunk_ends(match.total, **self._cuts(match.restored))

    def _schedule(self, context: PlacementContext, positions: Iterable[int] | None) -> Schedule:
        cuts = self._cuts(context.restored)
        if positions is not None:
            return plan_positions(context.total, positions, **cuts)
        how = self.scheduling
        return plan_prefill(
            context.total,
            interval=how.interval,
            mode=how.mode,
            min_tail_tokens=how.min_tail_tokens,
            **cuts,
        )

    def _cuts(self, start: int) -> dict[str, Any]:
        """What cuts a prompt into chunks, whatever is captured in them."""
        how = self.scheduling
        return {
            "start": start,
            "first_budget": how.first_budget or how.budget,
            "budget": how.budget,
            "block_size": self.index.block_size,
            "tile": how.tile,
            "grid": how.grid,
        }


def report(
    admission: Admission,
    outcome: Outcome,
    *,
    recomputed: int,
    passes: int,
    captured: int,
    time_to_first_token_s: float | None = None,
) -> RequestReport:
    """The account of a request from its two ends and what ran between them.

    Args:
        admission, outcome: of the request.
        recomputed: prompt tokens that ran.
        passes: passes that ran.
        captured: states that they gave.
        time_to_first_token_s: seconds, where known.

    Returns:
        The report.

    Raises:
        ValueError: what ran is not what was admitted.
    """
    return RequestReport(
        total=admission.context.total,
        matched=admission.matched,
        restored=admission.restored,
        recomputed=recomputed,
        reason=admission.reason,
        snapshots=outcome.snapshots,
        captured=captured,
        bytes_written=outcome.bytes_written,
        passes=passes,
        evicted_snapshots=len(outcome.evicted.snapshot_ids),
        evicted_blocks=outcome.evicted.num_blocks,
        evicted_bytes=outcome.evicted.num_bytes,
        skipped_snapshots=outcome.skipped_snapshots,
        skipped_blocks=outcome.insertion.skipped_blocks,
        time_to_first_token_s=time_to_first_token_s,
    )


def _add(into: Evictions, more: Evictions) -> None:
    into.snapshot_ids += more.snapshot_ids
    into.block_ids += more.block_ids
    into.kv_bytes += more.kv_bytes
    into.snapshot_bytes += more.snapshot_bytes
