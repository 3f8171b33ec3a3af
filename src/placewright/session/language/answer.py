"""The answer of a plan of a language model: speed, memory, the largest context, what would fit.

Also other orders of the plan's devices, whose layers an engine fills in that order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray
from placewright.core.cluster import Cluster, Device
from placewright.core.plan import Plan
from placewright.core.problem import Problem
from placewright.core.quantities import format_bytes
from placewright.core.residency import Kept
from placewright.core.solution import Budget
from placewright.errors import InputError, PlacewrightError
from placewright.execution.framework import ReadOptions
from placewright.execution.token_work import (
    MOST_TOKENS,
    PHASES,
    Phase,
    RequestedWork,
    TokenRequest,
    Works,
)
from placewright.frameworks.registry import reader_of_file
from placewright.profiling.catalogue import entry_of, speed_interval, whole_name
from placewright.profiling.token_costs import ENGINE, is_streamed, token_problem
from placewright.report.language_text import Speed, memory_lines, proof_line, speed_lines
from placewright.session.devices import CATALOGUE
from placewright.session.language.problem import is_of_tokens, physical_cluster, tokens_of
from placewright.session.language.run_search import (
    LayersInRuns,
    least_in_runs,
    why_inexpressible,
)
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.writers.llama_cpp import first_of_layers

_GRAIN = 2.0**20  # bytes, of limits that are tried
_MARGIN = 2.0**34  # bytes beyond all modules that any engine's buffers stay below
_STEP = 256  # tokens between contexts that are tried; engines round up to as many
_MOST_CONTEXT = 1 << 22
_SMALLER = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")  # weights, largest first
_MOST_ORDERED = 4  # devices whose orders are tried, the host among them
_CLEAR = 1.03  # times as fast, from which an order is named
_ORDER_BUDGET = Budget(evaluations=4)  # of a search for one order


@dataclass(frozen=True)
class FasterOrder:
    """An order of devices, and the speed of its plan beside that of the order that was asked."""

    devices: tuple[str, ...]  # names, of the catalogue's devices as a user gives them
    times: float  # as fast, at least, as any plan in the order that was asked
    is_option: bool  # a user can give the names as argument `devices`

    @property
    def text(self) -> str:
        """The order as a line."""
        option = "argument `devices` " if self.is_option else ""
        names = ",".join(self.devices)
        return (
            f"another order of devices is at least {self.times:.2f} times as fast: {option}{names}"
        )


@dataclass(frozen=True)
class TokenAnswer:
    """Speed and memory of a placement of a language model."""

    request: TokenRequest  # tokens
    seconds: Mapping[Phase, float]  # of each phase; empty if the model's file is not there
    # device -> bytes of keys, values and states
    caches: Mapping[str, float] = field(default_factory=dict)
    largest_context: int = 0  # whose modules fit by bytes alone; 0 if unknown
    is_limited: bool = False  # by memory, not by the model
    is_measured: bool = False  # the costs are those that an engine measured on these devices
    faster_order: FasterOrder | None = None  # of devices; None if there is none, or unknown

    def rate(self, phase: Phase) -> float:
        """Tokens per second of all sequences together; 0 without seconds."""
        request = self.request
        tokens = request.prompt if phase == "prefill" else request.generate
        seconds = self.seconds.get(phase, 0.0)
        return request.sequences * tokens / seconds if seconds > 0 else 0.0

    @property
    def speeds(self) -> dict[str, Speed]:
        """Speed of each phase."""
        return {
            phase: Speed(self.rate(phase), seconds, self.range_of(phase))
            for phase, seconds in self.seconds.items()
        }

    def range_of(self, phase: Phase) -> tuple[float, float] | None:
        """Tokens per second between which nine of ten published speeds lie, by data sheets."""
        factors, rate = speed_interval(ENGINE, phase), self.rate(phase)
        if self.is_measured or factors is None or rate <= 0:
            return None
        return rate * factors[0], rate * factors[1]

    def data(self) -> dict[str, object]:
        """The answer as JSON."""
        return {
            **vars(self.request),
            "prefill_tokens_per_second": self.rate("prefill"),
            "decode_tokens_per_second": self.rate("decode"),
            "prefill_range": self.range_of("prefill"),
            "decode_range": self.range_of("decode"),
            "largest_context": self.largest_context or None,
            "faster_order": vars(self.faster_order) if self.faster_order else None,
        }


def answer_lines(plan: Plan, answer: TokenAnswer, model: str) -> list[str]:
    """The answer as text: request, speed, proof, memory, and the largest context."""
    request, trained = answer.request, ""
    graph, cluster = plan.problem.graph, physical_cluster(plan.problem)
    layers = len(first_of_layers(graph))
    several = f", {request.sequences} sequences at once" if request.sequences > 1 else ""
    lines = [
        f"{model}: {layers} layers in {graph.n_ops} modules; prompt of "
        f"{request.prompt} tokens, {request.generate} generated, context {request.context}, "
        f"cache {request.cache}{several}",
        *speed_lines(answer.speeds),
        proof_line(plan),
        *memory_lines(plan, answer.caches, cluster.device_names),
        *_lines_of_full_memories(plan.problem, cluster),
    ]
    if (reason := why_inexpressible(plan.problem, plan.placement)) is not None:
        lines.append(f"{ENGINE} cannot express this: {reason}")
    if (hint := _mode_hint(plan.problem)) is not None:
        lines.append(hint)
    if answer.largest_context:
        trained = "" if answer.is_limited else ", the longest of the model"
        longer = " or more" if answer.largest_context == _MOST_CONTEXT else ""
        lines.append(
            f"by bytes alone, a context of {answer.largest_context} tokens{longer} fits into these "
            f"memories{trained}"
        )
    if answer.faster_order is not None:
        lines.append(answer.faster_order.text)
    if not answer.seconds:
        lines.append("the model's file is not there, so that its phases are not told apart")
    return [*lines, *_costs_lines(cluster)]


def _lines_of_full_memories(problem: Problem, cluster: Cluster) -> list[str]:
    """A sentence on the devices whose memory the engine's own buffers fill; none without any."""
    columns = [device for device in problem.cluster.devices if not is_streamed(device)]
    full = {column.name for column in columns if column.memory_bytes == 0}
    listed = " and ".join(
        f"'{device.name}' ({format_bytes(device.memory_bytes)})"
        for device in cluster.devices
        if device.name in full and device.memory_bytes > 0
    )
    if not listed:
        return []
    return [f"nothing rests in the memory of {listed}: {ENGINE}'s own buffers do not fit there"]


