"""Feed-forward parts."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from hybrid.config import Compute, MLPSpec, MoESpec, RGLRUSpec
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


def activation(spec: MLPSpec | MoESpec | RGLRUSpec) -> Callable[[jax.Array], jax.Array]:
    """The nonlinearity that a spec names.

    Raises:
        ValueError: there is none of that name.
    """
    if spec.activation not in ACTIVATIONS:
        raise ValueError(
            f"{type(spec).__name__}.activation is {spec.activation!r}; expected one of "
            f"{sorted(ACTIVATIONS)}"
        )
    return ACTIVATIONS[spec.activation]


class MLP(Part):
    """Gated or plain two-layer perceptron; the gate and up projections are one product."""

    def __init__(self, spec: MLPSpec, hidden_size: int, compute: Compute, rngs: nnx.Rngs) -> None:
        activation(spec)
        width = spec.intermediate_size * (2 if spec.gated else 1)
        self.up = Linear(hidden_size, width, compute, rngs, use_bias=spec.bias)
        self.down = Linear(spec.intermediate_size, hidden_size, compute, rngs, use_bias=spec.bias)
        self.row_gate = Linear(hidden_size, 1, compute, rngs) if spec.row_gate else None
        self.spec = spec

    def __call__(
        self, x_BTD: Float[Array, "B T D"], extra_BTF: Float[Array, "B T F"] | None = None
    ) -> Float[Array, "B T D"]:
        """Apply to every row; `extra_BTF` is added to the first projection's output."""
        act = activation(self.spec)
        y = self.up(x_BTD)
        if extra_BTF is not None:
            y = y + extra_BTF
        if self.spec.gated:
            gate, up = jnp.split(y, 2, axis=-1)
            y = act(gate * constant(self.spec.gate_multiplier, gate)) * up
        else:
            y = act(y)
        y = self.down(y)
        if self.row_gate is not None:
            y = y * jax.nn.sigmoid(self.row_gate(x_BTD))
        return y * constant(self.spec.down_multiplier, y)
