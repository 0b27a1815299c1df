"""Launchers of the SSD kernel: interpreted on a CPU, Mosaic on a TPU, Triton on an NVIDIA GPU."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from kernels.in_kernel import KernelShape, capture_order
from kernels.platform import (
    check_cuda_block,
    chunks_that_fit,
    kernel_platform,
    launch_options,
    scalars_spec,
    vmem_bytes,
)
from kernels.scan import Bounds, ScanResult, keep_rows, pad_length, valid_rows
from kernels.ssd.pallas_kernel import kernel


def ssd_pallas(
    x_BTHP: Float[Array, "B T H P"],
    dt_BTH: Float[Array, "B T H"],
    A_H: Float[Array, " H"],
    B_BTGN: Float[Array, "B T G N"],
    C_BTGN: Float[Array, "B T G N"],
    initial_state: Float[Array, "B H P N"],
    bounds: Bounds,
    chunk: int,
    platform: str | None = None,
    chunks_per_tile: int | None = None,
) -> ScanResult:
    """The scan as one `pallas_call`.

    Args:
        x_BTHP: inputs; this and the following as in :func:`kernels.ssd.ssd_scan`.
        dt_BTH: step sizes.
        A_H: rates.
        B_BTGN: input projections.
        C_BTGN: output projections.
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
    platform = platform or kernel_platform("ssd_scan")
    batch, length, heads, head_dim = x_BTHP.shape
    state_dim = B_BTGN.shape[3]
    if platform == "cuda":
        _check_cuda(chunk, head_dim, state_dim)
    slots = bounds.offsets_BS.shape[1]
    num_chunks = -(-length // chunk)
    per_tile = chunks_per_tile or _chunks_per_tile(
        platform, num_chunks, chunk, head_dim, state_dim, slots, x_BTHP.dtype
    )
    num_tiles = -(-num_chunks // per_tile)
    padded = num_tiles * per_tile * chunk
    valid_BT = valid_rows(bounds.lengths_B, padded)
    x_BTHP, dt_BTH, B_BTGN, C_BTGN = (
        keep_rows(pad_length(value, padded), valid_BT) for value in (x_BTHP, dt_BTH, B_BTGN, C_BTGN)
    )
    dt_BHT = dt_BTH.astype(jnp.float32).transpose(0, 2, 1)
    log_decay_BHT = dt_BHT * A_H.astype(jnp.float32)[None, :, None]
    by_chunk = (batch, heads, padded // chunk, chunk)
    operands = [
        x_BTHP.transpose(0, 2, 1, 3),
        log_decay_BHT.reshape(by_chunk),
        dt_BHT.reshape(by_chunk),
        B_BTGN.transpose(0, 2, 1, 3),
        C_BTGN.transpose(0, 2, 1, 3),
        initial_state,
    ]
    shape = KernelShape(chunk, per_tile, num_tiles, slots)
    y_BHTP, final, *captured = _call(shape, platform, bounds, operands)
    y_BTHP = y_BHTP.transpose(0, 2, 1, 3)[:, :length]
    if slots:
        return ScanResult(y_BTHP, final, captured[0])
    return ScanResult(y_BTHP, final, jnp.zeros((batch, 0, *final.shape[1:]), jnp.float32))


def _call(
    shape: KernelShape, platform: str, bounds: Bounds, operands: list[Array]
) -> tuple[Array, ...]:
    x, B, initial = operands[0], operands[3], operands[5]
    batch, heads, _, head_dim = x.shape
    groups, state_dim = B.shape[1], B.shape[3]
    per_group = heads // groups
    tile = shape.chunks_per_tile * shape.chunk

    def by_row(*block: int, group: bool = False) -> pl.BlockSpec:
        def index(row: Any, head: Any, at: Any) -> tuple[Any, ...]:
            return (row, head // per_group if group else head, at, 0)

        return pl.BlockSpec((1, 1, *block), index)

    def by_head(*block: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, 1, *block), lambda row, head, at: (row, head) + (0,) * len(block))

    state_spec = by_head(head_dim, state_dim)
    in_specs = [
        by_row(tile, head_dim),
        by_row(shape.chunks_per_tile, shape.chunk),
        by_row(shape.chunks_per_tile, shape.chunk),
        by_row(tile, state_dim, group=True),
        by_row(tile, state_dim, group=True),
        state_spec,
    ]
    out_specs = [by_row(tile, head_dim), state_spec]
    out_shape = [
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        jax.ShapeDtypeStruct(initial.shape, jnp.float32),
    ]
    if shape.slots:
        captures = capture_order(bounds.offsets_BS)
        operands = [captures, *operands]
        in_specs = [scalars_spec(platform, captures.shape), *in_specs]
        out_specs.append(
            pl.BlockSpec(
                (1, shape.slots, 1, head_dim, state_dim),
                lambda row, head, at: (row, 0, head, 0, 0),
            )
        )
        out_shape.append(
            jax.ShapeDtypeStruct((batch, shape.slots, heads, head_dim, state_dim), jnp.float32)
        )
    return pl.pallas_call(
        partial(kernel, shape),
        grid=(batch, heads, shape.num_tiles),
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=out_shape,
        name="ssd_scan",
        **launch_options(platform, (False, False, True)),
    )(*operands)


def _chunks_per_tile(
    platform: str,
    num_chunks: int,
    chunk: int,
    head_dim: int,
    state_dim: int,
    slots: int,
    dtype: jnp.dtype,
) -> int:
    """Chunks whose blocks fit: rows and states twice (in use, in flight), temporaries once."""
    rows = 8 * chunk
    wide, narrow = vmem_bytes((rows, head_dim), dtype), vmem_bytes((rows, state_dim), dtype)
    scalars = vmem_bytes((8, chunk), jnp.float32)
    states = (2 + slots) * vmem_bytes((head_dim, state_dim), jnp.float32)
    square = vmem_bytes((chunk, chunk), jnp.float32)
    chunk_wide = vmem_bytes((chunk, head_dim), jnp.float32)
    chunk_narrow = vmem_bytes((chunk, state_dim), jnp.float32)
    temporaries = 6 * square + 4 * chunk_wide + 2 * chunk_narrow + states // (2 + slots) * 3
    return chunks_that_fit(
        "ssd_scan",
        platform,
        num_chunks,
        2 * states + temporaries,
        2 * (2 * wide + 2 * narrow + 2 * scalars),
    )


def _check_cuda(chunk: int, head_dim: int, state_dim: int) -> None:
    """The products are C x N by N x P (state), P x C by C x N (increment), C x C by C x P."""
    pairs = (
        (chunk + head_dim) * state_dim,
        chunk * (head_dim + state_dim),
        chunk * (chunk + head_dim),
    )
    axes = {"chunk": chunk, "head_dim": head_dim, "state_dim": state_dim}
    check_cuda_block("ssd_scan", axes, max(pairs) * jnp.dtype(jnp.float32).itemsize)
