"""Runtimes by name, with what they need, and which one a model or problem belongs to."""

from __future__ import annotations

from collections.abc import Mapping

from placewright.core.problem import Problem
from placewright.core.source import ModelSource
from placewright.errors import InputError, UnknownNameError
from placewright.execution.runtime import Runtime
from placewright.frameworks.registry import make_runtime, runtime_names

DEFAULT_RUNTIMES: Mapping[str, str] = {
    "latency": "openvino",
    "throughput": "openvino",
    "training": "torch",
}
# Reader of the model -> the only runtime that knows its ops by the names that it gave them.
RUNTIME_OF_FORMAT: Mapping[str, str] = {
    "onnx": "onnxruntime",
    "torch": "torch",
    "torch-training": "torch",
}


def runtime_named(name: str) -> Runtime:
    """The runtime called `name`, able to read its models.

    Raises:
        UnknownNameError: there is none.
        MissingExtraError: its library is not installed.
    """
    if name == "torch":
        from placewright.session.torch_models import load_torch_program

        return make_runtime(name, load_torch_program)
    return make_runtime(name)


def default_runtime(problem: Problem) -> str:
    """The runtime that executes the model as it was read, else the objective's default."""
    return runtime_of(problem.source, problem.objective)


def runtime_of(source: ModelSource | None, objective: str = "latency") -> str:
    """As `default_runtime`, before there is a problem."""
    if source is not None and source.format in RUNTIME_OF_FORMAT:
        return RUNTIME_OF_FORMAT[source.format]
    return DEFAULT_RUNTIMES[objective]


def require_known_runtime(runtime: str | None) -> None:
    """Refuse a name before any long work is done for it.

    Raises:
        UnknownNameError: there is no such runtime.
    """
    if runtime is not None and runtime not in runtime_names():
        raise UnknownNameError("runtime", runtime, runtime_names())


def require_training_runtime(runtime: str | None, objective: str) -> None:
    """Refuse to train with a runtime that only infers.

    Raises:
        InputError: names the runtime that trains.
    """
    if objective == "training" and runtime not in (None, "torch"):
        raise InputError(
            f"runtime '{runtime}' cannot train; leave out --runtime, or take --runtime torch"
        )
