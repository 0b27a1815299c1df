"""The page of a policy comparison: one HTML file that needs nothing else and opens offline."""

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.policy_report import (
    GRID_NOTE,
    KNOWING_NOTE,
    SUMMARY,
    SUMMARY_NOTE,
    bound_words,
    command,
    grid,
    grid_header,
    summary,
)
from experiments.policy_standings import (
    NEAR,
    OWN,
    Standing,
    by_trace,
    hardest,
    percent,
    ranking,
    title,
)
from experiments.tables import one_line

_STYLE = """
:root { color-scheme: light; --ink: #1c2733; --soft: #5a6875; --line: #d9dfe5; --ours: #e8f2fa; }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: #fff; }
main { max-width: 74rem; margin: 0 auto; padding: 1.5rem clamp(1rem, 4vw, 2.5rem) 4rem; }
h1 { font-size: clamp(1.5rem, 4vw, 2.1rem); line-height: 1.2; margin: .5rem 0 .75rem; }
h2 { font-size: 1.35rem; margin: 2.75rem 0 .5rem; padding-top: 1rem;
     border-top: 2px solid var(--line); }
h3 { font-size: 1rem; margin: 0 0 .15rem; }
p { max-width: 46rem; margin: .5rem 0; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
nav { margin: 1rem 0; } nav a { display: inline-block; margin: 0 1rem .4rem 0; }
a { color: #0b63a5; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1rem;
         margin: 1.25rem 0; }
.card { border: 1px solid var(--line); border-radius: .5rem; padding: .9rem 1rem; }
.card b { display: block; font-size: 1.7rem; line-height: 1.2; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr));
         gap: 1.75rem; margin: 1rem 0; align-items: start; }
figure { margin: 0; } figure svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem .3rem 0; text-align: left; border-bottom: 1px solid var(--line);
         white-space: nowrap; }
th { vertical-align: bottom; white-space: pre-line; }
td.n, th.n { text-align: right; }
tr.ours td { background: var(--ours); } tr.bound td { font-weight: 600; }
details { margin: .75rem 0; } summary { cursor: pointer; color: #0b63a5; }
code { font-size: .85rem; overflow-wrap: anywhere; }
dt { font-weight: 600; margin-top: .5rem; } dd { margin: 0; max-width: 46rem; }
"""

_CAPTIONS = {
    "pareto": (
        "What memory buys",
        "Tokens computed again for want of a snapshot; lower is better. No policy can come below "
        "the black line. Dots are all pairs of placement and eviction (those far off are cut off).",
    ),
    "hits": (
        "Hit share",
        "The share of all prompt tokens that is restored and not computed. The dotted line is what "
        "could be restored with a snapshot everywhere.",
    ),
    "regret": (
        "Regret by policy",
        "How much more each policy replays than the bound: the best dozen, and what published "
        "systems do.",
    ),
    "depth": (
        "Where restores fall",
        "How many prompts, by their length, match or restore at least that far; the area between a "
        "line and the black one is what is replayed.",
    ),
}

_WORDS = {
    "matched": "the longest prefix of a prompt that earlier prompts left in the cache, in blocks",
    "snapshot": "the saved state of all recurrent layers at one position of a prompt",
    "restored": "the position of the deepest usable snapshot at or below the match",
    "replayed": "matched less restored: computed again only because no snapshot was nearer",
    "placement": "where in a prompt snapshots are taken",
    "eviction": "which snapshot goes first when memory is short",
    "bound": "the least that any policy could replay at this budget if it knew the future; where a "
    "run that knows the future reaches it (dotted line), it is the optimum",
    "regret": "what a policy replays above the bound",
}


def write_page(
    path: Path,
    config: dict[str, Any],
    found: Sequence[Standing],
    figures: dict[str, dict[str, str]],
) -> None:
    """Write the page of a run.

    Args:
        path: the HTML file.
        config: of the run folder.
        found: the standings.
        figures: trace to question to SVG text.
    """
    asked = config["config"]
    traces = by_trace(found)
    parts = [
        "<h1>Where should snapshots go, and which should go first?</h1>",
        "<p>A hybrid language model resumes a cached prompt only where its recurrent state was "
        "saved, and what lies between that snapshot and the end of the match is computed again: "
        "replayed. Snapshots are large, so few fit. A placement says where to take them, an "
        "eviction which to drop.</p>",
        f"<p>Here are {_count(len(ranking(next(iter(traces.values())))))} pairs of the two, "
        f"replayed on {_count(len(traces), 'recorded trace')} as {html.escape(asked['model'])} "
        f"would cache them ({asked['snapshot_bytes'] / 1e6:,.1f} MB a snapshot), against the "
        "least that anybody could replay who knew the future.</p>",
        "<nav>" + "".join(f'<a href="#{_id(t)}">{html.escape(t)}</a>' for t in traces) + "</nav>",
        _cards(traces),
        "<h2>Against the offline bound</h2>",
        f'<p class="soft">{html.escape(SUMMARY_NOTE)}</p>',
        _table(SUMMARY, summary(found, asked["snapshot_bytes"])),
    ]
    for trace, here in traces.items():
        described = next(item for item in asked["traces"] if item["name"] == trace)
        parts.append(_section(trace, here, described, figures[trace]))
    parts += [
        "<h2>Words</h2><dl>",
        *(f"<dt>{word}</dt><dd>{meaning}.</dd>" for word, meaning in _WORDS.items()),
        "</dl>",
        "<h2>How this was made</h2>",
        f"<p><code>{html.escape(command(config))}</code></p>",
        f'<p class="soft">{html.escape(_origin(config))} {html.escape(asked["times"])}</p>',
    ]
    path.write_text(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Snapshot policies: {html.escape(', '.join(traces))}</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n" + "\n".join(parts) + "\n</main>\n"
        "</body>\n</html>\n"
    )


