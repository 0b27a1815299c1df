"""Lowering for machines that are not here, and reading what was lowered."""

import math
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh

TPU_KINDS = ("TPU v5 lite", "TPU v5", "TPU v6 lite", "TPU7x")
GPU_KIND = "NVIDIA H200"
KERNEL_TARGETS = ("tpu_custom_call", "__gpu$xla.gpu.triton", "mosaic_gpu_v2")


def lowered_text(platform: str, kind: str, function: Callable[..., Any], *arguments: Any) -> str:
    """The StableHLO module of a function on a platform ("tpu" or "cuda") and device kind."""
    device = AbstractDevice(
        device_kind=kind,
        num_cores=132 if platform == "cuda" else 1,
        platform="gpu" if platform == "cuda" else platform,
    )
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in KERNEL_TARGETS[1:]]
    with (
        warnings.catch_warnings(),
        jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)),
    ):
        # From jax 0.11 on; the Mosaic GPU launchers are its successors.
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated")
        exported = export.export(jax.jit(function), platforms=[platform], disabled_checks=checks)(
            *arguments
        )
    return exported.mlir_module()


def kernel_calls(text: str) -> int:
    """Kernel launches in a module: Mosaic on a TPU, Triton or Mosaic GPU on a GPU."""
    return sum(text.count(f"custom_call @{name}(") for name in KERNEL_TARGETS)


def largest_tensor(text: str) -> int:
    """Elements of the largest tensor in a StableHLO module."""
    return max(
        math.prod(map(int, axes.split("x")[:-1]))
        for axes in re.findall(r"tensor<((?:\d+x)+)", text)
    )


def dots(function: Callable[..., Any], *arguments: Any) -> list[tuple[Any, Any, bool, Any]]:
    """Every matrix product that a function traces, kernels and loops included.

    Returns:
        For each: both operands' dtypes, whether it asks for the highest precision, the result's.
    """
    found = []
    for equation in _equations(jax.make_jaxpr(function)(*arguments).jaxpr):
        if equation.primitive.name == "dot_general":
            left, right = (operand.aval.dtype for operand in equation.invars)
            precision = equation.params["precision"]
            pair = precision if isinstance(precision, tuple) else (precision, precision)
            highest = all(part == jax.lax.Precision.HIGHEST for part in pair)
            found.append((left, right, highest, equation.outvars[0].aval.dtype))
    return found


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in jax.tree.leaves(value, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)


def dot_precisions(text: str) -> list[tuple[str, str, str]]:
    """Operand dtypes and precision of each `dot_general` in a StableHLO module."""
    found = []
    for line in text.splitlines():
        if "stablehlo.dot_general" in line:
            precision = re.search(r"precision = \[(\w+), (\w+)\]", line)
            types = re.search(r": \(tensor<(?:\d+x)*(\w+)>, tensor<(?:\d+x)*(\w+)>\)", line)
            assert types is not None, line
            found.append((types[1], types[2], precision[1] if precision else "DEFAULT"))
    return found


def assert_dots_on_purpose(found: list[tuple[Any, Any, bool, Any]]) -> None:
    """fp32 operands ask for the highest precision, bf16 pairs do not; all products end in fp32."""
    assert found
    for left, right, highest, result in found:
        assert left == right, f"mixed operands {left}, {right}"
        assert highest == (left == jnp.float32), f"{left} product, highest precision: {highest}"
        assert result == jnp.float32, f"a product of {left} ends in {result}"
