"""Decoding: many steps a call, greedy or sampled, from the states at the end of a prompt."""

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from hybrid.state import States


def sample(
    logits_BV: Float[Array, "B V"],
    temperature: Float[Array, ""],
    key: Key[Array, ""],
    position: Int[Array, ""],
) -> Int[Array, "B"]:
    """Draw the token that follows `position` tokens.

    The noise depends on the key and the position alone, so a continuation that is decoded in
    several calls draws the same tokens as one call.

    Args:
        logits_BV: fp32.
        temperature: 0 takes the most likely token (the lowest id among equals).
        key: of the whole request.
        position: int32, tokens before the one drawn.

    Returns:
        int32 [batch].
    """
    noise = jax.random.gumbel(jax.random.fold_in(key, position), logits_BV.shape, jnp.float32)
    return jnp.argmax(logits_BV + temperature * noise, axis=-1).astype(jnp.int32)


def decode_steps(
    graphdef: nnx.GraphDef[Any],
    params: nnx.State,
    states: States,
    logits_BV: Float[Array, "B V"],
    position: Int[Array, ""],
    steps: Int[Array, ""],
    temperature: Float[Array, ""],
    key: Key[Array, ""],
    *,
    max_steps: int,
) -> tuple[Int[Array, "B max_steps"], Float[Array, "B V"], States]:
    """Draw `steps` tokens, feeding each to the model.

    Args:
        graphdef, params: the model, split.
        states: after `position` tokens; donated.
        logits_BV: fp32, of the token at `position`.
        position: int32, tokens consumed so far.
        steps: int32, at most `max_steps`.
        temperature, key: see `sample`.
        max_steps: width of the result.

    Returns:
        Tokens int32 [batch, max_steps] (0 from `steps` on), the logits of the token after them, and
        the states after them.
    """
    model = nnx.merge(graphdef, params)
    batch = logits_BV.shape[0]

    def one(i: jax.Array, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        drawn, logits, states = carry
        token = sample(logits, temperature, key, position + i)
        drawn = jax.lax.dynamic_update_slice(drawn, token[:, None], (0, i))
        logits, states = model.step(token, states, jnp.broadcast_to(position + i, (batch,)))
        return drawn, logits, states

    drawn = jnp.zeros((batch, max_steps), jnp.int32)
    return jax.lax.fori_loop(jnp.zeros_like(steps), steps, one, (drawn, logits_BV, states))


class Continuation:
    """What a request has drawn so far: each token is handed on once, and a stop token is the last.

    Args:
        stop_tokens: ids that end the continuation; the one that did is part of it.
        on_tokens: called with the new tokens, int32 [n], n at least 1.
    """

    def __init__(
        self,
        stop_tokens: Collection[int] = (),
        on_tokens: Callable[[np.ndarray], None] | None = None,
    ) -> None:
        self.tokens = np.zeros(0, np.int32)
        self.ended = False
        self._stop_tokens = np.array(sorted(stop_tokens), np.int32)
        self._on_tokens = on_tokens

    def take(self, start: int, drawn: np.ndarray) -> bool:
        """Append what a call drew.

        Args:
            start: place of `drawn[0]` in the continuation, at most the number of tokens so far;
                those that are here already are passed over.
            drawn: int32 [n].

        Returns:
            Whether the continuation has ended: nothing more is taken then.
        """
        new = drawn[len(self.tokens) - start :]
        stops = np.flatnonzero(np.isin(new, self._stop_tokens))
        if stops.size:
            new, self.ended = new[: stops[0] + 1], True
        if new.size:
            self.tokens = np.concatenate([self.tokens, new])
            if self._on_tokens is not None:
                self._on_tokens(new)
        return self.ended
