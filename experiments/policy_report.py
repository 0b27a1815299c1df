"""Tables, plots and the page of a policy comparison; reads config.json and metrics.jsonl only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.policy_cells import COMPARED_EVICTIONS, PLACEMENTS
from experiments.policy_markdown import made_with, quoted, save_tables, traces_table, written_by
from experiments.policy_options import replay_words
from experiments.policy_standings import (
    OWN,
    SYSTEMS,
    Pair,
    Row,
    Standing,
    by_trace,
    change,
    hardest,
    mean_regret,
    percent,
    ranking,
    standings,
    title,
)
from experiments.run_folder import read_config, read_rows
from experiments.tables import markdown_table, print_lines, print_table, scalars, write_csv

SUMMARY = (
    "trace",
    "snap-\nshots",
    "GB",
    "bound",
    "best\npublished",
    "which pair",
    "ours",
    "change",
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
            None if gap is None else f"{round(100 * gap)}%",
        )
        for s, gap in ((s, s.gap_closed()) for s in found)
    ]


SUMMARY_NOTE = (
    "Shares of the tokens that match with unlimited keys and values that are computed again for "
    "want of a snapshot. bound: no policy can replay less. best published: the best at this budget "
    "of all pairs of published placements and evictions, whether or not a system has that pair. "
    f"ours: {title(OWN)}. change: ours against the best published. gap closed: share of the way "
    "from best published to the bound; below 0 where ours is the worse one."
)


GRID_NOTE = (
    "Replayed share by budget of snapshots and, after the plus, the regret: how many points of it "
    "lie above the bound. Least mean regret first."
)
KNOWING_NOTE = (
    "The same placements with an eviction that knows the future: what is left is what placement "
    "alone costs, and the rest of a policy's regret is what its eviction costs."
)


def grid(found: Sequence[Standing], pairs: Sequence[Pair]) -> list[tuple[Any, ...]]:
    """One line a policy, one column a budget: replayed shares and regrets, the bound first.

    Args:
        found: standings of the trace.
        pairs: the policies.

    Returns:
        Lines under `grid_header`.
    """
    lines: list[tuple[Any, ...]] = [_bound_line(found)]
    for pair in pairs:
        cells = []
        for standing in found:
            share, regret = standing.replayed_share(pair), standing.regret(pair)
            cells.append(None if regret is None else f"{percent(share)} +{100 * regret:.1f}")
        lines.append((*pair, *cells))
    return lines


def narrow_grid(found: Sequence[Standing], pairs: Sequence[Pair]) -> list[tuple[Any, ...]]:
    """The same for a terminal: shares alone, and the mean regret at the end."""
    return [
        (*_bound_line(found), None),
        *(
            (
                *pair,
                *(percent(standing.replayed_share(pair)) for standing in found),
                percent(mean_regret(found, pair)),
            )
            for pair in pairs
        ),
    ]


def _bound_line(found: Sequence[Standing]) -> tuple[Any, ...]:
    return ("offline bound", "", *(percent(s.replayed_share(None)) for s in found))


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
    return f"replay against the best published pair: {', '.join(told)}"


def report(folder: Path, table: Path | None = None, shown: int = 10) -> None:
    """Write tables, plots and the page of a run folder, and print the tables.

    Args:
        folder: the run folder.
        table: a Markdown file that gets the tables as well, in a folder that exists.
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
        known = [pair for pair in ranking(here, knowing=True) if pair[0] == OWN[0]]
        print_table(
            f"\n{trace}: {len(best)} of {len(ranked)} pairs, by snapshots",
            (*grid_header(here), "mean\nregret"),
            narrow_grid(here, [*known, *best]),
        )
    if any(ranking(here, knowing=True) for here in by_trace(found).values()):
        print_lines("clairvoyant: eviction that knows the future; what is left, placement costs.")
    write_csv(folder / "summary.csv", [_flat(row, found) for row in rows])
    figures = draw_all(found, snapshot_bytes, folder)
    write_page(folder / "index.html", config, found, figures)
    save_tables(folder, table, as_markdown(config, found))
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


def _flat(row: Row, found: Sequence[Standing]) -> Row:
    """A row for CSV: no lists, and the regret in tokens."""
    flat = scalars(row)
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
        *replay_words(asked),
    ]
    if asked["concurrency"] != 1:
        parts.append(f"--concurrency {asked['concurrency']}")
    if asked["kv_gb"] is not None:
        parts.append(f"--kv-gb {asked['kv_gb']:g}")
    if asked["snapshots"]:
        parts.append(f"--snapshots {' '.join(map(str, asked['snapshots']))}")
    parts.append("--placements " + " ".join(quoted(name) for name in asked["placements"]))
    parts.append("--evictions " + " ".join(asked["evictions"]))
    return " ".join(parts) + (" --quick" if asked["quick"] else "")


def bound_words(found: Sequence[Standing]) -> str:
    """Where on a trace the bound is the optimum, in a sentence."""
    exact = [f"{s.snapshots:,}" for s in found if s.bound["bound"] == "exact"]
    if len(exact) == len(found):
        return "The bound is the optimum: a run that knows the future reaches it."
    where = f"; at {' and '.join(exact)} snapshots it is the optimum" if exact else ""
    return f"The bound is proven, not known to be reached{where}."


def as_markdown(config: Row, found: Sequence[Standing]) -> str:
    """All tables of a run as a Markdown file that says how it was made.

    Args:
        config: of the run folder.
        found: see `standings`.

    Returns:
        The text.
    """
    asked = config["config"]
    omitted = [
        f"`{name}`"
        for names, asked_for in ((PLACEMENTS, "placements"), (COMPARED_EVICTIONS, "evictions"))
        for name in names
        if name not in asked[asked_for]
    ]
    lines = [
        "# Placement and eviction of snapshots on recorded traces",
        "",
        *written_by(command(config)),
        made_with(config)
        + (
            f" Not run of what the command compares by default: {', '.join(omitted)}."
            * bool(omitted)
        ),
        "",
        *traces_table(config),
        "## Against the offline bound",
        "",
        SUMMARY_NOTE,
        "",
        *markdown_table(
            SUMMARY,
            summary(found, asked["snapshot_bytes"]),
        ),
    ]
    for trace, here in by_trace(found).items():
        ceiling = here[0].bound["matched"] / here[0].bound["total"]
        lines += [
            f"## {trace}",
            "",
            f"{GRID_NOTE} {percent(ceiling)} of all prompt tokens match. {bound_words(here)}",
            "",
            *markdown_table(grid_header(here), grid(here, ranking(here))),
        ]
        known = ranking(here, knowing=True)
        if known:
            lines += [KNOWING_NOTE, "", *markdown_table(grid_header(here), grid(here, known))]
    return "\n".join(lines).rstrip() + "\n"
