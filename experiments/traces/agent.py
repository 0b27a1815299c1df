"""Agent traces with full text: one request a line, prompts as text, tokens are the UTF-8 bytes."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from experiments.traces.fields import Fields
from experiments.traces.recorded import Recorded

UNIT = 512  # text is shrunk in units of this many tokens


def read_agent(lines: Iterable[Fields]) -> list[Recorded]:
    """Read an agent trace with full text.

    Args:
        lines: {"timestamp": us, "input", "output", "session_id"} each, in any order.

    Returns:
        Requests in order of arrival, with the ends of earlier prompts that they continue as
        message boundaries. A request with an empty prompt asks for nothing and is left out.

    Raises:
        UserError: a field that is missing or wrong.
    """
    rows = []
    for line in lines:
        text = np.frombuffer(_bytes(line.text("input")), dtype=np.uint8)
        output_tokens = len(_bytes(line.text("output")))
        row = (line.integer("timestamp", 0), line.text("session_id"), text, output_tokens)
        if text.size:
            rows.append(row)
    rows.sort(key=lambda row: row[0])
    last: dict[str, Recorded] = {}
    found = []
    for microseconds, session, text, output_tokens in rows:
        request = Recorded(
            arrival_s=(microseconds - rows[0][0]) / 1e6,
            session=session,
            total_tokens=len(text),
            output_tokens=output_tokens,
            block_size=UNIT,
            text=text,
            boundaries=_boundaries(last.get(session), text),
        )
        last[session] = request
        found.append(request)
    return found


def _bytes(text: str) -> bytes:
    """UTF-8; half a surrogate pair, which JSON can hold, is kept as three bytes."""
    return text.encode(errors="surrogatepass")


def _boundaries(before: Recorded | None, text: UInt8[ndarray, " total"]) -> tuple[int, ...]:
    """Message starts known from the session's last prompt, as far as the two agree."""
    if before is None or before.text is None:
        return ()
    shorter = min(len(before.text), len(text))
    differs = np.flatnonzero(before.text[:shorter] != text[:shorter])
    shared = int(differs[0]) if differs.size else shorter
    kept = [place for place in before.boundaries if place <= shared]
    if shared == before.total_tokens and shared not in kept:
        kept.append(shared)
    return tuple(kept)
