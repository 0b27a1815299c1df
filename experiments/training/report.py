"""Table, plot and model card of a training run; reads config.json and metrics.jsonl alone."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments import plots
from experiments.environment import PACKAGES
from experiments.run_folder import read_config, read_rows
from experiments.tables import print_table

Row = dict[str, Any]
SCORES = (
    ("model_bits_per_byte", "this model, bf16 weights"),
    ("five_gram_bits_per_byte", "byte 5-gram, Kneser-Ney, same training text"),
    ("xz_bits_per_byte", "xz -9e on the held-out text alone"),
    ("xz_after_training_text_bits_per_byte", "xz -9e after the training text"),
)
_SMOOTHED_STEPS = 25


def split_rows(folder: Path) -> tuple[list[Row], Row]:
    """The lines of steps, in order, and the line of the final judgement."""
    rows = read_rows(folder)
    steps = sorted((row for row in rows if "step" in row), key=lambda row: row["step"])
    return steps, next(row for row in rows if "judged" in row)


def headline(rows: list[Row]) -> str:
    """The run in one line.

    Args:
        rows: of metrics.jsonl.

    Returns:
        Held-out scores; where the run is not finished, how far it is.
    """
    judged = next((row for row in rows if "judged" in row), None)
    if judged is None:
        return f"{sum('step' in row for row in rows):,} steps so far"
    model, gram, xz = (judged[key] for key, _ in SCORES[:3])
    return (
        f"{judged['parameters']:,} parameters, {judged['training_s'] / 60:.0f} minutes: "
        f"{model:.3f} bits a held-out byte (5-gram {gram:.3f}, xz {xz:.3f})"
    )


def show(folder: Path) -> None:
    """Print the scores."""
    steps, judged = split_rows(folder)
    rows = [(name, f"{judged[key]:.3f}") for key, name in SCORES]
    title = f"Held-out text, bits a byte, after {len(steps)} steps"
    print_table(title, ("", "bits/byte"), rows)
    print(f"\nWeights, loss.png and metrics.jsonl are in {folder}")


def plot_losses(folder: Path) -> None:
    """Draw loss.png: training loss by step, held-out scores, baselines as lines."""
    steps, judged = split_rows(folder)
    figure, (ax,) = plots.new_figure(width_in=6.2)
    numbers = np.array([row["step"] for row in steps])
    losses = np.array([row["loss_bits_per_byte"] for row in steps])
    width = min(_SMOOTHED_STEPS, len(losses))
    smooth = np.convolve(losses, np.full(width, 1 / width), "valid")
    look = plots.style(0) | {"marker": ""}
    ax.plot(numbers, losses, **look | {"linewidth": 0.5, "alpha": 0.35})
    ax.plot(numbers[width - 1 :], smooth, label=f"training, mean of {width} steps", **look)
    seen = [row for row in steps if "held_out_bits_per_byte" in row]
    if seen:
        ax.plot(
            [row["step"] for row in seen],
            [row["held_out_bits_per_byte"] for row in seen],
            label="held out (its first part)",
            **plots.style(1),
        )
    for index, (key, name) in enumerate(SCORES[1:3], start=2):
        look = plots.style(index) | {"marker": ""}
        ax.axhline(judged[key], label=name.split(",")[0], **look)
    top = float(np.quantile(losses, 0.9)) + 0.5
    ax.set_ylim(0.9 * min(losses.min(), judged["model_bits_per_byte"]), top)
    ax.set_xlabel("step", fontsize=9.5)
    ax.set_ylabel("bits a byte", fontsize=9.5)
    plots.legend_below(figure, [ax], 2)
    plots.save(figure, folder / "loss.png")


def describe_run(folder: Path, path: Path) -> None:
    """Write the model card, from the run's own figures.

    Args:
        folder: a finished run.
        path: of the card.
    """
    content, (steps, judged) = read_config(folder), split_rows(folder)
    config, environment = content["config"], content["environment"]
    tokens = len(steps) * config["accumulate"] * config["batch"] * config["length"]
    scores = "\n".join(f"| {name} | {judged[key]:.3f} |" for key, name in SCORES)
    versions = ", ".join(f"{name} {environment[name]}" for name in ("python", *PACKAGES))
    ran = f"{environment['machine']}; {versions}; commit {content['commits'][0]['commit']}"
    path.write_text(
        f"""# {config["preset"]}

A byte-level model of {judged["parameters"]:,} parameters. Trained with

    {judged["command"]}

in {judged["training_s"] / 60:.0f} minutes of steps on {environment["cpu_count"]} cores
({ran}).
It saw {tokens:,} bytes, {tokens / judged["train_bytes"]:.2f} passes over
{judged["train_bytes"]:,} bytes in {judged["train_files"]} files. The {judged["held_out_files"]}
held-out files ({judged["held_out_bytes"]:,} bytes) were never trained on.

| on the held-out files | bits a byte |
|---|---|
{scores}

It writes, after the first {_prompt_lines()} lines (temperature 0.6):

```python
{judged["sample"]}
```

By default the text is the source of Python's standard library (PSF licence), without its tests and
generated tables.
"""
    )


def _prompt_lines() -> int:
    from experiments.training.sample import PROMPT

    return PROMPT.count(b"\n") + 1
