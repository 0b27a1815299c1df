"""What each eviction policy promises, on caches small enough to work the victim out by hand.

Blocks have four tokens and prompts are words, a letter a block; a snapshot is named by the word
that its prefix spells. `Cache` has room for so many snapshots, and says which went.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs import AttentionCost, CostModel, prefill_flops
from planner.eviction import Budget
from planner.eviction_policies import EVICTIONS, FlopAware, make_eviction
from planner.placement import parse_placement
from planner.prefix_index import PrefixIndex
from planner.session import CacheSession, Scheduling
from tests.planner.small_traces import traces

BLOCK, BLOCK_BYTES, SNAPSHOT_BYTES = 4, 8, 10
COSTS = CostModel(1000, 100, (AttentionCost(10),), kv_bytes_per_token=2, snapshot_bytes=10)
EVERY_POLICY = pytest.mark.parametrize("name", sorted(EVICTIONS))


def keys_of(word):
    return np.array([ord(letter) for letter in word], dtype=np.int64)


class Cache:
    """An index with room for `snapshots`, or for `total_bytes` of blocks and snapshots together."""

    def __init__(self, policy, snapshots=None, total_bytes=None):
        policy = make_eviction(policy, COSTS, BLOCK) if isinstance(policy, str) else policy
        room = None if snapshots is None else snapshots * SNAPSHOT_BYTES
        self.index = PrefixIndex(
            BLOCK,
            block_bytes=BLOCK_BYTES,
            snapshot_bytes=SNAPSHOT_BYTES,
            budget=Budget(total_bytes=total_bytes, snapshot_bytes=room),
            policy=policy,
        )
        self.names = {}

    def hold(self, word, now):
        """Insert a word's blocks; the snapshots and the blocks that went."""
        evicted = self.index.insert(keys_of(word), now=now).evicted
        return [self.names[i] for i in evicted.snapshot_ids], evicted.num_blocks

    def capture(self, word, now, size=None):
        """Hold a word and a snapshot at its end; the snapshots that went."""
        self.hold(word, now)
        attachment = self.index.attach(keys_of(word), len(word) * BLOCK, num_bytes=size)
        if attachment.snapshot is not None:
            self.names[attachment.snapshot.id] = word
        return [self.names[i] for i in attachment.evicted.snapshot_ids]

    def restore(self, word, now):
        """Restore at the end of a word."""
        match = self.index.lookup(keys_of(word), len(word) * BLOCK + 1, now=now)
        assert self.names[match.snapshot.id] == word

    def held(self):
        return sorted(self.names[i] for i in self.index.snapshots)


@EVERY_POLICY
def test_the_registry_makes_a_fresh_policy_by_its_name(name):
    policy, other = (make_eviction(name, COSTS, BLOCK) for _ in range(2))
    assert policy.name == name
    assert policy is not other


@pytest.mark.parametrize("name", ["", "LRU", "nosuch"])
def test_an_unknown_name_is_told_what_there_is(name):
    with pytest.raises(ValueError, match="eviction must be one of") as raised:
        make_eviction(name, COSTS, BLOCK)
    assert f"got {name!r}" in str(raised.value)
    assert all(known in str(raised.value) for known in EVICTIONS)


def test_lru_goes_by_the_last_restore():
    cache = Cache("lru", 3)
    for now, word in enumerate(("a", "b", "c"), 1):
        cache.capture(word, now)
    cache.restore("a", 4)
    assert cache.capture("d", 5) == ["b"]  # a was used at 4, b at 2, c at 3


def test_three_measures_of_one_cache_choose_three_victims():
    """Recency, FLOPs a byte and length, each as a number from 0 to 1.

    ::

        snapshot  last use  recency  tokens from the state above  FLOPs from there      scaled
        abcd      1         0.0      8, from 8 to 16               8800 + 10 x 100        0.13
        ab        2         0.1      8, from 0 to 8                8800 + 10 x 36         0.00
        xyz       11        1.0      12, from 0 to 12              13200 + 10 x 78        1.00

    A query position costs ten for each of the keys up to its own: 1 + 2 + ... + 8 = 36 from 0 to 8,
    136 - 36 from 8 to 16.
    """
    spans = [prefill_flops(COSTS, *span) for span in ((8, 16), (0, 8), (0, 12))]
    assert spans == [9800, 9160, 13980]

    def filled(policy):
        cache = Cache(policy, 3)
        cache.capture("abcd", 1)
        cache.capture("ab", 2)
        cache.capture("xyz", 11)
        return cache

    assert filled("lru").capture("new", 11) == ["abcd"]
    # 0.0 + 0.0, 0.1 + 0.0, 1.0 + 1.0: of equal lengths the older goes
    assert filled("segment_length").capture("new", 11) == ["abcd"]
    # 0.0 + 0.13, 0.1 + 0.0, 1.0 + 1.0: computing up to abcd again costs more than up to ab
    assert filled("flop_aware").capture("new", 11) == ["ab"]
    # a weight of a half turns it: 0.0 + 0.07, 0.1 + 0.0
    assert filled(FlopAware(COSTS, alpha=0.5)).capture("new", 11) == ["abcd"]


