"""How fast the states of Mamba-2 and of gated delta nets fade: initial rates and step sizes."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def initial_decay(heads: int, rngs: nnx.Rngs) -> tuple[nnx.Param, nnx.Param]:
    """Draw rates -A evenly from 1..16, and step sizes from 1e-3..1e-1 evenly in their logarithm.

    They are fp32 whatever the dtype of other parameters, for they decide how much of the prompt a
    state remembers.

    Args:
        heads: H.
        rngs: with a `params` stream.

    Returns:
        `A_log`, the logarithm of the rates, and `dt_bias`, whose softplus is the step size: fp32
        [heads] each.

    Source: Dao and Gu, "Transformers are SSMs", 2024.
    """
    A_log = jnp.log(jax.random.uniform(rngs.params(), (heads,), jnp.float32, 1.0, 16.0))
    log_dt = jax.random.uniform(
        rngs.params(), (heads,), jnp.float32, float(np.log(1e-3)), float(np.log(1e-1))
    )
    dt = jnp.exp(log_dt)
    return nnx.Param(A_log), nnx.Param(dt + jnp.log(-jnp.expm1(-dt)))
