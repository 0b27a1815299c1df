"""Causal grouped-query attention over a buffer of keys and values, read in tiles anchored at
position 0.

The keys are read left to right with a running maximum and sum, so a row's result depends on the
rows before it alone: not on the buffer's capacity, nor on where the chunk that holds the row ended.

    keys   |  unmasked tiles: all keys below the query tile  |  masked tiles  |  never read
           0                                  floor(start / kv_tile)     ceil(end / kv_tile)
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from hybrid.config import AttentionSpec, Compute
from hybrid.layers.linear import Linear, RMSNorm, constant
from hybrid.layers.part import Part, PartResult, Tile
from hybrid.layers.rope import rotate
from hybrid.state import KVState, State, from_storage, to_storage

_MASKED = -1e30  # finite: a row whose first keys are all masked must not turn into NaN


class Attention(Part):
    """Grouped-query attention with optional rotary positions, window, query/key norm and output
    gate.

    Args:
        spec: heads, positions, window, norms, factors.
        hidden_size: D, width of the output and, unless `input_size` says otherwise, of the input.
        compute: dtypes and precision.
        rngs: for the initial weights.
        input_size: width of the input.

    Source: Ainslie et al., "GQA", 2023; the running softmax is that of Milakov and Gimelshein,
    2018.
    """

    stateful = True

    def __init__(
        self,
        spec: AttentionSpec,
        hidden_size: int,
        compute: Compute,
        rngs: nnx.Rngs,
        *,
        input_size: int | None = None,
    ) -> None:
        inner = spec.num_heads * spec.head_dim
        widths = inner * (2 if spec.output_gate else 1) + 2 * spec.num_kv_heads * spec.head_dim
        input_size = hidden_size if input_size is None else input_size
        self.qkv = Linear(input_size, widths, compute, rngs, use_bias=spec.bias)
        self.out = Linear(inner, hidden_size, compute, rngs, use_bias=spec.out_bias)

        def norm(heads: int) -> RMSNorm | None:
            size = spec.head_dim * (heads if spec.qk_norm_joint else 1)
            return None if spec.qk_norm is None else RMSNorm(size, spec.qk_norm, compute)

        self.q_norm, self.k_norm = norm(spec.num_heads), norm(spec.num_kv_heads)
        self.spec = spec
        self.compute = compute

    def _project(
        self, x_BTD: jax.Array, positions_BT: jax.Array, extra_BTE: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
        """Rotated queries [B, T, Q, P], keys and values [B, T, kv_heads, P], and the output gate
        [B, T, Q * P]."""
        spec = self.spec
        inner, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        y = self.qkv(x_BTD * constant(spec.input_multiplier, x_BTD))
        if extra_BTE is not None:
            y = y + extra_BTE
        q, k, v, gate = jnp.split(y, [inner, inner + kv, inner + 2 * kv], axis=-1)
        k = k * constant(spec.key_multiplier, k)
        q, k = self._heads(q, self.q_norm), self._heads(k, self.k_norm)
        if spec.rope_theta is not None:
            dim = spec.head_dim if spec.rotary_dim is None else spec.rotary_dim
            q, k = rotate((q, k), positions_BT, spec.rope_theta, dim)
        return q, k, self._heads(v, None), gate if spec.output_gate else None

    def _heads(self, x_BTE: jax.Array, norm: RMSNorm | None) -> jax.Array:
        """Cut into heads, and normalise each or all together."""
        if norm is not None and self.spec.qk_norm_joint:
            x_BTE, norm = norm(x_BTE), None
        x = x_BTE.reshape(*x_BTE.shape[:2], -1, self.spec.head_dim)
        return x if norm is None else norm(x)

    def _finish(self, y_BTQP: jax.Array, gate: jax.Array | None, dtype: Any) -> jax.Array:
        y = y_BTQP.reshape(*y_BTQP.shape[:2], -1)
        if gate is not None:
            y = y * jax.nn.sigmoid(gate.astype(jnp.float32))
        out = self.out(y.astype(dtype))
        return out * constant(self.spec.output_multiplier, out)

    def __call__(
        self, x_BTD: Float[Array, "B T I"], extra_BTE: Float[Array, "B T E"] | None = None
    ) -> Float[Array, "B T D"]:
        """Run a whole sequence from the empty state; `extra_BTE` is added to the projected queries,
        keys and values."""
        spec = self.spec
        batch, length = x_BTD.shape[:2]
        positions = jnp.broadcast_to(jnp.arange(length)[None, :], (batch, length))
        q, k, v, gate = self._project(x_BTD, positions, extra_BTE)
        # It takes no precision of its own, and its default rounds fp32 operands on a TPU.
        fp32 = self.compute.dtype == "float32"
        with jax.default_matmul_precision(self.compute.precision if fp32 else "default"):
            y = jax.nn.dot_product_attention(
                q,
                k,
                v,
                is_causal=True,
                scale=spec.scale,
                local_window_size=None if spec.window is None else (spec.window - 1, 0),
            )
        return self._finish(y, gate, x_BTD.dtype)

    def prefill(
        self,
        x_BTD: Float[Array, "B T I"],
        state: State | None,
        tile: Tile,
        extra_BTE: Float[Array, "B T E"] | None = None,
    ) -> PartResult:
        """Write the tile's keys and values into the buffer (rows below `tile.first` keep what is
        there), then attend."""
        assert isinstance(state, KVState)
        rows = jnp.arange(x_BTD.shape[1])
        positions_BT = jnp.broadcast_to((tile.start + rows)[None, :], x_BTD.shape[:2])
        q, k, v, gate = self._project(x_BTD, positions_BT, extra_BTE)
        live_BT = rows[None, :] >= tile.first[:, None]
        state = KVState(
            _write_rows(state.keys, k, tile.start, live_BT),
            _write_rows(state.values, v, tile.start, live_BT),
        )
        y = attend(q, state, tile.start, self.spec, self.compute)
        return PartResult(self._finish(y, gate, x_BTD.dtype), state, None)

    def decode(
        self,
        x_BD: Float[Array, "B I"],
        state: State | None,
        position: Int[Array, "B"],
        extra_BE: Float[Array, "B E"] | None = None,
    ) -> tuple[Float[Array, "B D"], State | None]:
        """Run one token: a tile of one row. All sequences of the batch stand at the same
        position."""
        start = position[0]
        tile = Tile(start, jnp.zeros_like(position), jnp.ones_like(position), position[:, None])
        extra = None if extra_BE is None else extra_BE[:, None]
        result = self.prefill(x_BD[:, None], state, tile, extra)
        return result.y[:, 0], result.state


def _write_rows(
    buffer_BGLP: jax.Array, x_BTGP: jax.Array, start: jax.Array, live_BT: jax.Array
) -> jax.Array:
    rows = jnp.swapaxes(to_storage(x_BTGP), 1, 2)
    at = (0, 0, start, 0)
    old = jax.lax.dynamic_slice(buffer_BGLP, at, rows.shape)
    rows = jnp.where(live_BT[:, None, :, None], rows, old)
    return jax.lax.dynamic_update_slice(buffer_BGLP, rows, at)


def attend(
    q_BTQP: Float[Array, "B T Q P"],
    kv: KVState,
    start: Int[Array, ""],
    spec: AttentionSpec,
    compute: Compute,
) -> Float[Array, "B T Q P"]:
    """Attention of the rows at start .. start + T - 1 over a buffer that already holds their own
    keys and values.

    Args:
        q_BTQP: rotated queries.
        kv: buffer whose capacity is a multiple of `compute.kv_tile`; rows from start + T on are not
            read as values.
        start: position of the first row.
        spec: heads, scale, window.
        compute: dtype, precision, kv_tile.

    Returns:
        Fp32 [batch, T, heads, head_dim].
    """
    batch, length, heads, head_dim = q_BTQP.shape
    kv_heads, kv_tile = spec.num_kv_heads, compute.kv_tile
    group = heads // kv_heads
    precision = compute.precision if compute.dtype == "float32" else None
    scale = head_dim**-0.5 if spec.scale is None else spec.scale

    def dot(a: jax.Array, b: jax.Array, contract: int) -> jax.Array:
        return jax.lax.dot_general(
            a,
            b,
            (((3,), (contract,)), ((0, 1), (0, 1))),
            precision=precision,
            preferred_element_type=jnp.float32,
        )

    # Query heads of one group become rows of one product: [B, kv_heads, group * T, P].
    q = (q_BTQP.astype(jnp.float32) * scale).astype(q_BTQP.dtype)
    q = q.reshape(batch, length, kv_heads, group, head_dim).transpose(0, 2, 3, 1, 4)
    q = q.reshape(batch, kv_heads, group * length, head_dim)
    row_R = jnp.tile(start + jnp.arange(length), group)

    def step(masked: bool, j: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top, total, acc = carry
        at = (0, 0, j * kv_tile, 0)
        size = (batch, kv_heads, kv_tile, head_dim)
        k = from_storage(jax.lax.dynamic_slice(kv.keys, at, size))
        v = from_storage(jax.lax.dynamic_slice(kv.values, at, size))
        scores = dot(q, k, 3)
        if masked:
            key_L = j * kv_tile + jnp.arange(kv_tile)
            seen_RL = key_L[None, :] <= row_R[:, None]
            if spec.window is not None:
                seen_RL &= key_L[None, :] > row_R[:, None] - spec.window
            scores = jnp.where(seen_RL[None, None], scores, _MASKED)
            # Rows that nobody wrote yet may hold anything, NaN too: 0 * NaN is NaN.
            v = jnp.where((key_L < start + length)[None, None, :, None], v, jnp.zeros_like(v))
        new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
        weights = jnp.exp(scores - new_top)
        if masked:
            weights = jnp.where(seen_RL[None, None], weights, 0.0)
        fade = jnp.exp(top - new_top)
        total = total * fade + jnp.sum(weights, axis=-1, keepdims=True)
        acc = acc * fade + dot(weights.astype(v.dtype), v, 2)
        return new_top, total, acc

    column = (batch, kv_heads, group * length, 1)
    carry: tuple[jax.Array, ...] = (
        jnp.full(column, _MASKED, jnp.float32),
        jnp.zeros(column, jnp.float32),
        jnp.zeros(q.shape, jnp.float32),
    )
    first_masked, end = start // kv_tile, (start + length + kv_tile - 1) // kv_tile
    if spec.window is None:
        carry = jax.lax.fori_loop(
            jnp.zeros_like(start), first_masked, lambda j, c: step(False, j, c), carry
        )
    else:
        first_masked = jnp.maximum(start - spec.window + 1, 0) // kv_tile
    _, total, acc = jax.lax.fori_loop(first_masked, end, lambda j, c: step(True, j, c), carry)
    y = (acc / total).reshape(batch, kv_heads, group, length, head_dim)
    return y.transpose(0, 3, 1, 2, 4).reshape(batch, length, heads, head_dim)
