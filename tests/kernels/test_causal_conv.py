"""What the causal convolution promises beyond the shared suite: starts, and steps."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from kernels.causal_conv import causal_conv, causal_conv_step
from kernels.tolerance import tolerance

BATCH, LENGTH, CHANNELS = 2, 12, 6


@jax.jit
def _run(x, weight, state, start, offsets, lengths):
    return causal_conv(
        x,
        weight,
        initial_state=state,
        start=start,
        capture_offsets=offsets,
        lengths=lengths,
        activation="silu",
    )


def _values(width, seed, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    return (
        jnp.asarray(rng.normal(size=(BATCH, LENGTH, CHANNELS)), dtype),
        jnp.asarray(rng.normal(size=(width, CHANNELS)), dtype),
        jnp.asarray(rng.normal(size=(BATCH, width - 1, CHANNELS)), dtype),
    )


@pytest.mark.parametrize("width", [2, 4])
@hypothesis.settings(max_examples=40)
@hypothesis.given(
    seed=st.integers(0, 99),
    starts=st.tuples(*[st.integers(0, LENGTH)] * BATCH),
    offset=st.integers(1, LENGTH),
)
def test_a_start_is_a_restore_in_the_middle(width, seed, starts, offset) -> None:
    """From the state at `start`, with rows below it masked, everything after has the same bits."""
    x, weight, state = _values(width, seed)
    start = jnp.array(starts, jnp.int32)
    lengths = jnp.full(BATCH, LENGTH, jnp.int32)
    offsets = jnp.full((BATCH, 1), offset, jnp.int32)
    nothing = jnp.zeros(BATCH, jnp.int32)
    whole = _run(x, weight, state, nothing, offsets, lengths)
    at_start = _run(x, weight, state, nothing, offsets, start).final_state
    below = np.arange(LENGTH)[None, :] < np.array(starts)[:, None]
    dirty = jnp.where(below[:, :, None], jnp.nan, x)
    restored = _run(dirty, weight, at_start, start, offsets, lengths)
    np.testing.assert_array_equal(restored.y, np.where(below[:, :, None], 0, whole.y))
    np.testing.assert_array_equal(restored.final_state, whole.final_state)
    reached = offset >= np.array(starts)
    np.testing.assert_array_equal(
        restored.captured, np.where(reached[:, None, None, None], whole.captured, 0)
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_steps_follow_the_scan(width, dtype) -> None:
    x, weight, state = _values(width, 3, dtype)
    scanned = causal_conv(x, weight, initial_state=state, activation="silu")
    for position in range(LENGTH):
        y, state = causal_conv_step(x[:, position], weight, None, state, activation="silu")
        assert y.dtype == dtype
        found, expected = (np.asarray(value, np.float64) for value in (y, scanned.y[:, position]))
        assert np.abs(found - expected).max() <= tolerance(dtype, width) * np.abs(expected).max()
    np.testing.assert_array_equal(state, scanned.final_state)


def test_against_numpy() -> None:
    x, weight, state = _values(4, 5)
    bias = jnp.arange(CHANNELS, dtype=jnp.float32)
    padded = np.concatenate([state, x], axis=1)
    expected = np.stack(
        [(padded[:, t : t + 4] * np.asarray(weight)).sum(axis=1) for t in range(LENGTH)], axis=1
    )
    found = causal_conv(x, weight, bias, initial_state=state).y
    np.testing.assert_allclose(found, expected + np.asarray(bias), rtol=1e-5, atol=1e-5)
