"""Continue a text with a model, as the tokens come, and tell what the prefix cache did.

    python -m experiments.generate --model ./checkpoint --prompt-file notes.txt --snapshots saved
    python -m experiments.generate --model ./checkpoint --prompt-file notes.txt --snapshots saved

A second run restores what the first one saved, also in another process: its report says
`restored ... from disk`, and the text is the same. Several prompts continue one conversation, each
with its report; from the second on, what they share is restored from memory:

    python -m experiments.generate --model default --prompt-file notes.txt --prompt "In short: " \\
        --prompt "In one word: "

The model is a folder as the transformers library saves it, or a preset: with the weights that come
with it, or random ones. Tokens are those of the folder's tokenizer.json, or bytes; prompts are
taken as they are, without a chat template. The text goes to standard output, everything about it to
standard error.

Hardware: what the model needs. Expected time: on two cores a small model compiles for about 15
seconds, three where --compilation-cache has its programs; then a prompt takes what `bench_prefill`
says. The reported times are without that.
Expected result: a repeated prompt of more than two tiles has the reason `hit` and recomputes at
most a tile and a block.
"""

import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import numpy as np
import tyro

from experiments.errors import UserError, as_user_error, run_main
from experiments.model_source import find_model
from experiments.options import ModelOptions, parse, started
from experiments.request_report import report_lines
from experiments.tables import megabytes
from experiments.text import TextStream, Vocabulary, read_vocabulary
from experiments.warm_up import warm_up

if TYPE_CHECKING:
    from hybrid.engine import Engine
    from hybrid.runner import ModelRunner

DECODE_STEPS = 8
"""Tokens a decode call: so many come at once on the screen."""
_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_CONTROLS = _PICTURES | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


@dataclass(frozen=True, kw_only=True)
class Generate(ModelOptions):
    """Continue a text with a model and report what the prefix cache did."""

    model: Annotated[str, tyro.conf.arg(metavar="PATH|PRESET")]
    """Folder with config.json and .safetensors weights, or a preset."""
    prompt: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """The text to continue. Given again, the next turn: it follows the answer to the one before."""
    prompt_file: Path | None = None
    """File with the first turn; - reads standard input. Any --prompt follows it."""
    max_new_tokens: int = 128
    """Tokens of an answer, at most."""
    temperature: float = 0.0
    """0 takes the most likely token each time."""
    snapshots: Path | None = None
    """Folder where snapshots are saved and looked for; by default they end with the process."""
    interval: int = 16
    """A snapshot every so many blocks, beside the one at the prompt's tail; 0 for that one only."""
    capacity: int | None = None
    """Tokens of prompts and answers that fit; by default what the turns can come to."""
    ignore_eos: bool = False
    """Go on after a token that ends the text, as the folder's config names them."""
    seed: int = 0
    """Seed of the draws, and of a preset's weights."""

    def __post_init__(self) -> None:
        """Check what can be checked without a model."""
        super().__post_init__()
        bounds = {"max_new_tokens": (1, math.inf), "interval": (0, math.inf), "seed": (0, 2**32)}
        if self.capacity is not None:
            bounds["capacity"] = (1, math.inf)
        for name, (least, bound) in bounds.items():
            value = getattr(self, name)
            if not least <= value < bound:
                words = f"at least {least}" if bound == math.inf else f"{least}..{bound - 1}"
                raise UserError(f"--{name.replace('_', '-')} {value}: expected {words}")
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"--temperature {self.temperature}: expected a number of at least 0")
        if self.snapshots is not None and self.snapshots.exists() and not self.snapshots.is_dir():
            raise UserError(f"--snapshots {self.snapshots}: is a file; expected a folder")
        if not self.prompt and self.prompt_file is None:
            raise UserError("expected --prompt TEXT or --prompt-file PATH")


@dataclass(frozen=True)
class Turn:
    """What is said to the model in one turn.

    Attributes:
        option: where it comes from, for messages.
        tokens: int32 [n].
    """

    option: str
    tokens: np.ndarray


