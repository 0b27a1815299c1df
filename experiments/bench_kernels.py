"""What the scan kernels cost at published sizes, beside their baselines and the machine's ceilings.

Every implementation of a recurrence is timed in turns with the token loop and with a plain
associative scan over whole states. Then, pair by pair: the scan with captures against the scan
without, and one pass against passes split at the same offsets.

    python -m experiments.bench_kernels

Hardware: two CPU cores and 8 GB are enough; on a TPU or GPU the same command measures its kernels.
Expected time: about half an hour on two cores; `--shapes qwen3-next --captures 4` a few minutes.
Expected result: four captures in 4096 tokens cost at most 3%, splitting at them costs more, and the
chunked form beats the token loop and the associative scan. A capture off the chunk grid is meant:
one on it costs less.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.bench_kernels_report import report
from experiments.errors import UserError, check_at_least, run_main
from experiments.measure import gemm, interleaved_pairs, timed
from experiments.options import Options, parse, started
from experiments.progress import SweepProgress
from experiments.run_folder import RunFolder

if TYPE_CHECKING:
    from experiments.kernel_cases import KernelCase

BASELINES = ("reference", "associative")
ASSOCIATIVE_TOKENS = 512


@dataclass(frozen=True)
class BenchKernels(Options):
    """Time the scan kernels."""

    shapes: tuple[str, ...] = (
        "mamba2-2.7b",
        "granite-4.0-h-small",
        "nemotron-h-8b",
        "qwen3-next",
        "recurrentgemma-2b",
    )
    """Models whose sizes to take."""
    implementations: tuple[str, ...] = ("xla", "pallas")
    """Implementations to time; off a TPU and GPU the kernel is interpreted."""
    tokens: int = 4096
    """Tokens a scan."""
    rounds: int = 5
    """How often each implementation is timed for the table of run times."""
    captures: tuple[int, ...] = (1, 4, 16)
    """Captures a scan; none is the baseline."""
    pairs: int = 40
    """Pairs of scans with and without captures."""
    split: int = 4
    """Offsets at which the split passes are cut."""

    def __post_init__(self) -> None:
        """Check what can be checked without an array."""
        super().__post_init__()
        check_at_least(self, tokens=1, rounds=1, pairs=1, split=1, captures=1)
        if 4 * max(self.split, *self.captures) > self.tokens:
            raise UserError(f"--tokens {self.tokens}: expected at least four a capture")
        unknown = set(self.implementations) - {"xla", "pallas"}
        if unknown:
            raise UserError(f"--implementations {', '.join(unknown)}: expected xla, pallas")


def case_of(options: BenchKernels, name: str) -> "KernelCase":
    """The case of a model's name, shrunk where the run is."""
    from experiments.kernel_cases import CASES

    if name not in CASES:
        raise UserError(f"--shapes {name}: expected one of {', '.join(CASES)}")
    return CASES[name].shrunk() if options.quick else CASES[name]