def _mode_hint(problem: Problem) -> str | None:
    """A sentence on pins to the processor where a card could compute long passes; else None."""
    devices = problem.cluster.devices
    streamed = next((device.name for device in devices if is_streamed(device)), None)
    embedding = problem.graph.op_index["embedding"]
    pinned = {devices[at].name for op, at in problem.pins.items() if op != embedding}
    host = problem.cluster.host
    if streamed is None or host not in pinned:
        return None
    return (
        f"pins to '{host}' have it compute long passes, too; a pin to '{streamed}' keeps modules "
        "in the same memory, and the card computes those passes"
    )


def _costs_lines(cluster: Cluster) -> list[str]:
    """The source of the costs, in sentences."""
    measured = _sources_of_measurements(cluster)
    if measured:
        return [
            "attention was measured on a cache of f16 with keys for each head, and counts as there",
            f"costs were measured by `placewright profile`: {'; '.join(measured)}",
        ]
    described: dict[str, list[str]] = {}  # what it is -> devices
    for device in cluster.devices:
        if device.fingerprint and not math.isinf(device.memory_bytes):
            sheet = f"{entry_of(device).description} with {format_bytes(device.memory_bytes)}"
            described.setdefault(sheet, []).append(device.name)
    each = [
        f"{' and '.join(names)} {'is' if len(names) == 1 else 'are each'} {sheet}"
        for sheet, names in described.items()
    ]
    return [
        *([f"data sheets: {'; '.join(each)}"] if each else []),
        f"costs come from data sheets and published rates of {ENGINE}, not from these devices; "
        "nine of ten published speeds lie within such ranges",
        f"{ENGINE} keeps a part of each memory for itself, which the limits above leave out",
    ]


def _sources_of_measurements(cluster: Cluster) -> list[str]:
    """Engine and time of measured rates; empty if all costs come from data sheets."""
    sheets = [device.data_sheet for device in cluster.devices]
    return list(dict.fromkeys(x.tokens.source for x in sheets if x is not None and x.tokens))


