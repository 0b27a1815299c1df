"""SSD against float64, at the ends of what decays, step sizes and lengths can be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.ssd import ssd_scan, ssd_step
from kernels.tolerance import tolerance


def _float64(x, dt, A, B, C, state):
    """The recurrence in numpy's float64, one group."""
    outputs = []
    for x_t, dt_t, B_t, C_t in zip(x[0], dt[0], B[0, :, 0], C[0, :, 0], strict=True):
        decay = np.exp(dt_t * A)[:, None, None]
        state = decay * state + (dt_t[:, None] * x_t)[:, :, None] * B_t[None, None, :]
        outputs.append(state @ C_t)
    return np.stack(outputs), state


def _inputs(length, log_decay, seed=0, heads=2, head_dim=4, state_dim=8):
    """float32 arrays whose dt A is `log_decay` (a number, or one a token)."""
    rng = np.random.default_rng(seed)

    def normal(*axes):
        return rng.normal(size=axes).astype(np.float32)

    A = -rng.uniform(0.5, 2, size=heads).astype(np.float32)
    dt = np.broadcast_to(np.asarray(log_decay).reshape(-1, 1), (length, heads)) / A
    return {
        "x": normal(1, length, heads, head_dim),
        "dt": dt[None].astype(np.float32),
        "A": A,
        "B": normal(1, length, 1, state_dim),
        "C": normal(1, length, 1, state_dim),
        "state": normal(1, heads, head_dim, state_dim),
    }


@functools.cache
def _compiled(implementation):
    return jax.jit(
        lambda inputs, state: ssd_scan(**inputs, initial_state=state, implementation=implementation)
    )


def _check(inputs, implementation):
    state = inputs.pop("state")
    length = inputs["x"].shape[1]
    result = _compiled(implementation)(jax.tree.map(jnp.asarray, inputs), jnp.asarray(state))
    wide = {name: value.astype(np.float64) for name, value in inputs.items()}
    y, final = _float64(*wide.values(), state[0].astype(np.float64))
    for found, expected in ((result.y[0], y), (result.final_state[0], final)):
        found = np.asarray(found)
        assert np.isfinite(found).all()
        error = np.abs(found - expected).max()
        assert error <= tolerance(jnp.float32, length) * np.abs(expected).max()


MIXED = np.where(np.arange(200) % 37 == 5, -3000.0, -1e-4)


@pytest.mark.parametrize("implementation", ["reference", "xla", "pallas"])
@pytest.mark.parametrize(
    "log_decay",
    [-50.0, -1e-6, -1e5, MIXED, np.where(np.arange(200) < 100, -50.0, -1e-6)],
    ids=["strong", "weak", "overflowing", "strong-among-weak", "strong-then-weak"],
)
def test_extreme_decays_agree_with_float64(log_decay, implementation) -> None:
    _check(_inputs(200, log_decay), implementation)


def test_what_follows_a_strong_decay_keeps_its_digits() -> None:
    """Plain running sums of -3000 would lose 1e-4 of every later decay: outside the tolerance."""
    inputs = _inputs(64, np.where(np.arange(64) == 0, -3000.0, -0.01))
    sums = np.cumsum((inputs["dt"][0] * inputs["A"]), axis=0, dtype=np.float32)
    exact = np.cumsum((inputs["dt"][0].astype(np.float64) * inputs["A"]), axis=0)
    lost = np.abs(np.exp(sums[-1] - sums[1]) - np.exp(exact[-1] - exact[1])).max()
    assert lost > 4 * tolerance(jnp.float32, 64)
    _check(inputs, "xla")


@pytest.mark.parametrize("implementation", ["xla", "pallas"])
def test_length_one(implementation) -> None:
    _check(_inputs(1, -0.1), implementation)


@pytest.mark.slow
def test_a_long_sequence_does_not_drift() -> None:
    rng = np.random.default_rng(1)
    length = 131_072
    _check(_inputs(length, -(10.0 ** rng.uniform(-5, 0, size=length))), "xla")


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_step_is_a_scan_of_one(dtype) -> None:
    inputs = {name: jnp.asarray(value) for name, value in _inputs(1, -0.3).items()}
    state = inputs.pop("state")
    inputs |= {name: inputs[name].astype(dtype) for name in ("x", "B", "C")}
    result = ssd_scan(**inputs, initial_state=state, implementation="reference")
    y, new_state = ssd_step(
        inputs["x"][:, 0],
        inputs["dt"][:, 0],
        inputs["A"],
        inputs["B"][:, 0],
        inputs["C"][:, 0],
        state,
    )
    assert y.dtype == dtype
    for found, expected in ((y, result.y[:, 0]), (new_state, result.final_state)):
        found, expected = (np.asarray(value, np.float64) for value in (found, expected))
        error = np.abs(found - expected).max()
        assert error <= tolerance(dtype, 1) * np.abs(expected).max()


@pytest.mark.parametrize("implementation", ["reference", "xla", "pallas"])
def test_bfloat16_inputs_keep_a_float32_state(implementation) -> None:
    """The state is the accumulator's: far finer than bf16 could hold."""
    inputs = {name: jnp.asarray(value) for name, value in _inputs(100, -0.01).items()}
    state = inputs.pop("state")
    inputs |= {name: inputs[name].astype(jnp.bfloat16) for name in ("x", "B", "C")}
    offsets = jnp.array([[64, 77]], jnp.int32)
    result = jax.jit(ssd_scan, static_argnames="implementation")(
        **inputs, initial_state=state, capture_offsets=offsets, implementation=implementation
    )
    assert result.y.dtype == jnp.bfloat16
    wide = {name: np.asarray(value, np.float64) for name, value in inputs.items()}
    _, final = _float64(*wide.values(), np.asarray(state[0], np.float64))
    error = np.abs(np.asarray(result.final_state[0]) - final).max()
    assert error <= tolerance(jnp.float32, 100) * np.abs(final).max()
    assert result.captured.dtype == jnp.float32
