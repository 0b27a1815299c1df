"""Causal depthwise convolution as a loop over tokens: the oracle."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kernels.causal_conv.rows import ConvBounds
from kernels.causal_conv.xla import conv_window
from kernels.scan import ScanResult


def conv_token(
    state_BWM: Float[Array, "B W1 M"],
    x_BM: Float[Array, "B M"],
    weight_WM: Float[Array, "W M"],
    bias_M: Float[Array, " M"],
    activation: str | None,
) -> tuple[Float[Array, "B W1 M"], Float[Array, "B M"]]:
    """One token: y in fp32, and the state moved on by one input."""
    window_BWM = jnp.concatenate([state_BWM, x_BM[:, None]], axis=1)
    taps = [window_BWM[:, tap : tap + 1] for tap in range(weight_WM.shape[0])]
    return window_BWM[:, 1:], conv_window(taps, weight_WM, bias_M, activation)[:, 0]


def conv_reference(
    x_BTM: Float[Array, "B T M"],
    weight_WM: Float[Array, "W M"],
    bias_M: Float[Array, " M"],
    state_BWM: Float[Array, "B W1 M"],
    bounds: ConvBounds,
    activation: str | None,
) -> ScanResult:
    """The convolution token by token, as a shift register."""
    starts_B, lengths_B, offsets_BK = bounds
    at_start_BK = (offsets_BK > 0) & (offsets_BK == starts_B[:, None])
    captured = jnp.where(at_start_BK[:, :, None, None], state_BWM[:, None], 0).astype(x_BTM.dtype)

    def step(carry, token):  # type: ignore[no-untyped-def]
        state_BWM, captured = carry
        position, x_BM = token
        counts_B = (position >= starts_B) & (position < lengths_B)
        new_BWM, y_BM = conv_token(state_BWM, x_BM, weight_WM, bias_M, activation)
        state_BWM = jnp.where(counts_B[:, None, None], new_BWM, state_BWM)
        y_BM = jnp.where(counts_B[:, None], y_BM, 0.0).astype(x_BM.dtype)
        here_BK = (offsets_BK == position + 1) & counts_B[:, None]
        captured = jnp.where(here_BK[:, :, None, None], state_BWM[:, None], captured)
        return (state_BWM, captured), y_BM

    positions = jnp.arange(x_BTM.shape[1], dtype=jnp.int32)
    (final_BWM, captured), y_TBM = lax.scan(
        step, (state_BWM, captured), (positions, jnp.moveaxis(x_BTM, 1, 0))
    )
    return ScanResult(jnp.moveaxis(y_TBM, 0, 1), final_BWM, captured)
