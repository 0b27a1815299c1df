"""Plots of a policy comparison: one figure a question and trace, as PNG files and as SVG texts."""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import plots
from experiments.policy_standings import (
    OWN,
    OWN_EVICTIONS,
    SYSTEMS,
    Pair,
    Standing,
    by_trace,
    ranking,
)

OWN_LABEL, BEST_LABEL = "ours", "best published pair"
_BARS = 12
_WIDTH_IN, _HEIGHT_IN = 4.6, 4.4
"""Small, so that texts can be read where a page shows the figure at a phone's width."""
_LIGHT = "#BDBDBD"


def draw_all(
    found: Sequence[Standing], snapshot_bytes: int, folder: Path
) -> dict[str, dict[str, str]]:
    """Draw every figure of a run.

    Args:
        found: the standings.
        snapshot_bytes: bytes of a snapshot.
        folder: gets TRACE-QUESTION.png.

    Returns:
        Trace to question ("pareto", "hits", "regret", "depth") to SVG text.
    """
    drawings: dict[str, Callable[[Sequence[Standing], int], Figure]] = {
        "pareto": draw_pareto,
        "hits": draw_hits,
        "regret": draw_regret,
        "depth": draw_depth,
    }
    texts: dict[str, dict[str, str]] = {}
    for trace, here in by_trace(found).items():
        texts[trace] = {}
        for question, draw in drawings.items():
            figure = draw(here, snapshot_bytes)
            plots.save(figure, folder / f"{trace}-{question}.png")
            texts[trace][question] = as_svg(figure, f"{trace}-{question}")
    return texts


def as_svg(figure: Figure, salt: str) -> str:
    """A figure as an SVG element for an HTML page: text stays text, ids are unique to `salt`."""
    file = io.StringIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": salt}
    with matplotlib.rc_context(settings):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{salt}-", text)
    return text[text.index("<svg") :]


def named(found: Sequence[Standing]) -> dict[str, Pair]:
    """The policies that a plot names: this project's, the systems', where all budgets have them."""
    there = ranking(found)
    named = {OWN_LABEL: OWN} | SYSTEMS
    return {name: pair for name, pair in named.items() if pair in there}


def look(name: str) -> dict[str, Any]:
    """How a policy looks, the same in every plot: systems thinner than what is compared."""
    style = plots.style([OWN_LABEL, BEST_LABEL, *SYSTEMS].index(name))
    return style if name in (OWN_LABEL, BEST_LABEL) else style | {"linewidth": 1, "markersize": 3.5}


def _in_order(names: Iterable[str]) -> list[str]:
    """What is compared first, then the systems."""
    order = [OWN_LABEL, BEST_LABEL, *SYSTEMS]
    return sorted(names, key=order.index)


def _gigabytes(found: Sequence[Standing], snapshot_bytes: int) -> list[float]:
    return [standing.snapshots * snapshot_bytes / 1e9 for standing in found]


def _budget_axis(ax: Axes, found: Sequence[Standing], snapshot_bytes: int) -> None:
    places = _gigabytes(found, snapshot_bytes)
    ax.set_xscale("log")
    ax.minorticks_off()
    ax.set_xticks(
        places, [f"{gb:.3g}\n({s.snapshots:,})" for gb, s in zip(places, found, strict=True)]
    )
    ax.set_xlabel("Snapshot memory in GB (snapshots)", fontsize=9.5)


def draw_pareto(found: Sequence[Standing], snapshot_bytes: int) -> Figure:
    """Replayed tokens against snapshot bytes: every pair, the published front, ours, the bound."""
    figure, (ax,) = plots.new_figure(width_in=_WIDTH_IN, height_in=_HEIGHT_IN)
    places = _gigabytes(found, snapshot_bytes)
    own = [pair for pair in ranking(found) if pair[1] in OWN_EVICTIONS]
    published = [pair for pair in ranking(found) if pair[1] not in OWN_EVICTIONS]

    def tokens(pair: Pair) -> list[float]:
        return [_replayed(standing, pair) for standing in found]

    for label, pairs, shift, marker in (
        ("published pairs", published, 0.965, "o"),
        ("pairs with our eviction", own, 1.035, "s"),
    ):
        if pairs:
            xs = [place * shift for place in places for _ in pairs]
            dots = np.array([tokens(pair) for pair in pairs]).T.reshape(-1)
            color = _LIGHT if pairs is published else "#9CC9E3"
            ax.plot(xs, dots, marker, color=color, markersize=3, label=label, zorder=1)
    lines = {name: tokens(pair) for name, pair in named(found).items()}
    if published:
        lines[BEST_LABEL] = [min(tokens(pair)[i] for pair in published) for i in range(len(found))]
    for name in _in_order(lines):
        ax.plot(places, lines[name], label=name, zorder=4, **look(name))
    bound = [standing.bound["replayed"] / 1e6 for standing in found]
    achieved = [standing.bound["achieved_replayed"] / 1e6 for standing in found]
    ax.plot(places, bound, "k-", linewidth=1.8, label="offline bound", zorder=4)
    ax.fill_between(places, bound, achieved, color="black", alpha=0.2, linewidth=0)
    ax.plot(places, achieved, "k:", linewidth=1.2, label="clairvoyant run", zorder=3)
    _budget_axis(ax, found, snapshot_bytes)
    top = max((y for ys in lines.values() for y in ys), default=0) or None
    ax.set_ylim(0, top and 1.08 * top)
    ax.set_ylabel("Replayed prompt tokens (millions)", fontsize=9.5)
    plots.legend_below(figure, [ax], columns=2)
    return figure


