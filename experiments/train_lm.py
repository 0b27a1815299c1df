"""Train a byte-level hybrid model on Python source, or on any folder of text.

Fp32 master weights with products in bf16, AdamW with warm-up and cosine, clipping, accumulation.
A run that is killed goes on from its last checkpoint with the same losses, bit for bit. At the end
the held-out text is scored beside a byte 5-gram and xz, and the weights are written in bf16.

    python -m experiments.train_lm
    python -m experiments.train_lm --data ~/notes --steps 500

Hardware: two CPU cores and 4 GB.
Expected time: about 40 minutes on two cores.
Expected result: held-out bits per byte clearly below those of the 5-gram and of xz; near those of
xz that has seen the training text.
"""

import math
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from experiments.environment import describe_environment
from experiments.errors import UserError, as_user_error, run_main
from experiments.options import NOT_CONFIG, Options, parse, started
from experiments.progress import SweepProgress
from experiments.run_folder import RunFolder, read_rows
from experiments.training.report import describe_run, plot_losses, show

if TYPE_CHECKING:
    from experiments.training.checkpoints import Checkpoints
    from experiments.training.corpus import Corpus
    from experiments.training.step import Trainer, TrainState


@dataclass(frozen=True)
class TrainLM(Options):
    """Train a byte-level hybrid model."""

    preset: str = "python-1m"
    """Model preset; its vocabulary is the 256 bytes."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of activations and products; weights and moments are fp32."""
    data: Path | None = None
    """Folder of text; by default the sources of this Python's standard library."""
    steps: int = 1600
    """Updates of the weights."""
    length: int = 256
    """Tokens of a sequence."""
    batch: int = 16
    """Sequences that run together."""
    accumulate: int = 1
    """Batches whose gradients make one update."""
    learning_rate: float = 4e-3
    """At its peak; it ends at a tenth."""
    warmup: int = 100
    """Steps of linear growth of the learning rate."""
    weight_decay: float = 0.1
    """Of matrices."""
    clip: float = 1.0
    """Largest norm of a gradient."""
    checkpoint_every: int = 100
    """Steps between checkpoints."""
    judge_every: int = 200
    """Steps between looks at some of the held-out text; a multiple of --checkpoint-every."""

    def __post_init__(self) -> None:
        """Check what can be checked without text or model."""
        super().__post_init__()
        positive = ("steps", "length", "batch", "accumulate", "checkpoint_every", "judge_every")
        for name in positive:
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: expected >= 1")
        if self.length < 2 or self.length % 2:
            raise UserError(f"--length {self.length}: expected an even number")
        if self.steps % self.checkpoint_every or self.judge_every % self.checkpoint_every:
            raise UserError(
                f"--steps {self.steps} and --judge-every {self.judge_every}: expected multiples of "
                f"--checkpoint-every {self.checkpoint_every}"
            )
        if not 0 <= self.warmup < self.steps:
            raise UserError(f"--warmup {self.warmup}: expected 0 to {self.steps - 1}")
        for name in ("learning_rate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(
                    f"--{name.replace('_', '-')} {getattr(self, name)}: expected a number > 0"
                )
        if not 0 <= self.weight_decay < math.inf:
            raise UserError(f"--weight-decay {self.weight_decay}: expected a number >= 0")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed {self.seed}: expected 0 to {2**32 - 1}")

    def config(self) -> dict[str, Any]:
        """The options that figures depend on; the text by its content, not by its path."""
        return {name: value for name, value in super().config().items() if name != "data"}

    def command(self) -> str:
        """The command line that asks for this, without places on the machine."""
        words = ["python", "-m", "experiments.train_lm"]
        for option in fields(self):
            value, flag = getattr(self, option.name), f"--{option.name.replace('_', '-')}"
            if value == option.default or option.name in NOT_CONFIG:
                continue
            place = "DIR" if option.name == "data" else str(value)
            words += [flag] if value is True else [flag, place]
        return shlex.join(words)

    def shrunk(self) -> "TrainLM":
        """The same run with everything small, where --quick asks for it."""
        if not self.quick:
            return self
        return replace(
            self,
            preset="tiny",
            steps=6,
            warmup=2,
            checkpoint_every=3,
            judge_every=3,
            length=64,
            batch=2,
        )


def build(options: TrainLM) -> "Trainer":
    """The compiled programs of a run."""
    from experiments.training.step import Recipe, Trainer, master_weights
    from hybrid.presets import preset

    with as_user_error(f"--preset {options.preset}"):
        config = preset(options.preset)
    if config.vocab_size != 256:
        raise UserError(
            f"--preset {options.preset}: its vocabulary has {config.vocab_size:,} tokens; expected "
            "256, one a byte"
        )
    recipe = Recipe(
        options.steps,
        options.warmup,
        options.learning_rate,
        options.weight_decay,
        options.clip,
    )
    return Trainer(config, master_weights(options.dtype), recipe)


