"""How the shared suite drives the diagonal recurrence."""

import numpy as np

from kernels.linear_scan import linear_scan
from tests.kernels.scan_suite import ScanOp, Shape, call_by_chunk


def _draw(rng: np.random.Generator, shape: Shape) -> dict[str, np.ndarray]:
    rows = (shape.batch, shape.length, *shape.dims)
    rate = 10.0 ** rng.uniform(-3, 1)
    return {"log_a": -rng.uniform(0, 1, size=rows) * rate, "b": rng.normal(size=rows)}


LINEAR = ScanOp(
    name="linear",
    shapes=(
        Shape(1, 32, 3, 1, (24,)),
        Shape(2, 40, 4, 16, (8, 4), core=True),
        Shape(3, 40, 3, 1, (8,), core=True),
        Shape(2, 40, 3, 64, (24,), "bfloat16"),
        Shape(2, 1, 1, 16, (8,)),
    ),
    draw=_draw,
    sequence=("log_a", "b"),
    identity=("log_a", "b"),
    state_shape=lambda shape: shape.dims,
    call=call_by_chunk(linear_scan),
    fixed_dtypes={"log_a": "float32"},
    exact_everywhere=True,
    in_order=lambda shape, implementation: implementation != "xla" or shape.chunk == 1,
)
