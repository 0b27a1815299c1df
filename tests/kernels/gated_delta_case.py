"""How the shared suite drives the gated delta rule."""

import numpy as np

from kernels.gated_delta import gated_delta_scan
from tests.kernels.scan_suite import ScanOp, Shape, call_by_chunk


def _draw(rng: np.random.Generator, shape: Shape) -> dict[str, np.ndarray]:
    key_heads, heads, key_dim, value_dim = shape.dims
    rows = (shape.batch, shape.length)
    rate = 10.0 ** rng.uniform(-3, 1)
    # Few distinct keys: then the triangular systems are as far from the identity as they get.
    keys = rng.normal(size=(rng.integers(1, 8), key_dim))
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    return {
        "q": rng.normal(size=(*rows, key_heads, key_dim)) / np.sqrt(key_dim),
        "k": keys[rng.integers(len(keys), size=(*rows, key_heads))],
        "v": rng.normal(size=(*rows, heads, value_dim)),
        "g": -rng.uniform(0, 1, size=(*rows, heads)) * rate,
        "beta": rng.uniform(0, rng.choice([1, 2]), size=(*rows, heads)),
    }


def _state_shape(shape: Shape) -> tuple[int, ...]:
    _, heads, key_dim, value_dim = shape.dims
    return heads, key_dim, value_dim


GATED_DELTA = ScanOp(
    name="gated_delta",
    shapes=(
        Shape(1, 32, 3, 16, (2, 2, 8, 8)),
        Shape(2, 48, 4, 16, (2, 4, 16, 8), core=True),
        Shape(3, 40, 3, 8, (1, 2, 8, 16)),
        Shape(2, 40, 3, 32, (2, 4, 16, 8), "bfloat16"),
        Shape(2, 1, 1, 16, (2, 2, 8, 8)),
    ),
    draw=_draw,
    sequence=("q", "k", "v", "g", "beta"),
    identity=("k", "v", "g", "beta"),
    state_shape=_state_shape,
    call=call_by_chunk(gated_delta_scan),
    fixed_dtypes={"g": "float32", "beta": "float32"},
)
