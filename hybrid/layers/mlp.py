"""Feed-forward parts."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from hybrid.config import Compute, MLPSpec
from hybrid.layers.linear import Linear, constant
from hybrid.layers.part import Part


def _gelu_tanh(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)


def _gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def _relu2(x: jax.Array) -> jax.Array:
    return jnp.square(jax.nn.relu(x))


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": _gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu2": _relu2,
}


class MLP(Part):
    """Gated or plain two-layer perceptron; the gate and up projections are one product."""

    def __init__(self, spec: MLPSpec, hidden_size: int, compute: Compute, rngs: nnx.Rngs) -> None:
        if spec.activation not in ACTIVATIONS:
            raise ValueError(
                f"MLPSpec.activation is {spec.activation!r}; expected one of {sorted(ACTIVATIONS)}"
            )
        width = spec.intermediate_size * (2 if spec.gated else 1)
        self.up = Linear(hidden_size, width, compute, rngs, use_bias=spec.bias)
        self.down = Linear(spec.intermediate_size, hidden_size, compute, rngs, use_bias=spec.bias)
        self.spec = spec

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Apply to every row."""
        act = ACTIVATIONS[self.spec.activation]
        y = self.up(x_BTD)
        if self.spec.gated:
            gate, up = jnp.split(y, 2, axis=-1)
            y = act(gate * constant(self.spec.gate_multiplier, gate)) * up
        else:
            y = act(y)
        y = self.down(y)
        return y * constant(self.spec.down_multiplier, y)
