"""A kernel with a gradient: forward by Pallas, backward by the chunked form, which recomputes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jaxtyping import Array

from kernels.scan import Bounds, ScanResult

Inputs = tuple[Array, ...]
Launch = Callable[[Any, Inputs, Bounds], ScanResult]
"""(what is no array, arrays with the initial state last, bounds) -> result."""


def with_chunked_gradient(launch: Launch, chunked: Launch) -> Launch:
    """Give a kernel the gradient of the chunked form of the same scan.

    Args:
        launch: runs the kernel; its first argument hashes by value.
        chunked: the same function in the chunked form.

    Returns:
        `launch`, differentiable by its arrays; only they are kept for the backward pass.
    """

    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def scan(static: Any, inputs: Inputs, bounds: Bounds) -> ScanResult:
        return launch(static, inputs, bounds)

    def forward(
        static: Any, inputs: Inputs, bounds: Bounds
    ) -> tuple[ScanResult, tuple[Inputs, Bounds]]:
        return launch(static, inputs, bounds), (inputs, bounds)

    def backward(
        static: Any, residuals: tuple[Inputs, Bounds], cotangents: ScanResult
    ) -> tuple[Inputs, None]:
        inputs, bounds = residuals
        _, pullback = jax.vjp(lambda *inputs: chunked(static, inputs, bounds), *inputs)
        return pullback(cotangents), None

    scan.defvjp(forward, backward)
    return scan
