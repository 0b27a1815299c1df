"""The index against an oracle that is slow and plain, and what it promises case by case."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.eviction import Budget
from planner.prefix_index import AttachStatus, PrefixIndex
from planner.radix_tree import nodes
from planner.report import Reason
from tests.planner.index_oracle import Oracle

BLOCK, KV, SNAP = 4, 10, 25


def array(keys):
    return np.array(keys, np.int64)


prompts = st.lists(st.integers(0, 2), min_size=0, max_size=9).map(tuple)
exactness = st.sampled_from([True, True, True, False])
operations = st.lists(
    st.one_of(
        st.tuples(st.just("request"), prompts, exactness, st.lists(st.integers(1, 38), max_size=3)),
        st.tuples(st.just("lookup"), prompts, exactness, st.integers(0, 3)),
        st.tuples(st.just("insert"), prompts, exactness),
        st.tuples(st.just("attach"), prompts, exactness, st.integers(1, 38)),
        st.tuples(st.just("pin"), prompts, exactness),
        st.tuples(st.just("unpin"), st.integers(0, 5)),
    ),
    max_size=40,
)
budgets = st.sampled_from(
    [
        Budget(),
        Budget(total_bytes=60),
        Budget(total_bytes=137),
        Budget(total_bytes=260),
        Budget(kv_bytes=95, snapshot_bytes=60),
        Budget(snapshot_bytes=50),
        Budget(kv_bytes=120),
        Budget(total_bytes=150, kv_bytes=100, snapshot_bytes=75),
        Budget(total_bytes=0),
    ]
)


def paths(index):
    """Every block held, as its prefix, with its exact mark and id."""
    held = {}
    stack = [(index.root, ())]
    while stack:
        node, prefix = stack.pop()
        for offset, key in enumerate(node.keys.tolist()):
            prefix = (*prefix, key)
            held[prefix] = (offset < node.num_exact, int(node.ids[offset]))
        for child in node.children.values():
            assert child.parent is node
            assert child.start == node.end
            stack.append((child, prefix))
    return held


class Pair:
    """The index and the oracle, side by side."""

    def __init__(self, budget):
        self.budget = budget
        self.index = PrefixIndex(
            BLOCK, block_bytes=KV, snapshot_bytes=SNAP, budget=budget, remembered_evictions=50
        )
        unlimited = float("inf")
        limits = (budget.total_bytes, budget.kv_bytes, budget.snapshot_bytes)
        self.oracle = Oracle(
            BLOCK, KV, SNAP, *(unlimited if limit is None else limit for limit in limits)
        )
        self.pins = []
        self.block_ids = set()
        self.snapshot_ids = set()

    def apply_events(self, evicted):
        went = list(evicted.each_block())
        assert len(went) == len(set(went)) == evicted.num_blocks
        assert self.block_ids >= set(went)
        assert self.snapshot_ids >= set(evicted.snapshot_ids)
        self.block_ids -= set(went)
        self.snapshot_ids -= set(evicted.snapshot_ids)
        assert evicted.kv_bytes == KV * len(went)
        assert evicted.snapshot_bytes == SNAP * len(evicted.snapshot_ids)

    def lookup(self, keys, exact, rest):
        total = len(keys) * BLOCK + rest
        match = self.index.lookup(array(keys), total, exact=exact)
        matched, best = self.oracle.lookup(keys, total, exact)
        assert match.matched == matched
        assert match.restored == (best.position if best else 0)
        return match, best

    def insert(self, keys, exact):
        inexact = {p for p, (good, _) in paths(self.index).items() if not good}
        insertion = self.index.insert(array(keys), exact=exact)
        held, new = self.oracle.insert(keys, exact)
        self.apply_events(insertion.evicted)
        assert (insertion.first_block, len(insertion.block_ids)) == (held, new)
        assert insertion.skipped_blocks == len(keys) - held - new
        self.block_ids |= set(insertion.block_ids.tolist())
        upgraded = {
            keys[: start + i + 1]
            for start, ids in insertion.upgraded
            for i, _ in enumerate(ids.tolist())
        }
        assert upgraded == ({p for p in inexact if p == keys[: len(p)]} if exact else set())

    def attach(self, keys, exact, position):
        attachment = self.index.attach(array(keys), position, exact=exact)
        assert attachment.status == self.oracle.attach(keys, position, exact)
        self.apply_events(attachment.evicted)
        self.snapshot_ids.discard(attachment.replaced_id)
        if attachment.status == AttachStatus.ATTACHED:
            self.snapshot_ids.add(attachment.snapshot.id)

    def pin(self, keys, exact):
        match, best = self.lookup(keys, exact, 1)
        blocks = match.matched // BLOCK
        self.oracle.pins.append(keys[:blocks])
        if best:
            best.pins += 1
        pin = self.index.pin(array(keys), blocks, match.snapshot)
        self.pins.append((pin, keys[:blocks], best))

    def unpin(self, which):
        if self.pins:
            pin, prefix, best = self.pins.pop(which % len(self.pins))
            self.index.unpin(pin)
            self.oracle.pins.remove(prefix)
            if best:
                best.pins -= 1
                # the policy sees it as new, so it queues behind its equals
                self.oracle.order += 0 if best.pins else 1
                best.order = best.order if best.pins else self.oracle.order

    def request(self, keys, exact, positions):
        self.lookup(keys, exact, 1)
        self.insert(keys, exact)
        for position in positions:
            self.attach(keys, exact, position)

    def check(self):
        index, oracle = self.index, self.oracle
        held = paths(index)
        assert {p: exact for p, (exact, _) in held.items()} == {
            p: exact for p, (exact, _) in oracle.blocks.items()
        }
        assert {block_id for _, block_id in held.values()} == self.block_ids
        assert set(index.snapshots) == self.snapshot_ids
        listed = [s for node in [index.root, *nodes(index.root)] for s in node.snapshots]
        assert {s.id for s in listed} == set(index.snapshots)
        for node in nodes(index.root):
            assert node.positions == [s.position for s in node.snapshots] == sorted(node.positions)
            assert all(node.start * BLOCK < p <= node.end * BLOCK for p in node.positions)
            assert all(s.node is node for s in node.snapshots)
        for node in [index.root, *nodes(index.root)]:
            below = {k: [child, *nodes(child)] for k, child in node.children.items()}
            assert node.holding == {
                key: node.children[key]
                for key, there in below.items()
                if any(found.snapshots for found in there)
            }
        mine = sorted((s.position, s.exact, s.last_use, s.hits, s.pins) for s in listed)
        theirs = sorted(
            (s.position, s.exact, s.last_use, s.hits, s.pins) for s in oracle.snapshots.values()
        )
        assert mine == theirs
        assert index.used_kv_bytes == KV * len(held)
        assert index.used_snapshot_bytes == SNAP * len(listed)
        budget = self.budget
        for used, limit in [
            (index.used_bytes, budget.total_bytes),
            (index.used_kv_bytes, budget.kv_bytes),
            (index.used_snapshot_bytes, budget.snapshot_bytes),
        ]:
            assert limit is None or used <= limit


def run(budget, script):
    pair = Pair(budget)
    for name, *arguments in script:
        getattr(pair, name)(*arguments)
        pair.check()
    return pair


@settings(max_examples=150)
@given(budgets, operations)
def test_the_index_is_the_oracle(budget, script):
    run(budget, script)


@pytest.mark.slow
@settings(max_examples=4000)
@given(budgets, operations)
def test_the_index_is_the_oracle_at_length(budget, script):
    run(budget, script)


def full(**options):
    return PrefixIndex(BLOCK, block_bytes=KV, snapshot_bytes=SNAP, **options)


def test_the_match_is_capped_below_the_last_token():
    index = full()
    keys = array([1, 2, 3])
    index.insert(keys)
    assert index.lookup(keys, 12).matched == 8
    assert index.lookup(keys, 13).matched == 12


def test_a_snapshot_off_the_grid_needs_the_block_that_it_lies_in():
    index = full()
    keys = array([1, 2, 3])
    index.insert(keys)
    assert index.attach(keys, 5).status == AttachStatus.ATTACHED
    assert index.lookup(array([1, 9]), 9).restored == 0
    assert index.lookup(array([1, 2, 9]), 13).restored == 5
    assert index.attach(keys, 13).status == AttachStatus.BEYOND_PATH


def test_block_ids_survive_a_split():
    index = full()
    keys = array([1, 2, 3, 4])
    ids = index.insert(keys).block_ids
    index.insert(array([1, 2, 7]))
    assert index.block_ids(keys, 4).tolist() == ids.tolist()
    with pytest.raises(ValueError, match="num_blocks"):
        index.block_ids(array([1, 5]), 2)


def reason(index, keys, total, **options):
    return index.lookup(array(keys), total, **options).reason


def test_reasons():
    index = full(restore_grid_tokens=8, budget=Budget(snapshot_bytes=2 * SNAP, kv_bytes=6 * KV))
    prompt = [1, 2, 3, 4]
    assert reason(index, [1], 7) == Reason.TOO_SHORT
    assert reason(index, prompt, 17) == Reason.COLD
    index.insert(array(prompt))
    assert reason(index, prompt, 17) == Reason.NO_SNAPSHOT_BELOW_MATCH
    assert reason(index, [1, 9, 9], 13) == Reason.TOO_SHORT
    index.attach(array(prompt), 8)
    assert reason(index, prompt, 17) == Reason.PARTIAL
    assert reason(index, prompt, 14) == Reason.HIT
    assert reason(index, [1, 2, 9], 13) == Reason.HIT
    index.attach(array(prompt), 16, exact=False)
    assert reason(index, prompt, 17) == Reason.INEXACT_ONLY
    assert reason(index, prompt, 17, exact=False) == Reason.HIT
    index.attach(array(prompt), 16)
    assert reason(index, prompt, 17) == Reason.HIT
    index.attach(array(prompt), 4)
    assert 8 not in [s.position for s in index.snapshots.values()]
    assert reason(index, prompt, 13) == Reason.EVICTED
    index.insert(array([5, 6, 7, 8, 9, 10]))
    assert reason(index, prompt, 17) == Reason.EVICTED
    assert reason(index, [3, 4, 5], 13) == Reason.COLD


def test_inexact_blocks_never_serve_an_exact_request():
    index = full()
    index.insert(array([1, 2]))
    index.insert(array([1, 2, 3, 4]), exact=False)
    index.attach(array([1, 2, 3, 4]), 16, exact=False)
    assert index.attach(array([1, 2, 3, 4]), 16).status == AttachStatus.INEXACT_PATH
    match = index.lookup(array([1, 2, 3, 4]), 17)
    assert (match.matched, match.restored, match.reason) == (8, 0, Reason.INEXACT_ONLY)
    assert index.lookup(array([1, 2, 3, 4]), 17, exact=False).restored == 16
    insertion = index.insert(array([1, 2, 3, 4]))
    assert [(start, len(ids)) for start, ids in insertion.upgraded] == [(2, 2)]
    assert index.lookup(array([1, 2, 3, 4]), 17).matched == 16


def test_memory_of_evictions_is_bounded():
    index = full(budget=Budget(kv_bytes=KV), remembered_evictions=3)
    for key in range(10):
        index.insert(array([key]))
    assert [reason(index, [key], 5) for key in range(10)] == [
        *[Reason.COLD] * 6,
        *[Reason.EVICTED] * 3,
        Reason.NO_SNAPSHOT_BELOW_MATCH,
    ]


def test_a_pin_may_be_released_once_and_covers_what_is_held():
    index = full()
    index.insert(array([1, 2]))
    pin = index.pin(array([1, 2]), 2)
    index.unpin(pin)
    with pytest.raises(ValueError, match="released"):
        index.unpin(pin)
    with pytest.raises(ValueError, match="num_blocks"):
        index.pin(array([1, 2, 3]), 3)
    snapshot = index.attach(array([1, 2]), 8).snapshot
    with pytest.raises(ValueError, match="position"):
        index.pin(array([1, 2]), 1, snapshot)
    assert index.drop_snapshot(snapshot.id)
    assert not index.drop_snapshot(snapshot.id)
    with pytest.raises(ValueError, match="not held"):
        index.pin(array([1, 2]), 2, snapshot)


def test_a_pin_outlives_a_split_where_it_ends():
    index = full(budget=Budget(kv_bytes=4 * KV))
    index.insert(array([1, 2, 3, 4]))
    pin = index.pin(array([1, 2, 3, 4]), 2)
    index.insert(array([1, 2, 7]))
    index.insert(array([5, 6, 7, 8]))
    assert index.lookup(array([1, 2, 7]), 17 - 4).matched == 8
    index.unpin(pin)
    index.insert(array([5, 6, 7, 9]))
    index.insert(array([4, 5, 6, 7]))
    assert index.lookup(array([1, 2, 7]), 17 - 4).matched == 0


def test_superseded_and_gap():
    index = full()
    a, b = array([1, 2, 3, 4]), array([1, 2, 3, 9])
    index.insert(a)
    first, second, third = (index.attach(a, p).snapshot for p in (4, 12, 16))
    assert [s.superseded for s in (first, second, third)] == [True, True, False]
    assert [s.gap_tokens for s in (first, second, third)] == [4, 8, 4]
    index.insert(b)
    assert [s.superseded for s in (first, second, third)] == [True, False, False]
    fourth = index.attach(b, 16).snapshot
    assert sorted(s.id for s in second.below()) == sorted([third.id, fourth.id])
    assert fourth.above() is second


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda i: i.lookup(array([1]), 9), "keys"),
        (lambda i: i.lookup(array([1]), -1), "total"),
        (lambda i: i.lookup(np.array([1.0]), 4), "keys"),
        (lambda i: i.insert(np.array([[1]])), "keys"),
        (lambda i: i.attach(array([1]), 0), "position"),
        (lambda i: i.attach(array([1]), 4.0), "position"),
        (lambda i: PrefixIndex(0), "block_size"),
        (lambda i: PrefixIndex(4, block_bytes=-1), "block_bytes"),
        (lambda i: Budget(total_bytes=1.5), "total_bytes"),
        (lambda i: Budget(kv_bytes=-1), "kv_bytes"),
    ],
)
def test_bad_arguments_are_named(call, named):
    with pytest.raises(ValueError, match=named):
        call(full())
