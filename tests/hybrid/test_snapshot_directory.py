"""A store's directory: what is not the store's stays, and what is goes when it should."""

import errno
import fcntl
import os
import pathlib

import pytest
from orbax.checkpoint import v1 as ocp

from hybrid.snapshots import OrbaxSnapshotStore
from planner.report import Reason
from tests.hybrid.test_snapshots import check_save, save_of

FOREIGN = [
    "thesis/chapter-1.txt",
    "my-data/table.csv",
    "my-data.json",
    "package-lock.json",
    "draft.json.tmp",
    "writer-notes.lock",
    "0123456789ab-000001-0000000000000000-copy/a",
    "0123456789ab-000001-0000000000000000.d/a",
    "0123456789ab-000001-0000000000000000-copy.json",
]


def names_in(directory):
    return sorted(p.name for p in directory.iterdir() if p.suffix != ".lock")


def test_foreign_files_stay(tmp_path):
    """A directory may hold other things: opening, scanning, failing and closing leave them be."""
    for name in FOREIGN:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    before = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    store = OrbaxSnapshotStore(tmp_path)
    assert list(store.scan()) == []
    manifest = store.put(save_of(store))
    assert list(store.scan()) == [manifest]
    store.drop(manifest.save)
    store.drop("?")
    store.close()
    OrbaxSnapshotStore(tmp_path).close()
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_failed_write_leaves_nothing(tmp_path, monkeypatch):
    """A disk that fills up while Orbax writes: its unfinished directory does not stay on it."""
    store = OrbaxSnapshotStore(tmp_path)

    class Failed:
        def result(self):
            raise OSError(errno.ENOSPC, "no space left on device")

    def failing(path, tree):
        unfinished = path.with_name(f"{path.name}.orbax-checkpoint-tmp")
        (unfinished / "ocdbt.process_0").mkdir(parents=True)
        (unfinished / "ocdbt.process_0" / "part").write_text("x")
        return Failed()

    with monkeypatch.context() as patch:
        patch.setattr(ocp, "save_async", failing)
        with pytest.raises(OSError, match="no space left"):
            store.put(save_of(store))
    assert names_in(tmp_path) == []
    save = save_of(store)
    manifest = store.put(save)
    assert names_in(tmp_path) == [manifest.save, f"{manifest.save}.json"]
    check_save(store, manifest, save)
    store.close()


def test_unsynced_manifest_is_withdrawn(tmp_path, monkeypatch):
    """Where the directory cannot be synced, the save is given up whole."""
    store = OrbaxSnapshotStore(tmp_path)
    fsync, calls = os.fsync, []

    def failing(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.EIO, "input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="input/output error"):
        store.put(save_of(store))
    assert names_in(tmp_path) == []
    store.close()


def test_a_lock_taken_away_is_made_again(tmp_path, monkeypatch):
    """Another store that opens at the same moment may remove a lock that is not held yet; the
    writer then holds a new one, so that its unfinished saves are safe."""
    flock, calls = fcntl.flock, []

    def removed_first(descriptor, operation):
        if not calls:
            calls.extend(tmp_path.glob("writer-*.lock"))
            calls[0].unlink()
        flock(descriptor, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", removed_first)
        writer = OrbaxSnapshotStore(tmp_path)
    assert len(calls) == 1
    unfinished = tmp_path / writer.new_name(bytes(32))
    unfinished.mkdir()
    OrbaxSnapshotStore(tmp_path).close()
    assert unfinished.exists()
    writer.close()
    OrbaxSnapshotStore(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_damaged_text_is_removed(tmp_path):
    """A manifest that is no text, or nested without end, is corrupt and goes, like any other."""
    for content in (b"\xff\xfe\x00", b"[" * 100_000, b"", b"null", b"[1]", b'{"sha256": 1}'):
        store = OrbaxSnapshotStore(tmp_path)
        manifest = store.put(save_of(store))
        (tmp_path / f"{manifest.save}.json").write_bytes(content)
        (error,) = store.scan()
        assert error.reason is Reason.CORRUPT
        assert names_in(tmp_path) == []
        store.close()


def test_what_cannot_be_removed_is_reported(tmp_path, monkeypatch):
    """A directory that became read-only: what does not verify is still an error, not a crash."""
    store = OrbaxSnapshotStore(tmp_path)
    save = save_of(store)
    manifest = store.put(save)
    path = tmp_path / f"{manifest.save}.json"
    path.write_text(path.read_text().replace("sha256", "sha255", 1))

    def refused(*args, **options):
        raise PermissionError(errno.EROFS, "read-only file system")

    monkeypatch.setattr(pathlib.Path, "unlink", refused)
    monkeypatch.setattr("shutil.rmtree", refused)
    (error,) = store.scan()
    assert error.reason is Reason.CORRUPT
    monkeypatch.undo()
    store.close()
