"""One step of training, and how held-out text is scored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.training.step import Recipe, Trainer, TrainState, master_weights
from hybrid.config import AttentionSpec, Branch, HybridConfig, Mamba2Spec, MLPSpec
from hybrid.model import HybridModel

LENGTH = 32
RECIPE = Recipe(steps=20, warmup=4, learning_rate=1e-2, weight_decay=0.1, clip=1.0)
SPECK = HybridConfig(
    "speck",
    hidden_size=16,
    layers=tuple(
        (Branch((part,)),)
        for part in (
            Mamba2Spec(num_heads=2, head_dim=8, state_dim=8),
            AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=8),
            MLPSpec(32),
        )
    ),
)


pytestmark = pytest.mark.usefixtures("quick_compiles")


@pytest.fixture(scope="module")
def trainer():
    return Trainer(SPECK, master_weights("float32"), RECIPE)


@pytest.fixture(scope="module")
def log_probabilities(trainer):
    """Of the byte after each of a window's [1, LENGTH]."""

    @jax.jit
    def forward(params, tokens):
        return jax.nn.log_softmax(nnx.merge(trainer._graphdef, params)(tokens)[0])

    return forward


def random_params(seed):
    rng = np.random.default_rng(seed)
    abstract = nnx.state(
        nnx.eval_shape(lambda: HybridModel(SPECK, master_weights("float32"), nnx.Rngs(params=0)))
    )
    return jax.tree.map(lambda x: jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype), abstract)


def bytes_of(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize(
    "count", [2, 3, LENGTH // 2, LENGTH // 2 + 2, LENGTH, LENGTH + 1, LENGTH + 2, 3 * LENGTH + 5]
)
def test_every_byte_after_the_first_is_scored_once(trainer, log_probabilities, count):
    """A byte is told all before it up to `length`, then as much as the last half-step left."""
    params, text, half = random_params(1), bytes_of(count, count), LENGTH // 2
    bits = 0.0
    for place in range(1, count):
        start = 0 if place <= LENGTH else (place - 1) // half * half - half
        assert half <= place - start <= LENGTH or start == 0
        window = np.zeros((1, LENGTH), np.int32)
        window[0, : place - start] = text[start:place]
        logs = np.asarray(log_probabilities(params, window))
        bits -= logs[place - start - 1, text[place]] / np.log(2)
    found = trainer.bits_per_byte(params, text, LENGTH, batch=3)
    assert found == pytest.approx(bits / (count - 1), rel=1e-5)


@pytest.mark.slow
def test_two_half_batches_make_one_whole(trainer):
    """The gradients are sums in another order: they differ by some roundings of fp32."""
    rows, params = bytes_of(2, 4, LENGTH + 1), random_params(3)
    with jax.numpy_dtype_promotion("standard"):
        optimizer = RECIPE.optimizer().init(params)

    def after(batches):
        copy = jax.tree.map(jnp.copy, (params, optimizer))  # a step uses its state up
        return trainer.step(TrainState(*copy, jnp.zeros((), jnp.int32)), batches)

    (whole, one), (halves, two) = after(rows[None]), after(rows.reshape(2, 2, -1))
    assert two == pytest.approx(one, rel=1e-5)
    # Adam's first moment is a tenth of the clipped gradient.
    moments = [
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(s.optimizer[1][0].mu)])
        for s in (whole, halves)
    ]
    scale = np.abs(moments[0]).max()
    assert scale > 1e-3
    np.testing.assert_allclose(moments[1], moments[0], rtol=0, atol=3e-6 * scale)
    assert int(halves.step) == 1


def test_the_learning_rate_warms_up_and_ends_at_a_tenth():
    with jax.numpy_dtype_promotion("standard"):
        rates = [float(RECIPE.schedule()(step)) for step in (0, 2, 4, 12, 20)]
    assert rates == pytest.approx([0, 5e-3, 1e-2, 5.5e-3, 1e-3])


def test_matrices_decay_and_long_gradients_are_clipped():
    params = {"matrix": jnp.ones((2, 2)), "vector": jnp.ones(2), "free": jnp.ones(1)}
    gradient = {"matrix": jnp.zeros((2, 2)), "vector": jnp.zeros(2), "free": jnp.full(1, 50.0)}
    optimizer = RECIPE._replace(warmup=0).optimizer()
    with jax.numpy_dtype_promotion("standard"):
        updates, state = jax.jit(optimizer.update)(gradient, optimizer.init(params), params)
    np.testing.assert_allclose(updates["matrix"], -1e-2 * 0.1 * np.ones((2, 2)), rtol=1e-6)
    np.testing.assert_array_equal(updates["vector"], 0)
    np.testing.assert_allclose(state[1][0].mu["free"], 0.1 * RECIPE.clip, rtol=1e-6)


def test_weights_and_moments_are_fp32_where_products_are_not():
    trainer = Trainer(SPECK, master_weights("bfloat16"), RECIPE)
    state = trainer.abstract()
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    assert {x.dtype.name for x in jax.tree.leaves(state)} == {"float32", "int32"}
    with jax.numpy_dtype_promotion("standard"):
        program = str(jax.make_jaxpr(trainer._losses)(state.params, np.zeros((1, LENGTH + 1), int)))
    assert "bf16" in program
