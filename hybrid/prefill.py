"""The prefill loop: one jitted program that runs any span of a prompt, tile by tile, anchored at
position 0.

    position         0         T         2T        3T
    tiles            |---------|---------|---------|
    a pass                          p >>>>>>>>> e        from the carried state at p to the end e
    runs                       |=========|=========|     tiles floor(p / T) .. ceil(e / T) - 1
    and carries away                     ^               the state at max(p, floor(e / T) T)

The trip count, the ends and the captures are traced, so prompts of every length up to the capacity,
all chunk schedules and all restore points share one executable. A tile that the pass fills only in
part leaves the state as it was at the tile's start: the next pass computes that tile again, whole,
and finds the same bits.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from hybrid.layers.part import Tile
from hybrid.state import FixedState, States

UNUSED = 2**31 - 1  # a capture position that no pass reaches


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Workspace:
    """The arrays that a pass updates in place; donated to every call and replaced by what it
    returns.

    Args:
        states: of all stateful parts: recurrent states at the carried position, keys and values of
            the prompt so far.
        captured: one fixed-size state a recurrent part with a slot axis after the batch axis; slots
            that the last pass did not fill hold leftovers.
        hidden: [batch, rows, hidden_size], the residual stream after the last layer of the last
            `rows` positions.
    """

    states: Any
    captured: Any
    hidden: Any


def prefill_pass(
    graphdef: nnx.GraphDef[Any],
    params: nnx.State,
    workspace: Workspace,
    tokens: Int[Array, "B capacity"],
    position: Int[Array, ""],
    end: Int[Array, ""],
    capture_positions: Int[Array, "S"],
    *,
    tile: int,
    tile_slots: int,
) -> tuple[Float[Array, "B V"], Workspace]:
    """Run the prompt from the carried state at `position` to `end`.

    Args:
        graphdef, params: the model, split.
        workspace: recurrent states at `position` (ignored at 0, where they are empty), keys and
            values below it.
        tokens: int32 [batch, capacity]; entries from `end` on do not count.
        position: int32, tokens that the carried states have consumed; off the tile grid after an
            inexact restore.
        end: int32, above `position`.
        capture_positions: int32 [slots], ascending, in (position, end]; `UNUSED` fills the rest.
            Slot k of `workspace.captured` receives the states at the k-th.
        tile: rows a tile.
        tile_slots: the most captures that fall into one tile.

    Returns:
        Fp32 logits [batch, vocab] after the last token, and the workspace, carried to
        max(position, floor(end / tile) * tile).
    """
    model = nnx.merge(graphdef, params)
    batch = tokens.shape[0]
    rows = jnp.arange(tile)
    first_tile = position // tile
    fresh = position == 0
    workspace = dataclasses.replace(
        workspace, states=_map_recurrent(lambda s: jnp.where(fresh, 0, s), workspace.states)
    )

    def per_row(value: jax.Array) -> jax.Array:
        return jnp.broadcast_to(value[None], (batch, *value.shape))

    def run_tile(index: jax.Array, ws: Workspace) -> Workspace:
        start = index * tile
        length = jnp.minimum(end - start, tile)
        first = jnp.where(index == first_tile, position - start, 0)
        done = jnp.sum(capture_positions <= start, dtype=jnp.int32)
        due = jnp.sum(capture_positions <= start + length, dtype=jnp.int32) - done
        slots = jnp.arange(tile_slots, dtype=jnp.int32)
        upcoming = jnp.take(capture_positions, done + slots, mode="clip") - start
        spec = Tile(
            start=start,
            first=per_row(first),
            lengths=per_row(length),
            capture_offsets=per_row(jnp.where(slots < due, upcoming, 0)),
        )
        row_tokens = jax.lax.dynamic_slice(tokens, (0, start), (batch, tile))
        row_tokens = jnp.where(rows[None, :] < length, row_tokens, 0)
        x, states, captured = model.tile(row_tokens, ws.states, spec)
        whole = length == tile
        states = _map_recurrent(lambda new, old: jnp.where(whole, new, old), states, ws.states)
        kept = jax.lax.fori_loop(
            jnp.zeros_like(due),
            due,
            lambda k, into: jax.tree.map(
                lambda buffer, values: _copy_slot(buffer, done + k, values, k), into, captured
            ),
            ws.captured,
        )
        at = (0, start % ws.hidden.shape[1], 0)
        hidden = jax.lax.dynamic_update_slice(ws.hidden, x, at)
        return Workspace(states, kept, hidden)

    workspace = jax.lax.fori_loop(first_tile, (end + tile - 1) // tile, run_tile, workspace)
    last = (end - 1) % workspace.hidden.shape[1]
    x = jax.lax.dynamic_index_in_dim(workspace.hidden, last, axis=1, keepdims=False)
    return model.head(x), workspace


def _map_recurrent(f: Any, states: States, *others: States) -> States:
    """Apply `f` to the arrays of the recurrent states; keys and values pass."""
    return tuple(
        jax.tree.map(f, *group) if isinstance(group[0], FixedState) else group[0]
        for group in zip(states, *others, strict=True)
    )


def _copy_slot(
    buffer: jax.Array, slot: jax.Array, values: jax.Array, from_slot: jax.Array
) -> jax.Array:
    value = jax.lax.dynamic_index_in_dim(values, from_slot, axis=1)
    return jax.lax.dynamic_update_slice_in_dim(buffer, value.astype(buffer.dtype), slot, axis=1)
