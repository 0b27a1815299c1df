"""Log-decays inside a chunk: running sums whose differences do not cancel.

The decay from row j to row i of a chunk is exp(a_i - a_j) with `a` the running sum of the
log-decays. In fp32 that difference loses what follows a strong decay: after a row of -3000, a_i
and a_j carry an error of 1e-4 each, though exp(a_i - a_j) may be near 1. So each log-decay is
split in two,

    high: a multiple of 2^-10, at least -128, so that sums over up to 128 rows are exact in fp32
          (128 rows x 128 = 2^14 = 2^24 steps of 2^-10);
    low:  the rest, at most 2^-11 in size, whose sums stay below 2^-4 and round at 2^-28.

The differences of the two are taken apart and added last. Log-decays below -128 are raised to it:
exp is 0 in fp32 there (from about -104 on), and every log-decay is <= 0, so no product changes.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels.precision import HIGHEST

MAX_CHUNK = 128
"""Rows over which the sums of the high parts are exact."""

_FLOOR = -128.0
_STEPS = 1024.0


class LogDecay(NamedTuple):
    """A log-decay as two parts; their sum is the value."""

    high: Array
    low: Array


def split_log_decay(value: Float[Array, "..."]) -> LogDecay:
    """Split log-decays (<= 0) so that running sums of the high parts are exact."""
    value = jnp.maximum(value.astype(jnp.float32), _FLOOR)
    high = jnp.floor(value * _STEPS + 0.5) / _STEPS
    return LogDecay(high, value - high)


def decay_between(later: LogDecay, earlier: LogDecay) -> Float[Array, "..."]:
    """exp of the difference of two running sums; broadcasts like a subtraction."""
    return jnp.exp((later.high - earlier.high) + (later.low - earlier.low))


def decay_so_far(sums: LogDecay) -> Float[Array, "..."]:
    """exp of a running sum."""
    return jnp.exp(sums.high + sums.low)


def running_sums(log_decay_BCH: Float[Array, "B C H"]) -> LogDecay:
    """Running sums over the rows of a chunk, each part [batch, heads, chunk]."""
    chunk = log_decay_BCH.shape[1]
    causal_CC = jnp.tril(jnp.ones((chunk, chunk), jnp.float32))
    parts = split_log_decay(log_decay_BCH)
    return LogDecay(
        *(jnp.einsum("ij,bjh->bhi", causal_CC, part, precision=HIGHEST) for part in parts)
    )


def decay_square(sums_BHC: LogDecay) -> Float[Array, "B H C C"]:
    """Decay from each column's row to each row, from running sums; zero above the diagonal."""
    chunk = sums_BHC.high.shape[2]
    causal_CC = jnp.tril(jnp.ones((chunk, chunk), bool))
    high, low = (part[:, :, :, None] - part[:, :, None, :] for part in sums_BHC)
    return decay_so_far(LogDecay(jnp.where(causal_CC[None, None], high, -jnp.inf), low))
