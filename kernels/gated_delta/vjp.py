"""The gated delta kernel with a gradient: forward by Pallas, backward by the chunked form."""

from kernels.gated_delta.pallas import gated_delta_pallas
from kernels.gated_delta.xla import gated_delta_xla
from kernels.kernel_gradient import Inputs, with_chunked_gradient
from kernels.scan import Bounds, ScanResult


def _launch(static: tuple[float, int], inputs: Inputs, bounds: Bounds) -> ScanResult:
    (scale, chunk), (q, k, v, g, beta, state) = static, inputs
    return gated_delta_pallas(q, k, v, g, beta, scale, state, bounds, chunk)


def _chunked(static: tuple[float, int], inputs: Inputs, bounds: Bounds) -> ScanResult:
    (scale, chunk), (q, k, v, g, beta, state) = static, inputs
    return gated_delta_xla(q, k, v, g, beta, scale, state, bounds, chunk)


gated_delta_pallas_with_gradient = with_chunked_gradient(_launch, _chunked)
"""((scale, chunk), (q, k, v, g, beta, initial state), bounds) on the default backend."""
