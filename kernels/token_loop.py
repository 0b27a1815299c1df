"""The loop over tokens behind every reference: the oracle of what lengths and captures mean."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from kernels.scan import Bounds, ScanResult, Tree, valid_rows

TokenFn = Callable[[Array, Tree], tuple[Array, Array]]


def token_loop(
    token_fn: TokenFn, rows: Tree, initial_state: Float[Array, "B ..."], bounds: Bounds
) -> ScanResult:
    """Run `token_fn(state, token) -> (new state, y)` over all tokens, one after another.

    Plain JAX throughout, so its gradients are JAX's own.

    Args:
        token_fn: maps a state [batch, ...] and one token of every leaf to a new state and y.
        rows: tree of [batch, length, ...]; y takes the dtype of the first leaf.
        initial_state: [batch, ...].
        bounds: lengths and normalised capture offsets.

    Returns:
        ScanResult.
    """
    first = jax.tree.leaves(rows)[0]
    valid_BT = valid_rows(bounds.lengths_B, first.shape[1])
    captured = jnp.zeros((*bounds.offsets_BS.shape, *initial_state.shape[1:]), initial_state.dtype)

    def expand(mask: Array, rank: int) -> Array:
        return mask.reshape(mask.shape + (1,) * (rank - mask.ndim))

    def step(carry: tuple[Array, Array], token: Tree) -> tuple[tuple[Array, Array], Array]:
        state, captured = carry
        position, valid_B, values = token
        new_state, y = token_fn(state, values)
        state = jnp.where(expand(valid_B, state.ndim), new_state, state)
        y = jnp.where(expand(valid_B, y.ndim), y, jnp.zeros((), y.dtype)).astype(first.dtype)
        here_BS = bounds.offsets_BS == position + 1
        captured = jnp.where(expand(here_BS, captured.ndim), state[:, None], captured)
        return (state, captured), y

    positions = jnp.arange(first.shape[1], dtype=jnp.int32)
    by_token = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), (valid_BT, rows))
    (final, captured), y = lax.scan(step, (initial_state, captured), (positions, *by_token))
    return ScanResult(jnp.moveaxis(y, 0, 1), final, captured)
