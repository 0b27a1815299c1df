"""The prefill loop as a program: one trace, one call a pass, nothing that talks to the host;
off-grid restores."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.config import Compute
from hybrid.memory import InsufficientMemoryError
from hybrid.presets import preset
from hybrid.runner import ModelRunner
from hybrid.runner_config import RunnerConfig
from planner.schedule import Chunk, Schedule, plan_prefill

TILE, BLOCK = 32, 8


def one_chunk(total, captures=(), start=0):
    return Schedule(total, start, (Chunk(start, total, ((start, total),), tuple(captures)),))


def prompt(seed, total):
    return np.random.default_rng(seed).integers(0, 256, total)


def test_one_program_for_all_lengths_schedules_starts_and_captures(make_runner):
    runner = make_runner()
    workspace = runner.new_workspace()
    passes = 0
    calls = runner.calls["prefill"]
    for total in (1, 2, 31, 32, 33, 100, 255, 256):
        tokens = runner.device_tokens(prompt(total, total))
        for mode in ("planned", "chunk_end", "in_pass", "split", "off"):
            plan = plan_prefill(
                total,
                first_budget=65,
                budget=64,
                block_size=BLOCK,
                tile=TILE,
                interval=4,
                mode=mode,
            )
            with jax.transfer_guard("disallow"):
                result = runner.prefill(tokens, plan, workspace)
            workspace = result.workspace
            assert result.passes == len(plan.passes)
            assert sorted(result.snapshots) == list(plan.captures)
            passes += result.passes
    assert runner.traces["prefill"] == 1
    assert runner.calls["prefill"] - calls == passes


def test_hlo_talks_to_nobody(make_runner):
    runner = make_runner()
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    shapes = runner.shapes
    text = (
        runner._prefill.lower(
            runner.params,
            runner.workspace_shapes,
            jax.ShapeDtypeStruct((shapes.batch, shapes.capacity), jnp.int32),
            scalar,
            scalar,
            jax.ShapeDtypeStruct((shapes.capture_slots + 1,), jnp.int32),
        )
        .compile()
        .as_text()
    )
    assert "while" in text
    for word in ("infeed", "outfeed", "callback", "send(", "recv("):
        assert word not in text, word


def test_a_pass_with_more_captures_than_slots_is_run_as_several(make_runner):
    runner = ModelRunner(
        preset("tiny"),
        make_runner().compute,
        RunnerConfig(capacity=256, tile=TILE, block_size=BLOCK, capture_slots=2),
        params=make_runner().params,
    )
    captures = tuple(range(TILE, 256, TILE))
    tokens = runner.device_tokens(prompt(0, 256))
    few = runner.prefill(tokens, one_chunk(256, captures), runner.new_workspace())
    assert few.passes == 4
    many = make_runner().prefill(tokens, one_chunk(256, captures), make_runner().new_workspace())
    assert many.passes == 1
    for position in captures:
        jax.tree.map(
            np.testing.assert_array_equal, few.snapshots[position], many.snapshots[position]
        )


# Off the tile grid a restored state enters its tile as an initial state where a cold run carries it
# through rows of the same chunk, so sums associate differently. The bound is a few hundred fp32
# roundings of the largest logit.
OFF_GRID = 2e-4


@settings(max_examples=20)
@given(
    total=st.integers(2, 256),
    position=st.integers(1, 255),
    cut=st.integers(1, 255),
    seed=st.integers(0, 3),
)
def test_restores_inside_a_tile_are_close(make_runner, total, position, cut, seed):
    position = 1 + position % (total - 1)
    runner = make_runner(grid="block")
    tokens = runner.device_tokens(prompt(seed, total))
    cold = runner.prefill(tokens, one_chunk(total, [position]), runner.new_workspace())
    ends = sorted({total} | ({cut} if position < cut < total else set()))
    starts = [position, *ends[:-1]]
    plan = Schedule(
        total,
        position,
        tuple(Chunk(s, e, ((s, e),), ()) for s, e in zip(starts, ends, strict=True)),
    )
    kv = runner.read_rows(cold.workspace, 0, position)
    workspace = runner.load_rows(runner.new_workspace(), kv)
    warm = runner.prefill(
        tokens, plan, workspace, restored=position, snapshot=cold.snapshots[position]
    )
    top = float(np.abs(np.asarray(cold.logits)).max())
    np.testing.assert_allclose(warm.logits, cold.logits, rtol=0, atol=OFF_GRID * max(top, 1.0))
    for a, b in zip(jax.tree.leaves(warm.end_state), jax.tree.leaves(cold.end_state), strict=True):
        scale = max(float(np.abs(np.asarray(b)).max()), 1.0)
        np.testing.assert_allclose(a, b, rtol=0, atol=OFF_GRID * scale)
    kept = runner.read_rows(warm.workspace, 0, position)
    jax.tree.map(np.testing.assert_array_equal, kept, kv)


def test_captures_too_dense_for_the_grid_are_refused(make_runner):
    runner = make_runner()
    tokens = runner.device_tokens(prompt(0, 100))
    with pytest.raises(ValueError, match="expected at most 1 with the runner's grid 'tile'"):
        runner.prefill(tokens, one_chunk(100, [70, 80]), runner.new_workspace())


def test_a_snapshot_of_another_shape_is_refused(make_runner):
    runner = make_runner()
    tokens = runner.device_tokens(prompt(0, 100))
    result = runner.prefill(tokens, one_chunk(100, [64]), runner.new_workspace())
    wrong = jax.tree.map(lambda x: np.asarray(x)[..., :-1], result.snapshots[64])
    with pytest.raises(ValueError, match=r"prefill entry: state.*expected"):
        runner.prefill(
            tokens, one_chunk(100, start=64), result.workspace, restored=64, snapshot=wrong
        )


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.zeros(0, np.int32), "shape"),
        (np.zeros(257, np.int32), "1..256"),
        (np.array([0, 256]), "0..255"),
        (np.array([-1, 3]), "0..255"),
        (np.array([0.5]), "expected integers"),
        (np.array([True]), "expected integers"),
    ],
)
def test_bad_prompts_are_refused(make_runner, tokens, message):
    with pytest.raises(ValueError, match=message):
        make_runner().device_tokens(tokens)


def test_memory_is_checked_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr("hybrid.memory.available_bytes", lambda device: 2**20)
    monkeypatch.setattr("hybrid.runner.zeros", pytest.fail)
    with pytest.raises(InsufficientMemoryError, match=r"params .* MiB.*workspace .* MiB"):
        ModelRunner(preset("default"), Compute(), RunnerConfig(capacity=2**20))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decode_in_pieces_draws_the_same_tokens(make_runner, monkeypatch, temperature):
    """Few calls of many steps and many calls of few draw the same tokens."""
    runner = make_runner()
    tokens = prompt(3, 90)

    def draw():
        result = runner.prefill(runner.device_tokens(tokens), one_chunk(90), runner.new_workspace())
        return runner.decode(result, 90, 40, temperature=temperature, seed=4)[0]

    whole = draw()
    calls = runner.calls["decode"]
    monkeypatch.setattr(runner, "shapes", dataclasses.replace(runner.shapes, decode_steps=7))
    np.testing.assert_array_equal(whole, draw())
    assert runner.calls["decode"] - calls == 6
    if temperature:
        assert len(np.unique(whole)) > 5


def test_decode_follows_prefill(make_runner):
    """A greedy continuation agrees with the argmax of a prefill over prompt and continuation."""
    runner = make_runner()
    tokens = prompt(6, 60)
    result = runner.prefill(runner.device_tokens(tokens), one_chunk(60), runner.new_workspace())
    drawn, _ = runner.decode(result, 60, 6)
    for n in range(6):
        longer = np.concatenate([tokens, drawn[0, :n]])
        again = runner.prefill(
            runner.device_tokens(longer), one_chunk(60 + n), runner.new_workspace()
        )
        assert int(np.argmax(again.logits)) == drawn[0, n]


def test_static_forward_agrees_with_the_loop(make_runner):
    """The training forward and the prefill loop compute one function."""
    from flax import nnx

    runner = make_runner()
    tokens = prompt(9, 96)
    model = nnx.merge(runner.graphdef, runner.params)
    whole = jax.jit(lambda t: model(t))(jnp.asarray(tokens[None], jnp.int32))
    result = runner.prefill(runner.device_tokens(tokens), one_chunk(96), runner.new_workspace())
    np.testing.assert_allclose(result.logits, whole[:, -1], rtol=0, atol=2e-4)
