"""Where in a prompt to capture snapshots: policies that combine with `|`, by name or by class."""

from planner.placement.context import PlacementContext, PlacementPolicy, Union, place
from planner.placement.learned import OptimalForHistogram, OverlapHistogram
from planner.placement.registry import PLACEMENTS, parse_placement

__all__ = [
    "PLACEMENTS",
    "OptimalForHistogram",
    "OverlapHistogram",
    "PlacementContext",
    "PlacementPolicy",
    "Union",
    "parse_placement",
    "place",
]
