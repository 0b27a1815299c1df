"""Which format a trace file has, and reading it."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from experiments.errors import UserError
from experiments.traces.agent import read_agent
from experiments.traces.fields import Fields, as_object, json_lines, read_text
from experiments.traces.mooncake import read_mooncake
from experiments.traces.recorded import Recorded
from experiments.traces.weka import read_weka

Reader = Callable[[Iterable[Fields]], list[Recorded]]
FORMATS: tuple[tuple[str, frozenset[str], Reader], ...] = (
    ("Mooncake JSONL", frozenset({"hash_ids", "input_length"}), read_mooncake),
    ("WEKA session", frozenset({"requests", "block_size"}), read_weka),
    ("agent JSONL with text", frozenset({"input", "session_id"}), read_agent),
)


def read_trace(path: Path, max_requests: int | None = None) -> list[Recorded]:
    """Read a trace; its format is seen from the first object's fields.

    Args:
        path: Mooncake JSONL, a WEKA session (JSON) or sessions (JSONL), or agent JSONL with full
          text; plain or .gz.
        max_requests: keep the first ones by arrival.

    Returns:
        Requests in order of arrival.

    Raises:
        UserError: with file, line and what was expected.
    """
    if max_requests is not None and max_requests < 1:
        raise UserError(f"--max-requests {max_requests}: expected at least 1")
    objects = _objects(path, read_text(path))
    first = next(iter(objects), None)
    if first is None:
        raise UserError(f"{path}: holds no request")
    for _, names, read in FORMATS:
        if names <= set(first.values):
            found = read(objects)
            if not found:
                raise UserError(f"{path}: holds no request")
            return found[:max_requests]
    known = "; ".join(f"{name}: {', '.join(sorted(names))}" for name, names, _ in FORMATS)
    raise UserError(f"{first.where}: no known trace format; expected the fields of one of {known}")


class _Lines:
    """The objects of a file, parsed anew for each pass so that the file need not fit as objects."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.text = path, text

    def __iter__(self) -> Iterator[Fields]:
        return json_lines(self.path, self.text)


def _objects(path: Path, text: str) -> Iterable[Fields]:
    """One object a line, or one object in the whole file."""
    first_line = text.lstrip().partition("\n")[0]
    try:
        json.loads(first_line)
    except ValueError as error:
        if not first_line.startswith("{") or _is_lines(text):
            return _Lines(path, text)
        try:
            return [as_object(json.loads(text), str(path))]
        except ValueError as whole:
            line = getattr(whole, "lineno", 1)
            raise UserError(f"{path}:{line}: expected JSON ({whole})") from error
    return _Lines(path, text)


def _is_lines(text: str) -> bool:
    """Whether the second line starts an object too: then the first line is a broken one."""
    lines = [line for line in text.split("\n") if line.strip()]
    return len(lines) < 2 or lines[1].startswith("{")
