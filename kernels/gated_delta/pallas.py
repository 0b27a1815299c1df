"""Launchers of the gated delta kernel: interpreted on a CPU, Mosaic on a TPU, Triton on a GPU."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from kernels.gated_delta.pallas_kernel import kernel
from kernels.in_kernel import KernelShape
from kernels.platform import (
    chunks_that_fit,
    kernel_platform,
    launch_options,
    scalars_spec,
    vmem_bytes,
)
from kernels.scan import Bounds, ScanResult, keep_rows, pad_axis, pad_length, valid_rows

CUDA_VALUES = 32
"""Columns of the state that one block of threads keeps in registers."""


def gated_delta_pallas(
    q_BTGK: Float[Array, "B T G K"],
    k_BTGK: Float[Array, "B T G K"],
    v_BTHV: Float[Array, "B T H V"],
    g_BTH: Float[Array, "B T H"],
    beta_BTH: Float[Array, "B T H"],
    scale: float,
    initial_state: Float[Array, "B H K V"],
    bounds: Bounds,
    chunk: int,
    platform: str | None = None,
    chunks_per_tile: int | None = None,
) -> ScanResult:
    """The scan as one `pallas_call`.

    Args:
        q_BTGK: queries; this and the following as in :func:`kernels.gated_delta.gated_delta_scan`.
        k_BTGK: keys.
        v_BTHV: values.
        g_BTH: log-decays.
        beta_BTH: write strengths.
        scale: factor of y.
        initial_state: states before the first token.
        bounds: lengths and normalised capture offsets.
        chunk: tokens a chunk.
        platform: "cpu" (interpreted), "tpu", "tpu_interpret" or "cuda"; the default backend's if
            None.
        chunks_per_tile: chunks a block of rows; what fits if None.

    Returns:
        ScanResult.

    Raises:
        ValueError: blocks that do not fit on the platform.
    """
    platform = platform or kernel_platform("gated_delta_scan")
    batch, length, heads, value_dim = v_BTHV.shape
    key_dim = k_BTGK.shape[3]
    slots = bounds.offsets_BS.shape[1]
    keys, values = _padded_dims(platform, key_dim, value_dim)
    num_chunks = -(-length // chunk)
    per_tile = chunks_per_tile or _chunks_per_tile(
        platform, num_chunks, chunk, keys, values, slots, v_BTHV.dtype
    )
    num_tiles = -(-num_chunks // per_tile)
    padded = num_tiles * per_tile * chunk
    valid_BT = valid_rows(bounds.lengths_B, padded)
    q_BTGK, k_BTGK, v_BTHV, g_BTH, beta_BTH = (
        keep_rows(pad_length(value, padded), valid_BT)
        for value in (q_BTGK, k_BTGK, v_BTHV, g_BTH, beta_BTH)
    )
    by_chunk = (batch, heads, padded // chunk, chunk)
    operands = [
        pad_axis(q_BTGK.transpose(0, 2, 1, 3), keys, 3),
        pad_axis(k_BTGK.transpose(0, 2, 1, 3), keys, 3),
        pad_axis(v_BTHV.transpose(0, 2, 1, 3), values, 3),
        g_BTH.astype(jnp.float32).transpose(0, 2, 1).reshape(by_chunk),
        beta_BTH.astype(jnp.float32).transpose(0, 2, 1).reshape(by_chunk),
        pad_axis(pad_axis(initial_state, keys, 2), values, 3),
    ]
    shape = KernelShape(chunk, per_tile, num_tiles, slots)
    y_BHTV, final, *captured = _call(shape, platform, scale, bounds, operands)
    y_BTHV = y_BHTV.transpose(0, 2, 1, 3)[:, :length, :, :value_dim]
    final = final[:, :, :key_dim, :value_dim]
    if not slots:
        none = jnp.zeros((batch, 0, *final.shape[1:]), jnp.float32)
        return ScanResult(y_BTHV, final, none)
    captured_BSHKV = captured[0][..., :key_dim, :value_dim]
    return ScanResult(y_BTHV, final, captured_BSHKV)


def _padded_dims(platform: str, key_dim: int, value_dim: int) -> tuple[int, int]:
    """Triton's blocks have powers of two on every axis, 16 or more where they are multiplied."""
    if platform != "cuda":
        return key_dim, value_dim
    return max(16, pl.next_power_of_2(key_dim)), max(16, pl.next_power_of_2(value_dim))


