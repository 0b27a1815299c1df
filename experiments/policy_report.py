"""Tables, plots and the page of a policy comparison; reads config.json and metrics.jsonl only."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.policy_cells import PLACEMENTS
from experiments.run_folder import read_config, read_rows
from experiments.tables import print_table, write_csv
from planner.eviction_policies import EVICTIONS

Row = dict[str, Any]
Pair = tuple[str, str]
"""Placement and eviction."""
OWN: Pair = ("sglang", "served_demand")
"""This project's policy: snapshots at the last boundary and at the match, kept by served demand."""
OWN_EVICTIONS = frozenset({"served_demand"})
SYSTEMS: dict[str, Pair] = {
    "Marconi": ("marconi", "flop_aware"),
    "SGLang, vLLM": ("sglang", "lru"),
    "Megatron-LM": ("megatron", "lru"),
    "llama.cpp": ("llama_cpp", "lru"),
}
"""What published systems do, as far as a pair can say it."""


@dataclass(frozen=True)
class Standing:
    """Where the policies stand on one trace at one budget.

    Attributes:
        trace: its name.
        snapshots: the budget.
        bound: row of the offline bound.
        policies: pair to row.
    """

    trace: str
    snapshots: int
    bound: Row
    policies: dict[Pair, Row]

    def best(self, pairs: Iterable[Pair]) -> Pair | None:
        """The pair that computes least, of some; None of none."""
        there = [pair for pair in pairs if pair in self.policies]
        return min(there, key=lambda pair: self.policies[pair]["recomputed"], default=None)

    @property
    def published(self) -> Pair | None:
        """The best pair of published placement and eviction."""
        return self.best(pair for pair in self.policies if pair[1] not in OWN_EVICTIONS)

    def replayed_share(self, pair: Pair | None) -> float | None:
        """Replayed tokens as a share of what matches with unlimited keys and values.

        Args:
            pair: a policy; None is the bound.

        Returns:
            The share, counting tokens that no longer match as replayed; None where it did not run.
        """
        row = self.bound if pair is None else self.policies.get(pair)
        if row is None:
            return None
        new = self.bound["total"] - self.bound["matched"]
        return (row["recomputed"] - new) / max(self.bound["matched"], 1)

    def regret(self, pair: Pair) -> float | None:
        """Replayed share above the bound's."""
        share, least = self.replayed_share(pair), self.replayed_share(None)
        return None if share is None or least is None else share - least

    def gain(self) -> float | None:
        """The share of the best published pair's replay that this project's policy spares."""
        ours, theirs = self.replayed_share(OWN), self.replayed_share(self.published)
        if self.published is None or ours is None or not theirs:
            return None
        return 1 - ours / theirs

    def gap_closed(self) -> float | None:
        """The share of the best published pair's regret that this project's policy spares."""
        ours, theirs = self.regret(OWN), self.regret(self.published) if self.published else None
        return None if ours is None or not theirs else 1 - ours / theirs


def standings(rows: Iterable[Row]) -> list[Standing]:
    """Put the rows of a run in order.

    Args:
        rows: of metrics.jsonl.

    Returns:
        One entry a trace and budget, in order of first appearance and of size.

    Raises:
        UserError: the run has no finished bound or no finished policy.
    """
    found: dict[tuple[str, int], Standing] = {}
    rows = list(rows)
    for row in rows:
        if row["kind"] == "bound":
            key = row["trace"], row["snapshots"]
            found[key] = Standing(*key, bound=row, policies={})
    for row in rows:
        standing = found.get((row["trace"], row["snapshots"]))
        if row["kind"] == "policy" and standing is not None:
            standing.policies[row["placement"], row["eviction"]] = row
    found = {key: standing for key, standing in found.items() if standing.policies}
    if not found:
        raise UserError("no trace has both a bound and a policy that are finished")
    traces = list(dict.fromkeys(trace for trace, _ in found))
    return [found[key] for key in sorted(found, key=lambda key: (traces.index(key[0]), key[1]))]


def by_trace(found: Sequence[Standing]) -> dict[str, list[Standing]]:
    """Standings of each trace, budgets ascending."""
    names = dict.fromkeys(standing.trace for standing in found)
    return {name: [standing for standing in found if standing.trace == name] for name in names}


def hardest(found: Sequence[Standing]) -> Standing:
    """The budget of a trace at which the best published pair is farthest from the bound."""
    return max(found, key=lambda s: s.regret(s.published) or 0.0 if s.published else 0.0)


def ranking(found: Sequence[Standing]) -> list[Pair]:
    """The policies of one trace, least mean regret first; those that ran at all its budgets."""
    pairs = [p for p in found[0].policies if all(p in standing.policies for standing in found)]
    return sorted(pairs, key=lambda pair: statistics.fmean(s.regret(pair) or 0.0 for s in found))


def title(pair: Pair) -> str:
    """A policy as a reader sees it."""
    return f"{pair[0]} + {pair[1]}"


