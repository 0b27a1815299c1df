"""What every preset weighs: parameters, keys and values a token, and a snapshot.

    python -m experiments.model_table
    python -m experiments.model_table --models bamba-9b ./my-checkpoint --dtype float32

Hardware: none; no weights are made. Expected time: half a minute for all presets.
Expected result: where Mamba-2 or gated delta nets carry the state, a snapshot is worth hundreds to
thousands of tokens of keys and values; short convolutions and the RG-LRU cost next to nothing; a
model without attention has no such number.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from experiments.errors import UserError, as_user_error, run_main
from experiments.tables import print_table, write_csv


@dataclass(frozen=True)
class ModelTable:
    """Print what models weigh."""

    models: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PRESET|PATH")] = ()
    """Presets, or folders with a config.json; all presets by default."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of keys, values and convolution states; scan states are fp32 always."""
    csv: Path | None = None
    """Also write the table to this file."""


def row(model: str, dtype: str) -> dict[str, Any]:
    """Weigh one model.

    Args:
        model: preset, or path of a folder with a config.json.
        dtype: of keys, values and convolution states.

    Returns:
        {"model", "layers", "parameters", "kv_bytes_per_token", "snapshot_bytes",
        "snapshot_worth_tokens": snapshot / KV bytes a token, None without attention}.

    Raises:
        UserError: no such preset or folder, or a config that cannot be read.
    """
    import jax
    from flax import nnx

    from hybrid.checkpoint import read_config
    from hybrid.config import Compute
    from hybrid.model import HybridModel
    from hybrid.presets import preset
    from hybrid.state import kv_bytes_per_token, snapshot_bytes

    with as_user_error(f"--models {model}"):
        config = read_config(model) if Path(model).is_dir() else preset(model)
    compute = Compute(dtype=dtype)
    shapes = nnx.eval_shape(lambda: HybridModel(config, compute, nnx.Rngs(params=0)))
    kv, snapshot = kv_bytes_per_token(config, compute), snapshot_bytes(config, compute)
    return {
        "model": model,
        "layers": len(config.layers),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(nnx.state(shapes))),
        "kv_bytes_per_token": kv,
        "snapshot_bytes": snapshot,
        "snapshot_worth_tokens": snapshot / kv if kv else None,
    }


def _count(value: int) -> str:
    scaled, unit = (value / 1e9, "B") if value >= 1e9 else (value / 1e6, "M")
    return f"{scaled:.2f} {unit}"


def run(options: ModelTable) -> None:
    """Weigh the models and print the table.

    Args:
        options: the command line.

    Raises:
        UserError: see `row`; also where the CSV file cannot be written.
    """
    from hybrid.presets import preset_names

    rows = [row(model, options.dtype) for model in options.models or preset_names()]
    print_table(
        f"models, {options.dtype}",
        (
            "model",
            "layers",
            "parameters",
            "KV bytes\na token",
            "snapshot\nMB",
            "snapshot worth\ntokens of KV",
        ),
        [
            (
                r["model"],
                r["layers"],
                _count(r["parameters"]),
                f"{r['kv_bytes_per_token']:,}",
                f"{r['snapshot_bytes'] / 1e6:,.2f}",
                None
                if r["snapshot_worth_tokens"] is None
                else f"{r['snapshot_worth_tokens']:,.0f}",
            )
            for r in rows
        ],
    )
    if options.csv is not None:
        try:
            write_csv(options.csv, rows)
        except OSError as error:
            raise UserError(f"--csv {options.csv}: {error.strerror}") from error


def main() -> None:
    """Parse the command line and run."""
    run(tyro.cli(ModelTable, prog="python -m experiments.model_table"))


if __name__ == "__main__":
    run_main(main)
