"""Tables of leave_one_out; reads config.json and metrics.jsonl only."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.policy_cells import PLACEMENTS
from experiments.policy_markdown import made_with, quoted, save_tables, traces_table, written_by
from experiments.policy_options import replay_words
from experiments.policy_standings import Pair, change, percent, title
from experiments.run_folder import read_config, read_rows
from experiments.tables import markdown_table, print_lines, print_table, scalars, write_csv

Row = dict[str, Any]
DEFAULTS = "defaults"
"""What the default constants are called among those that are tried."""
AT_LEAST = 0.15
"""A gain worth speaking of: what the sentence under the table counts."""


@dataclass(frozen=True)
class Judged:
    """One trace at its budget.

    Attributes:
        trace: its name.
        snapshots: the budget.
        matched: tokens that match, whatever the policy: keys and values have room without limit.
        own: tokens replayed under each set of constants, by its name.
        published: tokens replayed by each published pair that is known.
        ran: how many of these pairs this run replayed.
        elsewhere: pairs that earlier comparisons ran, of which the best are among these.
    """

    trace: str
    snapshots: int
    matched: int
    own: dict[str, int]
    published: dict[Pair, int]
    ran: int
    elsewhere: int

    @property
    def best(self) -> Pair:
        """The published pair that replays least."""
        return min(self.published, key=lambda pair: self.published[pair])

    @property
    def worst(self) -> str:
        """The constants that replay most."""
        return max(self.own, key=lambda name: self.own[name])

    def share(self, replayed: int) -> float:
        """Replayed tokens as a share of those that match."""
        return replayed / max(self.matched, 1)

    def gain(self, name: str) -> float | None:
        """The share of the best published pair's replay that constants spare; None of nothing."""
        least = self.published[self.best]
        return 1 - self.own[name] / least if least else None


def judged(rows: Sequence[Row]) -> list[Judged]:
    """Put the rows of a run in order.

    Args:
        rows: of metrics.jsonl.

    Returns:
        One entry a trace, by name.

    Raises:
        UserError: fewer than two traces, a trace without published figures, constants that were
            not tried on all, or runs of one trace that matched different numbers of tokens.
    """
    names = {row["constants"] for row in rows if row["kind"] == "own"}
    found = []
    for trace in sorted({row["trace"] for row in rows}):
        here = [row for row in rows if row["trace"] == trace]
        own = {row["constants"]: row["replayed"] for row in here if row["kind"] == "own"}
        published: dict[Pair, int] = {}
        for row in here:
            if row["kind"] == "published":
                pair = row["placement"], row["eviction"]
                published[pair] = min(row["replayed"], published.get(pair, row["replayed"]))
        if set(own) != names or not published:
            raise UserError(f"{trace}: not all of its replays are finished")
        matched = {row["matched"] for row in here}
        if len(matched) > 1:
            counts = ", ".join(f"{count:,}" for count in sorted(matched))
            raise UserError(f"{trace}: replays that match different numbers of tokens: {counts}")
        elsewhere = [row["best_of"] for row in here if "best_of" in row]
        ran = len(here) - len(own) - len(elsewhere)
        found.append(
            Judged(trace, here[0]["snapshots"], matched.pop(), own, published, ran, sum(elsewhere))
        )
    if len(found) < 2:
        raise UserError("expected at least two traces that are finished")
    return found


def picked(found: Sequence[Judged], left_out: Judged) -> str:
    """The constants that replay least on all traces but one.

    Args:
        found: all traces.
        left_out: the one that has no say.

    Returns:
        Name of those with the least mean logarithm of replayed tokens; the defaults where they are
        as good.
    """
    others = [judge for judge in found if judge is not left_out]
    return min(
        left_out.own,
        key=lambda name: (
            statistics.fmean(math.log(max(judge.own[name], 1)) for judge in others),
            name != DEFAULTS,
            name,
        ),
    )


SUMMARY = (
    "trace",
    "snap-\nshots",
    "best\npublished",
    "which pair",
    "defaults",
    "left\nout",
    "change",
    "worst\nof grid",
)
NOTE = (
    "Shares of the tokens that match that are computed again for want of a snapshot. left out: "
    "with the constants that do best on the other traces. change: of left out against the best "
    "published pair. worst of grid: the same change with the constants that do worst on this "
    "trace. The grid lies around the defaults: where a trace helped to settle these, the worst of "
    "the grid is what owes it least."
)


def summary(found: Sequence[Judged]) -> list[tuple[Any, ...]]:
    """One line a trace, under `SUMMARY`."""
    return [
        (
            judge.trace,
            f"{judge.snapshots:,}",
            percent(judge.share(judge.published[judge.best])),
            title(judge.best),
            percent(judge.share(judge.own[DEFAULTS])),
            percent(judge.share(judge.own[picked(found, judge)])),
            change(judge.gain(picked(found, judge))),
            change(judge.gain(judge.worst)),
        )
        for judge in found
    ]


def by_constants(found: Sequence[Judged]) -> list[tuple[Any, ...]]:
    """One line a set of constants: its share on each trace, and for which trace it was picked."""
    names = sorted(found[0].own, key=lambda name: (name != DEFAULTS, name))
    return [
        (
            name,
            *(percent(judge.share(judge.own[name])) for judge in found),
            ", ".join(judge.trace for judge in found if picked(found, judge) == name),
        )
        for name in names
    ]


