"""Bad arguments: the error names what, where and what was expected."""

import jax.numpy as jnp
import pytest

from kernels.causal_conv import causal_conv, causal_conv_step
from kernels.ssd import ssd_scan, ssd_step


def _ssd(**changes):
    given = {
        "x": jnp.zeros((2, 8, 4, 3)),
        "dt": jnp.zeros((2, 8, 4)),
        "A": jnp.zeros(4),
        "B": jnp.zeros((2, 8, 2, 5)),
        "C": jnp.zeros((2, 8, 2, 5)),
    }
    return ssd_scan(**given | changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dt": jnp.zeros((2, 7, 4))}, ValueError, r"dt has shape \(2, 7, 4\).* = \(2, 8, 4\)"),
        ({"A": jnp.zeros((4, 1))}, ValueError, r"A has shape \(4, 1\); expected \[heads\] = \(4\)"),
        (
            {"B": jnp.zeros((2, 8, 3, 5)), "C": jnp.zeros((2, 8, 3, 5))},
            ValueError,
            r"B has 3 groups; expected a divisor of 4",
        ),
        ({"C": jnp.zeros((2, 8, 2, 6))}, ValueError, r"C has shape .* = \(2, 8, 2, 5\)"),
        (
            {"x": jnp.zeros((2, 8, 4, 3), jnp.int32)},
            TypeError,
            r"x has dtype int32; expected float",
        ),
        ({"x": [1.0]}, TypeError, r"x is a list; expected an array"),
        (
            {"B": jnp.zeros((2, 8, 2, 5), jnp.bfloat16)},
            TypeError,
            r"expected one dtype for x, B, C",
        ),
        ({"initial_state": jnp.zeros((2, 4, 5, 3))}, ValueError, r"initial_state has shape"),
        (
            {"initial_state": jnp.zeros((2, 4, 3, 5), jnp.bfloat16)},
            TypeError,
            r"initial_state has dtype bfloat16; expected float32",
        ),
        ({"lengths": jnp.zeros(3, jnp.int32)}, ValueError, r"lengths has shape \(3,\)"),
        ({"lengths": jnp.zeros(2)}, TypeError, r"lengths has dtype float32; expected int32"),
        (
            {"capture_offsets": jnp.zeros(2, jnp.int32)},
            ValueError,
            r"capture_offsets has shape \(2,\); expected \[batch slots\] = \(2, \?\)",
        ),
        ({"chunk": 0}, ValueError, r"chunk is 0; expected a positive int"),
        ({"chunk": 256}, ValueError, r"chunk is 256; expected at most 128"),
        ({"implementation": "cuda"}, ValueError, r"implementation is 'cuda'; expected one of auto"),
    ],
)
def test_ssd_scan(changes, error, message) -> None:
    with pytest.raises(error, match=f"^ssd_scan: {message}"):
        _ssd(**changes)


def test_ssd_step() -> None:
    with pytest.raises(ValueError, match=r"^ssd_step: state has shape \(1, 2, 3, 5\)"):
        ssd_step(
            jnp.zeros((1, 2, 3)),
            jnp.zeros((1, 2)),
            jnp.zeros(2),
            jnp.zeros((1, 1, 4)),
            jnp.zeros((1, 1, 4)),
            jnp.zeros((1, 2, 3, 5)),
        )


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"weight": jnp.zeros((4, 5))}, ValueError, r"weight has shape \(4, 5\)"),
        (
            {"bias": jnp.zeros(5)},
            ValueError,
            r"bias has shape \(5,\); expected \[channels\] = \(6\)",
        ),
        ({"initial_state": jnp.zeros((2, 4, 6))}, ValueError, r"initial_state has shape"),
        ({"start": jnp.zeros((2, 1), jnp.int32)}, ValueError, r"start has shape \(2, 1\)"),
        ({"implementation": "pallas"}, ValueError, r"implementation 'pallas' does not exist"),
        ({"activation": "relu"}, ValueError, r"activation is 'relu'; expected None or 'silu'"),
    ],
)
def test_causal_conv(changes, error, message) -> None:
    given = {"x": jnp.zeros((2, 8, 6)), "weight": jnp.zeros((4, 6))}
    with pytest.raises(error, match=f"^causal_conv: {message}"):
        causal_conv(**given | changes)


def test_causal_conv_step() -> None:
    with pytest.raises(ValueError, match=r"^causal_conv_step: state has shape"):
        causal_conv_step(jnp.zeros((2, 6)), jnp.zeros((4, 6)), None, jnp.zeros((2, 4, 6)))
