"""What the experiments that replay traces without a model have in common: options, costs, times."""

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments.errors import UserError, as_user_error
from experiments.run_folder import read_config, read_rows
from experiments.traces import read_trace, trace_requests
from planner.costs import CostModel, prefill_flops
from planner.placement import PlacementContext, PlacementPolicy, parse_placement, place
from planner.simulator import Timing
from planner.trace import TraceRequest

_TOKENS = re.compile(r"(\d+)tok\b")


@dataclass(frozen=True)
class TraceSource:
    """A trace file and how to read it.

    Attributes:
        name: what tables call it.
        path: the file.
        max_requests: the first ones by arrival; None takes all.
        block_size: tokens in a block where the trace has text; one with ids has its own blocks.
    """

    name: str
    path: Path
    max_requests: int | None
    block_size: int

    @staticmethod
    def parse(text: str, max_requests: int | None, block_size: int) -> "TraceSource":
        """A source from the command line.

        Args:
            text: a path, or name=path.
            max_requests, block_size: see the attributes.

        Returns:
            The source; without a name it is called like the file, without extensions.

        Raises:
            UserError: no path.

        >>> TraceSource.parse("agents=runs/a.jsonl", None, 64).name
        'agents'
        >>> TraceSource.parse("weka/sessions.ranges.jsonl.gz", None, 64).name
        'sessions.ranges'
        """
        name, equals, path = text.partition("=")
        if not equals or "/" in name:
            name, path = re.sub(r"(\.jsonl?)?(\.gz)?$", "", Path(text).name), text
        if not path:
            raise UserError(f"--trace {text}: expected a path, or NAME=PATH")
        name = re.sub(r"[^\w.+-]", "_", name)  # it goes into file names and pages
        return TraceSource(name, Path(path), max_requests, block_size)

    def load(self) -> list[TraceRequest]:
        """Read the trace.

        Returns:
            Requests in order of arrival.

        Raises:
            UserError: a file that is no trace, or one out of order.
        """
        recorded = read_trace(self.path, self.max_requests)
        return trace_requests(recorded, None if recorded[0].ids is not None else self.block_size)


def describe_trace(name: str, requests: Sequence[TraceRequest]) -> dict[str, Any]:
    """A trace for config.json: enough to know that two runs replayed the same, and no path.

    Args:
        name: what tables call it.
        requests: the trace.

    Returns:
        JSON values.
    """
    digest = hashlib.sha256()
    for request in requests:
        head = (request.arrival_s, request.session, request.total_tokens, request.boundaries)
        digest.update(repr(head).encode())
        digest.update(request.block_keys.tobytes())
    return {
        "name": name,
        "digest": digest.hexdigest()[:16],
        "requests": len(requests),
        "prompt_tokens": sum(request.total_tokens for request in requests),
        "block_size": requests[0].block_size,
    }


