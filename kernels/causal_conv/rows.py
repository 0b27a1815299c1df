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
    offsets_BS: Int32[Array, "B S"]


def conv_bounds(bounds: Bounds, start: Int32[Array, " B"] | None) -> ConvBounds:
    """Clip starts to the rows' lengths and drop captures that lie before them."""
    lengths_B, offsets_BS = bounds
    if start is None:
        return ConvBounds(jnp.zeros_like(lengths_B), lengths_B, offsets_BS)
    starts_B = jnp.clip(jnp.asarray(start), 0, lengths_B)
    return ConvBounds(
        starts_B, lengths_B, jnp.where(offsets_BS >= starts_B[:, None], offsets_BS, 0)
    )


def counted_rows(bounds: ConvBounds, length: int) -> Bool[Array, "B T"]:
    """Which tokens lie at or after their row's start and within its length."""
    index_1T = jnp.arange(length, dtype=jnp.int32)[None, :]
    return (index_1T >= bounds.starts_B[:, None]) & (index_1T < bounds.lengths_B[:, None])


def padded_rows(
    x_BTM: Shaped[Array, "B T M"], state_BUM: Shaped[Array, "B U M"], bounds: ConvBounds
) -> Shaped[Array, "B L M"]:
    """The inputs behind width - 1 rows of room, with each row's state just before its start."""
    padded_BLM = jnp.pad(x_BTM, ((0, 0), (state_BUM.shape[1], 0), (0, 0)))
    write = jax.vmap(lambda row, state, at: lax.dynamic_update_slice_in_dim(row, state, at, 0))
    return write(padded_BLM, state_BUM, bounds.starts_B)


def states_of(
    padded_BLM: Shaped[Array, "B L M"], bounds: ConvBounds, width: int
) -> tuple[Shaped[Array, "B U M"], Shaped[Array, "B S U M"]]:
    """The state after each row's last token, and those at the planned offsets."""
    batch, _, channels = padded_BLM.shape
    slots = bounds.offsets_BS.shape[1]

    def window(row_LM: Array, at: Array) -> Array:
        return lax.dynamic_slice_in_dim(row_LM, at, width - 1, 0)

    final_BUM = jax.vmap(window)(padded_BLM, bounds.lengths_B)
    empty = jnp.zeros((batch, slots, width - 1, channels), padded_BLM.dtype)
    if slots == 0 or width == 1:
        return final_BUM, empty
    used_BS = bounds.offsets_BS > 0

    def gather() -> Array:
        windows = jax.vmap(jax.vmap(window, (None, 0)))(padded_BLM, bounds.offsets_BS)
        return jnp.where(used_BS[:, :, None, None], windows, empty)

    # Most passes use no slot, and a gather of them all costs as much as a good part of the
    # convolution.
    return final_BUM, lax.cond(jnp.any(used_BS), gather, lambda: empty)
