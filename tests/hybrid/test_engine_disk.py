"""The engine over a directory: a later engine, or process, restores what an earlier one saved."""

import dataclasses
import errno
import json
import logging
import os
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.disk_tier import DiskTier
from hybrid.engine import Engine
from hybrid.manifest import Manifest
from hybrid.runner import ModelRunner
from hybrid.snapshots import OrbaxSnapshotStore
from planner.report import Reason

TILE, BLOCK = 32, 8


def tokens_of(seed, length):
    return np.random.default_rng(seed).integers(0, 256, length).astype(np.int32)


def manifests(directory):
    return [
        Manifest.from_json(path.stem, path.read_text())
        for path in sorted(directory.glob("*-*.json"))
    ]


@pytest.fixture
def later(make_runner, observer, tmp_path):
    """An engine of its own on the test's directory, as a later process has."""
    engines = []

    def build(directory=tmp_path, **options):
        runner = options.pop("runner", None) or make_runner()
        options = {"mode": "in_pass", "interval": 4, **options}
        engines.append(observer.engine(runner, directory=directory, **options))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


def test_one_save_a_request(later, tmp_path):
    """A save holds the captures of its request, and the blocks that no earlier save holds."""
    engine = later()
    first = tokens_of(1, 140)
    turn = np.concatenate([first, tokens_of(2, 60)])
    for prompt in (first, first, turn, turn):
        engine.generate(prompt, 2)
    engine.flush()
    saves = manifests(tmp_path)
    assert [[e.position for e in m.positions] for m in saves] == [[32, 64, 96, 128], [160, 192]]
    assert [(m.start_block, len(m.digests)) for m in saves] == [(0, 16), (16, 8)]
    assert saves[1].before == saves[0].digests[-1]
    assert all(m.exact_blocks == len(m.digests) for m in saves)
    assert all(entry.exact for m in saves for entry in m.positions)
    stats = engine.disk.stats
    assert (stats.saves, stats.skipped_saves, stats.restores) == (2, 0, 0)
    index = engine.cache.index
    assert stats.saved_bytes == 24 * index.block_bytes + 6 * index.snapshot_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_later_engine_restores(later, make_runner, observer, dtype):
    runner = make_runner(dtype)
    first = tokens_of(3, 150)
    turn = np.concatenate([first, tokens_of(4, 55)])
    branch = np.concatenate([turn[:170], tokens_of(5, 40)])
    with later(runner=runner) as engine:
        for prompt in (first, turn):
            engine.generate(prompt, 2)
    engine = later(runner=runner)
    for prompt, restored in ((turn, 192), (first, 128), (branch, 160)):
        completion = engine.generate(prompt, 2)
        assert completion.report.restored == restored
        assert completion.report.reason is Reason.HIT
        observer.check_exact(engine, completion, prompt)
    # The first restore brought what the second needed into memory, but not its snapshot.
    assert engine.disk.stats.restores == 3
    completion = engine.generate(turn, 2)
    assert engine.disk.stats.restores == 3
    observer.check_exact(engine, completion, turn)


prompts = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 2), st.integers(1, 60)).map(
        lambda x: np.concatenate([tokens_of(0, x[0]), tokens_of(x[1], x[2])])[:250]
    ),
    min_size=1,
    max_size=4,
)


def check_stages(tmp_path_factory, runner, observer, before, after, interval, cache_kb):
    directory = tmp_path_factory.mktemp("saves")
    options = {
        "directory": directory,
        "interval": interval,
        "mode": "in_pass",
        "cache_budget_bytes": None if cache_kb is None else cache_kb * 1000,
    }
    for stage in (before, [*before, *after]):
        with observer.engine(runner, **options) as engine:
            for prompt in stage:
                completion = engine.generate(prompt, 2)
                observer.check_exact(engine, completion, prompt)
                index = engine.cache.index
                assert engine.cache.payload_bytes == (
                    index.used_kv_bytes,
                    index.used_snapshot_bytes,
                )
    assert engine.disk.stats.unusable_saves == {}
    with observer.engine(runner, **options) as engine:
        for prompt in [*before, *after]:
            completion = engine.generate(prompt, 2)
            observer.check_exact(engine, completion, prompt)
            assert (
                completion.report.restored
                >= (len(prompt) - 1) // BLOCK * BLOCK // TILE * TILE - TILE
            )


drawn = given(
    before=prompts,
    after=prompts,
    interval=st.integers(0, 4),
    cache_kb=st.sampled_from([None, 60]),
)


@settings(max_examples=8)
@drawn
def test_restores_are_exact(tmp_path_factory, make_runner, observer, **stages):
    check_stages(tmp_path_factory, make_runner(), observer, **stages)


@pytest.mark.slow
@settings(max_examples=60)
@drawn
def test_restores_are_exact_at_length(tmp_path_factory, make_runner, observer, **stages):
    check_stages(tmp_path_factory, make_runner("bfloat16"), observer, **stages)


