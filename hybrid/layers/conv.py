"""The causal depthwise convolution of recurrent parts."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from hybrid.config import Compute
from hybrid.layers.linear import param_dtype
from hybrid.layers.part import Tile
from kernels.causal_conv import causal_conv, causal_conv_step
from kernels.scan import ScanResult


class CausalConv(nnx.Module):
    """Weights [width, channels], oldest tap first, and the three ways to run them.

    Args:
        width: W, taps.
        channels: M.
        activation: None or "silu".
        compute: dtypes.
        use_bias: adds a bias.
    """

    def __init__(
        self,
        width: int,
        channels: int,
        activation: str | None,
        compute: Compute,
        rngs: nnx.Rngs,
        *,
        use_bias: bool,
    ) -> None:
        dtype, bound = param_dtype(compute), width**-0.5
        self.weight = nnx.Param(
            jax.random.uniform(rngs.params(), (width, channels), dtype, -bound, bound)
        )
        self.bias = nnx.Param(jnp.zeros((channels,), dtype)) if use_bias else None
        self.activation = activation

    def _params(self, like: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        bias = None if self.bias is None else self.bias[...].astype(like.dtype)
        return self.weight[...].astype(like.dtype), bias

    def __call__(self, x: Float[Array, "B T M"]) -> Float[Array, "B T M"]:
        """Run a whole sequence from the empty state."""
        return causal_conv(x, *self._params(x), activation=self.activation).y

    def tile(
        self, x: Float[Array, "B T M"], state: Float[Array, "B U M"], tile: Tile
    ) -> ScanResult:
        """Run one tile; rows below `tile.first` do not count and give 0."""
        return causal_conv(
            x,
            *self._params(x),
            initial_state=state,
            start=tile.first,
            capture_offsets=tile.capture_offsets,
            lengths=tile.lengths,
            activation=self.activation,
        )

    def step(
        self, x: Float[Array, "B M"], state: Float[Array, "B U M"]
    ) -> tuple[Float[Array, "B M"], Float[Array, "B U M"]]:
        """Run one token."""
        return causal_conv_step(x, *self._params(x), state, activation=self.activation)
