"""Saves that cannot be used, or cannot be made: a miss with a reason, never a wrong answer."""

import dataclasses
import errno
import logging
import shutil

import jax
import numpy as np
import pytest

from hybrid.disk_tier import DiskTier
from hybrid.runner import ModelRunner
from hybrid.snapshots import OrbaxSnapshotStore
from planner.report import Reason
from tests.hybrid.common import manifests, tokens_of


def damage_flip(path):
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "flipped": damage_flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_save_is_a_miss(later, observer, tmp_path, damage):
    """Whatever file is damaged, the answer is right; a lost restore says why."""
    whole, prompt = tmp_path / "whole", tokens_of(11, 100)
    with later(whole) as engine:
        engine.generate(prompt, 2)
    reasons = []
    names = [p.relative_to(whole) for p in sorted(whole.rglob("*")) if p.is_file()]
    for number, name in enumerate(names):
        directory = tmp_path / str(number)
        shutil.copytree(whole, directory)
        DAMAGE[damage](directory / name)
        engine = later(directory)
        completion = engine.generate(prompt, 2)
        observer.check_exact(engine, completion, prompt)
        reasons.append(completion.report.reason)
        if completion.report.restored:
            assert completion.report.reason is Reason.HIT
        elif damage == "gone" and name.suffix == ".json":
            assert completion.report.reason is Reason.COLD  # it was never whole
        else:
            assert completion.report.reason is Reason.CORRUPT
            assert sum(engine.disk.stats.unusable_saves.values()) == 1
        engine.flush()
        assert engine.generate(prompt, 2).report.restored == 96
        engine.close()
        engine = later(directory)  # it was saved anew, and the damaged save is gone
        assert engine.generate(prompt, 2).report.restored == 96
        assert engine.disk.stats.unusable_saves == {}
    assert len(reasons) - reasons.count(Reason.HIT) >= 3


def test_missing_arrays_are_incomplete(later, observer, tmp_path):
    prompt = tokens_of(12, 100)
    with later() as engine:
        engine.generate(prompt, 2)
    (manifest,) = manifests(tmp_path)
    shutil.rmtree(tmp_path / manifest.save)
    engine = later()
    completion = engine.generate(prompt, 2)
    assert (completion.report.restored, completion.report.reason) == (0, Reason.INCOMPLETE)
    observer.check_exact(engine, completion, prompt)


def test_save_whose_base_is_gone(later, observer, tmp_path):
    """A turn's save without the save that it builds on restores nothing, and says so."""
    prompt = tokens_of(13, 200)
    with later() as engine:
        engine.generate(prompt[:100], 2)
        engine.generate(prompt, 2)
    base, turn = manifests(tmp_path)
    assert turn.start_block > 0
    OrbaxSnapshotStore(tmp_path).drop(base.save)
    engine = later()
    completion = engine.generate(prompt, 2)
    assert (completion.report.restored, completion.report.reason) == (0, Reason.INCOMPLETE)
    observer.check_exact(engine, completion, prompt)


def test_save_of_another_prompt_is_not_believed(later, observer, tmp_path):
    """A manifest that names another prefix than its arrays were computed from cannot be made by
    moving files, for the arrays' checksums are in it; swapping two saves' arrays is corrupt."""
    first, second = tokens_of(14, 100), tokens_of(15, 100)
    with later() as engine:
        for prompt in (first, second):
            engine.generate(prompt, 2)
    one, other = (tmp_path / m.save for m in manifests(tmp_path))
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    engine = later()
    for prompt in (first, second):
        completion = engine.generate(prompt, 2)
        assert (completion.report.restored, completion.report.reason) == (0, Reason.CORRUPT)
        observer.check_exact(engine, completion, prompt)


