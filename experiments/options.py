"""Command-line options that every experiment takes, and what they start."""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import tyro

from experiments.errors import UserError

NOT_CONFIG = ("out", "compilation_cache", "profile")


@dataclass(frozen=True)
class ModelOptions:
    """Options of everything that runs a model."""

    tile: int = 64
    """Tokens that are computed at a time; a multiple of the block size."""
    block_size: int = 16
    """Tokens in a block, the unit of prefix matching."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights and activations."""
    seed: int = 0
    """Seed of the parameters, the workload and the sampling."""
    compilation_cache: Path | None = None
    """Folder where compiled programs are kept between runs."""
    profile: Path | None = None
    """Folder for a profile, to be opened with XProf or Perfetto."""

    def __post_init__(self) -> None:
        """Check what can be checked without a model."""
        if self.block_size < 1:
            raise UserError(f"--block-size {self.block_size}: expected at least 1")
        if self.tile < 1 or self.tile % self.block_size:
            raise UserError(
                f"--tile {self.tile}: expected a multiple of the block size {self.block_size}"
            )


@dataclass(frozen=True)
class Options(ModelOptions):
    """Options that every experiment takes."""

    out: Path | None = None
    """Run folder; finished cells in it are skipped. By default a dated one under runs/."""
    preset: str = "default"
    """Model preset."""
    quick: bool = False
    """Shrink everything, to see that it runs; the figures mean nothing."""

    def config(self) -> dict[str, Any]:
        """The options that figures depend on.

        Returns:
            Option name to value, without the run folder and where caches and profiles go.
        """
        return {name: value for name, value in asdict(self).items() if name not in NOT_CONFIG}


Chosen = TypeVar("Chosen", bound=ModelOptions)


def parse(kind: type[Chosen], experiment: str) -> Chosen:
    """Read the command line into an options dataclass.

    Args:
        kind: a subclass of `ModelOptions`; its docstring becomes the help text.
        experiment: module name, for the help text.

    Returns:
        The options.

    Raises:
        SystemExit: 2 on a wrong command line, 0 after --help.
    """
    return tyro.cli(kind, prog=f"python -m experiments.{experiment}", description=kind.__doc__)


@contextlib.contextmanager
def started(options: ModelOptions) -> Iterator[None]:
    """Set up jax as the options ask, before anything is compiled, and put it back at the end.

    Args:
        options: --compilation-cache and --profile are looked at.
    """
    import jax

    cache: dict[str, Any] = {}
    if options.compilation_cache is not None:
        cache = {
            "jax_compilation_cache_dir": str(options.compilation_cache),
            "jax_persistent_cache_min_compile_time_secs": 0.0,
        }
    before = {name: getattr(jax.config, name) for name in cache}
    profile = (
        jax.profiler.trace(str(options.profile))
        if options.profile is not None
        else contextlib.nullcontext()
    )
    try:
        for name, value in cache.items():
            jax.config.update(name, value)
        with profile:
            yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
