"""Placers by name, ours and those of other packages, imported only on request.

Others are ``package.module:Class``, or entry points ``placewright.placers``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import logging
import math
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast, get_args, get_type_hints

import numpy as np

from placewright.core.charges import CHARGED
from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import (
    BudgetSpent,
    InputError,
    MissingExtraError,
    PlacewrightError,
    UnknownNameError,
)
from placewright.simulation.evaluator import Evaluator

# Name -> "module:class" under placewright.placers; one line per placer.
REGISTRY: dict[str, str] = {
    "accelerate": "baselines.accelerate:Accelerate",
    "auto": "portfolio.auto:Auto",
    "cem": "search.cem:Cem",
    "cpop": "list_scheduling.cpop:Cpop",
    "cooling": "learned.controls:Cooling",
    "cp-sat": "exact.cp_sat:CpSat",
    "dpl": "pipelines.dpl:Dpl",
    "even-split": "baselines.simple:EvenSplit",
    "expert": "baselines.expert.placer:Expert",
    "greedy": "pipelines.greedy:Greedy",
    "grouper-placer": "learned.grouper_placer.placer:GrouperPlacer",
    "grouper-placer-mi": "learned.grouper_placer.placer:GrouperPlacerMi",
    "heft": "list_scheduling.heft:Heft",
    "hierarchical": "learned.hierarchical.placer:Hierarchical",
    "hierarchical-mi": "learned.hierarchical.placer:HierarchicalMi",
    "hsdag": "learned.hsdag.placer:Hsdag",
    "hsdag-corrected": "learned.hsdag.placer:HsdagCorrected",
    "hsdag-released": "learned.hsdag.placer:HsdagReleased",
    "ideal-dp": "pipelines.ideal_dp:IdealDp",
    "latency-ip": "exact.latency_ip:LatencyIp",
    "local-search": "search.local_search:LocalSearch",
    "m-etf": "list_scheduling.m_etf:MEtf",
    "m-sct": "list_scheduling.m_sct:MSct",
    "m-topo": "list_scheduling.m_topo:MTopo",
    "maxload-ip": "exact.maxload_ip:MaxloadIp",
    "metis": "partitioning.metis:Metis",
    "mincut": "partitioning.mincut:Mincut",
    "mt-kahypar": "partitioning.mt_kahypar:MtKahypar",
    "multilevel": "search.multilevel:Multilevel",
    "peft": "list_scheduling.peft:Peft",
    "pipedream": "pipelines.pipedream:Pipedream",
    "placeto": "learned.placeto.placer:PlacetoPlacer",
    "placeto-mean": "learned.placeto.placer:PlacetoMean",
    "post": "learned.post.placer:Post",
    "problem-space": "search.problem_space:ProblemSpace",
    "random": "baselines.simple:RandomSearch",
    "random-grouped": "learned.controls:RandomGrouped",
    "round-robin": "baselines.simple:RoundRobin",
    "scotch": "partitioning.scotch:Scotch",
    "seq2seq": "learned.seq2seq.placer:Seq2Seq",
    "seq2seq-entropy": "learned.seq2seq.placer:Seq2SeqEntropy",
    "seq2seq-hsdag-rnn": "learned.seq2seq.placer:Seq2SeqHsdagRnn",
    "sequential-ip": "exact.sequential_ip:SequentialIp",
    "single": "baselines.simple:Single",
    "zero-shot": "learned.zero_shot.placer:ZeroShot",
}
ENTRY_POINTS = "placewright.placers"
# A published system has the bare name; a form of it that we changed has a name of its own.
MENDED = {
    "grouper-placer": "grouper-placer-mi",
    "hierarchical": "hierarchical-mi",
    "hsdag": "hsdag-corrected",
    "seq2seq": "seq2seq-entropy",
}
_MEMBERS = ("name", "paper", "objectives", "needs_training", "why_not", "place")


class Placer(Protocol):
    """An algorithm that finds placements: a frozen dataclass of hyperparameters.

    A class that needs optional packages lists them in ``requires``: pairs of the package and the
    extra that installs it.

    Life cycle: the constructor validates hyperparameters; `why_not` returns why the method is not
    defined for a problem, if so; `place` asks the evaluator for values until it is done or the
    budget ends, and returns the evaluator's incumbent.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    objectives: ClassVar[tuple[str, ...]]
    needs_training: ClassVar[bool]

    def why_not(self, problem: Problem) -> str | None:
        """None if the method is defined for `problem`, else the reason why it is not."""
        ...

    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Search within the evaluator's budget."""
        ...


