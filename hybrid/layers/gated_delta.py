"""The gated delta net."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from hybrid.config import Compute, GatedDeltaSpec, NormSpec
from hybrid.layers.conv import CausalConv
from hybrid.layers.decay import initial_decay
from hybrid.layers.linear import Linear, RMSNorm
from hybrid.layers.part import Part, PartResult, Tile
from hybrid.state import RecurrentState, State
from kernels.gated_delta import gated_delta_scan, gated_delta_step

_UNIT_EPS = 1e-6  # added to the squared length of a query or key


class GatedDelta(Part):
    """One projection to (q, k, v, gate, beta, decay), convolution over q, k and v, gated delta
    scan, gated norm a head, projection.

    Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024.
    """

    stateful = True

    def __init__(
        self, spec: GatedDeltaSpec, hidden_size: int, compute: Compute, rngs: nnx.Rngs
    ) -> None:
        heads = spec.num_heads
        width = spec.conv_dim + spec.values_dim + 2 * heads
        self.in_proj = Linear(hidden_size, width, compute, rngs)
        self.out_proj = Linear(spec.values_dim, hidden_size, compute, rngs)
        self.conv = CausalConv(
            spec.conv_width, spec.conv_dim, "silu", compute, rngs, use_bias=False
        )
        self.A_log, self.dt_bias = initial_decay(heads, rngs)
        self.norm = RMSNorm(spec.value_dim, NormSpec(spec.norm_eps), compute)
        self.spec = spec
        self.compute = compute

    def _project(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Convolution input [..., M], gate [..., H * V], fp32 log-decay and write strength [...,
        H]."""
        spec = self.spec
        y = self.in_proj(x, out_dtype=jnp.float32)
        at = np.cumsum([spec.conv_dim, spec.values_dim, spec.num_heads])
        qkv, gate, beta, decay = jnp.split(y, at, axis=-1)
        lead = range(y.ndim - 1)
        rate = jnp.expand_dims(jnp.exp(self.A_log[...]), lead)
        g = -rate * jax.nn.softplus(decay + jnp.expand_dims(self.dt_bias[...], lead))
        beta = jax.nn.sigmoid(beta) * (2.0 if spec.negative_eigenvalues else 1.0)
        return qkv.astype(x.dtype), gate.astype(x.dtype), g, beta

    def _split(self, qkv: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        spec, lead = self.spec, qkv.shape[:-1]
        q, k, v = jnp.split(qkv, [spec.keys_dim, 2 * spec.keys_dim], axis=-1)
        heads = (*lead, spec.num_key_heads, spec.key_dim)
        return (
            _unit(q.reshape(heads)),
            _unit(k.reshape(heads)),
            v.reshape(*lead, spec.num_heads, spec.value_dim),
        )

    def _finish(self, y: jax.Array, gate: jax.Array) -> jax.Array:
        """Norm, gate and output projection; y is [..., H, V]."""
        y32 = self.norm(y.astype(jnp.float32)).reshape(gate.shape)
        y32 = y32 * jax.nn.silu(gate.astype(jnp.float32))
        return self.out_proj(y32.astype(gate.dtype))

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Run a whole sequence from the empty state."""
        qkv, gate, g, beta = self._project(x_BTD)
        y = gated_delta_scan(
            *self._split(self.conv(qkv)),
            g,
            beta,
            chunk=self.compute.chunk,
            implementation=self.compute.implementation,
        ).y
        return self._finish(y, gate)

    def prefill(self, x_BTD: Float[Array, "B T D"], state: State | None, tile: Tile) -> PartResult:
        """Run one tile; rows below `tile.first` leave the state as it is."""
        assert isinstance(state, RecurrentState)
        qkv, gate, g, beta = self._project(x_BTD)
        conv = self.conv.tile(qkv, state.conv, tile)  # gives 0 below `first`, so k = v = 0 there
        live_BT1 = tile.live(x_BTD.shape[1])[..., None]
        scan = gated_delta_scan(
            *self._split(conv.y),
            jnp.where(live_BT1, g, 0.0),
            jnp.where(live_BT1, beta, 0.0),
            initial_state=state.scan,
            capture_offsets=tile.capture_offsets,
            lengths=tile.lengths,
            chunk=self.compute.chunk,
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
        qkv, gate, g, beta = self._project(x_BD)
        qkv, conv = self.conv.step(qkv, state.conv)
        y, scan = gated_delta_step(*self._split(qkv), g, beta, state.scan)
        return self._finish(y, gate), RecurrentState(scan, conv)


def _unit(x: jax.Array) -> jax.Array:
    """Scale the last axis to unit length in fp32; zeros stay zeros."""
    x32 = x.astype(jnp.float32)
    square = jnp.sum(jnp.square(x32), axis=-1, keepdims=True)
    return (x32 * jax.lax.rsqrt(square + _UNIT_EPS)).astype(x.dtype)
