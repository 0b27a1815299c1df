"""The hybrid language model: embedding, layers of residual branches, final norm, head.

`HybridModel.__call__` is the static forward for training. Inference runs `embed`, `tile` or `step`,
and `head` inside the loops of `hybrid.prefill` and `hybrid.decode`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from hybrid.config import Branch, Compute, HybridConfig, NormSpec
from hybrid.layers import build_part
from hybrid.layers.linear import Embedding, Linear, RMSNorm, constant
from hybrid.layers.part import Part, Tile
from hybrid.layers.shared_block import Injection, SharedBlock
from hybrid.state import FixedState, State, States

_Run = Callable[..., tuple[jax.Array, Any]]
"""(part, input, state, further inputs of the part) -> output, new state."""


class ResidualBranch(nnx.Module):
    """Norm, parts side by side, post-norm; adds the sum to the stream."""

    def __init__(
        self, branch: Branch, config: HybridConfig, compute: Compute, rngs: nnx.Rngs
    ) -> None:
        hidden_size, injection = config.hidden_size, branch.injection

        def norm(spec: NormSpec | None) -> RMSNorm | None:
            return None if spec is None else RMSNorm(hidden_size, spec, compute)

        self.norm = norm(branch.norm)
        self.parts = nnx.List(
            [build_part(spec, hidden_size, compute, rngs) for spec in branch.parts]
        )
        self.post_norm = norm(branch.post_norm)
        self.multiplier = branch.multiplier
        self.injection = (
            None
            if injection is None
            else Injection(
                injection, config.shared_blocks[injection.block], hidden_size, compute, rngs
            )
        )

    def enter(self, stream: jax.Array) -> jax.Array:
        """What the parts read of a stream, to which an injection is already added."""
        return stream if self.norm is None else self.norm(stream)

    def leave(self, stream: jax.Array, outputs: list[jax.Array]) -> jax.Array:
        """The stream with the parts' outputs added."""
        y = outputs[0]
        for other in outputs[1:]:
            y = y + other
        if self.post_norm is not None:
            y = self.post_norm(y)
        return stream + y * constant(self.multiplier, y)


class HybridModel(nnx.Module):
    """A hybrid language model.

    Args:
        config: the architecture.
        compute: dtypes, scan implementation, precision.
        rngs: `nnx.Rngs` with a `params` stream, for the initial weights.
    """

    def __init__(self, config: HybridConfig, compute: Compute, rngs: nnx.Rngs) -> None:
        self.embedding = Embedding(config.vocab_size, config.hidden_size, compute, rngs)
        self.branches = nnx.List(
            [
                ResidualBranch(branch, config, compute, rngs)
                for layer in config.layers
                for branch in layer
            ]
        )
        self.shared_blocks = nnx.List(
            [
                SharedBlock(block, config.hidden_size, compute, rngs)
                for block in config.shared_blocks
            ]
        )
        self.final_norm = RMSNorm(config.hidden_size, config.final_norm, compute)
        self.lm_head = (
            None
            if config.tie_embeddings
            else Linear(config.hidden_size, config.vocab_size, compute, rngs)
        )
        self.config = config
        self.compute = compute

    def embed(self, tokens: Int[Array, "*rows"]) -> Float[Array, "*rows D"]:
        """The residual stream before the first layer."""
        x = self.embedding(tokens)
        return x * constant(self.config.embedding_multiplier, x)

    def head(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Fp32 logits of the residual stream after the last layer."""
        x = self.final_norm(x)
        if self.lm_head is None:
            logits = self.embedding.attend(x)
        else:
            logits = self.lm_head(x, out_dtype=jnp.float32)
        logits = logits * self.config.logits_multiplier
        cap = self.config.logits_soft_cap
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
        """Fp32 logits of whole sequences from the empty state."""

        def run(
            part: Part, x: jax.Array, state: State | None, *extra: Any
        ) -> tuple[jax.Array, State | None]:
            return part(x, *extra), None

        x, _ = self._walk(self.embed(tokens), None, run)
        return self.head(x)

    def tile(
        self, tokens: Int[Array, "B T"], states: States, tile: Tile
    ) -> tuple[Float[Array, "B T D"], States, tuple[FixedState, ...]]:
        """Run one tile.

        Args:
            tokens: int32 [batch, tile].
            states: before the tile, in the order of the stateful parts.
            tile: where it lies, which rows count, which states to capture.

        Returns:
            The residual stream, the states after the tile, and what the recurrent parts captured.
        """

        def run(
            part: Part, x: jax.Array, state: State | None, *extra: Any
        ) -> tuple[jax.Array, State | None]:
            result = part.prefill(x, state, tile, *extra)
            if result.captured is not None:
                captured.append(result.captured)
            return result.y, result.state

        captured: list[FixedState] = []
        x, new_states = self._walk(self.embed(tokens), states, run)
        return x, new_states, tuple(captured)

    def step(
        self, tokens: Int[Array, "B"], states: States, position: Int[Array, "B"]
    ) -> tuple[Float[Array, "B V"], States]:
        """Run one token and return the logits of the next."""

        def run(
            part: Part, x: jax.Array, state: State | None, *extra: Any
        ) -> tuple[jax.Array, State | None]:
            return part.decode(x, state, position, *extra)

        x, new_states = self._walk(self.embed(tokens), states, run)
        return self.head(x), new_states

    def _walk(self, x: jax.Array, states: States | None, run: _Run) -> tuple[jax.Array, States]:
        """Thread the stream through all branches and hand each stateful part its state, if there
        are states."""
        pending, new_states, embedded = iter(states or ()), [], x

        def visit(part: Part, inputs: jax.Array, *extra: Any) -> jax.Array:
            remembers = part.stateful and states is not None
            y, state = run(part, inputs, next(pending) if remembers else None, *extra)
            if remembers:
                new_states.append(state)
            return y

        for branch in self.branches:
            read = x
            if branch.injection is not None:
                block = self.shared_blocks[branch.injection.block]
                read = x + branch.injection(block, x, embedded, visit)
            inputs = branch.enter(read)
            x = branch.leave(x, [visit(part, inputs) for part in branch.parts])
        return x, tuple(new_states)