def token_answer(plan: Plan, *, contexts: bool = True, orders: bool = False) -> TokenAnswer | None:
    """The answer for a plan; None if it is not of a language model.

    The header of the model is read again.

    Args:
        contexts: look for the largest context that fits.
        orders: look for an order of devices that is faster than the plan, which a search found.

    Raises:
        InputError: its numbers are none, or it uses a device that the model has no longer.
    """
    problem = plan.problem
    if not is_of_tokens(problem):
        return None
    request, cluster = tokens_of(problem), physical_cluster(problem)
    works, trained = works_again(problem)
    if works is None:
        return TokenAnswer(request, {})
    work = works(request)
    seconds = {
        phase: Simulator(problem_again(plan, work, cluster, phase)).value(plan.placement)
        for phase in PHASES
        if any(pass_.phase == phase for pass_ in request.passes)
    }
    names = problem.cluster.device_names
    kept = np.bincount(plan.placement.device_of, work.caches, minlength=problem.n_devices)
    caches = dict(zip(names, kept.tolist(), strict=True))
    measured = bool(_sources_of_measurements(cluster))
    answer = TokenAnswer(request, seconds, caches, is_measured=measured)
    if orders:
        answer = replace(answer, faster_order=faster_order(plan, work))
    if contexts:
        largest = largest_context(works, request, cluster, trained, memory_pins(problem))
        if Simulator(problem).violation(plan.placement) is None:  # packing is no search
            largest = max(largest, request.context)
        answer = replace(answer, largest_context=largest, is_limited=largest != trained)
    return answer


def problem_again(plan: Plan, work: RequestedWork, cluster: Cluster, phase: Phase) -> Problem:
    """The problem of a phase, on the devices of a plan.

    Raises:
        InputError: the plan uses one that the problem lacks.
    """
    found, names = token_problem(work, cluster, (phase,)), plan.problem.cluster.device_names
    for name in (names[at] for at in np.unique(plan.placement.device_of).tolist()):
        if name not in found.cluster.device_index:
            raise InputError(
                f"this plan uses '{name}' and counts buffers as an earlier version did; place it "
                "again"
            )
    return found


def memory_advice(problem: Problem) -> str | None:
    """The smallest larger limit of one device for which modules fit by bytes alone.

    None if they fit as it is, or nothing was found. An engine has rules on top of that: its layers
    lie in runs.
    """
    works, trained = works_again(problem)
    if works is None:
        return None
    cluster, request = physical_cluster(problem), tokens_of(problem)
    work, pins = works(request), memory_pins(problem)
    if _packs(work, cluster, pins):
        return None
    needed = float(problem.kept.total)
    found: list[tuple[float, str, float]] = []
    for device in cluster.devices:
        low, high = device.memory_bytes, device.memory_bytes + needed + _MARGIN
        if not _packs(work, cluster.with_limit(device.name, high), pins):
            continue
        while high - low > _GRAIN:
            middle = (low + high) / 2
            fits = _packs(work, cluster.with_limit(device.name, middle), pins)
            low, high = (low, middle) if fits else (middle, high)
        size = math.ceil(high / _GRAIN) * _GRAIN
        found.append((size - device.memory_bytes, device.name, size))
    if not found:
        return None
    host = [shortage for shortage in found if shortage[1] == cluster.host]
    missing, name, size = min(host or found)
    shorter = largest_context(works, request, cluster, trained, pins)
    smaller = _smaller_weights(problem, request, cluster)
    return (
        f"by bytes alone, it fits with {format_bytes(missing)} more in '{name}', argument `memory` "
        f"{name}={size / _GRAIN:.0f}MiB"
        + (f", or with argument `context` {shorter}" if shorter else "")
        + (f", or with argument `weights` {smaller}" if smaller else "")
    )


def _smaller_weights(problem: Problem, request: TokenRequest, cluster: Cluster) -> str:
    """The largest format of weights for which modules fit; empty if none does.

    Empty, too, for a file whose weights have their format already.
    """
    assert problem.source is not None
    reader = reader_of_file(problem.source.path)
    assert reader is not None
    for name in _SMALLER:
        try:
            works = reader.read(problem.source.path, ReadOptions(weights=name)).works
        except PlacewrightError:  # a file has the format that it has
            return ""
        if works is not None and _packs(works(request), cluster, memory_pins(problem)):
            return name
    return ""


def works_again(problem: Problem) -> tuple[Works | None, int]:
    """Read the model behind a problem again; None if it is gone or has changed."""
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
    works: Works,
    request: TokenRequest,
    cluster: Cluster,
    trained_context: int,
    pins: Mapping[int, str] = MappingProxyType({}),
) -> int:
    """The largest context for which modules fit into the memories, packed largest first.

    A multiple of 256, the model's own, or the tokens of the request; 0 if these alone do not fit.

    Args:
        pins: op -> device whose memory holds it.
    """
    least = request.prompt + request.generate
    most = max(least, min(trained_context or _MOST_CONTEXT, MOST_TOKENS))

    def fits(context: int) -> bool:
        return _packs(works(replace(request, context=context)), cluster, pins)

    if fits(most):
        return most
    if not fits(least):
        return 0
    low, high = least // _STEP, -(-most // _STEP)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(max(middle * _STEP, least)) else (low, middle)
    return max(low * _STEP, least)


