"""The diagonal recurrence as a loop over tokens: the oracle, and the single step of decode."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels.scan import Bounds, ScanResult, advance
from kernels.token_loop import token_loop


def linear_token(
    state_BM: Float[Array, "B M"], log_a_BM: Float[Array, "B M"], b_BM: Float[Array, "B M"]
) -> tuple[Float[Array, "B M"], Float[Array, "B M"]]:
    """One token: h = exp(log_a) h + b, y = h; all in fp32."""
    decay_BM = jnp.exp(log_a_BM.astype(jnp.float32))
    state_BM = advance(state_BM, (decay_BM, b_BM.astype(jnp.float32)))
    return state_BM, state_BM


def linear_reference(
    log_a_BTM: Float[Array, "B T M"],
    b_BTM: Float[Array, "B T M"],
    initial_state: Float[Array, "B M"],
    bounds: Bounds,
) -> ScanResult:
    """The scan token by token."""

    def token(state_BM: Array, rows: tuple[Array, Array]) -> tuple[Array, Array]:
        b_BM, log_a_BM = rows
        return linear_token(state_BM, log_a_BM, b_BM)

    return token_loop(token, (b_BTM, log_a_BTM), initial_state, bounds)
