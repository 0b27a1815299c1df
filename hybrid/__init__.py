"""The hybrid language model and its engine: layers, prefill, decode, prefix cache, snapshots."""

from hybrid.checkpoint import CheckpointError, load_pretrained
from hybrid.config import Compute, HybridConfig
from hybrid.engine import Completion, Engine
from hybrid.memory import InsufficientMemoryError
from hybrid.presets import preset
from hybrid.runner import ModelRunner
from hybrid.runner_config import RunnerConfig

__all__ = [
    "CheckpointError",
    "Completion",
    "Compute",
    "Engine",
    "HybridConfig",
    "InsufficientMemoryError",
    "ModelRunner",
    "RunnerConfig",
    "load_pretrained",
    "preset",
]
