"""The gated delta kernel on machines that are not here: it lowers, fits, runs simulated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.gated_delta import gated_delta_scan
from kernels.gated_delta.pallas import gated_delta_pallas
from kernels.platform import VMEM_BUDGET_BYTES, vmem_bytes
from kernels.scan import Bounds
from tests.kernels.lowering import (
    GPU_KIND,
    TPU_KINDS,
    assert_dots_on_purpose,
    dot_precisions,
    dots,
    kernel_calls,
    lowered_text,
)

# batch, length, key_heads, heads, key_dim, value_dim: Qwen3-Next, and one with odd head sizes.
LARGE = (1, 4096, 16, 32, 128, 128)
ODD = (2, 128, 2, 4, 96, 192)
SMALL = (2, 64, 2, 4, 16, 16)


def _shapes(shape, dtype, slots):
    batch, length, key_heads, heads, key_dim, value_dim = shape

    def of(*axes, dtype=dtype):
        return jax.ShapeDtypeStruct(axes, dtype)

    return (
        of(batch, length, key_heads, key_dim),
        of(batch, length, key_heads, key_dim),
        of(batch, length, heads, value_dim),
        of(batch, length, heads, dtype=jnp.float32),
        of(batch, length, heads, dtype=jnp.float32),
        of(batch, heads, key_dim, value_dim, dtype=jnp.float32),
        Bounds(of(batch, dtype=jnp.int32), of(batch, slots, dtype=jnp.int32)),
    )


def _values(shape, seed=0):
    batch, length, key_heads, heads, key_dim, value_dim = shape
    rng = np.random.default_rng(seed)

    def unit(*axes):
        rows = rng.normal(size=axes)
        return jnp.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), jnp.float32)

    return (
        unit(batch, length, key_heads, key_dim),
        unit(batch, length, key_heads, key_dim),
        jnp.asarray(rng.normal(size=(batch, length, heads, value_dim)), jnp.float32),
        -jnp.asarray(rng.uniform(size=(batch, length, heads)), jnp.float32),
        jnp.asarray(rng.uniform(0, 2, size=(batch, length, heads)), jnp.float32),
        jnp.asarray(rng.normal(size=(batch, heads, key_dim, value_dim)), jnp.float32),
    )


def _launch(platform, chunk=64, **options):
    def launch(*arguments):
        *inputs, state, bounds = arguments
        return gated_delta_pallas(*inputs, 1.0, state, bounds, chunk, platform=platform, **options)

    return launch


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("slots", [0, 4])
@pytest.mark.parametrize("kind", TPU_KINDS)
def test_lowers_to_one_kernel_on_tpu(kind, slots, dtype) -> None:
    for shape in (LARGE, ODD):
        text = lowered_text("tpu", kind, _launch("tpu"), *_shapes(shape, dtype, slots))
        assert kernel_calls(text) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("slots", [0, 4])
def test_lowers_to_one_kernel_on_cuda(slots, dtype) -> None:
    for shape in (LARGE, ODD):
        text = lowered_text("cuda", GPU_KIND, _launch("cuda"), *_shapes(shape, dtype, slots))
        assert kernel_calls(text) == 1


def test_nothing_of_size_chunks_times_state_leaves_the_kernel() -> None:
    shape = (1, 4096, 2, 2, 16, 16)
    outputs = jax.eval_shape(_launch("cpu"), *_shapes(shape, jnp.float32, 3))
    assert outputs.captured.size == 3 * 2 * 16 * 16
    text = jax.jit(_launch("cpu")).lower(*_shapes(shape, jnp.float32, 3)).as_text()
    assert f"tensor<1x2x{4096 // 64}x16x16xf32>" not in text


@pytest.mark.parametrize("implementation", ["xla", "pallas"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_products_ask_for_their_precision(dtype, implementation) -> None:
    *arrays, bounds = _shapes(SMALL, dtype, 2)

    def scan(q, k, v, g, beta, state, bounds):
        return gated_delta_scan(
            q,
            k,
            v,
            g,
            beta,
            initial_state=state,
            lengths=bounds.lengths_B,
            capture_offsets=bounds.offsets_BS,
            implementation=implementation,
        )

    assert_dots_on_purpose(dots(scan, *arrays, bounds))
    if implementation == "xla":
        found = dot_precisions(lowered_text("tpu", TPU_KINDS[0], scan, *arrays, bounds))
        assert ("f32", "f32", "HIGHEST") in found
        assert ("f32", "f32", "DEFAULT") not in found
        assert (("bf16", "bf16", "DEFAULT") in found) == (dtype == jnp.bfloat16)


def test_what_cannot_fit_is_an_error() -> None:
    slots = VMEM_BUDGET_BYTES // (2 * vmem_bytes((128, 128), jnp.float32))
    with pytest.raises(ValueError, match=r"gated_delta_scan: a block needs \d+ bytes.*slots"):
        jax.eval_shape(_launch("tpu"), *_shapes(LARGE, jnp.float32, slots))


def test_several_tiles_give_the_bits_of_one() -> None:
    arrays = _values((2, 80, 1, 2, 8, 8))
    bounds = Bounds(
        jnp.array([80, 70], jnp.int32), jnp.array([[16, 64, 51], [70, 0, 1]], jnp.int32)
    )
    one = jax.jit(_launch("cpu", 16, chunks_per_tile=5))(*arrays, bounds)
    several = jax.jit(_launch("cpu", 16, chunks_per_tile=3))(*arrays, bounds)
    for found, expected in zip(several, one, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_simulated_tpu_finds_no_race_and_reads_nothing_unwritten() -> None:
    arrays = _values((1, 32, 1, 2, 8, 8))
    bounds = Bounds(jnp.array([27], jnp.int32), jnp.array([[8, 0, 21]], jnp.int32))
    simulated = _launch("tpu_interpret", 8, chunks_per_tile=2)(*arrays, bounds)
    plain = _launch("cpu", 8)(*arrays, bounds)
    for found, expected in zip(simulated, plain, strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
