"""Text to tokens, and tokens to text while they come: a model folder's tokenizer, or bytes."""

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from experiments.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"
UNREADABLE = "\ufffd"
"""Stands for what is no text: bytes that are not UTF-8, ids that the vocabulary lacks."""


class TextStream(Protocol):
    """Turns tokens into text as they come; no character is given in parts."""

    def feed(self, tokens: Sequence[int] | np.ndarray) -> str:
        """The text that is certain after these tokens.

        Args:
            tokens: ids [n] that follow those fed before.

        Returns:
            What can be added to the text given so far; the bytes of a character that is not
            complete yet are held back.
        """
        ...

    def finish(self) -> str:
        """The rest: what was held back and no further token completes."""
        ...


class Vocabulary(Protocol):
    """The tokens of a model."""

    def encode(self, text: bytes, *, first: bool) -> np.ndarray:
        """Tokens of a text.

        Args:
            text: UTF-8; a vocabulary of bytes takes any.
            first: whether the text starts the prompt, where some tokenizers add a token.

        Returns:
            int32 [n].

        Raises:
            UserError: the text is not UTF-8.
        """
        ...

    def stream(self, before: Sequence[int] | np.ndarray) -> TextStream:
        """A stream for the continuation of a prompt.

        Args:
            before: the prompt's tokens; they decide whether the first word has a space before it.
        """
        ...


def read_vocabulary(folder: Path | None, vocab_size: int) -> Vocabulary:
    """The tokenizer in a model folder; bytes where there is none.

    Args:
        folder: of the model, or None.
        vocab_size: of the model.

    Returns:
        The vocabulary; all its tokens are within the model's.

    Raises:
        UserError: a tokenizer.json that cannot be read, or a vocabulary larger than the model's.
    """
    path = None if folder is None else folder / TOKENIZER
    if path is None or not path.exists():
        if vocab_size < 256:
            where = "" if path is None else f": {path} does not exist"
            raise UserError(
                f"the model knows {vocab_size} tokens, too few for bytes (256), and it has no "
                f"tokenizer{where}"
            )
        return Bytes()
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise UserError(f"{path}: not a tokenizer: {error}") from error
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= vocab_size:
        raise UserError(
            f"{path}: has ids up to {largest} but the model's vocabulary has {vocab_size} tokens; "
            "tokenizer and weights do not belong together"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return TokenizerFile(tokenizer)


class Bytes:
    """A token is a byte."""

    def encode(self, text: bytes, *, first: bool) -> np.ndarray:
        """See `Vocabulary`."""
        return np.frombuffer(text, np.uint8).astype(np.int32)

    def stream(self, before: Sequence[int] | np.ndarray) -> TextStream:
        """See `Vocabulary`."""
        return _ByteStream()


class _ByteStream:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, tokens: Sequence[int] | np.ndarray) -> str:
        text = ""
        for token in map(int, tokens):
            if token < 256:
                text += self._decoder.decode(bytes([token]))
            else:
                text += self.finish() + UNREADABLE
        return text

    def finish(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class TokenizerFile:
    """The vocabulary of a tokenizer.json.

    Args:
        tokenizer: of the tokenizers library.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer

    def encode(self, text: bytes, *, first: bool) -> np.ndarray:
        """See `Vocabulary`."""
        try:
            decoded = text.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"not UTF-8 from byte {error.start} on; expected text") from error
        return np.array(self._tokenizer.encode(decoded, add_special_tokens=first).ids, np.int32)

    def stream(self, before: Sequence[int] | np.ndarray) -> TextStream:
        """See `Vocabulary`."""
        return _TokenizerStream(self._tokenizer, before)


class _TokenizerStream:
    """Decodes a window of tokens and gives what a new token adds to its text.

        window  | tokens whose text was given last | tokens whose text is held back |
                0                                  `_given`

    What a token reads as depends on its neighbours: the first word loses its space, and bytes that
    are tokens make a character together. So the window starts one gift back (at first with the
    whole prompt), and an end that reads as U+FFFD waits for more. The library's own `DecodeStream`
    raises where a window's text changes in hindsight, as a run of byte tokens does when one of them
    turns out to be wrong.
    """

    def __init__(self, tokenizer: "Tokenizer", before: Sequence[int] | np.ndarray) -> None:
        self._tokenizer = tokenizer
        self._window = [int(token) for token in before]
        self._given = len(self._window)
        self._text = self._decode(self._window)

    def feed(self, tokens: Sequence[int] | np.ndarray) -> str:
        return "".join(self._one(int(token)) for token in tokens)

    def finish(self) -> str:
        text = self._added(self._decode(self._window))
        self._give()
        return text

    def _one(self, token: int) -> str:
        if self._tokenizer.id_to_token(token) is None:
            return self.finish() + UNREADABLE
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(UNREADABLE):
            return ""
        new = self._added(text)
        if new:
            self._give()
        return new

    def _added(self, text: str) -> str:
        if text.startswith(self._text):
            return text[len(self._text) :]
        return self._decode(self._window[self._given :])

    def _give(self) -> None:
        """All of the window has been given: keep its newest part as neighbours."""
        if self._given < len(self._window):
            self._window = self._window[self._given :]
            self._given = len(self._window)
            self._text = self._decode(self._window)

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))
