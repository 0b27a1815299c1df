"""Rows of the README's run table, written from run folders.

    python -m experiments.run_table runs/tail_split-20250131-142530

Hardware: none. Expected time: a second. Expected result: one Markdown row a folder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from experiments import (
    ablate_report,
    bench_against_torch,
    bench_kernels_report,
    bench_prefill,
    leave_one_out_report,
    policy_report,
    tail_split,
)
from experiments.errors import UserError, run_main
from experiments.run_folder import read_config, read_rows
from experiments.training import report as training_report

Rows = list[dict[str, Any]]
HEADLINES: dict[str, Callable[[Rows], str]] = {
    "ablate_interval": ablate_report.headline,
    "bench_against_torch": bench_against_torch.headline,
    "bench_kernels": bench_kernels_report.headline,
    "bench_prefill": bench_prefill.headline,
    "compare_policies": policy_report.headline,
    "leave_one_out": leave_one_out_report.headline,
    "tail_split": tail_split.headline,
    "train_lm": training_report.headline,
}


@dataclass(frozen=True)
class RunTable:
    """Print rows of the run table."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders."""


def row(folder: Path) -> str:
    """One Markdown row: date, experiment, commit, machine, versions, headline.

    Args:
        folder: a run folder with at least one finished cell.

    Returns:
        The row.

    Raises:
        UserError: no run folder, nothing finished in it, or an experiment without a headline.
    """
    config = read_config(folder)
    experiment, environment = config["experiment"], config["environment"]
    if experiment not in HEADLINES:
        raise UserError(f"{folder}: no headline is known for experiment {experiment!r}")
    rows = read_rows(folder)
    if not rows:
        raise UserError(f"{folder}: no cell is finished")
    commits = ", ".join(
        (commit["commit"] or "unknown")[:7] + ("+" if commit["dirty"] else "")
        for commit in config["commits"]
    )
    devices = dict.fromkeys(environment.get("devices", ()))
    machine = ", ".join((*devices, f"{environment['cpu_count']} cores"))
    versions = f"jax {environment['jax']}, Python {environment['python']}"
    options = config["config"]
    command = f"`{experiment}{' --quick' if options['quick'] else ''}`"
    inputs = options.get("traces") or filter(None, [options.get("workload")])
    if told := ", ".join(f"{i['requests']:,} requests of {i['name']}" for i in inputs):
        command += f" on {told}"
    cells = (config["created"][:10], command, commits, machine, versions)
    return f"| {' | '.join(cells)} | {HEADLINES[experiment](rows)} |"


def main() -> None:
    """Parse the command line and print the rows."""
    options = tyro.cli(RunTable, prog="python -m experiments.run_table")
    for folder in options.folders:
        print(row(folder))


if __name__ == "__main__":
    run_main(main)
