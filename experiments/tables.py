"""Tables on the terminal and in CSV files."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table on standard output; columns of numbers are aligned right.

    Args:
        title: one line above the table.
        header: column names; a newline splits a long one.
        rows: cells; None prints as a dash.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column, name in enumerate(header):
        cells = [row[column] for row in rows]
        numbers = all(is_number(cell) for cell in cells)
        table.add_column(name, justify="right" if numbers else "left", vertical="bottom")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    Console().print(table)


def is_number(cell: Any) -> bool:
    """Whether a table cell shows a quantity: a number, a number with a unit, or nothing."""
    return cell is None or not isinstance(cell, str) or cell[:1].isdigit() or cell[:1] in "-+"


def write_csv(path: str | os.PathLike[str], rows: Sequence[dict[str, Any]]) -> None:
    """Write dictionaries as CSV, with every name that occurs as a column.

    Args:
        path: the file; replaced.
        rows: names to values; None and missing ones are left empty.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    with Path(path).open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """A table as the lines of a Markdown file, with an empty one at the end.

    Args:
        header: column names, broken over lines or not.
        rows: cells; None is left empty.

    Returns:
        The lines.

    >>> markdown_table(["pair"], [["last|match"], [None]])
    ['| pair |', '|---|', '| last\\\\|match |', '|  |', '']
    """

    def line(cells: Sequence[Any]) -> str:
        texts = ("" if cell is None else str(cell).replace("|", "\\|") for cell in cells)
        return f"| {' | '.join(texts)} |"

    return [
        line([one_line(name) for name in header]),
        "|" + "---|" * len(header),
        *map(line, rows),
        "",
    ]


def one_line(name: str) -> str:
    """A column name that is broken over lines for a narrow table, on one line.

    >>> one_line("snap-\\nshots"), one_line("best\\npublished")
    ('snapshots', 'best published')
    """
    return name.replace("-\n", "").replace("\n", " ")


def scalars(row: dict[str, Any]) -> dict[str, Any]:
    """A row of figures for CSV, without its lists and objects."""
    return {name: value for name, value in row.items() if not isinstance(value, (list, dict))}


def print_lines(text: str) -> None:
    """Print a paragraph, wrapped like the tables."""
    Console(highlight=False).print(text, markup=False)


def seconds(value: float | None) -> str | None:
    """A time with three digits and its unit.

    >>> seconds(0.01234), seconds(1.5), seconds(75.0)
    ('12.3 ms', '1.50 s', '75.0 s')
    """
    if value is None:
        return None
    scaled, unit = (value * 1e3, "ms") if value < 1 else (value, "s")
    return f"{scaled:.3g} {unit}" if scaled >= 100 else f"{scaled:#.3g} {unit}"


def megabytes(value_bytes: float | None) -> str | None:
    """A number of bytes in MB (10^6), two decimals below ten.

    >>> megabytes(1_234_567), megabytes(123_456_789)
    ('1.23', '123.5')
    """
    if value_bytes is None:
        return None
    scaled = value_bytes / 1e6
    return f"{scaled:.2f}" if scaled < 10 else f"{scaled:.1f}"
