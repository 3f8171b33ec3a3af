"""Placers by name, ours and those of other packages, imported only on request.

Others are ``package.module:Class``, or entry points ``placewright.placers``.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast, get_args, get_type_hints

import numpy as np

from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InputError, MissingExtraError, UnknownNameError
from placewright.simulation.evaluator import Evaluator

# Name -> "module:class" under placewright.placers; one line per placer.
REGISTRY: dict[str, str] = {
    "accelerate": "baselines.accelerate:Accelerate",
    "auto": "portfolio.auto:Auto",
    "cem": "search.cem:Cem",
    "cpop": "list_scheduling.cpop:Cpop",
    "cooling": "learned.cooling:Cooling",
    "cp-sat": "exact.cp_sat:CpSat",
    "dpl": "pipelines.dpl:Dpl",
    "even-split": "baselines.even_split:EvenSplit",
    "expert": "baselines.expert.placer:Expert",
    "greedy": "pipelines.greedy:Greedy",
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
    "sequential-ip": "exact.sequential_ip:SequentialIp",
    "single": "baselines.single:Single",
    "zero-shot": "learned.zero_shot.placer:ZeroShot",
}
ENTRY_POINTS = "placewright.placers"
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


def reason_against(placer: Placer, problem: Problem) -> str | None:
    """The result of `placer.why_not(problem)`; None if the placer takes the problem.

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
            raise UnknownNameError("placer", name, placer_names())
        return cast("type[Placer]", outside_class(path))
    module, _, attribute = REGISTRY[name].partition(":")
    loaded = getattr(importlib.import_module(f"placewright.placers.{module}"), attribute)
    return cast("type[Placer]", loaded)


def placers_that_learn() -> tuple[str, ...]:
    """Placers that learn while they search: their setting `updates` switches learning off."""
    return tuple(name for name in placer_names() if "updates" in settings_of(name))


def placers_that_take_a_policy() -> tuple[str, ...]:
    """Placers that can start from a policy of `train`."""
    return tuple(name for name in placer_names() if "policy" in settings_of(name))


def settings_of(name: str) -> tuple[str, ...]:
    """Names of a placer's hyperparameters.

    Raises:
        UnknownNameError: the name is not registered.
    """
    return tuple(item.name for item in dataclasses.fields(placer_class(name)))  # type: ignore[arg-type]


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
    sys.path.append(here)
    try:
        loaded = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise InputError(f"placer '{path}' cannot be imported: {error}") from error
    finally:
        sys.path.remove(here)
    missing = [member for member in _MEMBERS if not hasattr(loaded, member)]
    if not isinstance(loaded, type) or not dataclasses.is_dataclass(loaded) or missing:
        what = f"it has no {', '.join(missing)}" if missing else "it is no dataclass"
        raise InputError(f"'{path}' is no placer: {what}; see docs/develop/add-a-placer.md")
    return loaded
