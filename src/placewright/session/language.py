"""Language models: the problem of a request, placements that the engine can express, the answer.

The engine lays layers in runs: those of the host first, then those of each device in order. So the
search has two steps. The first ignores runs, and its bound holds for every placement. The second
fixes attention in runs, with as many layers on each device as the first found, and places the rest.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from placewright.core.cluster import Cluster
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.core.quantities import format_bytes
from placewright.core.solution import Budget, Solution, Status
from placewright.errors import FieldError, InfeasibleError, InputError, PlacewrightError
from placewright.execution.token_work import (
    PHASES,
    Phase,
    RequestedWork,
    TokenRequest,
    Works,
)
from placewright.files.cluster_file import ClusterDocument, cluster_data, cluster_of
from placewright.frameworks.registry import reader_of_file
from placewright.profiling.catalogue import named_cluster
from placewright.profiling.token_costs import ENGINE, is_streamed, token_problem
from placewright.report.language_text import memory_lines, proof_line, speed_lines
from placewright.session.devices import CATALOGUE, catalogue_for
from placewright.session.models import Model
from placewright.session.plans import plan_of
from placewright.session.request import Request
from placewright.simulation.evaluator import CLOSED
from placewright.simulation.model import Simulator

FIRST_SHARE = 0.55  # of the budget's seconds, for the search without runs
_CLUSTER = "cluster"  # option of the source: the devices, as the file of a cluster has them
_PROMPT, _GENERATE = 512, 128  # tokens, as llama-bench has them
_LEAST_CONTEXT = 4096
_GRAIN = 2.0**20  # bytes, of limits that are tried
_MARGIN = 2.0**34  # bytes beyond all modules that any engine's buffers stay below
_STEP = 256  # tokens between contexts that are tried; engines round up to as many
_MOST_CONTEXT = 1 << 22
_LEAST_SECONDS = 1.0  # of a search; below it no further one begins
_MOST_TRIES = 40  # divisions of layers that are tried


def language_problem(read: Model, request: Request) -> Problem:
    """The problem of a request to a language model.

    Raises:
        FieldError: a field does not fit a language model, or devices are missing.
        UnknownNameError: there is no such device.
    """
    assert read.works is not None
    _refuse_others(request)
    cluster = _devices(request)
    for name, size in request.memory.items():
        cluster = cluster.with_limit(name, size)
    work = read.works(asked_tokens(request, read.trained_context))
    text = json.dumps(cluster_data(cluster), separators=(",", ":"))
    source = replace(work.source, options={**work.source.options, _CLUSTER: text})
    return token_problem(replace(work, source=source), cluster)


def asked_tokens(request: Request, trained_context: int = 0) -> TokenRequest:
    """The tokens of a request; the context has room for them, and for 4096 if the model has.

    Raises:
        FieldError: a number is too small, too large, or contradicts another.
    """
    prompt = _PROMPT if request.prompt is None else request.prompt
    generate = _GENERATE if request.generate is None else request.generate
    usual = max(prompt + generate, min(_LEAST_CONTEXT, trained_context or _LEAST_CONTEXT))
    return TokenRequest(
        prompt,
        generate,
        usual if request.context is None else request.context,
        request.micro_batch or 512,
        request.sequences or 1,
        request.kv or "f16",
    )


def _refuse_others(request: Request) -> None:
    """Refuse fields that mean nothing for a language model.

    Raises:
        FieldError: the message names the field.
    """
    model = request.execution_model
    if request.objective != "latency":
        raise FieldError("objective", f"of a language model is latency, got '{request.objective}'")
    if model is not None and getattr(model, "name", model) != "sequential":
        raise FieldError("execution_model", "of a language model is sequential; leave it out")
    if request.precision is not None:
        raise FieldError("precision", "of a language model is that of its file; leave it out")
    if request.evaluator != "simulated":
        raise FieldError("evaluator", "of a language model is simulated; leave it out")


def refuse_tokens(request: Request) -> None:
    """Refuse fields that only language models have.

    Raises:
        FieldError: the message names the field.
    """
    for name in ("prompt", "generate", "context", "micro_batch", "sequences", "kv"):
        if getattr(request, name) is not None:
            raise FieldError(name, f"is of a language model, which '{request.name}' is not")


def _devices(request: Request) -> Cluster:
    names = request.devices
    if names is None and request.cluster is None:
        raise FieldError(
            "devices",
            "are needed for a language model, such as rtx-4090,cpu: names of the catalogue, or a "
            "cluster file with peak and bandwidth",
        )
    if names is None or names.startswith(CATALOGUE):
        found = catalogue_for(names, request.cluster)
        if found is None:
            raise FieldError("cluster", "needs peak and bandwidth for a language model")
        return found
    if request.cluster is not None:
        raise FieldError("devices", "or a cluster, not both")
    return named_cluster([name.strip() for name in names.split(",") if name.strip()])


def is_of_tokens(problem: Problem) -> bool:
    """Whether a problem is that of a request to a language model."""
    return problem.source is not None and _CLUSTER in problem.source.options


def physical_cluster(problem: Problem) -> Cluster:
    """The devices behind the columns of a problem."""
    assert problem.source is not None
    return cluster_of(ClusterDocument.model_validate(json.loads(problem.source.options[_CLUSTER])))


def tokens_of(problem: Problem) -> TokenRequest:
    """The request behind a problem.

    Raises:
        InputError: there is none.
    """
    found = None if problem.source is None else TokenRequest.of_options(problem.source.options)
    if found is None:
        raise InputError("this problem is not that of a language model")
    return found


# Placements that the engine can express.


@dataclass(frozen=True)
class LayerRuns:
    """Attention of each layer, and the columns in the order in which the engine fills them.

    Attributes:
        ops: of attention, ascending by layer.
        order: columns: those of the host, then the others.
    """

    ops: tuple[int, ...]
    order: tuple[int, ...]


def layer_runs(problem: Problem) -> LayerRuns:
    """The layers of a problem."""
    graph, cluster = problem.graph, problem.cluster
    ops = [op for op in range(graph.n_ops) if graph.op_kinds[op] == "Attention"]
    host = [at for at, device in enumerate(cluster.devices) if device.pool is not None]
    others = [at for at, device in enumerate(cluster.devices) if device.pool is None]
    return LayerRuns(tuple(ops), (*host, *others))


def why_inexpressible(problem: Problem, placement: Placement) -> str | None:
    """The first rule of the engine that a placement breaks; None if it keeps all."""
    layers, device_of = layer_runs(problem), placement.device_of
    names = problem.cluster.device_names
    used = {int(device) for device in device_of[1:]}  # the embedding is looked up by the host
    streaming = {is_streamed(problem.cluster.devices[at]) for at in used & _host_columns(problem)}
    if len(streaming) > 1:
        return (
            "weights that rest in the memory of the host are streamed for long passes, all of them "
            "or none"
        )
    rank = {device: at for at, device in enumerate(layers.order)}
    before = layers.ops[0] if layers.ops else 0
    for op in layers.ops:
        if rank[int(device_of[op])] < rank[int(device_of[before])]:
            return (
                f"'{problem.graph.op_names[op]}' is on '{names[int(device_of[op])]}' after "
                f"'{problem.graph.op_names[before]}' on '{names[int(device_of[before])]}'; layers "
                "lie in runs by the order of devices, those of the host first"
            )
        before = op
    head = problem.graph.op_index["head"]
    own, last = int(device_of[head]), int(device_of[before])
    if layers.ops and is_tied(problem) and rank[own] < rank[last]:
        return (
            f"the head, which is the embedding again, is on '{names[own]}' and the last layer on "
            f"'{names[last]}'; it cannot lie before it"
        )
    return None


def is_tied(problem: Problem) -> bool:
    """Whether the head multiplies with the embedding."""
    graph = problem.graph
    first, last = (
        set(graph.op_weights.row(graph.op_index[name]).tolist()) for name in ("embedding", "head")
    )
    return bool(first & last)


def changes_in_mode(plan: Plan, changes: Mapping[str, str]) -> dict[str, str]:
    """Changes of a plan, whose host means the column of the host that the plan uses.

    If weights of the host are streamed for long passes, those of moved modules are, too.
    """
    problem = plan.problem
    used = {int(at) for at in plan.placement.device_of[1:]} & _host_columns(problem)
    if not is_of_tokens(problem) or len(used) != 1:
        return dict(changes)
    name = problem.cluster.device_names[used.pop()]
    return {op: name if at == problem.cluster.host else at for op, at in changes.items()}


def _host_columns(problem: Problem) -> set[int]:
    devices = problem.cluster.devices
    return {at for at, device in enumerate(devices) if device.pool is not None}


def first_budget(problem: Problem, budget: Budget) -> Budget:
    """Budget of the search without runs; the whole of it for other problems."""
    if budget.seconds is None or not is_of_tokens(problem):
        return budget
    return replace(budget, seconds=FIRST_SHARE * budget.seconds)


def expressible_plan(plan: Plan, solve: Callable[[Problem, Budget], Plan], budget: Budget) -> Plan:
    """The best plan found whose placement the engine can express; its bound is that of `plan`.

    Args:
        plan: of the search without runs.
        solve: searches a problem within a budget.
        budget: of all searches here.

    Raises:
        InfeasibleError: none was found.
    """
    problem = plan.problem
    if why_inexpressible(problem, plan.placement) is None:
        return plan
    began, best, tried = time.perf_counter(), None, 0
    for pinned in itertools.islice(_divided(problem, plan.placement), _MOST_TRIES):
        left = _left(budget, began)
        if _is_spent(left):
            if tried:
                break
            left = replace(left, seconds=_LEAST_SECONDS)
        tried += 1
        try:
            found = solve(pinned, left)
        except InfeasibleError:
            continue
        value = Simulator(problem).value(found.placement)
        if best is None or value < best.value:
            best = replace(found, problem=problem, value=value)
        if best.value <= plan.value * 1.001:
            break
    if best is None:
        raise InfeasibleError(
            "none was found whose layers lie in runs, as the engine needs them; give a longer "
            "budget, or more memory"
        )
    solution_bound = min(plan.lower_bound, best.value)
    made = plan_of(problem, _solution(best, solution_bound, plan), plan.placer, plan.runtime)
    return replace(made, bound_method=plan.bound_method)


def _solution(best: Plan, bound: float, plan: Plan) -> Solution:
    is_closed = best.value <= bound * (1.0 + CLOSED)
    status: Status = "optimal" if is_closed else "feasible"
    return Solution(best.placement, best.value, status, bound, bound_method=plan.bound_method)


def _left(budget: Budget, began: float) -> Budget:
    if budget.seconds is None:
        return budget
    return replace(budget, seconds=max(0.0, budget.seconds - (time.perf_counter() - began)))


def _is_spent(budget: Budget) -> bool:
    return budget.seconds is not None and budget.seconds < _LEAST_SECONDS


def _divided(problem: Problem, placement: Placement) -> Iterator[Problem]:
    """Problems whose attention is pinned in runs, those near a placement first."""
    layers, device_of = layer_runs(problem), placement.device_of
    host = _host_columns(problem)
    used = {int(device) for device in device_of[1:]} & host
    modes = sorted(used, key=lambda at: -int((device_of == at).sum())) or sorted(host)[:1] or [-1]
    counts = np.bincount(device_of[list(layers.ops)], minlength=problem.n_devices)
    for mode in modes:
        mine = counts.copy()
        if mode >= 0:
            mine[list(host)] = 0
            mine[mode] = int(counts[list(host)].sum())
        order = [at for at in layers.order if at == mode or at not in host]
        closed = sorted(host - {mode})
        for division in _near([int(mine[at]) for at in order]):
            run = np.repeat(order, division).tolist()
            rank = layers.order.index(run[-1]) if run and is_tied(problem) else 0
            yield _pinned(
                problem,
                dict(zip(layers.ops, run, strict=True)),
                closed,
                [at for at in layers.order[:rank] if at != run[-1]],
            )


def _near(counts: Sequence[int]) -> Iterator[list[int]]:
    """The counts, then those with a few moved from one to another, and all on one."""
    yield list(counts)
    yield from _moved(counts, 1)
    for at in range(len(counts)):
        yield [sum(counts) if other == at else 0 for other in range(len(counts))]
    for number in (2, 3, 5):
        yield from _moved(counts, number)


def _moved(counts: Sequence[int], number: int) -> Iterator[list[int]]:
    for source, target in itertools.permutations(range(len(counts)), 2):
        if counts[source] >= number:
            changed = list(counts)
            changed[source] -= number
            changed[target] += number
            yield changed


def _pinned(
    problem: Problem, pins: dict[int, int], closed: Sequence[int], without_head: Sequence[int]
) -> Problem:
    """A problem with pins, and without some columns but for what is pinned there.

    Args:
        problem: of a request.
        pins: op -> column.
        closed: columns that take nothing else.
        without_head: columns on which the head may not lie.
    """
    seconds = problem.costs.seconds.copy()
    free = np.array([op not in problem.pins for op in range(problem.n_units)])
    for column in closed:
        seconds[free, column] = np.inf
    seconds[problem.graph.op_index["head"], list(without_head)] = np.inf
    own = {op: at for op, at in pins.items() if op not in problem.pins}
    costs = replace(problem.costs, seconds=seconds)
    return replace(problem, costs=costs, pins={**problem.pins, **own})


# The answer.


@dataclass(frozen=True)
class TokenAnswer:
    """Speed and memory of a placement of a language model.

    Attributes:
        request: tokens.
        seconds: of each phase; empty if the model's file is not there.
        caches: device -> bytes of keys, values and states.
        largest_context: for which a placement was found; 0 if unknown.
        is_limited: by memory, not by the model.
    """

    request: TokenRequest
    seconds: Mapping[Phase, float]
    caches: Mapping[str, float] = field(default_factory=dict)
    largest_context: int = 0
    is_limited: bool = False

    def rate(self, phase: Phase) -> float:
        """Tokens per second of all sequences together; 0 without seconds."""
        request = self.request
        tokens = request.prompt if phase == "prefill" else request.generate
        seconds = self.seconds.get(phase, 0.0)
        return request.sequences * tokens / seconds if seconds > 0 else 0.0

    @property
    def speeds(self) -> dict[str, tuple[float, float]]:
        """Phase -> tokens per second, and seconds."""
        return {each: (self.rate(each), seconds) for each, seconds in self.seconds.items()}

    def data(self) -> dict[str, object]:
        """The answer as JSON."""
        return {
            **vars(self.request),
            "prefill_tokens_per_second": self.rate("prefill"),
            "decode_tokens_per_second": self.rate("decode"),
            "largest_context": self.largest_context or None,
        }


def answer_lines(plan: Plan, answer: TokenAnswer, model: str) -> list[str]:
    """The answer as text: request, speed, proof, memory, and the largest context."""
    request, trained = answer.request, ""
    graph = plan.problem.graph
    layers = sum(kind == "Attention" for kind in graph.op_kinds)
    several = f", {request.sequences} sequences at once" if request.sequences > 1 else ""
    lines = [
        f"{model}: {layers} layers with attention in {graph.n_ops} modules; prompt of "
        f"{request.prompt} tokens, {request.generate} generated, context {request.context} as "
        f"{request.cache}{several}",
        *speed_lines(answer.speeds),
        proof_line(plan),
        *memory_lines(plan, answer.caches),
    ]
    if (reason := why_inexpressible(plan.problem, plan.placement)) is not None:
        lines.append(f"{ENGINE} cannot express this: {reason}")
    if answer.largest_context:
        trained = "" if answer.is_limited else ", the longest of the model"
        lines.append(
            f"a context of {answer.largest_context} tokens fits into these memories{trained}"
        )
    if not answer.seconds:
        lines.append("the model's file is not there, so that its phases are not told apart")
    return [*lines, f"costs come from data sheets and rates of {ENGINE}, not from these devices"]


def token_answer(plan: Plan, *, contexts: bool = True) -> TokenAnswer | None:
    """The answer for a plan; None if it is not of a language model.

    The header of the model is read again.

    Args:
        plan: of a request to a language model.
        contexts: look for the largest context that fits.
    """
    problem = plan.problem
    if not is_of_tokens(problem):
        return None
    request, cluster = tokens_of(problem), physical_cluster(problem)
    works, trained = _works_again(problem)
    if works is None:
        return TokenAnswer(request, {})
    work = works(request)
    seconds = {
        phase: Simulator(token_problem(work, cluster, (phase,))).value(plan.placement)
        for phase in PHASES
        if any(each.phase == phase for each in request.passes)
    }
    names = problem.cluster.device_names
    kept = np.bincount(plan.placement.device_of, work.caches, minlength=problem.n_devices)
    caches = dict(zip(names, kept.tolist(), strict=True))
    if not contexts:
        return TokenAnswer(request, seconds, caches)
    largest = largest_context(works, request, cluster, trained)
    return TokenAnswer(request, seconds, caches, largest, largest != trained)


def memory_advice(problem: Problem) -> str | None:
    """The smallest larger limit of one device for which modules fit.

    None if they fit as it is, or nothing was found.
    """
    works, trained = _works_again(problem)
    if works is None:
        return None
    cluster, request = physical_cluster(problem), tokens_of(problem)
    work = works(request)
    if _packs(work, cluster):
        return None
    needed = float(problem.kept.total)
    found: list[tuple[float, str, float]] = []
    for device in cluster.devices:
        low, high = device.memory_bytes, device.memory_bytes + needed + _MARGIN
        if not _packs(work, cluster.with_limit(device.name, high)):
            continue
        while high - low > _GRAIN:
            middle = (low + high) / 2
            fits = _packs(work, cluster.with_limit(device.name, middle))
            low, high = (low, middle) if fits else (middle, high)
        size = math.ceil(high / _GRAIN) * _GRAIN
        found.append((size - device.memory_bytes, device.name, size))
    if not found:
        return None
    host = [each for each in found if each[1] == cluster.host]
    missing, name, size = min(host or found)
    shorter = largest_context(works, request, cluster, trained)
    instead = f"; so does argument `context` {shorter}" if shorter else ""
    return (
        f"argument `memory` {name}={size / _GRAIN:.0f}MiB fits, {format_bytes(missing)} more"
        f"{instead}"
    )


def _works_again(problem: Problem) -> tuple[Works | None, int]:
    """The reader's work of the model behind a problem; None if it is gone or has changed."""
    from placewright.execution.framework import ReadOptions

    source = problem.source
    reader = None if source is None else reader_of_file(source.path)
    if source is None or reader is None:
        return None, 0
    try:
        read = reader.read(source.path, ReadOptions(weights=source.options.get("weights")))
    except PlacewrightError:
        return None, 0
    return (read.works, read.trained_context) if read.source.sha256 == source.sha256 else (None, 0)


