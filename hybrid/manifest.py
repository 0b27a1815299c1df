"""What a save on disk says of itself: the manifest, with checksums, and the error for what does not
verify."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from planner.report import Reason

MANIFEST_FORMAT = 1
FAMILY_CHARS = 16


class SaveError(Exception):
    """A save that cannot be used, and why."""

    def __init__(self, save: str, reason: Reason, detail: str) -> None:
        super().__init__(f"save {save}: {reason.value}: {detail}")
        self.save, self.reason = save, reason


@dataclasses.dataclass(frozen=True)
class ArrayEntry:
    """One stored array: shape, dtype name and SHA-256 of its bytes."""

    shape: tuple[int, ...]
    dtype: str
    sha256: str

    @classmethod
    def of(cls, array: np.ndarray) -> "ArrayEntry":
        """Describe an array."""
        return cls(tuple(array.shape), array.dtype.name, _sha256(array))

    @property
    def num_bytes(self) -> int:
        """Size of the array."""
        return int(np.prod(self.shape)) * jnp.dtype(self.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class PositionEntry:
    """One stored snapshot.

    Args:
        position: tokens consumed.
        exact: whether it may serve an exact request.
        digest: SHA-256 of the tokens before it, hexadecimal.
        arrays: its packed states by name.
    """

    position: int
    exact: bool
    digest: str
    arrays: Mapping[str, ArrayEntry]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What one save holds.

    Args:
        save: its name.
        fingerprint: parts of the fingerprint, by name.
        fingerprint_digest: their digest.
        block_size: tokens a block.
        start_block: index of its first block; earlier ones are in earlier saves.
        before: prefix digest at `start_block`, "" at 0.
        digests: prefix digest at the end of each of its blocks.
        exact_blocks: how many of its blocks, from the first, are exact.
        kv: its packed keys and values by name; empty where it has no blocks.
        positions: its snapshots, ascending.
    """

    save: str
    fingerprint: Mapping[str, str]
    fingerprint_digest: str
    block_size: int
    start_block: int
    before: str
    digests: tuple[str, ...]
    exact_blocks: int
    kv: Mapping[str, ArrayEntry]
    positions: tuple[PositionEntry, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all its arrays."""
        groups = [self.kv, *(entry.arrays for entry in self.positions)]
        return sum(array.num_bytes for group in groups for array in group.values())

    def to_json(self) -> str:
        """As JSON with a checksum over the rest."""
        body = {"format": MANIFEST_FORMAT, **dataclasses.asdict(self), "bytes": self.num_bytes}
        return json.dumps({"sha256": _json_sha256(body), **body}, indent=1)

    @classmethod
    def from_json(cls, save: str, text: str | bytes) -> "Manifest":
        """Read a manifest back.

        Raises:
            SaveError: it is no manifest of this save, or its checksum is wrong.
        """
        try:
            body = json.loads(text)
            if body.pop("sha256") != _json_sha256(body):
                raise SaveError(save, Reason.CORRUPT, "the manifest's checksum is wrong")
            if (found := body.pop("format")) != MANIFEST_FORMAT:
                raise SaveError(
                    save,
                    Reason.FINGERPRINT_MISMATCH,
                    f"manifest format {found}, expected {MANIFEST_FORMAT}",
                )
            del body["bytes"]
            if body["save"] != save:
                raise SaveError(save, Reason.CORRUPT, f"the manifest is that of {body['save']}")
            body["digests"] = tuple(body["digests"])
            body["kv"] = _entries(body["kv"])
            body["positions"] = tuple(
                PositionEntry(**{**entry, "arrays": _entries(entry["arrays"])})
                for entry in body["positions"]
            )
            return cls(**body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SaveError(save, Reason.CORRUPT, f"no manifest: {error}") from error


def _entries(arrays: Mapping[str, Any]) -> dict[str, ArrayEntry]:
    return {
        name: ArrayEntry(**{**entry, "shape": tuple(entry["shape"])})
        for name, entry in arrays.items()
    }


def family_of(first_block: bytes) -> str:
    """What names of saves tell of a prompt's first block: the start of its digest."""
    return first_block.hex()[:FAMILY_CHARS]


def save_family(name: str) -> str:
    """`family_of` the prompt, read from a save's name."""
    return name.rpartition("-")[2]


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _json_sha256(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