def _replayed(standing: Standing, pair: Pair) -> float:
    """Millions of tokens, counting what no longer matches."""
    return (standing.replayed_share(pair) or 0.0) * standing.bound["matched"] / 1e6


def draw_hits(found: Sequence[Standing], snapshot_bytes: int) -> Figure:
    """The share of prompt tokens that are restored, against the budget."""
    figure, (ax,) = plots.new_figure(width_in=_WIDTH_IN, height_in=_HEIGHT_IN)
    places = _gigabytes(found, snapshot_bytes)

    def shares(pick: Callable[[Standing], Any]) -> list[float]:
        rows = [pick(standing) for standing in found]
        return [100 * (1 - row["recomputed"] / row["total"]) for row in rows]

    lines = {
        name: shares(lambda standing, pair=pair: standing.policies[pair])  # type: ignore[misc]
        for name, pair in named(found).items()
    }
    published = [pair for pair in ranking(found) if pair[1] not in OWN_EVICTIONS]
    if published:
        best = {s.snapshots: s.best(published) or published[0] for s in found}
        lines[BEST_LABEL] = shares(lambda standing: standing.policies[best[standing.snapshots]])
    for name in _in_order(lines):
        ax.plot(places, lines[name], label=name, zorder=4, **look(name))
    ax.plot(places, shares(lambda s: s.bound), "k-", linewidth=1.8, label="offline bound")
    ceiling = 100 * found[0].bound["matched"] / found[0].bound["total"]
    ax.axhline(ceiling, color=plots.GREY, linewidth=1.2, linestyle=":", label="all that matches")
    _budget_axis(ax, found, snapshot_bytes)
    ax.set_ylim(bottom=0)
    ax.set_ylabel("Prompt tokens restored (%)", fontsize=9.5)
    plots.legend_below(figure, [ax], columns=2)
    return figure


def draw_regret(found: Sequence[Standing], snapshot_bytes: int) -> Figure:
    """Regret by policy, the best dozen and the named ones; one marker a budget."""
    ranked = ranking(found)
    shown = [p for p in ranked if p in {*ranked[:_BARS], *named(found).values()}]
    figure, (ax,) = plots.new_figure(width_in=_WIDTH_IN, height_in=1.4 + 0.27 * len(shown))
    regrets = [[100 * (standing.regret(pair) or 0.0) for standing in found] for pair in shown]
    for row, values in enumerate(regrets):
        ax.plot([min(values), max(values)], [row, row], color=_LIGHT, linewidth=1.2, zorder=1)
    for place, standing in enumerate(found):
        dots = plots.style(place) | {"linestyle": "none", "markersize": 4.5}
        xs = [values[place] for values in regrets]
        ax.plot(xs, range(len(shown)), label=f"{standing.snapshots:,} snapshots", **dots)
    names = {pair: name for name, pair in named(found).items()}
    texts = [f"{p[0]} + {p[1]}" + (f"\n({names[p]})" if p in names else "") for p in shown]
    ax.set_yticks(range(len(shown)), texts, fontsize=7.5)
    for label, pair in zip(ax.get_yticklabels(), shown, strict=True):
        label.set_fontweight("bold" if pair == OWN else "normal")
    ax.invert_yaxis()
    widest = max((value for values in regrets for value in values), default=0.0) or 1.0
    ax.set_xlim(-0.03 * widest, 1.05 * widest)
    ax.set_xlabel("Replayed above the bound\n(% of matched tokens)", fontsize=9.5)
    plots.legend_below(figure, [ax], columns=2)
    return figure


def draw_depth(found: Sequence[Standing], snapshot_bytes: int) -> Figure:
    """Where in the prompt restores fall, at the second tightest budget, prompts by their length."""
    standing = found[min(1, len(found) - 1)]
    figure, (ax,) = plots.new_figure(width_in=_WIDTH_IN, height_in=_HEIGHT_IN)
    pairs = dict(named(found))
    if standing.published is not None and standing.published not in pairs.values():
        pairs[BEST_LABEL] = standing.published
    row = next(iter(standing.policies.values()))
    depths = np.linspace(0, 100, len(row["matched_at"]))

    def beyond(tokens: Sequence[int]) -> np.ndarray:
        """Percent at each depth or deeper; what matched nothing lies at none."""
        reached = 100 * np.cumsum(tokens[::-1])[::-1] / sum(tokens)
        return np.concatenate([reached[1:2], reached[1:]])

    ax.step(depths, beyond(row["matched_at"]), "k-", where="pre", linewidth=1.8, label="matched")
    for name in _in_order(pairs):
        ys = beyond(standing.policies[pairs[name]]["restored_at"])
        ax.step(depths, ys, where="pre", label=name, zorder=4, **look(name) | {"marker": "none"})
    ax.set_xlim(0, 100)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("Position in the prompt (% of its length)", fontsize=9.5)
    ax.set_ylabel("Prompts restored so far or further\n(%, by length)", fontsize=9.5)
    gigabytes = standing.snapshots * snapshot_bytes / 1e9
    ax.set_title(f"{standing.snapshots:,} snapshots ({gigabytes:.3g} GB)", fontsize=9.5, loc="left")
    plots.legend_below(figure, [ax], columns=2)
    return figure