def train(
    options: TrainLM,
    run: RunFolder,
    trainer: "Trainer",
    corpus: "Corpus",
    batches: Sequence[np.ndarray],
    checkpoints: "Checkpoints",
) -> "TrainState":
    """Run the steps that are still to do, `batches` by number of the step; the state at the end."""
    stretches = [
        {"from_step": first} for first in range(0, options.steps, options.checkpoint_every)
    ]
    todo = run.unfinished(stretches)
    done = (len(stretches) - len(todo)) * options.checkpoint_every
    state = checkpoints.load(done) if done else trainer.init(options.seed)

    def steps(first: int) -> Iterator[dict[str, Any]]:
        nonlocal state
        for step in range(first, first + options.checkpoint_every):
            began_s = time.perf_counter()
            state, figures = trainer.step(state, batches[step])
            row: dict[str, Any] = {"step": step + 1, **figures}
            row["step_s"] = time.perf_counter() - began_s
            last = step + 1 == first + options.checkpoint_every
            if last and (step + 1) % options.judge_every == 0:
                some = corpus.held_out[: 64 * options.length]
                row["held_out_bits_per_byte"] = trainer.bits_per_byte(
                    state.params, some, options.length, 2 * options.batch
                )
            if last:  # the stretch is finished once its last line is there: the state comes first
                checkpoints.save(step + 1, state)
            yield row

    with SweepProgress(len(todo), options.checkpoint_every, "steps") as progress:
        for notice in run.notices:
            progress.console.print(f"note: {notice}")
        for cell in todo:
            first = int(cell["from_step"])
            progress.start_cell(f"step {first} to {first + options.checkpoint_every}")
            run.write_cell(cell, progress.count(steps(first)), options.checkpoint_every)
            progress.end_cell()
    return state


def judge(
    options: TrainLM,
    run: RunFolder,
    trainer: "Trainer",
    corpus: "Corpus",
    state: "TrainState",
    command: str,
) -> None:
    """Score all held-out text with the weights as they are published, and with the baselines."""
    import jax
    import jax.numpy as jnp

    from experiments.training.baselines import NGram, xz_bits_per_byte
    from experiments.training.sample import write_text

    cell = {"judged": "held-out text"}
    if run.is_finished(cell):
        return
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(leaf.dtype), state.params)
    text, length = corpus.held_out, options.length
    losses = [row for row in read_rows(run.path) if "step" in row]
    row = {
        "held_out_bytes": len(text),
        "held_out_files": len(corpus.held_out_files),
        "train_bytes": len(corpus.train),
        "train_files": len(corpus.train_files),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "training_s": sum(row["step_s"] for row in losses),
        "model_bits_per_byte": trainer.bits_per_byte(rounded, text, length, 2 * options.batch),
        "five_gram_bits_per_byte": NGram(corpus.train).bits_per_byte(text),
        "xz_bits_per_byte": xz_bits_per_byte(text),
        "xz_after_training_text_bits_per_byte": xz_bits_per_byte(text, corpus.train),
        "command": command,
        "sample": write_text(trainer.config, rounded, options.seed),
    }
    run.write_cell(cell, [row], 1)


def main() -> None:
    """Train, judge, write weights, table and plot."""
    asked = parse(TrainLM, "train_lm")
    options = asked.shrunk()
    with started(options):
        from experiments.training.checkpoints import Checkpoints
        from experiments.training.corpus import describe_corpus, read_corpus, sequences
        from hybrid.trained import WEIGHTS, save_weights

        trainer, corpus = build(options), read_corpus(options.data)
        batches = sequences(
            corpus.train, options.length, options.batch, options.accumulate, options.seed
        )
        config = options.config() | {"text": describe_corpus(corpus)}
        ran_on = describe_environment() | {name: version(name) for name in ("grain", "optax")}
        with RunFolder.open(options.out, "train_lm", config, ran_on) as run:
            with Checkpoints(run.path / "checkpoints", trainer.abstract()) as checkpoints:
                state = train(options, run, trainer, corpus, batches, checkpoints)
            judge(options, run, trainer, corpus, state, asked.command())
            save_weights(run.path / "weights" / WEIGHTS, state.params)
            describe_run(run.path, run.path / "weights" / "README.md")
            plot_losses(run.path)
            show(run.path)


if __name__ == "__main__":
    run_main(main, "the last checkpoint is kept; run again with the same --out to go on")
