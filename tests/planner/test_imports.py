import pkgutil
import subprocess
import sys

import planner

SCRIPT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
loaded = {name.split(".")[0] for name in sys.modules}
print(sorted(loaded & {"jax", "jaxlib", "flax", "orbax", "hybrid", "kernels", "experiments"}))
"""


def test_the_planner_imports_no_jax_and_nothing_of_ours():
    names = [info.name for info in pkgutil.walk_packages(planner.__path__, "planner.")]
    assert "planner.schedule" in names
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, "planner", *names],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"
