"""Names of prefixes that hold in every process: SHA-256 over the tokens before a position."""

import hashlib
from collections.abc import Iterable

import numpy as np


def prefix_digests(tokens: np.ndarray, positions: Iterable[int]) -> list[bytes]:
    """Digest of the tokens before each position.

    Args:
        tokens: integers [total].
        positions: ascending, each at most total.

    Returns:
        32 bytes a position.
    """
    content = memoryview(np.ascontiguousarray(tokens, "<i4").tobytes())
    sha, done, digests = hashlib.sha256(), 0, []
    for position in positions:
        sha.update(content[4 * done : 4 * position])
        digests.append(sha.digest())
        done = position
    return digests


def block_digests(tokens: np.ndarray, block_size: int) -> list[bytes]:
    """Digest at the end of each full block."""
    return prefix_digests(tokens, range(block_size, len(tokens) + 1, block_size))


def digest_keys(digests: list[bytes]) -> np.ndarray:
    """Index keys, int64 [digests], made of each digest's first eight bytes."""
    return np.frombuffer(b"".join(digest[:8] for digest in digests), "<i8").astype(np.int64)
