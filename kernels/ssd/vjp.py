"""The SSD kernel with a gradient: forward by Pallas, backward by the chunked form."""

from kernels.kernel_gradient import Inputs, with_chunked_gradient
from kernels.scan import Bounds, ScanResult
from kernels.ssd.pallas import ssd_pallas
from kernels.ssd.xla import ssd_xla


def _launch(chunk: int, inputs: Inputs, bounds: Bounds) -> ScanResult:
    x, dt, A, B, C, state = inputs
    return ssd_pallas(x, dt, A, B, C, state, bounds, chunk)


def _chunked(chunk: int, inputs: Inputs, bounds: Bounds) -> ScanResult:
    x, dt, A, B, C, state = inputs
    return ssd_xla(x, dt, A, B, C, state, bounds, chunk)


ssd_pallas_with_gradient = with_chunked_gradient(_launch, _chunked)
"""(chunk, (x, dt, A, B, C, initial state), bounds) on the default backend."""
