"""Fingerprints: every ingredient counts, by content, and a mismatch says which."""

import dataclasses
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx

from hybrid.config import Compute
from hybrid.fingerprint import Fingerprint, content_digest, fingerprint
from hybrid.presets import preset
from hybrid.runner import ModelRunner
from hybrid.runner_config import RunnerConfig

SHAPES = RunnerConfig(capacity=64, tile=32, block_size=8)
COMPUTE = Compute(implementation="xla", chunk=16, kv_tile=64)


WEIGHTS = {"layer": {"kernel": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)}}


def fresh(config=None, compute=COMPUTE, shapes=SHAPES, params=WEIGHTS):
    """A runner that is never run: its weights are any arrays."""
    return ModelRunner(config or preset("tiny"), compute, shapes, params=params)


@pytest.fixture(scope="module")
def base():
    runner = fresh()
    return runner, fingerprint(runner)


def changed_weight(params):
    leaves, tree = jax.tree.flatten(params)
    wrong = np.array(leaves[-1])
    wrong.flat[-1] = np.nextafter(wrong.flat[-1], np.inf)
    return jax.tree.unflatten(tree, [*leaves[:-1], wrong])


CHANGES = {
    "parameters": lambda runner: fresh(params=changed_weight(runner.params)),
    "config": lambda runner: fresh(
        config=dataclasses.replace(preset("tiny"), logits_multiplier=1.5)
    ),
    "compute": lambda runner: fresh(compute=dataclasses.replace(COMPUTE, chunk=32)),
    "tile": lambda runner: fresh(shapes=dataclasses.replace(SHAPES, tile=64)),
    "block_size": lambda runner: fresh(shapes=dataclasses.replace(SHAPES, block_size=16)),
    "batch": lambda runner: fresh(shapes=dataclasses.replace(SHAPES, batch=2)),
    "capture_slots": lambda runner: fresh(shapes=dataclasses.replace(SHAPES, capture_slots=4)),
}


@pytest.mark.parametrize("part", CHANGES)
def test_every_ingredient_counts(base, part):
    runner, known = base
    other = fingerprint(CHANGES[part](runner))
    assert other.digest != known.digest
    assert [line.partition(":")[0] for line in known.differences(other.parts)] == [part]


def test_grid_and_dtype_count(base):
    _, known = base
    block = fingerprint(fresh(shapes=dataclasses.replace(SHAPES, grid="block")))
    assert [line.partition(":")[0] for line in known.differences(block.parts)] == ["capture_slots"]
    half = fingerprint(fresh(compute=dataclasses.replace(COMPUTE, dtype="bfloat16")))
    names = [line.partition(":")[0] for line in known.differences(half.parts)]
    assert names == ["compute", "state_dtypes"]


def test_equal_environments_agree(base):
    runner, known = base
    other = fingerprint(fresh(params=jax.tree.map(jax.numpy.asarray, runner.params)))
    assert other.digest == known.digest
    assert known.differences(other.parts) == []
    longer = dataclasses.replace(SHAPES, capacity=256, kept_rows=64, decode_steps=4)
    assert fingerprint(fresh(shapes=longer)).digest == known.digest


def test_flags_and_precision_count(base, monkeypatch):
    _, known = base
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with jax.default_matmul_precision("bfloat16"):
            other = fingerprint(fresh())
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    names = [line.partition(":")[0] for line in known.differences(other.parts)]
    assert names == ["matmul_precision", "optimizations", "xla_flags"]


def test_difference_is_readable(base):
    _, known = base
    theirs = {**known.parts, "tile": "64", "extra": "1"}
    assert known.differences(theirs) == ["extra: absent here, 1 there", "tile: 32 here, 64 there"]


def test_digest_separates_names_from_values():
    assert Fingerprint({"a": "bc"}).digest != Fingerprint({"ab": "c"}).digest


def test_content_digest():
    tree = {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    known = content_digest(tree)
    assert content_digest({"a": jax.numpy.asarray(tree["a"])}) == known
    assert content_digest({"a": np.asfortranarray(tree["a"])}) == known
    others = [
        {"b": tree["a"]},
        {"a": tree["a"].reshape(3, 2)},
        {"a": tree["a"].view(np.int32)},
        {"a": tree["a"] + np.float32(1)},
        {"a": -0.0 * tree["a"]},
    ]
    assert len({known, *map(content_digest, others)}) == len(others) + 1


def test_same_in_every_process(base):
    _, known = base
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import test_fingerprint as t\n"
        "print(t.fingerprint(t.fresh()).digest)"
    )
    here = os.path.dirname(__file__)
    root = os.path.dirname(os.path.dirname(here))
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", script, root, here],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == known.digest


def test_drawn_weights_count(base, make_runner):
    """The digest covers the weights that run, an `nnx.State` by default."""
    runner = make_runner()
    drawn = fingerprint(ModelRunner(runner.config, runner.compute, SHAPES, params=runner.params))
    assert isinstance(runner.params, nnx.State)
    assert drawn.parts["parameters"] == content_digest(runner.params)
    assert drawn.parts["parameters"] != base[1].parts["parameters"]
