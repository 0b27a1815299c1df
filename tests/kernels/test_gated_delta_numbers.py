"""The gated delta rule against float64, where decays, strengths, keys and lengths are extreme."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.gated_delta import gated_delta_scan, gated_delta_step
from kernels.gated_delta.inverse import unit_lower_inverse, unit_lower_inverse_whole
from kernels.tolerance import tolerance

KEY_DIM, VALUE_DIM, HEADS = 8, 4, 2


def _inputs(length, g, beta, seed=0, distinct_keys=None):
    """float32 arrays of one row; `g` and `beta` are numbers or one a token."""
    rng = np.random.default_rng(seed)

    def unit(*axes):
        rows = rng.normal(size=(*axes, KEY_DIM))
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True)

    def every_head(value):
        return np.broadcast_to(np.asarray(value, float).reshape(-1, 1), (length, HEADS))[None]

    keys = unit(1, length, HEADS)
    if distinct_keys is not None:
        keys = unit(1, distinct_keys, HEADS)[:, rng.integers(distinct_keys, size=length)]
    arrays = {
        "q": unit(1, length, HEADS),
        "k": keys,
        "v": rng.normal(size=(1, length, HEADS, VALUE_DIM)),
        "g": every_head(g),
        "beta": every_head(beta),
        "state": rng.normal(size=(1, HEADS, KEY_DIM, VALUE_DIM)),
    }
    return {name: value.astype(np.float32) for name, value in arrays.items()}


def _float64(q, k, v, g, beta, state):
    """The recurrence in numpy's float64, with the matrix that the equation has."""
    outputs = []
    for q_t, k_t, v_t, g_t, beta_t in zip(q, k, v, g, beta, strict=True):
        erase = np.eye(KEY_DIM) - beta_t[:, None, None] * k_t[:, :, None] * k_t[:, None, :]
        write = (beta_t[:, None] * k_t)[:, :, None] * v_t[:, None, :]
        state = np.exp(g_t)[:, None, None] * (erase @ state) + write
        outputs.append(np.einsum("hk,hkv->hv", q_t, state))
    return np.stack(outputs), state


def _check(inputs, implementation, chunk=32, factor=1.0):
    state = jnp.asarray(inputs["state"])
    rows = {name: jnp.asarray(value) for name, value in inputs.items() if name != "state"}
    result = jax.jit(
        lambda rows, state: gated_delta_scan(
            **rows, scale=1.0, initial_state=state, chunk=chunk, implementation=implementation
        )
    )(rows, state)
    y, final = _float64(*(value[0].astype(np.float64) for value in inputs.values()))
    for found, expected in ((result.y[0], y), (result.final_state[0], final)):
        found = np.asarray(found)
        assert np.isfinite(found).all()
        error = np.abs(found - expected).max()
        assert error <= factor * tolerance(jnp.float32, y.shape[0]) * np.abs(expected).max()


MIXED = np.where(np.arange(200) % 37 == 5, -3000.0, -1e-4)


@pytest.mark.parametrize("implementation", ["reference", "xla", "pallas"])
@pytest.mark.parametrize(
    "g", [-50.0, -1e-6, -1e5, MIXED], ids=["strong", "weak", "overflowing", "strong-among-weak"]
)
def test_extreme_decays_agree_with_float64(g, implementation) -> None:
    _check(_inputs(200, g, 0.7), implementation)


@pytest.mark.parametrize("implementation", ["xla", "pallas"])
@pytest.mark.parametrize("beta", [1e-6, 1.0, 1.5, 1.999])
@pytest.mark.parametrize("distinct_keys", [1, 3])
def test_repeated_keys_agree_with_float64(distinct_keys, beta, implementation) -> None:
    """The triangular systems are then as far from the identity as they get.

    Near beta = 2 nothing in the system decays: a row of its inverse sums up to 2 x chunk terms of
    alternating sign, whose rounding errors the values alone do not show.
    """
    chunk = 64
    factor = np.sqrt(2 * chunk) if beta > 1.9 else 1.0
    inputs = _inputs(192, -1e-4, beta, distinct_keys=distinct_keys)
    _check(inputs, implementation, chunk, factor)


@pytest.mark.parametrize("implementation", ["xla", "pallas"])
def test_length_one(implementation) -> None:
    _check(_inputs(1, -0.1, 0.5), implementation)


