"""A model with its compiled programs: built once for a capacity and a tile, used by any number of
engines.

The runner owns device arrays and executables and knows nothing of caches; `hybrid.engine` decides
what to restore, what to run and what to keep.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hybrid.config import Compute, GatedDeltaSpec, HybridConfig
from hybrid.copies import load_rows, padded_rows, read_rows, take_slot
from hybrid.decode import decode_steps
from hybrid.memory import check_memory, workspace_estimate
from hybrid.model import HybridModel
from hybrid.passes import calls_of, check_captures
from hybrid.prefill import UNUSED, Workspace, prefill_pass
from hybrid.presets import preset
from hybrid.runner_config import RunnerConfig
from hybrid.state import (
    Rows,
    Snapshot,
    check_states,
    kv_only,
    recurrent_only,
    state_shapes,
    with_kv,
    with_recurrent,
    zeros,
)
from hybrid.trained import load_trained, trained_names
from planner.checks import check_int
from planner.schedule import Schedule


class PrefillResult(NamedTuple):
    """What running a schedule gave.

    Args:
        logits: fp32 [batch, vocab] after the last token.
        snapshots: captured recurrent states by position, as many as the schedule asked for.
        end_state: the recurrent states after the last token, where decoding starts.
        passes: executable calls that were made.
        computed_tokens: rows of the prompt that the passes covered, each pass's span counted once.
        workspace: to read keys and values from and to pass on.
    """

    logits: jax.Array
    snapshots: dict[int, Snapshot]
    end_state: Snapshot
    passes: int
    computed_tokens: int
    workspace: Workspace


class ModelRunner:
    """Compiled prefill, decode and copy programs of one model.

    Args:
        config: the architecture.
        compute: dtypes, implementation, precision; a chunk that does not divide the tile becomes
            their greatest common divisor.
        shapes: capacity, tile, slots.
        params: the model's `nnx.State`; None draws initial weights from `seed`.
        seed: of the initial weights.

    Raises:
        ValueError: a tile that the chunks of gated delta layers do not fit.
        InsufficientMemoryError: the estimate of weights and workspace is above what the device has
            free.
    """

    def __init__(
        self,
        config: HybridConfig,
        compute: Compute,
        shapes: RunnerConfig,
        *,
        params: nnx.State | None = None,
        seed: int = 0,
    ) -> None:
        unit = int(np.lcm(shapes.tile, compute.kv_tile))
        shapes = dataclasses.replace(shapes, capacity=-(-shapes.capacity // unit) * unit)
        # The scans promise the bits of a shorter run at multiples of their chunk alone; so that
        # every tile's end is one, the chunk is shortened to fit.
        compute = dataclasses.replace(compute, chunk=math.gcd(compute.chunk, shapes.tile))
        if compute.chunk % 8 and any(isinstance(part, GatedDeltaSpec) for part in config.parts()):
            raise ValueError(
                f"tile is {shapes.tile} with scan chunks of {compute.chunk}; expected a multiple "
                f"of 8 for the gated delta layers of {config.name}"
            )
        self.config, self.compute, self.shapes = config, compute, shapes
        self.device = jax.devices()[0]

        def build() -> HybridModel:
            return HybridModel(config, compute, nnx.Rngs(params=seed))

        self.graphdef, abstract = nnx.split(nnx.eval_shape(build))
        self.state_shapes = state_shapes(config, compute, shapes.batch, shapes.capacity)
        self.snapshot_shapes = recurrent_only(self.state_shapes)
        self.workspace_shapes = self._workspace_shapes()
        widest = 16 * config.hidden_size * shapes.tile * shapes.batch * 4
        check_memory(workspace_estimate(abstract, self.workspace_shapes, widest), self.device)
        # Eager: a jitted initialiser compiles every draw again, an eager one shares equal shapes.
        self.params = nnx.state(build()) if params is None else params
        self.traces: collections.Counter[str] = collections.Counter()
        self.calls: collections.Counter[str] = collections.Counter()
        self._prefill = self._program(
            "prefill",
            functools.partial(
                prefill_pass, self.graphdef, tile=shapes.tile, tile_slots=shapes.tile_slots
            ),
            donate=(1,),
        )
        self._decode = self._program(
            "decode",
            functools.partial(decode_steps, self.graphdef, max_steps=shapes.decode_steps),
            donate=(1,),
        )
        self._take_slot = self._program("take_slot", take_slot)
        self._load_rows = self._program("load_rows", load_rows, donate=(0,))
        self._read_rows = self._program("read_rows", functools.partial(read_rows, self.copy_rows))

    @classmethod
    def from_preset(
        cls,
        name: str,
        *,
        capacity: int,
        dtype: str = "float32",
        implementation: str = "auto",
        seed: int = 0,
        trained: bool = True,
        **shapes: Any,
    ) -> Self:
        """A runner for a preset, with the weights that come with it or initial ones.

        Args:
            name: of the preset.
            capacity: see `RunnerConfig`.
            dtype, implementation: see `Compute`.
            seed: of initial weights.
            trained: use the weights of `hybrid.trained` where it has some for the preset; False
                draws initial ones all the same.
            shapes: other fields of `RunnerConfig`.

        Raises:
            ValueError: an unknown preset, or trained weights that are damaged.
            InsufficientMemoryError: see the class.
        """
        config, compute = preset(name), Compute(dtype=dtype, implementation=implementation)
        params = None
        if trained and name in trained_names():
            params = nnx.state(load_trained(name, compute))
        runner_config = RunnerConfig(capacity=capacity, **shapes)
        return cls(config, compute, runner_config, params=params, seed=seed)

    @property
    def copy_rows(self) -> int:
        """Rows of keys and values that one copy call moves."""
        return self.compute.kv_tile

    def _program(self, name: str, function: Any, donate: tuple[int, ...] = ()) -> Any:
        """`jax.jit` that counts traces and calls under `name`."""

        def traced(*args: Any) -> Any:
            self.traces[name] += 1
            return function(*args)

        jitted = jax.jit(traced, donate_argnums=donate)

        def call(*args: Any) -> Any:
            self.calls[name] += 1
            return jitted(*args)

        call.lower = jitted.lower  # type: ignore[attr-defined]
        return call

    def _workspace_shapes(self) -> Workspace:
        shapes, slots = self.shapes, self.shapes.capture_slots + 1

        def with_slots(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((leaf.shape[0], slots, *leaf.shape[1:]), leaf.dtype)

        kept = shapes.tile if shapes.kept_rows is None else shapes.kept_rows
        return Workspace(
            states=self.state_shapes,
            captured=jax.tree.map(with_slots, recurrent_only(self.state_shapes)),
            hidden=jax.ShapeDtypeStruct(
                (shapes.batch, kept, self.config.hidden_size), jnp.dtype(self.compute.dtype)
            ),
        )

    def new_workspace(self) -> Workspace:
        """An empty workspace; allocates keys and values for the whole capacity."""
        # Placed like what a pass returns: arrays without a place would compile programs twice.
        return jax.device_put(zeros(self.workspace_shapes), self.device)

    def device_tokens(self, tokens: np.ndarray) -> jax.Array:
        """The prompt padded to the capacity, int32 [batch, capacity], on the device.

        Raises:
            ValueError: the prompt is empty, not integer, longer than the capacity, or holds ids
                outside the vocabulary.
        """
        tokens = np.atleast_2d(np.asarray(tokens))
        batch, capacity, vocab = self.shapes.batch, self.shapes.capacity, self.config.vocab_size
        if not np.issubdtype(tokens.dtype, np.integer):
            raise ValueError(f"prompt tokens have dtype {tokens.dtype}; expected integers")
        if tokens.ndim != 2 or tokens.shape[0] != batch or not 1 <= tokens.shape[1] <= capacity:
            raise ValueError(
                f"prompt tokens have shape {tokens.shape}; expected ({batch}, 1..{capacity}): the "
                "runner's batch and capacity"
            )
        if tokens.min() < 0 or tokens.max() >= vocab:
            raise ValueError(
                f"prompt token ids span {tokens.min()}..{tokens.max()}; expected 0..{vocab - 1}"
            )
        padded = np.zeros((batch, capacity), np.int32)
        padded[:, : tokens.shape[1]] = tokens
        return jax.device_put(padded, self.device)

    def prefill(
        self,
        tokens: jax.Array,
        schedule: Schedule,
        workspace: Workspace,
        *,
        restored: int = 0,
        snapshot: Snapshot | None = None,
    ) -> PrefillResult:
        """Run a schedule.

        Args:
            tokens: from `device_tokens`.
            schedule: passes from `restored` to the prompt's end, with the positions to capture.
            workspace: holds keys and values below `restored`; donated.
            restored: position of `snapshot`; 0 starts from the empty state.
            snapshot: recurrent states at `restored`.

        Returns:
            Logits after the last token, captures, counts, and the workspace.

        Raises:
            ValueError: a snapshot without position or the reverse, states of other shapes, or
                captures too dense for a tile.
        """
        if (restored > 0) != (snapshot is not None):
            raise ValueError(
                f"restored is {restored} and snapshot is "
                f"{'absent' if snapshot is None else 'given'}; expected both or neither"
            )
        if snapshot is not None:
            check_states(snapshot, self.snapshot_shapes, "prefill entry")
            # A private copy: the workspace is donated, the snapshot belongs to the cache. It is
            # committed to the device like everything else here: an executable is cached by that.
            placed = jax.tree.map(
                lambda x: jnp.array(x, copy=True), jax.device_put(snapshot, self.device)
            )
            workspace = dataclasses.replace(
                workspace, states=with_recurrent(workspace.states, placed)
            )
        tile, position = self.shapes.tile, restored
        result_snapshots: dict[int, Snapshot] = {}
        logits, end_state, passes, computed = None, None, 0, 0
        for start, end, captures in calls_of(schedule, self.shapes.capture_slots):
            last = end == schedule.total
            wanted = sorted({*captures, end} if last else set(captures))
            check_captures(self.shapes, wanted, position)
            padded = np.full(self.shapes.capture_slots + 1, UNUSED, np.int32)
            padded[: len(wanted)] = wanted
            position_, end_, padded_ = jax.device_put(
                (np.int32(position), np.int32(end), padded), self.device
            )
            logits, workspace = self._prefill(
                self.params, workspace, tokens, position_, end_, padded_
            )
            position = max(position, end // tile * tile)
            passes, computed = passes + 1, computed + end - start
            for slot, at in enumerate(wanted):
                slot_ = jax.device_put(np.int32(slot))
                if at in captures:
                    result_snapshots[at] = self._take_slot(workspace.captured, slot_)
                if at == schedule.total:  # a copy of its own: decoding donates it
                    end_state = self._take_slot(workspace.captured, slot_)
        if logits is None or end_state is None:
            raise ValueError("the schedule has no pass that reaches the prompt's end")
        return PrefillResult(logits, result_snapshots, end_state, passes, computed, workspace)

    def decode(
        self,
        result: PrefillResult,
        position: int,
        steps: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        after_call: Callable[[int, np.ndarray], bool] | None = None,
    ) -> tuple[np.ndarray, Workspace]:
        """Draw `steps` tokens after a prefill of `position` tokens.

        Args:
            result: of the prefill; its workspace is donated.
            position: tokens before the first one drawn.
            steps: tokens to draw, at least 1.
            temperature, seed: see `hybrid.decode.sample`.
            after_call: given the number of tokens before the call and the call's own, int32
                [batch, n], after every decode call; True ends the decoding there.

        Returns:
            int32 [batch, steps], or fewer where `after_call` ended it, and the workspace, whose
            keys and values from `position` on are decode's.

        Raises:
            ValueError: no step, or prompt and new tokens exceed the capacity.
        """
        check_int("steps", steps, 1)
        if position + steps > self.shapes.capacity:
            raise ValueError(
                f"{position} prompt tokens and {steps} new ones make {position + steps}; expected "
                f"at most the capacity, {self.shapes.capacity}"
            )
        workspace, logits = result.workspace, result.logits
        states = with_recurrent(workspace.states, result.end_state)
        key = jax.device_put(jax.random.key(seed), self.device)
        temperature_ = jax.device_put(np.float32(temperature))
        drawn: list[np.ndarray] = []
        for done in range(0, steps, self.shapes.decode_steps):
            count = min(self.shapes.decode_steps, steps - done)
            position_, count_ = jax.device_put((np.int32(position + done), np.int32(count)))
            tokens, logits, states = self._decode(
                self.params, states, logits, position_, count_, temperature_, key
            )
            drawn.append(np.asarray(tokens)[:, :count])
            if after_call is not None and after_call(done, drawn[-1]):
                break
        workspace = dataclasses.replace(workspace, states=states)
        return np.concatenate(drawn, axis=1), workspace

    def read_rows(self, workspace: Workspace, start: int, end: int) -> Rows:
        """Copy keys and values of positions start..end to the host.

        Args:
            workspace: to read from; stays.
            start, end: positions, within the capacity.

        Returns:
            Host arrays [batch, kv_heads, end - start, head_dim] a part.
        """
        pieces = []
        at = start
        while at < end:
            base = min(at, self.shapes.capacity - self.copy_rows)
            rows = self._read_rows(kv_only(workspace.states), jax.device_put(np.int32(base)))
            stop = min(end, base + self.copy_rows)
            pieces.append(
                jax.tree.map(lambda x, a=at - base, b=stop - base: np.asarray(x)[:, :, a:b], rows)
            )
            at = stop
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=2), *pieces)

    def load_rows(self, workspace: Workspace, rows: Rows, start: int = 0) -> Workspace:
        """Copy keys and values from the host into positions start..start + n.

        Args:
            workspace: donated.
            rows: host arrays [batch, kv_heads, n, head_dim] a part.
            start: a multiple of `copy_rows`.

        Returns:
            The workspace.

        Raises:
            ValueError: a start off `copy_rows`.
        """
        count = jax.tree.leaves(rows)[0].shape[2] if rows else 0
        if start % self.copy_rows:
            raise ValueError(f"start is {start}; expected a multiple of {self.copy_rows}")
        states = workspace.states
        for at in range(0, count, self.copy_rows):
            piece = padded_rows(rows, at, self.copy_rows)
            placed = jax.device_put((piece, np.int32(start + at)), self.device)
            kv = self._load_rows(kv_only(states), *placed)
            states = with_kv(states, kv)
        return dataclasses.replace(workspace, states=states)
