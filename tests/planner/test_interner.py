"""Keys of token blocks: exact names, forgotten when nobody holds them, never used again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.eviction import Budget
from planner.interner import BlockInterner
from planner.prefix_index import PrefixIndex

BLOCK = 4


@given(st.lists(st.lists(st.integers(0, 1), max_size=12), max_size=30))
def test_interned_keys_are_equal_exactly_where_blocks_are(prompts):
    interner = BlockInterner(3, lambda: np.empty(0, np.int64))
    named = {}
    for prompt in prompts:
        keys = interner.keys(np.array(prompt, np.int32))
        assert len(keys) == len(prompt) // 3
        for i, key in enumerate(keys.tolist()):
            assert named.setdefault(tuple(prompt[3 * i : 3 * i + 3]), key) == key
    assert len(set(named.values())) == len(named) == len(interner)


def test_the_interner_forgets_what_nobody_holds_and_never_reuses_a_key():
    index = PrefixIndex(BLOCK, block_bytes=10, budget=Budget(kv_bytes=200))
    interner = BlockInterner(BLOCK, index.live_keys, slack=50)
    seen = {}
    for step in range(1500):
        tokens = np.arange(step, step + 40)
        keys = interner.keys(tokens)
        for i, key in enumerate(keys.tolist()):
            assert seen.setdefault(key, tokens[4 * i]) == tokens[4 * i]
        index.insert(keys)
        assert index.lookup(interner.keys(tokens), 40).matched == 36
        assert len(interner) < 300
    with pytest.raises(ValueError, match="tokens"):
        interner.keys(np.array([1.5]))


def test_a_collection_spares_the_keys_of_a_running_request():
    interner = BlockInterner(1, lambda: np.empty(0, np.int64), slack=10)
    old = interner.keys(np.arange(1000, 1020))
    running = interner.keys(np.arange(5))  # collects; keeps what was named just before
    interner.keys(np.arange(2000, 2020))
    assert interner.keys(np.arange(5)).tolist() == running.tolist()  # collects
    assert len(interner) == 25
    assert set(interner.keys(np.arange(1000, 1020)).tolist()).isdisjoint(old.tolist())