def why_not(placer: Placer, problem: Problem) -> str | None:
    """None if a placer is defined for a problem, else the reason.

    A placer from elsewhere that does not name energy or price may take values for seconds.
    """
    if problem.objective in CHARGED and problem.objective not in placer.objectives:
        return f"it minimises {' or '.join(placer.objectives)}, not {problem.objective}"
    return placer.why_not(problem)


def placer_names() -> tuple[str, ...]:
    """All names, of this package and of installed ones, in alphabetical order.

    >>> "heft" in pw.placer_names()
    True
    """
    return tuple(sorted({**entry_points(), **REGISTRY}))


def placer_class(name: str) -> type[Placer]:
    """The class behind a name, or at ``package.module:Class``.

    Raises:
        UnknownNameError: neither this package nor an installed one has the name.
        InputError: the class cannot be imported, or is no placer.
    """
    if name not in REGISTRY:
        path = name if is_path(name) else entry_points().get(name)
        if path is None:
            module, dot, last = name.rpartition(".")
            near = (f"{module}:{last}",) if dot else ()  # Python's own way to write it
            raise UnknownNameError(
                "placer", name, placer_names(), near=near, listed_by="placewright placers"
            )
        return cast("type[Placer]", outside_class(path))
    module, _, attribute = REGISTRY[name].partition(":")
    loaded = getattr(importlib.import_module(f"placewright.placers.{module}"), attribute)
    return cast("type[Placer]", loaded)


def importable_placers() -> tuple[dict[str, type[Placer]], dict[str, str]]:
    """Classes by name, and why an installed package's placer cannot be imported, by its name."""
    classes: dict[str, type[Placer]] = {}
    broken: dict[str, str] = {}
    for name in placer_names():
        try:
            classes[name] = placer_class(name)
        except InputError as error:
            broken[name] = str(error)
    return classes, broken


def _with_setting(setting: str) -> tuple[str, ...]:
    classes, _ = importable_placers()
    return tuple(name for name, each in classes.items() if setting in _fields_of(each))


def placers_that_learn() -> tuple[str, ...]:
    """Placers that learn while they search: their setting `updates` switches learning off."""
    return _with_setting("updates")


def placers_that_take_a_policy() -> tuple[str, ...]:
    """Placers that can start from a policy of `train`."""
    return _with_setting("policy")


def _fields_of(placer: type[Placer]) -> tuple[str, ...]:
    return tuple(item.name for item in dataclasses.fields(placer))  # type: ignore[arg-type]


def settings_of(name: str) -> tuple[str, ...]:
    """Names of a placer's hyperparameters.

    Raises:
        UnknownNameError: the name is not registered.
    """
    return _fields_of(placer_class(name))


def make_placer(name: str, settings: Mapping[str, str] | None = None) -> Placer:
    """A placer with hyperparameters given as text (``--set-placer key=value``).

    >>> pw.make_placer("local-search").name
    'local-search'

    Raises:
        UnknownNameError: the name or a hyperparameter is not registered.
        InputError: a value of the wrong type or range.
        MissingExtraError: a package that the placer needs is not installed.
    """
    placer_type = placer_class(name)
    for package, extra in getattr(placer_type, "requires", ()):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, extra, f"placer '{name}'")
    fields = {item.name: item for item in dataclasses.fields(placer_type)}  # type: ignore[arg-type]
    values: dict[str, object] = {}
    for key, text in (settings or {}).items():
        if key not in fields:
            raise UnknownNameError(f"setting of placer {name}", key, list(fields))
        values[key] = _parsed(name, key, text, _type_of(placer_type, fields[key]))
    return placer_type(**values)


def family_of(name: str) -> str:
    """The published system that a name belongs to: `hsdag` for `hsdag-corrected`.

    Policies pass between the members of a family. A member refuses a policy whose network has other
    settings than it can take on.
    """
    families = [bare for bare in REGISTRY if name.startswith(f"{bare}-") and name in REGISTRY]
    return families[0] if families else name


