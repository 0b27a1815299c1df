"""Checkpoints of a training run: the last two, each whole or not there."""

from pathlib import Path
from types import TracebackType

from orbax.checkpoint import v1 as ocp

from experiments.errors import UserError
from experiments.training.step import TrainState

KEPT = 2
"""A run killed between a checkpoint and the line that counts it goes on from the one before."""


class Checkpoints:
    """Train states by step, kept by Orbax; use as a context manager.

    Args:
        folder: where.
        abstract: shapes of a state.
    """

    def __init__(self, folder: Path, abstract: TrainState) -> None:
        self._folder, self._abstract = folder, abstract
        self._checkpointer = ocp.training.Checkpointer(
            folder.absolute(),
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
            preservation_policy=ocp.training.preservation_policies.LatestN(KEPT),
            cleanup_tmp_directories=True,
        )

    def __enter__(self) -> "Checkpoints":
        """Give the store itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish what is under way."""
        self._checkpointer.close()

    def save(self, step: int, state: TrainState) -> None:
        """Write a state and wait until it is there; one of that step is replaced.

        Args:
            step: steps done.
            state: after them.
        """
        self._checkpointer.save(step, state._asdict(), overwrite=True)

    def load(self, step: int) -> TrainState:
        """The state after so many steps.

        Raises:
            UserError: it is not there.
        """
        try:
            return TrainState(**self._checkpointer.load(step, self._abstract._asdict()))
        except (ValueError, OSError) as error:
            found = [checkpoint.step for checkpoint in self._checkpointer.checkpoints]
            raise UserError(
                f"{self._folder}: no state after step {step}, which the run's lines count as "
                f"done; there are {found}"
            ) from error