def test_flop_aware_divides_by_bytes():
    """aa spares most FLOPs, 9160 against 4500, but fewest a byte, having four: 229 against 450."""
    cache = Cache("flop_aware", 6)
    cache.capture("aa", 1, size=4 * SNAPSHOT_BYTES)  # recency 0.0 + least a byte 0.0
    cache.capture("b", 2)  # recency 0.5 + most a byte 1.0; without the bytes 0.5 + 0.0
    cache.capture("c", 3)
    assert cache.capture("new", 4) == ["aa"]


@pytest.mark.parametrize("name", ["flop_aware", "segment_length"])
def test_old_but_long_outlives_newer_but_short(name):
    """Recency + length: long 0.0 + 1.0; s 0.5 + 0.0; other 1.0 + 1.0. LRU drops long."""
    cache = Cache(name, 3)
    cache.capture("longer", 1)
    cache.capture("s", 2)
    cache.capture("others", 3)
    assert cache.capture("new", 3) == ["s"]
    lru = Cache("lru", 3)
    for now, word in enumerate(("longer", "s", "others"), 1):
        lru.capture(word, now)
    assert lru.capture("new", 3) == ["longer"]


def test_coverage_drops_what_costs_least_replay_however_new():
    cache = Cache("coverage", 3)
    cache.capture("abc", 1)  # 12 tokens
    cache.capture("xy", 2)  # 8
    cache.capture("abcd", 3)  # 4 below abc: the least, though it is the newest
    assert cache.capture("new", 4) == ["abcd"]
    assert cache.capture("more", 5) == ["xy"]  # 12, 8, 12


def test_coverage_breaks_ties_by_age():
    cache = Cache("coverage", 3)
    for now, word in enumerate(("ab", "cd", "ef"), 1):
        cache.capture(word, now)
    cache.restore("ab", 4)
    assert cache.capture("new", 5) == ["cd"]  # all spare 8 tokens; cd was used longest ago


@pytest.mark.parametrize("name", ["flop_aware", "segment_length", "coverage"])
def test_what_a_neighbour_leaves_behind_is_weighed_anew(name):
    """A state spares more once the one above it is gone, though nothing touched it itself.

    ::

        abcd spares 4 tokens below abc, so it goes first: recency is the same for all of three, and
        the fourth spares 8. With abc dropped it spares 16, more than the 8 of xy.
    """
    cache = Cache(name, 3)
    cache.capture("abc", 1)
    cache.capture("abcd", 1)
    cache.capture("xy", 1)
    (above,) = (s for i, s in cache.index.snapshots.items() if cache.names[i] == "abc")
    assert make_room(name, "abc", "abcd", "xy") == ["abcd"]
    cache.index.drop_snapshot(above.id)
    cache.capture("pqr", 1)
    assert cache.capture("new", 1) == ["xy"]


def make_room(name, *words):
    """What goes where these were captured at one time and one more comes."""
    cache = Cache(name, len(words))
    for word in words:
        cache.capture(word, 1)
    return cache.capture("new", 1)


@pytest.mark.parametrize("name", sorted(set(EVICTIONS) - {"served_demand"}))
def test_the_first_of_equals_goes(name):
    assert make_room(name, "ab", "cd", "ef") == ["ab"]


def test_superseded_tails_go_before_older_ones_that_are_not():
    cache = Cache("superseded_first", 3)
    cache.capture("pq", 1)  # another conversation's last tail: the oldest
    cache.capture("ab", 2)
    cache.restore("ab", 3)
    cache.capture("abc", 3)  # the next turn, which does for all below ab
    assert cache.capture("new", 4) == ["ab"]
    assert cache.capture("more", 5) == ["pq"]  # nothing is superseded any more: by age


def test_a_state_that_branches_share_is_not_superseded():
    cache = Cache("superseded_first", 3)
    cache.capture("ab", 1)  # serves both branches
    cache.capture("abcd", 2)
    cache.hold("abxy", 3)  # a branch without a state of its own
    cache.capture("pq", 4)
    cache.restore("ab", 5)
    assert cache.capture("new", 6) == ["abcd"]  # by age: abcd 2, pq 4, ab 5