def resolved_settings(placer: Placer) -> dict[str, Any]:
    """All hyperparameters of a placer by name, as values that JSON has.

    >>> resolved_settings(make_placer("cooling", {"last": "0.01"}))
    {'first': 0.5, 'last': 0.01, 'samples': 1000, 'batch': 50}
    """
    plain = (bool, int, float, str, type(None))
    values = {
        item.name: getattr(placer, item.name)
        for item in dataclasses.fields(placer)  # type: ignore[arg-type]
    }
    return {key: each if isinstance(each, plain) else str(each) for key, each in values.items()}


def hint_of(name: str) -> str:
    """Recommend the corrected form of a published system, with the table of results; "" if none."""
    if name not in MENDED:
        return ""
    return (
        f"{name} is the system of {placer_class(name).paper}, as published; {MENDED[name]} is our "
        "mended form: docs/results/learned-500.md compares them, one problem at a time"
    )


@functools.cache
def tell_of_mended(name: str) -> None:
    """Log `hint_of` a name, once in this process."""
    if hint := hint_of(name):
        logging.getLogger(__name__).warning("%s", hint)


def _type_of(placer: type[Placer], field: dataclasses.Field[object]) -> object:
    """The type of a setting; if its default is None, the other type of its annotation."""
    if field.default is not None:
        return type(field.default)
    kinds = get_args(get_type_hints(placer)[field.name])
    return next((kind for kind in kinds if kind is not type(None)), str)


def _parsed(placer: str, key: str, text: str, kind: object) -> object:
    try:
        if kind is bool:
            return {"true": True, "yes": True, "false": False, "no": False}[text.lower()]
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
    except (KeyError, ValueError):
        word = getattr(kind, "__name__", str(kind))
        raise InputError(f"placer '{placer}': {key} must be a {word}, got '{text}'") from None
    return text


def entry_points() -> dict[str, str]:
    """Name -> ``"package.module:Class"`` of every placer of installed packages."""
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {point.name: point.value for point in sorted(points, key=lambda point: point.name)}


def is_path(name: str) -> bool:
    """True for ``package.module:Class``."""
    module, colon, attribute = name.partition(":")
    parts = module.split(".")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in parts)


def outside_class(path: str) -> type[Any]:
    """The class at ``package.module:Class``, also in a module of the current folder.

    Raises:
        InputError: it cannot be imported, or is no placer.
    """
    module_name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    added = [] if here in sys.path else [here]
    sys.path += added
    try:
        loaded = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # its module runs code of its own
        raise InputError(f"placer '{path}' cannot be imported: {error}") from error
    finally:
        for folder in added:
            sys.path.remove(folder)
    missing = [member for member in _MEMBERS if not hasattr(loaded, member)]
    if not isinstance(loaded, type) or not dataclasses.is_dataclass(loaded) or missing:
        what = f"it has no {', '.join(missing)}" if missing else "it is no dataclass"
        raise InputError(f"'{path}' is no placer: {what}; the site's page 'Add a placer' shows one")
    return loaded


def solution_by(placer: Placer, problem: Problem, evaluator: Evaluator, seed: int) -> Solution:
    """Run a placer; of one from outside the package, check what it returns.

    Raises:
        InputError: such a placer raised an error, which is named with its file and line, or it
            returned something else than a solution, or another value than that of its placement.
    """
    is_ours = type(placer).__module__.partition(".")[0] == "placewright"
    try:
        solution = placer.place(problem, evaluator, np.random.default_rng(seed))
    except (PlacewrightError, BudgetSpent, MemoryError):
        raise
    except Exception as error:
        if is_ours:
            raise
        steps = traceback.extract_tb(error.__traceback__)
        package = str(Path(__file__).parents[1])
        at = next((s for s in reversed(steps) if not s.filename.startswith(package)), steps[-1])
        raise InputError(
            f"placer '{placer.name}' raised {type(error).__name__}: {error} "
            f"({Path(at.filename).name}, line {at.lineno})"
        ) from error
    if not isinstance(solution, Solution) or not isinstance(solution.placement, Placement | None):
        raise InputError(
            f"placer '{placer.name}' returned {type(solution).__name__}; `place` returns a "
            "Solution with a Placement, such as evaluator.solution()"
        )
    if solution.placement is not None and not (is_ours or evaluator.is_measured):
        value = evaluator.simulator.value(solution.placement)
        if not math.isclose(value, solution.value, rel_tol=1e-9):
            raise InputError(
                f"placer '{placer.name}' returned the value {solution.value:.9g}, and its "
                f"placement has {value:.9g}; return evaluator.solution()"
            )
    return solution
