"""Eviction that knows the future: hand-made choices, against every choice tried, and the bound."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.clairvoyant import Clairvoyant
from planner.costs import CostModel
from planner.eviction import Budget
from planner.eviction_policies import EVICTIONS, make_eviction
from planner.offline import offline_bounds
from planner.placement import parse_placement
from planner.prefix_paths import PrefixPaths
from planner.session import Scheduling
from planner.simulator import simulate
from tests.planner.small_traces import longest_shared, make_trace, traces, word

BLOCK = 4
COSTS = CostModel(1, 1, (), kv_bytes_per_token=1, snapshot_bytes=10)


def replay(requests, snapshots, eviction="clairvoyant", placement="last", grid=BLOCK, **options):
    if eviction == Clairvoyant.name:
        policy = Clairvoyant(PrefixPaths(requests, grid))
    else:
        policy = make_eviction(eviction, COSTS, BLOCK)
    return simulate(
        requests,
        Scheduling(tile=grid, placement=parse_placement(placement)),
        COSTS,
        budget=Budget(snapshot_bytes=10 * snapshots, **options),
        eviction=policy,
    )


def restored(result):
    return [request.report.restored // BLOCK for request in result.requests]


def test_it_keeps_what_comes_back_and_refuses_what_does_not():
    """One slot. LRU gives it to each newcomer; b and c never come back."""
    requests = make_trace([("aa", 1), ("bb", 1), ("cc", 1), ("aa", 1)])
    assert restored(replay(requests, 1, "lru")) == [0, 0, 0, 0]
    result = replay(requests, 1)
    assert restored(result) == [0, 0, 0, 2]
    assert [r.report.skipped_snapshots for r in result.requests] == [0, 1, 1, 0]


def test_soon_is_worth_more_than_late_and_long_more_than_short():
    """One slot, when b comes at 1: a would spare 2 blocks in 3 requests, b in 1. Then the reverse:
    a spares 6 blocks in 3 requests, b 1 block in 1."""
    soon = make_trace([("aa", 1), ("bb", 1), ("bb", 1), ("cc", 1), ("aa", 1)])
    assert restored(replay(soon, 1)) == [0, 0, 2, 0, 0]
    long = make_trace([("aaaaaa", 1), ("b", 1), ("b", 1), ("c", 1), ("aaaaaa", 1)])
    assert restored(replay(long, 1)) == [0, 0, 0, 0, 6]


def test_a_turn_takes_the_slot_of_the_one_before():
    """The newcomer spares one block over the state above it, which it leaves nobody to serve."""
    requests = make_trace([("aaaa", 1), ("aaaaa", 1), ("aaaaaa", 1), ("aaaaaaa", 1)])
    assert restored(replay(requests, 1)) == [0, 4, 5, 6]


def test_a_state_that_others_need_outlives_the_turn():
    """After ab come abx twice and aby once: ab serves all of them, abx two."""
    requests = make_trace([("ab", 1), ("abx", 1), ("aby", 1), ("abz", 1)])
    assert restored(replay(requests, 1)) == [0, 2, 2, 2]


def test_what_a_refused_newcomer_would_have_served_is_served_by_the_state_above():
    """abx is refused at 1: it would spare 1 block in 2 requests, ab 2 blocks in 3 for aby. Then ab
    serves abx too, in 1 request, so cccc, which would spare 4 in 3, is refused as well."""
    requests = make_trace([(w, 1) for w in ("ab", "abx", "cccc", "abx", "aby", "cccc")])
    assert restored(replay(requests, 1)) == [0, 2, 0, 2, 2, 0]


def least_by_eviction(requests, slots):
    """Every choice of what to keep after each request, where each captures its last boundary."""
    held, words = {frozenset(): 0}, []
    for request in requests:
        prompt = word(request)
        matched = min(longest_shared(prompt, words), request.match_limit_blocks)
        tail = prompt[: request.match_limit_blocks]
        after = {}
        for snapshots, replayed in held.items():
            usable = [len(s) for s in snapshots if prompt[:matched].startswith(s)]
            source = max(usable, default=0)
            pool = snapshots | ({tail} if len(tail) > source else set())
            options = [pool] if len(pool) <= slots else [pool - {one} for one in pool]
            for kept in options:
                cost = replayed + matched - source
                after[kept] = min(after.get(kept, cost), cost)
        held = after
        words.append(prompt)
    return min(held.values()) * BLOCK


@given(traces(max_requests=7, max_blocks=5), st.integers(1, 3))
@settings(max_examples=80)
def test_no_choice_of_evictions_is_beaten(requests, slots):
    replayed = replay(requests, slots).total("replayed")
    assert least_by_eviction(requests, slots) <= replayed
    if slots >= len(requests):
        assert replayed == least_by_eviction(requests, slots)


@given(
    requests=traces(max_requests=14, max_blocks=7),
    slots=st.integers(1, 4),
    placement=st.sampled_from(["last", "every:2", "sglang", "marconi", "tail|every:2"]),
    grid=st.sampled_from([BLOCK, 2 * BLOCK]),
)
@settings(max_examples=80)
def test_it_never_falls_below_the_bound(requests, slots, placement, grid):
    (bound,) = offline_bounds(PrefixPaths(requests, grid), [slots])
    result = replay(requests, slots, placement=placement, grid=grid)
    assert result.total("matched") == bound.matched_tokens
    assert result.total("replayed") >= bound.replayed_tokens


@given(traces(max_requests=12, max_blocks=6), st.integers(1, 3), st.integers(1, 8))
def test_it_runs_where_blocks_go_too(requests, slots, blocks):
    result = replay(requests, slots, placement="every:1", kv_bytes=blocks * BLOCK)
    for request in result.requests:
        assert request.report.restored <= request.report.matched


def test_on_a_mixture_it_is_ahead_of_every_policy_that_cannot_know():
    words = [f"{chr(97 + n % 7)}{chr(200 + n * n % 31)}{chr(400 + n % 5)}x" for n in range(120)]
    requests = make_trace([(text, 1) for text in words])
    known = replay(requests, 8, placement="sglang").total("replayed")
    for name in EVICTIONS:
        assert known < 0.9 * replay(requests, 8, name, "sglang").total("replayed"), name


def test_a_path_that_is_not_in_the_trace_is_refused():
    paths = PrefixPaths(make_trace([("abcd", 0), ("abx", 0)]))
    found = {
        text: paths.find(make_trace([(text, 0)])[0].block_keys) for text in ("ab", "abc", "abx")
    }
    assert paths.depth[found["ab"]] == 2 * BLOCK
    assert paths.depth[found["abc"]] == 3 * BLOCK  # where the last boundary of abcd lies
    assert found["abx"] == paths.end_node[1]
    for text in ("b", "abd", "abcde"):
        with pytest.raises(ValueError, match="no prompt of the trace starts with these"):
            paths.find(make_trace([(text, 0)])[0].block_keys)
