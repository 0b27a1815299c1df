"""Launchers of the diagonal recurrence's kernel: interpreted on a CPU, Mosaic, Triton."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from kernels.in_kernel import KernelShape
from kernels.linear_scan import mosaic_gpu
from kernels.linear_scan.pallas_kernel import GROUP, kernel
from kernels.platform import (
    chunks_that_fit,
    kernel_platform,
    launch_options,
    scalars_spec,
    vmem_bytes,
)
from kernels.scan import Bounds, ScanResult, pad_axis, pad_length

WIDTHS = {"cpu": 2**16, "tpu": 512, "tpu_interpret": 512, "cuda": 128}
"""Channels a block, at most."""


def linear_pallas(
    log_a_BTM: Float[Array, "B T M"],
    b_BTM: Float[Array, "B T M"],
    initial_state: Float[Array, "B M"],
    bounds: Bounds,
    platform: str | None = None,
    groups_per_tile: int | None = None,
) -> ScanResult:
    """The scan as one `pallas_call`.

    Args:
        log_a_BTM: log-decays; this and the following as in :func:`kernels.linear_scan.linear_scan`,
            with all channels on one axis.
        b_BTM: inputs.
        initial_state: states before the first token.
        bounds: lengths and normalised capture offsets.
        platform: "cpu" (interpreted), "tpu", "tpu_interpret", "cuda" (Triton) or "mosaic_gpu"; the
            default backend's if None.
        groups_per_tile: groups of 16 rows a block; what fits if None.

    Returns:
        ScanResult.

    Raises:
        ValueError: blocks that do not fit on the platform.
    """
    platform = platform or kernel_platform("linear_scan")
    if platform == "mosaic_gpu":
        return _mosaic_gpu(log_a_BTM, b_BTM, initial_state, bounds)
    batch, length, channels = b_BTM.shape
    dtype = b_BTM.dtype
    slots = bounds.offsets_BS.shape[1]
    if platform.startswith("tpu"):
        # Single rows of packed bf16 registers cannot be addressed.
        log_a_BTM, b_BTM = log_a_BTM.astype(jnp.float32), b_BTM.astype(jnp.float32)
    width = min(WIDTHS[platform], pl.next_power_of_2(channels))
    num_groups = -(-length // GROUP)
    per_tile = groups_per_tile or _groups_per_tile(platform, num_groups, width, slots)
    num_tiles = -(-num_groups // per_tile)
    padded = num_tiles * per_tile * GROUP
    wide = -(-channels // width) * width
    operands = [
        jnp.concatenate([bounds.lengths_B[:, None], bounds.offsets_BS], axis=1),
        pad_axis(pad_length(log_a_BTM, padded), wide, 2),
        pad_axis(pad_length(b_BTM, padded), wide, 2),
        pad_axis(initial_state[:, None], wide, 2),
    ]
    shape = KernelShape(GROUP, per_tile, num_tiles, slots)
    y_BTM, final_B1M, *captured = _call(shape, platform, width, operands)
    y_BTM = y_BTM[:, :length, :channels].astype(dtype)
    final_BM = final_B1M[:, 0, :channels]
    if not slots:
        return ScanResult(y_BTM, final_BM, jnp.zeros((batch, 0, channels), jnp.float32))
    return ScanResult(y_BTM, final_BM, captured[0][:, :, :channels])


def _mosaic_gpu(log_a_BTM: Array, b_BTM: Array, initial_state: Array, bounds: Bounds) -> ScanResult:
    batch, _, channels = b_BTM.shape
    slots = bounds.offsets_BS.shape[1]
    wide = -(-channels // mosaic_gpu.WIDTH) * mosaic_gpu.WIDTH
    y_BTM, final_BM, *captured = mosaic_gpu.call(
        slots,
        jnp.concatenate([bounds.lengths_B[:, None], bounds.offsets_BS], axis=1),
        pad_axis(log_a_BTM, wide, 2),
        pad_axis(b_BTM, wide, 2),
        pad_axis(initial_state, wide, 1),
    )
    none = jnp.zeros((batch, 0, channels), jnp.float32)
    captured_BSM = captured[0][:, :, :channels] if slots else none
    return ScanResult(y_BTM[:, :, :channels], final_BM[:, :channels], captured_BSM)


def _call(
    shape: KernelShape, platform: str, width: int, operands: list[Array]
) -> tuple[Array, ...]:
    bounds, _, b, _ = operands
    batch, _, channels = b.shape

    def rows(row: Any, column: Any, at: Any) -> tuple[Any, ...]:
        return row, at, column

    def whole(row: Any, column: Any, at: Any) -> tuple[Any, ...]:
        return row, 0, column

    row_spec = pl.BlockSpec((1, shape.chunks_per_tile * GROUP, width), rows)
    state_spec = pl.BlockSpec((1, 1, width), whole)
    out_specs = [row_spec, state_spec]
    out_shape = [
        jax.ShapeDtypeStruct(b.shape, b.dtype),
        jax.ShapeDtypeStruct((batch, 1, channels), jnp.float32),
    ]
    if shape.slots:
        out_specs.append(pl.BlockSpec((1, shape.slots, width), whole))
        out_shape.append(jax.ShapeDtypeStruct((batch, shape.slots, channels), jnp.float32))
    return pl.pallas_call(
        partial(kernel, shape),
        grid=(batch, channels // width, shape.num_tiles),
        in_specs=[scalars_spec(platform, bounds.shape), row_spec, row_spec, state_spec],
        out_specs=out_specs,
        out_shape=out_shape,
        name="linear_scan",
        **launch_options(platform, (False, False, True)),
    )(*operands)


def _groups_per_tile(platform: str, num_groups: int, width: int, slots: int) -> int:
    """Groups whose blocks fit: rows and states twice (in use, in flight), one group at work."""
    rows = vmem_bytes((8 * GROUP, width), jnp.float32)
    state = vmem_bytes((1, width), jnp.float32)
    captured = vmem_bytes((slots, width), jnp.float32) if slots else 0
    fixed = 2 * (2 * state + captured) + 3 * GROUP * state
    return chunks_that_fit("linear_scan", platform, num_groups, fixed, 2 * 3 * rows)
