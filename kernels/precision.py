"""What precision a matrix product asks for."""

import jax.numpy as jnp
from jax import lax

HIGHEST = lax.Precision.HIGHEST


def product_precision(dtype: jnp.dtype) -> lax.Precision:
    """fp32 operands ask for fp32 products (a TPU would round them to bf16); bf16 ones need not."""
    return HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT
