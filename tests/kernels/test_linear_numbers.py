"""The diagonal recurrence against float64, where decays and lengths are extreme."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.linear_scan import linear_scan, linear_step
from kernels.tolerance import tolerance


def _float64(log_a, b, state):
    states = []
    for log_a_t, b_t in zip(log_a, b, strict=True):
        state = np.exp(log_a_t) * state + b_t
        states.append(state)
    return np.stack(states)


def _check(log_a, implementation, chunk=None, channels=3):
    length = len(log_a)
    rng = np.random.default_rng(0)
    log_a = np.repeat(log_a[:, None], channels, axis=1).astype(np.float32)
    b = rng.normal(size=(length, channels)).astype(np.float32)
    state = rng.normal(size=channels).astype(np.float32)
    result = jax.jit(
        lambda log_a, b, state: linear_scan(
            log_a, b, initial_state=state, chunk=chunk, implementation=implementation
        )
    )(log_a[None], b[None], state[None])
    expected = _float64(*(value.astype(np.float64) for value in (log_a, b, state)))
    found = np.asarray(result.y[0])
    assert np.isfinite(found).all()
    assert np.abs(found - expected).max() <= tolerance(jnp.float32, length) * np.abs(expected).max()
    np.testing.assert_array_equal(result.final_state[0], found[-1])


FORMS = [("reference", None), ("xla", 1), ("xla", 32), ("xla", 1024), ("pallas", None)]
MIXED = np.where(np.arange(200) % 37 == 5, -3000.0, -1e-4)


@pytest.mark.parametrize(("implementation", "chunk"), FORMS)
@pytest.mark.parametrize(
    "log_a",
    [np.full(200, -50.0), np.full(200, -1e-6), np.full(200, -np.inf), MIXED, np.zeros(200)],
    ids=["strong", "weak", "all", "strong-among-weak", "none"],
)
def test_extreme_decays_agree_with_float64(log_a, implementation, chunk) -> None:
    _check(log_a, implementation, chunk)


@pytest.mark.parametrize(("implementation", "chunk"), FORMS)
def test_length_one(implementation, chunk) -> None:
    _check(np.array([-0.1]), implementation, chunk)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 256, 131_072])
def test_a_long_sequence_does_not_drift(chunk) -> None:
    _check(-(10.0 ** np.random.default_rng(1).uniform(-5, 0, size=131_072)), "xla", chunk)


def test_the_default_on_a_cpu_is_the_plain_loop() -> None:
    rng = np.random.default_rng(2)
    log_a = -jnp.asarray(rng.uniform(size=(2, 50, 6)), jnp.float32)
    b = jnp.asarray(rng.normal(size=(2, 50, 6)), jnp.float32)
    default, loop = linear_scan(log_a, b), linear_scan(log_a, b, chunk=1)
    np.testing.assert_array_equal(default.y, loop.y)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_step_is_a_scan_of_one(dtype) -> None:
    rng = np.random.default_rng(3)
    log_a = -jnp.asarray(rng.uniform(size=(2, 1, 4, 3)), jnp.float32)
    b = jnp.asarray(rng.normal(size=(2, 1, 4, 3))).astype(dtype)
    state = jnp.asarray(rng.normal(size=(2, 4, 3)), jnp.float32)
    result = linear_scan(log_a, b, initial_state=state, implementation="reference")
    y, new_state = jax.jit(linear_step)(log_a[:, 0], b[:, 0], state)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, result.y[:, 0])
    np.testing.assert_array_equal(new_state, result.final_state)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"log_a": jnp.zeros((1, 4, 3))}, ValueError, "log_a has shape"),
        ({"b": jnp.zeros((1, 4, 2), jnp.int32)}, TypeError, "b has dtype int32"),
        ({"initial_state": jnp.zeros((1, 3))}, ValueError, "initial_state has shape"),
        ({"chunk": 0}, ValueError, "chunk is 0; expected a positive int"),
        ({"implementation": "cuda"}, ValueError, "implementation is 'cuda'"),
    ],
)
def test_wrong_arguments_are_named(change, error, message) -> None:
    rows = {"log_a": jnp.zeros((1, 4, 2)), "b": jnp.zeros((1, 4, 2))}
    with pytest.raises(error, match=f"linear_scan: {message}"):
        linear_scan(**(rows | change))