def _count(number: int, noun: str = "") -> str:
    """A count and its noun."""
    return f"{number:,}" if not noun else f"{number:,} {noun}{'' if number == 1 else 's'}"


def _id(trace: str) -> str:
    return "trace-" + "".join(c if c.isalnum() else "-" for c in trace)


def _cards(traces: dict[str, list[Standing]]) -> str:
    """A card a trace: this project's policy where published ones lose most."""
    cards = []
    for trace, here in traces.items():
        at = hardest(here)
        gain, regret = at.gain(), at.regret(at.published) if at.published else None
        if gain is None or regret is None:
            continue
        theirs, ours = (percent(at.replayed_share(pair)) for pair in (at.published, OWN))
        bound = percent(at.replayed_share(None))
        if regret < NEAR:
            said = "Near the bound"
            told = (
                "already with published policies: of what matches the best pair replays "
                f"{theirs}, ours {ours}; the bound is {bound}"
            )
        else:
            said = f"{1 - gain:,.0f} times the" if gain < -1 else f"{abs(gain):.1%} "
            said += "" if gain < -1 else "less" if gain >= 0 else "more"
            told = (
                "replay than the best published pair: of what matches "
                f"{ours} instead of {theirs}; the bound is {bound}"
            )
        cards.append(
            f'<div class="card">{html.escape(trace)}, {_count(at.snapshots, "snapshot")}'
            f"<b>{said}</b>{told}</div>"
        )
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _section(
    trace: str, here: Sequence[Standing], described: dict[str, Any], figures: dict[str, str]
) -> str:
    ceiling = here[0].bound["matched"] / here[0].bound["total"]
    ranked = ranking(here)
    plots = "".join(
        f"<figure><h3>{_CAPTIONS[question][0]}</h3>"
        f"<figcaption>{_CAPTIONS[question][1]}</figcaption>{svg}</figure>"
        for question, svg in figures.items()
    )
    return (
        f'<h2 id="{_id(trace)}">{html.escape(trace)}</h2>'
        f"<p>{described['requests']:,} requests with {described['prompt_tokens']:,} prompt tokens "
        f"in blocks of {described['block_size']}; {percent(ceiling)} of the tokens match an "
        f"earlier prompt. Least mean regret: {html.escape(title(ranked[0]))}.</p>"
        f'<div class="plots">{plots}</div>'
        f"<details><summary>Replay and regret of all {len(ranked)} pairs</summary>"
        f'<p class="soft">{html.escape(GRID_NOTE)} {bound_words(here)}</p>'
        f"{_table(grid_header(here), grid(here, ranked))}</details>{_known(here)}"
    )


def _known(here: Sequence[Standing]) -> str:
    """What each placement replays where eviction knows the future."""
    known = ranking(here, knowing=True)
    if not known:
        return ""
    return (
        "<details><summary>What placement alone costs</summary>"
        f'<p class="soft">{html.escape(KNOWING_NOTE)}</p>'
        f"{_table(grid_header(here), grid(here, known))}</details>"
    )


def _table(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """An HTML table; numbers stand right, this project's policy and the bound stand out."""
    lines = list(lines)
    numeric = [all(_is_number(line[column]) for line in lines) for column in range(len(header))]

    def row(cells: Sequence[Any], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if number else ''}>"
            f"{html.escape('-' if cell is None else str(cell))}</{tag}>"
            for cell, number in zip(cells, numeric, strict=True)
        )

    body = "".join(f"<tr{_class(line)}>{row(line, 'td')}</tr>" for line in lines)
    head = row([one_line(name) for name in header], "th")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{body}</table></div>'


def _is_number(cell: Any) -> bool:
    return cell is None or str(cell)[:1].isdigit() or str(cell)[:1] in "-+"


def _class(line: Sequence[Any]) -> str:
    if tuple(line[:2]) == OWN:
        return ' class="ours"'
    return ' class="bound"' if line[0] == "offline bound" else ""


def _origin(config: dict[str, Any]) -> str:
    commits = ", ".join((commit["commit"] or "unknown")[:10] for commit in config["commits"])
    digests = ", ".join(f"{t['name']} {t['digest']}" for t in config["config"]["traces"])
    return f"Commit {commits}; {config['created'][:10]}; digests of the traces: {digests}."
