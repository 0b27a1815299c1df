"""A request as a trace recorded it, its prompt as tokens, and its form for a simulator.

Where a trace has only block ids, tokens are made from them: equal ids give equal tokens, different
ids differ within the first eight. To shrink a trace, every unit of tokens (a block of the trace; of
512 tokens where it has text) keeps its first part, so that prompts which shared n tokens still
share the shrunken n:

    unit        |aaaaaaaaaaaaaaaa|bbbbbbbbbbbbbbbb|cccccc      38 tokens, units of 16
    scale 1/4   |aaaa|bbbb|c                                    9 tokens
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int32, Int64, UInt8
from numpy import ndarray

from experiments.errors import UserError
from planner.trace import TraceRequest

ID_TOKENS = 8  # a 64-bit id, mixed one to one, as byte tokens
_TAIL = np.uint64(1 << 63)  # marks the keys of tails that have no id


@dataclass(frozen=True, eq=False)
class Recorded:
    """One request of a trace file.

    Attributes:
        arrival_s: seconds since the first request of the trace.
        session: name of the conversation.
        total_tokens: prompt length.
        output_tokens: length of the answer.
        block_size: tokens an id stands for; where there is text, the unit in which it is shrunk.
        ids: int64 [blocks], one an id of the prompt's blocks, unique over the whole trace; the last
          block may be a partial one. None where the trace has text.
        text: uint8 [total_tokens], the prompt's bytes, where the trace has text.
        boundaries: ascending positions in tokens at which messages start, as far as known.
    """

    arrival_s: float
    session: str
    total_tokens: int
    output_tokens: int
    block_size: int
    ids: Int64[ndarray, " blocks"] | None = field(default=None, repr=False)
    text: UInt8[ndarray, " total"] | None = field(default=None, repr=False)
    boundaries: tuple[int, ...] = ()


def scaled_block(block_size: int, scale: float) -> int:
    """Tokens that are kept of every `block_size`.

    Args:
        block_size: tokens in a unit.
        scale: in (0, 1].

    Returns:
        At least `ID_TOKENS` (or the whole unit), so that different ids stay different.

    Raises:
        UserError: scale out of range, or so small that blocks could no longer be told apart.
    """
    if not 0 < scale <= 1:
        raise UserError(f"--scale {scale}: expected more than 0 and at most 1")
    kept = round(block_size * scale)
    if kept < min(ID_TOKENS, block_size):
        raise UserError(
            f"--scale {scale}: would keep {kept} of every {block_size} tokens; "
            f"at least {ID_TOKENS} are needed to tell blocks apart"
        )
    return kept


def scaled_length(length: int, block_size: int, kept: int) -> int:
    """Length of a prompt, or a position in it, after shrinking; shared prefixes stay shared.

    Args:
        length: tokens before.
        block_size: tokens in a unit.
        kept: tokens kept of a unit.

    Returns:
        Tokens after.

    >>> scaled_length(38, 16, 4)
    9
    """
    whole, rest = divmod(length, block_size)
    return whole * kept + rest * kept // block_size


def _mix(x: ndarray) -> ndarray:
    """One-to-one mixing of 64-bit words (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def block_tokens(keys: ndarray, length: int) -> Int32[ndarray, "blocks length"]:
    """Tokens of blocks that are known by a key only: a counter-based generator, keyed by block.

    Args:
        keys: unsigned 64-bit [blocks].
        length: tokens of each.

    Returns:
        int32 [blocks, length] in 0..255; the first 8 tokens of different keys differ.
    """
    words = -(-length // ID_TOKENS)
    with np.errstate(over="ignore"):
        steps = np.arange(words, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        # The first word is a one-to-one image of the key; later ones go on from it.
        mixed = _mix(_mix(keys.astype(np.uint64))[:, None] + steps[None, :])
    as_bytes = mixed.astype("<u8").view(np.uint8).reshape(len(keys), words * ID_TOKENS)
    return as_bytes[:, :length].astype(np.int32)


def prompt_tokens(request: Recorded, index: int, scale: float = 1.0) -> Int32[ndarray, " tokens"]:
    """The prompt as byte tokens.

    Args:
        request: of a trace.
        index: its place in the trace; a tail that no id covers is made from it, and so is its own.
        scale: in (0, 1].

    Returns:
        int32 [scaled length, at least 1], in 0..255.

    Raises:
        UserError: a scale that does not fit.
    """
    unit, kept = request.block_size, scaled_block(request.block_size, scale)
    if request.text is not None:
        places = np.arange(request.total_tokens) % unit
        if kept < unit:
            whole = request.total_tokens // unit * unit
            rest = scaled_length(request.total_tokens - whole, unit, kept)
            keep = (places < kept) & ((np.arange(request.total_tokens) < whole) | (places < rest))
            shrunk = request.text[keep]
        else:
            shrunk = request.text
        return shrunk.astype(np.int32) if len(shrunk) else request.text[:1].astype(np.int32)
    assert request.ids is not None
    keys = request.ids.astype(np.uint64)
    if len(keys) * unit < request.total_tokens:
        keys = np.append(keys, np.uint64(index) | _TAIL)
    length = max(1, scaled_length(request.total_tokens, unit, kept))
    return block_tokens(keys, kept).reshape(-1)[:length]


def trace_requests(
    recorded: Iterable[Recorded], block_size: int | None = None, scale: float = 1.0
) -> list[TraceRequest]:
    """Requests as the simulator takes them.

    Args:
        recorded: requests in order of arrival.
        block_size: blocks of this many tokens, keyed by their content; None takes the trace's own
          blocks, whose ids are the keys and whose prompts then need no tokens.
        scale: shrinks the prompts, with `block_size` only.

    Returns:
        One `TraceRequest` each, with tokens where `block_size` was given.

    Raises:
        UserError: the trace has text and no block size was given.
    """
    found = list(recorded)
    if block_size is None:
        return [_by_id(index, request) for index, request in enumerate(found)]
    known: dict[bytes, int] = {}  # block content -> key, numbered by first appearance
    return [
        _by_content(index, request, block_size, scale, known) for index, request in enumerate(found)
    ]


def _by_id(index: int, request: Recorded) -> TraceRequest:
    if request.ids is None:
        raise UserError("the trace has text and no blocks of its own: give a block size")
    return TraceRequest(
        index=index,
        arrival_s=request.arrival_s,
        session=request.session,
        total_tokens=request.total_tokens,
        output_tokens=request.output_tokens,
        block_size=request.block_size,
        block_keys=request.ids[: request.total_tokens // request.block_size],
        boundaries=request.boundaries,
    )


def _by_content(
    index: int, request: Recorded, block_size: int, scale: float, known: dict[bytes, int]
) -> TraceRequest:
    tokens = prompt_tokens(request, index, scale)
    data = tokens.astype(np.uint8).tobytes()
    keys = [
        known.setdefault(data[start : start + block_size], len(known))
        for start in range(0, len(data) - block_size + 1, block_size)
    ]
    kept = scaled_block(request.block_size, scale)
    places = (scaled_length(place, request.block_size, kept) for place in request.boundaries)
    return TraceRequest(
        index=index,
        arrival_s=request.arrival_s,
        session=request.session,
        total_tokens=len(tokens),
        output_tokens=request.output_tokens,
        block_size=block_size,
        block_keys=np.array(keys, dtype=np.int64),
        boundaries=tuple(dict.fromkeys(places)),
        tokens=tokens,
    )
