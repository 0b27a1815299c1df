"""What served demand promises, seen from outside: it learns, forgets, stays small."""

import gc
import pickle
import random
import re

import numpy as np
import pytest

from planner.costs import CostModel
from planner.demand_constants import DemandConstants
from planner.eviction import Budget
from planner.eviction_policies import make_eviction
from planner.placement import parse_placement
from planner.prefix_index import PrefixIndex
from planner.radix_tree import Snapshot
from planner.served_demand import ServedDemand
from planner.session import CacheSession, Scheduling
from planner.simulator import simulate
from planner.trace import TraceRequest

BLOCK = 4
COSTS = CostModel(1000, 100, (), kv_bytes_per_token=2, snapshot_bytes=10)


def trace_of(prompts):
    """Requests for (beginning, own part): numbers that stand for 8 blocks and for 2."""
    return [
        TraceRequest(
            index=index,
            arrival_s=float(index),
            session=str(index),
            total_tokens=10 * BLOCK + 1,
            output_tokens=1,
            block_size=BLOCK,
            block_keys=np.array(
                [100 * beginning + n for n in range(8)] + [10**6 + 100 * own + n for n in range(2)],
                dtype=np.int64,
            ),
        )
        for index, (beginning, own) in enumerate(prompts)
    ]


def mixture(seed, requests, regulars):
    """A fifth of the requests begin like one of some regulars; nobody else ever comes back."""
    draw = random.Random(seed)
    return [
        (draw.choice(regulars) if draw.random() < 0.2 else 1000 * (seed + 1) + n, 10**5 * seed + n)
        for n in range(requests)
    ]


def replay(requests, eviction, snapshots=8):
    policy = make_eviction(eviction, COSTS, BLOCK) if isinstance(eviction, str) else eviction
    return simulate(
        requests,
        Scheduling(tile=BLOCK, placement=parse_placement("sglang")),
        COSTS,
        budget=Budget(snapshot_bytes=snapshots * COSTS.snapshot_bytes),
        eviction=policy,
    )


def replayed(result, start, end=None):
    """Share of what matched in some of the requests that was computed again."""
    reports = [request.report for request in result.requests[start:end]]
    return sum(r.replayed for r in reports) / sum(r.matched for r in reports)


def test_equal_traces_give_equal_accounts():
    requests = trace_of(mixture(0, 300, range(6)))
    first, second = (replay(requests, "served_demand") for _ in range(2))
    assert [r.report for r in first.requests] == [r.report for r in second.requests]


def test_it_learns_who_comes_back_and_lru_does_not():
    """Six regulars and eight snapshots: the states at their beginnings all fit, but between two
    visits of one some thirty requests leave a snapshot each, which LRU takes for fresher."""
    requests = trace_of(mixture(0, 1000, range(6)))
    learnt, lru = (replay(requests, name) for name in ("served_demand", "lru"))
    assert replayed(lru, 500) > 0.7
    assert replayed(learnt, 500) < 0.1
    assert replayed(learnt, 0, 200) > replayed(learnt, 500)


def test_it_moves_on_when_other_regulars_come():
    """Before long it does as well as if they had always been there."""
    old, new = mixture(0, 500, range(6)), mixture(1, 500, range(10, 16))
    changed, fresh = trace_of(old + new), trace_of(new)
    assert replayed(replay(fresh, "served_demand"), 300) < 0.1
    assert replayed(replay(changed, "served_demand"), 800) < 0.1


@pytest.mark.slow
def test_it_forgets_what_no_longer_holds():
    """First everybody asks twice, the second time seven requests later, and never again; then it is
    regulars and passers-by. Whether prompts that are new come back has turned into its opposite."""
    twice = [(2000 + n, n) for n in range(750)]
    asked = sorted(
        (2 * place + 7 * again, who) for place, who in enumerate(twice) for again in (0, 1)
    )
    requests = trace_of([who for _, who in asked] + mixture(1, 3500, range(10, 16)))
    result = replay(requests, "served_demand")
    assert replayed(result, 750, 1500) < 0.1
    assert replayed(result, 1500, 2000) > 0.3  # it takes what it learnt for granted at first
    assert replayed(result, 4500) < 0.1


