import jax
import pytest
from flax import nnx

from experiments.model_costs import model_costs
from hybrid.config import Compute
from hybrid.model import HybridModel
from hybrid.presets import PRESETS, preset
from hybrid.state import recurrent_only, state_shapes, tree_bytes


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_counts_agree_with_the_model_that_is_built(name, dtype):
    config, compute = preset(name), Compute(dtype=dtype)
    costs = model_costs(config, compute)
    shapes = state_shapes(config, compute, 1, 512)
    recurrent_bytes = tree_bytes(recurrent_only(shapes))
    assert costs.snapshot_bytes == recurrent_bytes
    assert costs.kv_bytes_per_token * 512 == tree_bytes(shapes) - recurrent_bytes
    params = nnx.state(nnx.eval_shape(lambda: HybridModel(config, compute, nnx.Rngs(params=0))))
    weights = {
        path: leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if len(leaf.shape) == 2
    }
    products = sum(
        2 * rows * columns
        for path, (rows, columns) in weights.items()
        if not any(name in str(path) for name in ("conv", "embedding", "lm_head"))
    )
    assert costs.linear_flops_per_token == products
