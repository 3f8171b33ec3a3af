"""Runtimes by name, with what they need, and which one a model or problem belongs to."""

from __future__ import annotations

from collections.abc import Mapping

from placewright.core.problem import Problem
from placewright.core.source import ModelSource
from placewright.errors import FieldError
from placewright.execution.framework import Framework
from placewright.execution.runtime import Runtime
from placewright.frameworks.registry import (
    framework_named,
    framework_of,
    frameworks,
    make_runtime,
)
from placewright.session.found_models import finder


def runtime_named(name: str) -> Runtime:
    """The runtime called `name`, able to find its models.

    Raises:
        UnknownNameError: there is none.
        MissingExtraError: its library is not installed.
    """
    return make_runtime(name, finder(framework_named(name)))


def default_runtime_name(objective: str = "latency") -> str:
    """The first choice for an objective."""
    return _able(objective)[0].name


def default_runtime(problem: Problem) -> str:
    """The runtime that executes the model as it was read, else the objective's default."""
    return runtime_of(problem.source, problem.objective)


def runtime_of(source: ModelSource | None, objective: str = "latency") -> str:
    """As `default_runtime`, before there is a problem."""
    framework = None if source is None else framework_of(source)
    if framework is None or objective not in framework.objectives:
        return default_runtime_name(objective)
    return framework.name


def module_runtime_name() -> str:
    """The first choice for a module in memory."""
    return next(one.name for one in frameworks() if one.reads_modules)


def require_known_runtime(runtime: str | None) -> None:
    """Refuse a name before any long work is done for it.

    Raises:
        UnknownNameError: there is no such runtime.
    """
    if runtime is not None:
        framework_named(runtime)


def require_training_runtime(runtime: str | None, objective: str) -> None:
    """Refuse to train with a runtime that only infers.

    Raises:
        FieldError: names the runtime that trains.
    """
    if runtime is None or objective in framework_named(runtime).objectives:
        return
    able = " or ".join(one.name for one in _able(objective))
    verb = "train" if objective == "training" else f"be used for {objective}"
    raise FieldError("runtime", f"'{runtime}' cannot {verb}; leave it out, or take {able}")


def compile_options(runtime: str) -> Mapping[str, str]:
    """Options of devices whose segments are to be compiled.

    Raises:
        FieldError: the runtime has no choice.
    """
    options = framework_named(runtime).compile_options
    if not options:
        able = " or ".join(one.name for one in frameworks() if one.compile_options)
        raise FieldError("compiled", f"is of runtime {able}; '{runtime}' always compiles")
    return options


def _able(objective: str) -> tuple[Framework, ...]:
    """The frameworks for an objective, the first choice first."""
    return tuple(one for one in frameworks() if objective in one.objectives)
