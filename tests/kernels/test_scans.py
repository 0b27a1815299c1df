"""The shared suite over every scan, implementation and shape."""

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.kernels.conv_case import CONV
from tests.kernels.gated_delta_case import GATED_DELTA
from tests.kernels.linear_case import LINEAR
from tests.kernels.scan_suite import CHECKS, Example, check_gradients, check_identity_rows, draws
from tests.kernels.ssd_case import SSD

OPS = (SSD, CONV, GATED_DELTA, LINEAR)

CASES = [
    pytest.param(op, implementation, shape, id=f"{op}-{implementation}-{shape}")
    for op in OPS
    for implementation in op.implementations
    for shape in op.shapes
]


def _check(op, implementation, shape, data) -> None:
    example = Example(op, shape, implementation, data.draw(draws(shape)))
    for check in CHECKS:
        if check is check_identity_rows and not op.identity:
            continue
        check(example)


@pytest.mark.parametrize(("op", "implementation", "shape"), [c for c in CASES if c.values[2].core])
@hypothesis.settings(max_examples=12)
@hypothesis.given(data=st.data())
def test_scan(op, implementation, shape, data) -> None:
    _check(op, implementation, shape, data)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "implementation", "shape"), CASES)
@hypothesis.settings(max_examples=60)
@hypothesis.given(data=st.data())
def test_scan_at_length(op, implementation, shape, data) -> None:
    _check(op, implementation, shape, data)


GRADIENT_CASES = [
    pytest.param(*case.values, id=case.id, marks=() if case.values[2].core else pytest.mark.slow)
    for case in CASES
    if case.values[1] != "reference"
]


@pytest.mark.parametrize(("op", "implementation", "shape"), GRADIENT_CASES)
@hypothesis.settings(max_examples=5)
@hypothesis.given(data=st.data())
def test_gradients(op, implementation, shape, data) -> None:
    check_gradients(Example(op, shape, implementation, data.draw(draws(shape))))
