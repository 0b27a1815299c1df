"""The life of a request on the index: order of operations, plans, accounts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.eviction import Budget
from planner.index_results import AttachStatus
from planner.placement import parse_placement
from planner.placement.context import PlacementPolicy
from planner.prefix_index import PrefixIndex
from planner.report import Reason
from planner.schedule import MODES, plan_prefill
from planner.session import CacheSession, Scheduling, report

BLOCK, TILE = 4, 16


def session_of(limits=None, **options):
    options = {"tile": TILE, "budget": 64, "interval": 4, **options}
    grid = TILE if options.get("grid", "tile") == "tile" else BLOCK
    index = PrefixIndex(
        BLOCK,
        block_bytes=10,
        snapshot_bytes=25,
        budget=limits if isinstance(limits, Budget) else Budget(total_bytes=limits),
        restore_grid_tokens=grid,
    )
    return CacheSession(index, Scheduling(**options))


def keys_of(total, stream=0, fork=None, after=0):
    """Keys of a prompt that leaves one stream for another at a block."""
    keys = np.arange(total // BLOCK, dtype=np.int64)
    return keys + 1000 * np.where(keys < (total if fork is None else fork), stream, after)


def run(session, keys, total, **options):
    admission = session.begin(keys, total, **options)
    outcome = session.finish(admission)
    passes = len(admission.schedule.passes)
    captured = len(admission.schedule.captures)
    row = report(
        admission,
        outcome,
        recomputed=total - admission.restored,
        passes=passes,
        captured=captured,
    )
    return admission, outcome, row


def test_cold_then_warm():
    session = session_of(mode="in_pass")
    admission, outcome, row = run(session, keys_of(150), 150)
    assert admission.schedule.captures == (16, 32, 48, 64, 80, 96, 112, 128, 144)
    assert (row.reason, row.snapshots, row.captured) == (Reason.COLD, 9, 9)
    assert row.bytes_written == 37 * 10 + 9 * 25 == session.index.used_bytes
    assert outcome.evicted.num_bytes == 0
    admission, _, row = run(session, keys_of(150), 150)
    assert (row.matched, row.restored, row.recomputed) == (148, 144, 6)
    assert (row.reason, row.snapshots, row.bytes_written) == (Reason.HIT, 0, 0)
    assert admission.schedule.passes == ((144, 150),)


@given(
    st.sampled_from(MODES),
    st.sampled_from(["tile", "block"]),
    st.integers(1, 300),
    st.integers(0, 5),
    st.integers(5, 90),
    st.integers(5, 90),
)
def test_plans_are_those_of_the_mode(mode, grid, total, interval, first, budget):
    session = session_of(mode=mode, grid=grid, interval=interval, first_budget=first, budget=budget)
    for _ in range(2):
        admission, outcome, row = run(session, keys_of(total), total)
        expected = plan_prefill(
            total,
            start=admission.restored,
            first_budget=first,
            budget=budget,
            block_size=BLOCK,
            tile=TILE,
            interval=interval,
            mode=mode,
            grid=grid,
        )
        assert admission.schedule == expected
        assert tuple(outcome.attachments) == expected.captures
        for position, attachment in outcome.attachments.items():
            beyond = position > total // BLOCK * BLOCK
            assert (attachment.status is AttachStatus.BEYOND_PATH) == beyond
            if attachment.snapshot is not None:
                assert attachment.snapshot.exact == (admission.exact and position % TILE == 0)
        assert row.restored + row.recomputed == total
        assert admission.exact == (admission.restored % TILE == 0)


def test_inexact_chain():
    """What follows an inexact restore is inexact, however aligned, until it is run exactly."""
    session = session_of(mode="naive", grid="block", interval=1, first_budget=27, budget=26)
    run(session, keys_of(60), 60)
    admission, outcome, _ = run(session, keys_of(96, 0, 14, 1), 96)
    assert (admission.restored, admission.exact) == (53, False)
    assert not any(a.snapshot.exact for a in outcome.attachments.values())
    assert list(outcome.attachments) == [80, 88]
    assert session.index.lookup(keys_of(96, 0, 14, 1), 97, touch=False).matched == 56
    admission, outcome, _ = run(session, keys_of(96, 0, 14, 1), 96, reuse=False)
    assert (admission.restored, admission.exact, admission.reason) == (0, True, Reason.CACHE_OFF)
    assert [first for first, _ in outcome.insertion.upgraded] == [14]
    assert session.index.lookup(keys_of(96, 0, 14, 1), 97, touch=False).matched == 96


def test_reuse_off_leaves_no_use():
    session = session_of(mode="in_pass")
    run(session, keys_of(100), 100)
    hits = [s.hits for s in session.index.snapshots.values()]
    admission, _, row = run(session, keys_of(100), 100, reuse=False)
    assert admission.snapshot is None
    assert row.recomputed == 100
    assert [s.hits for s in session.index.snapshots.values()] == hits


def test_eviction_is_reported():
    session = session_of(600, mode="in_pass")
    run(session, keys_of(150), 150)
    before = session.index.used_bytes
    _, outcome, row = run(session, keys_of(150, 5), 150)
    assert row.evicted_bytes == outcome.evicted.num_bytes > 0
    assert row.evicted_blocks * 10 + row.evicted_snapshots * 25 == row.evicted_bytes
    assert session.index.used_bytes == before + row.bytes_written - row.evicted_bytes <= 600


def test_no_room():
    session = session_of(100, mode="in_pass")
    _, outcome, row = run(session, keys_of(150), 150)
    assert (row.skipped_blocks, row.snapshots, row.evicted_blocks) == (27, 1, 3)
    statuses = [a.status for a in outcome.attachments.values()]
    assert statuses == [AttachStatus.ATTACHED] + 8 * [AttachStatus.BEYOND_PATH]
    assert session.index.used_bytes <= 100
    session = session_of(Budget(snapshot_bytes=20), mode="in_pass")
    _, _, row = run(session, keys_of(150), 150)
    assert (row.captured, row.snapshots, row.skipped_snapshots) == (9, 0, 9)


def test_pins_are_let_go():
    session = session_of(500, mode="in_pass")
    run(session, keys_of(100), 100)
    admission = session.begin(keys_of(100), 100)
    assert admission.snapshot.pins == 1
    session.abandon(admission)
    assert admission.snapshot.pins == 0
    with pytest.raises(ValueError, match="released before"):
        session.finish(admission)


def test_with_room_for_one_snapshot_a_turn_takes_the_place_of_the_last():
    """What a run restored has served by the time its captures are held."""
    session = session_of(Budget(snapshot_bytes=25), placement=parse_placement("last"))
    restored = []
    for total in (50, 82, 114, 146):
        admission, _, row = run(session, keys_of(total), total)
        restored.append(admission.restored)
        assert (row.snapshots, row.skipped_snapshots) == (1, 0)
    assert restored == [0, 48, 80, 112]


def test_a_snapshot_that_found_no_room_is_told_of():
    """The run in between pins the only snapshot, so that there is no room for another's."""
    session = session_of(Budget(snapshot_bytes=25), placement=parse_placement("last"))
    run(session, keys_of(50), 50)
    running = session.begin(keys_of(50), 50)
    _, _, row = run(session, keys_of(50, stream=7), 50)
    assert (row.reason, row.skipped_snapshots) == (Reason.COLD, 1)
    session.finish(running)
    assert session.begin(keys_of(50, stream=7), 50).reason is Reason.EVICTED


