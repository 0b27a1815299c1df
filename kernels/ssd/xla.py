"""SSD in chunks: matrix products inside a chunk, and a state carried from chunk to chunk."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kernels.chunked import chunked_scan
from kernels.decay import LogDecay, decay_between, decay_so_far, split_log_decay
from kernels.scan import Bounds, ScanResult, advance, keep_rows, pad_length, valid_rows

_HIGHEST = lax.Precision.HIGHEST


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
    valid_BT = valid_rows(bounds.lengths_B, padded)
    x_BTHP, dt_BTH, B_BTGN, C_BTGN = (
        keep_rows(pad_length(value, padded), valid_BT) for value in (x_BTHP, dt_BTH, B_BTGN, C_BTGN)
    )
    dt_BTH = dt_BTH.astype(jnp.float32)
    log_decay_BTH = dt_BTH * A_H.astype(jnp.float32)[None, None, :]
    rows = Rows(x_BTHP, log_decay_BTH, dt_BTH, B_BTGN, C_BTGN)
    y, final, captured = chunked_scan(ssd_chunk, rows, initial_state, bounds, chunk)
    return ScanResult(y[:, :length], final, captured)


def ssd_chunk(
    state_BHPN: Float[Array, "B H P N"], rows: Rows
) -> tuple[Float[Array, "B H P N"], Float[Array, "B C H P"]]:
    """One chunk: y of its rows, and the state after them.

    Source: Dao and Gu, "Transformers are SSMs" (2024), section 6; the running sums as in
    kernels.decay.
    """
    x_BCHP, log_decay_BCH, dt_BCH, B_BCGN, C_BCGN = rows
    batch, chunk, heads, head_dim = x_BCHP.shape
    groups, state_dim = B_BCGN.shape[2:]
    per_group = heads // groups
    wide = per_group * head_dim
    dtype = x_BCHP.dtype

    causal_CC = jnp.tril(jnp.ones((chunk, chunk), bool))
    sums_BHC = LogDecay(
        *(
            jnp.einsum("ij,bjh->bhi", causal_CC.astype(jnp.float32), part, precision=_HIGHEST)
            for part in split_log_decay(log_decay_BCH)
        )
    )
    later = LogDecay(*(part[:, :, :, None] for part in sums_BHC))
    earlier = LogDecay(*(part[:, :, None, :] for part in sums_BHC))
    mask = causal_CC[None, None]
    masked = LogDecay(jnp.where(mask, later.high - earlier.high, -jnp.inf), later.low - earlier.low)
    decay_BHCC = decay_so_far(masked)
    scores_BGCC = jnp.einsum(
        "bign,bjgn->bgij",
        C_BCGN,
        B_BCGN,
        precision=_precision(dtype),
        preferred_element_type=jnp.float32,
    )
    dt_BHC = dt_BCH.transpose(0, 2, 1)
    weights = decay_BHCC * dt_BHC[:, :, None, :]
    weights = scores_BGCC[:, :, None] * weights.reshape(batch, groups, per_group, chunk, chunk)
    inside_BCHP = jnp.einsum(
        "bhij,bjhp->bihp",
        weights.reshape(batch, heads, chunk, chunk).astype(dtype),
        x_BCHP,
        precision=_precision(dtype),
        preferred_element_type=jnp.float32,
    )

    state_BGQN = state_BHPN.reshape(batch, groups, wide, state_dim)
    before_BCHP = jnp.einsum(
        "bign,bgqn->bigq", C_BCGN.astype(jnp.float32), state_BGQN, precision=_HIGHEST
    ).reshape(x_BCHP.shape)
    so_far_BCH = decay_so_far(sums_BHC).transpose(0, 2, 1)
    y_BCHP = advance(before_BCHP, (so_far_BCH[..., None], inside_BCHP)).astype(dtype)

    last = LogDecay(*(part[:, :, -1:] for part in sums_BHC))
    to_end_BCH = (decay_between(last, sums_BHC) * dt_BHC).transpose(0, 2, 1)
    weighted_BCGQ = (x_BCHP.astype(jnp.float32) * to_end_BCH[..., None]).reshape(
        batch, chunk, groups, wide
    )
    increment = jnp.einsum(
        "bigq,bign->bgqn", weighted_BCGQ, B_BCGN.astype(jnp.float32), precision=_HIGHEST
    ).reshape(state_BHPN.shape)
    through_BHPN = decay_so_far(last)[..., None]
    return advance(state_BHPN, (through_BHPN, increment)), y_BCHP


def _precision(dtype: jnp.dtype) -> lax.Precision:
    """fp32 operands ask for fp32 products (a TPU would round them to bf16); bf16 ones need not."""
    return _HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT
