import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.traces import read_trace, trace_requests
from planner.prefix_paths import PrefixPaths, restored_by_interval, restored_by_tails
from planner.trace import TraceRequest
from tests.planner.small_traces import longest_shared, make_trace, traces, word
from tests.shared_data import shared_trace


def spelled(paths: PrefixPaths, node: int, requests: list[TraceRequest]) -> set[str]:
    """The words up to a node, by every request whose path runs through it."""
    found = set()
    for request, end in zip(requests, paths.end_node, strict=True):
        if node in (0, *paths.upward(end)):
            found.add(word(request)[: paths.depth[node] // paths.block_size])
    return found


@given(traces(max_requests=8, max_blocks=6), st.sampled_from([4, 8, 12]))
@settings(max_examples=200)
def test_matches_are_the_longest_common_prefix_with_any_earlier_prompt(requests, grid):
    paths = PrefixPaths(requests, grid)
    words = [word(r) for r in requests]
    for i, request in enumerate(requests):
        shared = longest_shared(words[i], words[:i])
        matched = 4 * min(shared, (request.total_tokens - 1) // 4)
        assert paths.matched[i] == matched
        assert paths.depth[paths.match_node[i]] == matched // grid * grid
        assert paths.depth[paths.end_node[i]] == 4 * len(words[i])
        assert paths.depth[paths.tail_node[i]] == (request.total_tokens - 1) // 4 * 4
        upward = set(paths.upward(paths.end_node[i])) | {0}
        assert {paths.match_node[i], paths.tail_node[i]} <= upward
    for node in range(len(paths.parent)):
        assert len(spelled(paths, node, requests)) == 1
    for one in range(1, len(paths.parent)):
        assert paths.depth[one] > paths.depth[paths.parent[one]]


@given(traces(max_requests=8, max_blocks=6), st.integers(1, 20))
def test_restores_are_counted_as_a_list_of_prefixes_counts_them(requests, interval):
    by_interval = by_tail = 0
    words: list[str] = []
    tails: list[str] = []
    for request in requests:
        limit = (request.total_tokens - 1) // 4
        matched = min(longest_shared(word(request), words), limit)
        by_interval += matched * 4 // interval * interval
        prefix = word(request)[:matched]
        by_tail += 4 * max((len(t) for t in tails if prefix.startswith(t)), default=0)
        words.append(word(request))
        tails.append(word(request)[:limit])
    paths = PrefixPaths(requests)
    assert restored_by_interval(paths, interval) == by_interval
    assert restored_by_tails(paths) == by_tail


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="no requests"):
        PrefixPaths([])
    requests = make_trace([("ab", 0), ("ab", 1)])
    with pytest.raises(ValueError, match="grid must be a multiple of block_size = 4, got 6"):
        PrefixPaths(requests, 6)
    with pytest.raises(ValueError, match="out of order"):
        PrefixPaths(requests[::-1])
    with pytest.raises(ValueError, match="interval_tokens must be at least 1"):
        restored_by_interval(PrefixPaths(requests), 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "prompts", "tokens", "first", "shares", "tails"),
    [
        (
            "mooncake/conversation_trace.jsonl.gz",
            12_031,
            144_793_823,
            512,
            (0.3734, 0.3396, 0.3210, 0.2912, 0.2397, 0.1667, 0.0828),
            0.3497,
        ),
        (
            "weka/sessions.ranges.jsonl.gz",
            24_015,
            3_012_680_174,
            64,
            (0.9631, 0.9613, 0.9593, 0.9553, 0.9473, 0.9310, 0.8981, 0.8341),
            0.9565,
        ),
    ],
)
def test_an_infinite_cache_restores_the_shares_counted_elsewhere(
    name, prompts, tokens, first, shares, tails
):
    paths = PrefixPaths(trace_requests(read_trace(shared_trace(name))))
    assert (len(paths), paths.total.sum()) == (prompts, tokens)
    intervals = sorted({first, *(512 << power for power in range(7))})
    counted = [restored_by_interval(paths, interval) / tokens for interval in intervals]
    assert counted == pytest.approx(shares, abs=1e-4)
    assert restored_by_tails(paths) / tokens == pytest.approx(tails, abs=1e-4)
