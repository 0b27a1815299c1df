"""Trained weights: their file, the runners that use them, and those that come with the package."""

import os
import re
import sysconfig
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from experiments.training.baselines import NGram
from experiments.training.corpus import SEPARATOR, is_held_out, read_corpus
from experiments.training.step import Recipe, Trainer
from hybrid import ModelRunner, trained
from hybrid.checkpoint import CheckpointError
from hybrid.config import Compute
from hybrid.model import HybridModel
from hybrid.presets import preset
from hybrid.trained import (
    FOLDER,
    WEIGHTS,
    load_trained,
    load_weights,
    save_weights,
    trained_names,
)
from planner.schedule import Chunk, Schedule

TINY, FP32 = preset("tiny"), Compute()
HELD_OUT = ("sched.py", "traceback.py")  # the standard library of every Python has them
pytestmark = pytest.mark.usefixtures("quick_compiles")
each = pytest.mark.parametrize("name", trained_names())


@pytest.fixture(scope="module")
def params():
    rng = np.random.default_rng(0)
    abstract = nnx.state(nnx.eval_shape(lambda: HybridModel(TINY, FP32, nnx.Rngs(params=0))))
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), abstract)


@pytest.fixture(scope="module")
def written(params, tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "tiny" / WEIGHTS
    save_weights(path, params)
    return path


def check_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_come_back_rounded_to_bf16(written, params, dtype):
    assert [path.name for path in written.parent.iterdir()] == [WEIGHTS]
    assert {tensor.dtype.name for tensor in load_file(written).values()} == {"bfloat16"}
    found = load_weights(written, TINY, Compute(dtype=dtype, param_dtype=dtype))
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(dtype), params)
    wider = jax.tree.map(lambda a, b: a.astype(b.dtype), rounded, found)  # some are fp32 always
    check_same(found, wider)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert 2 * count < os.path.getsize(written) < 2 * count + 10_000


def test_a_file_that_is_there_is_replaced(written, params, tmp_path):
    path = tmp_path / WEIGHTS
    path.write_bytes(b"old")
    save_weights(path, params)
    assert path.read_bytes() == written.read_bytes()
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_nothing(params, tmp_path, monkeypatch):
    def fail(tensors, path):
        Path(path).write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(trained, "save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        save_weights(tmp_path / WEIGHTS, params)
    assert not list(tmp_path.iterdir())


def lacking(tensors):
    del tensors["branches.0.norm.weight"]


def left_over(tensors):
    tensors["layers.9.weight"] = np.ones(3, np.float32)


def misshapen(tensors):
    tensors["branches.0.norm.weight"] = tensors["branches.0.norm.weight"][:-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lacking, r"lacks branches\.0\.norm\.weight for tiny"),
        (left_over, r"should not hold layers\.9\.weight for tiny"),
        (misshapen, r"branches\.0\.norm\.weight is \[63\]; expected \[64\]"),
    ],
)
def test_weights_that_do_not_fit_are_refused(written, tmp_path, change, message):
    tensors, path = load_file(written), tmp_path / "given.safetensors"
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=rf"given\.safetensors: {message}"):
        load_weights(path, TINY, FP32)


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_a_truncated_file_is_refused(written, tmp_path, cut):
    path = tmp_path / "given.safetensors"
    path.write_bytes(written.read_bytes()[:cut])
    with pytest.raises(CheckpointError, match=r"given\.safetensors: cannot be read"):
        load_weights(path, TINY, FP32)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"given\.safetensors: cannot be read"):
        load_weights(path, TINY, FP32)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"no trained weights called 'llama'; there are \["):
        load_trained("llama")


class Given(ModelRunner):
    """A runner that only remembers which weights it was given."""

    def __init__(self, config, compute, shapes, *, params, seed):
        self.given = config.name, params, seed


def test_a_runner_uses_trained_weights_unless_told_otherwise(written, monkeypatch):
    monkeypatch.setattr("hybrid.trained.FOLDER", written.parents[1])
    assert trained_names() == ["tiny"]
    name, params, _ = Given.from_preset("tiny", capacity=64).given
    assert name == "tiny"
    check_same(params, load_weights(written, TINY, FP32))
    assert Given.from_preset("tiny", capacity=64, trained=False, seed=3).given == ("tiny", None, 3)
    assert Given.from_preset("default", capacity=64, seed=4).given == ("default", None, 4)
    written.with_name("empty.safetensors").write_bytes(b"")
    monkeypatch.setattr("hybrid.trained.WEIGHTS", "empty.safetensors")
    with pytest.raises(CheckpointError, match=r"empty\.safetensors: cannot be read"):
        Given.from_preset("tiny", capacity=64)


def test_weights_come_with_the_package():
    assert "python-1m" in trained_names()


@each
def test_published_weights_are_small_and_described(name):
    path, card = FOLDER / name / WEIGHTS, (FOLDER / name / "README.md").read_text()
    tensors = load_file(path)
    parameters = sum(tensor.size for tensor in tensors.values())
    assert path.stat().st_size <= 8_000_000
    assert parameters <= 3_500_000
    assert all(np.isfinite(tensor.astype(np.float32)).all() for tensor in tensors.values())
    assert f"{parameters:,} parameters" in card
    assert "    python -m experiments.train_lm" in card


def figure_of_card(name, row):
    """A number of the table in the model card."""
    card = (FOLDER / name / "README.md").read_text()
    (found,) = re.findall(rf"^\| {row}.* \| ([0-9.]+) \|$", card, flags=re.MULTILINE)
    return float(found)


def bits_per_byte(name, params, text, length):
    trainer = Trainer(preset(name), FP32, Recipe(1, 0, 1e-3, 0.0, 1.0))
    return trainer.bits_per_byte(params, text, length, 8)


@each
def test_published_weights_predict_held_out_text(name):
    library = Path(sysconfig.get_path("stdlib"))
    assert all(is_held_out(file) for file in HELD_OUT)
    parts = [(library / file).read_bytes()[:1500] + SEPARATOR for file in HELD_OUT]
    params = ModelRunner.from_preset(name, capacity=64).params
    check_same(params, nnx.state(load_trained(name)))
    found = bits_per_byte(name, params, np.frombuffer(b"".join(parts), np.uint8), 128)
    model, ngram = figure_of_card(name, "this model"), figure_of_card(name, "byte 5-gram")
    assert 0.3 < found < 2.0  # less than that would be a text it has learnt by heart
    assert model < 2.0
    assert max(found, model) < ngram


@pytest.mark.slow
@each
def test_published_weights_beat_a_5_gram_of_this_pythons_library(name):
    corpus = read_corpus()
    text = corpus.held_out[:100_000]
    found = bits_per_byte(name, nnx.state(load_trained(name)), text, 256)
    assert found < NGram(corpus.train).bits_per_byte(text) - 0.1


@pytest.mark.slow
@each
def test_a_prompt_runs_through_the_trained_model(name):
    tokens = np.frombuffer(b"def read_lines(path):\n    with open(path) as ", np.uint8)
    runner = ModelRunner.from_preset(name, capacity=64, tile=64)
    schedule = Schedule(len(tokens), 0, (Chunk(0, len(tokens), ((0, len(tokens)),), ()),))
    result = runner.prefill(runner.device_tokens(tokens), schedule, runner.new_workspace())
    expected = load_trained(name)(jnp.asarray(tokens, jnp.int32)[None])[:, -1]
    np.testing.assert_allclose(result.logits, expected, rtol=0, atol=2e-5)
