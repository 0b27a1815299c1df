"""How fast prefill is beside PyTorch: the same weights in the transformers library, in turns.

For each model shape, prompt length and dtype both sides prefill one prompt on the same cores, round
by round, beside a matrix product in XLA; the last token's logits are compared first.

    pip install 'waypoint[parity]'
    python -m experiments.bench_against_torch

Hardware: two CPU cores and 8 GB. Expected time: about ten minutes on two cores.
Expected result: in fp32 our prefill of the Bamba shape takes at most two thirds of PyTorch's time
at 4096 tokens, that of the Qwen3.5 shape no more than PyTorch's. PyTorch runs what transformers
falls back to on a CPU, where none of its kernel packages exist.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.errors import UserError, check_at_least, run_main
from experiments.measure import gemm, median_interval, ratios, timed
from experiments.options import Options, parse, started
from experiments.progress import SweepProgress
from experiments.run_folder import RunFolder, read_rows
from experiments.tables import print_table, write_csv
from planner.costs import prefill_flops
from planner.schedule import Chunk, Schedule

if TYPE_CHECKING:
    from hybrid.runner import ModelRunner

VOCAB = 512
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
# 24 and 29 million parameters: eight layers, two of them attention.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "bamba": (
        "BambaConfig",
        {
            **_COMMON,
            "intermediate_size": 1024,
            "attn_layer_indices": [3, 7],
            "mamba_n_heads": 16,
            "mamba_d_head": 64,
            "mamba_d_state": 64,
        },
    ),
    "qwen3.5": (
        "Qwen3_5TextConfig",
        {
            **_COMMON,
            "intermediate_size": 1536,
            "head_dim": 64,
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
            "linear_num_key_heads": 8,
            "linear_num_value_heads": 8,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
        },
    ),
}
CLOSE = {"float32": 1e-3, "bfloat16": 0.5}
"""Largest difference of the last logits, which lie within a few units of 0."""


@dataclass(frozen=True)
class BenchAgainstTorch(Options):
    """Time prefill beside PyTorch's; --preset is not used."""

    shapes: tuple[str, ...] = tuple(SHAPES)
    """Model shapes: bamba, qwen3.5."""
    tokens: tuple[int, ...] = (1024, 4096)
    """Prompt lengths."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    """Types of weights and activations; --dtype is not used."""
    rounds: int = 7
    """How often each side is timed."""
    tile: int = 256
    """Tokens that are computed at a time; a multiple of the block size."""

    def __post_init__(self) -> None:
        """Check what can be checked without a model."""
        super().__post_init__()
        for name, known in (("shapes", tuple(SHAPES)), ("dtypes", tuple(CLOSE))):
            for value in getattr(self, name):
                if value not in known:
                    raise UserError(f"--{name} {value}: expected among {', '.join(known)}")
        check_at_least(self, rounds=1, tokens=1)


def torch_model(shape: str, dtype: str, seed: int) -> Any:
    """A random model of the transformers library.

    Raises:
        UserError: the extra that brings PyTorch is not installed.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install 'waypoint[parity]'") from error
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(seed)
    kind, config = SHAPES[shape]
    made = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**config))
    return made.eval().to(getattr(torch, dtype))


def same_weights(options: BenchAgainstTorch, model: Any, tokens: int, dtype: str) -> "ModelRunner":
    """Our model with the weights of theirs, by way of the files that they save."""
    from flax import nnx

    import hybrid

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        ours = hybrid.load_pretrained(Path(folder), hybrid.Compute(dtype=dtype))
    shapes = hybrid.RunnerConfig(capacity=tokens, tile=options.tile, block_size=options.block_size)
    return hybrid.ModelRunner(ours.config, ours.compute, shapes, params=nnx.state(ours))


def our_prefill(runner: "ModelRunner", prompt: np.ndarray) -> Callable[[], Any]:
    """A function that prefills the prompt and returns the last token's logits."""
    tokens, workspace = runner.device_tokens(prompt), [runner.new_workspace()]
    chunk = Chunk(0, len(prompt), ((0, len(prompt)),), ())

    def run() -> Any:
        result = runner.prefill(tokens, Schedule(len(prompt), 0, (chunk,)), workspace[0])
        workspace[0] = result.workspace
        return result.logits

    return run


def their_prefill(model: Any, prompt: np.ndarray) -> Callable[[], Any]:
    """The same in PyTorch, cache included."""
    import torch

    ids = torch.tensor(prompt[None].astype(np.int64))

    def run() -> np.ndarray:
        with torch.inference_mode():
            logits = model(ids, use_cache=True, logits_to_keep=1).logits
        return logits[:, 0].float().numpy()

    return run