def test_a_hot_prefix_keeps_its_only_state_before_a_deeper_one_that_it_cannot_use():
    """Short prompts end inside the block after ab, so the tree shows no branch; restores do."""
    cache = Cache("superseded_first", 3)
    cache.capture("ab", 1)
    cache.capture("abcdef", 2)
    cache.restore("ab", 3)  # abcdef was there, and was of no use
    cache.capture("pq", 4)
    assert cache.capture("new", 5) == ["abcdef"]
    assert "ab" in cache.held()
    assert cache.capture("more", 6) == ["ab"]  # among the rest it is LRU: ab 3, pq 4, new 5


@EVERY_POLICY
def test_blocks_go_by_the_last_insert(name):
    cache = Cache(name, total_bytes=4 * BLOCK_BYTES)
    cache.hold("ab", 1)
    cache.hold("cd", 2)
    cache.hold("ab", 3)
    cache.hold("ef", 4)
    assert cache.index.lookup(keys_of("abz"), 13, touch=False).matched == 2 * BLOCK
    assert cache.index.lookup(keys_of("cdz"), 13, touch=False).matched == 0


@EVERY_POLICY
def test_the_older_of_the_two_front_runners_goes(name):
    """One budget for both kinds, full: 3 blocks of 8 bytes, a snapshot of 10; one block more."""
    cache = Cache(name, total_bytes=3 * BLOCK_BYTES + SNAPSHOT_BYTES)
    cache.hold("pq", 1)
    cache.capture("a", 2)
    assert cache.hold("x", 3) == ([], 1)  # blocks of 1 against a snapshot of 2
    cache = Cache(name, total_bytes=3 * BLOCK_BYTES + SNAPSHOT_BYTES)
    cache.capture("a", 1)
    cache.hold("pq", 2)
    cache.hold("a", 3)
    assert cache.hold("x", 4) == (["a"], 0)  # blocks of 2 against a snapshot of 1


@EVERY_POLICY
@given(
    requests=traces(max_requests=20, max_blocks=8),
    snapshots=st.integers(1, 6),
    blocks=st.integers(1, 12),
    shared=st.booleans(),
    concurrency=st.integers(1, 3),
)
def test_budgets_hold_and_nothing_in_use_goes(
    name, requests, snapshots, blocks, shared, concurrency
):
    kv_bytes, snapshot_bytes = blocks * BLOCK_BYTES, snapshots * SNAPSHOT_BYTES
    limit = kv_bytes + snapshot_bytes
    index = PrefixIndex(
        BLOCK,
        block_bytes=BLOCK_BYTES,
        snapshot_bytes=SNAPSHOT_BYTES,
        budget=Budget(limit) if shared else Budget(None, kv_bytes, snapshot_bytes),
        policy=make_eviction(name, COSTS, BLOCK),
    )
    session = CacheSession(index, Scheduling(tile=BLOCK, placement=parse_placement("every:1")))
    running = []
    for request in [*requests, *[None] * concurrency]:
        if len(running) == concurrency or (request is None and running):
            session.finish(running.pop(0))
            assert index.used_bytes <= limit
            assert shared or index.used_kv_bytes <= kv_bytes
            assert shared or index.used_snapshot_bytes <= snapshot_bytes
        if request is not None:
            running.append(session.begin(request.block_keys, request.total_tokens))
        for admission in running:  # what a run restored from, and its blocks, outlive the rest
            if admission.snapshot is not None:
                assert index.snapshots[admission.snapshot.id] is admission.snapshot
            index.block_ids(admission.keys, admission.matched // BLOCK)


@given(traces(max_requests=16, max_blocks=6), st.integers(1, 4))
def test_a_hot_prefix_keeps_its_only_state_in_every_trace(requests, snapshots):
    """What has been restored since the nearest deeper one came never goes while a deeper one that
    was used longer ago stays on its path: see `superseded_first`."""
    index = PrefixIndex(
        BLOCK,
        snapshot_bytes=SNAPSHOT_BYTES,
        budget=Budget(snapshot_bytes=snapshots * SNAPSHOT_BYTES),
        policy=make_eviction("superseded_first", COSTS, BLOCK),
    )
    session = CacheSession(index, Scheduling(tile=BLOCK, placement=parse_placement("every:1")))
    policy = index.policy
    drop = policy.gone

    def gone(victim):
        below = list(victim.below())
        if below and all(victim.last_use > deeper.created for deeper in below):
            assert all(deeper.pins or deeper.last_use >= victim.last_use for deeper in below)
        drop(victim)

    policy.gone = gone
    for request in requests:
        session.finish(session.begin(request.block_keys, request.total_tokens))
