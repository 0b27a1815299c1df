"""Which package may import which: planner and kernels at the ground, hybrid above, experiments on
top."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
OURS = {"planner", "kernels", "hybrid", "experiments"}
MAY_IMPORT = {
    "planner": set(),
    "kernels": set(),
    "hybrid": {"planner", "kernels"},
    "experiments": {"planner", "kernels", "hybrid"},
}
PLANNER_MAY_USE = {"numpy", "jaxtyping"}  # jaxtyping names shapes and loads no jax


def imported_packages(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; the package name says more"
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_imports_point_downwards(package):
    allowed = MAY_IMPORT[package] | {package}
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths
    for path in paths:
        upwards = set(imported_packages(path)) & OURS - allowed
        assert not upwards, f"{path.relative_to(ROOT)} imports {sorted(upwards)}"


def test_planner_needs_no_array_library_but_numpy():
    import sys

    for path in (ROOT / "planner").rglob("*.py"):
        third_party = set(imported_packages(path)) - sys.stdlib_module_names - OURS
        assert third_party <= PLANNER_MAY_USE, f"{path.relative_to(ROOT)}: {sorted(third_party)}"
