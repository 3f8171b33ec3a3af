"""Decide which device runs each operator of a neural network, prove it, run it.

>>> import placewright as pw
>>> "heft" in pw.placer_names()
True
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

# OpenVINO forks a process that reports each import and each conversion to a web service, unless it
# finds no such package. What is placed is nobody's business, and a fork disturbs measurements.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

_NAMES = {
    "read": "session.session",
    "discover": "session.session",
    "profile": "session.session",
    "place": "session.session",
    "run": "session.session",
    "load": "session.session",
    "unload": "session.session",
    "compare": "session.session",
    "simulate": "session.session",
    "Request": "session.request",
    "Session": "session.session",
    "stream": "session.session",
    "LoadedPlan": "session.loaded.plans",
    "LoadedStep": "session.loaded.steps",
    "LoadedCalls": "session.call_mix",
    "read_plan": "session.plans",
    "write_plan": "files.plan_file",
    "read_problem": "files.problem_file",
    "write_problem": "files.problem_file",
    "read_cluster": "files.cluster_file",
    "placer_names": "placers.registry",
    "make_placer": "placers.registry",
    "Evaluator": "simulation.evaluator",
    "Simulator": "simulation.model",
    "Budget": "core.solution",
    "Placement": "core.placement",
    "Problem": "core.problem",
    "Plan": "core.plan",
    "Cluster": "core.cluster",
    "PlacewrightError": "errors",
    "InputError": "errors",
    "AnswerError": "errors",
    "InfeasibleError": "errors",
    "MismatchError": "errors",
    "StalePlanError": "errors",
    "Interrupted": "errors",
}
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("placewright")
    if name not in _NAMES:
        raise AttributeError(f"module 'placewright' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"placewright.{_NAMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
