"""Saves on disk: the captures of one prefill with the KV blocks that they need, through Orbax.

A save is a directory written by Orbax and a manifest beside it. The manifest is written last, by
rename, so a save is seen whole or not at all::

    <directory>/writer-<writer>.lock            held by its writer while that lives
    <directory>/<writer>-<number>-<digest>/     what Orbax wrote: "kv" and one subtree a position
    <directory>/<writer>-<number>-<digest>.json the manifest: contents, checksums, fingerprint

A later save of the same conversation holds only the blocks that no earlier one does; prefix digests
link the two. Whatever does not verify is reported as `SaveError`, never returned. What bears no
such name is somebody else's, and is neither read nor removed.
"""

import contextlib
import dataclasses
import errno
import fcntl
import logging
import os
import pathlib
import re
import shutil
import threading
import uuid
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from hybrid.manifest import ArrayEntry, Manifest, SaveError, family_of
from planner.report import Reason

_MARGIN_BYTES = 1 << 20  # left free on the disk beside what a save needs

# Orbax 0.12.8 numbers its operations in one counter a process: a load during a save in another
# thread makes that save miss the signal that its directories exist, and fail or write elsewhere.
_orbax_lock = threading.Lock()

# Writer, number and digest of a save; then what is still unfinished of it, ours or Orbax's.
_SAVE = re.compile(r"(?P<writer>[0-9a-f]{12})-[0-9]{6,}-[0-9a-f]{16}")
_ORBAX_UNFINISHED = ".orbax-checkpoint-tmp"
_UNFINISHED = re.compile(rf"{_SAVE.pattern}(\.json\.tmp|{re.escape(_ORBAX_UNFINISHED)}.*)?")
_LOCK = re.compile(r"writer-(?P<writer>[0-9a-f]{12})\.lock")

_log = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Save:
    """A save to be made: a manifest without array entries, and what goes into it.

    Args:
        manifest: `kv` and the positions' `arrays` are filled in by the store.
        kv: tree of keys and values of its blocks; empty without blocks.
        positions: tree of states by position.
    """

    manifest: Manifest
    kv: Any
    positions: Mapping[int, Any]


class SnapshotStore(Protocol):
    """Where saves live. All methods may be called from a worker thread, one at a time."""

    def new_name(self, first_block: bytes) -> str:
        """A name for a save, never given before; it tells the digest of the prompt's first block,
        so that a save whose manifest cannot be read still says whose it was."""

    def put(self, save: Save) -> Manifest:
        """Store a save and return its manifest; it is visible when this returns.

        Raises:
            Exception: it could not be stored; nothing of it is visible.
        """

    def load(
        self, manifest: Manifest, position: int | None, states: Any, kv: Any
    ) -> tuple[Any, Any]:
        """Read part of a save.

        Args:
            manifest: of the save.
            position: of the states that are wanted; None for no states.
            states: tree of shapes that they must have.
            kv: tree of shapes that its keys and values must have; empty to leave them out.

        Returns:
            The states (None without position) and the keys and values, verified, as numpy arrays.

        Raises:
            SaveError: anything does not verify.
        """

    def scan(self) -> Iterator[Manifest | SaveError]:
        """All visible saves, oldest first; those that cannot be used as the error that says why.

        What is damaged is removed, what another version wrote stays.
        """

    def drop(self, name: str) -> None:
        """Remove a save."""

    def close(self) -> None:
        """Let go of the store."""


