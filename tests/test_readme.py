"""What the READMEs say is there, and runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXPERIMENTS = (ROOT / "experiments" / "README.md").read_text()


def test_every_experiment_and_every_file_has_a_row():
    for path in (ROOT / "experiments").glob("*.py"):
        listed = f"`{path.name}`" in EXPERIMENTS or (
            path.stem.startswith("policy_") and "`policy_*.py`" in EXPERIMENTS
        )
        assert listed or path.name == "__init__.py", path.name
        runs = "run_main(main)" in path.read_text() and path.stem != "run_table"
        assert not runs or f"python -m experiments.{path.stem}" in EXPERIMENTS, path.name
    for name in re.findall(r"`([a-z_]+\.py)`", EXPERIMENTS):
        assert (ROOT / "experiments" / name).exists(), name


def test_commands_are_single_lines_that_stay_in_the_checkout():
    commands = [
        line.strip() for line in README.splitlines() if line.startswith("    python3 -m venv")
    ]
    assert len(commands) == 2
    for command in commands:
        assert shlex.split(command)[:4] == ["python3", "-m", "venv", ".venv"]
        assert "--constraint constraints.txt" in command


@pytest.mark.slow
def test_the_example_runs_and_restores(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    restored = re.search(r"'restored': (\d+)", done.stdout)
    assert restored is not None, done.stdout
    assert int(restored[1]) == 18 * 100 // 64 * 64
    assert (tmp_path / "snapshots").is_dir()