def offsets_of(tokens: int, captures: int) -> tuple[int, ...]:
    """Offsets spread evenly, each odd, so that none lies on a chunk's end."""
    return tuple((tokens * n // (captures + 1)) | 1 for n in range(1, captures + 1))


def measure_ceilings(options: BenchKernels) -> Iterator[dict[str, Any]]:
    """Rates of a matrix product and of a copy, one line a round."""
    import jax
    import jax.numpy as jnp

    size = 256 if options.quick else 2048
    product = gemm(size, size, size, options.dtype)
    source = jnp.ones((16 if options.quick else 2**25,), jnp.float32)
    copy = jax.jit(lambda value: value + 1.0)
    jax.block_until_ready(copy(source))
    for round_ in range(options.rounds):
        product_s = min(timed(product) for _ in range(3))
        copy_s = min(timed(lambda: copy(source)) for _ in range(3))
        yield {
            "round": round_,
            "gemm_flops_per_s": 2.0 * size**3 / product_s,
            "copy_bytes_per_s": 2.0 * source.nbytes / copy_s,
        }


def compiled(
    case: "KernelCase", name: str, inputs: Any
) -> tuple[Callable[[], Any], dict[str, float]]:
    """A call of one implementation or baseline, compiled, and what preparing it took."""
    import jax

    def scan(inputs: Any) -> Any:
        if name == "associative":
            return case.associative(inputs)
        return case.scan(inputs, name)[:2]

    started_s = time.perf_counter()
    lowered = jax.jit(scan).lower(inputs)
    lowered_s = time.perf_counter()
    program = lowered.compile()
    compiled_s = time.perf_counter()
    timed(lambda: program(inputs))
    times = {
        f"{name}_lower_s": lowered_s - started_s,
        f"{name}_compile_s": compiled_s - lowered_s,
    }
    return lambda: program(inputs), times


def measure_runs(options: BenchKernels, case: "KernelCase") -> Iterator[dict[str, Any]]:
    """Every implementation once a round, in turns; each line has all of them."""
    import jax

    inputs = case.inputs(options.tokens, options.dtype, options.seed)
    calls: dict[str, Callable[[], Any]] = {}
    fixed: dict[str, Any] = {}
    for name in (*options.implementations, *BASELINES):
        given = inputs
        if name == "associative" and case.op != "linear":
            given = case.pieces(inputs, (min(options.tokens, ASSOCIATIVE_TOKENS),))[0]
            fixed["associative_scale"] = case.heads() * max(options.tokens / ASSOCIATIVE_TOKENS, 1)
        calls[name], times = compiled(case, name, given)
        fixed |= times
    result = jax.eval_shape(lambda inputs: case.scan(inputs, "xla"), inputs)
    fixed |= {"flops": case.flops(options.tokens), "bytes": case.bytes(inputs, result)}
    for round_ in range(options.rounds):
        yield {
            "round": round_,
            **{f"{name}_s": timed(call) for name, call in calls.items()},
            **fixed,
        }


def measure_captures(
    options: BenchKernels, case: "KernelCase", implementation: str, captures: int
) -> Iterator[dict[str, Any]]:
    """Seconds without and with captures, one line a pair."""
    import jax
    import jax.numpy as jnp

    inputs = case.inputs(options.tokens, options.dtype, options.seed)
    offsets = jnp.asarray([offsets_of(options.tokens, captures)], jnp.int32)
    without = jax.jit(lambda inputs: case.scan(inputs, implementation))
    with_ = jax.jit(lambda inputs, offsets: case.scan(inputs, implementation, offsets))
    without_s, with_s = interleaved_pairs(
        lambda: without(inputs), lambda: with_(inputs, offsets), options.pairs
    )
    for pair, (a, b) in enumerate(zip(without_s, with_s, strict=True)):
        yield {"round": pair, "without_s": a, "with_s": b}


def measure_split(
    options: BenchKernels, case: "KernelCase", implementation: str, captures: int
) -> Iterator[dict[str, Any]]:
    """Seconds of one pass without captures and of passes cut at the offsets, one line a pair."""
    import jax

    inputs = case.inputs(options.tokens, options.dtype, options.seed)
    cuts = (*offsets_of(options.tokens, captures), options.tokens)
    pieces = case.pieces(inputs, cuts)
    whole = jax.jit(lambda inputs: case.scan(inputs, implementation))
    first = jax.jit(lambda inputs: case.scan(inputs, implementation))
    later = jax.jit(lambda inputs, state: case.scan(inputs, implementation, None, state))

    def passes() -> Any:
        results = [first(pieces[0])]
        for piece in pieces[1:]:
            results.append(later(piece, results[-1].final_state))
        return results

    whole_s, split_s = interleaved_pairs(lambda: whole(inputs), passes, options.pairs)
    for pair, (a, b) in enumerate(zip(whole_s, split_s, strict=True)):
        yield {"round": pair, "without_s": a, "with_s": b}


def cells_of(options: BenchKernels) -> list[tuple[dict[str, Any], int]]:
    """Every cell: its parameters, and how many lines it has."""
    cells: list[tuple[dict[str, Any], int]] = [({"what": "ceilings"}, options.rounds)]
    asked = [("captures", count) for count in options.captures] + [("split", options.split)]
    for shape in options.shapes:
        cells.append(({"what": "run", "shape": shape}, options.rounds))
        for implementation in options.implementations:
            for what, count in asked:
                cell = {"what": what, "shape": shape, "implementation": implementation}
                cells.append((cell | {"captures": count}, options.pairs))
    return cells


def measure(options: BenchKernels, cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The measurements of one cell."""
    if cell["what"] == "ceilings":
        return measure_ceilings(options)
    case = case_of(options, cell["shape"])
    if cell["what"] == "run":
        return measure_runs(options, case)
    pairs = measure_captures if cell["what"] == "captures" else measure_split
    return pairs(options, case, cell["implementation"], cell["captures"])


def main() -> None:
    """Parse the command line and measure cell by cell."""
    options = parse(BenchKernels, "bench_kernels")
    if options.quick:
        shrunk = {"tokens": 128, "rounds": 2, "pairs": 2, "captures": (4,)}
        options = BenchKernels(**{**vars(options), **shrunk})
    for shape in options.shapes:
        case_of(options, shape)
    with started(options), RunFolder.open(options.out, "bench_kernels", options.config()) as run:
        for notice in run.notices:
            print(f"note: {notice}")
        missing = [cell for cell in cells_of(options) if not run.is_finished(cell[0])]
        with SweepProgress(len(missing), options.pairs) as progress:
            for cell, count in missing:
                progress.start_cell(", ".join(str(value) for value in cell.values()))
                run.write_cell(cell, progress.count(measure(options, cell)), count)
                progress.end_cell()
        report(run.path)


if __name__ == "__main__":
    run_main(main)
