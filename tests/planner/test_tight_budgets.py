"""Every eviction policy where blocks and snapshots both go: figures add up, budgets hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs import AttentionCost, CostModel
from planner.eviction import Budget
from planner.eviction_policies import EVICTIONS, make_eviction
from planner.placement import parse_placement
from planner.session import Scheduling
from planner.simulator import simulate
from tests.planner.small_traces import traces

COSTS = CostModel(1000, 100, (AttentionCost(10),), kv_bytes_per_token=2, snapshot_bytes=10)


def replay(requests, eviction, budget, concurrency=1):
    return simulate(
        requests,
        Scheduling(tile=4, placement=parse_placement("every:1")),
        COSTS,
        budget=budget,
        eviction=make_eviction(eviction, COSTS, 4),
        concurrency=concurrency,
    )


@pytest.mark.parametrize("eviction", sorted(EVICTIONS))
@given(
    requests=traces(max_requests=20, max_blocks=8),
    snapshots=st.integers(1, 6),
    blocks=st.integers(1, 12),
    shared=st.booleans(),
    concurrency=st.integers(1, 3),
)
def test_budgets_hold(eviction, requests, snapshots, blocks, shared, concurrency):
    kv_bytes, snapshot_bytes = 8 * blocks, 10 * snapshots
    limit = kv_bytes + snapshot_bytes
    budget = Budget(limit) if shared else Budget(None, kv_bytes, snapshot_bytes)
    result = replay(requests, eviction, budget, concurrency)
    assert result.peak_bytes <= limit
    for request in result.requests:
        assert request.report.restored <= request.report.matched < request.report.total
