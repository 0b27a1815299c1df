"""The gated short convolution."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from hybrid.config import Compute, ShortConvSpec
from hybrid.layers.conv import CausalConv
from hybrid.layers.linear import Linear
from hybrid.layers.part import Part, PartResult, Tile
from hybrid.state import ConvState, State


class ShortConv(Part):
    """out(C * conv(B * x)): two gates around a convolution of a few taps.

    Source: Liquid AI, "LFM2 Technical Report", 2025.
    """

    stateful = True

    def __init__(
        self, spec: ShortConvSpec, hidden_size: int, compute: Compute, rngs: nnx.Rngs
    ) -> None:
        self.in_proj = Linear(hidden_size, 3 * hidden_size, compute, rngs, use_bias=spec.bias)
        self.out_proj = Linear(hidden_size, hidden_size, compute, rngs, use_bias=spec.bias)
        self.conv = CausalConv(
            spec.conv_width, hidden_size, None, compute, rngs, use_bias=spec.bias
        )

    def _project(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Convolution input B * x and output gate C."""
        B, C, x = jnp.split(self.in_proj(x), 3, axis=-1)
        return B * x, C

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Run a whole sequence from the empty state."""
        Bx, C = self._project(x_BTD)
        return self.out_proj(C * self.conv(Bx))

    def prefill(self, x_BTD: Float[Array, "B T D"], state: State | None, tile: Tile) -> PartResult:
        """Run one tile; rows below `tile.first` leave the state as it is."""
        assert isinstance(state, ConvState)
        Bx, C = self._project(x_BTD)
        conv = self.conv.tile(Bx, state.conv, tile)
        return PartResult(
            self.out_proj(C * conv.y), ConvState(conv.final_state), ConvState(conv.captured)
        )

    def decode(
        self, x_BD: Float[Array, "B D"], state: State | None, position: Int[Array, "B"]
    ) -> tuple[Float[Array, "B D"], State | None]:
        """Run one token."""
        assert isinstance(state, ConvState)
        Bx, C = self._project(x_BD)
        y, conv = self.conv.step(Bx, state.conv)
        return self.out_proj(C * y), ConvState(conv)
