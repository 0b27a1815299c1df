"""Projection, embedding and root-mean-square norm; fp32 accumulation whatever the operands are."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from hybrid.config import Compute, NormSpec


def param_dtype(compute: Compute) -> Any:
    """The dtype that parameters are stored in."""
    return jnp.dtype(compute.param_dtype or compute.dtype)


def constant(value: float | jax.Array, like: jax.Array) -> jax.Array:
    """`value` in the dtype of `like`, so that strict promotion sees equal dtypes."""
    return jnp.asarray(value, like.dtype)


class Linear(nnx.Module):
    """x @ kernel + bias, accumulated in fp32 and returned in the compute dtype.

    `nnx.Linear` returns bf16 products in bf16, which XLA's CPU backend runs at fp32 speed; asking
    the product in fp32 is what makes bf16 operands fast there, and then its bias addition mixes
    dtypes.

    Args:
        in_features, out_features: widths.
        compute: dtypes and precision.
        use_bias: adds a bias.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        compute: Compute,
        rngs: nnx.Rngs,
        *,
        use_bias: bool = False,
    ) -> None:
        init = jax.nn.initializers.normal(in_features**-0.5)
        dtype = param_dtype(compute)
        self.kernel = nnx.Param(init(rngs.params(), (in_features, out_features), dtype))
        self.bias = nnx.Param(jnp.zeros((out_features,), dtype)) if use_bias else None
        self.dtype = compute.dtype
        self.precision = compute.precision if compute.dtype == "float32" else None

    def __call__(
        self, x: Float[Array, "*rows I"], out_dtype: Any = None
    ) -> Float[Array, "*rows O"]:
        """Project the last axis; `out_dtype` overrides the compute dtype of the result."""
        y = jax.lax.dot_general(
            x.astype(self.dtype),
            self.kernel[...].astype(self.dtype),
            (((x.ndim - 1,), (0,)), ((), ())),
            precision=self.precision,
            preferred_element_type=jnp.float32,
        )
        if self.bias is not None:
            y = y + jnp.expand_dims(self.bias[...].astype(jnp.float32), range(y.ndim - 1))
        return y.astype(out_dtype or self.dtype)


class Embedding(nnx.Module):
    """Token embedding; `attend` is the tied head."""

    def __init__(self, vocab_size: int, hidden_size: int, compute: Compute, rngs: nnx.Rngs) -> None:
        init = jax.nn.initializers.normal(hidden_size**-0.5)
        self.weight = nnx.Param(
            init(rngs.params(), (vocab_size, hidden_size), param_dtype(compute))
        )
        self.dtype = compute.dtype
        self.precision = compute.precision if compute.dtype == "float32" else None

    def __call__(self, tokens: Int[Array, "*rows"]) -> Float[Array, "*rows D"]:
        """Rows of the table in the compute dtype."""
        return jnp.take(self.weight[...], tokens, axis=0, mode="clip").astype(self.dtype)

    def attend(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Fp32 scores of every token."""
        return jax.lax.dot_general(
            x.astype(self.dtype),
            self.weight[...].astype(self.dtype),
            (((x.ndim - 1,), (1,)), ((), ())),
            precision=self.precision,
            preferred_element_type=jnp.float32,
        )


class RMSNorm(nnx.Module):
    """Root-mean-square norm over the last axis, computed in fp32.

    Args:
        size: of the last axis.
        spec: eps and weight convention.
        groups: the last axis is cut into this many parts that are normalised apart.
    """

    def __init__(self, size: int, spec: NormSpec, compute: Compute, groups: int = 1) -> None:
        init = jnp.zeros if spec.zero_centred else jnp.ones
        self.weight = nnx.Param(init((size,), param_dtype(compute)))
        self.spec = spec
        self.groups = groups

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Normalise; the result has the dtype of `x`."""
        x32 = x.astype(jnp.float32)
        grouped = x32.reshape(*x.shape[:-1], self.groups, -1)
        mean_square = jnp.mean(jnp.square(grouped), axis=-1, keepdims=True)
        y = (grouped * jax.lax.rsqrt(mean_square + self.spec.eps)).reshape(x.shape)
        weight = self.weight[...].astype(jnp.float32)
        if self.spec.zero_centred:
            weight = weight + 1.0
        return (y * jnp.expand_dims(weight, range(x.ndim - 1))).astype(x.dtype)
