"""What differs between the machines that a Pallas kernel runs on; every launcher asks here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

PLATFORMS = ("cpu", "tpu", "cuda")

VMEM_BUDGET_BYTES = 12 * 2**20
"""Of the 16 MiB that a kernel may use on every TPU generation, 4 are left to the compiler."""

SHARED_MEMORY_BUDGET_BYTES = 227 * 2**10
"""What one block may use on Hopper and Blackwell data-centre GPUs."""


def kernel_platform(op: str) -> str:
    """The platform of the default backend, as kernels name it.

    Raises:
        ValueError: a backend that no kernel is written for.
    """
    backend = jax.default_backend()
    platform = "cuda" if backend == "gpu" else backend
    if platform not in PLATFORMS:
        raise ValueError(
            f"{op}: implementation 'pallas' has no kernel for backend {backend!r}; "
            f"expected one of {', '.join(PLATFORMS)}, or implementation 'xla'"
        )
    return platform


def launch_options(
    platform: str, in_order: Sequence[bool], *, num_warps: int = 4
) -> dict[str, Any]:
    """Keyword arguments of `pallas_call` for a platform.

    Args:
        platform: "cpu" (interpreted), "tpu", "tpu_interpret" (the TPU simulated on a CPU, with race
            detection and NaN in memory that nobody wrote) or "cuda".
        in_order: for each grid axis, whether its steps must run one after another.
        num_warps: warps a block, CUDA only.
    """
    if platform == "cpu":
        return {"interpret": True}
    if platform == "cuda":
        # Newer JAX versions deprecate it; whoever asks for the chunked forms does without.
        from jax.experimental.pallas import triton as plgpu

        return {"compiler_params": plgpu.CompilerParams(num_warps=num_warps, num_stages=1)}
    semantics = tuple(pltpu.ARBITRARY if ordered else pltpu.PARALLEL for ordered in in_order)
    options: dict[str, Any] = {
        "compiler_params": pltpu.CompilerParams(dimension_semantics=semantics)
    }
    if platform == "tpu_interpret":
        options["interpret"] = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    return options


def scalars_spec(platform: str, shape: tuple[int, ...]) -> pl.BlockSpec:
    """A small int32 array that the whole grid reads one by one: SMEM on a TPU."""

    def index(*grid: Any) -> tuple[int, ...]:
        return (0,) * len(shape)

    if platform.startswith("tpu"):
        return pl.BlockSpec(shape, index, memory_space=pltpu.SMEM)
    return pl.BlockSpec(shape, index)


def vmem_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of a block in VMEM: the last two axes fill whole (8 or 16, 128) registers."""
    itemsize = jnp.dtype(dtype).itemsize
    *outer, rows, lanes = (1, 1, *shape)
    packed_rows = 8 * max(1, 4 // itemsize)
    rows, lanes = -(-rows // packed_rows) * packed_rows, -(-lanes // 128) * 128
    return math.prod(outer) * rows * lanes * itemsize


def chunks_that_fit(
    op: str, platform: str, num_chunks: int, fixed_bytes: int, bytes_per_8_chunks: int
) -> int:
    """How many chunks a block of rows may hold.

    Blocks of rows are double-buffered, so the caller counts each twice. Where a row needs more
    than one block, the count is a multiple of 8, as the TPU's block rule asks.

    Args:
        op: the operation's name, for the message.
        platform: off the TPU rows are not staged, and all chunks fit.
        num_chunks: chunks a row.
        fixed_bytes: VMEM whatever the block's rows: states, captures and temporaries.
        bytes_per_8_chunks: VMEM that 8 chunks of rows take.

    Returns:
        `num_chunks`, or a multiple of 8 below it.

    Raises:
        ValueError: not even 8 chunks fit.
    """
    if not platform.startswith("tpu"):
        return num_chunks
    groups = (VMEM_BUDGET_BYTES - fixed_bytes) // bytes_per_8_chunks
    if -(-num_chunks // 8) <= groups:
        return num_chunks
    if groups < 1:
        raise ValueError(
            f"{op}: a block needs {fixed_bytes + bytes_per_8_chunks} bytes of VMEM; expected at "
            f"most {VMEM_BUDGET_BYTES}: use fewer capture slots, a smaller chunk, or "
            "implementation 'xla'"
        )
    return groups * 8


def check_cuda_block(op: str, axes: Mapping[str, int], shared_bytes: int) -> None:
    """Refuse what Triton cannot hold, in words that say what to change.

    Args:
        op: the operation's name, for the message.
        axes: sizes of the axes that matrix products run over, by the caller's names.
        shared_bytes: operands of the largest product, which pass through shared memory.

    Raises:
        ValueError: an axis that is no power of two of at least 16, or too much shared memory.
    """
    for name, size in axes.items():
        if size < 16 or size & (size - 1):
            raise ValueError(
                f"{op}: {name} is {size}; expected a power of two of at least 16 for the CUDA "
                "kernel; implementation 'xla' takes any"
            )
    if shared_bytes > SHARED_MEMORY_BUDGET_BYTES:
        raise ValueError(
            f"{op}: a block needs {shared_bytes} bytes of shared memory; expected at most "
            f"{SHARED_MEMORY_BUDGET_BYTES}: use a smaller chunk, or implementation 'xla'"
        )