@pytest.mark.parametrize("planted", ["scan", "conv", "kv"])
def test_planted_wrong_save_is_seen(later, observer, monkeypatch, planted):
    """A save whose checksums are right but whose content is wrong: the comparison fails."""
    prompt = tokens_of(16, 100)
    engine = later()
    put = OrbaxSnapshotStore.put

    def wrong(array):
        array = np.array(array)
        array.flat[5] += 0.5
        return array

    def put_wrong(store, save):
        if planted == "kv":
            first = dataclasses.replace(save.kv[0], values=wrong(save.kv[0].values))
            return put(store, dataclasses.replace(save, kv=(first, *save.kv[1:])))
        states = save.positions[96]
        first = dataclasses.replace(states[0], **{planted: wrong(getattr(states[0], planted))})
        positions = {**save.positions, 96: (first, *states[1:])}
        return put(store, dataclasses.replace(save, positions=positions))

    monkeypatch.setattr(OrbaxSnapshotStore, "put", put_wrong)
    engine.generate(prompt, 2)
    engine.flush()
    engine = later()
    completion = engine.generate(prompt, 2)
    assert completion.report.restored == 96
    with pytest.raises(AssertionError):
        observer.check_exact(engine, completion, prompt)


def test_fingerprint_mismatch(later, make_runner, caplog):
    """Saves of other weights are a miss that says what differs; both live in one directory."""
    runner, prompt = make_runner(), tokens_of(17, 100)
    leaves, tree = jax.tree.flatten(runner.params)
    params = jax.tree.unflatten(tree, [leaf * 1.5 for leaf in leaves])
    other = ModelRunner(runner.config, runner.compute, runner.shapes, params=params)
    # The programs are the same; only the weights, an argument, differ.
    for name in ("_prefill", "_decode", "_take_slot", "_load_rows", "_read_rows"):
        setattr(other, name, getattr(runner, name))
    with later() as engine:
        engine.generate(prompt, 2)
    with caplog.at_level(logging.WARNING):
        engine = later(runner=other)
    assert "another fingerprint: parameters: " in caplog.text
    assert "tile" not in caplog.text.partition("another fingerprint: ")[2].splitlines()[0]
    assert engine.disk.stats.unusable_saves == {"fingerprint_mismatch": 1}
    report = engine.generate(prompt, 2).report
    assert (report.restored, report.reason) == (0, Reason.FINGERPRINT_MISMATCH)
    assert engine.generate(tokens_of(18, 100), 2).report.reason is Reason.COLD
    engine.close()
    for runner_ in (runner, other):
        assert later(runner=runner_).generate(prompt, 2).report.restored == 96


def test_full_disk_skips_and_goes_on(later, observer, monkeypatch, caplog):
    engine = later()
    first, second = tokens_of(19, 100), tokens_of(20, 100)

    def full(*args):
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(OrbaxSnapshotStore, "put", full)
        completion = engine.generate(first, 2)
        observer.check_exact(engine, completion, first)
        engine.flush()
    assert engine.disk.stats.skipped_saves == 1
    assert "no space left on device" in caplog.text
    both = np.concatenate([first, second])
    engine.generate(both, 2)
    engine.flush()
    assert (engine.disk.stats.saves, engine.disk.stats.skipped_saves) == (1, 1)
    engine = later()
    for prompt, restored in ((first, 0), (both, 192)):
        completion = engine.generate(prompt, 2)
        assert completion.report.restored == restored
        observer.check_exact(engine, completion, prompt)


def test_too_much_waiting_skips(make_runner, observer, tmp_path):
    engine = observer.engine(make_runner(), mode="in_pass", interval=4)
    engine.disk = DiskTier(make_runner(), OrbaxSnapshotStore(tmp_path), max_pending_bytes=1)
    prompt = tokens_of(21, 100)
    engine.generate(prompt, 2)
    engine.flush()
    assert (engine.disk.stats.saves, engine.disk.stats.skipped_saves) == (0, 1)
    engine.close()


@pytest.mark.parametrize("obstacle", ["a file in its place", "a file above it"])
def test_unusable_directory_is_ignored(later, observer, tmp_path, caplog, obstacle):
    path = tmp_path / "file"
    path.write_text("")
    engine = later(path if obstacle == "a file in its place" else path / "below")
    assert "memory only" in caplog.text
    prompt = tokens_of(22, 100)
    for _ in range(2):
        observer.check_exact(engine, engine.generate(prompt, 2), prompt)
    engine.flush()
