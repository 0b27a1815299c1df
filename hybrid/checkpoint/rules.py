"""How one of our parameters is filled from theirs: a rule names the parameter, the tensors and the
layout that puts the one into the other.

Their projections are [out, in], ours [in, out]; their convolutions are [channels, 1, width], ours
[width, channels]; several of theirs side by side are one of ours.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Piece = tuple[np.ndarray, np.ndarray]
Layout = Callable[[Any, np.ndarray, Sequence[np.ndarray]], Iterator[Piece]]
"""(spec of the part, our array, their tensors) -> pairs of equal shape: where to write, what."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """Our parameter <- their tensors, layout.

    Args:
        target: path of the parameter below its owner, such as "in_proj.kernel". A rule whose target
            the model does not have (a bias that is switched off) does nothing.
        sources: names below the layer, in the order of the layout. "{expert}" stands for all
            experts in turn. For the use of a shared block, a name that begins with "{home}" lies
            below the layer that stores the block, and "{use}" is the use's place among all.
        layout: fills the parameter.
    """

    target: str
    sources: tuple[str, ...]
    layout: Layout


def same(spec: Any, out: np.ndarray, sources: Sequence[np.ndarray]) -> Iterator[Piece]:
    """One tensor as it is."""
    yield out, sources[0]


def joined(spec: Any, out: np.ndarray, sources: Sequence[np.ndarray]) -> Iterator[Piece]:
    """Vectors one after the other."""
    at = 0
    for source in sources:
        yield out[at : at + len(source)], source
        at += len(source)


def columns(spec: Any, out: np.ndarray, sources: Sequence[np.ndarray]) -> Iterator[Piece]:
    """Projections side by side: out[:, part] = source.T."""
    at = 0
    for source in sources:
        yield out[:, at : at + len(source)], source.T
        at += len(source)


def taps(spec: Any, out: np.ndarray, sources: Sequence[np.ndarray]) -> Iterator[Piece]:
    """Depthwise convolutions side by side: out[:, channels] = source[:, 0].T."""
    at = 0
    for source in sources:
        yield out[:, at : at + len(source)], source[:, 0].T
        at += len(source)


def experts(spec: Any, out: np.ndarray, sources: Sequence[np.ndarray]) -> Iterator[Piece]:
    """Projections of all experts in one tensor: out[e] = source[e].T."""
    yield out, np.swapaxes(sources[0], 1, 2)


def stacked(spec: Any, out: np.ndarray, sources: Sequence[np.ndarray]) -> Iterator[Piece]:
    """Projections of one expert a tensor, all experts of the first kind, then all of the next:
    out[e, :, part] = source.T."""
    count, at = len(out), 0
    for first in range(0, len(sources), count):
        width = len(sources[first])
        for expert, source in enumerate(sources[first : first + count]):
            yield out[expert, :, at : at + width], source.T
        at += width


def linear(target: str, *sources: str) -> tuple[Rule, ...]:
    """Kernel and, where the model has one, bias of a projection that joins `sources`."""
    return (
        Rule(f"{target}.kernel", tuple(f"{s}.weight" for s in sources), columns),
        Rule(f"{target}.bias", tuple(f"{s}.bias" for s in sources), joined),
    )


def conv(*sources: str) -> tuple[Rule, ...]:
    """Weight and bias of a depthwise convolution."""
    return (
        Rule("conv.weight", tuple(f"{s}.weight" for s in sources), taps),
        Rule("conv.bias", tuple(f"{s}.bias" for s in sources), joined),
    )


def weight(target: str, source: str) -> tuple[Rule, ...]:
    """The weight of a norm or an embedding."""
    return (Rule(f"{target}.weight", (f"{source}.weight",), same),)


def vector(target: str, source: str) -> tuple[Rule, ...]:
    """A parameter that is stored under its whole name."""
    return (Rule(target, (source,), same),)
