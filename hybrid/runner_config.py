"""The shapes that a runner's programs are compiled for."""

import dataclasses

from hybrid.specs import check_positive
from planner.schedule import GRIDS


@dataclasses.dataclass(frozen=True)
class RunnerConfig:
    """Shapes of the compiled programs.

    Args:
        capacity: tokens of prompt and continuation that fit; rounded up to the tile and to the
            attention's key tile.
        tile: rows a tile; a multiple of `block_size`.
        block_size: tokens a block, the unit of KV reuse.
        grid: "tile" keeps captures on tile boundaries (exact); "block" also takes them inside tiles
            (inexact restores).
        capture_slots: captures a pass can hold; a pass with more is run as several.
        kept_rows: rows of the last layer's output that stay readable; None keeps one tile, tests
            keep them all.
        decode_steps: the most tokens one decode call draws.
        batch: sequences that run together.
    """

    capacity: int
    tile: int = 128
    block_size: int = 16
    grid: str = "tile"
    capture_slots: int = 16
    kept_rows: int | None = None
    decode_steps: int = 32
    batch: int = 1

    def __post_init__(self) -> None:
        check_positive(
            self, "capacity", "tile", "block_size", "capture_slots", "decode_steps", "batch"
        )
        if self.tile % self.block_size:
            raise ValueError(
                f"RunnerConfig.tile is {self.tile}; expected a multiple of "
                f"block_size = {self.block_size}"
            )
        if self.grid not in GRIDS:
            raise ValueError(f"RunnerConfig.grid is {self.grid!r}; expected 'tile' or 'block'")
        kept = self.kept_rows
        if kept is not None and (type(kept) is not int or kept < 1 or kept % self.tile):
            raise ValueError(
                f"RunnerConfig.kept_rows is {self.kept_rows}; expected a multiple of "
                f"tile = {self.tile}"
            )

    @property
    def tile_slots(self) -> int:
        """The most captures that fall into one tile: its end, or every block in it, a chunk end off
        the grid and the pass's end."""
        return 1 if self.grid == "tile" else self.tile // self.block_size + 2
