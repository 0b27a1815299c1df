"""Small random traces for tests: few symbols, so that prompts share prefixes often."""

import numpy as np
from hypothesis import strategies as st

from planner.trace import TraceRequest


def make_trace(prompts: list[tuple[str, int]], block_size: int = 4) -> list[TraceRequest]:
    """Requests whose blocks are the letters of a word, with some tokens of a further block."""
    return [
        TraceRequest(
            index=index,
            arrival_s=float(index),
            session=word[:1],
            total_tokens=len(word) * block_size + extra,
            output_tokens=1,
            block_size=block_size,
            block_keys=np.array([ord(letter) for letter in word], dtype=np.int64),
        )
        for index, (word, extra) in enumerate(prompts)
    ]


def word(request: TraceRequest) -> str:
    """The letters of a prompt's full blocks."""
    return "".join(map(chr, request.block_keys.tolist()))


def longest_shared(prompt: str, others: list[str]) -> int:
    """Letters that a word shares with the start of any other."""
    return max(
        (n for n in range(len(prompt) + 1) if any(o.startswith(prompt[:n]) for o in others)),
        default=0,
    )


@st.composite
def traces(draw: st.DrawFn, max_requests: int = 6, max_blocks: int = 4) -> list[TraceRequest]:
    """A few prompts over two letters, each a whole number of blocks or some tokens more."""
    words = st.text("ab", min_size=1, max_size=max_blocks)
    prompt = st.tuples(words, st.integers(0, 3))
    return make_trace(draw(st.lists(prompt, min_size=1, max_size=max_requests)))
