"""SSD in chunks: matrix products inside a chunk, and a state carried from chunk to chunk."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kernels.chunked import chunked_scan
from kernels.decay import LogDecay, decay_between, decay_so_far, decay_square, running_sums
from kernels.precision import HIGHEST, product_precision
from kernels.scan import Bounds, ScanResult, advance, pad_length


class Rows(NamedTuple):
    """What a chunk consumes; all-zero rows are the identity."""

    x_BCHP: Array
    log_decay_BCH: Array
    dt_BCH: Array
    B_BCGN: Array
    C_BCGN: Array


def ssd_xla(
    x_BTHP: Float[Array, "B T H P"],
    dt_BTH: Float[Array, "B T H"],
    A_H: Float[Array, " H"],
    B_BTGN: Float[Array, "B T G N"],
    C_BTGN: Float[Array, "B T G N"],
    initial_state: Float[Array, "B H P N"],
    bounds: Bounds,
    chunk: int,
) -> ScanResult:
    """The scan over chunks of `chunk` tokens; any length, padded inside."""
    length = x_BTHP.shape[1]
    padded = -(-length // chunk) * chunk
    x_BTHP, dt_BTH, B_BTGN, C_BTGN = (
        pad_length(value, padded) for value in (x_BTHP, dt_BTH, B_BTGN, C_BTGN)
    )
    dt_BTH = dt_BTH.astype(jnp.float32)
    log_decay_BTH = dt_BTH * A_H.astype(jnp.float32)[None, None, :]
    rows = Rows(x_BTHP, log_decay_BTH, dt_BTH, B_BTGN, C_BTGN)
    groups = B_BTGN.shape[2]
    head_dim = x_BTHP.shape[3]
    y, final, captured = chunked_scan(
        ssd_chunk,
        rows,
        _carried_layout(initial_state, groups),
        bounds,
        chunk,
        publish=partial(_public_layout, head_dim=head_dim),
    )
    return ScanResult(y[:, :length], final, captured)


def _carried_layout(state_BHPN: Array, groups: int) -> Array:
    """[batch, heads, head_dim, state_dim] to [batch, groups, state_dim, wide].

    The last axis is heads of a group x head_dim, so what meets the state is one plain matrix
    product a group.
    """
    batch, heads, head_dim, state_dim = state_BHPN.shape
    by_head = lax.optimization_barrier(state_BHPN.transpose(0, 1, 3, 2))
    by_head = by_head.reshape(batch, groups, heads // groups, state_dim, head_dim)
    return by_head.transpose(0, 1, 3, 2, 4).reshape(batch, groups, state_dim, -1)


def _public_layout(state_BGNQ: Array, head_dim: int) -> Array:
    """The way back. Both go in two steps: at once, a CPU reads a cache line a number."""
    batch, groups, state_dim, _ = state_BGNQ.shape
    by_head = state_BGNQ.reshape(batch, groups, state_dim, -1, head_dim).transpose(0, 1, 3, 2, 4)
    by_head = lax.optimization_barrier(by_head.reshape(batch, -1, state_dim, head_dim))
    return by_head.transpose(0, 1, 3, 2)


def ssd_chunk(
    state_BGNQ: Float[Array, "B G N Q"], rows: Rows
) -> tuple[Float[Array, "B G N Q"], Float[Array, "B C H P"]]:
    """One chunk: y of its rows, and the state after them; Q is heads of a group x head_dim.

    Source: Dao and Gu, "Transformers are SSMs" (2024), section 6; the running sums as in
    kernels.decay.
    """
    x_BCHP, log_decay_BCH, dt_BCH, B_BCGN, C_BCGN = rows
    batch, chunk, heads, head_dim = x_BCHP.shape
    groups = B_BCGN.shape[2]
    wide = (batch, chunk, groups, heads // groups * head_dim)
    dtype = x_BCHP.dtype

    sums_BHC = running_sums(log_decay_BCH)
    decay_BHCC = decay_square(sums_BHC)
    scores_BGCC = jnp.einsum(
        "bign,bjgn->bgij",
        C_BCGN,
        B_BCGN,
        precision=product_precision(dtype),
        preferred_element_type=jnp.float32,
    )
    weights_BGRCC = scores_BGCC[:, :, None] * decay_BHCC.reshape(batch, groups, -1, chunk, chunk)
    # On a CPU the product runs up to twice as fast with the step sizes on x than on the weights.
    stepped_BCHP = x_BCHP.astype(jnp.float32) * dt_BCH[..., None]
    inside_BHCP = jnp.einsum(
        "bhij,bjhp->bhip",
        weights_BGRCC.reshape(decay_BHCC.shape).astype(dtype),
        stepped_BCHP.astype(dtype),
        precision=product_precision(dtype),
        preferred_element_type=jnp.float32,
    )
    # Written out, as an einsum would swap the operands and with them the layout of the state.
    by_group = (((0, 1), (0, 1)),)
    before_BGCQ = lax.dot_general(
        C_BCGN.astype(jnp.float32).transpose(0, 2, 1, 3),
        state_BGNQ,
        (((3,), (2,)), *by_group),
        precision=HIGHEST,
    )
    before_BCHP = before_BGCQ.transpose(0, 2, 1, 3).reshape(x_BCHP.shape)
    so_far_BCH1 = decay_so_far(sums_BHC).transpose(0, 2, 1)[..., None]
    y_BCHP = advance(before_BCHP, (so_far_BCH1, inside_BHCP.transpose(0, 2, 1, 3))).astype(dtype)

    last_BH1 = LogDecay(*(part[:, :, -1:] for part in sums_BHC))
    to_end_BCH1 = decay_between(last_BH1, sums_BHC).transpose(0, 2, 1)[..., None]
    increment_BGNQ = lax.dot_general(
        B_BCGN.astype(jnp.float32).transpose(0, 2, 1, 3),
        (stepped_BCHP * to_end_BCH1).reshape(wide).transpose(0, 2, 1, 3),
        (((2,), (2,)), *by_group),
        precision=HIGHEST,
    )
    through_BHP = jnp.broadcast_to(decay_so_far(last_BH1), (batch, heads, head_dim))
    through_BG1Q = through_BHP.reshape(batch, groups, 1, -1)
    return advance(state_BGNQ, (through_BG1Q, increment_BGNQ)), y_BCHP