def test_resume_from_elsewhere():
    """A state from another tier: planned from there, kept like any other run."""
    session = session_of(mode="in_pass")
    admission = session.begin(keys_of(100), 100)
    assert admission.restored == 0
    admission = session.resume_at(
        admission, matched=96, restored=64, exact=True, reason=Reason.PARTIAL
    )
    assert admission.schedule.start == 64
    assert admission.schedule.captures == (80, 96)
    outcome = session.finish(admission, (64, 80, 96))
    assert outcome.snapshots == 3
    assert session.begin(keys_of(100), 100).restored == 96
    inexact = session_of(mode="in_pass", grid="block")
    admission = inexact.begin(keys_of(100), 100)
    admission = inexact.resume_at(
        admission, matched=96, restored=60, exact=False, reason=Reason.PARTIAL
    )
    inexact.finish(admission)
    assert not any(s.exact for s in inexact.index.snapshots.values())


class Asked(PlacementPolicy):
    """Captures what it is told to and remembers what it was asked."""

    spec = "asked"

    def __init__(self, *positions):
        self.wanted, self.asked, self.observed = positions, [], []

    def positions(self, context):
        self.asked.append(context)
        return context.capturable(self.wanted)

    def observe(self, context):
        self.observed.append(context)


def test_placement_sees_the_request():
    policy = Asked(32, 64)
    session = session_of(placement=policy)
    admission, _, _ = run(session, keys_of(100), 100)
    assert admission.schedule.captures == (32, 64)
    run(session, keys_of(90, 0, 20, 1), 90, boundaries=(10, 70), previous_totals=(100,))
    run(session, keys_of(90, 0, 20, 2), 90)
    run(session, keys_of(100), 100)
    first, fork, again, repeat = policy.observed
    assert policy.asked == policy.observed
    assert (first.matched, first.branches, first.visits) == (0, False, 0)
    assert (fork.matched, fork.restored, fork.branches, fork.visits) == (80, 64, True, 1)
    assert (fork.grid, fork.block_size, fork.total) == (TILE, BLOCK, 90)
    assert (fork.boundaries, fork.previous_totals) == ((10, 70), (100,))
    assert first.chunk_ends == (64, 100)
    assert (again.branches, again.visits) == (True, 2)
    assert (repeat.matched, repeat.branches, repeat.visits) == (96, False, 1)


def test_a_resumed_request_is_held_to_the_grid_too():
    class Late(Asked):
        def positions(self, context):
            return (70,) if context.restored else ()

    session = session_of(placement=Late())
    admission = session.begin(keys_of(100), 100)
    with pytest.raises(ValueError, match="'asked' asks for position 70, off the grid of 16"):
        session.resume_at(admission, matched=96, restored=64, exact=True, reason=Reason.PARTIAL)


def test_placement_by_name():
    session = session_of(placement=parse_placement("tail|every:8"))
    admission, _, _ = run(session, keys_of(150), 150)
    assert admission.schedule.captures == (32, 64, 96, 128, 144)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tile": 18}, "tile must be a multiple of block_size = 4, got 18"),
        ({"tile": 0}, "tile must be at least 1"),
        ({"mode": "none"}, "mode must be one of"),
        ({"grid": "row"}, "grid must be one of tile, block"),
        ({"interval": 1.5}, "interval must be an integer"),
        ({"budget": 0}, "budget must be at least 1"),
        ({"first_budget": -1}, "first_budget must be at least 1"),
        ({"min_tail_tokens": -1}, "min_tail_tokens must be at least 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        session_of(**options)
