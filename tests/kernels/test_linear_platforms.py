"""The diagonal kernel on machines that are not here: it lowers, fits, runs simulated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels.linear_scan.pallas import linear_pallas
from kernels.platform import VMEM_BUDGET_BYTES, vmem_bytes
from kernels.scan import Bounds
from tests.kernels.lowering import GPU_KIND, TPU_KINDS, kernel_calls, lowered_text

# batch, length, channels: RecurrentGemma 2B, Mamba-1 with 16 states a channel, and an odd width.
SHAPES = ((1, 4096, 2560), (1, 256, 5120 * 16), (2, 100, 72))


def _shapes(shape, dtype, slots):
    batch, length, channels = shape

    def of(*axes, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(axes, dtype)

    return (
        of(batch, length, channels),
        of(batch, length, channels, dtype=dtype),
        of(batch, channels),
        Bounds(of(batch, dtype=jnp.int32), of(batch, slots, dtype=jnp.int32)),
    )


def _values(shape, seed=0):
    batch, length, channels = shape
    rng = np.random.default_rng(seed)
    return (
        -jnp.asarray(rng.uniform(size=(batch, length, channels)), jnp.float32),
        jnp.asarray(rng.normal(size=(batch, length, channels)), jnp.float32),
        jnp.asarray(rng.normal(size=(batch, channels)), jnp.float32),
    )


def _launch(platform, **options):
    return lambda *arguments: linear_pallas(*arguments, platform=platform, **options)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("slots", [0, 4])
@pytest.mark.parametrize(
    ("platform", "kind"),
    [*(("tpu", kind) for kind in TPU_KINDS), ("cuda", GPU_KIND), ("mosaic_gpu", GPU_KIND)],
)
def test_lowers_to_one_kernel(platform, kind, slots, dtype) -> None:
    target = "tpu" if platform == "tpu" else "cuda"
    for shape in SHAPES:
        text = lowered_text(target, kind, _launch(platform), *_shapes(shape, dtype, slots))
        assert kernel_calls(text) == 1
        assert ("mosaic_gpu" in text) == (platform == "mosaic_gpu")


def test_what_cannot_fit_is_an_error() -> None:
    slots = 8 * VMEM_BUDGET_BYTES // vmem_bytes((8, 512), jnp.float32)
    with pytest.raises(ValueError, match=r"linear_scan: a block needs \d+ bytes.*slots"):
        jax.eval_shape(_launch("tpu"), *_shapes(SHAPES[0], jnp.float32, slots))


def test_several_tiles_give_the_bits_of_one() -> None:
    arrays = _values((2, 80, 24))
    offsets = jnp.array([[16, 64, 51], [70, 0, 1]], jnp.int32)
    bounds = Bounds(jnp.array([80, 70], jnp.int32), offsets)
    one = jax.jit(_launch("cpu", groups_per_tile=5))(*arrays, bounds)
    several = jax.jit(_launch("cpu", groups_per_tile=3))(*arrays, bounds)
    for found, expected in zip(several, one, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_simulated_tpu_finds_no_race_and_reads_nothing_unwritten() -> None:
    arrays = _values((1, 48, 24))
    bounds = Bounds(jnp.array([43], jnp.int32), jnp.array([[16, 0, 37]], jnp.int32))
    simulated = _launch("tpu_interpret", groups_per_tile=2)(*arrays, bounds)
    plain = _launch("cpu")(*arrays, bounds)
    for found, expected in zip(simulated, plain, strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(
    not hasattr(plgpu, "InterpretGPUParams"), reason="jax 0.10 does not export the GPU simulator"
)
def test_the_simulated_gpu_gives_the_bits_of_the_plain_loop() -> None:
    arrays = _values((3, 48, 130))
    lengths = jnp.array([43, 48, 0], jnp.int32)
    offsets = jnp.array([[16, 0, 37], [48, 1, 17], [0, 0, 0]], jnp.int32)
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams()):
        simulated = _launch("mosaic_gpu")(*arrays, Bounds(lengths, offsets))
    plain = _launch("cpu")(*arrays, Bounds(lengths, offsets))
    for found, expected in zip(simulated, plain, strict=True):
        np.testing.assert_array_equal(found, expected)
