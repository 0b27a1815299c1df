"""Prefill schedules: which chunks and passes run, and where inside them states are captured.

Two grids. On grid "block" cuts and planned positions stay where the rules put them. On grid "tile"
(exact restores) each is floored to the tile, equal ones merge and 0 drops out::

    block_size = 16, tile = 64, total = 250

    blocks  0   16  32  48  64  ...             192 208 224 240 250
    tiles   |---------------|---- ... ----------|----------------|
    last boundary under total = 240, split = 224:  both floored to 192, so one snapshot there

A cut whose floor would not move past the chunk's start (a budget below the tile, or a start inside
one) stays where it was, so that every chunk makes progress; such an end is not on the tile grid and
is never captured on it. A chunk that ends inside a tile costs the next one that tile again.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from planner.checks import check_choice, check_int
from planner.prefill_plan import last_boundary, plan_chunk_len, tail_split_point

MODES = ("planned", "chunk_end", "in_pass", "split", "naive", "off")
GRIDS = ("tile", "block")
CAPTURES = ("in_pass", "split")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One call of the scheduler.

    Attributes:
        start: position where it starts, tokens.
        end: position where it ends.
        passes: (start, end) of each pass; they tile the chunk in order.
        captures: positions p, start < p <= end, ascending, whose states are kept. A position where
            a pass ends is that pass's final state.
    """

    start: int
    end: int
    passes: tuple[tuple[int, int], ...]
    captures: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How one prompt is prefilled.

    Attributes:
        total: prompt length, tokens.
        start: position that the run resumes from.
        chunks: the chunks in order; they tile [start, total).
    """

    total: int
    start: int
    chunks: tuple[Chunk, ...]

    @property
    def captures(self) -> tuple[int, ...]:
        """All captured positions, ascending."""
        return tuple(position for chunk in self.chunks for position in chunk.captures)

    @property
    def passes(self) -> tuple[tuple[int, int], ...]:
        """All passes (start, end), in order."""
        return tuple(span for chunk in self.chunks for span in chunk.passes)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The checked arguments that every schedule needs."""

    total: int
    start: int
    first_budget: int
    budget: int
    block_size: int
    tile: int
    grid: str

    def __post_init__(self) -> None:
        for name, minimum in _FRAME_MINIMA.items():
            object.__setattr__(self, name, check_int(name, getattr(self, name), minimum))
        check_choice("grid", self.grid, GRIDS)
        if self.start > self.total:
            raise ValueError(f"start must not lie past total = {self.total}, got {self.start}")
        if self.tile % self.block_size:
            raise ValueError(
                f"tile must be a multiple of block_size = {self.block_size}, got {self.tile}"
            )

    def floor(self, position: int) -> int:
        return position // self.tile * self.tile if self.grid == "tile" else position

    def proposals(self) -> Iterator[int]:
        yield self.first_budget
        while True:
            yield self.budget

    def chunk_ends(self, split: int | None) -> list[int]:
        """Where chunks end: on a block boundary where there is one inside, floored to the grid."""
        ends: list[int] = []
        offset = self.start
        for budget in self.proposals():
            if offset == self.total:
                return ends
            proposed = min(budget, self.total - offset)
            end = offset + plan_chunk_len(offset, self.total, proposed, self.block_size, split)
            floored = self.floor(end)
            if end < self.total and floored > offset:
                end = floored
            ends.append(end)
            offset = end
        raise AssertionError("proposals never end")

    def naive_ends(self) -> list[int]:
        ends = list(range(self.start + self.first_budget, self.total, self.budget))
        return [*ends, self.total] if self.start < self.total else []

    def chunks(self, ends: list[int]) -> Iterator[tuple[int, int]]:
        return zip([self.start, *ends], ends, strict=False)


_FRAME_MINIMA = {
    "total": 0,
    "start": 0,
    "first_budget": 1,
    "budget": 1,
    "block_size": 1,
    "tile": 1,
}


