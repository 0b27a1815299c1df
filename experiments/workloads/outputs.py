"""Answers of the model: generated once, recorded, and replayed wherever the workload runs again."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Int32
from numpy import ndarray

from experiments.errors import UserError
from experiments.files import replace_file
from experiments.workloads.workload import Request, Workload

Answer = TypeVar("Answer")


class Outputs:
    """The recorded answers of a workload's requests.

    Attributes:
        answers: int32 [output_tokens] each, in order; shorter than the workload while recording.
    """

    def __init__(self, workload: Workload, answers: list[Int32[ndarray, " tokens"]]) -> None:
        self.workload = workload
        self.answers = answers

    @staticmethod
    def load(path: Path, workload: Workload) -> "Outputs | None":
        """Read answers that an earlier run recorded.

        Args:
            path: the file.
            workload: whose answers they must be.

        Returns:
            The answers, or None where there is no file.

        Raises:
            UserError: the file belongs to another workload or is not what `save` writes.
        """
        try:
            content = json.loads(path.read_text())
            found = [np.array(answer, dtype=np.int32) for answer in content["answers"]]
            digest = content["workload"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: not a file of recorded answers ({error!r})") from error
        lengths = [request.output_tokens for request in workload.requests]
        if digest != workload.digest() or [answer.size for answer in found] != lengths:
            raise UserError(f"{path}: holds the answers of another workload")
        return Outputs(workload, found)

    def save(self, path: Path) -> None:
        """Write the answers, so that a crash leaves the whole file or none.

        Args:
            path: the file.
        """
        content = {
            "workload": self.workload.digest(),
            "answers": [answer.tolist() for answer in self.answers],
        }
        replace_file(path, json.dumps(content))

    def prompts(self) -> Iterator[Int32[ndarray, " tokens"]]:
        """The prompts of all requests, in order."""
        for index in range(len(self.workload.requests)):
            yield self.workload.prompt(index, self.answers)

    @staticmethod
    def record(
        workload: Workload,
        generate: Callable[[int, Request, ndarray], tuple[ndarray, Answer]],
        path: Path,
    ) -> Iterator[Answer]:
        """Run a workload once and record the answers.

        Args:
            workload: what to ask.
            generate: takes (index, request, prompt), gives (answer, whatever it measured).
            path: where the answers go; written before the last measurement is handed out.

        Yields:
            What was measured, a request at a time.
        """
        outputs = Outputs(workload, [])
        for index, request in enumerate(workload.requests):
            prompt = workload.prompt(index, outputs.answers)
            answer, measured = generate(index, request, prompt)
            outputs.answers.append(np.asarray(answer, dtype=np.int32)[: request.output_tokens])
            if index + 1 == len(workload.requests):
                outputs.save(path)
            yield measured
