"""What a CPU run cannot see: fp32 products ask for it, and no tile ends inside a scan's chunk."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.extend.core import jaxprs_in_params

from hybrid import ModelRunner
from hybrid.config import Compute
from hybrid.engine import _check_room
from hybrid.memory import InsufficientMemoryError
from hybrid.model import HybridModel
from hybrid.presets import preset
from planner.eviction import Budget
from planner.schedule import Chunk, Schedule
from tests.hybrid.common import assert_same_bits


def products(jaxpr):
    """Every dot_general of a program and of what it calls."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from products(inner)


@pytest.mark.parametrize("name", ["tiny", "qwen3.5-0.8b", "recurrentgemma-2b"])
def test_the_training_forward_asks_for_fp32_products(name):
    config = preset(name)
    config = dataclasses.replace(config, layers=config.layers[:4])
    model = nnx.eval_shape(lambda: HybridModel(config, Compute(), nnx.Rngs(params=0)))
    graphdef, params = nnx.split(model)
    tokens = jax.ShapeDtypeStruct((1, 64), jnp.int32)
    traced = jax.make_jaxpr(lambda params, x: nnx.merge(graphdef, params)(x))(params, tokens)
    found = [e for e in products(traced.jaxpr) if e.invars[0].aval.dtype == jnp.float32]
    assert len(found) > 10
    for equation in found:
        assert equation.params["precision"] == (lax.Precision.HIGHEST,) * 2, equation


@pytest.mark.parametrize(("tile", "chunk"), [(32, 32), (48, 16), (64, 64), (96, 32)])
def test_every_tile_ends_on_a_chunk_of_the_scans(tile, chunk):
    assert Compute().chunk == 64
    runner = ModelRunner.from_preset("tiny", capacity=192, tile=tile, block_size=16)
    assert runner.compute.chunk == chunk


def test_a_tile_that_the_delta_rule_cannot_be_cut_to_is_refused():
    with pytest.raises(ValueError, match=r"tile is 20 .* multiple of 8 .* of qwen3\.5-0\.8b"):
        ModelRunner.from_preset("qwen3.5-0.8b", capacity=160, tile=20, block_size=4)


@pytest.mark.slow
def test_warm_equals_cold_where_the_chunk_was_shortened():
    runner = ModelRunner.from_preset("tiny", capacity=192, tile=48, block_size=16)
    tokens = np.random.default_rng(0).integers(0, 256, 150)
    device_tokens = runner.device_tokens(tokens)
    whole = (Chunk(0, 150, ((0, 150),), (96,)),)
    cold = runner.prefill(device_tokens, Schedule(150, 0, whole), runner.new_workspace())
    expected = np.asarray(cold.logits)
    rest = (Chunk(96, 150, ((96, 150),), ()),)
    warm = runner.prefill(
        device_tokens,
        Schedule(150, 96, rest),
        cold.workspace,
        restored=96,
        snapshot=cold.snapshots[96],
    )
    assert_same_bits(np.asarray(warm.logits), expected, "logits")


def test_the_cache_needs_room_on_the_host_whatever_the_platform(monkeypatch):
    stats = {"bytes_limit": 2**30, "bytes_in_use": 0}
    device = types.SimpleNamespace(platform="gpu", id=0, memory_stats=lambda: stats)
    runner = types.SimpleNamespace(device=device, workspace_shapes=())
    monkeypatch.setattr(jax, "devices", lambda platform=None: pytest.fail("a platform started"))
    _check_room(runner, Budget(total_bytes=2**20))
    with pytest.raises(InsufficientMemoryError, match=r"the host has .* MiB free"):
        _check_room(runner, Budget(total_bytes=2**60))
