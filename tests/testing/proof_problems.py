"""Random problems of up to six ops and three devices in which every documented feature meets.

All numbers are drawn first, whatever is left out later, so that a problem without one of its
features is the same problem in all else. Every number is dyadic: sums are exact, and what happens
at one instant in one simulator does so in another.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from testing.event_truth import legal_placements
from testing.plain_truth import amount, of_processors, seconds_of, seconds_of_each

from placewright.core.arrays import frozen_floats, frozen_ints
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import (
    Event,
    ExecutionModel,
    MaxLoad,
    Placeto,
    Sequential,
    Subgraph,
    SubgraphIP,
)
from placewright.core.graph import BACKWARD, FORWARD, UPDATE, ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.errors import InputError

MOST_OPS, MOST_DEVICES = 6, 3
EVENT, LOAD, PIECES, SERIAL, PLACETO = "event", "max-load", "subgraph", "subgraph-ip", "placeto"
SUMS = "sequential"
MODELS = (EVENT, LOAD, PIECES, SERIAL, PLACETO, SUMS)
OF_MODES = "energy and price of modes"
FIFO = "first in, first out"  # changes values without an order, never the best one of all orders
_QUEUES = (EVENT, LOAD)  # models that know channels
_PLAYED = (EVENT, LOAD, SUMS)  # models that know links
_KEEPS = (EVENT, LOAD, PIECES, SERIAL, SUMS)  # models that count bytes
_ALL = MODELS


@dataclass(frozen=True)
class Feature:
    """Part of what a problem may have.

    Attributes:
        chance: that a problem has it.
        models: execution models under which it may change a value.
        later: 0, or the number of the generator of a feature that was added later, so that problems
            of a seed are as before in all else.
        under: chances under single execution models, where they are others.
        unmoved: execution models that take it, and whose values it must not change.
    """

    chance: float
    models: tuple[str, ...]
    later: int = 0
    under: Mapping[str, float] = field(default_factory=dict)
    unmoved: tuple[str, ...] = ()

    def is_known_under(self, model: str) -> bool:
        """True if problems of the execution model may have it."""
        return model in (*self.models, *self.unmoved)


# What docs/reference/simulation.md knows, by name. `without` takes these names.
FEATURES: dict[str, Feature] = {
    "alike devices": Feature(0.35, _ALL),
    "unlike links": Feature(0.5, _PLAYED),
    "shared channels": Feature(0.6, _QUEUES, under={EVENT: 0.45, LOAD: 0.95}, unmoved=(SUMS,)),
    "routes through the host": Feature(0.85, _PLAYED),
    "host that is no device": Feature(0.4, _PLAYED),
    "links that do not queue": Feature(0.97, (EVENT,), unmoved=(SUMS,)),
    "streams": Feature(0.97, _QUEUES, under={EVENT: 1.0}, unmoved=(SUMS,)),
    "dispatch": Feature(0.15, (EVENT, SUMS), under={SUMS: 0.4}),
    "cuts": Feature(0.35, (EVENT, SUMS)),
    "layouts": Feature(0.42, (EVENT,), unmoved=(SUMS,)),
    "contention": Feature(0.4, (EVENT,), unmoved=(SUMS,)),
    "pins": Feature(0.4, _ALL),
    "colocation": Feature(0.3, _ALL),
    "unsupported ops": Feature(0.35, _ALL),
    "memory limits": Feature(0.55, _KEEPS, under={EVENT: 0.4, LOAD: 0.5}),
    "working bytes": Feature(0.9, (EVENT,)),
    "shared weights": Feature(0.95, _KEEPS),
    "resident inputs": Feature(0.5, _PLAYED),
    "graph inputs": Feature(0.6, _PLAYED),
    "graph outputs": Feature(0.6, _PLAYED),
    "outputs of inner ops": Feature(0.9, _PLAYED),
    "ops of several outputs": Feature(0.7, _ALL),
    "own transfer seconds": Feature(0.24, _PLAYED),
    "zero-second ops": Feature(0.4, _ALL),
    "zero-byte tensors": Feature(0.4, (*_PLAYED, PLACETO)),
    "units of several ops": Feature(0.35, _ALL, under={SUMS: 0.6}),
    "training phases": Feature(0.5, (LOAD,)),
    "split phases": Feature(0.7, (LOAD,)),
    "replicas": Feature(0.35, (LOAD,)),
    "samples in flight": Feature(0.6, (LOAD,)),
    "overlap": Feature(0.6, (LOAD,)),
    "devices that pay no transfers": Feature(0.4, (LOAD, PIECES, SERIAL)),
    "several subgraphs": Feature(0.97, (SERIAL,)),
    "memory pools": Feature(0.5, _KEEPS, later=1, under={LOAD: 0.6}),
    "occupying copies": Feature(0.68, (EVENT,), later=2),
    "numbers of segments": Feature(0.4, (EVENT,), later=3),
    "sizes of segments": Feature(0.6, (EVENT,), later=3),
    "weights held once": Feature(0.85, _KEEPS, later=4, under={EVENT: 0.97, LOAD: 1.0, SUMS: 1.0}),
    FIFO: Feature(0.5, (EVENT,), later=5),
    "messages": Feature(0.5, (SUMS,), later=6),
    "alike ops": Feature(0.5, (SUMS,), later=6),
    "shared processors": Feature(0.44, (EVENT, LOAD), later=7, under={LOAD: 0.36}, unmoved=(SUMS,)),
    "energy": Feature(0.22, (EVENT,), later=8),
    "price": Feature(0.32, (EVENT,), later=8),  # where energy is not the objective
    "idle power": Feature(0.8, _QUEUES, later=8, under={LOAD: 1.0}),
    "own joules": Feature(0.85, _QUEUES, later=8, under={LOAD: 1.0}),
    "limited amounts": Feature(0.5, _QUEUES, later=8, under={LOAD: 0.45}),
    OF_MODES: Feature(0.7, _QUEUES, later=9, under={LOAD: 1.0}),
    "pools by shares": Feature(0.9, _KEEPS, later=10),
}
CHARGES = ("energy", "price", "idle power", "own joules", "limited amounts")

# Of three devices: two modes of one processor or another, three of one, and two that a third joins.
_PROCESSORS = (
    (("d0",), ("d0",), ("d2",)),
    (("d0",), ("d1",), ("d1",)),
    (("d0",), ("d0",), ("d0",)),
    (("d0", "d1"), ("d1",), ("d0",)),
    (("d0",), ("d0", "d2"), ("d2",)),
)

# Programs in which a device's load depends on nothing but what it runs take problems without these.
NOT_SEPARABLE = ("shared channels", "unlike links", "routes through the host")
_IN_ORDER = (*NOT_SEPARABLE, "limited amounts", "memory pools", "shared processors", "split phases")
REFUSED: dict[str, tuple[str, ...]] = {  # features that a method does not take under max-load
    **dict.fromkeys(("cp-sat", "maxload-ip"), NOT_SEPARABLE),
    **dict.fromkeys(("dpl", "ideal-dp", "pipedream"), _IN_ORDER),
}


def features_of(model: str) -> list[str]:
    """Names of the features that may change a value under an execution model."""
    return [name for name, feature in FEATURES.items() if model in feature.models]


def drawn_features(seed: int, model: str) -> list[str]:
    """Features that the problem of a seed has."""
    return [name for name, has in _Draw(seed, model, ()).has.items() if has]


def proof_problem(
    seed: int, model: str, without: Collection[str] = (), also: Collection[str] = ()
) -> Problem:
    """The random problem of a seed.

    Args:
        seed: of everything.
        model: name of an execution model.
        without: features that it does not have, whatever was drawn.
        also: features that it has, even if they were not drawn.
    """
    return _Draw(seed, model, without, also).problem()


class _Draw:
    """All numbers of one problem, drawn in one order whatever is left out."""

    def __init__(
        self, seed: int, model: str, without: Collection[str], also: Collection[str] = ()
    ) -> None:
        rng = self.rng = np.random.default_rng([seed, MODELS.index(model)])
        self.model, self.seed, self.also = model, seed, also
        later = [np.random.default_rng([seed, MODELS.index(model), at]) for at in range(1, 11)]
        drawn = {
            name: bool(
                (later[one.later - 1] if one.later else rng).random()
                < one.under.get(model, one.chance)
            )
            for name, one in FEATURES.items()
        } | dict.fromkeys(also, True)
        absent = {*without, *(NOT_SEPARABLE if rng.random() < 0.3 and model == LOAD else ())}
        self.has = {
            name: is_drawn and name not in absent and FEATURES[name].is_known_under(model)
            for name, is_drawn in drawn.items()
        }
        self.n_ops = int(rng.choice([2, 3, 4, 5, 5, 6, 6, 6]))
        self.n_devices = int(rng.choice([2, 3, 3]))
        shape = (MOST_OPS, MOST_DEVICES)
        self.seconds = rng.integers(1, 13, shape) / 2.0
        self.unsupported = rng.random(shape) < 0.3
        self.is_zero = rng.random(shape) < rng.choice([0.2, 0.6], (MOST_OPS, 1))
        self.edge = rng.random((MOST_OPS, MOST_OPS)) < rng.choice([0.2, 0.35, 0.6])
        self.reads_second = rng.random((MOST_OPS, MOST_OPS)) < 0.5
        self.has_second = rng.random(MOST_OPS) < 0.5
        self.reads_input = rng.random((2, MOST_OPS)) < [[0.5], [0.3]]
        self.sizes = rng.choice([1.0, 2.0, 4.0, 6.0], 2 + 2 * MOST_OPS)
        self.is_empty = rng.random(2 + 2 * MOST_OPS) < 0.5
        self.leaves = rng.random(2 * MOST_OPS) < 0.5
        self.input_leaves = rng.random(2) < 0.1
        self.flops = rng.choice([0.0, 10.0, 80.0, 400.0], MOST_OPS)
        self.weights = rng.integers(0, 6, MOST_OPS) * 1.0
        self.keeps_shared = rng.random(MOST_OPS) < 0.6
        self.working = rng.integers(0, 13, MOST_OPS) * 1.0
        self.class_of = rng.choice([-1, -1, 0, 0, 1], MOST_OPS)
        self.phase_ends = np.sort(rng.random(2) * 1.3)
        self.own = rng.integers(0, 7, 2 + 2 * MOST_OPS) / 2.0
        self.group_ends = rng.random(MOST_OPS) < 0.65
        self.pinned = rng.random(MOST_OPS) < rng.choice([0.0, 0.5, 0.9])
        self.pinned[rng.integers(self.n_ops)] = True
        self.wish = rng.random(shape)
        self.is_shuffled, self.number = rng.random() < 0.5, rng.random(MOST_OPS)
        self.draw_cluster(rng)
        self.draw_what_came_later(later)
        self.relate(drawn, without)

    def draw_what_came_later(self, later: list[np.random.Generator]) -> None:
        """From generators of their own, so that problems of a seed are as before in all else."""
        self.draw_segment_limits(later[2])
        self.draw_pools(later[0])
        ends = (MOST_DEVICES + 1, MOST_DEVICES + 1)
        self.occupant = later[1].choice(["receiver", "sender", "both", "both", "nobody"], ends)
        self.leave_free(int(later[1].choice([-1, 0, 1, 2])))
        self.messages, self.period = int(later[5].integers(2, 4)), int(later[5].integers(1, 3))
        self.way_of_computing = int(later[6].integers(len(_PROCESSORS)))
        self.draw_charges(later[7])
        self.in_other = later[9].choice([0.0, 0.25, 0.5, 0.75], MOST_DEVICES)

    def relate(self, drawn: dict[str, bool], without: Collection[str]) -> None:
        """Numbers that follow from others by the features that the problem has."""
        if self.has["alike ops"]:
            self.repeat(self.period)
        if not self.has["unlike links"]:
            self.latency[:], self.bandwidth[:] = self.latency[0, 1], self.bandwidth[0, 1]
        if self.has["alike devices"]:
            self.make_alike(*((0, 1) if self.n_devices == 2 else (1, 2)))
        # Links that may occupy wait for no channel, and occupied devices have one stream, even if
        # the feature is left out.
        has_own = drawn["own transfer seconds"]
        self.copies = drawn["occupying copies"] and self.model == EVENT and not has_own
        if self.copies and "host that is no device" not in without:
            self.has["host that is no device"] = True
        for ends in itertools.permutations(range(MOST_DEVICES), 2) if self.copies else ():
            for end in self.occupied_ends(*ends):
                self.streams[end] = 1
        # Likewise devices of which several compute on a processor do one thing at a time.
        users = Counter(name for names in self.processors() for name in names)
        self.one_at_a_time = [
            drawn["shared processors"]
            and FEATURES["shared processors"].is_known_under(self.model)
            and any(users[name] > 1 for name in names)
            for names in self.processors()
        ]
        # Energy and price of modes came later; other modes have none, even if they are left out.
        for name in CHARGES if drawn["shared processors"] and not self.has[OF_MODES] else ():
            self.has[name] = False
        if self.model == PLACETO:  # overheads of some microseconds, 7600 bytes in each
            self.seconds, self.sizes = self.seconds * 2.0**-14, self.sizes * 2.0**18

    def draw_charges(self, rng: np.random.Generator) -> None:
        """Power and price of devices, joules of ops, and what is limited to how much."""
        n = MOST_DEVICES
        self.idle_watts = rng.choice([0, 2, 4, 16], n)
        self.added_watts = rng.choice([0, 1, 4, 16], n)
        self.price = rng.choice([0, 1, 2, 9], n)
        self.joules = rng.integers(0, 9, (MOST_OPS, n)) / 2.0
        self.costs_alike = rng.random() < 0.5
        self.ops_within_limit = 0
        self.is_amount_limited = rng.random(3) < (
            [0.0, 1.0, 0.2] if self.model == LOAD else [0.4, 0.6, 0.5]
        )
        self.limited_row, self.limit_share = rng.random(), rng.choice([0.75, 1.0, 1.25], 3)
        if self.model == LOAD:
            self.limit_share *= 0.8  # a placement of little load also costs little
            self.idle_watts = self.idle_watts / 16.0  # near the joules by which placements differ
            self.limit_share *= rng.choice([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0**20, 2.0**34], 3)
            self.draw_equal_joules(rng)

    def draw_equal_joules(self, rng: np.random.Generator) -> None:
        """Sometimes each op takes 3 J or none, time takes none, and the limit counts such ops."""
        self.ops_within_limit = int(rng.choice([0, 0, 0, 0, 0, 1, 1, 2]))
        is_dear = rng.random(MOST_DEVICES) < 0.5
        if self.ops_within_limit:
            self.joules[:], self.idle_watts[:] = 3.0 * is_dear, 0

    def leave_free(self, device: int) -> None:
        """No copy occupies the device, which may then have streams; -1 is no device."""
        for end in range(MOST_DEVICES) if device >= 0 else ():
            for at, left in ((device, end), "receiver"), ((end, device), "sender"):
                self.occupant[at] = left if self.occupant[at] in (left, "both") else "nobody"

    def repeat(self, period: int) -> None:
        """Ops are as those so many before them: layers of a language model."""
        for op in range(period, MOST_OPS):
            for array in (self.seconds, self.unsupported, self.is_zero, self.weights,
                          self.keeps_shared, self.has_second):  # fmt: skip
                array[op] = array[op - period]
            for array in (self.sizes, self.is_empty, self.own):
                array[2 + 2 * op : 4 + 2 * op] = array[
                    2 + 2 * (op - period) : 4 + 2 * (op - period)
                ]

    def make_alike(self, one: int, other: int) -> None:
        """The second device is as the first one, with links as that one has."""
        of_device = (
            *(self.streams, self.dispatch, self.cut, self.cut_per_byte, self.layout),
            *(self.layout_per_byte, self.domain, self.is_limited, self.room, self.replicas),
            *(self.replica_bandwidth, self.overlaps, self.pays, self.pool, self.in_other),
            *(self.segments, self.segment_ops),
        )
        charges = (self.idle_watts, self.added_watts, self.price) if self.costs_alike else ()
        for array in (*of_device, *charges):
            array[other] = array[one]
        joules = (self.joules,) if self.costs_alike else ()
        for array in (self.seconds, self.unsupported, self.is_zero, *joules):
            array[:, other] = array[:, one]
        links = (self.latency, self.bandwidth, self.is_missing, self.host_is_missing)
        for array in (*links, self.queues, self.shares, self.occupant):
            array[other, :], array[:, other] = array[one, :], array[:, one]
            array[other, one] = array[one, other]

    def draw_pools(self, rng: np.random.Generator) -> None:
        """Which device is in which pool, and the share of all bytes that fits into each."""
        self.pool = rng.choice(["left", "left", "right", ""], MOST_DEVICES)
        self.pool_room = rng.uniform(0.5, 1.1, 2)
        if self.model in (PIECES, SERIAL, SUMS):  # tensors take no memory
            self.pool_room *= 0.7
        if self.model == LOAD:
            self.pool_room *= 0.85

    def draw_segment_limits(self, rng: np.random.Generator) -> None:
        """Of each device; 0 is no limit."""
        self.segments = rng.choice([0, 1, 1, 2], MOST_DEVICES)
        self.segment_ops = rng.choice([0, 1, 2, 2, 3], MOST_DEVICES)

    def draw_cluster(self, rng: np.random.Generator) -> None:
        """Of three devices and a host."""
        n, ends = MOST_DEVICES, MOST_DEVICES + 1
        self.streams = rng.choice([2, 2, 3], n)
        self.dispatch = rng.integers(1, 4, n) / 4.0
        self.cut = rng.integers(0, 3, n) / 4.0
        self.cut_per_byte = rng.integers(0, 3, n) / 16.0
        self.layout = rng.integers(1, 5, n) / 4.0
        self.layout_per_byte = rng.integers(0, 3, n) / 16.0
        self.domain = rng.choice(["ram", "ram", "other"], n)
        self.factors = tuple(rng.choice([1.0, 1.25, 1.5, 2.0], 3).tolist())
        self.is_limited, self.room = rng.random(n) < 0.7, rng.uniform(0.25, 0.8, n)
        self.replicas = rng.choice([1, 2, 2, 4], n)
        self.replica_bandwidth = rng.choice([1.0, 4.0], n)
        self.overlaps = rng.random(n) < 0.6
        self.pays = rng.random(n) < 0.5
        self.latency = rng.choice([0.0, 0.25, 0.5, 1.0], (ends, ends))
        self.bandwidth = rng.choice([0.5, 1.0, 2.0, math.inf], (ends, ends))
        self.is_missing = rng.random((ends, ends)) < 0.7
        self.host_is_missing = rng.random((ends, ends)) < rng.choice([0.0, 0.0, 0.0, 0.3])
        self.way_of_sharing = int(rng.choice([0, 0, 1, 2, 3, 4, 4]))
        self.shares = rng.random((ends, ends)) < 0.6
        self.queues = rng.random((ends, ends)) < 0.1
        self.samples = int(rng.integers(1, 4))
        self.per_accelerator = int(rng.integers(2, 4))

    def problem(self) -> Problem:
        """With all features that were drawn."""
        graph, has = self.graph(), self.has
        seconds = self.seconds[: self.n_ops, : self.n_devices].copy()
        if has["zero-second ops"]:
            seconds[self.is_zero[: self.n_ops, : self.n_devices]] = 0.0
        if has["unsupported ops"]:
            gone = self.unsupported[: self.n_ops, : self.n_devices].copy()
            gone[gone.all(axis=1), 0] = False
            seconds[gone] = math.inf
        pins = self.pins(np.isfinite(seconds)) if has["pins"] else {}
        own = self.own_seconds(graph)
        resident = (0,) if has["resident inputs"] and graph.tensor_producers[0] < 0 else ()
        whole = Problem(
            graph,
            self.cluster(graph),
            CostTable(frozen_floats(seconds)),
            Grouping.identity(self.n_ops),
            objective="throughput" if self.model == LOAD else "latency",
            execution_model=self.execution_model(),
            pins=pins,
            transfer_seconds=own,
            inner_tensors=has["working bytes"],
            op_working_bytes=frozen_floats(self.working[: self.n_ops])
            if has["working bytes"]
            else None,
            resident_inputs=resident,
        )
        return self.charged(self.in_units(whole))

    def charged(self, problem: Problem) -> Problem:
        """With energy, price and limits."""
        has, n_units = self.has, problem.n_units
        is_limited = has["limited amounts"]
        joules = self.joules[:n_units, : self.n_devices] if has["own joules"] else None
        objective = "energy" if has["energy"] else "price" if has["price"] else problem.objective
        return replace(
            problem,
            objective=objective,
            op_joules=None if joules is None else frozen_floats(joules),
            limits=self.limits() if is_limited else {},
        )

    def limits(self) -> dict[str, float]:
        """Near the amounts of a placement of the problem with all features, or far above them."""
        whole = proof_problem(self.seed, self.model, {"limited amounts"}, self.also)
        rows = legal_placements(whole)
        rows = np.roll(rows, -int(self.limited_row * len(rows)), axis=0)
        timed = ((row, seconds_of(whole, row)) for row in rows)
        row, seconds = next((one for one in timed if one[1] < math.inf), (None, 0.0))
        limits = {}
        for at, name in enumerate(("latency", "energy", "price")):
            if row is None or not self.is_amount_limited[at]:
                continue
            most = amount(whole, name, row, seconds) * self.limit_share[at]
            if name == "energy" and self.model == LOAD:
                timed = zip(rows, seconds_of_each(whole, rows), strict=True)
                least = min(amount(whole, name, *one) for one in timed)
                most = least * (0.75 + self.limit_share[at] / 4.0)
            if name == "energy" and self.ops_within_limit:
                most = 3.0 * self.ops_within_limit
            if most > 0:
                limits[name] = float(most)
        return limits

    def pins(self, can_run: np.ndarray) -> dict[int, int]:
        """Some ops where they can run; those of a colocation class together, if they can."""
        found = {}
        for op in np.flatnonzero(self.pinned[: self.n_ops]).tolist():
            together = self.class_of[: self.n_ops] == self.class_of[op]
            if self.class_of[op] < 0 or not self.has["colocation"]:
                together = np.arange(self.n_ops) == op
            wish = self.wish[int(np.argmax(together)), : self.n_devices]
            fits = np.where(can_run[together].all(axis=0), 2.0, can_run[op] * 1.0)
            found[op] = int((wish + fits).argmax())
        return found

    def own_seconds(self, graph: ComputationGraph) -> np.ndarray | None:
        """The problem's own seconds of transfers; models of subgraphs know no others."""
        if self.has["own transfer seconds"] or self.model in (PIECES, SERIAL):
            return frozen_floats(self.own[: graph.n_tensors])
        return None

    def in_units(self, whole: Problem) -> Problem:
        """Neighbours in topological order together, where one device can run them.

        Some problems number their units by chance, so that readers are in no topological order.
        """
        ends = self.group_ends[: self.n_ops - 1] | (not self.has["units of several ops"])
        labels = np.concatenate([[0], np.cumsum(ends)])
        try:
            found = whole.coarsened(Grouping.from_labels(labels))
            found.pinned_device  # noqa: B018 - raises where a unit has pins to two devices
        except InputError:
            found = whole
        if not self.is_shuffled:
            return found
        count = found.n_units
        numbers = np.argsort(self.number[:count], kind="stable")
        return found.coarsened(Grouping(frozen_ints(numbers)))

    def execution_model(self) -> ExecutionModel:
        """With its parameters."""
        has = self.has
        return {
            EVENT: Event("fifo" if has[FIFO] else "rank"),
            LOAD: MaxLoad(
                samples_in_flight=self.samples if has["samples in flight"] else 0,
                split_phases=has["split phases"],
            ),
            PIECES: Subgraph(),
            SERIAL: SubgraphIP(self.per_accelerator if has["several subgraphs"] else 1),
            PLACETO: Placeto(),
            SUMS: Sequential(self.messages if has["messages"] else 1),
        }[self.model]

    def graph(self) -> ComputationGraph:
        """Ops in topological order; each reads one of the outputs of some before it."""
        builder, has = GraphBuilder(), self.has
        sizes = np.where(self.is_empty & has["zero-byte tensors"], 0.0, self.sizes)
        inputs = []
        if has["graph inputs"]:
            stays = has["resident inputs"]
            for number in range(2):
                leaves = bool(self.input_leaves[number]) and not (stays and number == 0)
                inputs.append(builder.add_input(sizes[number], is_output=leaves))
        shared = builder.add_weight(12.0)
        is_read = np.zeros((self.n_ops, 2), dtype=bool)
        made: list[list[int]] = []
        for op in range(self.n_ops):
            self.add_op(builder, op, inputs, made, is_read, shared)
            count = 2 if has["ops of several outputs"] and self.has_second[op] else 1
            first = 2 + 2 * op
            made.append([builder.add_tensor(op, sizes[first + k]) for k in range(count)])
        for op, tensors in enumerate(made):
            for k, tensor in enumerate(tensors):
                kind = "outputs of inner ops" if is_read[op, k] else "graph outputs"
                if has[kind] and self.leaves[2 * op + k]:
                    builder.mark_output(tensor)
        return builder.build()

    def add_op(
        self,
        builder: GraphBuilder,
        op: int,
        inputs: list[int],
        made: list[list[int]],
        is_read: np.ndarray,
        shared: int,
    ) -> None:
        """One op, connected to what it reads."""
        has = self.has
        reads = [tensor for number, tensor in enumerate(inputs) if self.reads_input[number, op]]
        for before in range(op):
            if self.edge[before, op]:
                second = len(made[before]) > 1 and self.reads_second[before, op]
                reads.append(made[before][int(second)])
                is_read[before, int(second)] = True
        keeps = [builder.add_weight(self.weights[op])]
        if self.keeps_shared[op]:
            keeps.append(shared if has["shared weights"] else builder.add_weight(12.0))
        place = op / self.n_ops
        phases = has["training phases"]
        is_late, is_last = place >= self.phase_ends[0], place >= self.phase_ends[1]
        builder.add_op(
            f"op{op}",
            "Op",
            inputs=reads,
            flops=self.flops[op],
            phase=(UPDATE if is_last else BACKWARD if is_late else FORWARD) if phases else FORWARD,
            colocation=int(self.class_of[op]) if has["colocation"] else -1,
            weights=keeps,
        )

    def cluster(self, graph: ComputationGraph) -> Cluster:
        """Devices, links and the host."""
        has, n = self.has, self.n_devices
        total = float(graph.weight_bytes.sum() + graph.tensor_bytes.sum())
        exchanges = not has["training phases"] or self.makes_gradients(graph)
        devices, within = [], self.idle_within()
        for d in range(n):
            is_host = d == 0 and not has["host that is no device"]
            limited = has["memory limits"] and self.is_limited[d]
            group = has["replicas"] and exchanges and not is_host
            free = has["devices that pay no transfers"] and not self.pays[d]
            in_turn = self.one_at_a_time[d]
            group = group and not in_turn
            domain = str(self.domain[d]) if has["contention"] and not in_turn else None
            devices.append(
                Device(
                    f"d{d}",
                    memory_bytes=math.floor(total * self.room[d]) if limited else math.inf,
                    streams=int(self.streams[d]) if has["streams"] and not in_turn else 1,
                    dispatch_seconds=self.dispatch[d] if has["dispatch"] else 0.0,
                    cut_seconds=self.cut[d] if has["cuts"] else 0.0,
                    cut_seconds_per_byte=self.cut_per_byte[d] if has["cuts"] else 0.0,
                    layout_seconds=self.layout[d] if has["layouts"] else 0.0,
                    layout_seconds_per_byte=self.layout_per_byte[d] if has["layouts"] else 0.0,
                    memory_domain=domain,
                    overlaps_transfers=bool(has["overlap"] and self.overlaps[d]) and not in_turn,
                    pays_transfers=not free,
                    replicas=int(self.replicas[d]) if group else 1,
                    replica_bandwidth=float(self.replica_bandwidth[d]) if group else None,
                    pool=self.pools_of(d) if has["memory pools"] else None,
                    max_segments=self.limit(self.segments[d], "numbers of segments"),
                    max_segment_ops=self.limit(self.segment_ops[d], "sizes of segments"),
                    processors=self.processors()[d] if has["shared processors"] else (),
                    idle_watts=float(self.idle_watts[d]) if has["idle power"] else 0.0,
                    busy_watts=float(self.added_watts[d] + within[d] * has["idle power"]),
                    price_per_hour=3600.0 * self.price[d],
                )
            )
        contention = {"ram": self.factors} if has["contention"] else {}
        host = "host" if has["host that is no device"] else "d0"
        pools = {}
        if has["memory pools"]:
            for name, room in zip(("left", "right"), self.pool_room, strict=True):
                pools[name] = float(math.floor(total * room))
        return Cluster(
            tuple(devices),
            self.links(host),
            host,
            contention,
            pools=pools,
            shares_weights=has["weights held once"],
        )

    def pools_of(self, device: int) -> str | dict[str, float] | None:
        """One pool, or both by shares."""
        name, share = str(self.pool[device]), float(self.in_other[device])
        if not name or not self.has["pools by shares"] or share == 0.0:
            return name or None
        return {name: 1.0 - share, "right" if name == "left" else "left": share}

    def processors(self) -> list[tuple[str, ...]]:
        """Of each device."""
        return list(_PROCESSORS[self.way_of_computing][: self.n_devices])

    def idle_within(self) -> list[float]:
        """Idle power of the processors of each device, or its own, if that is more."""
        names = self.processors() if self.has["shared processors"] else []
        named = [Device(f"d{d}", processors=own) for d, own in enumerate(names)]
        watts = of_processors(named, self.idle_watts[: len(named)].tolist())
        own = self.idle_watts[: self.n_devices].tolist()
        within = [sum(watts[name] for name in one) for one in names] or own
        return [max(pair) for pair in zip(within, own, strict=True)]

    def limit(self, drawn: int, feature: str) -> int | None:
        """A limit that was drawn; None without the feature, or for 0."""
        return (int(drawn) or None) if self.has[feature] else None

    @staticmethod
    def makes_gradients(graph: ComputationGraph) -> bool:
        """An update op reads what another op makes, or there is no training."""
        phases, readers = graph.op_phases, graph.tensor_consumers
        if (phases == FORWARD).all():
            return True
        return any(
            producer >= 0
            and graph.tensor_bytes[t] > 0
            and phases[producer] != UPDATE
            and (phases[readers.row(t)] == UPDATE).any()
            for t, producer in enumerate(graph.tensor_producers.tolist())
        )

    def links(self, host: str) -> tuple[Link, ...]:
        """Links by pair of ends; the host that is no device is the last end."""
        has, names = self.has, [f"d{d}" for d in range(self.n_devices)]
        ends = [*enumerate(names), (MOST_DEVICES, host)] if host == "host" else [*enumerate(names)]
        links = []
        for a, source in ends:
            for b, target in ends:
                missing = self.host_is_missing if host in (source, target) else self.is_missing
                may_occupy = self.may_occupy(a, b, host)
                is_missing = has["routes through the host"] and missing[a, b] and not may_occupy
                if a == b or is_missing:
                    continue
                channel = self.channel(a, b) if has["shared channels"] and not may_occupy else None
                queues = not has["links that do not queue"] or bool(self.queues[a, b])
                occupies = str(self.occupant[a, b]) if may_occupy else "nobody"
                links.append(
                    Link(
                        source,
                        target,
                        self.latency[a, b],
                        self.bandwidth[a, b],
                        channel,
                        queues or channel is not None or may_occupy,
                        occupies if has["occupying copies"] else "nobody",
                    )
                )
        return tuple(links)

    def occupied_ends(self, source: int, target: int) -> tuple[int, ...]:
        """Devices that work while bytes move between two of them."""
        ends = {"receiver": (target,), "sender": (source,), "both": (source, target), "nobody": ()}
        return ends[str(self.occupant[source, target])]

    def may_occupy(self, source: int, target: int, host: str) -> bool:
        """Links between devices that are not the host, unless nobody is drawn for them."""
        is_at_host = MOST_DEVICES in (source, target) or (host == "d0" and 0 in (source, target))
        return self.copies and not is_at_host and self.occupant[source, target] != "nobody"

    def channel(self, source: int, target: int) -> str | None:
        """One bus; cards of senders, or of receivers; two names, some links apart."""
        names = (
            "bus",
            f"from {source}",
            f"to {target}",
            "one" if self.shares[source, target] else "two",
            "bus" if self.shares[source, target] else None,
        )
        return names[self.way_of_sharing]


