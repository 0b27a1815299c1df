"""The tile law: logits, states and KV depend on the tokens before a position alone, bit for bit."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.state import KVState, RecurrentState
from planner.schedule import Chunk, Schedule
from tests.hybrid.common import assert_same_bits

CAPACITY, TILE = 256, 32
VARIANTS = [
    ("float32", "xla"),
    ("float32", "pallas"),
    ("bfloat16", "xla"),
    ("bfloat16", "pallas"),
]
CORE_VARIANTS = [("float32", "xla"), ("bfloat16", "pallas")]


def schedule(total, ends, captures, start=0):
    """One chunk a cut; captures are dealt to the chunk that holds them."""
    ends = sorted({e for e in ends if start < e < total} | {total})
    chunks, at = [], start
    for end in ends:
        chunks.append(
            Chunk(at, end, ((at, end),), tuple(sorted(p for p in set(captures) if at < p <= end)))
        )
        at = end
    return Schedule(total, start, tuple(chunks))


def poisoned_workspace(runner):
    """A workspace whose every entry is NaN, so that a read of what nobody wrote shows."""

    return jax.tree.map(
        lambda leaf: jax.device_put(np.full(leaf.shape, poison(leaf.dtype), leaf.dtype)),
        runner.workspace_shapes,
    )


def poison(dtype):
    return 0x7FC0 if dtype == jnp.uint16 else np.nan  # 0x7FC0: the bits of a bf16 NaN


@functools.cache
def all_logits(runner):
    """The head over every kept row, compiled once a runner."""
    return jax.jit(lambda params, x: nnx.merge(runner.graphdef, params).head(x))


def observe(runner, result, total):
    """Everything that the law speaks of, on the host."""
    return {
        "last": np.asarray(result.logits),
        "logits": np.asarray(all_logits(runner)(runner.params, result.workspace.hidden))[:, :total],
        "kv": runner.read_rows(result.workspace, 0, total),
        "snapshots": jax.tree.map(np.asarray, result.snapshots),
        "end": jax.tree.map(np.asarray, result.end_state),
    }


def run(runner, tokens, plan, restored=0, snapshot=None, kv=None):
    workspace = poisoned_workspace(runner)
    if kv is not None:
        workspace = runner.load_rows(workspace, kv)
        # Loading pads its last piece with zeros; poison must remain beyond what was restored.
        states = tuple(
            KVState(*(_poison_from(x, restored) for x in (s.keys, s.values)))
            if isinstance(s, KVState)
            else s
            for s in workspace.states
        )
        workspace = dataclasses.replace(workspace, states=states)
    result = runner.prefill(
        runner.device_tokens(tokens), plan, workspace, restored=restored, snapshot=snapshot
    )
    return observe(runner, result, plan.total)


def _poison_from(buffer, row):
    rows = np.array(buffer)
    rows[:, :, row:] = poison(rows.dtype)
    return jax.device_put(rows)


def check_warm_equals_cold(runner, tokens, cold_ends, warm_ends, restore_tile, grid_tiles):
    total = len(tokens)
    grid = [tile * TILE for tile in grid_tiles if tile * TILE <= total]
    cold = run(runner, tokens, schedule(total, cold_ends, grid))
    assert sorted(cold["snapshots"]) == sorted(set(grid))
    rechunked = run(runner, tokens, schedule(total, warm_ends, grid))
    for what, value in cold.items():
        assert_same_bits(rechunked[what], value, f"rechunked {what}")
    restored = restore_tile * TILE
    if not 0 < restored < total:
        return
    at = run(runner, tokens, schedule(total, [], [restored]))["snapshots"][restored]
    kv = jax.tree.map(lambda x: x[:, :, :restored], cold["kv"])
    plan = schedule(total, warm_ends, [p for p in grid if p > restored], start=restored)
    warm = run(runner, tokens, plan, restored, at, kv)
    assert_same_bits(warm["last"], cold["last"], "last logits")
    assert_same_bits(warm["logits"][:, restored:], cold["logits"][:, restored:], "logits")
    assert_same_bits(warm["kv"], cold["kv"], "kv")
    assert_same_bits(warm["end"], cold["end"], "end state")
    for p, state in warm["snapshots"].items():
        assert_same_bits(state, cold["snapshots"][p], f"snapshot at {p}")


prompts = st.integers(1, CAPACITY).flatmap(
    lambda n: st.binary(min_size=n, max_size=n).map(lambda b: np.frombuffer(b, np.uint8))
)
cuts = st.lists(st.integers(1, CAPACITY), max_size=5)
tiles = st.integers(1, CAPACITY // TILE)


drawn = given(
    tokens=prompts, cold_ends=cuts, warm_ends=cuts, restore_tile=tiles, grid_tiles=st.sets(tiles)
)


@pytest.mark.parametrize(("dtype", "implementation"), CORE_VARIANTS)
@settings(max_examples=12)
@drawn
def test_warm_equals_cold(make_runner, dtype, implementation, **example):
    check_warm_equals_cold(make_runner(dtype, implementation), **example)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "implementation"), VARIANTS)
@settings(max_examples=150)
@drawn
def test_warm_equals_cold_at_length(make_runner, dtype, implementation, **example):
    check_warm_equals_cold(make_runner(dtype, implementation), **example)


@pytest.mark.parametrize("suffix", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_convolution_state_is_restored(make_runner, dtype, suffix):
    """Suffixes shorter than the convolution's reach still see its restored inputs."""
    tokens = np.random.default_rng(suffix).integers(0, 256, 2 * TILE + suffix)
    check_warm_equals_cold(make_runner(dtype), tokens, [], [], 2, [2])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_capacity_changes_no_bit(make_runner, dtype):
    tokens = np.random.default_rng(5).integers(0, 256, 150)
    plan = schedule(150, [40], [96])
    small = run(make_runner(dtype), tokens, plan)
    large = run(make_runner(dtype, capacity=512), tokens, plan)
    for what in ("last", "kv", "snapshots", "end", "logits"):
        assert_same_bits(large[what], small[what], what)


