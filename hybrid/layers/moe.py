"""The mixture of experts."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from hybrid.config import Compute, MoESpec
from hybrid.layers.linear import Linear, param_dtype
from hybrid.layers.mlp import activation
from hybrid.layers.part import Part, PartResult, Tile
from hybrid.state import State

_NOWHERE = -1


class MoE(Part):
    """Dropless mixture of experts whose result in a row depends on that row alone, bit for bit.

    A loop over the experts applies each to all rows of the tile in products of one shape and keeps
    what the rows chose; an expert that no row chose is skipped. A row's k results are then summed
    in the order of its choice. Grouping rows by expert would save work, num_experts / top_k times
    at most, but a row's place in a product, and so its bits, would depend on its neighbours.

    Source: Shazeer et al., "Outrageously Large Neural Networks", 2017.
    """

    def __init__(self, spec: MoESpec, hidden_size: int, compute: Compute, rngs: nnx.Rngs) -> None:
        activation(spec)
        dtype, experts, inner = param_dtype(compute), spec.num_experts, spec.intermediate_size
        width = inner * (2 if spec.gated else 1)
        init = jax.nn.initializers.normal
        self.router = Linear(hidden_size, experts, compute, rngs)
        self.choice_bias = (
            nnx.Param(jnp.zeros((experts,), jnp.float32)) if spec.routing == "sigmoid" else None
        )
        self.up = nnx.Param(
            init(hidden_size**-0.5)(rngs.params(), (experts, hidden_size, width), dtype)
        )
        self.down = nnx.Param(
            init(inner**-0.5)(rngs.params(), (experts, inner, hidden_size), dtype)
        )
        self.spec = spec
        self.compute = compute

    def _route(self, x_RD: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Chosen experts int32 [rows, top_k], best first, and their fp32 weights."""
        spec = self.spec
        scores = self.router(x_RD, out_dtype=jnp.float32)
        if spec.routing == "softmax":
            scores = jax.nn.softmax(scores, axis=-1)
        choice = scores
        if self.choice_bias is not None:
            scores = jax.nn.sigmoid(scores)
            choice = scores + self.choice_bias[...][None]
        _, chosen = jax.lax.top_k(choice, spec.top_k)
        weights = jnp.take_along_axis(scores, chosen, axis=-1)
        if spec.routing == "softmax_of_top":
            weights = jax.nn.softmax(weights, axis=-1)
        elif spec.renormalise:
            weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        return chosen, weights * spec.scale

    def _expert(self, x_RD: jax.Array, index: jax.Array) -> jax.Array:
        """One expert on all rows."""
        act = activation(self.spec)
        y = self._product(x_RD, self.up[...], index).astype(x_RD.dtype)
        if self.spec.gated:
            gate, up = jnp.split(y, 2, axis=-1)
            y = act(gate) * up
        else:
            y = act(y)
        return self._product(y, self.down[...], index)

    def _product(self, x: jax.Array, kernels: jax.Array, index: jax.Array) -> jax.Array:
        compute = self.compute
        kernel = jax.lax.dynamic_index_in_dim(kernels, index, axis=0, keepdims=False)
        return jax.lax.dot_general(
            x,
            kernel.astype(x.dtype),
            (((1,), (0,)), ((), ())),
            precision=compute.precision if compute.dtype == "float32" else None,
            preferred_element_type=jnp.float32,
        )

    def _apply(self, x: jax.Array, live: jax.Array) -> jax.Array:
        rows = x.reshape(-1, x.shape[-1])
        chosen, weights = self._route(rows)
        chosen = jnp.where(live.reshape(-1)[:, None], chosen, _NOWHERE)

        def one(index: jax.Array, outputs: jax.Array) -> jax.Array:
            """Enter an expert's results into outputs [rows, top_k, hidden] where rows chose it."""
            mine = chosen == index

            def run(outputs: jax.Array) -> jax.Array:
                y = self._expert(rows, index)
                return jnp.where(mine[..., None], y[:, None], outputs)

            return jax.lax.cond(jnp.any(mine), run, lambda outputs: outputs, outputs)

        outputs = jnp.zeros((*chosen.shape, x.shape[-1]), jnp.float32)
        outputs = jax.lax.fori_loop(0, self.spec.num_experts, one, outputs)
        y = outputs[:, 0] * weights[:, :1]
        for slot in range(1, self.spec.top_k):
            y = y + outputs[:, slot] * weights[:, slot : slot + 1]
        return y.astype(x.dtype).reshape(x.shape)

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Apply to every row."""
        return self._apply(x_BTD, jnp.ones(x_BTD.shape[:-1], bool))

    def prefill(self, x_BTD: Float[Array, "B T D"], state: State | None, tile: Tile) -> PartResult:
        """Run one tile; rows below `tile.first` and from `tile.lengths` on go to no expert."""
        rows = x_BTD.shape[1]
        live = tile.live(rows) & (jnp.arange(rows)[None, :] < tile.lengths[:, None])
        return PartResult(self._apply(x_BTD, live), None, None)

    def decode(
        self, x_BD: Float[Array, "B D"], state: State | None, position: Int[Array, "B"]
    ) -> tuple[Float[Array, "B D"], State | None]:
        """Run one token; only the chosen experts run."""
        return self._apply(x_BD, jnp.ones(x_BD.shape[:-1], bool)), None
