"""Presets of published sizes: their weight, and their states against what the model hands back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hybrid.config import Branch, Compute
from hybrid.layers.part import Tile
from hybrid.model import HybridModel
from hybrid.presets import PRESETS, preset, preset_names
from hybrid.state import (
    KVState,
    kv_bytes_per_token,
    recurrent_only,
    snapshot_bytes,
    state_shapes,
    tree_bytes,
)

# In billions: as their authors give them, and as the docstrings of ours do.
PARAMETERS = {
    "tiny": 0.14e-3,
    "default": 7.8e-3,
    "python-1m": 1.5e-3,
    "bamba-9b": 9.78,
    "falcon-h1-0.5b": 0.521,
    "granite-4.0-h-350m": 0.340,
    "granite-4.0-h-1b": 1.46,
    "granite-4.0-h-tiny": 6.94,
    "lfm2-1.2b": 1.17,
    "mamba2-2.7b": 2.70,
    "nemotron-h-8b": 8.10,
    "olmo-hybrid-7b": 7.43,
    "qwen3-next-80b-a3b": 79.7,
    "qwen3.5-0.8b": 0.752,
    "recurrentgemma-2b": 2.68,
    "zamba2-2.7b": 2.66,
}
QUICK = ("tiny", "lfm2-1.2b", "recurrentgemma-2b")
COMPUTE, TILE, SLOTS, CAPACITY = Compute(dtype="bfloat16"), 64, 2, 512

each = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in preset_names()],
)


def shapes_of(config):
    return nnx.eval_shape(lambda: HybridModel(config, COMPUTE, nnx.Rngs(params=0)))


def test_a_branch_without_parts_is_refused():
    with pytest.raises(ValueError, match=r"Branch\.parts is \(\); expected at least one part"):
        Branch(())


def test_every_preset_is_weighed():
    assert set(PARAMETERS) == set(preset_names())


@each
def test_parameters_are_as_many_as_told(name):
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(shapes_of(preset(name)))))
    # Two digits are told of ours, three of the published ones.
    within = 0.04 if name in PRESETS else 2e-3
    assert count / 1e9 == pytest.approx(PARAMETERS[name], rel=within)


@each
def test_bytes_of_the_config_are_those_of_the_program(name):
    config = preset(name)
    graphdef, params = nnx.split(shapes_of(config))
    states = state_shapes(config, COMPUTE, 1, CAPACITY)

    def one_tile(params, states):
        tile = Tile(
            start=jnp.int32(0),
            first=jnp.zeros(1, jnp.int32),
            lengths=jnp.full(1, TILE, jnp.int32),
            capture_offsets=jnp.zeros((1, SLOTS), jnp.int32),
        )
        model = nnx.merge(graphdef, params)
        return model.tile(jnp.zeros((1, TILE), jnp.int32), states, tile)

    _, after, captured = jax.eval_shape(one_tile, params, states)
    as_given = jax.tree.map(lambda x: (x.shape, x.dtype), after)
    assert as_given == jax.tree.map(lambda x: (x.shape, np.dtype(x.dtype)), states)
    assert tree_bytes(recurrent_only(after)) == snapshot_bytes(config, COMPUTE)
    assert tree_bytes(captured) == SLOTS * snapshot_bytes(config, COMPUTE)
    kv = tuple(state for state in after if isinstance(state, KVState))
    assert tree_bytes(kv) == CAPACITY * kv_bytes_per_token(config, COMPUTE)


def test_an_unknown_preset_is_refused():
    with pytest.raises(ValueError, match=r"unknown preset 'llama'; expected one of tiny, default"):
        preset("llama")