@pytest.mark.parametrize("planted", ["scan", "conv", "kv", "position"])
def test_planted_wrong_state_is_seen(make_runner, planted):
    """What the law's test compares does change when one restored thing is wrong."""
    runner, total, restored = make_runner(), 100, 64
    tokens = np.random.default_rng(7).integers(0, 256, total)
    cold = run(runner, tokens, schedule(total, [], [32, restored]))
    snapshot = cold["snapshots"][32 if planted == "position" else restored]
    kv = jax.tree.map(lambda x: np.array(x[:, :, :restored]), cold["kv"])
    if planted in ("scan", "conv"):
        first = snapshot[0]
        wrong = np.array(getattr(first, planted))
        wrong.flat[0] = wrong.flat[0] * 1.01 + 1e-3
        snapshot = (dataclasses.replace(first, **{planted: wrong}), *snapshot[1:])
    if planted == "kv":
        kv[0].values[0, 0, 5, 0] += 1e-2
    warm = run(runner, tokens, schedule(total, [], [], start=restored), restored, snapshot, kv)
    with pytest.raises(AssertionError):
        assert_same_bits(warm["last"], cold["last"], "last logits")


def test_dropped_layer_is_seen(make_runner):
    """Every stateful part matters to the last logits: dropping the state of any one is noticed."""
    runner, total, restored = make_runner(), 100, 64
    tokens = np.random.default_rng(8).integers(0, 256, total)
    cold = run(runner, tokens, schedule(total, [], [restored]))
    kv = jax.tree.map(lambda x: x[:, :, :restored], cold["kv"])
    for layer, state in enumerate(cold["snapshots"][restored]):
        dropped = RecurrentState(np.zeros_like(state.scan), np.zeros_like(state.conv))
        snapshot = tuple(
            dropped if i == layer else s for i, s in enumerate(cold["snapshots"][restored])
        )
        warm = run(runner, tokens, schedule(total, [], [], start=restored), restored, snapshot, kv)
        with pytest.raises(AssertionError):
            assert_same_bits(warm["last"], cold["last"], f"layer {layer}")
