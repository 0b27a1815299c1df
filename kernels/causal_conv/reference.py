"""Causal depthwise convolution as a loop over tokens: the oracle."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels.causal_conv.rows import ConvBounds, counted_rows
from kernels.causal_conv.xla import conv_window
from kernels.scan import Bounds, ScanResult
from kernels.token_loop import token_loop


def conv_token(
    state_BUM: Float[Array, "B U M"],
    x_BM: Float[Array, "B M"],
    weight_WM: Float[Array, "W M"],
    bias_M: Float[Array, " M"],
    activation: str | None,
) -> tuple[Float[Array, "B U M"], Float[Array, "B M"]]:
    """One token: y in fp32, and the state moved on by one input."""
    window_BWM = jnp.concatenate([state_BUM, x_BM[:, None]], axis=1)
    taps = [window_BWM[:, tap : tap + 1] for tap in range(weight_WM.shape[0])]
    return window_BWM[:, 1:], conv_window(taps, weight_WM, bias_M, activation)[:, 0]


def conv_reference(
    x_BTM: Float[Array, "B T M"],
    weight_WM: Float[Array, "W M"],
    bias_M: Float[Array, " M"],
    state_BUM: Float[Array, "B U M"],
    bounds: ConvBounds,
    activation: str | None,
) -> ScanResult:
    """The convolution token by token, as a shift register."""
    _, lengths_B, offsets_BS = bounds

    def token(state_BUM: Array, rows: tuple[Array, Array]) -> tuple[Array, Array]:
        x_BM, counts_B1 = rows
        new_BUM, y_BM = conv_token(state_BUM, x_BM, weight_WM, bias_M, activation)
        state_BUM = jnp.where(counts_B1[:, :, None], new_BUM, state_BUM)
        return state_BUM, jnp.where(counts_B1, y_BM, 0.0)

    counts_BT1 = counted_rows(bounds, x_BTM.shape[1])[:, :, None]
    return token_loop(token, (x_BTM, counts_BT1), state_BUM, Bounds(lengths_B, offsets_BS))
