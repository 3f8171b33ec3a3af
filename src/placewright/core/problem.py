"""The problem: everything that a search may look at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from placewright.core.arrays import (
    BoolArray,
    Csr,
    FloatArray,
    IntArray,
    frozen_bools,
    frozen_floats,
    frozen_ints,
    kept_floats,
)
from placewright.core.charges import (
    CHARGED,
    QUANTITIES,
    Charges,
    amount_text,
    charges_of,
    check_joules,
    check_limits,
    require_known,
    unknown,
)
from placewright.core.cluster import Cluster, Device
from placewright.core.costs import (
    LONGEST,
    CostTable,
    plain_cluster,
    plain_graph,
    plain_numbers,
    plain_options,
    with_processors,
)
from placewright.core.execution_models import EVENT, Event, ExecutionModel, MaxLoad, Sequential
from placewright.core.graph import FORWARD, UPDATE, ComputationGraph
from placewright.core.grouping import Grouping, Quotient, colocation_of_groups, quotient, unit_text
from placewright.core.op_patterns import op_named
from placewright.core.pools import pools_text
from placewright.core.processors import require_own_processors
from placewright.core.quantities import format_bytes
from placewright.core.residency import (
    Kept,
    check_resident,
    check_working_bytes,
    first_keepers,
    kept_of,
    with_resident_inputs,
    working_bytes,
)
from placewright.core.source import ModelSource
from placewright.errors import CostError, FieldError, InputError, UnknownNameError

Objective = Literal["latency", "throughput", "training", "energy", "price"]
Samples = int | Literal["pipeline"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)
_MOST_SHOWN = 8  # devices and pins in the text of a problem


def timed_objective(objective: Objective) -> Objective:
    """The objective of the time that an objective counts: latency for energy and price."""
    return "latency" if objective in CHARGED else objective


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """A graph, its units, a cluster, costs, an objective and constraints.

    Searches and the simulator work on *units*: `unit_graph` has one op per unit.

    >>> import numpy as np
    >>> from placewright.core.builder import GraphBuilder
    >>> from placewright.core.cluster import Device
    >>> from placewright.core.costs import CostTable
    >>> builder = GraphBuilder()
    >>> read = builder.add_input(4096)
    >>> left = builder.add_op("left", "MatMul", inputs=[read])
    >>> right = builder.add_op("right", "MatMul", inputs=[read])
    >>> cluster = pw.Cluster((Device("cpu"), Device("gpu")), host="cpu")
    >>> costs = CostTable(np.array([[2.0, 1.0], [2.0, 1.0]]))  # seconds, (n_units, n_devices)
    >>> problem = pw.Problem.of_ops(builder.build(), cluster, costs)
    >>> pw.Simulator(problem).value(pw.Placement.of([0, 0]))
    4.0

    Attributes:
        graph: the ops as they were read.
        cluster: devices, links, host.
        costs: seconds (in `time_unit`) of each unit on each device, shape (n_units, n_devices).
        units: op -> unit, a grouping into convex sets; the quotient is acyclic.
        objective: what is minimised.
        execution_model: defines the value of a placement, with its parameters.
        pins: op -> device that it must run on.
        transfer_seconds: seconds of one transfer of each tensor of `graph`, shape (n_tensors,),
            where the problem carries them; None derives them from the links.
        time_unit: ``"s"``, or the unit of a file that keeps its own (``"ms"``).
        source: the model behind the graph, None for a graph made in memory.
        inner_tensors: tensors inside a unit take memory while it runs, because the runtime executes
            its ops one by one; False where a unit is one kernel.
        op_working_bytes: bytes that each op takes beside its inputs and outputs while it runs,
            shape (n_ops,), with `inner_tensors` only; None where that is not known.
        resident_inputs: graph inputs, tensors of `graph` in ascending order, that lie where they
            are used before a run begins: they are weights of `unit_graph`, no tensors.
        limits: quantity (``"latency"``, ``"energy"``, ``"price"``) -> its largest amount; latency
            in seconds, energy in joules, each of one sample (see `core.charges`).
        op_joules: joules of each unit on each device in addition to idle power, shape (n_units,
            n_devices); None derives them from the power of the devices.

    Raises:
        CostError: shapes do not match, or a unit has no device (the message names an op).
        InputError: an unknown objective, device or execution model, or an objective and an
            execution model that do not go together.
    """

    graph: ComputationGraph
    cluster: Cluster
    costs: CostTable
    units: Grouping
    objective: Objective = "latency"
    execution_model: ExecutionModel = EVENT
    pins: Mapping[int, int] = field(default_factory=dict)
    transfer_seconds: FloatArray | None = None
    time_unit: str = "s"
    source: ModelSource | None = None
    inner_tensors: bool = False
    op_working_bytes: FloatArray | None = None
    resident_inputs: tuple[int, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    op_joules: FloatArray | None = None

    def __post_init__(self) -> None:
        self._keep_own()
        if self.objective not in OBJECTIVES:
            raise UnknownNameError("objective", self.objective, OBJECTIVES)
        if not isinstance(self.execution_model, ExecutionModel):
            raise InputError(
                f"execution model {self.execution_model!r} is none: give an object of "
                "core.execution_models, such as MaxLoad(samples_in_flight=1)"
            )
        self._check_model()
        check_limits(self.limits, is_load=isinstance(self.execution_model, MaxLoad))
        n_ops, shape = self.graph.n_ops, (self.units.n_groups, self.cluster.n_devices)
        if self.units.n_nodes != n_ops:
            raise CostError(f"units are of {self.units.n_nodes} ops, the graph has {n_ops}")
        if self.costs.seconds.shape != shape:
            raise CostError(f"costs have shape {self.costs.seconds.shape}, expected {shape}")
        if self.transfer_seconds is not None:
            self._check_transfer_seconds(self.transfer_seconds)
        for op, device in self.pins.items():
            if not (0 <= op < n_ops and 0 <= device < self.cluster.n_devices):
                raise InputError(f"pin op {op} -> device {device}: no such op or device")
        check_resident(self.graph, self.resident_inputs)
        check_working_bytes(self.graph, self.op_working_bytes, inner_tensors=self.inner_tensors)
        self._check_every_unit_has_a_device()
        self._check_replicas()
        if not isinstance(self.execution_model, Event):
            self.cluster.require_no_segment_limits(f"execution model '{self.execution_model.name}'")
        if not isinstance(self.execution_model, Event | MaxLoad | Sequential):
            what = f"execution model '{self.execution_model.name}'"
            instead = "use execution model 'event', 'max-load' or 'sequential'"
            require_own_processors(self.cluster.devices, what, instead)
        self._check_transfers_end()
        self._check_charges()

    @classmethod
    def of_ops(cls, graph: ComputationGraph, cluster: Cluster, costs: CostTable) -> Problem:
        """A problem whose units are single ops."""
        return cls(graph, cluster, costs, Grouping.identity(graph.n_ops))

    @classmethod
    def from_costs(
        cls,
        graph: Any,
        seconds: ArrayLike,
        links: tuple[ArrayLike, ArrayLike],
        *,
        memory: ArrayLike | None = None,
        devices: Sequence[str] | None = None,
        **others: Any,
    ) -> Problem:
        """A problem from plain arrays, every op a unit.

        Args:
            graph: one of ours, or a NetworkX ``DiGraph`` (see `core.costs.plain_graph`).
            seconds: of each op on each device, shape (n_ops, n_devices); inf where it cannot run.
            links: latency in the unit of `seconds` and bandwidth in bytes per such unit (see
                `time_unit`), each one number or an array of shape (n_devices, n_devices), from row
                to column; bandwidth 0 is no link.
            memory: bytes of each device, shape (n_devices,), or one number; None is no limit.
            devices: their names; None are ``device:0`` ...
            others: `host`, `streams`, `channels`, `pools` and `processors` of the cluster (see
                `core.costs`), `pins` by name, and fields of the problem. The execution model is
                max-load for throughput and event otherwise, unless `execution_model` is given.

        Raises:
            GraphError: the graph has a cycle, or is none, or has no op of a pin's name.
            CostError: `seconds` does not fit, or an op has no device.
            FieldError: another shape does not fit, or there is no such field.
            InputError: the objective and the execution model do not go together.
        """
        of_cluster, of_problem = plain_options(others, [item.name for item in fields(cls)])
        ops = plain_graph(graph)
        table = plain_numbers("seconds", seconds)
        if table.ndim != 2 or len(table) != ops.n_ops:
            raise CostError(
                f"seconds has shape {table.shape}, expected ({ops.n_ops}, number of devices)"
            )
        processors = of_cluster.pop("processors", {})
        cluster = plain_cluster(table.shape[1], links, memory, devices, **of_cluster)
        cluster = with_processors(cluster, processors)
        costs = CostTable(frozen_floats(table), source="given")
        chosen: dict[int, int] = {}
        for op, at in of_problem.pop("pins", {}).items():
            index = op_named(ops, op) if isinstance(op, str) else op
            device = cluster.device(at) if isinstance(at, str) else at
            if chosen.setdefault(index, device) != device:
                raise FieldError("pins", f"has op '{ops.op_names[index]}' on two devices")
        return cls(ops, cluster, costs, Grouping.identity(ops.n_ops), **of_problem, pins=chosen)

    def __repr__(self) -> str:
        """Sizes, devices, objective, execution model and constraints, without any array."""
        return _summary(self)

    @property
    def value_unit(self) -> str:
        """Unit of the value, `time_unit` or ``"J"`` of energy or ``"per run"`` of a price."""
        return {"energy": "J", "price": "per run"}.get(self.objective, self.time_unit)

    @cached_property
    def timed(self) -> Problem:
        """The same problem with time as its value, and without limits of `core.charges`."""
        if not self.limits and self.objective not in CHARGED:
            return self
        return replace(self, objective=timed_objective(self.objective), limits={})

    @cached_property
    def charges(self) -> Mapping[str, Charges]:
        """Charges of the objective, if it is not time, and of the limited quantities."""
        counted = [name for name in QUANTITIES if name in self.limits or name == self.objective]
        charged = [name for name in counted if name in self.limits or name in CHARGED]
        return {name: self.charges_of(name) for name in charged}

    def charges_of(self, quantity: str) -> Charges:
        """The charges of a quantity of `core.charges`."""
        return charges_of(quantity, self.cluster, self.costs.seconds, self.op_joules)

    def counts(self, quantity: str) -> bool:
        """True if the problem has what it takes to count a quantity."""
        has_table = quantity == "energy" and self.op_joules is not None
        return self.time_unit == "s" and (has_table or unknown(self.cluster, quantity) is None)

    @property
    def n_units(self) -> int:
        """Number of units."""
        return self.units.n_groups

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return self.cluster.n_devices

    @cached_property
    def unit_quotient(self) -> Quotient:
        """The graph of units, with the tensor of `graph` behind each of its tensors."""
        ops = with_resident_inputs(self.graph, self.resident_inputs)
        if self.units.is_identity and self.op_working_bytes is None:
            return ops
        besides, working = self.op_working_bytes, None
        if self.inner_tensors:
            working = working_bytes(ops.graph, self.units, besides)
        units = quotient(ops.graph, self.units, working)
        behind, is_of_graph = np.full(len(units.tensor_of), -1), units.tensor_of >= 0
        behind[is_of_graph] = ops.tensor_of[units.tensor_of[is_of_graph]]
        return Quotient(units.graph, frozen_ints(behind))

    @property
    def unit_graph(self) -> ComputationGraph:
        """The graph of units."""
        return self.unit_quotient.graph

    @cached_property
    def kept(self) -> Kept:
        """Bytes that devices keep for the units at all times."""
        return kept_of(self.unit_graph, self.execution_model, self.counted_weights)

    @property
    def kept_weights(self) -> Kept:
        """`kept` without the tensors of samples in flight."""
        return kept_of(self.unit_graph, EVENT, self.counted_weights)

    @cached_property
    def counted_weights(self) -> Csr:
        """Weights of the unit graph that count where each unit runs; rows are units.

        They are all weights of the unit. On devices that share weights they are those of which it
        holds the first op; not in training, where state changes, nor with replicas.
        """
        cluster = self.cluster
        is_once = cluster.shares_weights and self.objective != "training"
        if not is_once or any(device.replicas > 1 for device in cluster.devices):
            return self.unit_graph.op_weights
        ops = with_resident_inputs(self.graph, self.resident_inputs)
        return first_keepers(ops.graph, self.units)

    @cached_property
    def keeps_everything(self) -> bool:
        """True if every device can keep the entries of all units beside all other devices.

        Kept bytes then break no limit. Live tensors may still break one under `event`.
        """
        total, cluster = self.kept.total, self.cluster
        all_of = cluster.pooled(frozen_floats(np.full(self.n_devices, total)))
        return bool(total <= cluster.memory_bytes.min() and (all_of <= cluster.pool_bytes).all())

    @cached_property
    def unit_transfer_seconds(self) -> FloatArray | None:
        """`transfer_seconds` of the unit graph's tensors, shape (unit_graph.n_tensors,)."""
        if self.transfer_seconds is None:
            return None
        behind = self.unit_quotient.tensor_of
        seconds = np.zeros(len(behind))  # working bytes travel nowhere
        seconds[behind >= 0] = self.transfer_seconds[behind[behind >= 0]]
        return frozen_floats(seconds)

    @cached_property
    def pinned_device(self) -> IntArray:
        """Device that each unit is pinned to, -1 where free, shape (n_units,)."""
        pinned = np.full(self.n_units, -1, dtype=np.int64)
        for op, device in sorted(self.pins.items()):
            unit = int(self.units.group_of[op])
            if pinned[unit] not in (-1, device):
                raise InputError(
                    f"op '{self.graph.op_names[op]}' is pinned to "
                    f"'{self.cluster.devices[device].name}', but another op of its unit to "
                    f"'{self.cluster.devices[int(pinned[unit])].name}'; "
                    f"{unit_text(self.graph, self.units, unit)} moves as one: leave out a pin"
                )
            pinned[unit] = device
        return frozen_ints(pinned)

    @cached_property
    def allowed(self) -> BoolArray:
        """True where a unit may run by support and pins, shape (n_units, n_devices), bool."""
        pinned = self.pinned_device[:, None]
        here = (pinned < 0) | (pinned == np.arange(self.n_devices)[None, :])
        return frozen_bools(np.isfinite(self.costs.seconds) & here)

    @cached_property
    def colocation(self) -> Grouping:
        """Units -> colocation class; a free unit is a class of its own."""
        classes = colocation_of_groups(self.graph.op_colocation, self.units)
        free = np.arange(self.n_units) + int(classes.max(initial=-1)) + 1
        return Grouping.from_labels(np.where(classes >= 0, classes, free))

    @cached_property
    def allowed_by_class(self) -> BoolArray:
        """True where a colocation class may run, shape (colocation.n_groups, n_devices), bool."""
        allowed = np.ones((self.colocation.n_groups, self.n_devices), dtype=np.bool_)
        np.logical_and.at(allowed, self.colocation.group_of, self.allowed)
        return frozen_bools(allowed)

    @cached_property
    def gradient_bytes(self) -> FloatArray:
        """Bytes of each unit's tensors that update ops read (gradients), shape (n_units,)."""
        graph, readers = self.graph, self.graph.tensor_consumers
        read_by_update = np.zeros(graph.n_tensors, dtype=np.bool_)
        read_by_update[readers.row_of_each()[graph.op_phases[readers.indices] == UPDATE]] = True
        producers = graph.tensor_producers
        made = read_by_update & (producers >= 0) & (graph.op_phases[producers] != UPDATE)
        units = self.units.group_of[producers[made]]
        return frozen_floats(np.bincount(units, graph.tensor_bytes[made], self.n_units))

    @cached_property
    def exchange_seconds(self) -> FloatArray:
        """Seconds per sample in which members of a group exchange gradients, (n_units, n_devices).

        After every round of r samples, one for each member, a ring all-reduce: each member sends
        2 (r - 1) / r of the bytes and receives as many, which max-load adds. The partitioner of
        PipeDream (Narayanan et al., SOSP 2019) counts the same.
        """
        rates = np.zeros(self.n_devices)
        for at, device in enumerate(self.cluster.devices):
            r, bandwidth = device.replicas, device.replica_bandwidth
            if r > 1 and bandwidth is not None and device.pays_transfers:
                rates[at] = 4.0 * (r - 1) / r / bandwidth / r
        return frozen_floats(self.gradient_bytes[:, None] * rates[None, :])

    def with_samples_in_flight(self, samples: Samples) -> Problem:
        """The problem with so many samples in flight.

        Args:
            samples: 0 counts weights only; ``"pipeline"`` is one for each device, since a pipeline
                of k stages holds up to k samples.

        Raises:
            InputError: samples below 0, or no device keeps any under the execution model.
        """
        model = self.execution_model
        if not isinstance(model, MaxLoad):
            raise InputError(
                f"{samples} samples in flight: execution model '{model.name}' has none; "
                "use objective throughput, or leave them out"
            )
        number = self.n_devices if samples == "pipeline" else samples
        return replace(self, execution_model=replace(model, samples_in_flight=number))

    def under(self, model: ExecutionModel) -> Problem:
        """The problem under another execution model, with an objective that the model values."""
        objective = self.objective
        if isinstance(model, MaxLoad):
            objective = "throughput" if objective == "latency" else objective
        elif objective == "throughput":
            objective = "latency"
        return replace(self, execution_model=model, objective=objective)

    def device_of_ops(self, device_of: IntArray) -> IntArray:
        """Devices of units -> devices of ops, shape (n_units,) -> (graph.n_ops,)."""
        return self.units.expand(device_of)

    def coarsened(self, grouping: Grouping) -> Problem:
        """The problem whose units are groups of this one's units; costs add up.

        Raises:
            GroupingError: the groups do not form an acyclic graph.
            CostError: the members of a group have no device in common.
        """
        joules = self.op_joules
        coarse = replace(
            self,
            units=self.units.then(grouping),
            costs=CostTable(frozen_floats(grouping.sums(self.costs.seconds)), self.costs.source),
            op_joules=None if joules is None else frozen_floats(grouping.sums(joules)),
        )
        coarse.unit_quotient  # noqa: B018 - raises where the grouping is not convex
        return coarse

    def _keep_own(self) -> None:
        """Copy values that callers may change later, when they have been read in part."""
        for name in ("pins", "limits"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        for name in ("transfer_seconds", "op_working_bytes", "op_joules"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, kept_floats(given))

    def _check_model(self) -> None:
        """Refuse an execution model whose value is not what the objective minimises."""
        is_load = isinstance(self.execution_model, MaxLoad)
        if self.objective == "throughput" and not is_load:
            raise FieldError(
                "execution_model",
                f"{self.execution_model!r} does not value objective throughput; give MaxLoad()",
            )
        if self.objective == "latency" and is_load:
            raise FieldError("objective", "latency is not valued by max-load; give throughput")
        if self.objective in CHARGED and not isinstance(self.execution_model, Event | Sequential):
            raise FieldError(
                "objective",
                f"{self.objective} is of one sample, under event or sequential, not under "
                f"'{self.execution_model.name}'; limit it instead",
            )

    def _check_charges(self) -> None:
        """Refuse quantities that are limited or minimised and cannot be counted."""
        if self.op_joules is not None:
            check_joules(self.op_joules, self.costs.seconds)
        for quantity in (*self.limits, *(name for name in CHARGED if name == self.objective)):
            if self.counts(quantity):
                continue
            if self.time_unit != "s":
                raise FieldError(
                    "limits" if quantity in self.limits else "objective",
                    f"{quantity} needs costs in seconds, and these are in {self.time_unit}",
                )
            require_known(self.cluster, quantity)

    def _check_transfer_seconds(self, seconds: FloatArray) -> None:
        if seconds.shape != (self.graph.n_tensors,):
            raise CostError(
                f"transfer_seconds has shape {seconds.shape}, expected ({self.graph.n_tensors},)"
            )
        if np.any(~np.isfinite(seconds) | (seconds < 0)):
            raise CostError("transfer_seconds must be finite and >= 0")
        if self.cluster.occupied.any():
            raise CostError(
                "transfer_seconds are those of any link, so that no link can occupy a device; "
                "leave out one of the two"
            )

    def _check_transfers_end(self) -> None:
        """Refuse transfers of infinite time, whose readers would seem never to become ready."""
        n_tensors, n_edges = self.graph.n_tensors, len(self.graph.tensor_consumers.indices)
        with np.errstate(over="ignore"):
            n_bytes = float(self.graph.tensor_bytes.sum())
            own = 0.0 if self.transfer_seconds is None else float(self.transfer_seconds.sum())
        if not max(n_bytes, own) < LONGEST:
            raise CostError("bytes or seconds of tensors add up to more than a number can hold")
        for link in self.cluster.links if self.transfer_seconds is None else ():
            if not n_tensors * link.latency_seconds + n_bytes / link.bandwidth < LONGEST:
                raise CostError(
                    f"link {link.source} -> {link.destination}: transfers over {link.bandwidth} "
                    f"B/s with {link.latency_seconds} s each take longer than a number can hold"
                )
        for device in self.cluster.devices:
            per_tensor = device.cut_seconds + device.layout_seconds
            per_byte = device.cut_seconds_per_byte + device.layout_seconds_per_byte
            cuts = n_edges * (per_tensor + n_bytes * per_byte)
            if not self.n_units * float(device.dispatch_seconds) + float(cuts) < LONGEST:
                raise CostError(
                    f"device '{device.name}': dispatch and cuts take longer than a number can hold"
                )

    def _check_replicas(self) -> None:
        groups = [device for device in self.cluster.devices if device.replicas > 1]
        if not groups:
            return
        if not isinstance(self.execution_model, MaxLoad):
            self.cluster.require_single_devices(f"execution model '{self.execution_model.name}'")
        if (self.graph.op_phases == FORWARD).all():
            return
        name = groups[0].name
        if not self.gradient_bytes.any():
            raise InputError(
                f"device '{name}' with replicas exchanges gradients when training, but the graph "
                "does not say which tensors are gradients (no update op reads one); read the "
                "training step with its optimizer, or place without replicas"
            )
        for device in groups:
            if device.replica_bandwidth is None:
                raise InputError(
                    f"device '{device.name}' with replicas exchanges gradients when training, but "
                    "nothing tells how fast; give its replica_bandwidth, or place without replicas"
                )

    def _check_every_unit_has_a_device(self) -> None:
        nowhere = np.flatnonzero(~np.isfinite(self.costs.seconds).any(axis=1))
        if len(nowhere):
            op, *others = self.units.members.row(int(nowhere[0])).tolist()
            unit = f", with {len(others)} more in its unit," if others else ""
            raise CostError(
                f"op '{self.graph.op_names[op]}' ({self.graph.op_kinds[op]}){unit} has no device: "
                f"{', '.join(self.cluster.device_names)} cannot run it; add a device that can"
            )


def _summary(problem: Problem) -> str:
    """Ops, units, devices, objective, execution model and constraints, as `print` shows them."""
    graph, cluster = problem.graph, problem.cluster
    lines = [
        f"Problem: {graph.n_ops} ops in {problem.n_units} units, {graph.n_tensors} tensors, "
        f"{problem.n_devices} devices",
        f"objective    {problem.objective} under '{problem.execution_model.name}', in "
        f"{problem.value_unit}",
        f"devices      {_listed(list(map(_device, cluster.devices)))}; host '{cluster.host}'",
    ]
    if cluster.pools:
        pools = [f"{name} ({format_bytes(size)})" for name, size in cluster.pools.items()]
        lines.append(f"pools        {_listed(pools)}")
    if problem.source is not None:
        lines.insert(1, f"model        {problem.source.path}")
    if problem.pins:
        names = cluster.device_names
        pins = [f"{graph.op_names[op]}={names[at]}" for op, at in sorted(problem.pins.items())]
        lines.append(f"pins         {_listed(pins)}")
    together = problem.n_units - problem.colocation.n_groups
    if together:
        lines.append(f"colocation   {problem.colocation.n_groups} classes of units")
    if problem.resident_inputs:
        lines.append(f"resident     {len(problem.resident_inputs)} inputs")
    if problem.limits:
        limits = [f"{name} <= {amount_text(most, name)}" for name, most in problem.limits.items()]
        lines.append(f"limits       {_listed(limits)}")
    return "\n".join(lines)


def _device(device: Device) -> str:
    limit = device.memory_bytes
    known = [] if math.isinf(limit) else [format_bytes(limit)]
    known += [] if device.pool is None else [f"pool {pools_text(device.pool)}"]
    known += [] if device.max_segments is None else [f"segments <= {device.max_segments}"]
    known += [] if device.max_segment_ops is None else [f"segment ops <= {device.max_segment_ops}"]
    return f"{device.name} ({', '.join(known)})" if known else device.name


def _listed(texts: list[str]) -> str:
    more = len(texts) - _MOST_SHOWN
    return ", ".join(texts[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