def placement_for(spec: str, block_size: int) -> PlacementPolicy:
    """A placement whose intervals may be given in tokens, for traces of different block sizes.

    Args:
        spec: see `planner.placement.parse_placement`; a number that ends in "tok" is in tokens.
        block_size: of the trace, tokens.

    Returns:
        A fresh policy.

    Raises:
        ValueError: see `parse_placement`; or tokens that are no whole number of blocks.

    >>> placement_for("tail|every:8192tok", 512).spec
    'tail|every:16'
    """

    def blocks(found: re.Match[str]) -> str:
        tokens = int(found[1])
        if tokens % block_size:
            raise ValueError(
                f"placement {spec!r}: {tokens} tokens are no whole number of blocks of {block_size}"
            )
        return str(tokens // block_size)

    return parse_placement(_TOKENS.sub(blocks, spec))


_REPLAYED = ("dtype", "tile", "chunk", "max_requests")
"""Options that every replay depends on beside the model."""


@dataclass(frozen=True)
class ReplayOptions:
    """Options of experiments that replay traces without a model."""

    model: str = "bamba-9b"
    """Model preset: what keys, values and snapshots weigh, and what prefill costs."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of keys, values and convolution inputs; recurrent states are fp32."""
    block_size: int = 64
    """Tokens in a block, for traces with text (their tokens are bytes); others have their own."""
    tile: int | None = None
    """Tokens that are computed at a time, the grid of snapshots; by default a block."""
    chunk: int = 8192
    """Tokens that the scheduler runs in one call."""
    max_requests: int | None = None
    """Take each trace's first requests only."""
    workers: int = 2
    """Processes that replay side by side."""
    tflops: float = 200.0
    """Rate of prefill in 10^12 FLOP/s, for predicted times: an assumption, see --timing-from."""
    overhead_ms: float = 20.0
    """Time of a request beside its FLOPs, for predicted times: an assumption likewise."""
    timing_from: Path | None = None
    """Take both from what this run folder of ablate_interval or tail_split measured."""

    def __post_init__(self) -> None:
        """Check what can be checked without the trace."""
        for name, minimum in (("block_size", 1), ("chunk", 1), ("workers", 1)):
            if getattr(self, name) < minimum:
                option = f"--{name.replace('_', '-')} {getattr(self, name)}"
                raise UserError(f"{option}: expected at least {minimum}")
        if not self.tflops > 0:
            raise UserError(f"--tflops {self.tflops}: expected more than 0")
        if self.overhead_ms < 0:
            raise UserError(f"--overhead-ms {self.overhead_ms}: expected at least 0")

    def source(self, text: str) -> TraceSource:
        """The trace that a command-line argument names."""
        return TraceSource.parse(text, self.max_requests, self.block_size)

    def sources_of(self, texts: Sequence[str]) -> list[TraceSource]:
        """The traces that --trace names.

        Raises:
            UserError: two of one name.
        """
        found = [self.source(text) for text in texts]
        names = [source.name for source in found]
        if len(set(names)) < len(names):
            raise UserError(
                f"--trace {' '.join(texts)}: expected different names, got {', '.join(names)};"
                " NAME=PATH gives one"
            )
        return found

    def tile_for(self, requests: Sequence[TraceRequest], name: str) -> int:
        """The tile for a trace.

        Args:
            requests: the trace.
            name: of it, for the message.

        Returns:
            Tokens.

        Raises:
            UserError: --tile is no multiple of the trace's blocks.
        """
        block_size = requests[0].block_size
        tile = self.tile if self.tile is not None else block_size
        if tile < 1 or tile % block_size:
            raise UserError(
                f"--tile {tile}: expected a multiple of the blocks of {name}, {block_size} tokens"
            )
        return tile

    def check_placements(
        self, specs: Sequence[str], source: TraceSource, requests: Sequence[TraceRequest]
    ) -> None:
        """Refuse placements that are unknown, or off the grid of snapshots, before anything runs.

        Args:
            specs: as --placements has them.
            source, requests: the trace.

        Raises:
            UserError: names the policy and what is wrong with it.
        """
        longest = PlacementContext(
            total=max(request.total_tokens for request in requests),
            block_size=requests[0].block_size,
            grid=self.tile_for(requests, source.name),
        )
        for spec in specs:
            with as_user_error(f"--placements, on {source.name}"):
                place(placement_for(spec, longest.block_size), longest)

    def replay_config(self) -> dict[str, Any]:
        """What the figures of every replay depend on, and no path, as JSON values."""
        costs, timing = self.costs(), self.timing()
        return {
            **{name: getattr(self, name) for name in ("model", *_REPLAYED)},
            "snapshot_bytes": costs.snapshot_bytes,
            "kv_bytes_per_token": costs.kv_bytes_per_token,
            "overhead_s": timing.overhead_s,
            "seconds_per_flop": timing.seconds_per_flop,
        }

    def costs(self) -> CostModel:
        """The cost model of --model.

        Raises:
            UserError: no such preset, or one without recurrent layers.
        """
        costs = preset_costs(self.model, self.dtype, "--model")
        if not costs.snapshot_bytes:
            raise UserError(f"--model {self.model}: has no recurrent layers, so nothing to place")
        return costs

    def timing(self) -> Timing:
        """The constants of predicted times, as measured or as assumed."""
        if self.timing_from is not None:
            return measured_timing(self.timing_from)
        return Timing(self.overhead_ms / 1e3, 1e-12 / self.tflops)

    def timing_words(self) -> str:
        """Where predicted times come from, as a sentence."""
        timing = self.timing()
        how = f"{1e-12 / timing.seconds_per_flop:,.3g} TFLOP/s and {timing.overhead_s * 1e3:.3g} ms"
        if self.timing_from is None:
            return f"Times assume prefill at {how} a request, without queues (not measured)."
        return f"Times follow {self.timing_from.name}, which measured {how} a request; no queues."


def check_table(path: Path | None) -> None:
    """Refuse a --table that cannot be written, before anything runs; its folder is made.

    Args:
        path: the Markdown file; None for none.

    Raises:
        UserError: a folder, or a place where no folder can be made.
    """
    if path is not None:
        with as_user_error(f"--table {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise ValueError("expected a file, found a folder")


def preset_costs(name: str, dtype: str, option: str) -> CostModel:
    """The cost model of a preset.

    Args:
        name: of the preset.
        dtype: of keys, values and convolution inputs.
        option: command-line option, for the message.

    Returns:
        Costs.

    Raises:
        UserError: no such preset.
    """
    from experiments.model_costs import model_costs
    from hybrid.config import Compute
    from hybrid.presets import preset

    with as_user_error(f"{option} {name}"):
        return model_costs(preset(name), Compute(dtype=dtype))


def measured_timing(folder: Path) -> Timing:
    """Fit the two constants to the times to first token of a run on a real model.

    Args:
        folder: a run folder of ablate_interval or tail_split.

    Returns:
        Least squares through all its requests, the overhead no less than 0.

    Raises:
        UserError: another experiment, or too few different requests to tell the two apart.
    """
    content = read_config(folder)
    config, experiment = content["config"], content["experiment"]
    if experiment not in ("ablate_interval", "tail_split"):
        raise UserError(f"--timing-from {folder}: a run of {experiment}, which has no such times")
    costs = preset_costs(config["preset"], config["dtype"], f"--timing-from {folder}: preset")
    tile = config["tile"]
    points = [
        (
            prefill_flops(costs, row["restored"] // tile * tile, -(-row["total"] // tile) * tile),
            row["time_to_first_token_s"],
        )
        for row in read_rows(folder)
    ]
    flops, times_s = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    if len(set(flops.tolist())) < 2:
        raise UserError(f"--timing-from {folder}: expected requests of different lengths")
    slope, intercept = np.polyfit(flops, times_s, 1)
    if intercept < 0:
        slope, intercept = float(flops @ times_s / (flops @ flops)), 0.0
    if slope <= 0:
        raise UserError(f"--timing-from {folder}: longer prefills took no longer there")
    return Timing(float(intercept), float(slope))


def replay_words(asked: Mapping[str, Any]) -> list[str]:
    """The options of a replay that a run was given and that are no defaults, as one types them.

    Args:
        asked: "config" of a run folder.

    >>> replay_words({"dtype": "bfloat16", "tile": None, "chunk": 8192, "max_requests": 3000})
    ['--max-requests 3000']
    """
    defaults = {field.name: field.default for field in dataclasses.fields(ReplayOptions)}
    return [
        f"--{name.replace('_', '-')} {asked[name]}"
        for name in _REPLAYED
        if asked.get(name) not in (None, defaults[name])
    ]
