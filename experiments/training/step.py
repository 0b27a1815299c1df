"""One optimizer step and the held-out loss.

The only place that calls optax, under jax's standard dtype promotion: its schedules mix Python
floats with int32 counts.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int, UInt8
from numpy import ndarray

from hybrid.config import Compute, HybridConfig
from hybrid.model import HybridModel


class TrainState(NamedTuple):
    """What a checkpoint holds.

    Attributes:
        params: fp32 weights.
        optimizer: moments and counts.
        step: int32 [], steps done.
    """

    params: nnx.State
    optimizer: optax.OptState
    step: Int[Array, ""]


class Recipe(NamedTuple):
    """How weights move.

    Attributes:
        steps: of the whole run.
        warmup: steps of linear growth of the learning rate, before its cosine.
        learning_rate: at its peak; it ends at a tenth.
        weight_decay: of matrices; vectors are left alone.
        clip: largest norm of a gradient.
    """

    steps: int
    warmup: int
    learning_rate: float
    weight_decay: float
    clip: float

    def schedule(self) -> optax.Schedule:
        """Learning rate by step."""
        return optax.warmup_cosine_decay_schedule(
            0.0, self.learning_rate, self.warmup, self.steps, self.learning_rate / 10
        )

    def optimizer(self) -> optax.GradientTransformation:
        """AdamW after clipping."""
        return optax.chain(
            optax.clip_by_global_norm(self.clip),
            optax.adamw(
                self.schedule(),
                b2=0.98,
                weight_decay=self.weight_decay,
                mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params),
            ),
        )


class Trainer:
    """Compiled programs of one run.

    Args:
        config: the architecture.
        compute: with fp32 parameters; matrix products run in its dtype.
        recipe: how weights move.
    """

    def __init__(self, config: HybridConfig, compute: Compute, recipe: Recipe) -> None:
        self.config, self.compute, self.recipe = config, compute, recipe
        abstract = nnx.eval_shape(lambda: HybridModel(config, compute, nnx.Rngs(params=0)))
        self._graphdef, self._shapes = nnx.split(abstract)
        self._optimizer = recipe.optimizer()
        self._step = jax.jit(self._one_step, donate_argnums=0)
        self._score = jax.jit(self._scored)

    def init(self, seed: int) -> TrainState:
        """Initial weights of a seed, and no moments."""
        with jax.numpy_dtype_promotion("standard"):
            params = nnx.state(HybridModel(self.config, self.compute, nnx.Rngs(params=seed)))
            return TrainState(params, self._optimizer.init(params), jnp.zeros((), jnp.int32))

    def abstract(self) -> Any:
        """Shapes of a state, to restore into."""
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
            jax.eval_shape(lambda: self.init(0)),
        )

    def step(
        self, state: TrainState, batches: UInt8[ndarray, "A B T"]
    ) -> tuple[TrainState, dict[str, float]]:
        """One update from the mean gradient over `A` batches; `state` is used up.

        Returns:
            The new state, and loss (bits a byte), gradient norm and learning rate.
        """
        state, figures = self._step(state, jnp.asarray(batches, jnp.int32))
        return state, {name: float(value) for name, value in figures.items()}

    def bits_per_byte(
        self, params: nnx.State, text: UInt8[ndarray, " n"], length: int, batch: int
    ) -> float:
        """Mean bits that the model needs for each byte of a text after the first.

        Windows overlap by half, and only the second half of each is scored (all of the first
        window), so that every byte has at least length / 2 bytes before it.

        Args:
            params: weights.
            text: at least two bytes.
            length: tokens of a window.
            batch: windows that run together.
        """
        half = length // 2
        starts = np.arange(0, max(len(text) - 1 - half, 1), half)
        padded = np.concatenate([text, np.zeros(length + 1, np.uint8)])
        windows = padded[starts[:, None] + np.arange(length + 1)]
        places = np.arange(length)
        scored = (places >= half) | (starts[:, None] == 0)
        scored &= starts[:, None] + places + 1 < len(text)
        nats = 0.0
        for first in range(0, len(windows), batch):
            rows = np.zeros((batch, length + 1), np.int32)
            mask = np.zeros((batch, length), bool)
            count = len(windows[first : first + batch])
            rows[:count], mask[:count] = (part[first : first + batch] for part in (windows, scored))
            nats += float(self._score(params, jnp.asarray(rows), jnp.asarray(mask)))
        return nats / math.log(2) / int(scored.sum())

    def _losses(self, params: nnx.State, tokens: Int[Array, "B T"]) -> Float[Array, "B t"]:
        logits = nnx.merge(self._graphdef, params)(tokens[:, :-1])
        logs = jax.nn.log_softmax(logits, axis=-1)
        return -jnp.take_along_axis(logs, tokens[:, 1:, None], axis=-1)[..., 0]

    def _scored(
        self, params: nnx.State, tokens: Int[Array, "B T"], mask: Array
    ) -> Float[Array, ""]:
        return jnp.sum(jnp.where(mask, self._losses(params, tokens), 0.0))

    def _one_step(
        self, state: TrainState, batches: Int[Array, "A B T"]
    ) -> tuple[TrainState, dict[str, Array]]:
        def loss(params: nnx.State, tokens: Int[Array, "B T"]) -> Float[Array, ""]:
            return jnp.mean(self._losses(params, tokens))

        def add(total: Any, tokens: Int[Array, "B T"]) -> tuple[Any, None]:
            return jax.tree.map(
                jnp.add, total, jax.value_and_grad(loss)(state.params, tokens)
            ), None

        zero = jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, state.params)
        total, _ = lax.scan(add, zero, batches)
        mean, gradient = jax.tree.map(lambda leaf: leaf / len(batches), total)
        with jax.numpy_dtype_promotion("standard"):
            updates, optimizer = self._optimizer.update(gradient, state.optimizer, state.params)
            params = optax.apply_updates(state.params, updates)
            figures = {
                "loss_bits_per_byte": mean / math.log(2),
                "gradient_norm": optax.tree.norm(gradient),
                "learning_rate": self.recipe.schedule()(state.step),
            }
        return TrainState(params, optimizer, state.step + 1), figures


def master_weights(dtype: str) -> Compute:
    """Products in a dtype, weights in fp32."""
    return Compute(dtype=dtype, param_dtype="float32")
