"""The diagonal kernel with a gradient: forward by Pallas, backward by the chunked form."""

from kernels.kernel_gradient import Inputs, with_chunked_gradient
from kernels.linear_scan.pallas import linear_pallas
from kernels.linear_scan.xla import linear_xla
from kernels.scan import Bounds, ScanResult


def _launch(chunk: int, inputs: Inputs, bounds: Bounds) -> ScanResult:
    log_a, b, state = inputs
    return linear_pallas(log_a, b, state, bounds)


def _chunked(chunk: int, inputs: Inputs, bounds: Bounds) -> ScanResult:
    log_a, b, state = inputs
    return linear_xla(log_a, b, state, bounds, chunk)


linear_pallas_with_gradient = with_chunked_gradient(_launch, _chunked)
"""(chunk of the backward pass, (log_a, b, initial state), bounds) on the default backend."""