def test_nothing_is_kept_of_what_went():
    """Evicted snapshots are let go of, and what is remembered of positions is bounded."""

    def run(requests):
        index = PrefixIndex(
            BLOCK,
            block_bytes=2 * BLOCK,
            snapshot_bytes=10,
            budget=Budget(kv_bytes=400 * BLOCK, snapshot_bytes=80),
            policy=make_eviction("served_demand", COSTS, BLOCK),
        )
        session = CacheSession(index, Scheduling(tile=BLOCK, placement=parse_placement("sglang")))
        for request in requests:
            session.finish(session.begin(request.block_keys, request.total_tokens))
        return index

    def alive():
        gc.collect()
        return sum(isinstance(thing, Snapshot) for thing in gc.get_objects())

    before, sizes = alive(), []
    for count in (1500, 4500):  # more positions than are remembered, either way
        index = run(trace_of(mixture(0, count, range(6))))
        assert alive() - before == len(index.snapshots) == 8
        sizes.append(len(pickle.dumps(index.policy)))
        del index
    assert sizes[1] < 1.2 * sizes[0]


def test_a_cache_that_is_emptied_goes_on_like_a_new_one_that_has_learnt():
    """With all blocks and snapshots gone at once, nothing stale is served or asked for again."""
    policy = make_eviction("served_demand", COSTS, BLOCK)
    index = PrefixIndex(
        BLOCK,
        block_bytes=2 * BLOCK,
        snapshot_bytes=10,
        budget=Budget(kv_bytes=20 * BLOCK, snapshot_bytes=40),
        policy=policy,
    )
    session = CacheSession(index, Scheduling(tile=BLOCK, placement=parse_placement("every:2")))
    for request in trace_of(mixture(0, 200, range(3))):
        admission = session.begin(request.block_keys, request.total_tokens)
        session.finish(admission)
        if request.index % 20 == 19:
            for snapshot_id in list(index.snapshots):
                assert index.drop_snapshot(snapshot_id)
            assert policy.pick("snapshot") is None
        held = policy.pick("snapshot")
        assert held is None or index.snapshots[held.id] is held


@pytest.mark.parametrize("kind", ["kv", "snapshot", None])
def test_an_empty_cache_has_nothing_to_pick(kind):
    assert make_eviction("served_demand", COSTS, BLOCK).pick(kind) is None


SPELLED_OUT = DemandConstants(
    remembered=6, forget=0.98, kernel_buckets=1.5, prior_events=3.0, prior_hazard=0.15
)


def accounts(requests, eviction, snapshots=8):
    return [r.report for r in replay(requests, eviction, snapshots).requests]


def test_without_constants_it_takes_the_documented_ones():
    requests = trace_of(mixture(1, 300, range(6)))
    named, bare, spelled = (
        accounts(requests, eviction, 3)
        for eviction in ("served_demand", ServedDemand(BLOCK), ServedDemand(BLOCK, SPELLED_OUT))
    )
    assert named == bare == spelled


@pytest.mark.parametrize(
    "change",
    [{"forget": 0.5}, {"kernel_buckets": 6.0}, {"prior_events": 50.0}, {"prior_hazard": 1e-4}],
)
def test_each_constant_reaches_the_decisions(change):
    requests = trace_of(mixture(1, 300, range(6)))
    assert accounts(requests, ServedDemand(BLOCK, DemandConstants(**change)), 3) != accounts(
        requests, "served_demand", 3
    )


def test_fewer_positions_are_remembered_where_fewer_are_asked_for():
    def size(remembered):
        policy = ServedDemand(BLOCK, DemandConstants(remembered=remembered))
        replay(trace_of(mixture(0, 1500, range(6))), policy, snapshots=50)
        return len(policy._known)

    assert size(1) <= 1024 + 50 < size(12) <= 1024 + 600


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"remembered": 0}, "remembered must be at least 1, got 0"),
        ({"remembered": 2.5}, "remembered must be an integer, got 2.5"),
        ({"forget": 0.0}, "forget must be above 0 and at most 1, got 0.0"),
        ({"forget": 1.01}, "forget must be above 0 and at most 1, got 1.01"),
        ({"kernel_buckets": 13.0}, "kernel_buckets must be above 0 and at most 12, got 13.0"),
        ({"prior_events": float("inf")}, "prior_events must be above 0 and finite, got inf"),
        ({"prior_hazard": float("nan")}, "prior_hazard must be above 0 and at most 1, got nan"),
    ],
)
def test_a_constant_out_of_range_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        DemandConstants(**change)