def measure(options: BenchAgainstTorch, cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Seconds of both sides and the rate of a product, one line a round.

    Raises:
        UserError: the two sides do not compute the same function.
    """
    from experiments.model_costs import model_costs

    model = torch_model(cell["shape"], cell["dtype"], options.seed)
    runner = same_weights(options, model, cell["tokens"], cell["dtype"])
    prompt = np.random.default_rng(options.seed).integers(0, VOCAB, cell["tokens"])
    ours, theirs = our_prefill(runner, prompt), their_prefill(model, prompt)
    difference = float(np.abs(np.asarray(ours()) - theirs()).max())
    if not difference <= CLOSE[cell["dtype"]]:
        raise UserError(f"{cell}: the last logits differ by {difference:.2g}; nothing was timed")
    flops = prefill_flops(model_costs(runner.config, runner.compute), 0, cell["tokens"])
    sizes = (options.tile, 512, 2048)
    product = gemm(*sizes, dtype=cell["dtype"])
    for round_ in range(options.rounds):
        sides = [("our_s", ours), ("torch_s", theirs)]
        seconds = {name: timed(run) for name, run in (sides if round_ % 2 else sides[::-1])}
        once = min(timed(product) for _ in range(50))
        yield {
            "round": round_,
            **seconds,
            "logits_difference": difference,
            "our_flops_per_s": flops / seconds["our_s"],
            "gemm_flops_per_s": 2.0 * float(np.prod(sizes)) / once,
        }


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a cell: medians, how many times as fast we are, our share of the product's rate."""
    found = []
    for cell in dict.fromkeys((r["shape"], r["tokens"], r["dtype"]) for r in rows):
        mine = [r for r in rows if (r["shape"], r["tokens"], r["dtype"]) == cell]
        speed = ratios([r["our_s"] for r in mine], [r["torch_s"] for r in mine])
        top = max(r["gemm_flops_per_s"] for r in mine)
        found.append(
            {
                **dict(zip(("shape", "tokens", "dtype"), cell, strict=True)),
                "our_s": median_interval([r["our_s"] for r in mine]).median,
                "torch_s": median_interval([r["torch_s"] for r in mine]).median,
                "times_as_fast": speed.median,
                "times_as_fast_low": speed.low,
                "times_as_fast_high": speed.high,
                "share_of_gemm": median_interval([r["our_flops_per_s"] for r in mine]).median / top,
                "gemm_flops_per_s": top,
            }
        )
    return found


def headline(rows: list[dict[str, Any]]) -> str:
    """The run in one line."""
    return "; ".join(
        f"{r['shape']} {r['tokens']} {r['dtype']}: {r['times_as_fast']:.2f} times as fast as "
        f"PyTorch, {r['share_of_gemm']:.2f} of the product's rate"
        for r in summarise(rows)
    )


def report(run: RunFolder) -> None:
    """Write summary.csv and print the table."""
    summary = summarise(read_rows(run.path))
    write_csv(run.path / "summary.csv", summary)
    print_table(
        "prefill beside PyTorch",
        (
            "shape",
            "tokens",
            "dtype",
            "ours\ntok/s",
            "PyTorch\ntok/s",
            "times\nas fast",
            "range",
            "share of\nproduct",
        ),
        [
            (
                r["shape"],
                r["tokens"],
                r["dtype"],
                f"{r['tokens'] / r['our_s']:,.0f}",
                f"{r['tokens'] / r['torch_s']:,.0f}",
                f"{r['times_as_fast']:.2f}",
                f"{r['times_as_fast_low']:.2f}..{r['times_as_fast_high']:.2f}",
                f"{r['share_of_gemm']:.2f}",
            )
            for r in summary
        ],
    )
    print(f"{run.path}: metrics.jsonl, summary.csv")


def main() -> None:
    """Parse the command line, time every cell in turns, report."""
    options = parse(BenchAgainstTorch, "bench_against_torch")
    if options.quick:
        shrunk = {"tokens": (256,), "dtypes": ("float32",), "rounds": 2}
        options = BenchAgainstTorch(**{**vars(options), **shrunk})
    with (
        started(options),
        RunFolder.open(options.out, "bench_against_torch", options.config()) as run,
    ):
        for notice in run.notices:
            print(f"note: {notice}")
        cells = [
            {"shape": shape, "tokens": tokens, "dtype": dtype}
            for shape in options.shapes
            for dtype in options.dtypes
            for tokens in options.tokens
        ]
        missing = run.unfinished(cells)
        with SweepProgress(len(missing), options.rounds) as progress:
            for cell in missing:
                progress.start_cell(f"{cell['shape']}, {cell['tokens']} tokens, {cell['dtype']}")
                run.write_cell(cell, progress.count(measure(options, dict(cell))), options.rounds)
                progress.end_cell()
        report(run)


if __name__ == "__main__":
    run_main(main)