def largest_context(
    works: Works, request: TokenRequest, cluster: Cluster, trained_context: int
) -> int:
    """The largest context for which modules fit into the memories, packed largest first.

    A multiple of 256, or the model's own; 0 if the tokens of the request alone do not fit.
    """
    most, least = trained_context or _MOST_CONTEXT, request.prompt + request.generate

    def fits(context: int) -> bool:
        return _packs(works(replace(request, context=context)), cluster)

    if fits(most):
        return most
    if not fits(least):
        return 0
    low, high = least // _STEP, -(-most // _STEP)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(max(middle * _STEP, least)) else (low, middle)
    return max(low * _STEP, least)


def _packs(work: RequestedWork, cluster: Cluster) -> bool:
    """Whether a simple packing fits: the largest module goes where most is free."""
    problem = token_problem(work, cluster)
    columns = [at for at, device in enumerate(problem.cluster.devices) if not is_streamed(device)]
    free = problem.cluster.memory_bytes[columns].copy()
    allowed = problem.allowed[:, columns]
    sizes = problem.kept.unit_bytes
    for unit in np.argsort(-sizes, kind="stable").tolist():
        room = np.where(allowed[unit], free, -1.0)
        at = int(np.argmax(room))
        if room[at] < sizes[unit]:
            return False
        free[at] -= sizes[unit]
    return True
