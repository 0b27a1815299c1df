"""What a held-out text costs without a neural network: a byte 5-gram and xz."""

import lzma
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from numpy import ndarray

_XZ_DICTIONARY_BYTES = 64 << 20
_LEAST_DISCOUNT, _MOST_DISCOUNT = 0.05, 0.95
"""Without a discount, as where no n-gram was counted once, a byte that a context has not seen would
have probability 0 and cost infinitely many bits; with one of 1, n-grams counted once would count as
never seen."""


class _Order(NamedTuple):
    """Counts of one order: of n-grams, and by context how many n-grams and what they sum to."""

    grams: Int64[ndarray, " g"]
    counts: Float64[ndarray, " g"]
    contexts: Int64[ndarray, " c"]
    totals: Float64[ndarray, " c"]
    kinds: Float64[ndarray, " c"]
    discount: float


class NGram:
    """A byte n-gram model with interpolated Kneser-Ney smoothing, down to the uniform distribution.

    The highest order counts occurrences, lower ones the different bytes that come before; each has
    one discount, n1 / (n1 + 2 n2) of the n-grams counted once and twice, kept within 0.05 to 0.95.

    Source: Kneser and Ney, "Improved backing-off for m-gram language modeling" (1995); Chen and
    Goodman, "An empirical study of smoothing techniques for language modeling" (1999).

    Args:
        text: bytes to count.
        order: n; 1 to 7.
    """

    def __init__(self, text: UInt8[ndarray, " n"], order: int = 5) -> None:
        if not 1 <= order <= 7:
            raise ValueError(f"order is {order}; expected 1 to 7")
        if len(text) < order:
            raise ValueError(f"text has {len(text)} bytes; expected at least {order}")
        self.order = order
        self._orders: list[_Order] = []
        grams, counts = np.unique(_grams(text, order), return_counts=True)
        for n in range(order, 0, -1):
            self._orders.insert(0, _count(grams, counts.astype(np.float64)))
            grams, counts = np.unique(grams & ((1 << 8 * (n - 1)) - 1), return_counts=True)

    def probabilities(self, text: UInt8[ndarray, " n"]) -> Float64[ndarray, " n"]:
        """Probability of each byte given those before it, at most order - 1 of them.

        Args:
            text: bytes; the first are given a shorter context.

        Returns:
            float64 [n].
        """
        result = np.full(len(text), 1 / 256)
        for n, counted in enumerate(self._orders, start=1):
            if n > len(text):
                break
            grams = _grams(text, n)
            context = _find(counted.contexts, grams >> 8)
            gram = _find(counted.grams, grams)
            seen = context >= 0
            at = context[seen]
            times = np.where(gram[seen] >= 0, counted.counts[gram[seen]], 0.0)
            own = np.maximum(times - counted.discount, 0.0) / counted.totals[at]
            left = counted.discount * counted.kinds[at] / counted.totals[at]
            tail = result[n - 1 :]
            tail[seen] = own + left * tail[seen]
        return result

    def bits_per_byte(self, text: UInt8[ndarray, " n"]) -> float:
        """Mean bits a byte of a text."""
        return float(-np.log2(self.probabilities(text)).mean())


def xz_bits_per_byte(
    text: UInt8[ndarray, " n"], after: UInt8[ndarray, " m"] | None = None
) -> float:
    """Bits a byte that xz at its strongest needs.

    Args:
        text: bytes to compress.
        after: bytes that the compressor has seen before; what they take by themselves is taken off.

    Returns:
        Bits of the compressed text by bytes of text.
    """
    before = b"" if after is None else after.tobytes()
    alone = 0 if after is None else _xz_bytes(before)
    return 8 * (_xz_bytes(before + text.tobytes()) - alone) / len(text)


def _xz_bytes(data: bytes) -> int:
    preset = 9 | lzma.PRESET_EXTREME
    filters = [
        {"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": _XZ_DICTIONARY_BYTES},
    ]
    return len(lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_NONE, filters=filters))


def _grams(text: UInt8[ndarray, " n"], order: int) -> Int64[ndarray, " g"]:
    """Each `order` bytes in a row as one number, the last byte lowest."""
    count = len(text) - order + 1
    grams = np.zeros(count, np.int64)
    for i in range(order):
        grams = (grams << 8) | text[i : i + count]
    return grams


def _count(grams: Int64[ndarray, " g"], counts: Float64[ndarray, " g"]) -> _Order:
    contexts, inverse, kinds = np.unique(grams >> 8, return_inverse=True, return_counts=True)
    totals = np.bincount(inverse, counts, len(contexts))
    once, twice = float((counts == 1).sum()), float((counts == 2).sum())
    estimate = once / (once + 2 * twice) if once else 0.0
    discount = min(max(estimate, _LEAST_DISCOUNT), _MOST_DISCOUNT)
    return _Order(grams, counts, contexts, totals, kinds.astype(np.float64), discount)


def _find(table: Int64[ndarray, " t"], values: Int64[ndarray, " v"]) -> Int64[ndarray, " v"]:
    """Where each value stands in a sorted table, -1 where it does not."""
    place = np.minimum(np.searchsorted(table, values), len(table) - 1)
    return np.where(table[place] == values, place, -1)
