"""The padded row that a convolution slides over, and the states that are windows of it.

Width 4 (a state holds 3 inputs), start 2, length 6; `.` is a row that nothing reads:

    padded row    0  1  2  3  4  5  6  7  8
    content       .  .  s0 s1 s2 x2 x3 x4 x5      s: initial state, written at padded row `start`
    token                     |  2  3  4  5       token i is padded row i + 3

The state at offset o is the window that starts at padded row o: at o = 2 it is s0 s1 s2, at o = 6
x3 x4 x5.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32, Shaped

from kernels.scan import Bounds


class ConvBounds(NamedTuple):
    """Where rows start and end, which tokens count, and which captures are wanted."""

    starts_B: Int32[Array, " B"]
    lengths_B: Int32[Array, " B"]
    offsets_BK: Int32[Array, "B K"]


def conv_bounds(bounds: Bounds, start: Int32[Array, " B"] | None) -> ConvBounds:
    """Clip starts to the rows' lengths and drop captures that lie before them."""
    lengths_B, offsets_BK = bounds
    if start is None:
        return ConvBounds(jnp.zeros_like(lengths_B), lengths_B, offsets_BK)
    starts_B = jnp.clip(jnp.asarray(start), 0, lengths_B)
    return ConvBounds(
        starts_B, lengths_B, jnp.where(offsets_BK >= starts_B[:, None], offsets_BK, 0)
    )


def counted_rows(bounds: ConvBounds, length: int) -> Bool[Array, "B T"]:
    """Which tokens lie at or after their row's start and within its length."""
    index_1T = jnp.arange(length, dtype=jnp.int32)[None, :]
    return (index_1T >= bounds.starts_B[:, None]) & (index_1T < bounds.lengths_B[:, None])


def padded_rows(
    x_BTM: Shaped[Array, "B T M"], state_BWM: Shaped[Array, "B W1 M"], bounds: ConvBounds
) -> Shaped[Array, "B T_plus_W1 M"]:
    """The inputs behind width - 1 rows of room, with each row's state just before its start."""
    padded_BTM = jnp.pad(x_BTM, ((0, 0), (state_BWM.shape[1], 0), (0, 0)))
    write = jax.vmap(lambda row, state, at: lax.dynamic_update_slice_in_dim(row, state, at, 0))
    return write(padded_BTM, state_BWM, bounds.starts_B)


def states_of(
    padded_BTM: Shaped[Array, "B T_plus_W1 M"], bounds: ConvBounds, width: int
) -> tuple[Shaped[Array, "B W1 M"], Shaped[Array, "B K W1 M"]]:
    """The state after each row's last token, and those at the planned offsets."""
    batch, _, channels = padded_BTM.shape
    slots = bounds.offsets_BK.shape[1]

    def window(row_TM: Array, at: Array) -> Array:
        return lax.dynamic_slice_in_dim(row_TM, at, width - 1, 0)

    final_BWM = jax.vmap(window)(padded_BTM, bounds.lengths_B)
    empty = jnp.zeros((batch, slots, width - 1, channels), padded_BTM.dtype)
    if slots == 0 or width == 1:
        return final_BWM, empty
    used_BK = bounds.offsets_BK > 0

    def gather() -> Array:
        windows = jax.vmap(jax.vmap(window, (None, 0)))(padded_BTM, bounds.offsets_BK)
        return jnp.where(used_BK[:, :, None, None], windows, empty)

    # Most passes use no slot, and a gather of them all costs as much as a good part of the
    # convolution.
    return final_BWM, lax.cond(jnp.any(used_BK), gather, lambda: empty)
