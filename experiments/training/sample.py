"""What a trained model writes, through the engine like any other request."""

import numpy as np
from flax import nnx

from hybrid.config import Compute, HybridConfig
from hybrid.engine import Engine
from hybrid.runner import ModelRunner, RunnerConfig

PROMPT = b'def read_lines(path, encoding="utf-8"):\n    """'


def write_text(
    config: HybridConfig,
    params: nnx.State,
    seed: int,
    new_tokens: int = 480,
    temperature: float = 0.6,
) -> str:
    """Continue a fixed prompt.

    Args:
        config: the architecture.
        params: fp32 weights.
        seed: of the draws.
        new_tokens: bytes to write.
        temperature: of the draws.

    Returns:
        Prompt and continuation; bytes that are no UTF-8 become replacement characters.
    """
    shapes = RunnerConfig(capacity=len(PROMPT) + new_tokens, tile=64)
    runner = ModelRunner(config, Compute(), shapes, params=params)
    with Engine(runner, mode="off", interval=0) as engine:
        completion = engine.generate(
            np.frombuffer(PROMPT, np.uint8), new_tokens, temperature=temperature, seed=seed
        )
    return (PROMPT + completion.tokens.astype(np.uint8).tobytes()).decode(errors="replace")
