"""SSD as a loop over tokens: the oracle, and the single step of decode."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kernels.scan import Bounds, ScanResult, advance, valid_rows


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
    y_BHP = jnp.einsum("bhpn,bhn->bhp", state_BHPN, C_BHN, precision=lax.Precision.HIGHEST)
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
    """The scan token by token; plain JAX throughout, so its gradients are JAX's own."""
    valid_BT = valid_rows(bounds.lengths_B, x_BTHP.shape[1])
    captured = jnp.zeros((*bounds.offsets_BK.shape, *initial_state.shape[1:]), jnp.float32)

    def step(carry, token):  # type: ignore[no-untyped-def]
        state_BHPN, captured = carry
        position, valid_B, x_BHP, dt_BH, B_BGN, C_BGN = token
        new_BHPN, y_BHP = ssd_token(state_BHPN, x_BHP, dt_BH, A_H, B_BGN, C_BGN)
        state_BHPN = jnp.where(valid_B[:, None, None, None], new_BHPN, state_BHPN)
        y_BHP = jnp.where(valid_B[:, None, None], y_BHP, 0.0).astype(x_BHP.dtype)
        here_BK = bounds.offsets_BK == position + 1
        captured = jnp.where(here_BK[:, :, None, None, None], state_BHPN[:, None], captured)
        return (state_BHPN, captured), y_BHP

    positions = jnp.arange(x_BTHP.shape[1], dtype=jnp.int32)
    per_row = jax.tree.map(
        lambda leaf: jnp.moveaxis(leaf, 1, 0), (valid_BT, x_BTHP, dt_BTH, B_BTGN, C_BTGN)
    )
    (final, captured), y_TBHP = lax.scan(step, (initial_state, captured), (positions, *per_row))
    return ScanResult(jnp.moveaxis(y_TBHP, 0, 1), final, captured)
