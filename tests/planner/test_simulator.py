"""The simulator against figures counted by hand, by another algorithm, and by other people."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.traces import read_trace, trace_requests
from planner.costs import AttentionCost, CostModel, prefill_flops
from planner.eviction import Budget
from planner.placement import PlacementPolicy, parse_placement
from planner.prefix_paths import PrefixPaths, restored_by_interval, restored_by_tails
from planner.session import Scheduling
from planner.simulator import Timing, simulate
from tests.planner.small_traces import make_trace, traces
from tests.shared_data import shared_trace

COSTS = CostModel(1000, 100, (AttentionCost(10),), kv_bytes_per_token=2, snapshot_bytes=50)
CHUNK = 10**9


def placed(spec, tile=4):
    return Scheduling(tile=tile, placement=parse_placement(spec), budget=CHUNK)


def test_a_trace_counted_by_hand():
    """Blocks of 4; a snapshot at every second block; each prompt has two tokens more."""
    requests = make_trace([("abcde", 2), ("abcdx", 2), ("abcdexy", 2), ("b", 2)])
    result = simulate(requests, placed("every:2"), COSTS, timing=Timing(0.5, 1e-3))
    reports = [r.report for r in result.requests]
    assert [(r.matched, r.restored, r.replayed, r.recomputed) for r in reports] == [
        (0, 0, 0, 22),
        (16, 16, 0, 6),
        (20, 16, 4, 14),
        (0, 0, 0, 6),
    ]
    assert [r.snapshots for r in reports] == [2, 0, 1, 0]
    # blocks: abcde, x below abcd, xy below abcde, b; snapshots at ab, abcd, abcdex
    assert result.peak_bytes == 9 * 8 + 3 * 50
    assert reports[2].bytes_written == 2 * 8 + 50
    third = result.requests[2]
    assert third.replayed_flops == prefill_flops(COSTS, 16, 20)
    assert third.saved_flops == prefill_flops(COSTS, 0, 16)
    assert third.flops == prefill_flops(COSTS, 16, 32)
    assert reports[2].time_to_first_token_s == pytest.approx(0.5 + 1e-3 * third.flops)
    assert result.total("restored") == 32
    assert result.restored_share == 32 / (22 + 22 + 30 + 6)


@given(traces(max_requests=10, max_blocks=8), st.integers(1, 4))
def test_without_limits_it_counts_what_the_prefix_tree_counts(requests, every):
    paths = PrefixPaths(requests)
    by_interval = simulate(requests, placed(f"every:{every}"), COSTS)
    assert by_interval.total("restored") == restored_by_interval(paths, 4 * every)
    assert by_interval.total("matched") == int(paths.matched.sum())
    assert simulate(requests, placed("last"), COSTS).total("restored") == restored_by_tails(paths)


@given(traces(max_requests=10, max_blocks=8), st.integers(1, 6), st.integers(1, 3))
def test_budgets_hold_and_nothing_gets_better_for_them(requests, snapshots, concurrency):
    free = simulate(requests, placed("every:1"), COSTS)
    budget = Budget(snapshot_bytes=snapshots * COSTS.snapshot_bytes)
    tight = simulate(requests, placed("every:1"), COSTS, budget=budget, concurrency=concurrency)
    assert tight.peak_bytes <= free.peak_bytes
    for a, b in zip(tight.requests, free.requests, strict=True):
        assert a.report.restored <= b.report.restored
        assert a.report.total == b.report.total
        assert a.report.recomputed == a.report.total - a.report.restored


def test_requests_in_flight_do_not_see_each_other():
    requests = make_trace([("abcd", 1), ("abcd", 1), ("abcd", 1), ("abcd", 1)])
    restored = [
        [
            r.report.restored
            for r in simulate(requests, placed("last"), COSTS, concurrency=n).requests
        ]
        for n in (1, 2, 4)
    ]
    assert restored == [[0, 16, 16, 16], [0, 0, 16, 16], [0, 0, 0, 0]]


def test_wrong_use_is_named():
    requests = make_trace([("ab", 1), ("abc", 1)])
    with pytest.raises(ValueError, match="snapshot_bytes is 49; expected at least one snapshot"):
        simulate(requests, placed("last"), COSTS, budget=Budget(snapshot_bytes=49))
    with pytest.raises(ValueError, match="total_bytes is 49; expected at least one snapshot"):
        simulate(requests, placed("last"), COSTS, budget=Budget(total_bytes=49))
    with pytest.raises(ValueError, match="out of order: expected request 0 at place 0, got requ"):
        simulate(requests[::-1], placed("last"), COSTS)
    late = [dataclasses.replace(requests[0], arrival_s=2.0), requests[1]]
    with pytest.raises(
        ValueError, match=r"request 1 arrives at 1\.0 s, before request 0 at 2\.0 s"
    ):
        simulate(late, placed("last"), COSTS)
    with pytest.raises(ValueError, match="concurrency must be at least 1, got 0"):
        simulate(requests, placed("last"), COSTS, concurrency=0)
    with pytest.raises(ValueError, match="multiple of block_size"):
        simulate(requests, placed("last", tile=6), COSTS)
    with pytest.raises(ValueError, match="nosuch"):
        parse_placement("nosuch")


class Planned(PlacementPolicy):
    """A placement that plans what it is told to."""

    spec = "planned"

    def __init__(self, *positions):
        self.wanted = positions

    def positions(self, context):
        return self.wanted


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ((3,), "placement 'planned' asks for position 3, off the grid of 4 tokens"),
        ((4, 6), "placement 'planned' asks for position 6, off the grid of 4 tokens"),
        ((8, 4), r"placement 'planned' must ascend within \(0, 13\], got \(8, 4\)"),
        ((16,), r"placement 'planned' must ascend within \(0, 13\], got \(16,\)"),
    ],
)
def test_a_placement_off_the_grid_is_named(positions, message):
    scheduling = dataclasses.replace(placed("last"), placement=Planned(*positions))
    with pytest.raises(ValueError, match=message):
        simulate(make_trace([("abc", 1)]), scheduling, COSTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "counted"),
    [
        (
            "mooncake/conversation_trace.jsonl.gz",
            {"every:1": 0.3734, "every:2": 0.3396, "every:16": 0.2397, "last": 0.3497},
        ),
        (
            "weka/sessions.ranges.jsonl.gz",
            {"every:8": 0.9613, "every:64": 0.9473, "every:512": 0.8341, "last": 0.9565},
        ),
    ],
)
def test_shares_of_real_traces(name, counted):
    requests = trace_requests(read_trace(shared_trace(name)))
    for spec, share in counted.items():
        result = simulate(requests, placed(spec, requests[0].block_size), COSTS)
        assert result.restored_share == pytest.approx(share, abs=1e-3), spec
        assert np.isfinite(result.replayed_share)