def uncached_chunk_ends(
    total: int,
    *,
    start: int = 0,
    first_budget: int,
    budget: int,
    block_size: int,
    tile: int,
    grid: str = "tile",
) -> tuple[int, ...]:
    """Where chunks end when they are cut as if there were no cache.

    Args:
        total, start, first_budget, budget, block_size, tile, grid: see `plan_positions`.

    Returns:
        Ends, ascending; the last is `total`.

    Raises:
        ValueError: an argument out of its bounds.

    >>> uncached_chunk_ends(200, first_budget=100, budget=100, block_size=16, tile=64)
    (64, 128, 200)
    """
    frame = _Frame(total, start, first_budget, budget, block_size, tile, grid)
    return tuple(frame.chunk_ends(split=None))


def plan_positions(
    total: int,
    positions: Iterable[int],
    *,
    start: int = 0,
    first_budget: int,
    budget: int,
    block_size: int,
    tile: int,
    grid: str = "tile",
    capture: str = "in_pass",
) -> Schedule:
    """A schedule that captures the positions given, with chunks cut as if there were no cache.

    Args:
        total: prompt length, tokens.
        positions: positions to capture, in any order. Floored to the tile on grid "tile"; those at
            or below `start` are left out.
        start: position that the run resumes from.
        first_budget: tokens that the first chunk may have.
        budget: tokens that each later chunk may have.
        block_size: tokens a block.
        tile: tokens a tile, a multiple of `block_size`.
        grid: "tile" or "block".
        capture: "in_pass" captures them inside their pass; "split" ends a pass at each.

    Returns:
        The schedule; each captured position is in it exactly once.

    Raises:
        ValueError: an argument out of its bounds, a position past `total`, or, on grid "block", one
            that is no block boundary.

    >>> plan = dict(first_budget=100, budget=100, block_size=16, tile=64)
    >>> [chunk.captures for chunk in plan_positions(200, [70, 150, 191], **plan).chunks]
    [(64,), (128,), ()]
    """
    frame = _Frame(total, start, first_budget, budget, block_size, tile, grid)
    check_choice("capture", capture, CAPTURES)
    wanted = set()
    for position in positions:
        position = check_int("position", position, 0, frame.total)
        if grid == "block" and position % frame.block_size:
            raise ValueError(
                f"position must be a block boundary (block_size = {block_size}) on grid 'block', "
                f"got {position}"
            )
        wanted.add(frame.floor(position))
    return _capture_all(frame, sorted(wanted), capture)


def _capture_all(frame: _Frame, ordered: list[int], capture: str) -> Schedule:
    chunks = []
    ordered = ordered[bisect_right(ordered, frame.start) :]
    done = 0
    for start, end in frame.chunks(frame.chunk_ends(split=None)):
        upto = bisect_right(ordered, end, done)
        captures = tuple(ordered[done:upto])
        done = upto
        cuts = [position for position in captures if position < end] if capture == "split" else []
        chunks.append(Chunk(start, end, _passes(start, end, cuts), captures))
    return Schedule(frame.total, frame.start, tuple(chunks))


