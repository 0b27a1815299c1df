"""Reading JSON files that may be wrong, with errors that say where and what was expected."""

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from experiments.errors import UserError

MAX_ID = 2**31 - 1


def read_text(path: Path) -> str:
    """Read a text file, unpacking it where its name ends in .gz.

    Args:
        path: the file.

    Returns:
        Its whole content.

    Raises:
        UserError: it cannot be read, is cut off, is no gzip file or is not UTF-8.
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        return data.decode()
    except EOFError as error:
        raise UserError(f"{path}: the gzip file is cut off before its end") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: not a whole gzip file ({error})") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: expected UTF-8 text, got {error.reason}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def json_lines(path: Path, text: str) -> Iterator["Fields"]:
    """Parse a text of one JSON object a line; empty lines are passed over.

    Args:
        path: named in errors.
        text: the content.

    Yields:
        One object a line.

    Raises:
        UserError: a line is not a JSON object.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            try:
                value = json.loads(line)
            except ValueError as error:
                raise UserError(f"{where}: expected one JSON object a line ({error})") from error
            yield as_object(value, where)


def as_object(value: Any, where: str) -> "Fields":
    """Take a JSON value as an object.

    Args:
        value: any JSON value.
        where: file, line and path in the line, for errors.

    Returns:
        The object with access to its fields.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected a JSON object, got {_kind(value)}")
    return Fields(value, where)


@dataclass(frozen=True)
class Fields:
    """A JSON object and where it stands.

    Attributes:
        values: the object.
        where: "file:line" and the path within the line.
    """

    values: dict[str, Any]
    where: str

    def _get(self, name: str, expected: str) -> Any:
        if name not in self.values:
            raise UserError(f"{self.where}: lacks {name!r}, expected {expected}")
        return self.values[name]

    def wrong(self, name: str, expected: str) -> UserError:
        """The error for a field that is not what was expected.

        Args:
            name: the field.
            expected: in words.

        Returns:
            An error to raise.
        """
        return UserError(
            f"{self.where}: {name}: expected {expected}, got {_kind(self.values[name])}"
        )

    def integer(self, name: str, minimum: int) -> int:
        """An integer of at least `minimum`."""
        expected = f"an integer of at least {minimum}"
        value = self._get(name, expected)
        if type(value) is not int or value < minimum:
            raise self.wrong(name, expected)
        return value

    def seconds(self, name: str) -> float:
        """A time: a finite number that is not negative."""
        expected = "a number of at least 0"
        value = self._get(name, expected)
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise self.wrong(name, expected)
        return float(value)

    def text(self, name: str) -> str:
        """A string."""
        value = self._get(name, "a string")
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def items(self, name: str, expected: str) -> list[Any]:
        """A list of anything."""
        value = self._get(name, expected)
        if not isinstance(value, list):
            raise self.wrong(name, expected)
        return value

    def ids(self, name: str) -> Int64[ndarray, " blocks"]:
        """A list of block ids.

        Ids are numbered by first appearance and an id stands for a block and all before it, so
        they ascend in every prompt.
        """
        expected = f"a list of integers in 0..{MAX_ID}"
        values = self.items(name, expected)
        for place, value in enumerate(values):
            if type(value) is not int or not 0 <= value <= MAX_ID:
                raise UserError(
                    f"{self.where}: {name}[{place}]: expected an integer in 0..{MAX_ID}, "
                    f"got {_kind(value)}"
                )
        ids = np.array(values, dtype=np.int64)
        falls = np.flatnonzero(ids[1:] <= ids[:-1])
        if falls.size:
            place = int(falls[0]) + 1
            raise UserError(
                f"{self.where}: {name}[{place}]: ids out of order, expected more than "
                f"{ids[place - 1]}, got {ids[place]}"
            )
        return ids


def _kind(value: Any) -> str:
    """What a wrong value is, short."""
    if isinstance(value, str):
        return f"the string {value[:30]!r}"
    if isinstance(value, (list, dict)):
        return f"a {'list' if isinstance(value, list) else 'JSON object'} of {len(value)}"
    return json.dumps(value)


def check_chains(prompts: list[tuple[str, Int64[ndarray, " blocks"]]]) -> None:
    """Check that an id always follows the same id: equal ids mean equal prefixes.

    Args:
        prompts: (where, ids) of each prompt that shares one numbering, in order of arrival.

    Raises:
        UserError: names the first prompt that breaks a chain.
    """
    largest = max((int(ids[-1]) for _, ids in prompts if ids.size), default=0)
    before = np.zeros(largest + 1, dtype=np.int64)  # id -> the id before it, plus 2; 0 = not seen
    for where, ids in prompts:
        follows = np.concatenate([[-1], ids[:-1]]) + 2
        known = before[ids]
        broken = np.flatnonzero((known != 0) & (known != follows))
        if broken.size:
            place = int(broken[0])
            told = [_after(int(value)) for value in (known[place], follows[place])]
            raise UserError(
                f"{where}: ids out of order: block {place} has id {ids[place]}, which came "
                f"{told[0]} in an earlier request and comes {told[1]} here"
            )
        before[ids] = follows


def _after(stored: int) -> str:
    return "first" if stored == 1 else f"after id {stored - 2}"
