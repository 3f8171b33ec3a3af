"""Placers by name, imported only when asked for."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Mapping
from typing import ClassVar, Protocol, cast, get_args, get_type_hints

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError, MissingExtraError, UnknownNameError
from placewright.placers.outside import entry_points, is_path, outside_class
from placewright.simulation.evaluator import Evaluator

# Name -> "module:class" under placewright.placers; one line per placer.
REGISTRY: dict[str, str] = {
    "accelerate": "baselines.accelerate:Accelerate",
    "auto": "portfolio.auto:Auto",
    "cem": "search.cem:Cem",
    "cpop": "list_scheduling.cpop:Cpop",
    "cp-sat": "exact.cp_sat:CpSat",
    "dpl": "pipelines.dpl:Dpl",
    "even-split": "baselines.even_split:EvenSplit",
    "expert": "baselines.expert:Expert",
    "greedy": "list_scheduling.greedy:Greedy",
    "grouper-placer": "learned.grouper_placer.placer:GrouperPlacer",
    "heft": "list_scheduling.heft:Heft",
    "hierarchical": "learned.hierarchical.placer:Hierarchical",
    "hsdag": "learned.hsdag.placer:Hsdag",
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
    "post": "learned.post.placer:Post",
    "problem-space": "search.problem_space:ProblemSpace",
    "random": "baselines.random_search:RandomSearch",
    "random-grouped": "learned.random_grouped:RandomGrouped",
    "round-robin": "baselines.round_robin:RoundRobin",
    "scotch": "partitioning.scotch:Scotch",
    "seq2seq": "learned.seq2seq.placer:Seq2Seq",
    "single": "baselines.single:Single",
    "zero-shot": "learned.zero_shot.placer:ZeroShot",
}


class Placer(Protocol):
    """An algorithm that finds placements: a frozen dataclass of hyperparameters.

    A class that needs an optional package says so in ``requires``: pairs of the package and the
    extra that brings it.

    Life cycle: the constructor validates hyperparameters, `why_not` tells whether a problem is of
    the kind that the method is defined for, `place` asks the evaluator for values until it is done
    or the budget ends, and returns the evaluator's incumbent.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    objectives: ClassVar[tuple[str, ...]]
    needs_training: ClassVar[bool]

    def why_not(self, problem: Problem) -> str | None:
        """None when the method is defined for `problem`, else the reason why it is not."""
        ...

    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Search within the evaluator's budget."""
        ...


def reason_against(placer: Placer, problem: Problem) -> str | None:
    """What `placer.why_not(problem)` says; None where the placer takes the problem.

    Raises:
        InputError: the placer has only `supports`, the method's name in earlier versions.
    """
    if not hasattr(placer, "why_not") and hasattr(placer, "supports"):
        raise InputError(
            f"placer '{placer.name}' defines `supports`, which is `why_not(problem)` now: rename "
            "it, and return None instead of an empty text where the placer takes the problem"
        )
    return placer.why_not(problem)


def placer_names() -> tuple[str, ...]:
    """All names, ours and those of installed packages, in alphabetical order."""
    return tuple(sorted({**entry_points(), **REGISTRY}))


def placer_class(name: str) -> type[Placer]:
    """The class behind a name, or at ``package.module:Class``.

    Raises:
        UnknownNameError: the name is neither ours nor an installed package's.
        InputError: the class cannot be imported, or is no placer.
    """
    if name not in REGISTRY:
        path = name if is_path(name) else entry_points().get(name)
        if path is None:
            raise UnknownNameError("placer", name, placer_names())
        return cast("type[Placer]", outside_class(path))
    module, _, attribute = REGISTRY[name].partition(":")
    found = getattr(importlib.import_module(f"placewright.placers.{module}"), attribute)
    return cast("type[Placer]", found)


def placers_that_learn() -> tuple[str, ...]:
    """Those that learn while they search: they have a setting that switches their updates off."""
    return tuple(name for name in placer_names() if "updates" in settings_of(name))


def placers_that_take_a_policy() -> tuple[str, ...]:
    """Those that can start from what `train` learned over other graphs."""
    return tuple(name for name in placer_names() if "policy" in settings_of(name))


def settings_of(name: str) -> tuple[str, ...]:
    """Names of a placer's hyperparameters.

    Raises:
        UnknownNameError: the name is not registered.
    """
    return tuple(item.name for item in dataclasses.fields(placer_class(name)))  # type: ignore[arg-type]


def make_placer(name: str, settings: Mapping[str, str] | None = None) -> Placer:
    """A placer with hyperparameters given as text (``--set-placer key=value``).

    Raises:
        UnknownNameError: the name is not registered.
        InputError: an unknown hyperparameter, or a value of the wrong type or range.
        MissingExtraError: a package that the placer needs is not installed.
    """
    found = placer_class(name)
    for package, extra in getattr(found, "requires", ()):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, extra, f"placer '{name}'")
    fields = {item.name: item for item in dataclasses.fields(found)}  # type: ignore[arg-type]
    values: dict[str, object] = {}
    for key, text in (settings or {}).items():
        if key not in fields:
            raise InputError(
                f"placer '{name}' has no setting '{key}'; it has: {', '.join(fields) or 'none'}"
            )
        values[key] = _parsed(name, key, text, _type_of(found, fields[key]))
    return found(**values)


def _type_of(placer: type[Placer], field: dataclasses.Field[object]) -> object:
    """The type of a setting; of one that is None where its variant decides, what else it may be."""
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
