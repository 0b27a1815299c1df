"""Runners shared by the tests of this folder: compiling one costs seconds, so each is built once."""

import functools

import pytest

from hybrid.config import Compute
from hybrid.presets import preset
from hybrid.runner import ModelRunner, RunnerConfig

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
