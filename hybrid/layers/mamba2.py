"""The Mamba-2 mixer."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from hybrid.config import Compute, Mamba2Spec, NormSpec
from hybrid.layers.conv import CausalConv
from hybrid.layers.decay import initial_decay
from hybrid.layers.linear import Linear, RMSNorm, constant
from hybrid.layers.part import Part, PartResult, Tile
from hybrid.state import RecurrentState, State
from kernels.ssd import ssd_scan, ssd_step


class Mamba2(Part):
    """Mamba-2: one projection to (gate, x, B, C, dt), convolution, SSD scan, D skip, gated norm,
    projection.

    Source: Dao and Gu, "Transformers are SSMs", 2024.
    """

    stateful = True

    def __init__(
        self, spec: Mamba2Spec, hidden_size: int, compute: Compute, rngs: nnx.Rngs
    ) -> None:
        heads = spec.num_heads
        width = spec.inner_dim + spec.conv_dim + heads
        self.in_proj = Linear(hidden_size, width, compute, rngs, use_bias=spec.proj_bias)
        self.out_proj = Linear(spec.inner_dim, hidden_size, compute, rngs, use_bias=spec.proj_bias)
        self.conv = CausalConv(
            spec.conv_width, spec.conv_dim, "silu", compute, rngs, use_bias=spec.conv_bias
        )
        self.A_log, self.dt_bias = initial_decay(heads, rngs)
        self.D = nnx.Param(jnp.ones((heads,), jnp.float32))
        self.norm = (
            None
            if spec.norm_eps is None
            else RMSNorm(
                spec.inner_dim,
                NormSpec(spec.norm_eps),
                compute,
                groups=spec.num_groups if spec.norm_groups is None else spec.norm_groups,
            )
        )
        self.spec = spec
        self.compute = compute

    def _project(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Gate [..., inner], convolution input [..., M] and fp32 step size before its bias [...,
        H]."""
        spec = self.spec
        x = x * constant(spec.input_multiplier, x)
        y = self.in_proj(x, out_dtype=jnp.float32)
        if any(m != 1.0 for m in spec.projection_multipliers):
            y = y * jnp.expand_dims(self._projection_scale(), range(y.ndim - 1))
        gate, xBC, dt = jnp.split(y, [spec.inner_dim, spec.inner_dim + spec.conv_dim], axis=-1)
        return gate.astype(x.dtype), xBC.astype(x.dtype), dt

    def _projection_scale(self) -> jax.Array:
        spec = self.spec
        bc = spec.num_groups * spec.state_dim
        widths = (spec.inner_dim, spec.inner_dim, bc, bc, spec.num_heads)
        return jnp.asarray(np.repeat(np.asarray(spec.projection_multipliers, np.float32), widths))

    def _dt(self, raw: jax.Array) -> jax.Array:
        dt = jax.nn.softplus(raw + jnp.expand_dims(self.dt_bias[...], range(raw.ndim - 1)))
        return jnp.clip(dt, *self.spec.dt_limit)

    def _split(self, xBC: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        spec, lead = self.spec, xBC.shape[:-1]
        bc = spec.num_groups * spec.state_dim
        x, B, C = jnp.split(xBC, [spec.inner_dim, spec.inner_dim + bc], axis=-1)
        return (
            x.reshape(*lead, spec.num_heads, spec.head_dim),
            B.reshape(*lead, spec.num_groups, spec.state_dim),
            C.reshape(*lead, spec.num_groups, spec.state_dim),
        )

    def _finish(self, y: jax.Array, x: jax.Array, gate: jax.Array) -> jax.Array:
        """D skip, gate, norm and output projection; y and x are [..., H, P]."""
        skip = jnp.expand_dims(self.D[...], range(y.ndim - 2))[..., None]
        y32 = y.astype(jnp.float32) + skip * x.astype(jnp.float32)
        y32 = y32.reshape(*y.shape[:-2], -1)
        silu = jax.nn.silu(gate.astype(jnp.float32))
        if self.norm is None:
            y32 = y32 * silu
        elif self.spec.norm_before_gate:
            y32 = self.norm(y32) * silu
        else:
            y32 = self.norm(y32 * silu)
        out = self.out_proj(y32.astype(gate.dtype))
        return out * constant(self.spec.output_multiplier, out)

    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Run a whole sequence from the empty state."""
        gate, xBC, dt = self._project(x_BTD)
        x, B, C = self._split(self.conv(xBC))
        y = ssd_scan(
            x,
            self._dt(dt),
            -jnp.exp(self.A_log[...]),
            B,
            C,
            chunk=self.compute.chunk,
            implementation=self.compute.implementation,
        ).y
        return self._finish(y, x, gate)

    def prefill(self, x_BTD: Float[Array, "B T D"], state: State | None, tile: Tile) -> PartResult:
        """Run one tile; rows below `tile.first` leave the state as it is."""
        assert isinstance(state, RecurrentState)
        gate, xBC, dt = self._project(x_BTD)
        conv = self.conv.tile(xBC, state.conv, tile)
        x, B, C = self._split(conv.y)
        dt = jnp.where(tile.live(x.shape[1])[..., None], self._dt(dt), 0.0)
        scan = ssd_scan(
            x,
            dt,
            -jnp.exp(self.A_log[...]),
            B,
            C,
            initial_state=state.scan,
            capture_offsets=tile.capture_offsets,
            lengths=tile.lengths,
            chunk=self.compute.chunk,
            implementation=self.compute.implementation,
        )
        return PartResult(
            self._finish(scan.y, x, gate),
            RecurrentState(scan.final_state, conv.final_state),
            RecurrentState(scan.captured, conv.captured),
        )

    def decode(
        self, x_BD: Float[Array, "B D"], state: State | None, position: Int[Array, "B"]
    ) -> tuple[Float[Array, "B D"], State | None]:
        """Run one token."""
        assert isinstance(state, RecurrentState)
        gate, xBC, dt = self._project(x_BD)
        xBC, conv = self.conv.step(xBC, state.conv)
        x, B, C = self._split(xBC)
        y, scan = ssd_step(x, self._dt(dt), -jnp.exp(self.A_log[...]), B, C, state.scan)
        return self._finish(y, x, gate), RecurrentState(scan, conv)
