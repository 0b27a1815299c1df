"""Causal depthwise convolution as a sum of shifted products."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels.causal_conv.rows import ConvBounds, counted_rows, padded_rows, states_of
from kernels.scan import ScanResult, keep_rows


def conv_xla(
    x_BTM: Float[Array, "B T M"],
    weight_WM: Float[Array, "W M"],
    bias_M: Float[Array, " M"],
    state_BUM: Float[Array, "B U M"],
    bounds: ConvBounds,
    activation: str | None,
) -> ScanResult:
    """All tokens at once; sums in fp32, from the oldest input to the newest."""
    length = x_BTM.shape[1]
    width = weight_WM.shape[0]
    padded_BLM = padded_rows(x_BTM, state_BUM, bounds)
    y_BTM = conv_window(
        [padded_BLM[:, tap : tap + length] for tap in range(width)], weight_WM, bias_M, activation
    )
    y_BTM = keep_rows(y_BTM.astype(x_BTM.dtype), counted_rows(bounds, length))
    return ScanResult(y_BTM, *states_of(padded_BLM, bounds, width))


def conv_window(
    taps: list[Float[Array, "B T M"]],
    weight_WM: Float[Array, "W M"],
    bias_M: Float[Array, " M"],
    activation: str | None,
) -> Float[Array, "B T M"]:
    """Weigh the inputs of one output, oldest first; the order of sums is the same in every form."""
    y = jnp.broadcast_to(bias_M.astype(jnp.float32)[None, None, :], taps[0].shape)
    for tap, weight_M in zip(taps, weight_WM.astype(jnp.float32), strict=True):
        y = y + tap.astype(jnp.float32) * weight_M[None, None, :]
    return jax.nn.silu(y) if activation == "silu" else y
