"""Two run folders side by side: what changed, which figures differ, and by more than their spread?

    python -m experiments.compare_runs runs/ablate_interval-20250131-142530 runs/ablate_interval-...

Hardware: none. Expected time: a second.
Expected result: a table of what differs in configuration and environment, and one of the cells
whose figures differ. A difference is "within" the spread where the ranges of the repeats of both
runs overlap and "beyond" it where they do not; counts that never varied need no spread. "once" says
that neither run repeated the measurement, so that nothing can be said.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from experiments.differences import as_text, changed
from experiments.errors import UserError, run_main
from experiments.run_folder import cell_key, read_config, read_rows
from experiments.tables import print_table, seconds, write_csv

Row = dict[str, Any]
Verdict = Literal["same", "within", "beyond", "once"]
REPEATS = ("repeat", "round")
"""Names of fields that count repeated measurements of one thing."""
_HEAD = ("cell", "cell_rows")


@dataclass(frozen=True)
class CompareRuns:
    """Compare two run folders of one experiment."""

    left: Annotated[Path, tyro.conf.Positional]
    """The run to compare with."""
    right: Annotated[Path, tyro.conf.Positional]
    """The run that is compared."""
    all: bool = False
    """Show also what differs within the spread."""
    csv: Path | None = None
    """Write every figure of both runs to this file."""


@dataclass(frozen=True)
class Difference:
    """One figure of one cell in both runs.

    Attributes:
        cell: name to value of what tells the cell from others.
        measure: name of the figure.
        left, right: its values, one a repeat, in the two runs.
        count: whether it is a whole number in every row of both runs.
    """

    cell: Mapping[str, Any]
    measure: str
    left: tuple[float, ...]
    right: tuple[float, ...]
    count: bool

    @property
    def verdict(self) -> Verdict:
        """Whether the two differ, and by more than the repeats do among themselves."""
        if set(self.left) == set(self.right) and len(set(self.left)) == 1:
            return "same"
        if max(len(self.left), len(self.right)) == 1 and not self.count:
            return "once"
        apart = min(self.left) > max(self.right) or min(self.right) > max(self.left)
        return "beyond" if apart else "within"

    @property
    def change(self) -> float | None:
        """Relative change of the median; None where the first is 0."""
        before, after = statistics.median(self.left), statistics.median(self.right)
        return (after - before) / abs(before) if before else None


def parameters_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a row's cell: the leading fields from which its key is made.

    Args:
        row: a line of metrics.jsonl.

    Returns:
        Name to value.

    Raises:
        UserError: no leading fields give the key, so other code wrote the line.
    """
    names = [name for name in row if name not in _HEAD]
    for count in range(len(names) + 1):
        found = {name: row[name] for name in names[:count]}
        if cell_key(found) == row["cell"]:
            return found
    raise UserError(f"cell {row['cell']}: its key does not come from its parameters")


