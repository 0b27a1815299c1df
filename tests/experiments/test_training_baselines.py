"""The byte n-gram against its definition, spelt out with dictionaries; xz against lzma by hand."""

import lzma

import numpy as np
import pytest

from experiments.training.baselines import NGram, xz_bits_per_byte

ORDER = 4
SOURCE = (
    b"def read(path):\n    with open(path) as file:\n        return file.read()\n\n"
    b"def reader(paths):\n    return [read(path) for path in paths]\n"
)


def as_bytes(data):
    return np.frombuffer(bytes(data), np.uint8)


class KneserNey:
    """Interpolated Kneser-Ney, one probability at a time.

    Grams of the highest order count as often as they occur, shorter ones by how many different
    bytes stand before them; a shorter gram is the end of a longer one, so the first places of the
    text, which have no longer one, are left out.
    """

    def __init__(self, text, order):
        self.order, self.counts = order, {}
        whole = [text[i : i + order] for i in range(len(text) - order + 1)]
        self.counts[order] = {gram: float(whole.count(gram)) for gram in whole}
        for n in range(order - 1, 0, -1):
            before = {}
            for gram in self.counts[n + 1]:
                before.setdefault(gram[1:], set()).add(gram[:1])
            self.counts[n] = {gram: float(len(found)) for gram, found in before.items()}
        self.discounts = {n: self.discount(list(c.values())) for n, c in self.counts.items()}

    @staticmethod
    def discount(counts):
        once, twice = counts.count(1), counts.count(2)
        return min(max(once / (once + 2 * twice), 0.05), 0.95) if once else 0.05

    def probability(self, byte, before, n):
        """Of a byte after the last n - 1 bytes before it."""
        if n == 0:
            return 1 / 256
        context = before[len(before) - (n - 1) :]
        same = {g: c for g, c in self.counts[n].items() if g[:-1] == context}
        lower = self.probability(byte, before, n - 1)
        if not same:
            return lower
        total, discount = sum(same.values()), self.discounts[n]
        own = max(same.get(context + bytes([byte]), 0) - discount, 0)
        return (own + discount * len(same) * lower) / total


def texts():
    rng = np.random.default_rng(3)
    yield SOURCE, b"def write(path):\n    \xe9return read"
    yield bytes(rng.integers(97, 100, 90).tolist()), bytes(rng.integers(96, 101, 60).tolist())
    yield b"ab" * 40, b"abacab"  # no gram of the highest order was counted once
    yield b"abcd", b"xbcda"


@pytest.mark.parametrize(
    ("text", "unseen"), list(texts()), ids=["source", "letters", "no_once", "short"]
)
def test_probabilities_are_those_of_the_definition(text, unseen):
    oracle = KneserNey(text, ORDER)
    expected = [
        oracle.probability(unseen[i], unseen[:i], min(i + 1, ORDER)) for i in range(len(unseen))
    ]
    model = NGram(as_bytes(text), ORDER)
    np.testing.assert_allclose(model.probabilities(as_bytes(unseen)), expected, rtol=1e-12)
    bits = model.bits_per_byte(as_bytes(unseen))
    assert bits == pytest.approx(-np.log2(expected).mean(), rel=1e-12)
    assert np.isfinite(bits)


@pytest.mark.parametrize("context", [b"", b"d", b"    re", b"path", b"zzzz", b"q re", b"\0\xff"])
def test_the_next_byte_is_one_of_256(context):
    model = NGram(as_bytes(SOURCE))
    last = [model.probabilities(as_bytes(context + bytes([byte])))[-1] for byte in range(256)]
    assert min(last) > 0
    assert sum(last) == pytest.approx(1, rel=1e-12)


def test_where_no_gram_was_counted_once_unseen_bytes_cost_finitely_many_bits():
    model = NGram(as_bytes(b"ab" * 50))
    seen, unseen = (model.probabilities(as_bytes(text))[-1] for text in (b"ababa", b"ababc"))
    assert seen > 0.99
    assert 0 < unseen < 1e-4
    assert np.isfinite(model.bits_per_byte(as_bytes(b"ababc")))


def test_random_bytes_cost_eight_bits():
    train, unseen = np.random.default_rng(0).integers(0, 256, (2, 20_000)).astype(np.uint8)
    assert 8 < NGram(train).bits_per_byte(unseen) < 8.3
    assert 8 < xz_bits_per_byte(unseen) < 8.1


def test_a_text_it_has_seen_costs_little():
    text = as_bytes(SOURCE * 20)
    assert NGram(text).bits_per_byte(as_bytes(SOURCE)) < 1
    assert xz_bits_per_byte(as_bytes(SOURCE), text) < 0.5 < xz_bits_per_byte(as_bytes(SOURCE))


def test_the_figure_of_xz_is_that_of_lzma():
    def size(data):
        return len(lzma.compress(data, check=lzma.CHECK_NONE, preset=9 | lzma.PRESET_EXTREME))

    before = SOURCE * 3
    assert xz_bits_per_byte(as_bytes(SOURCE)) == 8 * size(SOURCE) / len(SOURCE)
    expected = 8 * (size(before + SOURCE) - size(before)) / len(SOURCE)
    assert xz_bits_per_byte(as_bytes(SOURCE), as_bytes(before)) == expected


@pytest.mark.slow
def test_xz_looks_back_over_all_of_the_training_text():
    """Further than the window of xz -6, 8 MiB."""
    text = np.random.default_rng(1).integers(0, 256, 9 << 20).astype(np.uint8)
    assert xz_bits_per_byte(text[:4096], text) < 2


@pytest.mark.parametrize(
    ("text", "order", "message"),
    [
        (b"abcdef", 8, "order is 8; expected 1 to 7"),
        (b"abcdef", 0, "order is 0; expected 1 to 7"),
        (b"abcd", 5, "text has 4 bytes; expected at least 5"),
    ],
)
def test_what_cannot_be_counted_is_refused(text, order, message):
    with pytest.raises(ValueError, match=message):
        NGram(as_bytes(text), order)
