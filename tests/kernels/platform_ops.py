"""How the platform tests launch each kernel: shapes, values, options."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kernels.gated_delta.pallas import gated_delta_pallas
from kernels.linear_scan.pallas import linear_pallas
from kernels.platform import vmem_bytes
from kernels.scan import Bounds
from kernels.ssd.pallas import ssd_pallas

Dims = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array of a launcher: whether it takes the inputs' dtype (else fp32), and its values."""

    axes: Dims
    is_input: bool
    draw: Callable[[np.random.Generator, Dims], np.ndarray]


@dataclasses.dataclass(frozen=True)
class PlatformOp:
    """A kernel and the sizes that it is tried at.

    Attributes:
        name: of the operation.
        operands: of a shape (batch, length, dims...), the initial state last.
        launch: (arrays, bounds, rows a chunk, options of the launcher) -> ScanResult.
        published: shapes to lower, of published models and with odd sizes.
        small: shape whose values are run.
        per_tile: name of the launcher's option.
        capture_bytes: VMEM that a capture takes in the first published shape.
    """

    name: str
    operands: Callable[[Dims], list[Operand]]
    launch: Callable[..., Any]
    published: tuple[Dims, ...]
    small: Dims
    per_tile: str
    capture_bytes: int

    def __str__(self) -> str:
        return self.name

    def structs(self, shape: Dims, dtype: Any, slots: int) -> tuple[Any, ...]:
        """Shapes and dtypes of all arguments."""
        arrays = [
            jax.ShapeDtypeStruct(operand.axes, dtype if operand.is_input else jnp.float32)
            for operand in self.operands(shape)
        ]
        batch = shape[0]
        lengths = jax.ShapeDtypeStruct((batch,), jnp.int32)
        return (*arrays, Bounds(lengths, jax.ShapeDtypeStruct((batch, slots), jnp.int32)))

    def values(self, shape: Dims) -> list[jax.Array]:
        """Random fp32 arrays."""
        rng = np.random.default_rng(0)
        return [
            jnp.asarray(operand.draw(rng, operand.axes), jnp.float32)
            for operand in self.operands(shape)
        ]

    def on(self, platform: str, chunk: int = 64, per_tile: int | None = None) -> Any:
        """The launcher for a platform, as a function of arrays and bounds."""
        options = {} if per_tile is None else {self.per_tile: per_tile}

        def launch(*arguments: Any) -> Any:
            *arrays, bounds = arguments
            return self.launch(arrays, bounds, chunk, platform=platform, **options)

        return launch


def _normal(rng: np.random.Generator, axes: Dims) -> np.ndarray:
    return rng.normal(size=axes)


def _unit(rng: np.random.Generator, axes: Dims) -> np.ndarray:
    rows = rng.normal(size=axes)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def _positive(rng: np.random.Generator, axes: Dims) -> np.ndarray:
    return np.abs(rng.normal(size=axes))


def _negative(rng: np.random.Generator, axes: Dims) -> np.ndarray:
    return -rng.uniform(size=axes)


def _strengths(rng: np.random.Generator, axes: Dims) -> np.ndarray:
    return rng.uniform(0, 2, size=axes)


def _ssd(shape: Dims) -> list[Operand]:
    batch, length, heads, head_dim, groups, state_dim = shape
    return [
        Operand((batch, length, heads, head_dim), True, _normal),
        Operand((batch, length, heads), False, _positive),
        Operand((heads,), False, _negative),
        Operand((batch, length, groups, state_dim), True, _normal),
        Operand((batch, length, groups, state_dim), True, _normal),
        Operand((batch, heads, head_dim, state_dim), False, _normal),
    ]


def _gated_delta(shape: Dims) -> list[Operand]:
    batch, length, key_heads, heads, key_dim, value_dim = shape
    return [
        Operand((batch, length, key_heads, key_dim), True, _unit),
        Operand((batch, length, key_heads, key_dim), True, _unit),
        Operand((batch, length, heads, value_dim), True, _normal),
        Operand((batch, length, heads), False, _negative),
        Operand((batch, length, heads), False, _strengths),
        Operand((batch, heads, key_dim, value_dim), False, _normal),
    ]


def _linear(shape: Dims) -> list[Operand]:
    batch, length, channels = shape
    return [
        Operand((batch, length, channels), False, _negative),
        Operand((batch, length, channels), True, _normal),
        Operand((batch, channels), False, _normal),
    ]


SSD = PlatformOp(
    name="ssd_scan",
    operands=_ssd,
    launch=lambda arrays, bounds, chunk, **options: ssd_pallas(*arrays, bounds, chunk, **options),
    # heads, head_dim, groups, state_dim: Mamba-2 2.7B, and a small one with groups.
    published=((1, 4096, 80, 64, 1, 128), (2, 128, 4, 64, 2, 64)),
    small=(2, 80, 2, 8, 1, 8),
    per_tile="chunks_per_tile",
    capture_bytes=vmem_bytes((64, 128), jnp.float32),
)
GATED_DELTA = PlatformOp(
    name="gated_delta_scan",
    operands=_gated_delta,
    launch=lambda arrays, bounds, chunk, **options: gated_delta_pallas(
        *arrays[:-1], 1.0, arrays[-1], bounds, chunk, **options
    ),
    # key_heads, heads, key_dim, value_dim: Qwen3-Next, and one with odd head sizes.
    published=((1, 4096, 16, 32, 128, 128), (2, 128, 2, 4, 96, 192)),
    small=(2, 80, 1, 2, 8, 8),
    per_tile="chunks_per_tile",
    capture_bytes=vmem_bytes((128, 128), jnp.float32),
)
LINEAR = PlatformOp(
    name="linear_scan",
    operands=_linear,
    launch=lambda arrays, bounds, chunk, **options: linear_pallas(*arrays, bounds, **options),
    # channels: RecurrentGemma 2B, Mamba-1 with 16 states a channel, and an odd width.
    published=((1, 4096, 2560), (1, 256, 5120 * 16), (2, 100, 72)),
    small=(2, 80, 24),
    per_tile="groups_per_tile",
    capture_bytes=vmem_bytes((8, 512), jnp.float32) // 8,
)
OPS = (SSD, GATED_DELTA, LINEAR)
