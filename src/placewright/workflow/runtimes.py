"""Which runtime a problem belongs to where the user names none."""

from __future__ import annotations

from placewright.core.problem import Problem

DEFAULT_RUNTIMES = {"latency": "openvino", "throughput": "openvino", "training": "torch"}
# Reader of the model -> the only runtime that knows its ops by the names that it gave them.
RUNTIME_OF_FORMAT = {"onnx": "onnxruntime"}


def default_runtime(problem: Problem) -> str:
    """The runtime that executes the model as it was read, else the objective's default."""
    if problem.source is not None and problem.source.format in RUNTIME_OF_FORMAT:
        return RUNTIME_OF_FORMAT[problem.source.format]
    return DEFAULT_RUNTIMES[problem.objective]
