"""The gated delta rule as a loop over tokens: the oracle, and the single step of decode."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels.precision import HIGHEST
from kernels.scan import Bounds, ScanResult, advance
from kernels.token_loop import token_loop


def gated_delta_token(
    state_BHKV: Float[Array, "B H K V"],
    q_BGK: Float[Array, "B G K"],
    k_BGK: Float[Array, "B G K"],
    v_BHV: Float[Array, "B H V"],
    g_BH: Float[Array, "B H"],
    beta_BH: Float[Array, "B H"],
    scale: float,
) -> tuple[Float[Array, "B H K V"], Float[Array, "B H V"]]:
    """One token: decay S, write beta (v - k S) at k, read scale q S; all in fp32."""
    repeats = v_BHV.shape[1] // k_BGK.shape[1]
    v_BHV, g_BH, beta_BH = (value.astype(jnp.float32) for value in (v_BHV, g_BH, beta_BH))
    q_BHK, k_BHK = (
        jnp.repeat(value.astype(jnp.float32), repeats, axis=1) for value in (q_BGK, k_BGK)
    )
    decay_BH11 = jnp.exp(g_BH)[..., None, None]
    found_BHV = jnp.einsum("bhk,bhkv->bhv", k_BHK, decay_BH11 * state_BHKV, precision=HIGHEST)
    write_BHV = beta_BH[..., None] * (v_BHV - found_BHV)
    increment_BHKV = k_BHK[..., None] * write_BHV[:, :, None, :]
    state_BHKV = advance(state_BHKV, (decay_BH11, increment_BHKV))
    y_BHV = scale * jnp.einsum("bhk,bhkv->bhv", q_BHK, state_BHKV, precision=HIGHEST)
    return state_BHKV, y_BHV


def gated_delta_reference(
    q_BTGK: Float[Array, "B T G K"],
    k_BTGK: Float[Array, "B T G K"],
    v_BTHV: Float[Array, "B T H V"],
    g_BTH: Float[Array, "B T H"],
    beta_BTH: Float[Array, "B T H"],
    scale: float,
    initial_state: Float[Array, "B H K V"],
    bounds: Bounds,
) -> ScanResult:
    """The scan token by token."""

    def token(state_BHKV: Array, rows: tuple[Array, ...]) -> tuple[Array, Array]:
        q_BGK, k_BGK, v_BHV, g_BH, beta_BH = rows
        return gated_delta_token(state_BHKV, q_BGK, k_BGK, v_BHV, g_BH, beta_BH, scale)

    return token_loop(token, (q_BTGK, k_BTGK, v_BTHV, g_BTH, beta_BTH), initial_state, bounds)
