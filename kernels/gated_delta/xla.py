"""The gated delta rule in chunks: a triangular system inside, one state from chunk to chunk.

Inside a chunk, with a_i the running sum of the log-decays, S the state at its start and u_i the
value written by row i (state after row i = exp(a_i) S + sum_{j<=i} exp(a_i - a_j) k_j u_j^T):

    (I + L) U = beta (V - exp(a) K S),      L_ij = beta_i exp(a_i - a_j) k_i.k_j   for j < i
    Y = scale (exp(a) Q S + M U),           M_ij = exp(a_i - a_j) q_i.k_j          for j <= i

A row with k = 0 or beta = 0 writes u = 0, so an all-zero row is the identity, exactly.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels.chunked import chunked_scan
from kernels.decay import LogDecay, decay_between, decay_so_far, decay_square, running_sums
from kernels.gated_delta.inverse import unit_lower_inverse
from kernels.precision import HIGHEST, product_precision
from kernels.scan import Bounds, ScanResult, advance, pad_length


class Rows(NamedTuple):
    """What a chunk consumes; all-zero rows are the identity."""

    q_BCGK: Array
    k_BCGK: Array
    v_BCHV: Array
    g_BCH: Array
    beta_BCH: Array


def gated_delta_xla(
    q_BTGK: Float[Array, "B T G K"],
    k_BTGK: Float[Array, "B T G K"],
    v_BTHV: Float[Array, "B T H V"],
    g_BTH: Float[Array, "B T H"],
    beta_BTH: Float[Array, "B T H"],
    scale: float,
    initial_state: Float[Array, "B H K V"],
    bounds: Bounds,
    chunk: int,
) -> ScanResult:
    """The scan over chunks of `chunk` tokens; any length, padded inside."""
    length = v_BTHV.shape[1]
    padded = -(-length // chunk) * chunk
    rows = Rows(*(pad_length(value, padded) for value in (q_BTGK, k_BTGK, v_BTHV, g_BTH, beta_BTH)))
    y, final, captured = chunked_scan(
        GatedDeltaChunk(scale), rows, initial_state, bounds, chunk, unrolled_chunks=0
    )
    return ScanResult(y[:, :length], final, captured)


@dataclass(frozen=True)
class GatedDeltaChunk:
    """One chunk: y of its rows, and the state after them.

    Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024), section 3; the running sums
    as in kernels.decay.
    """

    scale: float

    def __call__(
        self, state_BHKV: Float[Array, "B H K V"], rows: Rows
    ) -> tuple[Float[Array, "B H K V"], Float[Array, "B C H V"]]:
        """Advance the state over the rows of one chunk."""
        q_BGCK, k_BGCK, v_BHCV = (value.transpose(0, 2, 1, 3) for value in rows[:3])
        beta_BHC = rows.beta_BCH.astype(jnp.float32).transpose(0, 2, 1)
        batch, groups, chunk, key_dim = k_BGCK.shape
        heads, value_dim = v_BHCV.shape[1], v_BHCV.shape[3]
        per_group = heads // groups
        dtype = v_BHCV.dtype
        precision = product_precision(dtype)

        sums_BHC = running_sums(rows.g_BCH)
        decay_BHCC = decay_square(sums_BHC)

        queries_and_keys = jnp.concatenate([k_BGCK, q_BGCK], axis=2)
        products = jnp.einsum(
            "bgik,bgjk->bgij",
            queries_and_keys,
            k_BGCK,
            precision=precision,
            preferred_element_type=jnp.float32,
        )
        products = jnp.repeat(products, per_group, axis=1)
        below_CC = jnp.tril(jnp.ones((chunk, chunk), jnp.float32), -1)
        lower_BHCC = (
            products[:, :, :chunk] * decay_BHCC * beta_BHC[..., None] * below_CC[None, None]
        )
        inverse_BHCC = unit_lower_inverse(lower_BHCC)
        mix_BHCC = products[:, :, chunk:] * decay_BHCC

        found = jnp.einsum(
            "bgik,bgrkv->bgriv",
            queries_and_keys.astype(jnp.float32),
            state_BHKV.reshape(batch, groups, per_group, key_dim, value_dim),
            precision=HIGHEST,
        ).reshape(batch, heads, 2 * chunk, value_dim)
        so_far_BHC1 = decay_so_far(sums_BHC)[..., None]
        wanted_BHCV = v_BHCV.astype(jnp.float32) - so_far_BHC1 * found[:, :, :chunk]
        write_BHCV = jnp.einsum(
            "bhij,bhjv->bhiv", inverse_BHCC, beta_BHC[..., None] * wanted_BHCV, precision=HIGHEST
        )
        # fp32: mixed writes cancel, so rounding either to bf16 shows in y.
        inside_BHCV = jnp.einsum("bhij,bhjv->bhiv", mix_BHCC, write_BHCV, precision=HIGHEST)
        y_BHCV = advance(found[:, :, chunk:], (so_far_BHC1, inside_BHCV)) * self.scale

        last = LogDecay(*(part[:, :, -1:] for part in sums_BHC))
        kept_BHCV = decay_between(last, sums_BHC)[..., None] * write_BHCV
        increment_BHKV = jnp.einsum(
            "bgik,bgriv->bgrkv",
            k_BGCK.astype(jnp.float32),
            kept_BHCV.reshape(batch, groups, per_group, chunk, value_dim),
            precision=HIGHEST,
        ).reshape(state_BHKV.shape)
        through_BH11 = decay_so_far(last)[..., None]
        y_BCHV = y_BHCV.transpose(0, 2, 1, 3).astype(dtype)
        return advance(state_BHKV, (through_BH11, increment_BHKV)), y_BCHV
