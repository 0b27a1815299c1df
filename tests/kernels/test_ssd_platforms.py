"""The SSD kernel on machines that are not here: it lowers, fits, and the simulated TPU agrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.platform import VMEM_BUDGET_BYTES, vmem_bytes
from kernels.scan import Bounds
from kernels.ssd import ssd_scan
from kernels.ssd.pallas import ssd_pallas
from tests.kernels.lowering import (
    GPU_KIND,
    TPU_KINDS,
    assert_dots_on_purpose,
    dot_precisions,
    dots,
    kernel_calls,
    lowered_text,
)

# batch, length, heads, head_dim, groups, state_dim: Mamba-2 2.7B, and a small one with groups.
LARGE = (1, 4096, 80, 64, 1, 128)
SMALL = (2, 128, 4, 64, 2, 64)


def _shapes(shape, dtype, slots):
    batch, length, heads, head_dim, groups, state_dim = shape

    def of(*axes, dtype=dtype):
        return jax.ShapeDtypeStruct(axes, dtype)

    return (
        of(batch, length, heads, head_dim),
        of(batch, length, heads, dtype=jnp.float32),
        of(heads, dtype=jnp.float32),
        of(batch, length, groups, state_dim),
        of(batch, length, groups, state_dim),
        of(batch, heads, head_dim, state_dim, dtype=jnp.float32),
        Bounds(of(batch, dtype=jnp.int32), of(batch, slots, dtype=jnp.int32)),
    )


def _values(shape, seed=0):
    batch, length, heads, head_dim, groups, state_dim = shape
    rng = np.random.default_rng(seed)

    def normal(*axes):
        return jnp.asarray(rng.normal(size=axes), jnp.float32)

    return (
        normal(batch, length, heads, head_dim),
        jnp.abs(normal(batch, length, heads)),
        -jnp.abs(normal(heads)),
        normal(batch, length, groups, state_dim),
        normal(batch, length, groups, state_dim),
        normal(batch, heads, head_dim, state_dim),
    )


def _launch(platform, **options):
    return lambda *arguments: ssd_pallas(*arguments, 64, platform=platform, **options)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("slots", [0, 4])
@pytest.mark.parametrize("kind", TPU_KINDS)
def test_lowers_to_one_kernel_on_tpu(kind, slots, dtype) -> None:
    for shape in (LARGE, SMALL):
        text = lowered_text("tpu", kind, _launch("tpu"), *_shapes(shape, dtype, slots))
        assert kernel_calls(text) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("slots", [0, 4])
def test_lowers_to_one_kernel_on_cuda(slots, dtype) -> None:
    for shape in (LARGE, SMALL):
        text = lowered_text("cuda", GPU_KIND, _launch("cuda"), *_shapes(shape, dtype, slots))
        assert kernel_calls(text) == 1


def test_nothing_of_size_chunks_times_state_leaves_the_kernel() -> None:
    shape = (1, 4096, 2, 64, 1, 64)
    outputs = jax.eval_shape(_launch("cpu"), *_shapes(shape, jnp.float32, 3))
    state = 64 * 64
    assert outputs.captured.size == 3 * 2 * state
    text = jax.jit(_launch("cpu")).lower(*_shapes(shape, jnp.float32, 3)).as_text()
    assert f"tensor<1x2x{4096 // 64}x64x64xf32>" not in text


@pytest.mark.parametrize("implementation", ["xla", "pallas"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_products_ask_for_their_precision(dtype, implementation) -> None:
    *arrays, bounds = _shapes(SMALL, dtype, 2)

    def scan(x, dt, A, B, C, state, bounds):
        return ssd_scan(
            x,
            dt,
            A,
            B,
            C,
            initial_state=state,
            lengths=bounds.lengths_B,
            capture_offsets=bounds.offsets_BS,
            implementation=implementation,
        )

    def gradient(*arguments):
        def loss(*inputs):
            result = scan(*inputs, arguments[-1])
            return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in result)

        return jax.grad(loss, range(6))(*arguments[:-1])

    assert_dots_on_purpose(dots(scan, *arrays, bounds))
    if implementation == "xla":
        found = dot_precisions(lowered_text("tpu", TPU_KINDS[0], scan, *arrays, bounds))
        assert ("f32", "f32", "HIGHEST") in found
        assert ("f32", "f32", "DEFAULT") not in found
        assert (("bf16", "bf16", "DEFAULT") in found) == (dtype == jnp.bfloat16)
        for left, right, highest, _ in dots(gradient, *arrays, bounds):
            assert highest or jnp.bfloat16 in (left, right)


def test_tiles_fit_and_what_cannot_fit_is_an_error() -> None:
    shape = (1, 64 * 64, 2, 64, 1, 64)
    text = lowered_text("tpu", TPU_KINDS[0], _launch("tpu"), *_shapes(shape, jnp.float32, 1))
    assert kernel_calls(text) == 1
    state = vmem_bytes((64, 64), jnp.float32)
    slots = VMEM_BUDGET_BYTES // (2 * state)
    with pytest.raises(ValueError, match=r"ssd_scan: a block needs \d+ bytes of VMEM.*slots"):
        jax.eval_shape(_launch("tpu"), *_shapes(shape, jnp.float32, slots))


def test_what_triton_cannot_hold_is_an_error() -> None:
    odd, wide = (1, 64, 2, 24, 1, 64), (1, 64, 2, 512, 1, 512)
    with pytest.raises(ValueError, match=r"ssd_scan: head_dim is 24; expected a power of two"):
        jax.eval_shape(_launch("cuda"), *_shapes(odd, jnp.float32, 1))
    with pytest.raises(ValueError, match=r"ssd_scan: a block needs \d+ bytes of shared memory"):
        jax.eval_shape(_launch("cuda"), *_shapes(wide, jnp.float32, 1))


def test_several_tiles_give_the_bits_of_one() -> None:
    arrays = _values((2, 160, 2, 8, 1, 8))
    bounds = Bounds(
        jnp.array([160, 70], jnp.int32), jnp.array([[16, 64, 91], [70, 0, 1]], jnp.int32)
    )

    def run(per_tile):
        launch = jax.jit(lambda *a: ssd_pallas(*a, 16, platform="cpu", chunks_per_tile=per_tile))
        return launch(*arrays, bounds)

    for several, one in zip(run(3), run(10), strict=True):
        np.testing.assert_array_equal(several, one)


def test_the_simulated_tpu_finds_no_race_and_reads_nothing_unwritten() -> None:
    arrays = _values((1, 32, 2, 8, 1, 8))
    bounds = Bounds(jnp.array([27], jnp.int32), jnp.array([[8, 0, 21]], jnp.int32))
    simulated = ssd_pallas(*arrays, bounds, 8, platform="tpu_interpret", chunks_per_tile=2)
    plain = ssd_pallas(*arrays, bounds, 8, platform="cpu")
    for found, expected in zip(simulated, plain, strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
