"""Readers of recorded request traces."""

from experiments.traces.reader import read_trace
from experiments.traces.recorded import Recorded, prompt_tokens, scaled_length, trace_requests

__all__ = ["Recorded", "prompt_tokens", "read_trace", "scaled_length", "trace_requests"]
