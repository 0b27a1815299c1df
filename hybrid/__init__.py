"""The hybrid language model and its engine: layers, prefill, decode, prefix cache, snapshots."""

from hybrid.checkpoint import load_pretrained
from hybrid.config import Compute, HybridConfig
from hybrid.engine import Completion, Engine
from hybrid.presets import preset
from hybrid.runner import ModelRunner
from hybrid.runner_config import RunnerConfig

__all__ = [
    "Completion",
    "Compute",
    "Engine",
    "HybridConfig",
    "ModelRunner",
    "RunnerConfig",
    "load_pretrained",
    "preset",
]