def percent(value: float | None) -> str | None:
    """A share with two digits below ten percent.

    >>> percent(0.0523), percent(0.5), percent(None)
    ('5.23%', '50.0%', None)
    """
    if value is None:
        return None
    return f"{value:.2%}" if abs(value) < 0.1 else f"{value:.1%}"


def change(value: float | None) -> str | None:
    """A share that may be far below nothing.

    >>> change(0.25), change(-35.7)
    ('25.0%', '-35.7x')
    """
    return percent(value) if value is None or value >= -1 else f"{value:.1f}x"


SUMMARY = (
    "trace",
    "snap-\nshots",
    "GB",
    "bound",
    "best\npublished",
    "which pair",
    "ours",
    "less\nreplay",
    "gap\nclosed",
)


def summary(found: Sequence[Standing], snapshot_bytes: int) -> list[tuple[Any, ...]]:
    """One line a trace and budget: bound, best published pair, this project's policy.

    Args:
        found: see `standings`.
        snapshot_bytes: bytes of a snapshot.

    Returns:
        Lines under `SUMMARY`.
    """
    return [
        (
            s.trace,
            f"{s.snapshots:,}",
            f"{s.snapshots * snapshot_bytes / 1e9:.3g}",
            percent(s.replayed_share(None)),
            percent(s.replayed_share(s.published)) if s.published else None,
            title(s.published) if s.published else None,
            percent(s.replayed_share(OWN)),
            change(s.gain()),
            change(s.gap_closed()),
        )
        for s in found
    ]


SUMMARY_NOTE = (
    "Shares of the tokens that match with unlimited keys and values that are computed again for "
    "want of a snapshot. bound: no policy can replay less. best published: the best at this budget "
    "of all pairs of published placements and evictions, whether or not a system has that pair. "
    f"ours: {title(OWN)}. gap closed: share of the way from best published to the bound."
)


def grid(found: Sequence[Standing], pairs: Sequence[Pair]) -> list[tuple[Any, ...]]:
    """One line a policy, one column a budget: replayed shares on one trace, the bound first.

    Args:
        found: standings of the trace.
        pairs: the policies.

    Returns:
        Lines.
    """
    bound = ("offline bound", "", *(percent(s.replayed_share(None)) for s in found))
    return [bound, *((*p, *(percent(s.replayed_share(p)) for s in found)) for p in pairs)]


def grid_header(found: Sequence[Standing]) -> tuple[str, ...]:
    """Header of `grid`."""
    return ("placement", "eviction", *(f"{s.snapshots:,}" for s in found))


def headline(rows: Sequence[Row]) -> str:
    """The run in one line: what this project's policy spares where published ones lose most.

    Args:
        rows: of metrics.jsonl.

    Returns:
        A sentence without a full stop.
    """
    found = standings(rows)
    told = [
        f"{trace} {change(at.gain())} at {at.snapshots:,} snapshots"
        for trace, at in ((trace, hardest(here)) for trace, here in by_trace(found).items())
        if at.gain() is not None
    ]
    if not told:
        best = ranking([found[0]])[0]
        return f"least replay on {found[0].trace}, {found[0].snapshots:,} snapshots: {title(best)}"
    return f"less replay than the best published pair: {', '.join(told)}"


def report(folder: Path, table: Path | None = None, shown: int = 10) -> None:
    """Write tables, plots and the page of a run folder, and print the tables.

    Args:
        folder: the run folder.
        table: a Markdown file that gets the tables as well.
        shown: policies of each trace that are printed; the files have all.

    Raises:
        UserError: nothing is finished, or the Markdown file cannot be written.
    """
    from experiments.policy_page import write_page
    from experiments.policy_plots import draw_all

    config, rows = read_config(folder), read_rows(folder)
    found = standings(rows)
    snapshot_bytes = config["config"]["snapshot_bytes"]
    header, lines = _narrow(summary(found, snapshot_bytes))
    print_table(f"\nReplay against the offline bound ({config['config']['model']})", header, lines)
    print_lines(SUMMARY_NOTE)
    for trace, here in by_trace(found).items():
        ranked = ranking(here)
        wanted = {*ranked[:shown], OWN, *SYSTEMS.values()}
        best = [pair for pair in ranked if pair in wanted]
        print_table(
            f"\n{trace}: {len(best)} of {len(ranked)} pairs, by snapshots",
            grid_header(here),
            grid(here, best),
        )
    write_csv(folder / "summary.csv", [_flat(row, found) for row in rows])
    figures = draw_all(found, snapshot_bytes, folder)
    write_page(folder / "index.html", config, found, figures)
    markdown = as_markdown(config, found)
    (folder / "tables.md").write_text(markdown)
    if table is not None:
        try:
            table.parent.mkdir(parents=True, exist_ok=True)
            table.write_text(markdown)
        except OSError as error:
            raise UserError(f"--table {table}: {error.strerror}") from error
    print(f"\n{folder}: index.html, tables.md, summary.csv, metrics.jsonl, plots as PNG")


