"""The engine over a directory: a later engine, or process, restores what an earlier one saved."""

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.engine import Engine
from hybrid.fingerprint import content_digest
from hybrid.snapshots import OrbaxSnapshotStore
from planner.report import Reason
from tests.hybrid.common import manifests, tokens_of

TILE, BLOCK = 32, 8


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


def test_saves_are_off_the_path(make_runner, tmp_path, monkeypatch):
    """A request returns while its save is being written; closing waits for it."""
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
