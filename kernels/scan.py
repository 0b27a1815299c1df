"""What all scans share: the result type, the bounds of rows and captures, and the operator itself.

Every recurrence here is an associative scan over pairs (decay, state). The first pair then the
second is

    (a1, b1) then (a2, b2)  =  (a2 a1, a2 b1 + b2)

with a scalar, diagonal or matrix decay; :func:`combine` is the only place where that is written.

Where offsets lie (length 8, chunks of 4; an offset counts tokens consumed, so it sits between
tokens):

    token          0   1   2   3 | 4   5   6   7
    offset       0   1   2   3   4   5   6   7   8
                 |               |               |
               unused      chunk grid      final state
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, Shaped

from kernels.checks import check_array

Tree = Any
"""An array or a tree of arrays."""


class ScanResult(NamedTuple):
    """What a scan returns.

    Attributes:
        y: outputs [batch, length, ...] in the input dtype; zeros beyond each row's length.
        final_state: state after each row's last token, [batch, ...]; fp32 in the recurrences.
        captured: states at the planned offsets, [batch, slots, ...]; zeros in unused slots.
    """

    y: Array
    final_state: Array
    captured: Array


class Bounds(NamedTuple):
    """Where rows end and captures lie, after :func:`scan_bounds`."""

    lengths_B: Int32[Array, " B"]
    offsets_BS: Int32[Array, "B S"]


def scan_bounds(
    op: str,
    batch: int,
    length: int,
    capture_offsets: Int32[Array, "B S"] | None,
    lengths: Int32[Array, " B"] | None,
) -> Bounds:
    """Check and normalise `lengths` and `capture_offsets`.

    Args:
        op: the operation's name, for messages.
        batch: rows.
        length: tokens a row, padding included.
        capture_offsets: int32 [batch, slots], tokens consumed; 0, negative or more than the row's
            length = unused.
        lengths: int32 [batch], tokens that count in each row; clipped to 0..length.

    Returns:
        Bounds: lengths within 0..length, and offsets where every unused slot is 0.

    Raises:
        TypeError: not int32.
        ValueError: a shape that does not fit.
    """
    sizes = {"batch": batch}
    if lengths is None:
        lengths_B = jnp.full((batch,), length, jnp.int32)
    else:
        check_array(op, "lengths", lengths, "batch", sizes, (jnp.int32,))
        lengths_B = jnp.clip(jnp.asarray(lengths), 0, length)
    if capture_offsets is None:
        offsets_BS = jnp.zeros((batch, 0), jnp.int32)
    else:
        check_array(op, "capture_offsets", capture_offsets, "batch slots", sizes, (jnp.int32,))
        offsets_BS = jnp.asarray(capture_offsets)
    used_BS = (offsets_BS >= 1) & (offsets_BS <= lengths_B[:, None])
    return Bounds(lengths_B, jnp.where(used_BS, offsets_BS, 0))


def valid_rows(lengths_B: Int32[Array, " B"], length: int) -> Bool[Array, "B T"]:
    """Which tokens lie within their row's length."""
    return jnp.arange(length, dtype=jnp.int32)[None, :] < lengths_B[:, None]


def keep_rows(
    array_BT: Shaped[Array, "B T ..."], keep_BT: Bool[Array, "B T"]
) -> Shaped[Array, "B T ..."]:
    """Zero the tokens that are not kept; a select, so that a NaN there does not survive."""
    keep = keep_BT.reshape(keep_BT.shape + (1,) * (array_BT.ndim - 2))
    return jnp.where(keep, array_BT, jnp.zeros((), array_BT.dtype))


def pad_length(array_BT: Shaped[Array, "B T ..."], length: int) -> Shaped[Array, "B L ..."]:
    """Append zero tokens up to `length`."""
    return pad_axis(array_BT, length, 1)


def pad_axis(array: Shaped[Array, "..."], size: int, axis: int) -> Shaped[Array, "..."]:
    """Append zeros along an axis up to `size`."""
    missing = size - array.shape[axis]
    if missing == 0:
        return array
    return jnp.pad(array, [(0, missing if at == axis else 0) for at in range(array.ndim)])


def combine(
    first: tuple[Array, Array],
    second: tuple[Array, Array],
    product: Callable[[Array, Array], Array] = jnp.multiply,
) -> tuple[Array, Array]:
    """The associative operator of every scan: `first`, then `second`.

    Args:
        first: decay and state of the earlier span.
        second: decay and state of the later span, of the same shapes.
        product: how a decay acts: elementwise (scalar and diagonal decays, already of the state's
            rank), or a matrix product.

    Returns:
        Decay and state of both spans together.
    """
    decay1, state1 = first
    return product(second[0], decay1), advance(state1, second, product)


def advance(
    state: Float[Array, "..."],
    span: tuple[Array, Array],
    product: Callable[[Array, Array], Array] = jnp.multiply,
) -> Float[Array, "..."]:
    """Carry a state over a span: the operator where the earlier decay is not needed."""
    decay, increment = span
    return product(decay, state) + increment
