"""Rotary position embedding, half-split form."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def rotate(
    heads: tuple[Float[Array, "B T _ P"], ...],
    positions_BT: Int[Array, "B T"],
    theta: float,
    rotary_dim: int,
) -> tuple[Float[Array, "B T _ P"], ...]:
    """Rotate the first `rotary_dim` channels of every head by angles that grow with the position.

    Channel i pairs with channel i + rotary_dim / 2. Angles and products are fp32.

    Args:
        heads: arrays [batch, length, heads, head_dim], each rotated alike.
        positions_BT: int32 [batch, length].
        theta: base of the geometric series of frequencies.
        rotary_dim: even, at most head_dim; the other channels pass.

    Returns:
        The rotated arrays in their own dtypes.

    Source: Su et al., "RoFormer", 2021.
    """
    half = rotary_dim // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions_BT.astype(jnp.float32)[..., None, None] * frequency[None, None, None]
    cos, sin = jnp.cos(angle), jnp.sin(angle)

    def one(x: jax.Array) -> jax.Array:
        x32 = x.astype(jnp.float32)
        a, b, rest = x32[..., :half], x32[..., half:rotary_dim], x32[..., rotary_dim:]
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1).astype(
            x.dtype
        )

    return tuple(one(x) for x in heads)
