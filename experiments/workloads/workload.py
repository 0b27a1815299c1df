"""A workload: requests in order, each a fresh prompt or the next turn of an earlier request."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int32
from numpy import ndarray


@dataclass(frozen=True, eq=False)
class Request:
    """One request.

    Attributes:
        session: name of the conversation.
        new_tokens: int32 [tokens]; what the user or a tool adds.
        output_tokens: how many tokens the model answers with; 0 where nobody reads the answer.
        after: index of the request that this one continues: its prompt and its answer come first.
          None starts from `new_tokens` alone. Two requests may continue the same one (a retry).
    """

    session: str
    new_tokens: Int32[ndarray, " tokens"] = field(repr=False)
    output_tokens: int = 0
    after: int | None = None


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival.

    Attributes:
        name: for tables and config.json.
        requests: the requests.

    Raises:
        ValueError: a request that continues a later one, or adds nothing.
    """

    name: str
    requests: tuple[Request, ...]

    def __post_init__(self) -> None:
        """Check the order."""
        for place, request in enumerate(self.requests):
            if request.after is not None and not 0 <= request.after < place:
                raise ValueError(
                    f"request {place} continues request {request.after}; expected an earlier one"
                )
            if request.new_tokens.size == 0 or request.output_tokens < 0:
                raise ValueError(f"request {place} adds no token or asks for a negative number")

    def digest(self) -> str:
        """Digest of everything that is asked, by content.

        Returns:
            16 hex digits.
        """
        found = hashlib.sha256()
        for request in self.requests:
            head = f"{request.session}|{request.after}|{request.output_tokens}|"
            found.update(head.encode())
            found.update(np.ascontiguousarray(request.new_tokens, dtype="<i4").tobytes())
        return found.hexdigest()[:16]

    def prompt(self, index: int, outputs: Sequence[ndarray]) -> Int32[ndarray, " tokens"]:
        """The prompt of a request, given what the model answered before.

        Args:
            index: of the request.
            outputs: int32 answers of the requests before it.

        Returns:
            int32 [tokens].
        """
        parts = []
        at: int | None = index
        while at is not None:
            parts.append(self.requests[at].new_tokens)
            at = self.requests[at].after
            if at is not None:
                parts.append(outputs[at])
        return np.concatenate(parts[::-1]).astype(np.int32)

    def prompt_lengths(self) -> list[int]:
        """Length of every prompt, in tokens; known before anything is answered."""
        lengths: list[int] = []
        for request in self.requests:
            before = 0
            if request.after is not None:
                before = lengths[request.after] + self.requests[request.after].output_tokens
            lengths.append(before + request.new_tokens.size)
        return lengths

    def longest(self) -> int:
        """Tokens of the longest prompt with its answer, at least one."""
        ends = zip(self.prompt_lengths(), self.requests, strict=True)
        return max(length + max(1, request.output_tokens) for length, request in ends)