def memory_pins(problem: Problem) -> dict[int, str]:
    """The device whose memory holds each pinned op."""
    cluster = problem.cluster
    holders = [cluster.host if is_streamed(each) else each.name for each in cluster.devices]
    return {op: holders[at] for op, at in problem.pins.items()}


def _packs(work: RequestedWork, cluster: Cluster, pins: Mapping[int, str]) -> bool:
    """True if a simple packing fits: largest modules first, where most or least memory is free."""
    problem = token_problem(work, cluster)
    columns = [at for at, device in enumerate(problem.cluster.devices) if not is_streamed(device)]
    allowed = problem.allowed[:, columns]
    for op, holder in pins.items():
        allowed[op] &= np.array([problem.cluster.device_names[at] == holder for at in columns])
    limits = problem.cluster.memory_bytes[columns]
    return any(
        _packs_by(choice, problem.kept, limits, allowed) for choice in (np.argmax, np.argmin)
    )


def _packs_by(
    choice: Callable[[FloatArray], np.intp],
    kept: Kept,
    limits: FloatArray,
    allowed: BoolArray,
) -> bool:
    free = limits.copy()
    held: list[set[int]] = [set() for _ in limits]  # a tied embedding counts once in a memory
    for unit in np.argsort(-kept.unit_bytes, kind="stable").tolist():
        entries = set(kept.of_units.row(unit).tolist())
        needs = np.array([kept.sizes[list(entries - there)].sum() for there in held])
        roomy = np.flatnonzero(allowed[unit] & (free >= needs))
        if not len(roomy):
            return False
        roomy = roomy[needs[roomy] == needs[roomy].min()]
        at = roomy[choice(free[roomy])]
        free[at] -= needs[at]
        held[at] |= entries
    return True


def faster_order(plan: Plan, work: RequestedWork) -> FasterOrder | None:
    """The order of devices that is fastest under the same pins; None if none is clearly faster.

    An order is searched if its lower bound leaves room. It is compared with the lower bound of the
    plan, since another search may find a better plan in the same order.

    Args:
        work: of the request.
    """
    if plan.placer.is_interrupted or why_inexpressible(plan.problem, plan.placement) is not None:
        return None
    best, fastest = plan.lower_bound / _CLEAR, None
    cluster = physical_cluster(plan.problem)
    for devices in _orders(cluster):
        problem = _in_order(plan.problem, work, replace(cluster, devices=devices))
        if problem is None or least_in_runs(problem) >= best:
            continue
        evaluator = Evaluator(problem, _ORDER_BUDGET)
        found = LayersInRuns(_CLEAR - 1.0).place(problem, evaluator, np.random.default_rng(0))
        if found.placement is not None and found.value < best:
            best, fastest = found.value, devices
    if fastest is None:
        return None
    names = tuple(_asked_name(device) or device.name for device in fastest)
    return FasterOrder(names, plan.lower_bound / best, all(map(_asked_name, fastest)))


def _orders(cluster: Cluster) -> Iterator[tuple[Device, ...]]:
    """Other orders of the cards, and the host behind them; equal cards keep theirs."""
    cards = [device for device in cluster.devices if device.name != cluster.host]
    host = [device for device in cluster.devices if device.name == cluster.host]
    if len(cluster.devices) > _MOST_ORDERED:
        return
    kinds = [_asked_name(card) or card.name for card in cards]
    seen = {tuple(kinds)}
    for order in itertools.permutations(range(len(cards))):
        names = tuple(kinds[at] for at in order)
        if names not in seen:
            seen.add(names)
            yield (*(cards[at] for at in order), *host)


def _asked_name(device: Device) -> str:
    """The catalogue's name of a device without a number; empty if it has another name."""
    name = device.name.partition(":")[0]
    return name if device.fingerprint == f"{CATALOGUE}{whole_name(name)}" else ""


def _in_order(problem: Problem, work: RequestedWork, cluster: Cluster) -> Problem | None:
    """The problem of the same request and pins; None if a pinned column is not there."""
    made = token_problem(work, cluster)
    names, columns = problem.cluster.device_names, made.cluster.device_index
    pins = {op: columns.get(names[at], -1) for op, at in problem.pins.items()}
    return None if -1 in pins.values() else replace(made, pins={**made.pins, **pins})
