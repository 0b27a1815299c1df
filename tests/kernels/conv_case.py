"""How the shared suite drives the causal convolution."""

import jax
import numpy as np

from kernels.causal_conv import causal_conv
from kernels.scan import ScanResult
from tests.kernels.scan_suite import ScanOp, Shape


def _draw(rng: np.random.Generator, shape: Shape) -> dict[str, np.ndarray]:
    channels, width = shape.dims
    return {
        "x": rng.normal(size=(shape.batch, shape.length, channels)),
        "weight": rng.normal(size=(width, channels)),
        "bias": rng.normal(size=channels),
    }


def _state_shape(shape: Shape) -> tuple[int, ...]:
    channels, width = shape.dims
    return width - 1, channels


def _call(
    inputs: dict[str, jax.Array],
    state: jax.Array,
    offsets: jax.Array | None,
    lengths: jax.Array,
    shape: Shape,
    implementation: str,
) -> ScanResult:
    return causal_conv(
        **inputs,
        initial_state=state,
        capture_offsets=offsets,
        lengths=lengths,
        activation="silu",
        implementation=implementation,
    )


CONV = ScanOp(
    name="causal_conv",
    shapes=(
        Shape(1, 32, 3, 16, (8, 4)),
        Shape(3, 10, 4, 16, (8, 2), core=True),
        Shape(2, 10, 3, 16, (8, 3), "bfloat16"),
        Shape(2, 2, 2, 16, (8, 4)),
    ),
    draw=_draw,
    sequence=("x",),
    identity=(),
    state_shape=_state_shape,
    call=_call,
    state_dtype=None,
    implementations=("reference", "xla"),
    exact_everywhere=True,
)
