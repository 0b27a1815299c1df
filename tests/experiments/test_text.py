"""Text to tokens and back while tokens come: whole characters, and the text of the whole."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from experiments.errors import UserError
from experiments.text import UNREADABLE, Bytes, TokenizerFile, read_vocabulary
from tests.experiments.small_tokenizers import byte_fallback, byte_level, letters, word_pieces

TEXT = "naïve café: 中文字 🙂 👩‍🔬, and the cat"
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=UNREADABLE), min_size=1)


def pieces(stream, tokens, sizes):
    """What a stream gives for tokens that come in groups of these sizes."""
    found, at = [], 0
    while at < len(tokens):
        size = sizes[len(found) % len(sizes)]
        found.append(stream.feed(tokens[at : at + size]))
        at += size
    return [*found, stream.finish()]


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@given(st.binary(), sizes)
@example(b"\xf0\x9f\x99\xf0\x9f\x99\x82", [1])
@example(b"\xc3", [1])
def test_bytes_read_as_the_whole_does(data, sizes):
    tokens = Bytes().encode(data, first=True)
    found = pieces(Bytes().stream([]), tokens, sizes)
    assert "".join(found) == data.decode(errors="replace")


@pytest.mark.parametrize(
    ("vocabulary", "decode"),
    [
        (Bytes(), lambda tokens: bytes(tokens.tolist()).decode(errors="replace")),
        (TokenizerFile(byte_level()), lambda tokens: byte_level().decode(tokens.tolist())),
    ],
)
@given(texts, texts, sizes)
@example("the", TEXT, [1])
@example("the", TEXT, [3])
def test_no_character_is_cut_and_none_comes_late(vocabulary, decode, before, text, sizes):
    prompt = vocabulary.encode(before.encode(), first=True)
    tokens = vocabulary.encode(text.encode(), first=False)
    *found, rest = pieces(vocabulary.stream(prompt), tokens, sizes)
    assert ("".join(found), rest) == (text, "")
    given, at = "", 0
    for number, piece in enumerate(found):
        given, at = given + piece, at + sizes[number % len(sizes)]
        whole = decode(tokens[:at])
        assert text.startswith(given)
        assert given == whole or whole.endswith(UNREADABLE)


def test_a_character_comes_with_its_last_byte():
    tokens = "é🙂".encode()
    assert pieces(Bytes().stream([]), list(tokens), [1]) == ["", "é", "", "", "", "🙂", ""]
    vocabulary = TokenizerFile(byte_fallback())
    tokens = [7 + byte for byte in tokens]
    assert pieces(vocabulary.stream([4]), tokens, [1]) == ["", "é", "", "", "", "🙂", ""]


@pytest.mark.parametrize("make", [byte_level, byte_fallback, word_pieces])
@given(ids=st.lists(st.integers(0, 262), max_size=40), sizes=sizes)
def test_any_tokens_read_as_the_whole_does(make, ids, sizes):
    """Whatever a model draws, nothing raises; where the decoder is one of bytes, it is the text of
    all tokens at once."""
    tokenizer = make()
    ids = [i % tokenizer.get_vocab_size() for i in ids]
    found = pieces(TokenizerFile(tokenizer).stream([]), ids, sizes)
    if make is byte_level:
        assert "".join(found) == tokenizer.decode(ids)


def test_a_wrong_byte_changes_nothing_that_was_given():
    """Byte fallback reads a run of bytes with a wrong one as wrong in hindsight, all of it."""
    tokenizer = byte_fallback()
    ids = [7 + byte for byte in b"\xc3\xa9\xc3\xc3"] + [3]
    assert tokenizer.decode(ids) == UNREADABLE * 4 + "b"
    found = pieces(TokenizerFile(tokenizer).stream([2]), ids, [1])
    assert "".join(found) == "é" + 2 * UNREADABLE + "b"


def test_the_first_word_keeps_its_space():
    vocabulary = TokenizerFile(byte_fallback())
    prompt = vocabulary.encode(b"the", first=True)
    assert prompt.tolist() == [0, 1, *(7 + byte for byte in b"the")]
    assert vocabulary.encode(b"the", first=False).tolist() == prompt.tolist()[1:]
    assert pieces(vocabulary.stream(prompt), [4, 5, 0, 4], [1]) == [" cat", " the", "", " cat", ""]


def test_word_pieces_are_joined():
    vocabulary = TokenizerFile(word_pieces())
    found = pieces(vocabulary.stream([1]), [2, 3, 4, 5, 8, 6], [1])
    assert "".join(found) == " cats don't sat."


@pytest.mark.parametrize("vocabulary", [Bytes(), TokenizerFile(letters(20))])
def test_ids_without_text_are_shown(vocabulary):
    stream = vocabulary.stream([2])
    assert stream.feed(np.array([5, 300, 5], np.int32)).count(UNREADABLE) == 1
    assert stream.finish() == ""


def test_a_folder_has_its_tokenizer(tmp_path):
    tokenizer = letters(20)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = read_vocabulary(tmp_path, 20)
    tokens = vocabulary.encode(b"ABCDEFABC", first=True)
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [0, *(2 + b - ord("A") for b in b"ABCDEFABC")]


def test_without_a_tokenizer_tokens_are_bytes(tmp_path):
    for folder in (None, tmp_path):
        assert read_vocabulary(folder, 256).encode("é".encode(), first=True).tolist() == [195, 169]


def test_what_cannot_be_a_vocabulary_is_named(tmp_path):
    with pytest.raises(UserError, match=r"knows 64 tokens, .* \(256\), .*tokenizer\.json does"):
        read_vocabulary(tmp_path, 64)
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer: "):
        read_vocabulary(tmp_path, 64)
    letters(20).save(str(path))
    with pytest.raises(UserError, match=r"has ids up to 19 but the model's vocabulary has 19"):
        read_vocabulary(tmp_path, 19)
    with pytest.raises(UserError, match="not UTF-8 from byte 2 on"):
        read_vocabulary(tmp_path, 20).encode(b"AB\xff", first=True)
