"""The store of saves: what comes back is what was put, or an error; half a save is never seen."""

import concurrent.futures
import dataclasses
import errno
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import namedtuple

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orbax.checkpoint import v1 as ocp

from hybrid.manifest import Manifest, PositionEntry, SaveError
from hybrid.snapshots import OrbaxSnapshotStore, Save, pack, unpack
from hybrid.state import KVState, RecurrentState
from planner.report import Reason

BLOCK = 4


def states_of(seed):
    rng = np.random.default_rng(seed)
    return tuple(
        RecurrentState(
            scan=rng.standard_normal((1, 2, 3, 4)).astype(np.float32),
            conv=rng.standard_normal((1, 3, 5)).astype(ml_dtypes.bfloat16),
        )
        for _ in range(3)
    )


def rows_of(seed, blocks):
    rng = np.random.default_rng(seed)
    shape = (1, 2, blocks * BLOCK, 4)
    return tuple(
        KVState(*(rng.integers(0, 2**16, shape).astype(np.uint16) for _ in range(2)))
        for _ in range(2)
    )


def save_of(store, positions=(8, 16), blocks=4):
    manifest = Manifest(
        save=store.new_name(bytes(range(32))),
        fingerprint={"tile": "8"},
        fingerprint_digest="00",
        block_size=BLOCK,
        start_block=0,
        before="",
        digests=tuple(f"{block:064x}" for block in range(blocks)),
        exact_blocks=blocks,
        kv={},
        positions=tuple(PositionEntry(p, True, f"{p:064x}", {}) for p in positions),
    )
    return Save(
        manifest, rows_of(0, blocks) if blocks else (), {p: states_of(p) for p in positions}
    )


