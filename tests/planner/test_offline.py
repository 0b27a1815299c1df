from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.offline import Bound, offline_bound, offline_bounds
from planner.prefix_paths import PrefixPaths
from planner.trace import TraceRequest
from tests.planner.small_traces import longest_shared, make_trace, traces, word


def least_replay(
    requests: list[TraceRequest], slots: int, grid_blocks: int = 1, anywhere: bool = False
) -> int:
    """Every placement and every eviction tried: all sets of snapshots that can be held.

    `anywhere` lets a request capture on its whole path, else only above where it restores; which
    snapshot it restores from is a choice too.
    """
    held: dict[frozenset[str], int] = {frozenset(): 0}
    words: list[str] = []
    for request in requests:
        prompt = word(request)
        matched = min(longest_shared(prompt, words), request.match_limit_blocks)
        grid = range(grid_blocks, len(prompt) + 1, grid_blocks)
        after: dict[frozenset[str], int] = {}
        for snapshots, replayed in held.items():
            usable = {len(s) for s in snapshots if prompt[:matched].startswith(s)} | {0}
            for restored in usable:
                computed = {prompt[:p] for p in grid if anywhere or p > restored}
                cost = replayed + matched - restored
                pool = sorted(snapshots | computed)
                for size in range(min(slots, len(pool)) + 1):
                    for kept in map(frozenset, combinations(pool, size)):
                        after[kept] = min(after.get(kept, cost), cost)
        held = after
        words.append(prompt)
    return min(held.values()) * requests[0].block_size


@given(traces(max_requests=6), st.integers(1, 2), st.integers(1, 2))
@settings(max_examples=150)
def test_lies_below_every_run_and_is_the_relaxed_optimum(requests, slots, grid_blocks):
    paths = PrefixPaths(requests, grid_blocks * 4)
    (bound,) = offline_bounds(paths, [slots])
    assert bound.replayed_tokens == least_replay(requests, slots, grid_blocks, anywhere=True)
    best = least_replay(requests, slots, grid_blocks)
    assert bound.replayed_tokens <= best <= bound.achieved_tokens
    if bound.kind == "exact":
        assert bound.replayed_tokens == best


def test_a_snapshot_below_the_restored_one_costs_a_true_run_more():
    """The fourth prompt would restore at "a"; the third, restoring at "aab", cannot capture it."""
    requests = make_trace([("aabb", 0), ("aabab", 0), ("aabbb", 0), ("ab", 0)])
    bound = offline_bound(requests, budget_bytes=7, snapshot_bytes=7)
    assert bound.replayed_tokens < least_replay(requests, 1) <= bound.achieved_tokens
    assert bound.kind == "lower_bound"


def test_a_node_off_the_grid_is_no_place_to_restore():
    """With one slot, either pair meets at its second block; "a" alone would serve the other."""
    requests = make_trace([("aabb", 0), ("abab", 0), ("aabb", 0), ("abab", 0)])
    on_blocks, on_pairs = (offline_bound(requests, 1, 1, grid) for grid in (4, 8))
    assert on_blocks.replayed_tokens == least_replay(requests, 1, 1, anywhere=True) == 4 + 0 + 8
    assert on_pairs.replayed_tokens == least_replay(requests, 1, 2, anywhere=True) == 4 + 4 + 12


def test_with_room_for_all_nothing_is_replayed():
    requests = make_trace([("abab", 1), ("abb", 2), ("abab", 1), ("abbab", 0), ("abb", 2)])
    assert offline_bound(requests, 1000, 10) == Bound(
        slots=100,
        total_tokens=sum(r.total_tokens for r in requests),
        matched_tokens=4 * (2 + 4 + 3 + 3),
        replayed_tokens=0,
        achieved_tokens=0,
    )


@given(traces(max_requests=8, max_blocks=6))
def test_more_slots_never_replay_more_and_order_does_not_matter(requests):
    paths = PrefixPaths(requests)
    bounds = offline_bounds(paths, [3, 1, 2, 3])
    assert [b.slots for b in bounds] == [3, 1, 2, 3]
    assert bounds[1].replayed_tokens >= bounds[2].replayed_tokens >= bounds[0].replayed_tokens
    for bound in bounds:
        assert 0 <= bound.replayed_tokens <= bound.achieved_tokens <= bound.matched_tokens
        assert bound.recomputed_tokens == bound.total_tokens - (
            bound.matched_tokens - bound.replayed_tokens
        )


def test_a_budget_below_one_snapshot_is_refused():
    requests = make_trace([("ab", 0)])
    with pytest.raises(ValueError, match="must hold a snapshot of 100 bytes, got 99"):
        offline_bound(requests, 99, 100)
    with pytest.raises(ValueError, match="snapshot_bytes must be at least 1"):
        offline_bound(requests, 99, 0)
    with pytest.raises(ValueError, match="slots must be at least 1"):
        offline_bounds(PrefixPaths(requests), [0])
