"""The tensors of a checkpoint folder, mapped from its .safetensors shards: nothing is read before a
view of it is copied.

    file   | 8 bytes: length of the header | header: JSON, tensor -> dtype, shape, span | bytes |
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from operator import index
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from hybrid.checkpoint.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_LENGTH_BYTES = 8
_LARGEST_HEADER_BYTES = 100 * 2**20


@dataclasses.dataclass(frozen=True)
class _Entry:
    shard: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorFiles(Mapping[str, np.ndarray]):
    """Name -> read-only view of a tensor in a mapped file.

    Args:
        folder: holds model.safetensors, or shards and their index.

    Raises:
        CheckpointError: a shard is absent, truncated or not a safetensors file, a tensor has a
            dtype that no model is loaded from, or the index and the shards disagree.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: dict[str, _Entry] = {}
        self._maps: dict[Path, np.memmap] = {}
        expected = _index(folder)
        shards = [SINGLE] if expected is None else sorted(set(expected.values()))
        for shard in shards:
            for name, entry in _read_header(folder / shard):
                if name in self._entries:
                    raise CheckpointError(
                        f"{folder}: tensor {name} is in {self._entries[name].shard.name} and in "
                        f"{shard}; expected it once"
                    )
                self._entries[name] = entry
        for name, shard in (expected or {}).items():
            if name not in self._entries or self._entries[name].shard.name != shard:
                raise CheckpointError(
                    f"{folder / shard}: tensor {name} is absent though {INDEX} puts it there"
                )

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self._entries[name]
        if entry.dtype not in _DTYPES:
            raise CheckpointError(
                f"{entry.shard}: tensor {name} has dtype {entry.dtype}; expected one of "
                f"{', '.join(_DTYPES)}"
            )
        if entry.shard not in self._maps:
            self._maps[entry.shard] = np.memmap(entry.shard, dtype=np.uint8, mode="r")
        raw = self._maps[entry.shard][entry.begin : entry.end]
        return np.asarray(raw.view(_DTYPES[entry.dtype]).reshape(entry.shape))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _index(folder: Path) -> dict[str, str] | None:
    """Tensor -> shard from the index file; None where one file holds everything."""
    path = folder / INDEX
    if path.exists():
        shards = load_json(path).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
            raise CheckpointError(f"{path}: expected weight_map, an object of tensor: shard")
        return shards
    if not (folder / SINGLE).exists():
        raise CheckpointError(f"{folder}: holds neither {SINGLE} nor {INDEX}")
    return None


def load_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        CheckpointError: the file is absent, is not JSON, or holds something else than an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}; expected an object")
    return value


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


def _read_header(path: Path) -> Iterator[tuple[str, _Entry]]:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such shard")
    size = path.stat().st_size
    with _opened(path) as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        start = _LENGTH_BYTES + length
        if size < start or length > _LARGEST_HEADER_BYTES:
            raise CheckpointError(
                f"{path}: {size} bytes, and its header claims {length}: truncated, or not a "
                "safetensors file"
            )
        try:
            header = json.loads(file.read(length))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path}: the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is a {type(header).__name__}, not an object")
    header.pop("__metadata__", None)
    for name, fields in header.items():
        try:
            dtype, shape = str(fields["dtype"]), tuple(map(index, fields["shape"]))
            begin, end = map(index, fields["data_offsets"])
        except (LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path}: tensor {name}: expected dtype, shape and data_offsets, got {fields}"
            ) from error
        if not 0 <= begin <= end or min(shape, default=0) < 0:
            raise CheckpointError(f"{path}: tensor {name}: impossible shape or span in {fields}")
        if start + end > size:
            raise CheckpointError(
                f"{path}: {size} bytes, but tensor {name} ends at byte {start + end}: the file is "
                "truncated"
            )
        items = int(np.prod(shape, dtype=np.int64))
        if dtype in _DTYPES and end - begin != items * _DTYPES[dtype].itemsize:
            raise CheckpointError(
                f"{path}: tensor {name} spans {end - begin} bytes, which is not {dtype}"
                f"{list(shape)}"
            )
        yield name, _Entry(path, dtype, shape, start + begin, start + end)
