"""A mixture of experts: against a loop over rows, and a row's bits against everything beside it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hybrid.config import Compute, MoESpec
from hybrid.layers.moe import MoE
from hybrid.layers.part import Tile

BATCH, ROWS, HIDDEN = 2, 16, 24
SPECS = {
    "softmax": MoESpec(6, 2, 20),
    "softmax_of_top": MoESpec(6, 3, 20, routing="softmax_of_top"),
    "sigmoid": MoESpec(6, 2, 20, "relu2", gated=False, routing="sigmoid", scale=1.5),
}


def build(kind):
    part = MoE(SPECS[kind], HIDDEN, Compute(), nnx.Rngs(params=3))
    if part.choice_bias is not None:
        part.choice_bias[...] = jnp.linspace(-0.3, 0.3, 6)
    graphdef, params = nnx.split(part)

    @jax.jit
    def run(x, first, lengths):
        tile = Tile(jnp.int32(0), first, lengths, jnp.zeros((BATCH, 1), jnp.int32))
        return nnx.merge(graphdef, params).prefill(x, None, tile).y

    def prefill(x, first=(0, 0), lengths=(ROWS, ROWS)):
        as_int = [jnp.asarray(v, jnp.int32) for v in (first, lengths)]
        return np.asarray(run(jnp.asarray(x), *as_int))

    return part, prefill


def rows(seed):
    return np.random.default_rng(seed).normal(size=(BATCH, ROWS, HIDDEN)).astype(np.float32)


def one_row(part, x):
    """The definition, for one row, in float64."""
    spec = part.spec
    scores = x @ np.asarray(part.router.kernel[...], np.float64)
    chance = np.exp(scores) / np.exp(scores).sum()
    choice = {"softmax": chance, "softmax_of_top": scores}.get(spec.routing)
    weights = choice
    if choice is None:
        weights = 1 / (1 + np.exp(-scores))
        choice = weights + np.asarray(part.choice_bias[...], np.float64)
    chosen = np.argsort(-choice)[: spec.top_k]
    weights = weights[chosen]
    if spec.routing == "softmax_of_top":
        weights = np.exp(weights)
    weights = weights / weights.sum() * spec.scale
    y = np.zeros(HIDDEN)
    for expert, weight in zip(chosen, weights, strict=True):
        inner = x @ np.asarray(part.up[expert], np.float64)
        if spec.gated:
            gate, up = np.split(inner, 2)
            inner = gate / (1 + np.exp(-gate)) * up
        else:
            inner = np.maximum(inner, 0) ** 2
        y += weight * (inner @ np.asarray(part.down[expert], np.float64))
    return y


@pytest.mark.parametrize("kind", SPECS)
def test_matches_the_definition_row_by_row(kind):
    part, prefill = build(kind)
    x = rows(0)
    expected = np.stack([[one_row(part, row.astype(np.float64)) for row in seq] for seq in x])
    np.testing.assert_allclose(prefill(x), expected, rtol=2e-5, atol=2e-6)


def test_a_row_keeps_its_bits_whatever_its_neighbours_are():
    _, prefill = build("softmax")
    x, others = rows(0), rows(1)
    y = prefill(x)
    mate = prefill(np.stack([x[0], others[1]]))
    np.testing.assert_array_equal(mate[0], y[0])
    later = prefill(np.concatenate([x[:, :7], others[:, 7:]], axis=1))
    np.testing.assert_array_equal(later[:, :7], y[:, :7])
    # All rows to one expert: no capacity drops a row.
    crowd = prefill(np.broadcast_to(x[:1, :1], x.shape))
    np.testing.assert_array_equal(crowd, np.broadcast_to(y[:1, :1], y.shape))


def test_padding_goes_to_no_expert_and_disturbs_nothing():
    _, prefill = build("softmax")
    x = rows(0)
    y, planted = prefill(x), x.copy()
    planted[0, :3], planted[1, 11:] = np.nan, np.nan
    found = prefill(planted, first=(3, 0), lengths=(ROWS, 11))
    np.testing.assert_array_equal(found[0, 3:], y[0, 3:])
    np.testing.assert_array_equal(found[1, :11], y[1, :11])


def test_padding_rows_give_zero():
    _, prefill = build("softmax")
    y = prefill(rows(0), first=(3, 0), lengths=(ROWS, 11))
    assert not y[0, :3].any()
    assert not y[1, 11:].any()


def test_a_spec_without_sense_is_refused():
    with pytest.raises(ValueError, match=r"top_k is 7; expected at most num_experts = 6"):
        MoESpec(6, 7, 20)
    with pytest.raises(ValueError, match=r"routing is 'hash'"):
        MoESpec(6, 2, 20, routing="hash")
