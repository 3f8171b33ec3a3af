"""The default runtime of a request, and checks that a model's file and a runtime can be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from placewright.core.problem import Objective, Problem, timed_objective
from placewright.core.source import ModelSource
from placewright.errors import FieldError, FileFormatError, InputError, near_names
from placewright.execution.framework import Framework, HandsOverPrograms
from placewright.frameworks.registry import (
    framework_named,
    framework_of,
    frameworks,
    is_installed,
    path_in,
    readers,
)
from placewright.io.opened import has_entry, shown_name

ZOO_PREFIX = "zoo:"
MODULE_PREFIX = "module:"
IN_MEMORY = (ZOO_PREFIX, MODULE_PREFIX)
_MOST_FILES = 1000  # of a folder, whose names are compared with a name that does not exist


def default_runtime_name(objective: Objective = "latency", model: str = "") -> str:
    """The first installed runtime that has the objective and reads a model.

    If none reads it, any with the objective counts. If none is installed, the first of these, whose
    error names what to install.

    Args:
        model: a name; empty is any.
    """
    return default_choice(objective, model)[0].name


def default_choice(objective: Objective, model: str) -> tuple[Framework, Sequence[Framework]]:
    """The framework for a model by default, and those before it, which are not installed."""
    able = _able(timed_objective(objective))
    candidates = [framework for framework in able if _reads(framework, model)] or able
    at = next((at for at, framework in enumerate(candidates) if is_installed(framework)), 0)
    return candidates[at], candidates[:at]


def _reads(framework: Framework, model: str) -> bool:
    """True if a framework reads a model of this name, or can have it converted."""
    suffix = Path(model).suffix.lower()
    if not model or model.startswith(IN_MEMORY):
        return True
    if Path(model).is_dir():
        return framework.reads_folders
    if suffix in framework.suffixes:
        return True
    others = [framework for framework in frameworks() if isinstance(framework, HandsOverPrograms)]
    return framework.converts_programs and any(suffix in framework.suffixes for framework in others)


_WHAT_TO_GIVE = "give a file, zoo:NAME, or hf:FOLDER with the config.json of a language model"


def require_file(name: str) -> None:
    """Refuse the name of a file that does not exist, or has a format that nothing here reads.

    Raises:
        InputError: there is no such file.
        FileFormatError: its format is unknown.
    """
    path = path_in(name)
    if "\0" in path:
        raise InputError(f"model '{shown_name(name)}' names no file; {_WHAT_TO_GIVE}")
    if not (path and has_entry(Path(path))):
        near = _files_like(Path(path))
        meant = f"did you mean {' or '.join(near)}?" if near else _WHAT_TO_GIVE
        fault = "does not exist" if path else "names no file"
        raise InputError(f"model '{shown_name(name)}' {fault}; {meant}")
    if path == name:  # no reader's prefix
        require_known_format(Path(path))


def _files_like(path: Path) -> tuple[str, ...]:
    """Files in the folder of a path with a name like its own."""
    try:
        found = [file.name for file in path.parent.iterdir()]
    except (OSError, ValueError):
        return ()
    near = near_names(path.name, found[:_MOST_FILES])
    return tuple(str(path.with_name(name)) for name in near)


def refuse_bare_folder(name: str) -> None:
    """Refuse the folder of a language model's configuration without its prefix.

    Raises:
        InputError: the message has the name with it.
    """
    folder = Path(name)
    if (folder / "config.json").is_file() and not (folder / "saved_model.pb").exists():
        raise InputError(why_bare_folder(name))


def why_bare_folder(name: str) -> str:
    """Message about a folder, or a configuration in it, without a language model's prefix."""
    return f"'{name}' has the configuration of a model; write hf:{name} for a language model"


def require_known_format(path: Path) -> None:
    """Refuse a file that nothing here reads, by its suffix.

    Raises:
        FileFormatError: the message names the formats, or how to get one.
    """
    known = [suffix for framework in frameworks() for suffix in framework.suffixes]
    known += [suffix for framework in readers() for suffix in framework.suffixes]
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in (*known, ".json"):
        return
    hints = [framework.instead[suffix] for framework in frameworks() if suffix in framework.instead]
    listed = f"known are {', '.join(dict.fromkeys(known))}, .json and a SavedModel folder"
    raise FileFormatError(
        f"'{shown_name(path)}' has no known model format; {(hints or [listed])[0]}"
    )


def default_runtime(problem: Problem) -> str:
    """The runtime of the framework that read the model, else the objective's default."""
    return runtime_of(problem.source, problem.objective)


def runtime_of(source: ModelSource | None, objective: Objective = "latency") -> str:
    """Like `default_runtime`, before there is a problem."""
    framework = None if source is None else framework_of(source)
    if framework is None or timed_objective(objective) not in framework.objectives:
        return default_runtime_name(objective)
    return framework.name


def module_runtime_name() -> str:
    """The first runtime of the registry that reads modules in memory."""
    return next(framework.name for framework in frameworks() if framework.reads_modules)


def require_objective(runtime: str | None, objective: Objective) -> None:
    """Refuse a runtime that cannot run models for the objective.

    Raises:
        UnknownNameError: there is no such runtime.
        FieldError: the message names the runtimes that have it.
    """
    timed = timed_objective(objective)
    if runtime is None or timed in framework_named(runtime).objectives:
        return
    able = " or ".join(framework.name for framework in _able(timed))
    verb = "train" if objective == "training" else f"be used for {objective}"
    raise FieldError("runtime", f"'{runtime}' cannot {verb}; leave it out, or take {able}")


def compile_options(runtime: str) -> Mapping[str, str]:
    """Device options that make a runtime compile its segments.

    Raises:
        FieldError: the runtime always compiles.
    """
    options = framework_named(runtime).compile_options
    if not options:
        able = " or ".join(
            framework.name for framework in frameworks() if framework.compile_options
        )
        raise FieldError("compiled", f"is of runtime {able}; '{runtime}' always compiles")
    return options


def _able(objective: str) -> tuple[Framework, ...]:
    """The frameworks for an objective, the first choice first."""
    return tuple(framework for framework in frameworks() if objective in framework.objectives)
