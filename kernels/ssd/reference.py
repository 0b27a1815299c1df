"""SSD as a loop over tokens: the oracle, and the single step of decode."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels.precision import HIGHEST
from kernels.scan import Bounds, ScanResult, advance
from kernels.token_loop import token_loop


def ssd_token(
    state_BHPN: Float[Array, "B H P N"],
    x_BHP: Float[Array, "B H P"],
    dt_BH: Float[Array, "B H"],
    A_H: Float[Array, " H"],
    B_BGN: Float[Array, "B G N"],
    C_BGN: Float[Array, "B G N"],
) -> tuple[Float[Array, "B H P N"], Float[Array, "B H P"]]:
    """One token: h = exp(dt A) h + dt x B^T, y = h C; all in fp32."""
    repeats = x_BHP.shape[1] // B_BGN.shape[1]
    x_BHP, dt_BH, A_H = (value.astype(jnp.float32) for value in (x_BHP, dt_BH, A_H))
    B_BHN, C_BHN = (
        jnp.repeat(value.astype(jnp.float32), repeats, axis=1) for value in (B_BGN, C_BGN)
    )
    decay_BH = jnp.exp(dt_BH * A_H[None, :])
    increment_BHPN = (dt_BH[..., None] * x_BHP)[..., None] * B_BHN[:, :, None, :]
    state_BHPN = advance(state_BHPN, (decay_BH[..., None, None], increment_BHPN))
    y_BHP = jnp.einsum("bhpn,bhn->bhp", state_BHPN, C_BHN, precision=HIGHEST)
    return state_BHPN, y_BHP


def ssd_reference(
    x_BTHP: Float[Array, "B T H P"],
    dt_BTH: Float[Array, "B T H"],
    A_H: Float[Array, " H"],
    B_BTGN: Float[Array, "B T G N"],
    C_BTGN: Float[Array, "B T G N"],
    initial_state: Float[Array, "B H P N"],
    bounds: Bounds,
) -> ScanResult:
    """The scan token by token."""

    def token(state_BHPN: Array, rows: tuple[Array, ...]) -> tuple[Array, Array]:
        x_BHP, dt_BH, B_BGN, C_BGN = rows
        return ssd_token(state_BHPN, x_BHP, dt_BH, A_H, B_BGN, C_BGN)

    return token_loop(token, (x_BTHP, dt_BTH, B_BTGN, C_BTGN), initial_state, bounds)
