"""A run that is killed goes on with the same losses, bit for bit."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import train_lm
from experiments.errors import UserError
from experiments.run_folder import RunFolder, read_rows
from experiments.train_lm import TrainLM
from experiments.training.checkpoints import Checkpoints
from experiments.training.corpus import Corpus, sequences
from experiments.training.step import TrainState
from tests.experiments.small_text import write_folder

ROOT = Path(__file__).parents[2]


class Chain:
    """A trainer whose state depends on every batch it has seen; a stand-in that needs no compile.

    Args:
        crashes: number of the step, counted from 1, that ends the process before it is done.
    """

    def __init__(self, crashes=None):
        self.crashes = crashes

    def init(self, seed):
        return TrainState({"w": jnp.full(3, float(seed))}, {"m": jnp.zeros(3)}, jnp.int32(0))

    def abstract(self):
        place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), self.init(0)
        )

    def step(self, state, batches):
        done = int(state.step) + 1
        if done == self.crashes:
            raise Crash
        seen = np.asarray(batches, np.float32).mean(axis=(0, 1))[:3]
        w = 0.9 * np.asarray(state.params["w"]) + np.sin(seen, dtype=np.float32)
        state = TrainState({"w": jnp.asarray(w)}, {"m": jnp.asarray(seen)}, jnp.int32(done))
        return state, {"loss_bits_per_byte": float(w.sum())}

    def bits_per_byte(self, params, text, length, batch):
        return float(params["w"][0])


class Crash(Exception):
    pass


OPTIONS = TrainLM(
    steps=9, checkpoint_every=3, judge_every=3, warmup=1, length=16, batch=2, accumulate=2, seed=4
)


TEXT = np.random.default_rng(5).integers(0, 256, 2000).astype(np.uint8)


def read_batches():
    return sequences(TEXT, OPTIONS.length, OPTIONS.batch, OPTIONS.accumulate, OPTIONS.seed)


def run_chain(folder, crashes=None, crashes_after_checkpoint=None):
    """One process's part of a run; the state it ends with."""
    corpus = Corpus(TEXT, TEXT[:100], ("a",), ("b",))
    batches, trainer = read_batches(), Chain(crashes)
    with (
        RunFolder.open(folder, "train_lm", OPTIONS.config()) as run,
        Checkpoints(run.path / "checkpoints", trainer.abstract()) as checkpoints,
        pytest.MonkeyPatch.context() as patch,
    ):
        real = checkpoints.save

        def save(step, state):
            real(step, state)
            if step == crashes_after_checkpoint:
                raise Crash

        patch.setattr(checkpoints, "save", save)
        return train_lm.train(OPTIONS, run, trainer, corpus, batches, checkpoints)


def lines(folder):
    """All lines in the order of the steps, without how long they took."""
    rows = sorted((row for row in read_rows(folder) if "step" in row), key=lambda row: row["step"])
    return [{name: value for name, value in row.items() if name != "step_s"} for row in rows]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return folder, run_chain(folder)


def test_every_step_takes_the_batch_of_its_number(undisturbed):
    folder, _ = undisturbed
    trainer, batches, losses = Chain(), read_batches(), []
    state = trainer.init(OPTIONS.seed)
    for step in range(OPTIONS.steps):
        state, figures = trainer.step(state, batches[step])
        losses.append(figures["loss_bits_per_byte"])
    assert [row["loss_bits_per_byte"] for row in lines(folder)] == losses
    judged = [row["step"] for row in lines(folder) if "held_out_bits_per_byte" in row]
    assert judged == [3, 6, 9]


def test_a_run_that_crashes_again_and_again_ends_with_the_same_bits(undisturbed, tmp_path):
    folder, state = undisturbed
    other = tmp_path / "run"
    crashes = [
        {"crashes": 2},  # before the first checkpoint
        {"crashes_after_checkpoint": 3},  # the state is there, the line that counts it is not
        {"crashes": 5},
        {"crashes_after_checkpoint": 6},
        {"crashes": 9},
        {"crashes_after_checkpoint": 9},
    ]
    for crash in crashes:
        with pytest.raises(Crash):
            run_chain(other, **crash)
    found = run_chain(other)
    assert [row["step"] for row in lines(other)] == list(range(1, 10))
    assert lines(other) == lines(folder)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)
    again = run_chain(other, crashes=1)  # no step is run: the state is the last checkpoint's
    np.testing.assert_array_equal(again.params["w"], state.params["w"])


def test_a_checkpoint_that_is_gone_is_named(undisturbed, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Crash):
        run_chain(folder, crashes=5)
    (folder / "checkpoints").rename(tmp_path / "taken")
    with pytest.raises(UserError, match=r"checkpoints: no state after step 3, .*; there are \[\]"):
        run_chain(folder)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    write_folder(folder)
    return folder


DRIVER = """
import os, pathlib, signal, sys, threading, time
from experiments import train_lm
from experiments.errors import run_main
from experiments.training import checkpoints, step

place, number = sys.argv.pop(1), int(sys.argv.pop(1))
end = lambda: os.kill(os.getpid(), signal.SIGKILL)
real_step, real_save = step.Trainer.step, checkpoints.Checkpoints.save

def one_step(self, state, batches):
    if place == "in_a_stretch" and int(state.step) + 1 == number:
        end()
    return real_step(self, state, batches)

def save(self, done, state):
    if place == "in_a_save" and done == number:
        now = {*os.listdir(self._folder)}
        threading.Thread(target=end_where_begun, args=(self._folder, now)).start()
    real_save(self, done, state)
    if place == "after_a_save" and done == number:
        end()

def end_where_begun(folder, before):
    while {*os.listdir(folder)} == before:
        pass
    end()

step.Trainer.step, checkpoints.Checkpoints.save = one_step, save
run_main(train_lm.main)
"""


@pytest.fixture(scope="module")
def process(text, tmp_path_factory):
    """Trains in a process of its own, which may be killed on the way."""
    cache = tmp_path_factory.mktemp("compilation_cache")
    small = ("--preset", "tiny", "--steps", 30, "--length", 64, "--batch", 2, "--warmup", 4)
    every = ("--checkpoint-every", 5, "--judge-every", 10)

    def run(out, place="nowhere", number=0):
        places = ("--data", text, "--out", out, "--compilation-cache", cache)
        words = [place, number, *small, *every, *places]
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, *map(str, words)],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stderr

    return run


@pytest.fixture(scope="module")
def whole(process, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    code, error = process(out)
    assert code == 0, error
    return out


@pytest.mark.slow
def test_a_process_that_is_killed_goes_on_with_the_same_losses(process, whole, tmp_path):
    out = tmp_path / "run"
    for place, step in (("in_a_stretch", 7), ("in_a_save", 15), ("after_a_save", 20)):
        code, error = process(out, place, step)
        assert code == -9, error
        assert len((out / "metrics.jsonl").read_text().splitlines()) == step - 1
    code, error = process(out)
    assert code == 0, error
    assert "they run again" in error
    assert len(lines(out)) == 30
    assert lines(out) == lines(whole)
    weights = [path / "weights" / "model.safetensors" for path in (out, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    judged = [read_rows(path)[-1] for path in (out, whole)]
    assert judged[0] | {"training_s": 0} == judged[1] | {"training_s": 0}


@pytest.mark.slow
def test_training_learns(whole):
    losses = [row["loss_bits_per_byte"] for row in lines(whole)]
    assert losses[0] > 7.5
    assert np.mean(losses[-5:]) < losses[0] - 2
    assert np.isfinite(losses).all()
