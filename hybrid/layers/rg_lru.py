"""The recurrent block of Griffin and RecurrentGemma."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from hybrid.config import Compute, RGLRUSpec
from hybrid.layers.conv import CausalConv
from hybrid.layers.linear import Linear, param_dtype
from hybrid.layers.mlp import activation
from hybrid.layers.part import Part, PartResult, Tile
from hybrid.state import RecurrentState, State
from kernels.linear_scan import linear_scan, linear_step


class RGLRU(Part):
    """out(act(gate) * RG-LRU(conv(x))): h_t = a_t h_{t-1} + sqrt(1 - a_t^2) i_t x_t, with input
    gate i and decay a = exp(-c r softplus(decay)) from block-diagonal projections of x.

    The first position of a prompt enters unscaled, as there is no state to share with.

    Source: De et al., "Griffin", 2024, section 2.4.
    """

    stateful = True

    def __init__(self, spec: RGLRUSpec, hidden_size: int, compute: Compute, rngs: nnx.Rngs) -> None:
        activation(spec)
        dtype, block = param_dtype(compute), spec.width // spec.num_blocks
        self.in_proj = Linear(hidden_size, 2 * spec.width, compute, rngs, use_bias=True)
        self.out_proj = Linear(spec.width, hidden_size, compute, rngs, use_bias=True)
        self.conv = CausalConv(spec.conv_width, spec.width, None, compute, rngs, use_bias=True)
        init = jax.nn.initializers.normal(block**-0.5)
        self.gates_weight = nnx.Param(
            init(rngs.params(), (spec.num_blocks, block, 2 * block), dtype)
        )
        self.gates_bias = nnx.Param(jnp.zeros((spec.num_blocks, 2 * block), dtype))
        # Decays between 0.9 and 0.999 where the gate is open; fp32, as they decide what a state
        # remembers.
        rate = -jnp.log(jax.random.uniform(rngs.params(), (spec.width,), jnp.float32, 0.9, 0.999))
        self.decay = nnx.Param(jnp.log(jnp.expm1(rate / spec.decay_power)))
        self.spec = spec
        self.compute = compute

    def _project(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Output gate and convolution input, [..., M]."""
        gate, x = jnp.split(self.in_proj(x), 2, axis=-1)
        return activation(self.spec)(gate), x

    def _recurrence(self, x: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Fp32 log-decay and input of the scan, [..., M]; `start` [...] marks first positions."""
        spec, compute = self.spec, self.compute
        blocks = x.reshape(*x.shape[:-1], spec.num_blocks, -1)
        gates = jnp.einsum(
            "...ki,kij->...kj",
            blocks,
            self.gates_weight[...].astype(x.dtype),
            precision=compute.precision if compute.dtype == "float32" else None,
            preferred_element_type=jnp.float32,
        )
        bias = self.gates_bias[...].astype(jnp.float32)
        gates = jax.nn.sigmoid(gates + jnp.expand_dims(bias, range(x.ndim - 1)))
        enter, open_ = (part.reshape(x.shape) for part in jnp.split(gates, 2, axis=-1))
        rate = spec.decay_power * jax.nn.softplus(self.decay[...])
        log_decay = -open_ * jnp.expand_dims(rate, range(x.ndim - 1))
        share = jnp.where(start[..., None], 1.0, jnp.sqrt(-jnp.expm1(2.0 * log_decay)))
        return log_decay, x.astype(jnp.float32) * enter * share

    def _finish(self, y: jax.Array, gate: jax.Array) -> jax.Array:
        return self.out_proj(y.astype(gate.dtype) * gate)

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Run a whole sequence from the empty state."""
        gate, x = self._project(x_BTD)
        start_BT = jnp.broadcast_to(jnp.arange(x.shape[1])[None] == 0, x.shape[:2])
        y = linear_scan(
            *self._recurrence(self.conv(x), start_BT), implementation=self.compute.implementation
        ).y
        return self._finish(y, gate)

    def prefill(self, x_BTD: Float[Array, "B T D"], state: State | None, tile: Tile) -> PartResult:
        """Run one tile; rows below `tile.first` leave the state as it is."""
        assert isinstance(state, RecurrentState)
        gate, x = self._project(x_BTD)
        conv = self.conv.tile(x, state.conv, tile)  # gives 0 below `first`
        positions = tile.start + jnp.arange(x.shape[1])
        start_BT = jnp.broadcast_to(positions[None] == 0, x.shape[:2])
        log_decay, x = self._recurrence(conv.y, start_BT)
        scan = linear_scan(
            jnp.where(tile.live(x.shape[1])[..., None], log_decay, 0.0),
            x,
            initial_state=state.scan,
            capture_offsets=tile.capture_offsets,
            lengths=tile.lengths,
            implementation=self.compute.implementation,
        )
        return PartResult(
            self._finish(scan.y, gate),
            RecurrentState(scan.final_state, conv.final_state),
            RecurrentState(scan.captured, conv.captured),
        )

    def decode(
        self, x_BD: Float[Array, "B D"], state: State | None, position: Int[Array, "B"]
    ) -> tuple[Float[Array, "B D"], State | None]:
        """Run one token."""
        assert isinstance(state, RecurrentState)
        gate, x = self._project(x_BD)
        x, conv = self.conv.step(x, state.conv)
        y, scan = linear_step(*self._recurrence(x, position == 0), state.scan)
        return self._finish(y, gate), RecurrentState(scan, conv)
