"""The interface that every part of a layer implements, and what a tile tells it."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from hybrid.state import State


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tile:
    """Where a tile lies and which of its rows count; all traced, so one program serves every tile.

        row:    0 ........ first ............... length ........ tile
                | identity | rows of this prompt | padding       |
        position = start + row

    Args:
        start: int32 [], position of row 0; a multiple of the tile.
        first: int32 [batch]; rows below it leave the recurrent state as it is. Above 0 only for a
            restore inside a tile.
        lengths: int32 [batch]; rows from it on are padding.
        capture_offsets: int32 [batch, slots]; rows consumed by each captured state, 0 for an unused
            slot.
    """

    start: Any
    first: Any
    lengths: Any
    capture_offsets: Any

    def live(self, rows: int) -> Bool[Array, "B T"]:
        """Which of the tile's `rows` rows are at or above `first`."""
        return jnp.arange(rows)[None, :] >= self.first[:, None]


class PartResult(NamedTuple):
    """Output of a part on one tile: y [batch, tile, hidden], the state after it, the captured
    states (a slot axis after batch)."""

    y: Any
    state: Any
    captured: Any


class Part(nnx.Module):
    """A mixer or MLP. Parts that remember nothing only implement `__call__`."""

    stateful = False

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Run a whole sequence from the empty state, for training."""
        raise NotImplementedError

    def prefill(self, x_BTD: Float[Array, "B T D"], state: State | None, tile: Tile) -> PartResult:
        """Run one tile from `state`."""
        return PartResult(self(x_BTD), None, None)

    def decode(
        self, x_BD: Float[Array, "B D"], state: State | None, position: Int[Array, "B"]
    ) -> tuple[Float[Array, "B D"], State | None]:
        """Run one token at `position` from `state`."""
        return self(x_BD[:, None])[:, 0], None
