"""Workloads: what is asked of the model, in which order."""

from experiments.workloads.outputs import Outputs
from experiments.workloads.stdlib_sessions import stdlib_sessions
from experiments.workloads.trace_workload import trace_workload
from experiments.workloads.workload import Request, Workload

__all__ = ["Outputs", "Request", "Workload", "stdlib_sessions", "trace_workload"]
