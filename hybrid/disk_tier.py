"""The disk tier: which saves a directory holds, restoring from them, and writing new ones.

Saves are written by one worker thread, off the path of requests. A save is entered here when it is
handed to that thread, so that the next one does not repeat its blocks; who wants to read it before
it is on disk waits for it. If it fails, it is forgotten, and so is what builds on it.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np

from hybrid.disk_results import DiskMatch, DiskStats
from hybrid.fingerprint import Fingerprint, fingerprint
from hybrid.manifest import Manifest, PositionEntry, SaveError, family_of, save_family
from hybrid.prefix_cache import ReadRows
from hybrid.prefix_digests import block_digests, digest_keys, prefix_digests
from hybrid.runner import ModelRunner
from hybrid.snapshots import Save, SnapshotStore
from hybrid.state import Rows, Snapshot, kv_only, tree_bytes
from planner.index_results import AttachStatus
from planner.prefix_index import PrefixIndex
from planner.report import Reason

_log = logging.getLogger(__name__)
MAX_PENDING_BYTES = 1 << 30


class DiskTier:
    """Saves of one store, seen through one runner.

    Args:
        runner: whose states they must be.
        store: where they live; closed with the tier.
        max_pending_bytes: limit for what waits to be written; more is skipped.
    """

    def __init__(
        self,
        runner: ModelRunner,
        store: SnapshotStore,
        *,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        self.stats = DiskStats()
        self._runner, self._store = runner, store
        self._fingerprint: Fingerprint = fingerprint(runner)
        self._exact_only = runner.shapes.grid == "tile"
        self._block_size = runner.shapes.block_size
        self._max_pending_bytes = max_pending_bytes
        self._worker = ThreadPoolExecutor(1, "waypoint-save")
        self._pending: dict[str, tuple[Future[Manifest], int]] = {}
        self._manifests: dict[str, Manifest] = {}
        self._unusable: dict[tuple[int, bytes], Reason] = {}
        self._unusable_families: dict[str, Reason] = {}
        self._scan()
        self._rebuild()

    def restore(self, prompt: np.ndarray, above: int, held_rows: int, row_unit: int) -> DiskMatch:
        """Read the deepest usable snapshot of a prompt.

        Args:
            prompt: int32 [total].
            above: position that is restorable without the disk; only more than that is read.
            held_rows: how many rows of keys and values, from the first, the caller holds already.
            row_unit: the rows read start at a multiple of this, a multiple of the block size.

        Returns:
            What was read, verified.
        """
        self._collect()
        size = self._block_size
        digests = block_digests(prompt, size)
        keys, reason = digest_keys(digests), None
        while True:
            match = self._index.lookup(keys, len(prompt), exact=self._exact_only)
            if match.snapshot is None or match.restored <= above:
                blocked = self._unusable_reason(prompt, digests, max(above, match.restored))
                return DiskMatch(match.matched, reason=reason or blocked)
            try:
                position = match.restored
                base = min(held_rows, position) // row_unit * row_unit
                wanted = digests[base // size : -(-position // size)]
                if held_rows >= position:
                    wanted = []
                states, rows = self._load(prompt, position, wanted)
            except SaveError as error:
                _log.warning("miss: %s", error)
                if error.save not in self._manifests:  # nothing to forget: it would come again
                    return DiskMatch(0, reason=error.reason)
                reason = error.reason
                self._forget(error.save, error.reason)
                continue
            self.stats.restores += 1
            exact, reason = match.snapshot.exact, reason or match.reason
            return DiskMatch(match.matched, position, exact, reason, states, rows, base)

    def save(
        self,
        prompt: np.ndarray,
        captured: Mapping[int, Snapshot],
        exact: bool,
        tile: int,
        read_rows: ReadRows,
    ) -> None:
        """Hand the captures of a request that the disk lacks to the worker, with their blocks.

        Args:
            prompt: int32 [total].
            captured: its states by position.
            exact: whether the run was exact; its captures are then where they lie on tiles.
            tile: tokens a tile.
            read_rows: reads its keys and values.
        """
        self._collect()
        size = self._block_size
        positions = [p for p in sorted(captured) if p <= len(prompt) // size * size]
        if not positions:
            return
        num_blocks = -(-positions[-1] // size)
        digests = block_digests(prompt[: num_blocks * size], size)
        keys = digest_keys(digests)
        insertion = self._index.insert(keys, exact=exact)
        marks = {p: exact and p % tile == 0 for p in positions}
        named = dict(zip(positions, prefix_digests(prompt, positions), strict=True))
        entries = [
            PositionEntry(p, marks[p], named[p].hex(), {})
            for p in positions
            if self._index.attach(keys, p, exact=marks[p]).status is AttachStatus.ATTACHED
        ]
        if not entries:
            if insertion.upgraded or len(insertion.block_ids):
                self._rebuild()  # the index must not hold what no save does
            return
        start = min([first for first, _ in insertion.upgraded] + [insertion.first_block])
        new_blocks = num_blocks - start
        manifest = Manifest(
            save=self._store.new_name(digests[0]),
            fingerprint=self._fingerprint.parts,
            fingerprint_digest=self._fingerprint.digest,
            block_size=size,
            start_block=start,
            before=digests[start - 1].hex() if start else "",
            digests=tuple(digest.hex() for digest in digests[start:]),
            exact_blocks=new_blocks if exact else 0,
            kv={},
            positions=tuple(entries),
        )
        try:
            rows = read_rows(start * size, num_blocks * size) if new_blocks else ()
            states = {e.position: captured[e.position] for e in entries}
            self._hand_over(Save(manifest, rows, states))
        except BaseException:
            if manifest.save not in self._pending:
                self._manifests.pop(manifest.save, None)
                self._rebuild()
            raise

    def flush(self) -> None:
        """Wait until all saves that were handed over are written or given up."""
        for future, _ in list(self._pending.values()):
            future.exception()
        self._collect()

    def close(self) -> None:
        """Flush, stop the worker, let go of the store."""
        self.flush()
        self._worker.shutdown()
        self._store.close()

    def _hand_over(self, save: Save) -> None:
        name = save.manifest.save
        num_bytes = tree_bytes([save.kv, save.positions])
        waiting = sum(waiting_bytes for _, waiting_bytes in self._pending.values())
        if waiting + num_bytes > self._max_pending_bytes:
            self._skip(name, f"{waiting} bytes are waiting to be written already")
            self._rebuild()
            return
        self._manifests[name] = save.manifest
        self._enter(save.manifest)
        self._pending[name] = self._worker.submit(self._store.put, save), num_bytes

    def _skip(self, name: str, why: object) -> None:
        self.stats.skipped_saves += 1
        _log.warning("save %s skipped: %s", name, why)

    def _collect(self) -> None:
        """Take in what the worker has finished."""
        failed = False
        for name, (future, _) in list(self._pending.items()):
            if not future.done():
                continue
            del self._pending[name]
            if error := future.exception():
                self._skip(name, error)
                self._manifests.pop(name, None)
                failed = True
            elif name in self._manifests:
                self._manifests[name] = manifest = future.result()
                self.stats.saves += 1
                self.stats.saved_bytes += manifest.num_bytes
        if failed:
            self._rebuild()

    def _scan(self) -> None:
        """Read all manifests; say once what cannot be used and why."""
        told: set[str] = set()
        for found in self._store.scan():
            if isinstance(found, SaveError):
                _log.warning("not used: %s", found)
                self._count(found.reason)
                self._unusable_families[save_family(found.save)] = found.reason
            elif found.fingerprint_digest != self._fingerprint.digest:
                self._count(Reason.FINGERPRINT_MISMATCH)
                self._mark(found, Reason.FINGERPRINT_MISMATCH)
                if found.fingerprint_digest not in told:
                    told.add(found.fingerprint_digest)
                    lines = self._fingerprint.differences(found.fingerprint)
                    _log.warning(
                        "save %s has another fingerprint: %s", found.save, "; ".join(lines)
                    )
            else:
                self._manifests[found.save] = found

    def _count(self, reason: Reason) -> None:
        counts = self.stats.unusable_saves
        counts[reason.value] = counts.get(reason.value, 0) + 1

    def _mark(self, manifest: Manifest, reason: Reason) -> None:
        for entry in manifest.positions:
            self._unusable[entry.position, bytes.fromhex(entry.digest)] = reason

    def _forget(self, name: str, reason: Reason) -> None:
        """Leave out a save that did not verify, and remove it."""
        self._count(reason)
        manifest = self._manifests.pop(name, None)
        if manifest is not None:
            self._mark(manifest, reason)
        self._store.drop(name)
        self._rebuild()

    def _rebuild(self) -> None:
        """Enter all manifests into an empty index, those that others build on first."""
        self._index = PrefixIndex(
            self._block_size,
            restore_grid_tokens=self._runner.shapes.tile if self._exact_only else None,
        )
        self._blocks: dict[bytes, tuple[bool, str, int]] = {}
        self._snapshots: dict[tuple[int, bytes], tuple[bool, str]] = {}
        self._paths: dict[str, list[bytes]] = {}
        for manifest in sorted(self._manifests.values(), key=lambda m: m.start_block):
            if not self._enter(manifest):
                _log.warning("not used: save %s builds on one that is gone", manifest.save)
                self._count(Reason.INCOMPLETE)
                self._mark(manifest, Reason.INCOMPLETE)
                del self._manifests[manifest.save]

    def _enter(self, manifest: Manifest) -> bool:
        """Enter one save; False if the blocks that it builds on are in no other."""
        start, path = manifest.start_block, []
        if start:
            held = self._blocks.get(bytes.fromhex(manifest.before))
            if held is None:
                return False
            path = self._paths[held[1]][:start]
        own = [bytes.fromhex(digest) for digest in manifest.digests]
        for row, digest in enumerate(own):
            exact = row < manifest.exact_blocks
            if digest not in self._blocks or (exact and not self._blocks[digest][0]):
                self._blocks[digest] = exact, manifest.save, row
        path = [*path, *own]
        self._paths[manifest.save] = path
        keys = digest_keys(path)
        inexact = (i for i, digest in enumerate(path) if not self._blocks[digest][0])
        num_exact = next(inexact, len(path))
        self._index.insert(keys[:num_exact], exact=True)
        self._index.insert(keys, exact=False)
        for entry in manifest.positions:
            name = entry.position, bytes.fromhex(entry.digest)
            if name not in self._snapshots or (entry.exact and not self._snapshots[name][0]):
                self._snapshots[name] = entry.exact, manifest.save
            self._index.attach(keys, entry.position, exact=entry.exact)
        return True

    def _load(
        self, prompt: np.ndarray, position: int, wanted: list[bytes]
    ) -> tuple[Snapshot, Rows | None]:
        """The states at a position, and keys and values of the blocks wanted, side by side."""
        (digest,) = prefix_digests(prompt, [position])
        held = self._snapshots.get((position, digest))
        homes = [home for home in map(self._blocks.get, wanted) if home is not None]
        if held is None or len(homes) < len(wanted):
            # The index's short keys agree but the digests do not.
            raise SaveError(held[1] if held else "?", Reason.CORRUPT, "it is of another prompt")
        kv: dict[str, Rows] = {}
        snapshot: Snapshot | None = None
        for name in dict.fromkeys([held[1], *(home[1] for home in homes)]):
            manifest = self._readable(name)
            states, kv[name] = self._store.load(
                manifest,
                position if name == held[1] else None,
                self._runner.snapshot_shapes,
                self._row_shapes(manifest) if any(home[1] == name for home in homes) else (),
            )
            snapshot = states if name == held[1] else snapshot
        assert snapshot is not None
        return snapshot, self._join(homes, kv) if homes else None

    def _readable(self, name: str) -> Manifest:
        """The manifest of a save, once it is written."""
        if name in self._pending:
            future, _ = self._pending[name]
            if error := future.exception():
                raise SaveError(name, Reason.INCOMPLETE, f"it could not be written: {error}")
            self._manifests[name] = future.result()
        return self._manifests[name]

    def _row_shapes(self, manifest: Manifest) -> Rows:
        num_rows = len(manifest.digests) * self._block_size
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                (*leaf.shape[:2], num_rows, *leaf.shape[3:]), leaf.dtype
            ),
            kv_only(self._runner.state_shapes),
        )

    def _join(self, homes: list[tuple[bool, str, int]], kv: Mapping[str, Rows]) -> Rows:
        """Cut the blocks out of their saves, neighbours at once, and put them side by side."""
        size, pieces, at = self._block_size, [], 0
        while at < len(homes):
            _, name, row = homes[at]
            count = 1
            while at + count < len(homes) and homes[at + count][1:] == (name, row + count):
                count += 1
            cut = slice(row * size, (row + count) * size)
            pieces.append(jax.tree.map(lambda leaf, cut=cut: leaf[:, :, cut], kv[name]))
            at += count
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=2), *pieces)

    def _unusable_reason(
        self, prompt: np.ndarray, digests: list[bytes], above: int
    ) -> Reason | None:
        """Why something deeper that is on the disk cannot serve."""
        limit = (len(prompt) - 1) // self._block_size * self._block_size
        positions = sorted({p for p, _ in self._unusable if above < p <= limit})
        for name in zip(positions, prefix_digests(prompt, positions), strict=True):
            if name in self._unusable:
                return self._unusable[name]
        return self._unusable_families.get(family_of(digests[0])) if digests else None
