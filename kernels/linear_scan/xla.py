"""The diagonal recurrence in chunks: an associative scan inside, one state from chunk to chunk.

A chunk of one token is a plain loop; one as long as the input is a plain `lax.associative_scan`.
A scan adds the rows of a chunk in an order that depends on their places, so identity rows inside a
chunk of several tokens may change a later state in its last bit; in the plain loop they do not.
Every state is an output here, so a capture is one row of them and costs nothing more.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from kernels.scan import Bounds, ScanResult, advance, combine, keep_rows, pad_length, valid_rows


def linear_xla(
    log_a_BTM: Float[Array, "B T M"],
    b_BTM: Float[Array, "B T M"],
    initial_state: Float[Array, "B M"],
    bounds: Bounds,
    chunk: int,
) -> ScanResult:
    """The scan over chunks of `chunk` tokens; any length, padded inside."""
    states_BTM, final = _states(chunk, log_a_BTM, b_BTM, initial_state, bounds.lengths_B)
    at_BS1 = jnp.maximum(bounds.offsets_BS - 1, 0)[..., None]
    captured = jnp.take_along_axis(states_BTM, at_BS1, axis=1)
    captured = jnp.where((bounds.offsets_BS > 0)[..., None], captured, 0.0)
    return ScanResult(states_BTM.astype(b_BTM.dtype), final, captured)


def _advance_rows(state_BM: Array, log_a_BCM: Array, b_BCM: Array) -> Array:
    """All states of one chunk."""
    span = (jnp.exp(log_a_BCM), b_BCM)
    if b_BCM.shape[1] > 1:
        span = lax.associative_scan(combine, span, axis=1)
    return advance(state_BM[:, None], span)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _states(
    chunk: int,
    log_a_BTM: Float[Array, "B T M"],
    b_BTM: Float[Array, "B T M"],
    initial_state: Float[Array, "B M"],
    lengths_B: Int32[Array, " B"],
) -> tuple[Float[Array, "B T M"], Float[Array, "B M"]]:
    """Every state in fp32, zeros beyond `lengths`, and the last one that counts."""
    length = b_BTM.shape[1]
    chunk = min(chunk, length)
    padded = -(-length // chunk) * chunk
    log_a_BTM, b_BTM = pad_length(log_a_BTM, padded), pad_length(b_BTM, padded)

    def body(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        state_BM, states_BTM = carry
        start = index * chunk
        valid_BC = start + jnp.arange(chunk, dtype=jnp.int32)[None, :] < lengths_B[:, None]
        log_a_BCM, b_BCM = (
            keep_rows(lax.dynamic_slice_in_dim(rows, start, chunk, 1), valid_BC).astype(jnp.float32)
            for rows in (log_a_BTM, b_BTM)
        )
        states_BCM = _advance_rows(state_BM, log_a_BCM, b_BCM)
        # The row's own last state, not the chunk's: a scan adds identity rows in another order.
        last_B11 = (jnp.clip(lengths_B - start, 1, chunk) - 1)[:, None, None]
        state_BM = jnp.take_along_axis(states_BCM, last_B11, axis=1)[:, 0]
        states_BCM = keep_rows(states_BCM, valid_BC)
        return state_BM, lax.dynamic_update_slice_in_dim(states_BTM, states_BCM, start, 1)

    carry = (initial_state, jnp.zeros(b_BTM.shape, jnp.float32))
    chunks = (jnp.max(lengths_B, initial=0) + chunk - 1) // chunk
    final, states_BTM = lax.fori_loop(0, chunks, body, carry)
    return states_BTM[:, :length], final


def _states_fwd(
    chunk: int, log_a_BTM: Array, b_BTM: Array, initial_state: Array, lengths_B: Array
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    inputs = (log_a_BTM, b_BTM, initial_state, lengths_B)
    return _states(chunk, *inputs), inputs


def _states_bwd(
    chunk: int, inputs: tuple[Array, ...], cotangents: tuple[Array, Array]
) -> tuple[Array | None, ...]:
    """The recurrence from the right: h_bar_t = y_bar_t + a_{t+1} h_bar_{t+1}."""
    log_a_BTM, b_BTM, initial_state, lengths_B = inputs
    states_bar, final_bar = cotangents
    length = b_BTM.shape[1]
    valid_BT = valid_rows(lengths_B, length)
    kept_BTM = keep_rows(log_a_BTM, valid_BT).astype(jnp.float32)
    next_BTM = pad_length(kept_BTM, length + 1)[:, 1:]
    whole_B = jnp.full_like(lengths_B, length)
    back_BTM, _ = _states(
        chunk, next_BTM[:, ::-1], keep_rows(states_bar, valid_BT)[:, ::-1], final_bar, whole_B
    )
    bar_BTM = back_BTM[:, ::-1]
    states_BTM, _ = _states(chunk, log_a_BTM, b_BTM, initial_state, lengths_B)
    before_BTM = jnp.concatenate([initial_state[:, None], states_BTM[:, :-1]], axis=1)
    decayed_BTM = jnp.exp(kept_BTM) * bar_BTM
    log_a_bar = keep_rows(decayed_BTM * before_BTM, valid_BT).astype(log_a_BTM.dtype)
    b_bar = keep_rows(bar_BTM, valid_BT).astype(b_BTM.dtype)
    return log_a_bar, b_bar, decayed_BTM[:, 0], None


_states.defvjp(_states_fwd, _states_bwd)