def problem_of_later_readers() -> Problem:
    """A tensor whose first reader comes after the part in which two others read it.

    a makes it on p in 1 s; on one bus, 1 s each, it goes to r, where w and v read it, before q,
    where u does, since w has the least number. v takes 5 s and u 1 s; then j (q) and w (r), 1 s
    each: a 0-1, bus 1-2-3, v 2-7, u 3-4, j 7-8, w 8-9. In the order of the part's own readers u
    would come first, and all end at 10.
    """
    builder = GraphBuilder()
    made = builder.add_tensor(builder.add_op("a", "Op"), 1.0)
    ends = []
    for name in ("u", "v"):
        ends.append(builder.add_tensor(builder.add_op(name, "Op", inputs=[made]), 0.0))
    joined = builder.add_tensor(builder.add_op("j", "Op", inputs=ends), 0.0)
    builder.add_op("w", "Op", inputs=[made, joined])
    links = tuple(Link(a, b, 0.0, 1.0, "bus") for a in "pqr" for b in "pqr" if a != b)
    seconds = np.repeat([[1.0], [1.0], [5.0], [1.0], [1.0]], 3, axis=1)
    whole = Problem(
        builder.build(),
        Cluster(tuple(map(Device, "pqr")), links, "p"),
        CostTable(frozen_floats(seconds)),
        Grouping.identity(5),
        pins={0: 0, 1: 1, 2: 2, 3: 1, 4: 2},
    )
    return whole.coarsened(Grouping(frozen_ints([1, 2, 3, 4, 0])))


def problem_of_two_limits() -> Problem:
    """Two ops of 1 s, best apart on a and b, which take all that the limits allow.

    Each device idles at 1 W; b costs 3 a second, a costs 1, and an op takes 5 J on b alone. Apart:
    1 s, 2 + 5 = 7 J and 1 + 3 = 4. Together on a: 2 s, 4 J and 2, or 6 J or 3 if power or prices
    are half as much again.
    """
    builder = GraphBuilder()
    for name in ("one", "other"):
        builder.add_op(name, "Op")
    devices = tuple(
        Device(name, idle_watts=1.0, busy_watts=1.0, price_per_hour=3600.0 * price)
        for name, price in (("a", 1.0), ("b", 3.0))
    )
    return Problem(
        builder.build(),
        Cluster(devices, tuple(Link(*ends, 0.0, 1.0) for ends in ("ab", "ba")), "a"),
        CostTable(frozen_floats([[1.0, 1.0]] * 2)),
        Grouping.identity(2),
        objective="throughput",
        execution_model=MaxLoad(),
        limits={"energy": 7.0, "price": 4.0},
        op_joules=frozen_floats([[0.0, 5.0]] * 2),
    )