def note(text: str) -> None:
    """Tell something about the run on standard error, after what standard output has so far."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


def show(text: str, out: TextIO) -> None:
    """Write text at once, whatever characters it has.

    Args:
        text: as it comes.
        out: a terminal gets pictures of control characters, which a model may draw as any other.
    """
    if out.isatty():
        text = text.translate(_CONTROLS)
    encoding = out.encoding or "utf-8"
    out.write(text.encode(encoding, "replace").decode(encoding))
    out.flush()


def read_turns(options: Generate, vocabulary: Vocabulary) -> list[Turn]:
    """The turns that the options name, as tokens.

    Args:
        options: --prompt-file, then every --prompt.
        vocabulary: of the model.

    Raises:
        UserError: a file that cannot be read, a turn without text or without tokens.
    """
    texts: list[tuple[str, bytes]] = []
    if options.prompt_file is not None:
        option = f"--prompt-file {options.prompt_file}"
        with as_user_error(option):
            stdin = str(options.prompt_file) == "-"
            text = sys.stdin.buffer.read() if stdin else options.prompt_file.read_bytes()
        texts.append((option, text))
    for number, prompt in enumerate(options.prompt, start=1):
        option = "--prompt" if len(options.prompt) == 1 else f"--prompt, number {number}"
        texts.append((option, prompt.encode("utf-8", "surrogateescape")))
    turns: list[Turn] = []
    for option, text in texts:
        if not text:
            raise UserError(f"{option}: empty; expected text to continue")
        try:
            tokens = vocabulary.encode(text, first=not turns)
        except UserError as error:
            raise UserError(f"{option}: {error}") from error
        if not tokens.size:
            raise UserError(f"{option}: the tokenizer makes no token of it")
        turns.append(Turn(option, tokens))
    return turns


def needed_capacity(turns: Sequence[Turn], max_new_tokens: int, capacity: int | None) -> int:
    """Tokens that the whole conversation can come to.

    Args:
        turns: all of them.
        max_new_tokens: of each answer.
        capacity: what the user allows, None for no limit.

    Raises:
        UserError: the first turn that may not fit, with the counts.
    """
    total = 0
    for turn in turns:
        before = total
        total += len(turn.tokens) + max_new_tokens
        if capacity is not None and total > capacity:
            raise UserError(
                f"{turn.option}: {len(turn.tokens):,} prompt tokens and {max_new_tokens:,} new "
                f"ones after {before:,} make {total:,}; --capacity is {capacity:,}"
            )
    return total if capacity is None else capacity


class Answer:
    """One answer on its way to the screen.

    Args:
        stream: turns its tokens into text.
        out: where the text goes.
    """

    def __init__(self, stream: TextStream, out: TextIO) -> None:
        self._stream, self._out = stream, out
        self._last = "\n"
        self._times_s: list[float] = []

    def on_tokens(self, tokens: np.ndarray) -> None:
        """Show what new tokens add to the text."""
        self._times_s.append(time.perf_counter())
        self._show(self._stream.feed(tokens))

    def end(self) -> None:
        """Show the rest and end the line."""
        self._show(self._stream.finish())
        if self._last != "\n":
            self._show("\n")

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last."""
        return self._times_s[-1] - self._times_s[0]

    def _show(self, text: str) -> None:
        if text:
            show(text, self._out)
            self._last = text[-1]


def converse(
    engine: "Engine",
    options: Generate,
    turns: Sequence[Turn],
    vocabulary: Vocabulary,
    end_tokens: Sequence[int],
) -> None:
    """Run the turns, each on top of what was said before.

    Args:
        engine: with room for all of it.
        options: --max-new-tokens, --temperature, --seed.
        turns: what is said.
        vocabulary: of the model.
        end_tokens: ids that end an answer.
    """
    said = np.zeros(0, np.int32)
    for number, turn in enumerate(turns, start=1):
        said = np.concatenate([said, turn.tokens])
        answer = Answer(vocabulary.stream(said), sys.stdout)
        restores = engine.disk.stats.restores if engine.disk is not None else 0
        try:
            completion = engine.generate(
                said,
                options.max_new_tokens,
                temperature=options.temperature,
                seed=options.seed,
                stop_tokens=end_tokens,
                on_tokens=answer.on_tokens,
            )
        finally:
            answer.end()
        lines = report_lines(
            completion.report,
            new_tokens=len(completion.tokens),
            decode_s=answer.decode_s,
            from_disk=engine.disk is not None and engine.disk.stats.restores > restores,
            ended=int(completion.tokens[-1]) in end_tokens,
        )
        note("\n".join([f"-- turn {number} of {len(turns)}", *lines]))
        said = np.concatenate([said, completion.tokens])


def open_engine(runner: "ModelRunner", options: Generate) -> "Engine":
    """An engine that captures inside the pass.

    Args:
        runner: the model.
        options: --interval, --snapshots.

    Raises:
        UserError: the folder for snapshots cannot be used, or too little memory.
    """
    from hybrid import Engine

    folder = options.snapshots
    if folder is not None:
        with as_user_error(f"--snapshots {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
    with as_user_error(f"--model {options.model}"):
        engine = Engine(runner, mode="in_pass", interval=options.interval, directory=folder)
    if folder is not None and engine.disk is None:
        raise UserError(f"--snapshots {folder}: cannot be used, see above")
    return engine


def run(options: Generate) -> None:
    """Load the model and run the conversation.

    Args:
        options: the command line.

    Raises:
        UserError: see `find_model`, `read_turns`, `needed_capacity`, `open_engine`.
    """
    from hybrid import Compute, RunnerConfig

    source = find_model(options.model)
    vocabulary = read_vocabulary(source.folder, source.config.vocab_size)
    turns = read_turns(options, vocabulary)
    capacity = needed_capacity(turns, options.max_new_tokens, options.capacity)
    if source.weights == "random":
        seed = options.seed
        note(f"note: preset {source.name} has random weights (seed {seed}), so the text is noise")
    began_s = time.perf_counter()
    note(f"loading {source.name} and compiling its programs")
    shapes = RunnerConfig(
        capacity=capacity,
        tile=options.tile,
        block_size=options.block_size,
        decode_steps=DECODE_STEPS,
    )
    runner = source.runner(Compute(dtype=options.dtype), shapes, options.seed)
    warm_up(runner)
    note(f"ready after {time.perf_counter() - began_s:.1f} s")
    end_tokens = () if options.ignore_eos else source.end_tokens
    with open_engine(runner, options) as engine:
        converse(engine, options, turns, vocabulary, end_tokens)
        engine.flush()
        if engine.disk is not None:
            stats = engine.disk.stats
            note(
                f"{options.snapshots}: {stats.saves} saved, {megabytes(stats.saved_bytes)} MB; "
                f"{stats.skipped_saves} skipped"
            )


def main() -> None:
    """Parse the command line and run."""
    options = parse(Generate, "generate")
    try:
        with started(options):
            run(options)
    except BrokenPipeError:  # the reader has gone, as `| head` does; nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


if __name__ == "__main__":
    run_main(main, interrupted="with --snapshots, prompts that were answered are kept")