def test_two_engines_share_a_directory(later, observer):
    """Writers do not disturb each other, though both save the same prefix."""
    first, second = later(), later()
    prompt = tokens_of(27, 200)
    first.generate(prompt[:150], 2)
    second.generate(prompt[:170], 2)
    first.generate(prompt, 2)
    for engine in (first, second):
        engine.close()
        assert engine.disk.stats.saves > 0
        assert engine.disk.stats.skipped_saves == 0
    engine = later()
    for length in (150, 170, 200):
        completion = engine.generate(prompt[:length], 2)
        assert completion.report.restored == (length - 1) // TILE * TILE
        observer.check_exact(engine, completion, prompt[:length])
    assert engine.disk.stats.unusable_saves == {}


def test_disk_serves_what_memory_evicted(later, observer):
    engine = later(cache_budget_bytes=40_000)
    prompt = tokens_of(6, 200)
    engine.generate(prompt, 2)
    for seed in (7, 8, 9):
        engine.generate(tokens_of(seed, 200), 1)
    completion = engine.generate(prompt, 2)
    assert completion.report.restored == 192
    assert engine.disk.stats.restores == 1
    observer.check_exact(engine, completion, prompt)


def test_held_rows_are_not_read(later, make_runner, observer):
    """Where the working buffer still holds the rows, only the states come from the disk."""
    runner = make_runner()
    engine = later(cache_budget_bytes=10)
    prompt = tokens_of(28, 170)
    engine.generate(prompt, 2)
    loads = runner.calls["load_rows"]
    completion = engine.generate(prompt, 2)
    assert (completion.report.restored, engine.disk.stats.restores) == (160, 1)
    assert runner.calls["load_rows"] == loads
    observer.check_exact(engine, completion, prompt)


CHILD = """
import json, sys
sys.path[:0] = sys.argv[1:3]
import jax, numpy as np
from conftest import Observer, tiny_runner
prompt = np.array(json.loads(sys.argv[4]), np.int32)
from hybrid.fingerprint import content_digest
with Observer().engine(tiny_runner(), mode="in_pass", interval=4, directory=sys.argv[3]) as engine:
    completion = engine.generate(prompt, 3)
    seen = {name: engine.seen[name] for name in ("logits", "end", "kv")}
print(json.dumps([completion.report.as_dict(), completion.tokens.tolist(), content_digest(seen)]))
"""


def test_new_process_restores(later, make_runner, observer, tmp_path):
    from hybrid.fingerprint import content_digest

    prompt = tokens_of(10, 180)
    with later() as engine:
        engine.generate(prompt[:140], 2)
        engine.generate(prompt, 2)
    here = os.path.dirname(__file__)
    root = os.path.dirname(os.path.dirname(here))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, root, here, str(tmp_path), json.dumps(prompt.tolist())],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report, tokens, digest = json.loads(done.stdout.splitlines()[-1])
    assert (report["restored"], report["recomputed"], report["reason"]) == (160, 20, "hit")
    cold_tokens, cold = observer.cold(make_runner(), prompt, 3)
    assert tokens == cold_tokens.tolist()
    assert digest == content_digest({name: cold[name] for name in ("logits", "end", "kv")})


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


def test_saves_are_off_the_path(make_runner, tmp_path, monkeypatch):
    """A request returns while its save is being written; closing waits for it."""
    import threading

    go, put = threading.Event(), OrbaxSnapshotStore.put

    def slow(store, save):
        assert go.wait(30)
        return put(store, save)

    monkeypatch.setattr(OrbaxSnapshotStore, "put", slow)
    prompt = tokens_of(23, 100)
    with Engine(make_runner(), directory=tmp_path) as engine:
        engine.generate(prompt, 2)
        assert engine.generate(prompt, 2).report.restored == 64
        assert manifests(tmp_path) == []
        go.set()
    assert len(manifests(tmp_path)) == 1


def test_inexact_saves_serve_only_inexact_requests(later, make_runner, observer, tmp_path):
    """On the block grid saves carry their marks: an exact one is preferred where both are held, and
    what an inexact restore computed is saved as inexact."""
    runner = make_runner(grid="block")
    prompt = tokens_of(24, 142)
    turn = np.concatenate([prompt[:139], tokens_of(25, 67)])
    with later(runner=runner, interval=1) as engine:
        engine.generate(prompt, 2)
        assert engine.generate(turn, 2).report.restored == 136
    first, second = manifests(tmp_path)
    assert [e.position for e in first.positions if e.exact] == [32, 64, 96, 128]
    assert not any(entry.exact for entry in second.positions)
    assert (first.exact_blocks, second.exact_blocks) == (17, 0)
    with later(runner=runner, interval=1) as engine:
        report = engine.generate(turn, 2).report
        assert report.restored == 200
        engine.generate(turn, 2, reuse=False)
    (third,) = (m for m in manifests(tmp_path) if m.save not in (first.save, second.save))
    assert third.start_block == 17
    assert third.exact_blocks == len(third.digests)
    branch = np.concatenate([turn[:199], tokens_of(26, 10)])
    engine = later(runner=runner, interval=1)
    completion = engine.generate(branch, 2)
    assert completion.report.restored == 192
    observer.check_exact(engine, completion, branch)