def shapes_of(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def assert_equal_trees(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


def load(store, manifest, position, save):
    kv = shapes_of(save.kv) if manifest.kv else ()
    return store.load(manifest, position, shapes_of(states_of(0)), kv)


def check_save(store, manifest, save):
    for position, states in save.positions.items():
        found, rows = load(store, manifest, position, save)
        assert_equal_trees(found, states)
        assert_equal_trees(rows, save.kv)


leaf = st.tuples(
    st.sampled_from([(2,), (2, 3), ()]), st.sampled_from(["float32", "uint16", "bfloat16"])
)


@given(
    st.recursive(leaf, lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=9)
)
def test_pack_and_unpack(spec):
    rng = np.random.default_rng(0)

    def build(node):
        if isinstance(node, dict):
            return {key: build(value) for key, value in node.items()}
        shape, dtype = node
        return np.asarray(rng.integers(0, 100, shape)).astype(jax.numpy.dtype(dtype))

    tree = build(spec)
    packed = pack(tree)
    assert len(packed) <= len({(x.shape, x.dtype) for x in jax.tree.leaves(tree)})
    found = unpack(packed, shapes_of(tree))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    for more in ([*jax.tree.leaves(tree), np.zeros(7)], jax.tree.leaves(tree)[:-1]):
        if len(more) != len(jax.tree.leaves(tree)):
            with pytest.raises(ValueError, match="packed arrays"):
                unpack(packed, shapes_of(more))


def test_put_and_load(tmp_path):
    store = OrbaxSnapshotStore(tmp_path)
    save = save_of(store)
    manifest = store.put(save)
    check_save(store, manifest, save)
    states, rows = store.load(manifest, None, (), shapes_of(save.kv))
    assert states is None
    assert_equal_trees(rows, save.kv)
    states, rows = store.load(manifest, 16, shapes_of(states_of(0)), ())
    assert rows == ()
    assert_equal_trees(states, save.positions[16])
    expected = sum(x.nbytes for x in jax.tree.leaves([save.kv, save.positions]))
    assert manifest.num_bytes == expected
    store.close()
    again = OrbaxSnapshotStore(tmp_path)
    assert list(again.scan()) == [manifest]
    check_save(again, manifest, save)
    again.drop(manifest.save)
    assert list(again.scan()) == []
    again.close()
    assert list(tmp_path.iterdir()) == []


def test_save_without_blocks(tmp_path):
    store = OrbaxSnapshotStore(tmp_path)
    save = save_of(store, blocks=0)
    check_save(store, store.put(save), save)
    store.close()


def files_of(directory):
    return sorted(p for p in directory.rglob("*") if p.is_file() and p.suffix != ".lock")


def flip(path):
    content = bytearray(path.read_bytes())
    if content:
        content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = {
    "flipped": flip,
    "truncated": truncate,
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}


@pytest.fixture
def settled():
    """Loads that fail inside Orbax leave callbacks behind that find their event loop closed."""
    yield
    time.sleep(0.3)
    gc.collect()


# What such a callback raises is printed and lost, in a thread of its own.
lost_callbacks = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def error_of(store, manifest, save):
    try:
        check_save(store, manifest, save)
    except SaveError as error:
        return error
    return None


@lost_callbacks
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_any_file(tmp_path, settled, damage):
    """Whatever file of a save is damaged: what comes back is right, or an error names the save."""
    store = OrbaxSnapshotStore(tmp_path / "whole")
    save = save_of(store)
    manifest = store.put(save)
    store.close()
    names = [path.relative_to(tmp_path / "whole") for path in files_of(tmp_path / "whole")]
    assert len(names) > 5
    seen = 0
    for number, name in enumerate(names):
        directory = tmp_path / str(number)
        subprocess.run(["cp", "-r", str(tmp_path / "whole"), str(directory)], check=True)
        DAMAGE[damage](directory / name)
        store = OrbaxSnapshotStore(directory)
        found = list(store.scan())
        if found == [manifest]:
            error = error_of(store, manifest, save)
            seen += error is not None
            assert error is None or error.reason is Reason.CORRUPT
            assert error is None or manifest.save in str(error)
        else:
            assert name.suffix == ".json"
            assert damage == "gone" or found[0].reason is Reason.CORRUPT
            seen += 1
        store.close()
    assert seen >= 3  # the manifest, and what Orbax keeps of arrays and their metadata


@lost_callbacks
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_array_files(tmp_path, settled, damage):
    store = OrbaxSnapshotStore(tmp_path)
    save = save_of(store)
    manifest = store.put(save)
    for path in files_of(tmp_path / manifest.save):
        if path.parent.name == "d":  # where arrays and their tree lie, outdated parts of it too
            DAMAGE[damage](path)
    with pytest.raises(SaveError, match=manifest.save):
        check_save(store, manifest, save)
    store.close()


def test_other_shapes_do_not_verify(tmp_path):
    store = OrbaxSnapshotStore(tmp_path)
    save = save_of(store)
    manifest = store.put(save)
    with pytest.raises(SaveError, match="corrupt"):
        store.load(manifest, 8, shapes_of(states_of(0)[:2]), ())
    swapped = dataclasses.replace(
        manifest,
        positions=(
            dataclasses.replace(manifest.positions[0], arrays=manifest.positions[1].arrays),
        ),
    )
    with pytest.raises(SaveError, match="checksum"):
        load(store, swapped, 8, save)
    store.close()


def test_manifest_is_checked(tmp_path):
    store = OrbaxSnapshotStore(tmp_path)
    manifest = store.put(save_of(store))
    path = tmp_path / f"{manifest.save}.json"
    body = json.loads(path.read_text())
    assert body["bytes"] == manifest.num_bytes
    body["positions"][0]["position"] = 12
    path.write_text(json.dumps(body))
    (error,) = store.scan()
    assert error.reason is Reason.CORRUPT
    assert not path.exists()
    renamed = store.put(save_of(store))
    path = tmp_path / f"{renamed.save}.json"
    (tmp_path / renamed.save).rename(tmp_path / "0123456789ab-000001-0000000000000000")
    path.rename(tmp_path / "0123456789ab-000001-0000000000000000.json")
    (error,) = store.scan()
    assert "that of" in str(error)
    store.close()


def test_manifest_of_another_format_stays(tmp_path, monkeypatch):
    store = OrbaxSnapshotStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("hybrid.manifest.MANIFEST_FORMAT", 99)
        manifest = store.put(save_of(store))
    (error,) = store.scan()
    assert error.reason is Reason.FINGERPRINT_MISMATCH
    assert "format 99, expected 1" in str(error)
    assert (tmp_path / f"{manifest.save}.json").exists()
    store.close()


def test_no_room_leaves_nothing(tmp_path, monkeypatch):
    store = OrbaxSnapshotStore(tmp_path)
    usage = namedtuple("usage", "total used free")(10, 9, 1)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: usage)
        with pytest.raises(OSError, match="1 bytes are free"):
            store.put(save_of(store))
    assert files_of(tmp_path) == []

    def no_space(*args, **options):
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", no_space)
        with pytest.raises(OSError, match="no space left"):
            store.put(save_of(store))
    assert files_of(tmp_path) == []
    assert list(store.scan()) == []
    store.close()


KILLED = """
    import os, pathlib, signal, sys
    sys.path[:0] = {paths!r}
    import test_snapshots
    from hybrid.snapshots import OrbaxSnapshotStore
    store = OrbaxSnapshotStore({directory!r})
    if {whole}:
        store.put(test_snapshots.save_of(store))
    def killed(*args, **options):
        os.kill(os.getpid(), signal.SIGKILL)
    {patch} = killed
    store.put(test_snapshots.save_of(store))
"""


@pytest.mark.parametrize("at", ["OrbaxSnapshotStore._publish", "pathlib.Path.replace"])
def test_killed_process(tmp_path, at):
    """Killed between the arrays and the manifest, or with the manifest not yet in place: the save
    before it is there, of this one nothing, and the next to open the directory cleans up."""
    here = os.path.dirname(__file__)
    root = os.path.dirname(os.path.dirname(here))
    script = KILLED.format(
        paths=[root, here], directory=str(tmp_path), whole=at == "pathlib.Path.replace", patch=at
    )
    if at == "pathlib.Path.replace":
        # Orbax renames too; let it pass and stop at ours.
        script = script.replace(
            "def killed(*args, **options):\n",
            "def killed(path, target, replace=pathlib.Path.replace):\n"
            "        if not str(target).endswith('.json'): return replace(path, target)\n",
        )
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    left = {path.name for path in tmp_path.iterdir()}
    whole = 1 if at == "pathlib.Path.replace" else 0
    assert len(left) == 2 + 2 * whole + (1 if whole else 0)  # lock, arrays, saves, half a manifest
    store = OrbaxSnapshotStore(tmp_path)
    found = list(store.scan())
    assert [type(entry) for entry in found] == [Manifest] * whole
    expected = {path for m in found for path in (m.save, f"{m.save}.json")}
    assert {p.name for p in tmp_path.iterdir() if p.suffix != ".lock"} == expected
    for manifest in found:
        check_save(store, manifest, save_of(store))
    store.close()


def test_unfinished_save_of_a_living_writer_stays(tmp_path):
    writer = OrbaxSnapshotStore(tmp_path)
    unfinished = tmp_path / writer.new_name(bytes(32))
    unfinished.mkdir()
    stray = tmp_path / "0123456789ab-000001-0000000000000000"
    stray.mkdir()
    OrbaxSnapshotStore(tmp_path).close()
    assert unfinished.exists()
    assert not stray.exists()
    writer.close()
    OrbaxSnapshotStore(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_loads_wait_for_saves(tmp_path, monkeypatch):
    """Orbax must not load while it saves in another thread, so a request waits for the worker."""
    store = OrbaxSnapshotStore(tmp_path)
    save = save_of(store)
    manifest = store.put(save)
    started, go, save_async = threading.Event(), threading.Event(), ocp.save_async

    def slow(*args):
        started.set()
        assert go.wait(30)
        return save_async(*args)

    monkeypatch.setattr(ocp, "save_async", slow)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        written = threads.submit(store.put, save_of(store))
        assert started.wait(30)
        loaded = threads.submit(check_save, store, manifest, save)
        with pytest.raises(concurrent.futures.TimeoutError):
            loaded.result(timeout=0.5)
        go.set()
        loaded.result()
        check_save(store, written.result(), save)
    store.close()
