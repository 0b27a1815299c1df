"""What --model names: a checkpoint folder, a preset with trained weights, or one without."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from experiments.errors import as_user_error

if TYPE_CHECKING:
    from hybrid.config import Compute, HybridConfig
    from hybrid.runner import ModelRunner
    from hybrid.runner_config import RunnerConfig


@dataclass(frozen=True)
class ModelSource:
    """A model that can be built.

    Attributes:
        name: as the user gave it.
        config: the architecture.
        weights: where they come from; "random" ones are drawn from a seed.
        folder: of a checkpoint; None for a preset.
        end_tokens: ids that end a text.
    """

    name: str
    config: "HybridConfig"
    weights: Literal["folder", "trained", "random"]
    folder: Path | None = None
    end_tokens: tuple[int, ...] = ()

    def runner(self, compute: "Compute", shapes: "RunnerConfig", seed: int) -> "ModelRunner":
        """Read or draw the weights and build the programs.

        Args:
            compute: dtypes.
            shapes: of the programs.
            seed: of random weights.

        Raises:
            UserError: weights that are absent or do not fit the config, or too little memory.
        """
        from flax import nnx

        from hybrid import ModelRunner, load_pretrained
        from hybrid.trained import load_trained

        with as_user_error(f"--model {self.name}"):
            params = None
            if self.folder is not None:
                params = nnx.state(load_pretrained(self.folder, compute))
            elif self.weights == "trained":
                params = nnx.state(load_trained(self.name, compute))
            return ModelRunner(self.config, compute, shapes, params=params, seed=seed)


def find_model(name: str) -> ModelSource:
    """Look at what a name stands for; no weights are read or made.

    Args:
        name: a preset, or a folder. A preset comes first; `./name` is always a folder.

    Raises:
        UserError: neither, or a folder that is no checkpoint of a known family.
    """
    from hybrid.checkpoint import read_config, read_end_tokens
    from hybrid.presets import preset, preset_names
    from hybrid.trained import trained_names

    if name in preset_names():
        weights: Literal["trained", "random"] = "trained" if name in trained_names() else "random"
        return ModelSource(name, preset(name), weights)
    folder = Path(name)
    with as_user_error(f"--model {name}"):
        if folder.is_dir():
            return ModelSource(name, read_config(folder), "folder", folder, read_end_tokens(folder))
        if folder.exists():
            raise ValueError("is a file; expected a folder that holds config.json")
        if folder.name != name:  # it has a separator
            raise ValueError("no such folder")
        return ModelSource(name, preset(name), "random")  # raises, and lists the presets
