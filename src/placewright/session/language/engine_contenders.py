"""Ways to run a language model on the same devices, beside a plan: as options of the engine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.placement import Placement
from placewright.core.plan import EVEN_SPLIT, PLAN, PlacerRecord, Plan, contender_of
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import InexpressibleError, RuntimeFailure
from placewright.execution.engine.programs import BENCH, FIT, Programs, long
from placewright.session.language.layer_runs import layer_runs
from placewright.session.plans import plan_of
from placewright.simulation.model import Simulator
from placewright.writers.llama_cpp import EngineOptions, engine_options

BY_MEMORY, FITTED = "split by memory", "the engine's fit"
_MIB = 2.0**20
_FIT_OPTIONS = {"-ngl", "-ts", "-ot", "-ncmoe", "-c"}  # that the fitting tool prints


@dataclass(frozen=True)
class EngineContender:
    """A way to run the model."""

    name: str  # of the way
    words: tuple[str, ...]  # options of `llama-bench` that place it
    placement: Placement | None  # None if it is the engine's own
    is_split: bool  # it uses several devices


@dataclass(frozen=True)
class Contenders:
    """Ways that are measured, the plan first, and others with the reason why they are not."""

    measured: tuple[EngineContender, ...]
    left_out: dict[str, str]


def contenders_of(plan: Plan, path: str, fit: Callable[[], list[str]]) -> Contenders:
    """A plan beside each device alone, an even split, a split by memory and the engine's own.

    Args:
        fit: gives the options that the engine's fitting tool chooses.
    """
    options = engine_options(plan)
    found = [_contender(PLAN, plan, options, path)]
    left_out: dict[str, str] = {}
    for name, placement in _simple(plan.problem):
        fault = Simulator(plan.problem).violation(placement)
        if fault is not None:
            left_out[name] = fault.message
            continue
        try:
            other = _plan_at(plan, placement)
            made = _contender(name, other, _alone(engine_options(other)), path)
        except InexpressibleError as error:
            left_out[name] = str(error)
            continue
        same = next((contender.name for contender in found if contender.words == made.words), None)
        if same is None:
            found.append(made)
        else:
            left_out[name] = f"it is the same as '{same}'"
    try:
        words = _fitted(options, path, fit())
    except (RuntimeFailure, InexpressibleError) as error:
        left_out[FITTED] = str(error)
    else:
        found.append(EngineContender(FITTED, tuple(words), None, is_split=True))
    return Contenders(tuple(found), left_out)


def _simple(problem: Problem) -> list[tuple[str, Placement]]:
    """Each device alone, then the splits that ask for no search."""
    names, order = problem.cluster.device_names, layer_runs(problem).order
    cards = [at for at in order if problem.cluster.devices[at].pool is None]
    hosts = [at for at in order if at not in cards]
    alone = [*cards, *hosts[:1]]
    found = [(contender_of(names[at]), _split(problem, [at], [1.0])) for at in alone]
    if len(cards) > 1:
        limits = problem.cluster.memory_bytes[cards].tolist()
        found.append((EVEN_SPLIT, _split(problem, cards, [1.0] * len(cards))))
        found.append((BY_MEMORY, _split(problem, cards, limits)))
    return found


def _split(problem: Problem, devices: Sequence[int], shares: Sequence[float]) -> Placement:
    """Layers on devices by shares, as the engine's rule divides them; the head is the last."""
    graph, layers = problem.graph, layer_runs(problem)
    cumulated = np.cumsum(np.asarray(shares, dtype=np.float32))
    cumulated /= cumulated[-1]
    count = len(layers.ops) + 1
    where = np.arange(count, dtype=np.float32) / np.float32(count)
    chosen = [devices[int(at)] for at in np.searchsorted(cumulated, where, side="right")]
    of_module = {graph.op_modules[op]: at for op, at in zip(layers.ops, chosen, strict=False)}
    own = [of_module.get(graph.op_modules[op], chosen[-1]) for op in range(graph.n_ops)]
    embedding = graph.op_index["embedding"]  # which the engine keeps on the host
    own[embedding] = problem.pins.get(embedding, own[embedding])
    return Placement.of(own)


def _plan_at(plan: Plan, placement: Placement) -> Plan:
    value = Simulator(plan.problem).value(placement)
    record = PlacerRecord("single", "0", 0, 1, 0.0, ())
    return plan_of(plan.problem, Solution(placement, value, "feasible"), record, plan.runtime)


def _alone(options: EngineOptions) -> EngineOptions:
    """Options that name only the cards that are used, if that is one or none."""
    used = [at for at, share in enumerate(options.shares) if share]
    if options.gpu_layers == 0 or len(used) != 1:
        return options if options.gpu_layers else replace(options, devices=("none",), shares=())
    return replace(options, devices=(options.devices[used[0]],), shares=(options.shares[used[0]],))


def _contender(name: str, plan: Plan, options: EngineOptions, path: str) -> EngineContender:
    used = np.unique(plan.placement.device_of[1:])
    words = tuple(options.words(path, BENCH)[1:])
    return EngineContender(name, words, plan.placement, is_split=len(used) > 1)


def fitted_words(
    engine: Programs, plan: Plan, path: str, free: dict[str, float], explain: Callable[[], None]
) -> list[str]:
    """The options that the engine's fitting tool prints, with limits as its margins.

    Args:
        plan: whose devices, limits and sizes are taken.
        free: device of the engine -> bytes that it reports as free.
        explain: see `Programs.run`.

    Raises:
        InexpressibleError: no card has a limit that margins can express.
        RuntimeFailure: the tool found nothing.
    """
    options = engine_options(plan)
    problem = plan.problem
    limits = [
        float(problem.cluster.memory_bytes[at])
        for at in layer_runs(problem).order
        if problem.cluster.devices[at].pool is None
    ]
    if not limits:
        raise InexpressibleError("the fitting tool takes no limits without cards")
    margins = [
        str(max(0, round((free[name] - limit) / _MIB)))
        for name, limit in zip(options.devices, limits, strict=True)
    ]
    words = ["-m", path]
    words += [long("rpc"), ",".join(options.servers)] if options.servers else []
    words += ["-dev", ",".join(options.devices), "-fitt", ",".join(margins)]
    for option, value in options.sizes.items():
        words += [option, value]
    done = engine.run(FIT, words, explain=explain)
    return shlex.split(done.output.decode(errors="replace"))


def _fitted(options: EngineOptions, path: str, printed: Sequence[str]) -> list[str]:
    """Options of `llama-bench` from those that the fitting tool printed.

    Raises:
        RuntimeFailure: the tool printed something unknown.
    """
    chosen = dict(zip(printed[::2], printed[1::2], strict=False))
    if len(printed) % 2 or not set(chosen) <= _FIT_OPTIONS or "-ngl" not in chosen:
        raise RuntimeFailure(f"the fitting tool printed unknown options: {' '.join(printed)}")
    plain = replace(options, gpu_layers=int(chosen["-ngl"]), shares=(), overrides={}, cpu_experts=0)
    words = replace(plain, devices=()).words(path, BENCH)[1:]
    words += ["-dev", "/".join(options.devices)]
    if "-ts" in chosen:
        words += ["-ts", chosen["-ts"].replace(",", "/")]
    if "-ot" in chosen:
        words += ["-ot", chosen["-ot"].replace(",", ";")]
    if "-ncmoe" in chosen:
        words += ["-ncmoe", chosen["-ncmoe"]]
    return words
