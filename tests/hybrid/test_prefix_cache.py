"""The memory tier's own pieces: digests, the working buffer, rows put together from blocks."""

import hashlib

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.prefix_cache import PrefixCache, WorkingBuffer
from hybrid.prefix_digests import block_digests, digest_keys, prefix_digests
from hybrid.state import KVState
from planner.eviction import Budget
from planner.session import Scheduling

TOKENS = st.lists(st.integers(0, 3), max_size=40).map(lambda x: np.array(x, np.int32))


@given(TOKENS, st.lists(st.integers(0, 40), max_size=5))
def test_prefix_digests(tokens, positions):
    positions = sorted({p for p in positions if p <= len(tokens)})
    expected = [hashlib.sha256(tokens[:p].astype("<i4").tobytes()).digest() for p in positions]
    assert prefix_digests(tokens, positions) == expected
    assert prefix_digests(tokens.astype(np.int64), positions) == expected
    blocks = block_digests(tokens, 4)
    assert blocks == prefix_digests(tokens, range(4, len(tokens) + 1, 4))
    keys = digest_keys(blocks)
    assert keys.dtype == np.int64
    assert [int(key) for key in keys] == [
        int.from_bytes(digest[:8], "little", signed=True) for digest in blocks
    ]


@given(TOKENS, TOKENS)
def test_agreement(held, prompt):
    buffer = WorkingBuffer(None)
    buffer.put("workspace", held)
    agreed = buffer.agreement(prompt)
    assert held[:agreed].tolist() == prompt[:agreed].tolist()
    assert agreed == min(len(held), len(prompt)) or held[agreed] != prompt[agreed]
    assert buffer.take() == "workspace"
    assert buffer.agreement(prompt) == 0


@pytest.fixture(scope="module")
def cache_of(make_runner):
    runner = make_runner()

    def build(budget_blocks=None):
        total = None
        if budget_blocks is not None:
            total = budget_blocks * build(None).index.block_bytes
        scheduling = Scheduling(tile=32, mode="off")
        return PrefixCache(runner, scheduling, Budget(total_bytes=total), None)

    return build


def reader(runner_shapes, prompt):
    """Rows whose every entry is the token at its position."""

    def read(start, end):
        def fill(leaf):
            shape = (*leaf.shape[:2], end - start, leaf.shape[3])
            tokens = prompt[start:end].astype(leaf.dtype)
            return np.broadcast_to(tokens[None, None, :, None], shape).copy()

        kv = tuple(s for s in runner_shapes if isinstance(s, KVState))
        return jax.tree.map(fill, kv)

    return read


@given(st.lists(st.integers(1, 256), min_size=1, max_size=6), st.data())
def test_rows_are_those_of_the_prompt(cache_of, make_runner, lengths, data):
    shapes = make_runner().state_shapes
    stream = np.arange(256, dtype=np.int32) % 251
    cache = cache_of(data.draw(st.sampled_from([None, 12, 40])))
    for number, length in enumerate(lengths):
        fork = data.draw(st.integers(0, length))
        prompt = np.concatenate([stream[:fork], 100 + number + stream[: length - fork] % 7])
        keys = cache.interner.keys(prompt)
        admission = cache.session.begin(keys, length)
        cache.keep(cache.session.finish(admission), {}, reader(shapes, prompt))
        assert cache.payload_bytes == (cache.index.used_kv_bytes, 0)
        held = cache.index.lookup(keys, length + 1, touch=False).matched
        if held:
            start = data.draw(st.integers(0, held - 1))
            end = data.draw(st.integers(start + 1, held))
            for leaf in jax.tree.leaves(cache.rows(keys, start, end)):
                assert leaf.shape[2] == end - start
                assert (leaf == prompt[None, None, start:end, None]).all()