class OrbaxSnapshotStore:
    """Saves in a directory on this machine.

    Opening it removes what killed processes left behind.

    Args:
        directory: made if it does not exist.

    Raises:
        OSError: the directory cannot be made or written.
        ValueError: it is no path.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        if not isinstance(directory, str | os.PathLike) or not str(directory):
            raise ValueError(f"directory is {directory!r}; expected a path")
        self.directory = pathlib.Path(directory).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._writer = uuid.uuid4().hex[:12]
        self._count = 0
        lock = self.directory / f"writer-{self._writer}.lock"
        self._release = weakref.finalize(self, _release, _hold(lock), lock)
        self._remove_leftovers()

    def new_name(self, first_block: bytes) -> str:
        """Writer, number, and the start of the digest."""
        self._count += 1
        return f"{self._writer}-{self._count:06d}-{family_of(first_block)}"

    def put(self, save: Save) -> Manifest:
        """Write the arrays, then the manifest."""
        kv = pack(save.kv)
        positions = {position: pack(states) for position, states in save.positions.items()}
        manifest = dataclasses.replace(
            save.manifest,
            kv={name: ArrayEntry.of(array) for name, array in kv.items()},
            positions=tuple(
                dataclasses.replace(
                    entry,
                    arrays={
                        name: ArrayEntry.of(array)
                        for name, array in positions[entry.position].items()
                    },
                )
                for entry in save.manifest.positions
            ),
        )
        self._check_room(manifest.num_bytes)
        tree: dict[str, Arrays] = {_group(position): a for position, a in positions.items()}
        if kv:
            tree["kv"] = kv
        path = self.directory / manifest.save
        try:
            with _orbax_lock:
                ocp.save_async(path, tree).result()
            self._publish(manifest)
        except BaseException:
            self.drop(manifest.save)
            raise
        return manifest

    def load(
        self, manifest: Manifest, position: int | None, states: Any, kv: Any
    ) -> tuple[Any, Any]:
        """Read part of a save."""
        wanted: dict[str, tuple[Mapping[str, ArrayEntry], Any]] = {}
        if position is not None:
            (entry,) = (e for e in manifest.positions if e.position == position)
            wanted[_group(position)] = entry.arrays, states
        if jax.tree.leaves(kv):
            wanted["kv"] = manifest.kv, kv
        try:
            arrays = self._read(manifest.save, {name: e for name, (e, _) in wanted.items()})
            trees = {name: unpack(arrays[name], shapes) for name, (_, shapes) in wanted.items()}
        except Exception as error:
            raise SaveError(manifest.save, Reason.CORRUPT, str(error)) from error
        return trees.get(_group(position)), trees.get("kv", kv)

    def _read(self, save: str, wanted: Mapping[str, Mapping[str, ArrayEntry]]) -> dict[str, Arrays]:
        """Groups of arrays of a save, compared with their checksums."""
        target = {
            group: {name: np.empty(e.shape, jnp.dtype(e.dtype)) for name, e in entries.items()}
            for group, entries in wanted.items()
        }
        context = ocp.Context()
        context.pytree.loading.partial_load = True
        with _orbax_lock, context:
            loaded: dict[str, Arrays] = ocp.load(self.directory / save, target) if target else {}
        for group, entries in wanted.items():
            for name, entry in entries.items():
                if ArrayEntry.of(np.asarray(loaded[group][name])) != entry:
                    raise ValueError(f"the checksum of {group}/{name} is wrong")
        return loaded

    def scan(self) -> Iterator[Manifest | SaveError]:
        """Read all manifests."""
        saves = (p for p in self.directory.glob("*.json") if _SAVE.fullmatch(p.stem))
        for path in sorted(saves, key=_age):
            try:
                text = path.read_bytes()
                if not path.with_suffix("").is_dir():
                    raise SaveError(path.stem, Reason.INCOMPLETE, "its arrays are gone")
                yield Manifest.from_json(path.stem, text)
            except SaveError as error:
                if error.reason is not Reason.FINGERPRINT_MISMATCH:
                    self.drop(path.stem)
                yield error
            except OSError as error:
                yield SaveError(path.stem, Reason.CORRUPT, f"unreadable: {error}")

    def drop(self, name: str) -> None:
        """Remove the manifest, then the arrays, as far as the directory still lets us."""
        with contextlib.suppress(OSError):
            (self.directory / f"{name}.json").unlink(missing_ok=True)
            # Orbax leaves its unfinished directory behind where a save fails.
            for path in self.directory.iterdir():
                if path.name == name or path.name.startswith(f"{name}{_ORBAX_UNFINISHED}"):
                    shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Let go of the writer's lock."""
        self._release()

    def _check_room(self, num_bytes: int) -> None:
        free = shutil.disk_usage(self.directory).free
        if free < num_bytes + _MARGIN_BYTES:
            raise OSError(
                errno.ENOSPC, f"a save of {num_bytes} bytes does not fit, {free} bytes are free"
            )

    def _publish(self, manifest: Manifest) -> None:
        temporary = self.directory / f"{manifest.save}.json.tmp"
        try:
            with temporary.open("w") as file:
                file.write(manifest.to_json())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.directory / f"{manifest.save}.json")
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _remove_leftovers(self) -> None:
        """Remove arrays without a manifest and unfinished files of writers that no longer live."""
        living = {self._writer}
        for lock in self.directory.iterdir():
            named = _LOCK.fullmatch(lock.name)
            if named and named["writer"] != self._writer and not self._reap(lock):
                living.add(named["writer"])
        for path in self.directory.iterdir():
            named = _UNFINISHED.fullmatch(path.name)
            if not named or named["writer"] in living:
                continue
            if path.is_dir() and not path.with_name(f"{path.name}.json").exists():
                _log.info("removing an unfinished save: %s", path)
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.endswith(".json.tmp"):
                path.unlink(missing_ok=True)

    @staticmethod
    def _reap(lock: pathlib.Path) -> bool:
        """Remove the lock of a writer that no longer lives; False if it lives."""
        try:
            with lock.open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_at(lock, file.fileno()):
                    return False
                lock.unlink()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def _hold(lock: pathlib.Path) -> int:
    """Make and lock a file; another store may take it for a dead writer's before it is locked."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(lock, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(path: pathlib.Path, descriptor: int) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _release(descriptor: int, lock: pathlib.Path) -> None:
    lock.unlink(missing_ok=True)
    os.close(descriptor)


def pack(tree: Any) -> Arrays:
    """Stack the leaves of equal shape and dtype: a few big arrays save and load faster than many.

    Args:
        tree: arrays of jax or numpy.

    Returns:
        Arrays [leaves, ...] by a name made of dtype and shape.
    """
    groups: dict[str, list[np.ndarray]] = {}
    for leaf in jax.tree.leaves(tree):
        groups.setdefault(_kind(leaf), []).append(np.asarray(leaf))
    return {name: np.stack(leaves) for name, leaves in groups.items()}


def unpack(arrays: Arrays, shapes: Any) -> Any:
    """Undo `pack`.

    Args:
        arrays: what `pack` gave.
        shapes: a tree of `jax.ShapeDtypeStruct`, the tree that was packed.

    Returns:
        The tree, leaves are views.

    Raises:
        ValueError: the arrays are not those of such a tree.
    """
    leaves, tree = jax.tree.flatten(shapes)
    pending = {name: iter(array) for name, array in arrays.items()}
    unpacked = []
    for shape in leaves:
        leaf = next(pending.get(_kind(shape), iter(())), None)
        if leaf is None or leaf.shape != tuple(shape.shape):
            raise ValueError(f"packed arrays {sorted(arrays)} lack a leaf of {_kind(shape)}")
        unpacked.append(leaf)
    if any(next(rest, None) is not None for rest in pending.values()):
        raise ValueError(f"packed arrays {sorted(arrays)} hold more leaves than {len(leaves)}")
    return jax.tree.unflatten(tree, unpacked)


def _kind(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}_{'x'.join(map(str, leaf.shape))}"


def _group(position: int | None) -> str:
    return f"position_{position}"


def _age(path: pathlib.Path) -> tuple[int, str]:
    try:
        return path.stat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name
