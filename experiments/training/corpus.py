"""Text to train on: files of a folder, split by file, cut into sequences by grain.

A file is held out by a hash of its path below the folder, so the split is the same on every machine
and no held-out file was ever trained on.
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grain
import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from experiments.errors import UserError, as_user_error

SEPARATOR = b"\0"
"""Ends every file; no source has it inside."""
HELD_OUT_SHARE = 1 / 20
LEAST_BYTES = 1000
"""On each side of the split; fewer say nothing about a model."""
SUFFIXES = (".py", ".pyi", ".txt", ".md", ".rst", ".c", ".h", ".js", ".ts", ".rs", ".go", ".java")
"""Files of a folder that is given; of the standard library's only ".py"."""
SKIPPED_FOLDERS = frozenset(
    ["__pycache__", "site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"]
)
"""Installed packages; tests, half of which is data; generated tables."""


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and bytes to judge by.

    Attributes:
        train: uint8, files one after another, each ended by the separator.
        held_out: uint8, likewise.
        train_files, held_out_files: paths below the folder, sorted.
    """

    train: UInt8[ndarray, " n"]
    held_out: UInt8[ndarray, " m"]
    train_files: tuple[str, ...]
    held_out_files: tuple[str, ...]


def is_held_out(name: str) -> bool:
    """Whether a file is kept from training.

    Args:
        name: its path below the folder, with forward slashes.

    >>> [name for name in ("abc.py", "json/decoder.py", "sched.py") if is_held_out(name)]
    ['sched.py']
    """
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64


def read_corpus(folder: Path | None = None) -> Corpus:
    """Read a folder of text.

    Args:
        folder: by default the sources of this interpreter's standard library.

    Returns:
        Its files, split.

    Raises:
        UserError: no folder, a file that cannot be read, or too little on one side of the split.
    """
    root = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    suffixes = SUFFIXES if folder is not None else (".py",)
    if not root.is_dir():
        raise UserError(f"--data {root}: is no folder")
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    names: dict[bool, list[str]] = {True: [], False: []}
    for name in sorted(_text_files(root, suffixes)):
        aside = is_held_out(name)
        with as_user_error(f"--data {root}: {name}"):
            parts[aside].append((root / name).read_bytes() + SEPARATOR)
        names[aside].append(name)
    for aside, what in ((False, "to train on"), (True, "to hold out")):
        count = sum(map(len, parts[aside]))
        if count < LEAST_BYTES:
            raise UserError(
                f"--data {root}: {count} bytes {what}, in {len(parts[aside])} of "
                f"{sum(map(len, names.values()))} files; expected at least {LEAST_BYTES}, from "
                f"some tens of files that end in {', '.join(suffixes)}, of which "
                f"{HELD_OUT_SHARE:.0%} are held out"
            )
    train, held_out = (
        np.frombuffer(b"".join(parts[aside]), np.uint8).copy() for aside in (False, True)
    )
    return Corpus(train, held_out, tuple(names[False]), tuple(names[True]))


def _text_files(root: Path, suffixes: tuple[str, ...]) -> list[str]:
    paths = (path for suffix in suffixes for path in root.rglob(f"*{suffix}"))
    relative = (path.relative_to(root) for path in paths if path.is_file())
    return [path.as_posix() for path in relative if not SKIPPED_FOLDERS & set(path.parts[:-1])]


def describe_corpus(corpus: Corpus) -> dict[str, Any]:
    """A corpus for config.json: enough to know that two runs saw the same, and no path.

    Returns:
        JSON values.
    """
    return {
        side: {"files": len(files), "bytes": len(text), "sha256": _digest(text)}
        for side, files, text in (
            ("train", corpus.train_files, corpus.train),
            ("held_out", corpus.held_out_files, corpus.held_out),
        )
    }


def _digest(text: UInt8[ndarray, " n"]) -> str:
    return hashlib.sha256(text.tobytes()).hexdigest()[:16]


def sequences(
    text: UInt8[ndarray, " n"], length: int, batch: int, accumulate: int, seed: int
) -> grain.MapDataset:
    """Batches by number of the step: the same for equal arguments, in any order, in any process.

    Every pass over the text takes all of its windows in a new order, each moved by a random part of
    its length.

    Args:
        text: bytes.
        length: tokens of a sequence.
        batch: sequences that run together.
        accumulate: batches of a step.
        seed: of order and offsets.

    Returns:
        A dataset whose item i, for any i, is uint8 [accumulate, batch, length + 1].

    Raises:
        UserError: text for less than one step.
    """
    windows = (len(text) - 1) // length - 1
    if windows < batch * accumulate:
        raise UserError(
            f"--length {length} --batch {batch} --accumulate {accumulate}: more than the "
            f"{len(text)} bytes of text give"
        )

    def cut(window: int, rng: np.random.Generator) -> np.ndarray:
        start = window * length + int(rng.integers(length))
        return text[start : start + length + 1]

    dataset = grain.MapDataset.range(windows).seed(seed).shuffle().repeat().random_map(cut)
    # Without end there is no remainder; grain cannot round an endless length up.
    return dataset.batch(batch, drop_remainder=True).batch(accumulate, drop_remainder=True)