def _narrow(lines: list[tuple[Any, ...]]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """The summary at 80 columns: no GB, a pair on two lines, a trace's name once."""
    column = SUMMARY.index("GB")
    header, found, before = SUMMARY[:column] + SUMMARY[column + 1 :], [], None
    for trace, snapshots, _, bound, best, pair, *rest in lines:
        name = "" if trace == before else trace
        placement, _, eviction = (pair or "-").partition(" + ")
        found.append((name, snapshots, bound, best, placement, *rest))
        if eviction:
            found.append(("", "", "", "", f"+ {eviction}", *("" for _ in rest)))
        before = trace
    return header, found


def print_lines(text: str) -> None:
    """Print a paragraph, wrapped like the tables."""
    from rich.console import Console

    Console(highlight=False).print(text, markup=False)


def _flat(row: Row, found: Sequence[Standing]) -> Row:
    """A row for CSV: no lists, and the regret in tokens."""
    flat = {name: value for name, value in row.items() if not isinstance(value, (list, dict))}
    for standing in found:
        if (standing.trace, standing.snapshots) == (row["trace"], row["snapshots"]):
            flat["regret_tokens"] = row["recomputed"] - standing.bound["recomputed"]
    return flat


def command(config: Row) -> str:
    """The command that makes a run, with names in the place of paths."""
    asked = config["config"]
    traces = " ".join(f"{trace['name']}=PATH" for trace in asked["traces"])
    parts = [
        f"python -m experiments.compare_policies --trace {traces}",
        f"--model {asked['model']}",
    ]
    if asked["snapshots"]:
        parts.append(f"--snapshots {' '.join(map(str, asked['snapshots']))}")
    parts.append("--placements " + " ".join(_quoted(name) for name in asked["placements"]))
    parts.append("--evictions " + " ".join(asked["evictions"]))
    return " ".join(parts) + (" --quick" if asked["quick"] else "")


def _quoted(spec: str) -> str:
    return f"'{spec}'" if "|" in spec else spec


def as_markdown(config: Row, found: Sequence[Standing]) -> str:
    """All tables of a run as a Markdown file that says how it was made.

    Args:
        config: of the run folder.
        found: see `standings`.

    Returns:
        The text.
    """
    asked = config["config"]
    commits = ", ".join(
        (commit["commit"] or "unknown")[:10] + (" with changes" if commit["dirty"] else "")
        for commit in config["commits"]
    )
    omitted = [
        f"`{name}`"
        for names, asked_for in ((PLACEMENTS, "placements"), (EVICTIONS, "evictions"))
        for name in names
        if name not in asked[asked_for]
    ]
    lines = [
        "# Placement and eviction of snapshots on recorded traces",
        "",
        "Written by",
        "",
        f"    {command(config)} --table FILE",
        "",
        f"at commit {commits}, Python {config['environment']['python']}, numpy "
        f"{config['environment']['numpy']}. Model {asked['model']} ({asked['dtype']}): "
        f"{asked['snapshot_bytes']:,} bytes a snapshot, {asked['kv_bytes_per_token']:,} bytes of "
        "keys and values a token; these have "
        + ("unlimited room." if asked["kv_gb"] is None else f"{asked['kv_gb']:g} GB.")
        + (
            f" Not run of what the command compares by default: {', '.join(omitted)}."
            * bool(omitted)
        ),
        "",
        *_markdown_table(
            ("trace", "requests", "prompt tokens", "block", "digest"),
            [
                (
                    trace["name"],
                    f"{trace['requests']:,}",
                    f"{trace['prompt_tokens']:,}",
                    trace["block_size"],
                    trace["digest"],
                )
                for trace in asked["traces"]
            ],
        ),
        "## Against the offline bound",
        "",
        SUMMARY_NOTE,
        "",
        *_markdown_table(
            [name.replace("-\n", "").replace("\n", " ") for name in SUMMARY],
            summary(found, asked["snapshot_bytes"]),
        ),
    ]
    for trace, here in by_trace(found).items():
        ceiling = here[0].bound["matched"] / here[0].bound["total"]
        lines += [
            f"## {trace}",
            "",
            f"Replayed share by budget of snapshots, least mean regret first. {percent(ceiling)} "
            "of all prompt tokens match. The bound is "
            + ", ".join(f"{s.bound['bound'].replace('_', ' ')} at {s.snapshots:,}" for s in here)
            + ".",
            "",
            *_markdown_table(grid_header(here), grid(here, ranking(here))),
        ]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(header: Sequence[str], lines: Sequence[Sequence[Any]]) -> list[str]:
    def line(cells: Sequence[Any]) -> str:
        texts = ("" if cell is None else str(cell).replace("|", "\\|") for cell in cells)
        return f"| {' | '.join(texts)} |"

    return [line(header), "|" + "---|" * len(header), *map(line, lines), ""]