def _passes(start: int, end: int, cuts: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple(zip([start, *cuts], [*cuts, end], strict=True))


def plan_prefill(
    total: int,
    *,
    start: int = 0,
    first_budget: int,
    budget: int,
    block_size: int,
    tile: int,
    interval: int,
    mode: str,
    grid: str = "tile",
    min_tail_tokens: int = 0,
) -> Schedule:
    """Plan the prefill of one prompt.

    Modes:

    - "planned": non-last chunks end on block boundaries and at the split point, and the ends that
      are checkpoint ends are kept (the interval filters them); the last chunk runs as one pass and
      captures the split point inside it.
    - "chunk_end": the same cuts, but a last chunk that spans the split point runs as two passes.
    - "in_pass": chunks are cut as with the cache off; every marked interval boundary, both
      prompt-tail ends and the split point are captured inside them.
    - "split": the positions of "in_pass", by ending a pass at each.
    - "naive": the baseline that fails. Chunks end where the budget says, on no grid; a non-last end
      is kept where the block that holds it is on the interval, aligned or not; only a last chunk is
      split, at the split point.
    - "off": no snapshots; cuts as with the cache off.

    Args:
        total: prompt length, tokens.
        start: position that the run resumes from; on no grid where the restore was inexact.
        first_budget: tokens that the first chunk may have.
        budget: tokens that each later chunk may have.
        block_size: tokens a block.
        tile: tokens a tile, a multiple of `block_size`.
        interval: in blocks; 0 for no interval snapshots.
        mode: one of `MODES`.
        grid: "tile" floors cuts and planned positions to the tile, "block" leaves them.
        min_tail_tokens: least number of tokens after the split point.

    Returns:
        The schedule. It has no chunks where nothing is left to run.

    Raises:
        ValueError: an argument out of its bounds; names it and its value.

    >>> story = dict(first_budget=8193, budget=8192, block_size=16, tile=64, interval=16)
    >>> plan_prefill(32772, mode="naive", **story).captures
    (8193, 16385, 24577, 32769)
    >>> plan_prefill(32772, mode="chunk_end", grid="block", **story).captures
    (8192, 16384, 24576, 32752)
    >>> plan_prefill(32772, mode="in_pass", **story).captures[-3:]
    (32512, 32704, 32768)
    """
    frame = _Frame(total, start, first_budget, budget, block_size, tile, grid)
    interval = check_int("interval", interval, 0)
    check_choice("mode", mode, MODES)
    total, start, block_size = frame.total, frame.start, frame.block_size
    split = tail_split_point(total, block_size, min_tail_tokens)
    if split is not None:
        split = frame.floor(split) or None

    if mode == "off":
        return _capture_all(frame, [], "in_pass")
    if mode in CAPTURES:
        return _capture_all(frame, _planned_positions(frame, interval, split), mode)
    ends = frame.naive_ends() if mode == "naive" else frame.chunk_ends(split)
    chunks = []
    for first, end in frame.chunks(ends):
        if end < total:
            naive = interval > 0 and end >= block_size and end // block_size % interval == 0
            keep = naive if mode == "naive" else _is_planned(frame, interval, split, end)
            chunks.append(Chunk(first, end, ((first, end),), (end,) if keep else ()))
        else:
            inside = [split] if split is not None and first < split else []
            cuts = [] if mode == "planned" else inside
            chunks.append(Chunk(first, end, _passes(first, end, cuts), tuple(inside)))
    return Schedule(total, start, tuple(chunks))


def _tail_positions(frame: _Frame, split: int | None) -> set[int]:
    """Both prompt-tail ends and the split point, on the grid, above 0."""
    last = last_boundary(frame.total, frame.block_size)
    tail = {frame.floor(last), frame.floor(max(last - frame.block_size, 0)), split or 0}
    return tail - {0}


def _planned_positions(frame: _Frame, interval: int, split: int | None) -> list[int]:
    """Every marked interval boundary under `total` and the tail, on the grid, above `start`."""
    positions = _tail_positions(frame, split)
    if step := interval * frame.block_size:
        first = frame.start // step * step + step
        positions.update(map(frame.floor, range(first, frame.total, step)))
    return sorted(position for position in positions if position > frame.start)


def _is_planned(frame: _Frame, interval: int, split: int | None, end: int) -> bool:
    """Whether `_planned_positions` has `end` in it, without listing them.

    A marked boundary at or past `total` needs no care: what it would floor to is a tail position.
    """
    if end in _tail_positions(frame, split):
        return True
    step = interval * frame.block_size
    if not step or not end or frame.floor(end) != end:
        return False
    marked = -(-end // step) * step
    return frame.floor(marked) == end
