"""The public convolution operations: checks, defaults and dispatch."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from kernels.causal_conv.reference import conv_reference, conv_token
from kernels.causal_conv.rows import conv_bounds
from kernels.causal_conv.xla import conv_xla
from kernels.checks import FLOAT_DTYPES, check_array, check_implementation
from kernels.scan import ScanResult, scan_bounds

ACTIVATIONS = (None, "silu")


def causal_conv(
    x: Float[Array, "B T M"],
    weight: Float[Array, "W M"],
    bias: Float[Array, " M"] | None = None,
    *,
    initial_state: Float[Array, "B U M"] | None = None,
    start: Int32[Array, " B"] | None = None,
    capture_offsets: Int32[Array, "B S"] | None = None,
    lengths: Int32[Array, " B"] | None = None,
    activation: str | None = None,
    implementation: str = "auto",
) -> ScanResult:
    """Causal depthwise convolution whose state at an offset is the last width - 1 inputs before it.

    y_t = activation(bias + sum_w weight[w] x[t - (width - 1) + w]), where inputs before the row's
    start come from the initial state.

    Args:
        x: inputs [batch, length, channels], float32 or bfloat16.
        weight: [width, channels], oldest input first; float32 or bfloat16.
        bias: [channels]; none if None.
        initial_state: [batch, width - 1, channels], oldest first, dtype of x; zeros if None.
        start: int32 [batch], the first token that counts; the initial state sits just before it,
            tokens below it are ignored and their y is 0. 0 if None.
        capture_offsets: int32 [batch, slots], tokens consumed, max(start, 1)..length in any order,
            repeats allowed; anything else marks an unused slot.
        lengths: int32 [batch], the end of the tokens that count; all if None.
        activation: None or "silu".
        implementation: "auto" (the shifted sums), "reference" (token loop) or "xla" (shifted sums).

    Returns:
        ScanResult: y like x, zero outside start..lengths; final_state [batch, width - 1, channels]
        and captured [batch, slots, width - 1, channels] in the dtype of x, zeros in unused slots.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a shape that does not fit, or an unknown activation or implementation.
    """
    op = "causal_conv"
    check_implementation(op, implementation)
    if implementation == "pallas":
        raise ValueError(
            f"{op}: implementation 'pallas' does not exist: XLA makes one fusion of the shifted "
            "sums; expected auto, reference or xla"
        )
    _check_activation(op, activation)
    sizes: dict[str, int] = {}
    check_array(op, "x", x, "batch length channels", sizes, FLOAT_DTYPES)
    bias = _check_weights(op, weight, bias, sizes)
    axes = (sizes["batch"], sizes["width"] - 1, sizes["channels"])
    state = _checked_state(op, "initial_state", initial_state, x, axes)
    if sizes["length"] == 0:
        raise ValueError(f"{op}: x has length 0; expected at least 1")
    if start is not None:
        check_array(op, "start", start, "batch", sizes, (jnp.int32,))
    bounds = scan_bounds(op, sizes["batch"], sizes["length"], capture_offsets, lengths)
    form = conv_reference if implementation == "reference" else conv_xla
    return form(x, weight, bias, state, conv_bounds(bounds, start), activation)


def causal_conv_step(
    x: Float[Array, "B M"],
    weight: Float[Array, "W M"],
    bias: Float[Array, " M"] | None,
    state: Float[Array, "B U M"],
    *,
    activation: str | None = None,
) -> tuple[Float[Array, "B M"], Float[Array, "B U M"]]:
    """One token of :func:`causal_conv`, for decode.

    Args:
        x: [batch, channels], float32 or bfloat16.
        weight: [width, channels], oldest input first.
        bias: [channels]; none if None.
        state: [batch, width - 1, channels], oldest first, dtype of x.
        activation: None or "silu".

    Returns:
        y [batch, channels] in the dtype of x, and the new state.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a shape that does not fit, or an unknown activation.
    """
    op = "causal_conv_step"
    _check_activation(op, activation)
    sizes: dict[str, int] = {}
    check_array(op, "x", x, "batch channels", sizes, FLOAT_DTYPES)
    bias = _check_weights(op, weight, bias, sizes)
    axes = (sizes["batch"], sizes["width"] - 1, sizes["channels"])
    _checked_state(op, "state", state, x, axes)
    new_state, y = conv_token(state, x, weight, bias, activation)
    return y.astype(x.dtype), new_state


def _check_activation(op: str, activation: str | None) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"{op}: activation is {activation!r}; expected None or 'silu'")


def _check_weights(op: str, weight: Array, bias: Array | None, sizes: dict[str, int]) -> Array:
    check_array(op, "weight", weight, "width channels", sizes, FLOAT_DTYPES)
    if sizes["width"] == 0:
        raise ValueError(f"{op}: weight has width 0; expected at least 1")
    if bias is None:
        return jnp.zeros((sizes["channels"],), weight.dtype)
    check_array(op, "bias", bias, "channels", sizes, FLOAT_DTYPES)
    return bias


def _checked_state(
    op: str, name: str, state: Array | None, x: Array, shape: tuple[int, ...]
) -> Array:
    if state is None:
        return jnp.zeros(shape, x.dtype)
    batch, room, channels = shape
    check_array(op, name, state, f"{batch} {room} {channels}", {}, (x.dtype,))
    return state
