"""How plots look: one palette, one marker and one line style a series, labels with units.

The palette is that of Okabe and Ito, which colour-blind readers can tell apart; every series has a
marker and a line style of its own too, so that a grey print is readable.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)), (0, (8, 2)))
GREY = "#595959"


def style(index: int) -> dict[str, Any]:
    """Colour, marker and line of the index-th series.

    Args:
        index: place in the list of all series of a run, so that one looks alike in every plot.

    Returns:
        Keyword arguments of `Axes.plot`.
    """
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINES[index % len(LINES)],
        "linewidth": 1.6,
        "markersize": 5.5,
    }


def new_figure(
    columns: int = 1, width_in: float = 4.2, height_in: float = 3.4
) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side.

    Args:
        columns: how many panels.
        width_in: width of one, in inches.
        height_in: height, in inches.

    Returns:
        The figure and its axes, with a light grid and without the box's upper and right lines.
    """
    figure = Figure(figsize=(columns * width_in, height_in), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, columns, column + 1) for column in range(columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, color="#E0E0E0", linewidth=0.7)
        ax.set_axisbelow(True)
        ax.tick_params(labelsize=8.5)
    return figure, axes


def variant(index: int, again: int) -> dict[str, Any]:
    """Look of a variant of a series: its colour and marker, but hollow and with other lines.

    Args:
        index: place of the series.
        again: 0 for the series itself, 1, 2, ... for its variants.

    Returns:
        Keyword arguments of `Axes.plot`.
    """
    hollow = {"markerfacecolor": "white"} if again else {}
    return {**style(index), "linestyle": LINES[again % len(LINES)], **hollow}


def plot_spread(
    ax: Axes, values: Mapping[float, Sequence[float]], label: str, look: Mapping[str, Any]
) -> None:
    """Draw a series as medians with a band from the first to the third quartile.

    Args:
        ax: where.
        values: x to the repeated measurements there.
        label: the legend's text.
        look: from `style` or `variant`.
    """
    xs = sorted(values)
    low, middle, high = ([float(np.quantile(values[x], q)) for x in xs] for q in (0.25, 0.5, 0.75))
    ax.plot(xs, middle, label=label, **look)
    if any(b > a for a, b in zip(low, high, strict=True)):
        ax.fill_between(xs, low, high, color=look["color"], alpha=0.15, linewidth=0)


def category_axis(ax: Axes, names: Sequence[str], label: str) -> None:
    """Name the places 0, 1, 2, ... of the x axis.

    Args:
        ax: where.
        names: a text a place.
        label: the axis' label, with unit.
    """
    ax.set_xticks(range(len(names)), names)
    ax.set_xlabel(label, fontsize=9.5)
    ax.set_xlim(-0.3, len(names) - 0.7)


def log_axis(ax: Axes, ticks: Sequence[float], unit: str = "") -> None:
    """Make the y axis logarithmic with plain numbers at the given ticks."""
    ax.set_yscale("log")
    ax.set_yticks(list(ticks))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{unit}"))


def legend_below(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    """One legend for all panels, under them.

    Args:
        figure: whose.
        axes: the panels; equal labels are shown once.
        columns: of the legend.
    """
    found = {
        text: handle
        for ax in axes
        for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(found.values()),
        list(found),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=8.5,
        handlelength=3.2,
    )


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG (no software version or date in it, so equal data give equal files)."""
    figure.savefig(path, metadata={"Software": None})
