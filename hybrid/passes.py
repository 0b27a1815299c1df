"""How a schedule runs in programs of fixed shape: calls that hold no more captures than fit."""

import collections
from collections.abc import Iterator, Sequence

from hybrid.runner_config import RunnerConfig
from planner.schedule import Schedule


def calls_of(schedule: Schedule, capture_slots: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """All passes of a schedule, cut again where one holds more captures than the slots can.

    Args:
        schedule: chunks, passes and captures.
        capture_slots: captures that a call can hold.

    Yields:
        Start, end and captures of each call, in order.
    """
    for chunk in schedule.chunks:
        for start, end in chunk.passes:
            captures = tuple(p for p in chunk.captures if start < p <= end)
            while len(captures) > capture_slots:
                cut = captures[capture_slots - 1]
                yield start, cut, captures[:capture_slots]
                start, captures = cut, captures[capture_slots:]
            if start < end:
                yield start, end, captures


def check_captures(shapes: RunnerConfig, wanted: Sequence[int], position: int) -> None:
    """Refuse captures that a call cannot give.

    Args:
        shapes: of the programs.
        wanted: positions to capture in one call.
        position: tokens that the carried state has consumed.

    Raises:
        ValueError: too many in one tile, or one that is not above `position`.
    """
    per_tile = collections.Counter((p - 1) // shapes.tile for p in wanted)
    tile, most = max(per_tile.items(), key=lambda item: item[1], default=(0, 0))
    if most > shapes.tile_slots:
        hint = "" if shapes.grid == "block" else "; grid 'block' takes positions off the tile grid"
        raise ValueError(
            f"{most} captures fall into the tile at {tile * shapes.tile}; expected at most "
            f"{shapes.tile_slots} with the runner's grid {shapes.grid!r}{hint}"
        )
    if any(p <= position for p in wanted):
        raise ValueError(f"captures are {list(wanted)}; expected above the position {position}")
