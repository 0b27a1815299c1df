"""Exact names for token blocks: equal content, equal key; nothing is hashed into an identity."""

from collections.abc import Callable

import numpy as np

from planner.checks import check_int


class BlockInterner:
    """Gives each distinct block of tokens an int64 key, and forgets those that nobody holds.

    A key never changes its meaning: a block that was forgotten gets a new one. Collection keeps
    what is live and what was named since the collection before, so that a running request's keys
    keep their meaning while others come and go.
    """

    def __init__(
        self, block_size: int, live_keys: Callable[[], np.ndarray], *, slack: int = 4096
    ) -> None:
        """Make an empty interner.

        Args:
            block_size: tokens a block.
            live_keys: the keys in use, `PrefixIndex.live_keys` of the index that it feeds.
            slack: a collection starts when there are more new blocks since the one before than
                live ones then, by this many.

        Raises:
            ValueError: a number out of its bounds.
        """
        self.block_size = check_int("block_size", block_size, 1)
        self._slack = check_int("slack", slack, 0)
        self._live_keys = live_keys
        self._keys: dict[bytes, int] = {}
        self._recent: set[int] = set()
        self._next_key = 0
        self._limit = self._slack

    def __len__(self) -> int:
        """How many distinct blocks it knows."""
        return len(self._keys)

    def keys(self, tokens: np.ndarray) -> np.ndarray:
        """Name the full blocks of a prompt.

        Args:
            tokens: integers [tokens].

        Returns:
            int64 [tokens // block_size].

        Raises:
            ValueError: tokens that are no integers of one axis.

        >>> interner = BlockInterner(2, lambda: np.empty(0, np.int64))
        >>> interner.keys(np.array([7, 8, 9, 9, 7, 8, 1])).tolist()
        [0, 1, 0]
        """
        tokens = np.asarray(tokens)
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise ValueError(
                f"tokens must be integers of one axis, got {tokens.dtype} {tokens.shape}"
            )
        if len(self._keys) > self._limit:
            self._collect()
        content = tokens.astype("<i8").tobytes()
        width = 8 * self.block_size
        names = []
        for start in range(0, len(content) // width * width, width):
            block = content[start : start + width]
            key = self._keys.get(block)
            if key is None:
                key = self._keys[block] = self._next_key
                self._next_key += 1
            names.append(key)
        self._recent.update(names)
        return np.array(names, np.int64)

    def _collect(self) -> None:
        live = self._live_keys().tolist()
        keep = self._recent.union(live)
        self._keys = {block: key for block, key in self._keys.items() if key in keep}
        self._recent = set()
        self._limit = len(self._keys) + len(live) + self._slack
