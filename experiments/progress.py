"""Progress of a sweep on standard error: a bar on a terminal, a line a cell elsewhere."""

import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

Row = TypeVar("Row")


class SweepProgress:
    """Counts the requests of the cells that are still to run; use as a context manager.

    Args:
        cells: how many cells will run.
        requests: how many requests each has.
        unit: what is counted, where it is not requests.
    """

    def __init__(self, cells: int, requests: int, unit: str = "requests") -> None:
        self.cells, self.requests, self.done = cells, requests, 0
        self.console = Console(stderr=True, highlight=False)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self.task: TaskID = self.bar.add_task("", total=cells * requests)
        self.label, self.started_s = "", 0.0

    def __enter__(self) -> "SweepProgress":
        """Show the bar."""
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        self.bar.stop()

    def start_cell(self, label: str) -> None:
        """Name the cell that runs now.

        Args:
            label: a few words.
        """
        self.label, self.started_s = label, time.perf_counter()
        self.bar.update(self.task, description=label)

    def count(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Pass rows on and count each as one request.

        Args:
            rows: of a cell.

        Yields:
            The rows.
        """
        for row in rows:
            self.bar.advance(self.task)
            yield row

    def end_cell(self, took_s: float | None = None) -> None:
        """Count one cell; where there is no terminal, say so.

        Args:
            took_s: seconds that the cell took, where it ran elsewhere.
        """
        self.done += 1
        if not self.console.is_terminal:
            took_s = time.perf_counter() - self.started_s if took_s is None else took_s
            self.console.print(f"[{self.done}/{self.cells}] {self.label}: {took_s:.1f} s")
