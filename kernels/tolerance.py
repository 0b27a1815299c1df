"""How far two right answers may lie apart, as a function of dtype and length, in one place."""

import math

import jax.numpy as jnp
from jax.typing import DTypeLike


def tolerance(dtype: DTypeLike, length: int) -> float:
    """Largest error that rounding explains, relative to the largest magnitude in the array.

    Every product and sum in the scans rounds to fp32 (unit roundoff u = 2^-24), whatever the inputs
    are: products of bf16 values are exact in fp32. A state is a sum of up to `length` such terms.
    Rounding errors are as good as independent, so the sum's error grows like sqrt(length) u times
    its terms' size (decay only shortens the sum), and two forms that sum in different orders may
    differ by twice that. The constant 16 is that 2, times 8 for what goes into one term: the
    decay's exponent and exp (about 3 roundings), two products, and the gap between a term's size
    and the largest magnitude.

    With bf16 inputs two more roundings appear, at u = 2^-8: of the attention-like matrix inside a
    chunk before it meets x, and of y itself. Neither accumulates over the length; 2 u covers both
    and the fp32 part is added.

    Args:
        dtype: the dtype of the compared array: float32 for states, the input's for y.
        length: tokens that the result depends on.

    Returns:
        A factor for `max(abs(expected))`.

    Raises:
        TypeError: another dtype.
    """
    fp32 = 16 * math.sqrt(max(length, 1)) * 2.0**-24
    if dtype == jnp.float32:
        return fp32
    if dtype == jnp.bfloat16:
        return 2 * 2.0**-8 + fp32
    raise TypeError(f"tolerance: dtype is {dtype}; expected float32 or bfloat16")