def _call(
    shape: KernelShape, platform: str, scale: float, bounds: Bounds, operands: list[Array]
) -> tuple[Array, ...]:
    q, _, v, _, _, initial = operands
    batch, heads, _, value_dim = v.shape
    groups, key_dim = q.shape[1], q.shape[3]
    per_group = heads // groups
    tile = shape.chunks_per_tile * shape.chunk
    columns = min(value_dim, CUDA_VALUES) if platform == "cuda" else value_dim

    def keys(row: Any, head: Any, column: Any, at: Any) -> tuple[Any, ...]:
        return row, head // per_group, at, 0

    def values(row: Any, head: Any, column: Any, at: Any) -> tuple[Any, ...]:
        return row, head, at, column

    def scalars(row: Any, head: Any, column: Any, at: Any) -> tuple[Any, ...]:
        return row, head, at, 0

    def state(row: Any, head: Any, column: Any, at: Any) -> tuple[Any, ...]:
        return row, head, 0, column

    key_spec = pl.BlockSpec((1, 1, tile, key_dim), keys)
    value_spec = pl.BlockSpec((1, 1, tile, columns), values)
    scalar_spec = pl.BlockSpec((1, 1, shape.chunks_per_tile, shape.chunk), scalars)
    state_spec = pl.BlockSpec((1, 1, key_dim, columns), state)
    in_specs = [key_spec, key_spec, value_spec, scalar_spec, scalar_spec, state_spec]
    out_specs = [value_spec, state_spec]
    out_shape = [
        jax.ShapeDtypeStruct(v.shape, v.dtype),
        jax.ShapeDtypeStruct(initial.shape, jnp.float32),
    ]
    if shape.slots:
        operands = [bounds.offsets_BS, *operands]
        in_specs = [scalars_spec(platform, bounds.offsets_BS.shape), *in_specs]
        out_specs.append(
            pl.BlockSpec(
                (1, shape.slots, 1, key_dim, columns),
                lambda row, head, column, at: (row, 0, head, 0, column),
            )
        )
        out_shape.append(
            jax.ShapeDtypeStruct((batch, shape.slots, heads, key_dim, value_dim), jnp.float32)
        )
    return pl.pallas_call(
        partial(kernel, shape, scale),
        grid=(batch, heads, value_dim // columns, shape.num_tiles),
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=out_shape,
        name="gated_delta_scan",
        **launch_options(platform, (False, False, False, True)),
    )(*operands)


def _chunks_per_tile(
    platform: str,
    num_chunks: int,
    chunk: int,
    key_dim: int,
    value_dim: int,
    slots: int,
    dtype: jnp.dtype,
) -> int:
    """Chunks whose blocks fit: rows and states twice (in use, in flight), temporaries once."""
    rows = 8 * chunk
    keys, values = vmem_bytes((rows, key_dim), dtype), vmem_bytes((rows, value_dim), dtype)
    scalars = vmem_bytes((8, chunk), jnp.float32)
    state = vmem_bytes((key_dim, value_dim), jnp.float32)
    square = vmem_bytes((chunk, chunk), jnp.float32)
    chunk_keys = vmem_bytes((chunk, key_dim), jnp.float32)
    chunk_values = vmem_bytes((chunk, value_dim), jnp.float32)
    temporaries = 8 * square + 3 * chunk_keys + 5 * chunk_values + 3 * state
    return chunks_that_fit(
        "gated_delta_scan",
        platform,
        num_chunks,
        2 * (2 + slots) * state + temporaries,
        2 * (2 * keys + 2 * values + 2 * scalars),
    )
