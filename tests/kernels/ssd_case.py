"""How the shared suite drives the SSD scan."""

import numpy as np

from kernels.ssd import ssd_scan
from tests.kernels.scan_suite import ScanOp, Shape, call_by_chunk


def _draw(rng: np.random.Generator, shape: Shape) -> dict[str, np.ndarray]:
    heads, head_dim, groups, state_dim = shape.dims
    rows = (shape.batch, shape.length)
    rate = 10.0 ** rng.uniform(-3, 1)
    return {
        "x": rng.normal(size=(*rows, heads, head_dim)),
        "dt": rng.uniform(0, 1, size=(*rows, heads)) * rate,
        "A": -rng.uniform(0.1, 2, size=heads),
        "B": rng.normal(size=(*rows, groups, state_dim)),
        "C": rng.normal(size=(*rows, groups, state_dim)),
    }


def _state_shape(shape: Shape) -> tuple[int, ...]:
    heads, head_dim, _, state_dim = shape.dims
    return heads, head_dim, state_dim


SSD = ScanOp(
    name="ssd",
    shapes=(
        Shape(1, 32, 3, 16, (2, 8, 1, 8)),
        Shape(2, 40, 4, 16, (4, 8, 2, 16), core=True),
        Shape(3, 40, 3, 8, (2, 8, 1, 8)),
        Shape(2, 40, 3, 16, (4, 8, 2, 16), "bfloat16"),
        Shape(2, 1, 1, 16, (2, 8, 1, 8)),
    ),
    draw=_draw,
    sequence=("x", "dt", "B", "C"),
    identity=("x", "dt"),
    state_shape=_state_shape,
    call=call_by_chunk(ssd_scan),
    fixed_dtypes={"dt": "float32", "A": "float32"},
)
