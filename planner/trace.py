"""What a simulator and an engine both need to know about a request of a recorded workload."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

_SCOPE_BITS = 31


@dataclass(frozen=True, eq=False)
class TraceRequest:
    """One request: when it came, how long its prompt was and which blocks the prompt is made of.

    Two prompts share a prefix as far as their `block_keys` agree from the first one on, so a key
    may stand for a block's content or for the content and everything before it. Keys are compared
    across sessions: a format whose ids are local to a session goes through `scoped_keys` first.

    Args:
        index: place in the trace, from 0, without gaps.
        arrival_s: seconds since the start of the trace.
        session: name of the conversation that the request belongs to.
        total_tokens: prompt length.
        output_tokens: tokens generated in answer.
        block_size: tokens a key stands for.
        block_keys: int64 [total_tokens // block_size], one key per full block of the prompt.
        boundaries: ascending positions in tokens at which a message starts, within the prompt.
        tokens: the prompt itself, int32 [total_tokens], where the trace has text.

    Raises:
        ValueError: a length, key count or position that does not fit the others.
    """

    index: int
    arrival_s: float
    session: str
    total_tokens: int
    output_tokens: int
    block_size: int
    block_keys: Int64[ndarray, " blocks"] = field(repr=False)
    boundaries: tuple[int, ...] = ()
    tokens: ndarray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check that lengths, keys and positions fit each other."""
        where = f"request {self.index} of session {self.session!r}"
        if self.block_size <= 0:
            raise ValueError(f"{where}: block_size must be positive, got {self.block_size}")
        if self.total_tokens <= 0 or self.output_tokens < 0:
            raise ValueError(
                f"{where}: expected total_tokens > 0 and output_tokens >= 0, "
                f"got {self.total_tokens} and {self.output_tokens}"
            )
        keys = self.block_keys
        if not isinstance(keys, ndarray) or keys.dtype != np.int64 or keys.ndim != 1:
            raise ValueError(f"{where}: block_keys must be a one-dimensional int64 array")
        full_blocks = self.total_tokens // self.block_size
        if len(keys) != full_blocks:
            raise ValueError(
                f"{where}: expected one key per full block, {full_blocks} for "
                f"{self.total_tokens} tokens of block size {self.block_size}, got {len(keys)}"
            )
        if any(b <= a for a, b in zip((-1, *self.boundaries), self.boundaries, strict=False)) or (
            self.boundaries and self.boundaries[-1] > self.total_tokens
        ):
            raise ValueError(
                f"{where}: boundaries must ascend within 0..{self.total_tokens}, "
                f"got {self.boundaries}"
            )
        if self.tokens is not None and len(self.tokens) != self.total_tokens:
            raise ValueError(
                f"{where}: expected {self.total_tokens} tokens, got {len(self.tokens)}"
            )

    @property
    def match_limit_blocks(self) -> int:
        """Blocks that a match may cover: at least one token is always computed."""
        return (self.total_tokens - 1) // self.block_size


def scoped_keys(ids: Int64[ndarray, " blocks"], scope: int) -> Int64[ndarray, " blocks"]:
    """Keys for ids that are local to a scope (a session), distinct from those of any other scope.

    Args:
        ids: int64 [blocks], each in 0..2**31 - 1.
        scope: number of the scope, 0..2**32 - 1.

    Returns:
        int64 [blocks].

    Raises:
        ValueError: an id or the scope is out of range.

    >>> scoped_keys(np.array([1, 2]), 0).tolist(), scoped_keys(np.array([1]), 1).tolist()
    ([1, 2], [2147483649])
    """
    if not 0 <= scope < 1 << 32:
        raise ValueError(f"scope must lie in 0..2**32 - 1, got {scope}")
    if ids.size and (ids.min() < 0 or ids.max() >= 1 << _SCOPE_BITS):
        raise ValueError(f"ids must lie in 0..2**31 - 1, got {ids.min()}..{ids.max()}")
    return np.int64(scope << _SCOPE_BITS) | ids.astype(np.int64, copy=False)


def check_trace(requests: Sequence[TraceRequest]) -> None:
    """Check what a replay relies on: indices 0, 1, 2, ..., times that never fall, one block size.

    Raises:
        ValueError: names the first request that breaks the order.
    """
    for position, request in enumerate(requests):
        if request.index != position:
            raise ValueError(
                f"trace out of order: expected request {position} at place {position}, "
                f"got request {request.index}"
            )
        before = requests[position - 1] if position else request
        if request.arrival_s < before.arrival_s:
            raise ValueError(
                f"trace out of order: request {position} arrives at {request.arrival_s} s, "
                f"before request {position - 1} at {before.arrival_s} s"
            )
        if request.block_size != before.block_size:
            raise ValueError(
                f"request {position} has block size {request.block_size}, "
                f"the ones before {before.block_size}"
            )
