"""Run folders: config.json, metrics.jsonl, and which cells of a sweep are finished.

    runs/ablate_interval-20250131-142530/
        config.json     experiment, configuration, environment, commits that wrote here
        metrics.jsonl   one line a measurement; plots and tables read nothing else
        summary.csv, *.png

A *cell* is one point of a sweep. It is known by a key made from its parameters, its lines carry
that key and how many lines the cell has, and it is finished when all of them are there. So a run
that was killed leaves a readable file, and the next run with the same folder and configuration
drops the rest of the cell that was under way, says so, and goes on.
"""

import fcntl
import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from experiments.differences import as_text, changed
from experiments.environment import describe_environment, git_state
from experiments.errors import UserError
from experiments.files import replace_file

CONFIG = "config.json"
METRICS = "metrics.jsonl"
FORMAT = 1


def cell_key(parameters: Mapping[str, Any]) -> str:
    """Key of a cell, by content: equal parameters in any order give equal keys in any process.

    Args:
        parameters: JSON values; finite or infinite floats, strings, ints, bools, None, lists.

    Returns:
        16 hex digits.

    Raises:
        TypeError: a value that JSON cannot hold.
    """
    text = json.dumps(_json_value(dict(parameters)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _json_value(value: Any) -> Any:
    """JSON has no infinity and no tuple; None stands for unlimited."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        return _json_value(value.item())  # a numpy scalar
    return value


def read_rows(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the lines of the finished cells of a run folder.

    Args:
        folder: a run folder; it may belong to a run that is still going.

    Returns:
        One dictionary a line, in the order of writing; lines of unfinished cells are left out.

    Raises:
        UserError: no such file, or a line other than the last that is not a JSON object.
    """
    rows, _ = _read(Path(folder) / METRICS)
    return _finished(rows)[0]


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a run folder's config.json.

    Args:
        folder: a run folder.

    Returns:
        Its content: experiment, config, environment, commits, created, format.

    Raises:
        UserError: the file is not there or is not what this program writes.
    """
    path = Path(folder) / CONFIG
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{folder}: expected a run folder; {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object, got a {type(content).__name__}")
    missing = {"experiment", "config", "environment", "format"} - set(content)
    if missing:
        raise UserError(f"{path}: lacks {', '.join(sorted(missing))}")
    return content


def _read(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """All whole lines, and whether a torn last line was left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path}: not there") from error
    lines = data.split(b"\n")
    torn = bool(lines.pop())  # what follows the last newline was cut off in writing
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: expected a JSON object ({error})") from error
        if not isinstance(row, dict) or "cell" not in row or "cell_rows" not in row:
            raise UserError(f"{path}:{number}: expected an object with 'cell' and 'cell_rows'")
        rows.append(row)
    return rows, torn


def _finished(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(Rows of finished cells, other rows)."""
    found = Counter(row["cell"] for row in rows)
    done = [row for row in rows if found[row["cell"]] == row["cell_rows"]]
    rest = [row for row in rows if found[row["cell"]] != row["cell_rows"]]
    return done, rest


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """Name what differs between what a folder holds and what is asked for.

    Args:
        old, new: JSON values.
        name: dotted path of both, put in front of each difference.

    Returns:
        One text a difference.

    >>> differences({"tile": 64, "seed": 0}, {"tile": 128, "seed": 0})
    ['tile: 64 there, 128 asked for']
    """
    return [
        f"{key}: {as_text(there)} there, {as_text(asked)} asked for"
        for key, there, asked in changed(old, new, name)
    ]


@dataclass
class RunFolder:
    """One experiment's folder, open for writing by one process; use as a context manager.

    Attributes:
        path: the folder.
        notices: what the user should know about what was found there, one line each.
    """

    path: Path
    notices: list[str] = field(default_factory=list)
    _done: set[str] = field(default_factory=set)
    _metrics: Any = None
    _lock: Any = None

    @staticmethod
    def open(
        out: str | os.PathLike[str] | None,
        experiment: str,
        config: Mapping[str, Any],
        environment: Mapping[str, Any] | None = None,
        runs: str | os.PathLike[str] = "runs",
    ) -> "RunFolder":
        """Make a run folder, or go on with one that holds the same experiment and configuration.

        Args:
            out: the folder; None makes a dated one under `runs`.
            experiment: name of the experiment's module.
            config: everything that the figures depend on, as JSON values.
            environment: as `describe_environment` gives it, by default on this machine.
            runs: where dated folders go.

        Returns:
            The folder, with config.json written and metrics.jsonl ready to be appended to.

        Raises:
            UserError: the folder holds another experiment or configuration or figures from another
                environment, holds files but is no run folder, is in use, or cannot be written.
        """
        path = Path(out) if out is not None else _dated(Path(runs), experiment)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--out {path}: cannot be made a folder ({error.strerror})") from error
        run = RunFolder(path)
        run._take_lock()
        try:
            run._write_config(
                experiment,
                _json_value(dict(config)),
                _json_value(
                    dict(environment if environment is not None else describe_environment())
                ),
            )
            run._open_metrics()
        except BaseException:
            run.close()
            raise
        return run

    def __enter__(self) -> "RunFolder":
        """Give the folder itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the folder, also after an error."""
        self.close()

    def close(self) -> None:
        """Close the files and let other processes in; harmless when done twice."""
        for file in (self._metrics, self._lock):
            if file is not None:
                file.close()
        self._metrics = self._lock = None

    def is_finished(self, parameters: Mapping[str, Any]) -> bool:
        """Whether an earlier run, or this one, finished the cell.

        Args:
            parameters: the cell's.

        Returns:
            True where metrics.jsonl holds all of its lines.
        """
        return cell_key(parameters) in self._done

    def unfinished(self, cells: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The cells that are still to run, in order.

        Args:
            cells: parameters of each cell.

        Returns:
            Those that are not finished.
        """
        return [cell for cell in cells if not self.is_finished(cell)]

    def write_cell(
        self, parameters: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], count: int
    ) -> None:
        """Run and record one cell: takes lines from an iterator and writes each as it comes.

        Args:
            parameters: the cell's, JSON values; repeated in each of its lines.
            rows: the measurements, e.g. a generator that runs them.
            count: how many there will be.

        Raises:
            ValueError: the cell is finished, a row repeats a parameter's name, or `rows` gave more
                or fewer than `count`.
        """
        key = cell_key(parameters)
        if key in self._done:
            raise ValueError(f"the cell {dict(parameters)} is finished")
        head = {"cell": key, "cell_rows": count, **parameters}
        written = 0
        for row in rows:
            repeated = sorted(set(row) & set(head))
            if repeated:
                raise ValueError(f"a row repeats the cell's parameters: {', '.join(repeated)}")
            self._append(_json_value({**head, **row}))
            written += 1
        if written != count:
            raise ValueError(f"the cell was announced with {count} rows and had {written}")
        self._done.add(key)

    def _append(self, row: dict[str, Any]) -> None:
        self._metrics.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._metrics.flush()
        os.fsync(self._metrics.fileno())

    def _take_lock(self) -> None:
        self._lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UserError(f"--out {self.path}: in use by another running experiment") from error

    def _write_config(self, experiment: str, config: Any, environment: Any) -> None:
        commit = git_state(Path(__file__).parent)
        if not (self.path / CONFIG).exists():
            others = sorted(p.name for p in self.path.iterdir() if p.name != ".lock")
            if others:
                raise UserError(
                    f"--out {self.path}: holds {others[0]} but no {CONFIG}; "
                    "give an empty or new folder"
                )
            content = {
                "format": FORMAT,
                "experiment": experiment,
                "config": config,
                "environment": environment,
                "commits": [commit],
                "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            }
            replace_file(self.path / CONFIG, json.dumps(content, indent=2) + "\n")
            return
        there = read_config(self.path)
        for part, new in (("format", FORMAT), ("experiment", experiment), ("config", config)):
            _refuse(
                self.path, part, differences(there[part], new, "" if part == "config" else part)
            )
        _refuse(self.path, "environment", differences(there["environment"], environment))
        if commit not in there["commits"]:
            self.notices.append(
                "the code has changed since this run was started; going on with both"
            )
            there["commits"].append(commit)
            replace_file(self.path / CONFIG, json.dumps(there, indent=2) + "\n")

    def _open_metrics(self) -> None:
        path = self.path / METRICS
        rows, torn = _read(path) if path.exists() else ([], False)
        done, rest = _finished(rows)
        if torn:
            self.notices.append(f"dropped a torn last line of {METRICS}")
        if rest:
            cells = len({row["cell"] for row in rest})
            self.notices.append(
                f"dropped {len(rest)} lines of {cells} unfinished cells; they run again"
            )
        if torn or rest:
            replace_file(path, "".join(json.dumps(row) + "\n" for row in done))
        self._done = {row["cell"] for row in done}
        self._metrics = path.open("ab")


def _refuse(path: Path, part: str, found: list[str]) -> None:
    if found:
        raise UserError(
            f"--out {path}: holds a run of another {part} ({'; '.join(found)}); give another folder"
        )


def _dated(runs: Path, experiment: str) -> Path:
    """A folder that is not there yet, named by experiment and time."""
    name = f"{experiment}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, again = runs / name, 1
    while path.exists():
        again += 1
        path = runs / f"{name}-{again}"
    return path
