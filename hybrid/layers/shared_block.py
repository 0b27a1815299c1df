"""A transformer block whose weights several branches use, and what each use adds to it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from hybrid.config import Compute, InjectionSpec, SharedBlockSpec
from hybrid.layers.attention import Attention
from hybrid.layers.linear import Linear, RMSNorm
from hybrid.layers.mlp import MLP

Attend = Callable[[Attention, jax.Array, jax.Array | None], jax.Array]
"""(attention, input, what to add to the projected queries, keys and values) -> output."""


class SharedBlock(nnx.Module):
    """The shared weights: norm and attention over twice the hidden size, norm and MLP.

    Source: Glorioso et al., "The Zamba2 Suite", 2024.
    """

    def __init__(
        self, spec: SharedBlockSpec, hidden_size: int, compute: Compute, rngs: nnx.Rngs
    ) -> None:
        self.norm = RMSNorm(2 * hidden_size, spec.norm, compute)
        self.attention = Attention(
            spec.attention, hidden_size, compute, rngs, input_size=2 * hidden_size
        )
        self.mlp_norm = RMSNorm(hidden_size, spec.norm, compute)
        self.mlp = MLP(spec.mlp, hidden_size, compute, rngs)


class LowRank(nnx.Module):
    """x @ down @ up."""

    def __init__(
        self, in_features: int, rank: int, out_features: int, compute: Compute, rngs: nnx.Rngs
    ) -> None:
        self.down = Linear(in_features, rank, compute, rngs)
        self.up = Linear(rank, out_features, compute, rngs)

    def __call__(self, x: Float[Array, "*rows I"]) -> Float[Array, "*rows O"]:
        """The correction for every row."""
        return self.up(self.down(x))


class Injection(nnx.Module):
    """One use of a shared block: low-rank corrections and the output projection."""

    def __init__(
        self,
        spec: InjectionSpec,
        block: SharedBlockSpec,
        hidden_size: int,
        compute: Compute,
        rngs: nnx.Rngs,
    ) -> None:
        attention = block.attention
        widths = [
            heads * attention.head_dim
            for heads in (attention.num_heads, attention.num_kv_heads, attention.num_kv_heads)
        ]
        rank = spec.attention_rank
        self.qkv = nnx.List(
            []
            if rank is None
            else [LowRank(2 * hidden_size, rank, width, compute, rngs) for width in widths]
        )
        inner = block.mlp.intermediate_size * (2 if block.mlp.gated else 1)
        self.mlp = (
            None
            if spec.mlp_rank is None
            else LowRank(hidden_size, spec.mlp_rank, inner, compute, rngs)
        )
        self.out = Linear(hidden_size, hidden_size, compute, rngs)
        self.block = spec.block

    def __call__(
        self,
        block: SharedBlock,
        stream: Float[Array, "*rows D"],
        embedded: Float[Array, "*rows D"],
        attend: Attend,
    ) -> Float[Array, "*rows D"]:
        """What the branch adds to its norm's input.

        Args:
            block: the shared weights.
            stream: the residual stream.
            embedded: the embedded tokens, the stream before the first layer.
            attend: runs the attention in the caller's mode, with this use's keys and values.
        """
        x = block.norm(jnp.concatenate([stream, embedded], axis=-1))
        extra = jnp.concatenate([low(x) for low in self.qkv], axis=-1) if self.qkv else None
        y = block.mlp_norm(attend(block.attention, x, extra))
        return self.out(block.mlp(y, None if self.mlp is None else self.mlp(y)))