@pytest.mark.slow
def test_a_long_sequence_does_not_drift() -> None:
    rng = np.random.default_rng(1)
    length = 131_072
    g = -(10.0 ** rng.uniform(-5, 0, size=length))
    _check(_inputs(length, g, rng.uniform(0, 2, size=length)), "xla")


@pytest.mark.parametrize("inverse", [unit_lower_inverse, unit_lower_inverse_whole])
@pytest.mark.parametrize("size", [8, 16, 64, 128])
def test_inverses_hold_where_powers_of_the_matrix_explode(size, inverse) -> None:
    """Equal keys with beta = 2: L is 2 below the diagonal, and its inverse alternates -2, 2."""
    lower = np.tril(np.full((size, size), 2.0), -1)
    expected = np.linalg.inv(np.eye(size) + lower)
    found = jax.jit(inverse)(jnp.asarray(lower, jnp.float32))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_product_of_powers_would_not_hold() -> None:
    """Why the inverse is not (I - L)(I + L^2)(I + L^4)...: in fp32 it is off by more than 1e6."""
    lower = jnp.tril(jnp.full((64, 64), 2.0), -1)
    power, product = lower, jnp.eye(64) - lower
    for _ in range(5):
        power = jnp.matmul(power, power, precision="highest")
        product = product + jnp.matmul(product, power, precision="highest")
    exact = np.linalg.inv(np.eye(64) + np.asarray(lower, np.float64))
    assert np.abs(np.asarray(product) - exact).max() > 1e6


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_step_is_a_scan_of_one(dtype) -> None:
    rows = {name: jnp.asarray(value) for name, value in _inputs(1, -0.3, 0.8).items()}
    state = rows.pop("state")
    rows |= {name: rows[name].astype(dtype) for name in ("q", "k", "v")}
    result = gated_delta_scan(**rows, initial_state=state, implementation="reference")
    y, new_state = jax.jit(gated_delta_step)(*(value[:, 0] for value in rows.values()), state)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, result.y[:, 0])
    np.testing.assert_array_equal(new_state, result.final_state)


@pytest.mark.parametrize("implementation", ["reference", "xla", "pallas"])
def test_bfloat16_inputs_keep_a_float32_state(implementation) -> None:
    """The state is the accumulator's: far finer than bf16 could hold."""
    wide = _inputs(100, -0.01, 0.9)
    rows = {name: jnp.asarray(value) for name, value in wide.items()}
    state = rows.pop("state")
    rows |= {name: rows[name].astype(jnp.bfloat16) for name in ("q", "k", "v")}
    result = gated_delta_scan(**rows, initial_state=state, implementation=implementation)
    exact = [np.asarray(value[0].astype(jnp.float32), np.float64) for value in rows.values()]
    _, final = _float64(*exact, wide["state"][0].astype(np.float64))
    error = np.abs(np.asarray(result.final_state[0]) - final).max()
    assert error <= tolerance(jnp.float32, 100) * np.abs(final).max()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"k": jnp.zeros((1, 4, 2, 8), jnp.bfloat16)}, TypeError, "expected one dtype for q, k, v"),
        ({"v": jnp.zeros((1, 4, 3, 4))}, ValueError, "g has shape"),
        ({"q": jnp.zeros((1, 4, 2, 9))}, ValueError, "k has shape"),
        ({"chunk": 24}, ValueError, "chunk is 24; expected one of"),
        ({"implementation": "cuda"}, ValueError, "implementation is 'cuda'"),
    ],
)
def test_wrong_arguments_are_named(change, error, message) -> None:
    rows = {name: jnp.asarray(value) for name, value in _inputs(4, -0.1, 0.5).items()}
    rows["initial_state"] = rows.pop("state")
    with pytest.raises(error, match=f"gated_delta_scan: .*{message}"):
        gated_delta_scan(**(rows | change))


def test_key_heads_have_to_divide_heads() -> None:
    rows = {name: jnp.asarray(value) for name, value in _inputs(4, -0.1, 0.5).items()}
    del rows["state"]
    three = {name: jnp.zeros((1, 4, 3, 8)) for name in ("q", "k")}
    with pytest.raises(ValueError, match="k has 3 heads; expected a divisor of v's 2"):
        gated_delta_scan(**(rows | three))
