"""Each implication or row that a bound rests on, broken on purpose: the fuzzer must see it.

A mutation makes a program say more than is true. It is a patch of what the program is built from,
so that it is known to be in force; methods beside it are the ones that rest on it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
from testing.proof_problems import (
    EVENT,
    LOAD,
    PIECES,
    SERIAL,
    SUMS,
    problem_of_later_readers,
    problem_of_two_limits,
)

from placewright.core.arrays import Csr
from placewright.core.cluster import Cluster
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.placers.exact import counted as counted_kinds
from placewright.placers.exact import latency_ip, maxload_ip, sequential_ip
from placewright.placers.exact.max_load import program as load_program
from placewright.placers.exact.parts import bound as parts_bound
from placewright.placers.exact.parts import programs as part_programs
from placewright.placers.exact.schedule_program import (
    model,
    transfers,
)
from placewright.placers.exact.subgraphs import bound as pieces_bound
from placewright.placers.pipelines.ideals import load_model
from placewright.placers.pipelines.ideals.load_model import LoadModel
from placewright.placers.portfolio import enumeration
from placewright.simulation.bounds import feasibility, lower
from placewright.simulation.bounds.relaxation import (
    LatencyRelaxation,
    LoadRelaxation,
    RelaxedProgram,
)
from placewright.simulation.sequential import Sums

Patch = Callable[[], AbstractContextManager[object]]
Change = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Mutation:
    """One implication or row, broken.

    Attributes:
        model: execution model whose problems show it.
        methods: that rest on it.
        patch: breaks it while the context is open.
        first: seed of the first problem that is tried; where the implication seldom binds, of one
            in which it does.
        problem: one made for it, where no random problem shows it; asked before them.
    """

    model: str
    methods: tuple[str, ...]
    patch: Patch
    first: int = 0
    problem: Callable[[], Problem] | None = None


def _patched(owner: object, name: str, change: Change) -> Patch:
    """The patch of a function, or of a property by `_each_scaled`."""

    def patch() -> AbstractContextManager[object]:
        true = getattr(owner, name)
        other = change(true)
        if callable(other) != callable(true):
            raise TypeError(f"'{name}' is a function, or was one: mend its mutation")
        return mock.patch.object(owner, name, other)

    return patch


def _scaled(factor: float) -> Change:
    """What a function returns, times a factor."""
    return lambda of: lambda *args, **named: of(*args, **named) * factor


def _always(value: object) -> Change:
    return lambda of: lambda *args, **named: value


def _with_arrays(**changed: Callable[[Any], Any]) -> Change:
    """Rows of a program, written as if arrays of the problem were others."""

    def change(of: Callable[..., Any]) -> Callable[..., Any]:
        def written(program: Any, *rest: Any) -> Any:
            true = program.arrays
            other = {name: make(getattr(true, name)) for name, make in changed.items()}
            program.arrays = true._replace(**other)
            try:
                return of(program, *rest)
            finally:
                program.arrays = true

        return written

    return change


def _model(**changed: Callable[[LoadModel], Any]) -> Change:
    """A program built from another load model."""

    def change(of: Callable[..., Any]) -> Callable[..., Any]:
        def built(of_model: LoadModel, **named: Any) -> Any:
            others = {name: make(of_model) for name, make in changed.items()}
            return of(replace(of_model, **others), **named)

        return built

    return change


def _slower_backward(of: LoadModel) -> Any:
    can_run = np.isfinite(of.seconds)
    later = np.subtract(of.seconds, of.forward_seconds, where=can_run, out=np.zeros(can_run.shape))
    return of.seconds + 0.5 * later


def _charged(**changed: Callable[[Any], Any]) -> dict[str, Callable[[LoadModel], Any]]:
    """Limits of a load model whose charges are others."""

    def limits(of: LoadModel) -> Any:
        made = (
            (replace(one, **{name: make(one) for name, make in changed.items()}), most)
            for one, most in of.limits
        )
        return tuple(made)

    return {"limits": limits}


def _one_processor(of: LoadModel) -> Csr:
    return Csr.from_rows([range(len(of.kind_of))])


def _of_load(**changed: Callable[[LoadModel], Any]) -> list[Patch]:
    change = _model(**changed)
    return [
        _patched(load_program, "max_load_program", change),
        _patched(maxload_ip, "max_load_program", change),
    ]


def _far_scaled(factor: int) -> Change:
    """Ticks times a factor; far stays far."""

    def change(of: Callable[..., Any]) -> Callable[..., Any]:
        def longer(*args: Any) -> Any:
            found = of(*args)
            return np.where(found < 2**50, found * factor, found)

        return longer

    return change


def _negated_first(of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda program, one, other, first: of(program, one, other, first.negated())


def _swapped(of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda program, one, other: of(program, other, one)


def _by_number(of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda above, one, other: 0 <= one.producer < other.producer


def _also_alone(of: Callable[..., Any]) -> Callable[..., Any]:
    """As many crowds, each of one device less."""

    def crowded(self: Any) -> Any:
        return [(domain, factor * 1.5, literal) for domain, factor, literal in of(self)]

    return crowded


def _always_remote(of: Callable[..., Any]) -> Callable[..., Any]:
    def remote(self: Any, unit: int) -> Any:
        return self._program.model.new_constant(1)

    return remote


def _all_in_order(of: Callable[..., Any]) -> Callable[..., Any]:
    def part(*args: Any) -> Any:
        found = of(*args)
        return replace(found, in_order=np.ones_like(found.in_order))

    return part


def _one_less(of: Callable[..., Any]) -> Callable[..., Any]:
    """Symmetry breaking that leaves the costliest items one device fewer."""

    def first(load_model: LoadModel) -> Any:
        may_be = of(load_model)
        if may_be.shape[1] > 2 and len(may_be) > 1:
            may_be[-1, -1] = False
        return may_be

    return first


_half_pools = _with_arrays(pool_bytes=lambda size: np.floor(size * 0.5))


def _less_memory(share: float) -> Change:
    return _with_arrays(memory=lambda memory: np.floor(memory * share))


def _every_unit(of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda problem: np.array(problem.unit_graph.topological_order)


def _all_alike(of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda problem: Grouping.from_labels(np.zeros(problem.n_devices, dtype=np.int64))


def _dual_scaled(of: Callable[..., Any]) -> Callable[..., Any]:
    def value(*args: Any) -> Any:
        total, loads = of(*args)
        return total * 1.2, loads

    return value


def _each_scaled(factor: float) -> Change:
    """All values of a cached property, times a factor."""
    return lambda of: property(lambda self: [factor * value for value in of.func(self)])


def _pieces_arrays(name: str, factor: float) -> Change:
    def change(of: Callable[..., Any]) -> Callable[..., Any]:
        def built(problem: Any, arrays: Any, *rest: Any) -> Any:
            longer = {name: getattr(arrays, name) * factor}
            return of(problem, arrays._replace(**longer), *rest)

        return built

    return change


def _smaller_window(of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda problem, transfer, limit: of(problem, transfer, limit * 0.6)


def _in_one_row(of: Callable[..., Any]) -> Callable[..., Any]:
    """The first subgraph of an accelerator waits for the last one of another."""

    def turns(self: Any, times: Any) -> None:
        true, self.q = self.q, len(times) + 1
        of(self, times)
        self.q = true

    return turns


def _twice_arrived(of: Callable[..., Any]) -> Callable[..., Any]:
    def add(self: Any, terms: Any, tensor: int, unit: int) -> None:
        of(self, terms, tensor, unit)
        of(self, terms, tensor, unit)

    return add


def _without_routes(of: Callable[..., Any]) -> Callable[..., Any]:
    def routes(problem: Any) -> Any:
        found = np.array(of(problem))
        found[found == _VIA_HOST] = feasibility.NO_ROUTE
        return found

    return routes


def _on_one_processor(of: Callable[..., Any]) -> Callable[..., Any]:
    """Rows of a program, written as if all devices were modes of one processor."""
    shared = property(lambda cluster: {"p": tuple(range(cluster.n_devices))})

    def written(*args: Any) -> Any:
        with mock.patch.object(Cluster, "shared_processors", shared):
            return of(*args)

    return written


def _on_own_processors(of: Callable[..., Any]) -> Callable[..., Any]:
    """Orders of a problem whose devices share no processor."""

    def orders(problem: Problem, device_of: list[int]) -> Any:
        devices = tuple(replace(device, processors=()) for device in problem.cluster.devices)
        cluster = replace(problem.cluster, devices=devices)
        return of(replace(problem, cluster=cluster), device_of)

    return orders


_VIA_HOST = 2
_PROGRAM = ("program", "cp-sat", "parts")


def _mutations() -> dict[str, Mutation]:
    found: dict[str, Mutation] = {}

    def add(name: str, of: str, methods: tuple[str, ...], patch: Patch, **more: Any) -> None:
        found[name] = Mutation(of, methods, patch, **more)

    def event(name: str, owner: object, attribute: str, change: Change) -> None:
        add(name, EVENT, _PROGRAM, _patched(owner, attribute, change))

    event(
        "one of two transfers that exclude each other is first",
        transfers,
        "_is_instead",
        _always(False),
    )
    event("the later reader is served first", transfers, "_read_in_turn", _negated_first)
    event("a unit's last tensor leaves first", transfers, "_is_made_before", _swapped)
    event("tensors leave by the number of their units", transfers, "_is_above", _by_number)
    event("heads are twice as long", model, "_heads", _far_scaled(2))
    event("what follows takes twice as long", model, "_rests", _far_scaled(2))
    event("ways are twice as long", model, "_ways", _far_scaled(2))
    event("every unit begins a segment", model.Extra, "_reads_remote", _always_remote)
    event("segments cost three times as much", model.Extra, "_overhead_seconds", _scaled(3.0))
    event("contention is 1.5 times as strong", model.Extra, "_crowded", _also_alone)
    event("transfers take 1.5 times as long", transfers, "link_seconds", _scaled(1.5))
    event(
        "every link queues",
        model,
        "add_transfers",
        _with_arrays(queues=lambda queues: np.ones_like(queues)),
    )
    event(
        "channels are one",
        model,
        "add_transfers",
        _with_arrays(channel=lambda channel: np.where(channel >= 0, 0, channel)),
    )
    event(
        "devices have one stream",
        model.ScheduleProgram,
        "_run_units",
        _with_arrays(streams=lambda streams: np.ones_like(streams)),
    )
    event("all devices are modes", model.ScheduleProgram, "_run_units", _on_one_processor)
    orders = _patched(enumeration, "orders_that_matter", _on_own_processors)
    add("orders of modes do not matter", EVENT, ("auto",), orders)
    event("half of each pool", model.ScheduleProgram, "_keep_memory", _half_pools)
    event("two fifths of the memory", model.ScheduleProgram, "_keep_memory", _less_memory(0.4))
    event(
        "every tensor goes home",
        model,
        "add_transfers",
        _with_arrays(is_output=lambda is_output: np.ones_like(is_output)),
    )
    event("ticks are rounded up", transfers.Ticks, "down", lambda of: lambda self, x: self.up(x))
    add(
        "every unit is an articulation unit",
        EVENT,
        ("parts",),
        _patched(parts_bound, "articulation_units", _every_unit),
    )
    add(
        "parts take a tenth longer",
        EVENT,
        ("parts",),
        _patched(part_programs, "least_of_parts", _scaled(1.1)),
    )
    add(
        "readers of a part are in the order of the whole",
        EVENT,
        ("parts",),
        _patched(part_programs, "part_problem", _all_in_order),
        problem=problem_of_later_readers,  # 7 of 46,725 random ones notice it, none loses its best
    )
    add(
        "all devices are twins",
        EVENT,
        ("parts",),
        _patched(part_programs, "alike_devices", _all_alike),
    )
    general = ("general bounds",)
    add(
        "the critical path is a tenth longer",
        EVENT,
        general,
        _patched(lower, "best_seconds", _scaled(1.1)),
    )
    add(
        "the balanced load is a fifth larger",
        EVENT,
        general,
        _patched(lower, "_dual_value", _dual_scaled),
    )
    add(
        "the cheapest transfer takes twice as long",
        EVENT,
        general,
        _patched(LatencyRelaxation, "cheapest", _each_scaled(2.0)),
    )
    modes = _patched(LatencyRelaxation, "value", _on_one_processor)
    add("all devices are modes in the relaxation", EVENT, general, modes)
    add(
        "the way home takes twice as long",
        EVENT,
        general,
        _patched(LatencyRelaxation, "way", _scaled(2.0)),
    )
    add(
        "three fifths of the memory in the relaxation",
        LOAD,
        general,
        _patched(RelaxedProgram, "memory", _less_memory(0.6)),
    )
    nothing = ("proofs that nothing fits",)
    add(
        "units work in 1.5 times the bytes",
        EVENT,
        nothing,
        _patched(feasibility, "_working_sets", _scaled(1.5)),
    )
    add(
        "classes keep ten times the bytes",
        EVENT,
        nothing,
        _patched(feasibility, "_needed", _scaled(10.0)),
    )
    add(
        "nothing goes through the host",
        EVENT,
        nothing,
        _patched(feasibility, "routes", _without_routes),
    )
    _add_loads(add)
    _add_pieces(add)
    _add_sums(add)
    return found


def _add_loads(add: Callable[..., None]) -> None:
    programs = {
        "senders pay half as much again": {"send": lambda of: of.send * 1.5},
        "receivers pay half as much again": {"receive": lambda of: of.receive * 1.5},
        "nothing overlaps": {"overlaps": lambda of: np.zeros_like(of.overlaps)},
        "outputs cost the host half as much again": {
            "standing": lambda of: of.standing * 1.5 + 0.1
        },
        "half of each pool": {"pool_bytes": lambda of: of.pool_bytes * 0.5},
        "four fifths of the memory": {"memory": lambda of: of.memory * 0.8},
        "all tensors are of the forward phase": {
            "is_forward": lambda of: np.ones_like(of.is_forward)
        },
        "the backward phase takes half as much again": {"seconds": _slower_backward},
        "all devices are modes of one processor": {"users": _one_processor},
        "units take half as much energy again": _charged(own=lambda of: of.own * 1.5),
        "all devices idle at half as much power again": _charged(always=lambda of: of.always * 1.5),
        "devices cost half as much again": _charged(used=lambda of: of.used * 1.5),
    }
    seldom: dict[str, Any] = {
        "half of each pool": {"first": 307},
        "units take half as much energy again": {"first": 727},
        "all devices idle at half as much power again": {"problem": problem_of_two_limits},
        "devices cost half as much again": {"problem": problem_of_two_limits},
    }
    for name, changed in programs.items():
        by_limits, by_program = _of_load(**changed)
        add(f"{name} (limits)", LOAD, ("cp-sat",), by_limits, **seldom.get(name, {}))
        add(f"{name} (program)", LOAD, ("maxload-ip",), by_program, **seldom.get(name, {}))
    # The smallest load has the least price then, so that only a proof that nothing fits is false,
    # and `maxload-ip` claims none.
    changed = _charged(always=lambda of: of.always + of.used.sum(), used=lambda of: of.used * 0.0)
    add("every device is paid for", LOAD, ("cp-sat",), _of_load(**changed)[0], first=312)
    add(
        "twins are told apart too much (limits)",
        LOAD,
        ("cp-sat",),
        _patched(load_program, "first_devices", _one_less),
    )
    add(
        "twins are told apart too much (program)",
        LOAD,
        ("maxload-ip",),
        _patched(maxload_ip, "first_devices", _one_less),
    )
    alike = _patched(load_model, "_further_traits", lambda of: lambda *args: [])
    for name, method in (("limits", "cp-sat"), ("program", "maxload-ip")):
        add(
            f"devices of unlike power, price or processors are twins ({name})",
            LOAD,
            (method,),
            alike,
            first=1736,
        )
    add(
        "the area is a tenth larger",
        LOAD,
        ("dpl",),
        lambda: mock.patch.object(
            LoadModel,
            "area_bound",
            property(lambda self, of=LoadModel.__dict__["area_bound"]: of.func(self) * 1.1),
        ),
    )
    general = ("general bounds",)
    add(
        "the cheapest transfer costs ten times as much",
        LOAD,
        general,
        _patched(LoadRelaxation, "cheapest", _each_scaled(10.0)),
    )
    modes = _patched(LoadRelaxation, "value", _on_one_processor)
    add("all devices are modes in the relaxation of loads", LOAD, general, modes)
    add(
        "members exchange ten times as much",
        LOAD,
        general,
        _patched(
            LoadRelaxation,
            "_exchanges",
            lambda of: lambda self: [[(c, 10.0 * v) for c, v in row] for row in of(self)],
        ),
        first=2480,  # groups of devices that train: one problem in a hundred
    )
    add(
        "classes keep three times the bytes under max-load",
        LOAD,
        ("proofs that nothing fits",),
        _patched(feasibility, "_needed", _scaled(3.0)),
    )


def _add_pieces(add: Callable[..., None]) -> None:
    bounded, solved = ("cp-sat", "latency-ip"), ("latency-ip",)
    for of in (PIECES, SERIAL):
        add(
            f"every reader waits for its tensor twice ({of})",
            of,
            bounded,
            _patched(pieces_bound._Builder, "_add_arrival", _twice_arrived),
        )
        add(
            f"windows of three fifths of the memory ({of})",
            of,
            bounded,
            _patched(pieces_bound, "Windows", _smaller_window),
        )
        add(
            f"the longest path is a tenth longer ({of})",
            of,
            solved,
            _patched(latency_ip, "_longest_path", _scaled(1.1)),
        )
    add(
        "tensors take half as much again",
        SERIAL,
        solved,
        _patched(latency_ip, "latency_program", _pieces_arrays("transfer", 1.5)),
    )
    add(
        "units take a tenth longer",
        SERIAL,
        solved,
        _patched(latency_ip, "latency_program", _pieces_arrays("seconds", 1.1)),
    )
    add(
        "one subgraph fewer",
        SERIAL,
        solved,
        _patched(
            latency_ip,
            "latency_program",
            lambda of: lambda problem, arrays, q, horizon: of(problem, arrays, 1, horizon),
        ),
    )
    add(
        "all accelerators take turns",
        SERIAL,
        solved,
        _patched(latency_ip._Builder, "_turns", _in_one_row),
    )


def _dearer_ways(arrivals: float, exits: float) -> Change:
    def change(of: Callable[..., Any]) -> Callable[..., Any]:
        def rates(*args: Any) -> Any:
            found = of(*args)
            return found[0] * arrivals, found[1] * exits

        return rates

    return change


def _slower_items(of: Callable[..., Any]) -> Callable[..., Any]:
    def symmetry(problem: Any) -> Any:
        found = of(problem)
        return replace(found, seconds=found.seconds * 1.1)

    return symmetry


def _as_many_as_the_mean(of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda named, items: np.full(len(items), of(named, items).mean())


def _without_inputs(of: Callable[..., Any]) -> Callable[..., Any]:
    def entered(self: Any, part: Any, in_use: Any, first: Any) -> None:
        self.has_inputs = False
        of(self, part, in_use, first)

    return entered


def _lower_limits(of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, terms, limit: of(self, terms, limit * 0.7)


def _add_sums(add: Callable[..., None]) -> None:
    owners: dict[str, tuple[object, str, Change]] = {
        "arrivals take half as much again": (counted_kinds, "_rates", _dearer_ways(1.5, 1.0)),
        "outputs take half as much again": (counted_kinds, "_rates", _dearer_ways(1.0, 1.5)),
        "items take a tenth longer": (sequential_ip, "symmetry_of", _slower_items),
        "alike items read and make equally many tensors": (
            *(sequential_ip, "_per_item", _as_many_as_the_mean),
        ),
        "seven tenths of the memory for items": (
            *(sequential_ip._Builder, "_at_most", _lower_limits),
        ),
        "devices in use are always connected": (
            *(sequential_ip, "_hangs_together", _always(True)),
        ),
        "each unit reads a tensor and makes one that is read": (
            *(sequential_ip, "_ends_of_order", _always(([], []))),
        ),
        "graph inputs are nowhere before they are sent": (
            *(sequential_ip._Builder, "_entered", _without_inputs),
        ),
    }
    for name, (owner, attribute, change) in owners.items():
        add(name, SUMS, ("sequential-ip",), _patched(owner, attribute, change))
    dearer = {name: _scaled(1.1)(of) for name, of in Sums.bounds.items()}
    add(
        "cheapest units are a tenth dearer",
        SUMS,
        ("general bounds",),
        lambda: mock.patch.dict(Sums.bounds, dearer),
    )


MUTATIONS = _mutations()
