"""What the tests of this folder share: runners, which cost seconds to compile, and comparisons."""

import functools

import jax
import numpy as np
import pytest

from hybrid.config import Compute
from hybrid.engine import Engine
from hybrid.presets import preset
from hybrid.runner import ModelRunner
from hybrid.runner_config import RunnerConfig
from tests.hybrid.common import assert_same_bits

CAPACITY, TILE, BLOCK = 256, 32, 8


@functools.cache
def tiny_runner(
    dtype: str = "float32",
    implementation: str = "xla",
    grid: str = "tile",
    capacity: int = CAPACITY,
    tile: int = TILE,
) -> ModelRunner:
    """A runner of the tiny preset that keeps every row of the last layer's output."""
    compute = Compute(dtype=dtype, implementation=implementation, chunk=16, kv_tile=64)
    shapes = RunnerConfig(
        capacity=capacity, tile=tile, block_size=BLOCK, grid=grid, kept_rows=capacity
    )
    return ModelRunner(preset("tiny"), compute, shapes, seed=1)


@pytest.fixture(scope="session")
def make_runner():
    return tiny_runner


class ObservedEngine(Engine):
    """An engine that keeps what its last prefill computed, on the host."""

    def _prefill(self, prompt, admission, source):
        result = super()._prefill(prompt, admission, source)
        self.seen = jax.tree.map(
            np.array,
            {
                "logits": result.logits,
                "end": result.end_state,
                "snapshots": result.snapshots,
                "kv": self.runner.read_rows(result.workspace, 0, len(prompt)),
            },
        )
        return result


class Observer:
    """Engines on shared runners, and what they must agree on."""

    def __init__(self):
        self._cold = {}

    def engine(self, runner, **options):
        return ObservedEngine(runner, **options)

    def cold(self, runner, prompt, new_tokens=3, **draws):
        """What a run without a cache computes, with a snapshot at every block that the grid has."""
        key = (id(runner), prompt.tobytes(), new_tokens, *draws.items())
        if key not in self._cold:
            with ObservedEngine(runner, mode="in_pass", interval=1) as engine:
                tokens = engine.generate(prompt, new_tokens, **draws).tokens
                self._cold[key] = tokens, engine.seen
        return self._cold[key]

    def check_exact(self, engine, completion, prompt, **draws):
        """The request computed what a cold one computes, bit for bit."""
        tokens, cold = self.cold(engine.runner, prompt, len(completion.tokens), **draws)
        np.testing.assert_array_equal(completion.tokens, tokens)
        for name in ("logits", "end", "kv"):
            assert_same_bits(engine.seen[name], cold[name], name)
        tile = engine.runner.shapes.tile
        for position, states in engine.seen["snapshots"].items():
            if position % tile == 0:
                assert_same_bits(states, cold["snapshots"][position], f"at {position}: ")


@pytest.fixture(scope="session")
def observer():
    return Observer()


@pytest.fixture
def later(make_runner, observer, tmp_path):
    """An engine of its own on the test's directory, as a later process has."""
    engines = []

    def build(directory=tmp_path, **options):
        runner = options.pop("runner", None) or make_runner()
        options = {"mode": "in_pass", "interval": 4, **options}
        engines.append(observer.engine(runner, directory=directory, **options))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()
