"""The public operations of the diagonal recurrence: checks, defaults and dispatch."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from kernels.checks import FLOAT_DTYPES, check_array, check_implementation, check_positive
from kernels.linear_scan.reference import linear_reference, linear_token
from kernels.linear_scan.vjp import linear_pallas_with_gradient
from kernels.linear_scan.xla import linear_xla
from kernels.scan import ScanResult, scan_bounds

CPU_CHUNK = 1
"""A CPU reads a, b and writes y once in a plain loop, near the speed of a copy; scanning rounds in
a chunk only read them again."""

WIDE_CHUNK = 256
"""Elsewhere the steps of a loop cost more than the rounds of an associative scan."""


def linear_scan(
    log_a: Float[Array, "B T *channels"],
    b: Float[Array, "B T *channels"],
    *,
    initial_state: Float[Array, "B *channels"] | None = None,
    capture_offsets: Int32[Array, "B S"] | None = None,
    lengths: Int32[Array, " B"] | None = None,
    chunk: int | None = None,
    implementation: str = "auto",
) -> ScanResult:
    """Diagonal linear recurrence, with states at planned offsets, in one pass.

    Per channel: h_t = exp(log_a_t) h_{t-1} + b_t and y_t = h_t. For the RG-LRU the channels are the
    width; for Mamba-1's selective scan they are (width, state_dim), with log_a = dt A and
    b = dt x B. Rows with log_a = 0 and b = 0 leave the state unchanged, bit for bit where chunk is
    1.

    Args:
        log_a: log-decays [batch, length, ...] <= 0, float32 or bfloat16; any number of channel
            axes.
        b: inputs of the same shape, float32 or bfloat16.
        initial_state: float32 [batch, ...]; zeros if None.
        capture_offsets: int32 [batch, slots], tokens consumed, 1..length in any order, repeats
            allowed; 0 or more than the row's length marks an unused slot.
        lengths: int32 [batch], tokens that count in each row; all if None.
        chunk: tokens that "xla" combines by an associative scan; chunks run from left to right. 1
            is a plain loop, `length` or more a plain associative scan. What suits the backend if
            None. The kernel is a plain loop.
        implementation: "auto" (now "xla"), "reference" (token loop), "xla" or "pallas" (kernel).

    Returns:
        ScanResult: y like b, zero beyond `lengths`; final_state float32 [batch, ...]; captured
        float32 [batch, slots, ...], zeros in unused slots. A capture has the bits of a run with
        that `lengths`, at every offset.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a shape that does not fit, or an unknown implementation.

    Source: De et al., "Griffin" (2024), equation 4; Gu and Dao, "Mamba" (2023), equation 2.
    """
    op = "linear_scan"
    check_implementation(op, implementation)
    if chunk is None:
        chunk = CPU_CHUNK if jax.default_backend() == "cpu" else WIDE_CHUNK
    check_positive(op, "chunk", chunk)
    shape = _checked_inputs(op, "batch length", log_a, b)
    batch, length, *channels = shape
    width = math.prod(channels)
    if length == 0 or width == 0:
        raise ValueError(f"{op}: b has shape {tuple(shape)}; expected at least 1 on every axis")
    state = _checked_state(op, "initial_state", initial_state, (batch, *channels))
    bounds = scan_bounds(op, batch, length, capture_offsets, lengths)
    flat = (log_a.reshape(batch, length, width), b.reshape(batch, length, width))
    state = state.reshape(batch, width)
    if implementation == "reference":
        result = linear_reference(*flat, state, bounds)
    elif implementation == "pallas":
        result = linear_pallas_with_gradient(chunk, (*flat, state), bounds)
    else:
        result = linear_xla(*flat, state, bounds, chunk)
    return ScanResult(*(leaf.reshape(*leaf.shape[:-1], *channels) for leaf in result))


def linear_step(
    log_a: Float[Array, "B *channels"],
    b: Float[Array, "B *channels"],
    state: Float[Array, "B *channels"],
) -> tuple[Float[Array, "B *channels"], Float[Array, "B *channels"]]:
    """One token of :func:`linear_scan`, for decode.

    Args:
        log_a: [batch, ...] <= 0, float32 or bfloat16.
        b: like log_a.
        state: float32 [batch, ...].

    Returns:
        y [batch, ...] in the dtype of b, and the new state.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a shape that does not fit.
    """
    op = "linear_step"
    shape = _checked_inputs(op, "batch", log_a, b)
    state = _checked_state(op, "state", state, shape)
    new_state, y = linear_token(state, log_a, b)
    return y.astype(b.dtype), new_state


def _checked_inputs(op: str, leading: str, log_a: Array, b: Array) -> tuple[int, ...]:
    """Check both inputs against b's own rank; its shape."""
    rank = getattr(b, "ndim", 0)
    names = leading.split()
    axes = " ".join(names + [f"channels{axis}" for axis in range(rank - len(names))])
    sizes: dict[str, int] = {}
    check_array(op, "b", b, axes, sizes, FLOAT_DTYPES)
    check_array(op, "log_a", log_a, axes, sizes, FLOAT_DTYPES)
    return tuple(b.shape)


def _checked_state(
    op: str, name: str, state: Array | None, shape: tuple[int, ...]
) -> Float[Array, "B *channels"]:
    if state is None:
        return jnp.zeros(shape, jnp.float32)
    axes = " ".join(["batch"] + [f"channels{axis}" for axis in range(len(shape) - 1)])
    check_array(op, name, state, axes, dict(zip(axes.split(), shape, strict=True)), (jnp.float32,))
    return state
