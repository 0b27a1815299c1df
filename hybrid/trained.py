"""Weights that come with the package: small models of our own, trained by experiments.train_lm.

    hybrid/trained_weights/NAME/
        model.safetensors    bf16, one tensor a parameter, named by its path in the model
        README.md            how it was trained, and its figures

NAME is a preset; the preset is the architecture.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from hybrid.checkpoint.errors import CheckpointError
from hybrid.config import Compute, HybridConfig
from hybrid.model import HybridModel
from hybrid.presets import preset

FOLDER = Path(__file__).parent / "trained_weights"
WEIGHTS = "model.safetensors"


def trained_names() -> list[str]:
    """Presets that come with trained weights."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{WEIGHTS}"))


def load_trained(name: str, compute: Compute | None = None) -> HybridModel:
    """A trained model that comes with the package.

    Args:
        name: one of `trained_names`.
        compute: dtypes, scan implementation, precision; None means fp32 everywhere. The stored bf16
            weights are converted to `param_dtype`.

    Returns:
        The model: int32 tokens (bytes) [batch, length] -> fp32 logits [batch, length, 256].

    Raises:
        ValueError: no trained weights have that name.
        CheckpointError: the file is damaged or does not fit the preset.
    """
    compute = compute or Compute()
    if name not in trained_names():
        raise ValueError(f"no trained weights called {name!r}; there are {trained_names()}")
    config = preset(name)
    abstract = nnx.eval_shape(lambda: HybridModel(config, compute, nnx.Rngs(params=0)))
    graphdef, _ = nnx.split(abstract)
    return nnx.merge(graphdef, load_weights(FOLDER / name / WEIGHTS, config, compute))


def load_weights(path: Path, config: HybridConfig, compute: Compute) -> nnx.State:
    """Read what `save_weights` wrote.

    Args:
        path: the file.
        config: the architecture that it was written for.
        compute: its `param_dtype` is what the weights become.

    Returns:
        The parameters.

    Raises:
        CheckpointError: the file is damaged, or a tensor is missing, left over or of another shape.
    """
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    shapes = nnx.to_flat_state(
        nnx.state(nnx.eval_shape(lambda: HybridModel(config, compute, nnx.Rngs(params=0))))
    )
    names = {_name(key) for key, _ in shapes}
    for what, those in (("lacks", names - set(stored)), ("should not hold", set(stored) - names)):
        if those:
            raise CheckpointError(f"{path}: {what} {', '.join(sorted(those))} for {config.name}")
    filled = []
    for key, leaf in shapes:
        tensor = stored[_name(key)]
        if tensor.shape != leaf.shape:
            raise CheckpointError(
                f"{path}: {_name(key)} is {list(tensor.shape)}; expected {list(leaf.shape)}"
            )
        filled.append((key, leaf.replace(jnp.asarray(tensor, leaf.dtype))))
    return nnx.from_flat_state(filled)


def save_weights(path: Path, params: nnx.State) -> None:
    """Write parameters as bf16.

    Args:
        path: the file; its folder is made, a file that is there is replaced as a whole.
        params: of a model.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        _name(key): np.asarray(leaf[...].astype(jnp.bfloat16))
        for key, leaf in nnx.to_flat_state(params)
    }
    part = path.with_name(path.name + ".part")
    try:
        save_file(tensors, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _name(key: tuple[Any, ...]) -> str:
    return ".".join(map(str, key))
