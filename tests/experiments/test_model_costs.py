"""Counts of FLOPs against the weights of the model that is built."""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from experiments.model_costs import model_costs
from hybrid.checkpoint import read_config
from hybrid.config import Compute, MoESpec
from hybrid.model import HybridModel
from hybrid.presets import PRESETS, preset
from hybrid.state import recurrent_only, state_shapes, tree_bytes

GOLDENS = Path(__file__).parents[1] / "parity" / "goldens"
FAMILIES = sorted(path.name for path in GOLDENS.iterdir())


def weights_of(config, compute):
    """Shapes of what a row is multiplied with, by path."""
    params = nnx.state(nnx.eval_shape(lambda: HybridModel(config, compute, nnx.Rngs(params=0))))
    return {
        jax.tree_util.keystr(path): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if len(leaf.shape) > 1
        and not any(
            name in jax.tree_util.keystr(path)
            for name in ("conv", "embedding", "lm_head", "gates_bias")
        )
    }


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_counts_agree_with_the_model_that_is_built(name, dtype):
    config, compute = preset(name), Compute(dtype=dtype)
    costs = model_costs(config, compute)
    shapes = state_shapes(config, compute, 1, 512)
    recurrent_bytes = tree_bytes(recurrent_only(shapes))
    assert costs.snapshot_bytes == recurrent_bytes
    assert costs.kv_bytes_per_token * 512 == tree_bytes(shapes) - recurrent_bytes
    products = sum(2 * int(np.prod(shape)) for shape in weights_of(config, compute).values())
    assert costs.linear_flops_per_token == products


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_layer_counts_its_weights(family):
    config, compute = read_config(GOLDENS / family), Compute()
    moes = [part for part in config.parts() if isinstance(part, MoESpec)]
    products = 0
    for path, shape in weights_of(config, compute).items():
        size = 2 * int(np.prod(shape))
        if "shared_blocks" in path:  # used as often as branches inject it
            block = int(path.split("shared_blocks")[1].split("[")[1].split("]")[0])
            size *= sum(injection.block == block for injection in config.injections())
        elif len(shape) == 3 and moes:  # of all experts, top_k run
            size = size * moes[0].top_k // moes[0].num_experts
        products += size
    assert model_costs(config, compute).linear_flops_per_token == products


def test_the_window_of_attention_is_kept():
    windows = [
        a.window for a in model_costs(read_config(GOLDENS / "recurrent_gemma"), Compute()).attention
    ]
    assert windows == [12]


def test_scans_cost_more_in_longer_chunks_and_not_in_longer_prompts():
    config = read_config(GOLDENS / "qwen3_next")
    short, long = (model_costs(config, Compute(chunk=chunk)) for chunk in (32, 64))
    spec = next(part for part in config.parts() if hasattr(part, "value_dim"))
    within = 4 * spec.keys_dim + 2 * spec.num_heads * (spec.key_dim + 2 * spec.value_dim)
    assert long.recurrent_flops_per_token - short.recurrent_flops_per_token == 32 * within
