"""The kernels on machines that are not here: they lower, fit, and run simulated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from kernels.gated_delta import gated_delta_scan
from kernels.platform import VMEM_BUDGET_BYTES
from kernels.scan import Bounds
from kernels.ssd import ssd_scan
from tests.kernels.lowering import (
    GPU_KIND,
    TPU_KINDS,
    assert_dots_on_purpose,
    dot_precisions,
    dots,
    kernel_calls,
    largest_tensor,
    lowered_text,
)
from tests.kernels.platform_ops import GATED_DELTA, LINEAR, OPS, SSD

CHUNK = 16
SCANS = {SSD: ssd_scan, GATED_DELTA: gated_delta_scan}

each_op = pytest.mark.parametrize("op", OPS, ids=str)
each_with_products = pytest.mark.parametrize("op", SCANS, ids=str)
each_dtype = pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])


def bounds_of(lengths, offsets):
    return Bounds(jnp.array(lengths, jnp.int32), jnp.array(offsets, jnp.int32))


@each_dtype
@pytest.mark.parametrize("slots", [0, 4])
@pytest.mark.parametrize(
    ("op", "platform", "kind"),
    [
        *((op, "tpu", kind) for op in OPS for kind in TPU_KINDS),
        *((op, "cuda", GPU_KIND) for op in OPS),
        (LINEAR, "mosaic_gpu", GPU_KIND),
    ],
    ids=str,
)
def test_lowers_to_one_kernel(op, platform, kind, slots, dtype) -> None:
    target = "tpu" if platform == "tpu" else "cuda"
    for shape in op.published:
        text = lowered_text(target, kind, op.on(platform), *op.structs(shape, dtype, slots))
        assert kernel_calls(text) == 1
        assert ("mosaic_gpu" in text) == (platform == "mosaic_gpu")


@pytest.mark.parametrize(
    ("op", "shape"),
    [(SSD, (1, 4096, 2, 64, 1, 64)), (GATED_DELTA, (1, 4096, 2, 2, 64, 64))],
    ids=str,
)
def test_nothing_of_size_chunks_times_state(op, shape) -> None:
    structs = op.structs(shape, jnp.float32, 3)
    *_, state, _ = structs
    assert jax.eval_shape(op.on("cpu", CHUNK), *structs).captured.size == 3 * state.size
    text = jax.jit(op.on("cpu", CHUNK)).lower(*structs).as_text()
    inputs = max(leaf.size for leaf in jax.tree.leaves(structs))
    assert largest_tensor(text) == inputs < 4096 // CHUNK * state.size


@each_with_products
@pytest.mark.parametrize("implementation", ["xla", "pallas"])
@each_dtype
def test_products_ask_for_their_precision(op, implementation, dtype) -> None:
    *arrays, bounds = op.structs(
        (2, 128, 2, 4, 32, 32) if op is GATED_DELTA else (2, 128, 4, 64, 2, 64), dtype, 2
    )

    def scan(*arguments):
        *inputs, state, bounds = arguments
        return SCANS[op](
            *inputs,
            initial_state=state,
            lengths=bounds.lengths_B,
            capture_offsets=bounds.offsets_BS,
            implementation=implementation,
        )

    def gradient(*arguments):
        def loss(*inputs):
            result = scan(*inputs, arguments[-1])
            return sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in result)

        return jax.grad(loss, range(len(arrays)))(*arguments[:-1])

    assert_dots_on_purpose(dots(scan, *arrays, bounds))
    if implementation == "xla":
        found = dot_precisions(lowered_text("tpu", TPU_KINDS[0], scan, *arrays, bounds))
        assert ("f32", "f32", "HIGHEST") in found
        assert ("f32", "f32", "DEFAULT") not in found
        assert (("bf16", "bf16", "DEFAULT") in found) == (dtype == jnp.bfloat16)
        for left, right, highest, _ in dots(gradient, *arrays, bounds):
            assert highest or jnp.bfloat16 in (left, right)


@each_op
def test_what_cannot_fit_is_an_error(op) -> None:
    slots = VMEM_BUDGET_BYTES // op.capture_bytes  # they are held twice
    with pytest.raises(ValueError, match=rf"{op}: a block needs \d+ bytes of VMEM.*slots"):
        jax.eval_shape(op.on("tpu"), *op.structs(op.published[0], jnp.float32, slots))


def test_what_triton_cannot_hold_is_an_error() -> None:
    odd, wide = (1, 64, 2, 24, 1, 64), (1, 64, 2, 512, 1, 512)
    with pytest.raises(ValueError, match=r"ssd_scan: head_dim is 24; expected a power of two"):
        jax.eval_shape(SSD.on("cuda"), *SSD.structs(odd, jnp.float32, 1))
    with pytest.raises(ValueError, match=r"ssd_scan: a block needs \d+ bytes of shared memory"):
        jax.eval_shape(SSD.on("cuda"), *SSD.structs(wide, jnp.float32, 1))


@pytest.mark.slow
@each_op
def test_several_tiles_give_the_bits_of_one(op) -> None:
    arrays = op.values(op.small)
    bounds = bounds_of([80, 70], [[16, 64, 51], [70, 0, 1]])
    one = jax.jit(op.on("cpu", CHUNK, 5))(*arrays, bounds)
    several = jax.jit(op.on("cpu", CHUNK, 3))(*arrays, bounds)
    for found, expected in zip(several, one, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@each_op
def test_the_simulated_tpu_finds_no_race_and_reads_nothing_unwritten(op) -> None:
    arrays = op.values((1, 48, *op.small[2:]))
    bounds = bounds_of([43], [[16, 0, 37]])
    simulated = op.on("tpu_interpret", CHUNK, 2)(*arrays, bounds)
    plain = op.on("cpu", CHUNK)(*arrays, bounds)
    for found, expected in zip(simulated, plain, strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(
    not hasattr(plgpu, "InterpretGPUParams"), reason="jax 0.10 does not export the GPU simulator"
)
def test_the_simulated_gpu_gives_the_bits_of_the_plain_loop() -> None:
    arrays = LINEAR.values((3, 48, 130))
    bounds = bounds_of([43, 48, 0], [[16, 0, 37], [48, 1, 17], [0, 0, 0]])
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams()):
        simulated = LINEAR.on("mosaic_gpu")(*arrays, bounds)
    plain = LINEAR.on("cpu")(*arrays, bounds)
    for found, expected in zip(simulated, plain, strict=True):
        np.testing.assert_array_equal(found, expected)
