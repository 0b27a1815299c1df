"""The recurrences at the sizes of published models: inputs, calls, baselines, FLOPs and bytes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from kernels.gated_delta import gated_delta_scan
from kernels.gated_delta.api import DEFAULT_CHUNK as GATED_DELTA_CHUNK
from kernels.linear_scan import linear_scan
from kernels.scan import ScanResult, combine
from kernels.ssd import ssd_scan
from kernels.ssd.api import DEFAULT_CHUNK as SSD_CHUNK

Inputs = dict[str, jax.Array]


@dataclass(frozen=True)
class KernelCase:
    """One recurrence at one size.

    Attributes:
        name: the model whose size it is.
        op: "ssd", "gated_delta" or "linear".
        dims: ssd: heads, head_dim, groups, state_dim; gated_delta: key_heads, heads, key_dim,
            value_dim; linear: channels.
    """

    name: str
    op: str
    dims: tuple[int, ...]

    def shrunk(self) -> "KernelCase":
        """The same recurrence, tiny."""
        return replace(
            self, dims={"ssd": (2, 8, 1, 8), "gated_delta": (1, 2, 8, 8)}.get(self.op, (16,))
        )

    def inputs(self, tokens: int, dtype: str, seed: int = 0) -> Inputs:
        """Random inputs of one row, in the ranges that trained layers give."""
        keys = iter(jax.random.split(jax.random.key(seed), 6))

        def normal(*axes: int) -> jax.Array:
            return jax.random.normal(next(keys), (1, tokens, *axes), jnp.float32)

        def unit(*axes: int) -> jax.Array:
            rows = normal(*axes)
            return rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)

        if self.op == "ssd":
            heads, head_dim, groups, state_dim = self.dims
            wide = {
                "x": normal(heads, head_dim),
                "B": normal(groups, state_dim),
                "C": normal(groups, state_dim),
            }
            narrow = {
                "dt": 0.1 * jax.nn.softplus(normal(heads)),
                "A": -jnp.exp(jax.random.uniform(next(keys), (heads,), maxval=2.0)),
            }
        elif self.op == "gated_delta":
            key_heads, heads, key_dim, value_dim = self.dims
            wide = {
                "q": unit(key_heads, key_dim),
                "k": unit(key_heads, key_dim),
                "v": normal(heads, value_dim),
            }
            narrow = {
                "g": -0.1 * jax.nn.softplus(normal(heads)),
                "beta": jax.nn.sigmoid(normal(heads)),
            }
        else:
            wide = {"b": normal(*self.dims)}
            narrow = {"log_a": -0.1 * jax.nn.softplus(normal(*self.dims))}
        return {name: value.astype(dtype) for name, value in wide.items()} | narrow

    def scan(
        self,
        inputs: Inputs,
        implementation: str,
        offsets: jax.Array | None = None,
        state: jax.Array | None = None,
    ) -> ScanResult:
        """Call the operation."""
        scans: dict[str, Callable[..., ScanResult]] = {
            "ssd": ssd_scan,
            "gated_delta": gated_delta_scan,
            "linear": linear_scan,
        }
        return scans[self.op](
            **inputs, initial_state=state, capture_offsets=offsets, implementation=implementation
        )

    def pieces(self, inputs: Inputs, cuts: tuple[int, ...]) -> list[Inputs]:
        """The inputs cut between tokens."""
        return [
            {name: value if name == "A" else value[:, a:b] for name, value in inputs.items()}
            for a, b in zip((0, *cuts[:-1]), cuts, strict=True)
        ]

    def associative(self, inputs: Inputs) -> jax.Array:
        """The final state by one `lax.associative_scan` over whole states of one head.

        Every head would hold a state a token; the first one stands for all. Linear: all channels.
        """
        if self.op == "linear":
            span = (jnp.exp(inputs["log_a"]), inputs["b"].astype(jnp.float32))
            return lax.associative_scan(combine, span, axis=1)[1]
        first = {
            name: value[..., :1] if value.ndim < 4 else value[:, :, :1]
            for name, value in inputs.items()
        }
        if self.op == "ssd":
            dt, x, B = (first[name][0, :, 0].astype(jnp.float32) for name in ("dt", "x", "B"))
            decay = jnp.exp(dt * first["A"])[:, None, None]
            increment = (dt[:, None] * x)[:, :, None] * B[:, None, :]
            return lax.associative_scan(combine, (decay, increment))[1]
        k, v = (first[name][0, :, 0].astype(jnp.float32) for name in ("k", "v"))
        g, beta = (first[name][0, :, 0] for name in ("g", "beta"))
        erase = jnp.eye(k.shape[1])[None] - beta[:, None, None] * k[:, :, None] * k[:, None, :]
        write = (beta[:, None] * k)[:, :, None] * v[:, None, :]

        def product(later: jax.Array, earlier: jax.Array) -> jax.Array:
            return jnp.matmul(later, earlier, precision="highest")

        span = (jnp.exp(g)[:, None, None] * erase, write)
        return lax.associative_scan(lambda a, b: combine(a, b, product), span)[1]

    def heads(self) -> int:
        """How many heads the associative baseline's one head stands for."""
        return {"ssd": self.dims[0], "gated_delta": self.dims[1 % len(self.dims)]}.get(self.op, 1)

    def flops(self, tokens: int) -> int:
        """Multiplications and additions of the chunked form, the causal half not taken off."""
        if self.op == "ssd":
            heads, head_dim, groups, state_dim = self.dims
            chunk = SSD_CHUNK
            a_head = 2 * chunk * head_dim + 4 * head_dim * state_dim
            return tokens * (groups * 2 * chunk * state_dim + heads * a_head)
        if self.op == "gated_delta":
            key_heads, heads, key_dim, value_dim = self.dims
            chunk = GATED_DELTA_CHUNK
            a_head = 4 * chunk * value_dim + 6 * key_dim * value_dim
            return tokens * (key_heads * 4 * chunk * key_dim + heads * a_head)
        return tokens * 3 * self.dims[0]

    def bytes(self, inputs: Inputs, result: ScanResult) -> int:
        """Bytes of the inputs, y and the final state, each once."""
        leaves: list[Any] = [*inputs.values(), result.y, result.final_state]
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


CASES = {
    case.name: case
    for case in (
        KernelCase("mamba2-2.7b", "ssd", (80, 64, 1, 128)),
        KernelCase("granite-4.0-h-small", "ssd", (128, 64, 1, 128)),
        KernelCase("nemotron-h-8b", "ssd", (128, 64, 8, 128)),
        KernelCase("qwen3-next", "gated_delta", (16, 32, 128, 128)),
        KernelCase("recurrentgemma-2b", "linear", (2560,)),
    )
}
