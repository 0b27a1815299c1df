"""Placement policies by name."""

from collections.abc import Callable
from inspect import Parameter, signature

from planner.placement.context import PlacementPolicy
from planner.placement.learned import OptimalForHistogram
from planner.placement.rules import (
    ChunkEnds,
    Every,
    Fork,
    Last,
    LlamaCpp,
    Match,
    Megatron,
    Messages,
    Nothing,
    Retention,
    Tail,
)
from planner.placement.spacing import Balanced, Dyadic, SquareRoot

PLACEMENTS: dict[str, Callable[..., PlacementPolicy]] = {
    "none": Nothing,
    "every": Every,
    "chunk_ends": ChunkEnds,
    "last": Last,
    "tail": Tail,
    "fork": Fork,
    "match": Match,
    "marconi": lambda: Last() | Fork(),
    "sglang": lambda: Last() | Match(),
    "vllm": Retention,
    "megatron": Megatron,
    "balanced": Balanced,
    "sqrt": SquareRoot,
    "dyadic": Dyadic,
    "dp": OptimalForHistogram,
    "messages": Messages,
    "llama_cpp": LlamaCpp,
}


def parse_placement(spec: str) -> PlacementPolicy:
    """The policy that a spec names: name:argument,argument; several joined by "|" unite.

    Args:
        spec: e.g. "tail|every:32", "vllm:4096", "dp:4,0.999".

    Returns:
        A fresh policy; one that learns has learnt nothing.

    Raises:
        ValueError: an unknown name, or arguments that the policy does not take.

    >>> parse_placement("tail | every:32").spec
    'tail|every:32'
    >>> parse_placement("tial")
    Traceback (most recent call last):
        ...
    ValueError: unknown placement 'tial'; known: balanced, chunk_ends, dp, dyadic, every, fork, \
last, llama_cpp, marconi, match, megatron, messages, none, sglang, sqrt, tail, vllm
    """
    first, *others = (_parse_one(part) for part in spec.split("|"))
    for other in others:
        first = first | other
    return first


def _parse_one(part: str) -> PlacementPolicy:
    name, _, text = part.strip().partition(":")
    if name not in PLACEMENTS:
        raise ValueError(f"unknown placement {name!r}; known: {', '.join(sorted(PLACEMENTS))}")
    build = PLACEMENTS[name]
    wanted = signature(build).parameters
    given = text.split(",") if text else []
    required = [p for p in wanted.values() if p.default is Parameter.empty]
    if not len(required) <= len(given) <= len(wanted):
        form = ",".join(wanted) or "no arguments"
        raise ValueError(f"placement {name!r} takes {form}, got {text!r}")
    try:
        values = [p.annotation(v) for p, v in zip(wanted.values(), given, strict=False)]
    except ValueError:
        kinds = ", ".join(f"{p.name}: {p.annotation.__name__}" for p in wanted.values())
        raise ValueError(f"placement {name!r} takes {kinds}; got {text!r}") from None
    return build(*values)