def verdict(found: Sequence[Judged]) -> str:
    """On how many traces the gain is worth speaking of, in sentences.

    Args:
        found: all traces.

    Returns:
        For the constants picked on the other traces, the defaults and the worst of the grid.
    """

    def count(choose: Callable[[Judged], str]) -> str:
        gains = [(judge.trace, judge.gain(choose(judge))) for judge in found]
        names = [trace for trace, gain in gains if gain is not None and gain >= AT_LEAST]
        return f"{len(names)} of {len(found)}" + (f" ({', '.join(names)})" if names else "")

    return (
        f"Traces with at least {AT_LEAST:.0%} fewer tokens replayed than the best published pair: "
        f"{count(lambda judge: picked(found, judge))} with the constants picked on the others, "
        f"{count(lambda judge: DEFAULTS)} with the defaults, "
        f"{count(lambda judge: judge.worst)} with the worst of the grid."
    )


def headline(rows: Sequence[Row]) -> str:
    """The run in one line, without a full stop."""
    return verdict(judged(rows)).rstrip(".")


def report(folder: Path, table: Path | None = None) -> None:
    """Write the tables of a run folder and print them.

    Args:
        folder: the run folder.
        table: a Markdown file that gets the tables as well, in a folder that exists.

    Raises:
        UserError: a run that is not finished, or a Markdown file that cannot be written.
    """
    config, rows = read_config(folder), read_rows(folder)
    found = judged(rows)
    header, *lines = _narrow(found)
    print_table(f"\nLeave one out ({config['config']['model']})", header, lines)
    print_lines(NOTE)
    print_table(
        "\nReplayed share by constants",
        ("constants", *(judge.trace for judge in found), "picked for"),
        by_constants(found),
    )
    print_lines(f"\n{verdict(found)}")
    write_csv(folder / "summary.csv", [scalars(row) for row in rows])
    save_tables(folder, table, as_markdown(config, rows))
    print(f"\n{folder}: tables.md, summary.csv, metrics.jsonl")


def _narrow(found: Sequence[Judged]) -> list[tuple[Any, ...]]:
    """The summary at 80 columns, header first: a pair on two lines, defaults in the other table."""
    pair, defaults = SUMMARY.index("which pair"), SUMMARY.index("defaults")
    return [
        (
            *line[:pair],
            line[pair].replace(" + ", "\n+ "),
            *line[pair + 1 : defaults],
            *line[defaults + 1 :],
        )
        for line in (SUMMARY, *summary(found))
    ]


def command(config: Row, rows: Sequence[Row]) -> str:
    """The command that makes a run, with names in the place of paths."""
    asked = config["config"]
    names = [trace["name"] for trace in asked["traces"]]
    parts = [
        "python -m experiments.leave_one_out --trace",
        *(f"{name}=traces/{name}.jsonl.gz" for name in names),
        f"--model {asked['model']}",
        *replay_words(asked),
        "--snapshots",
        *(str(trace["snapshots"]) for trace in asked["traces"]),
        "--vary",
        *asked["vary"],
        "--placements",
        *map(quoted, _placements(rows)),
    ]
    parts += ["--against DIR"] * any("best_of" in row for row in rows)
    return " ".join(parts) + (" --quick" if asked["quick"] else "")


def _placements(rows: Sequence[Row]) -> list[str]:
    """Placements that published evictions were replayed with in this run."""
    ran = (row for row in rows if row["kind"] == "published" and "best_of" not in row)
    return list(dict.fromkeys(row["placement"] for row in ran))


def as_markdown(config: Row, rows: Sequence[Row]) -> str:
    """All tables of a run as a Markdown file that says how it was made.

    Args:
        config: of the run folder.
        rows: of metrics.jsonl.

    Returns:
        The text.
    """
    found = judged(rows)
    known = "; ".join(
        f"{judge.trace} {judge.ran}"
        + (f" and the best of {judge.elsewhere} of an earlier run" if judge.elsewhere else "")
        for judge in found
    )
    omitted = [f"`{spec}`" for spec in PLACEMENTS if spec not in _placements(rows)]
    commits = dict.fromkeys(
        (commit or "unknown")[:10] for row in rows for commit in row.get("commits", ())
    )
    lines = [
        "# Served demand on traces that had no say in its constants",
        "",
        *written_by(command(config, rows)),
        made_with(config),
        "",
        *traces_table(config),
        "## Against the best published policy",
        "",
        f"{NOTE} Published pairs that ran: {known}"
        + (f" (at commit {', '.join(commits)})." if commits else ".")
        + (
            f" Not run of the placements that compare_policies takes by default: "
            f"{', '.join(omitted)}."
        )
        * bool(omitted),
        "",
        *markdown_table(SUMMARY, summary(found)),
        verdict(found),
        "",
        "## By constants",
        "",
        "Replayed share on each trace, and the traces that had no say and for which the others "
        "picked these constants. Defaults: "
        + ", ".join(
            f"{name} {value:g}" for name, value in config["config"]["grid"][DEFAULTS].items()
        )
        + ".",
        "",
        *markdown_table(
            ("constants", *(judge.trace for judge in found), "picked for"), by_constants(found)
        ),
    ]
    return "\n".join(lines).rstrip() + "\n"
