"""The inverse of I + L for strictly lower triangular L, by halves.

    [A   ]^-1   [    A^-1          ]
    [X  D]    = [-D^-1 X A^-1  D^-1]

from 8-row blocks up, doubling. Every intermediate is a block of the answer, so nothing grows that
the answer does not hold. The product (I - L)(I + L^2)(I + L^4)... has as few steps, but its powers
of L grow like binomial coefficients where keys repeat (64 equal keys with beta = 1: 1e18 against an
answer of 1).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from kernels.in_kernel import square
from kernels.precision import HIGHEST

BASE = 8
"""Rows of the smallest blocks, inverted by forward substitution."""


def unit_lower_inverse(lower: Float[Array, "... C C"]) -> Float[Array, "... C C"]:
    """Invert I + lower.

    Args:
        lower: float32, strictly lower triangular, with C = 8 times a power of two.

    Returns:
        The inverse, float32. Its first r rows depend on the first r rows of `lower` alone, bit for
        bit.
    """
    size = lower.shape[-1]
    blocks = _substitute(_diagonal_blocks(lower, BASE, 0))
    width = BASE
    while width < size:
        upper_left, lower_right = blocks[..., 0::2, :, :], blocks[..., 1::2, :, :]
        below = _diagonal_blocks(lower, 2 * width, width)
        corner = -_product(lower_right, _product(below, upper_left))
        top = jnp.concatenate([upper_left, jnp.zeros_like(upper_left)], axis=-1)
        bottom = jnp.concatenate([corner, lower_right], axis=-1)
        blocks = jnp.concatenate([top, bottom], axis=-2)
        width *= 2
    return blocks[..., 0, :, :]


def unit_lower_inverse_whole(lower: Float[Array, "C C"]) -> Float[Array, "C C"]:
    """Invert I + lower as :func:`unit_lower_inverse` does, in products of whole matrices.

    More arithmetic, but neither slices nor joins: what a kernel can do on every backend. From
    blocks of one row up, with M the squares under the diagonal blocks of a width: T <- T - T (L M)
    T.
    """
    size = lower.shape[-1]
    down, along = square(size)
    inverse = jnp.where(down == along, 1.0, 0.0)
    width = 1
    while width < size:
        same_pair = down // (2 * width) == along // (2 * width)
        below = same_pair & (down // width > along // width)
        corners = jnp.where(below, lower, 0.0)
        if width == 1:
            inverse = inverse - corners
        else:
            inverse = inverse - _product(inverse, _product(corners, inverse))
        width *= 2
    return inverse


def _diagonal_blocks(lower: Array, step: int, below: int) -> Array:
    """Blocks along the diagonal; with `below`, each one's lower left square."""
    width = below or step
    starts = range(0, lower.shape[-1], step)
    return jnp.stack(
        [
            lower[..., start + below : start + below + width, start : start + width]
            for start in starts
        ],
        axis=-3,
    )


def _substitute(blocks: Array) -> Array:
    """Invert I + block row by row; elementwise over all blocks at once."""
    unit = jnp.eye(BASE, dtype=jnp.float32)
    rows: list[Array] = []
    for index in range(BASE):
        row = jnp.broadcast_to(unit[index], (*blocks.shape[:-2], BASE))
        for earlier in range(index):
            row = row - blocks[..., index, earlier, None] * rows[earlier]
        rows.append(row)
    return jnp.stack(rows, axis=-2)


def _product(left: Array, right: Array) -> Array:
    return jnp.matmul(left, right, precision=HIGHEST)
