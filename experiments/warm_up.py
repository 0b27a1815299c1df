"""Compile a model's programs before anything is timed."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hybrid.runner import ModelRunner


def warm_up(runner: "ModelRunner", seed: int = 0, new_tokens: int = 2) -> None:
    """Run two random prompts in an engine of their own, so that every program is compiled.

    The first one comes again after the other, so that a snapshot is restored and keys and values
    are copied back. Nothing of it is found by another engine.

    Args:
        runner: for one sequence.
        seed: of the prompts.
        new_tokens: of each; 1 leaves out the decode program.
    """
    from hybrid.engine import Engine

    shapes = runner.shapes
    length = min(shapes.capacity - 2, 2 * shapes.tile + shapes.block_size)
    size = (2, length)
    one, other = np.random.default_rng(seed).integers(0, runner.config.vocab_size, size)
    with Engine(runner, mode="in_pass", interval=1) as engine:
        for prompt in (one, other, one):
            engine.generate(prompt, new_tokens)