def samples(rows: Iterable[Row]) -> dict[str, dict[str, list[float]]]:
    """The figures of a run by cell: one value a repeat, means over the requests of a repeat.

    Args:
        rows: of metrics.jsonl.

    Returns:
        Cell (its parameters but the repeat, and a request that has a name, as JSON) to measure to
        values.
    """
    grouped: dict[str, dict[tuple[Any, ...], list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        parameters = parameters_of(row)
        cell = {name: value for name, value in parameters.items() if name not in REPEATS}
        if isinstance(row.get("request"), str):
            cell["request"] = row["request"]
        repeat = tuple(row.get(name) for name in REPEATS)
        measures = {
            name: value
            for name, value in row.items()
            if name not in (*_HEAD, *REPEATS, *parameters, "request") and _is_number(value)
        }
        grouped[json.dumps(cell)][repeat].append(measures)
    return {
        cell: {
            name: [_mean(repeat, name) for repeat in repeats.values() if name in repeat[0]]
            for name in dict.fromkeys(n for repeat in repeats.values() for n in repeat[0])
        }
        for cell, repeats in grouped.items()
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _mean(rows: Sequence[Row], name: str) -> float:
    values = [row[name] for row in rows if row.get(name) is not None]
    return values[0] if len(values) == 1 else statistics.fmean(values)


def compare(left: Sequence[Row], right: Sequence[Row]) -> list[Difference]:
    """Pair the figures of two runs.

    Args:
        left, right: rows of metrics.jsonl.

    Returns:
        One entry a cell and measure that both runs have.
    """
    before, after = samples(left), samples(right)
    floats = {
        name for row in (*left, *right) for name, value in row.items() if isinstance(value, float)
    }
    return [
        Difference(
            json.loads(cell), name, tuple(values), tuple(after[cell][name]), name not in floats
        )
        for cell, measures in before.items()
        if cell in after
        for name, values in measures.items()
        if after[cell].get(name)
    ]


def only_in(left: Iterable[Row], right: Iterable[Row]) -> list[dict[str, Any]]:
    """Cells of the first run that the second does not have."""
    there = samples(right)
    return [json.loads(cell) for cell in samples(left) if cell not in there]


def run(options: CompareRuns) -> None:
    """Print what differs.

    Args:
        options: the two folders.

    Raises:
        UserError: no run folders, or runs of two experiments.
    """
    configs = [read_config(folder) for folder in (options.left, options.right)]
    experiments = [config["experiment"] for config in configs]
    if experiments[0] != experiments[1]:
        raise UserError(
            f"{options.left} is a run of {experiments[0]}, {options.right} of {experiments[1]}; "
            "expected two of one experiment"
        )
    rows = [read_rows(folder) for folder in (options.left, options.right)]
    _print_configs(*configs)
    for name, here, there in ((options.left, 0, 1), (options.right, 1, 0)):
        missing = only_in(rows[here], rows[there])
        if missing:
            cells = [json.loads(cell) for cell in samples(rows[here])]
            print(f"\nonly in {name}: {len(missing)} cells, such as {_name(missing[0], cells)}")
    found = compare(*rows)
    _print_differences(found, options.all)
    if options.csv is not None:
        try:
            write_csv(options.csv, [_csv_row(difference) for difference in found])
        except OSError as error:
            raise UserError(f"--csv {options.csv}: {error.strerror}") from error


def _print_configs(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    lines = [
        (part, *line)
        for part in ("config", "environment")
        for line in changed(left[part], right[part])
    ]
    lines += [
        ("code", *line) for line in changed({"commit": _commit(left)}, {"commit": _commit(right)})
    ]
    if lines:
        print_table(
            "What changed",
            ("", "name", "left", "right"),
            [list(map(as_text, line)) for line in lines],
        )
    else:
        print("Configuration, environment and commit are the same.")


def _commit(config: Mapping[str, Any]) -> str:
    return ", ".join(
        (commit["commit"] or "unknown")[:10] + ("+" if commit["dirty"] else "")
        for commit in config.get("commits", [])
    )


def _print_differences(found: Sequence[Difference], everything: bool) -> None:
    verdicts = [difference.verdict for difference in found]
    shown = [d for d in found if d.verdict in ("beyond", "once", *(("within",) * everything))]
    print(
        f"\n{len(found)} figures in both: {verdicts.count('same')} the same, "
        f"{verdicts.count('within')} differ within their spread, {verdicts.count('beyond')} beyond "
        f"it, {verdicts.count('once')} were measured once."
    )
    if not shown:
        return
    cells = [difference.cell for difference in found]
    for measure in dict.fromkeys(difference.measure for difference in shown):
        print_table(
            f"\n{measure}",
            ("cell", "left", "right", "change", "spread"),
            [
                (
                    _name(d.cell, cells),
                    _range(d.left, measure),
                    _range(d.right, measure),
                    None if d.change is None else f"{d.change:+.1%}",
                    d.verdict,
                )
                for d in shown
                if d.measure == measure
            ],
        )
    print("left, right: median over repeats ± half their range.")


def _name(cell: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> str:
    """The parameters in which cells differ."""
    telling = [
        f"{name} {'none' if value is None else value}"
        for name, value in cell.items()
        if any(other.get(name, value) != value or name not in other for other in cells)
    ]
    return ", ".join(telling) or "the only cell"


def _range(values: Sequence[float], measure: str) -> str:
    middle, half = statistics.median(values), (max(values) - min(values)) / 2
    show = seconds if measure.endswith("_s") and not measure.endswith("_per_s") else _number
    return f"{show(middle)} ± {show(half)}" if half else f"{show(middle)}"


def _number(value: float) -> str:
    """Whole numbers whole, others with four digits.

    >>> _number(1234567), _number(0.0123456), _number(1234.5)
    ('1,234,567', '0.01235', '1,234')
    """
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _csv_row(difference: Difference) -> Row:
    return {
        **difference.cell,
        "measure": difference.measure,
        "left": statistics.median(difference.left),
        "left_low": min(difference.left),
        "left_high": max(difference.left),
        "right": statistics.median(difference.right),
        "right_low": min(difference.right),
        "right_high": max(difference.right),
        "change": difference.change,
        "verdict": difference.verdict,
    }


def main() -> None:
    """Parse the command line and compare."""
    run(tyro.cli(CompareRuns, prog="python -m experiments.compare_runs", description=__doc__))


if __name__ == "__main__":
    run_main(main)
