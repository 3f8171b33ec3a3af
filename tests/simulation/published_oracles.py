"""Slow, obvious references of `max-load`, `subgraph`, `subgraph-ip` and `placeto`.

They follow the definitions word by word and import nothing of the simulator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from simulation.oracle import is_too_full, weights_counted

from placewright.core.execution_models import MaxLoad, SubgraphIP, splits_phases
from placewright.core.graph import UPDATE
from placewright.core.placement import Placement
from placewright.core.problem import Problem


def is_legal(problem: Problem, device_of: list[int]) -> bool:
    """Support, pins and colocation."""
    home: dict[int, int] = {}
    for unit, device in enumerate(device_of):
        group = int(problem.colocation.group_of[unit])
        if not problem.allowed[unit, device] or home.setdefault(group, device) != device:
            return False
    return True


def weights_of(problem: Problem, device_of: list[int], device: int) -> float:
    """Bytes of the distinct weights of a device's units."""
    mine = [unit for unit, home in enumerate(device_of) if home == device]
    held = {w for unit in mine for w in weights_counted(problem, unit)}
    return sum(float(problem.unit_graph.weight_bytes[weight]) for weight in sorted(held))


@dataclass
class MaxLoadReference:
    """Loads of one placement, one device after the other."""

    problem: Problem
    placement: Placement

    def __post_init__(self) -> None:
        self.graph, self.cluster = self.problem.unit_graph, self.problem.cluster
        self.device_of = self.placement.device_of.tolist()
        self.host = self.cluster.host_endpoint
        self.ways = {}  # (tensor, target) -> hops
        for tensor in range(self.graph.n_tensors):
            for target in self.targets(tensor):
                self.ways[tensor, target] = self.way(self.source(tensor), target)

    def source(self, tensor: int) -> int:
        producer = int(self.graph.tensor_producers[tensor])
        return self.device_of[producer] if producer >= 0 else self.host

    def targets(self, tensor: int) -> list[int]:
        readers = self.graph.tensor_consumers.row(tensor).tolist()
        found = {self.device_of[reader] for reader in readers}
        if self.graph.tensor_is_output[tensor]:
            found.add(self.host)
        return sorted(found - {self.source(tensor)})

    def way(self, source: int, target: int) -> list[tuple[int, int]] | None:
        linked = self.cluster.link_channel >= 0
        if linked[source, target]:
            return [(source, target)]
        if linked[source, self.host] and linked[self.host, target]:
            return [(source, self.host), (self.host, target)]
        return None

    def hop_seconds(self, tensor: int, hop: tuple[int, int]) -> float:
        if self.problem.unit_transfer_seconds is not None:
            return float(self.problem.unit_transfer_seconds[tensor])
        size = float(self.graph.tensor_bytes[tensor])
        per_byte = float(self.cluster.link_seconds_per_byte[hop])
        return float(self.cluster.link_latency[hop]) + size * per_byte

    def phase_of(self, unit: int) -> int:
        return int(splits_phases(self.problem.execution_model) and self.graph.op_phases[unit] > 0)

    def tensors_of(self, phase: int) -> list[int]:
        makers = self.graph.tensor_producers.tolist()
        return [t for t, op in enumerate(makers) if (self.phase_of(op) if op >= 0 else 0) == phase]

    def load(self, device: int, phase: int) -> float:
        spec = self.cluster.devices[device]
        mine = [u for u, home in enumerate(self.device_of) if home == device]
        compute = sum(
            float(self.problem.costs.seconds[unit, device]) / spec.streams / spec.replicas
            for unit in mine
            if self.phase_of(unit) == phase
        )
        moved = 0.0
        for tensor in self.tensors_of(phase) if spec.pays_transfers else []:
            if device in self.targets(tensor):
                moved += self.hop_seconds(tensor, self.ways[tensor, device][-1])
            elif self.source(tensor) == device:
                firsts = [self.ways[tensor, target][0] for target in self.targets(tensor)]
                moved += max((self.hop_seconds(tensor, hop) for hop in firsts), default=0.0)
        moved = (moved + self.exchange(device, phase)) / spec.replicas
        return max(compute, moved) if spec.overlaps_transfers else compute + moved

    def exchange(self, device: int, phase: int) -> float:
        """Seconds of one exchange of the gradients made on a device: each of r members sends, and
        receives, 2 (r - 1) chunks of an r-th of the bytes."""
        spec, problem = self.cluster.devices[device], self.problem
        if spec.replicas == 1 or not spec.pays_transfers or spec.replica_bandwidth is None:
            return 0.0
        graph, phases = problem.graph, problem.graph.op_phases.tolist()
        moved = 0.0
        for tensor, maker in enumerate(graph.tensor_producers.tolist()):
            readers = graph.tensor_consumers.row(tensor).tolist()
            if maker < 0 or phases[maker] == UPDATE:
                continue
            unit = int(problem.units.group_of[maker])
            is_here = self.device_of[unit] == device and self.phase_of(unit) == phase
            if is_here and any(phases[reader] == UPDATE for reader in readers):
                chunk = float(graph.tensor_bytes[tensor]) / spec.replicas
                moved += 2 * (2 * (spec.replicas - 1)) * chunk
        return moved / spec.replica_bandwidth

    def channel_load(self, name: str, phase: int) -> float:
        index = self.cluster.endpoint_index
        hops = {
            (index[link.source], index[link.destination])
            for link in self.cluster.links
            if link.channel == name
        }
        return sum(
            self.hop_seconds(tensor, hop)
            for tensor in self.tensors_of(phase)
            for target in self.targets(tensor)
            for hop in self.ways[tensor, target]
            if hop in hops
        )

    def processor_loads(self, phase: int) -> list[float]:
        """Of each processor: its devices one after the other."""
        of: dict[str, list[float]] = {}
        for device, spec in enumerate(self.cluster.devices):
            for name in spec.processors or (spec.name,):
                of.setdefault(name, []).append(self.load(device, phase))
        return [sum(loads) for loads in of.values()]

    def memory(self, device: int) -> float:
        total = weights_of(self.problem, self.device_of, device)
        model = self.problem.execution_model
        samples = model.samples_in_flight if isinstance(model, MaxLoad) else 0
        for tensor in range(self.graph.n_tensors):
            readers = self.graph.tensor_consumers.row(tensor).tolist()
            ops = [*readers, int(self.graph.tensor_producers[tensor])]
            if any(op >= 0 and self.device_of[op] == device for op in ops):
                total += samples * float(self.graph.tensor_bytes[tensor])
        return total

    def value(self) -> float:
        devices = range(self.problem.n_devices)
        if not is_legal(self.problem, self.device_of) or None in self.ways.values():
            return math.inf
        if is_too_full(self.cluster, [self.memory(d) for d in devices]):
            return math.inf
        names = sorted({link.channel for link in self.cluster.links if link.channel is not None})
        return sum(
            max(self.processor_loads(phase) + [self.channel_load(name, phase) for name in names])
            for phase in ((0, 1) if splits_phases(self.problem.execution_model) else (0,))
        )


@dataclass
class SubgraphReference:
    """Latency with contiguous pieces of accelerators as single tasks."""

    problem: Problem
    placement: Placement

    def __post_init__(self) -> None:
        self.graph = self.problem.unit_graph
        self.device_of = self.placement.device_of.tolist()
        self.edges = [
            (int(self.graph.tensor_producers[tensor]), reader)
            for tensor in range(self.graph.n_tensors)
            for reader in self.graph.tensor_consumers.row(tensor).tolist()
            if self.graph.tensor_producers[tensor] >= 0
        ]

    def is_accelerator(self, device: int) -> bool:
        return bool(self.problem.cluster.devices[device].pays_transfers)

    def block_of(self, unit: int) -> tuple[int, int]:
        """(device, piece) of a unit on an accelerator, (-1, unit) of one on a CPU."""
        device = self.device_of[unit]
        return (device, self.piece(unit)) if self.is_accelerator(device) else (-1, unit)

    def piece(self, unit: int) -> int:
        """Pieces of this accelerator that some path to the unit has left for good."""
        home, most = self.device_of[unit], 0
        for before, after in self.edges:
            if after != unit:
                continue
            if self.device_of[before] == home:
                most = max(most, self.piece(before))
            for ancestor in self.ancestors(before) if self.device_of[before] != home else ():
                if self.device_of[ancestor] == home:
                    most = max(most, self.piece(ancestor) + 1)
        return most

    def ancestors(self, unit: int) -> set[int]:
        found: set[int] = set()
        for before, after in self.edges:
            if after == unit:
                found |= {before} | self.ancestors(before)
        return found

    def seconds_of(self, block: tuple[int, int], members: list[int]) -> float:
        total = sum(float(self.problem.costs.seconds[u, self.device_of[u]]) for u in members)
        transfer = self.problem.unit_transfer_seconds
        for tensor in range(self.graph.n_tensors) if block[0] >= 0 else ():
            producer = int(self.graph.tensor_producers[tensor])
            readers = self.graph.tensor_consumers.row(tensor).tolist()
            inside = [reader in members for reader in readers]
            enters = producer >= 0 and producer not in members and any(inside)
            leaves = producer in members and not all(inside)
            if (enters or leaves) and transfer is not None:
                total += float(transfer[tensor])
        return total

    def value(self) -> float:
        problem = self.problem
        if not is_legal(problem, self.device_of):
            return math.inf
        devices = range(problem.n_devices)
        if is_too_full(problem.cluster, [weights_of(problem, self.device_of, d) for d in devices]):
            return math.inf
        block_of = [self.block_of(unit) for unit in range(problem.n_units)]
        model = problem.execution_model
        serial = isinstance(model, SubgraphIP)
        most = model.per_accelerator if isinstance(model, SubgraphIP) else 1
        if serial and most > 0 and any(d >= 0 and n >= most for d, n in block_of):
            return math.inf
        before = {b: {block_of[u] for u, v in self.edges if block_of[v] == b} for b in block_of}
        for block, others in before.items():
            others.discard(block)
            if serial and block[0] >= 0 and block[1] > 0:
                others.add((block[0], block[1] - 1))
        members = {b: [u for u, x in enumerate(block_of) if x == b] for b in before}
        finish: dict[tuple[int, int], float] = {}
        while len(finish) < len(before):
            free = [b for b in before if b not in finish and before[b] <= set(finish)]
            if not free:
                return math.inf  # pieces need each other
            for block in free:
                begin = max((finish[other] for other in before[block]), default=0.0)
                finish[block] = begin + self.seconds_of(block, members[block])
        return max(finish.values())


@dataclass
class PlacetoReference:
    """The published event simulator, one event for each reader, in microseconds.

    Events of an instant: a reader learns of an input (by maker, then reader), a bus looks at its
    queue, a device looks at its queue.
    """

    problem: Problem
    placement: Placement
    begin: dict[int, float] = field(default_factory=dict)
    events: list[tuple[float, str, tuple[int, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        graph = self.problem.unit_graph
        self.device_of = self.placement.device_of.tolist()
        devices = range(self.problem.n_devices)
        self.queue: dict[tuple[str, int], list[tuple[float, tuple[int, ...]]]] = {
            (kind, device): [] for kind in ("2 bus", "3 device") for device in devices
        }
        self.looks: set[tuple[str, int]] = set()  # those who look again at some time
        # (maker, reader) -> tensor: one for each pair, the last
        self.read: dict[tuple[int, int], int] = {}
        for tensor, maker in enumerate(graph.tensor_producers.tolist()):
            for reader in graph.tensor_consumers.row(tensor).tolist() if maker >= 0 else ():
                self.read[maker, reader] = tensor
        self.lacks = {unit: {m for m, r in self.read if r == unit} for unit in range(graph.n_ops)}

    def value(self) -> float:
        if not is_legal(self.problem, self.device_of):
            return math.inf
        for unit, lacking in self.lacks.items():
            if not lacking:
                self.put("3 device", self.device_of[unit], 0.0, (unit,))
        now = 0.0
        while self.events:
            now, kind, what = min(self.events)
            self.events.remove((now, kind, what))
            if kind == "1 input":
                maker, reader = what
                self.lacks[reader].remove(maker)
                if not self.lacks[reader]:
                    self.put("3 device", self.device_of[reader], now, (reader,))
            else:
                self.look(kind, what[0], now)
        return now * 1e-6

    def put(self, kind: str, device: int, at: float, what: tuple[int, ...]) -> None:
        """Queue something for a bus or device from a time on; whoever is idle looks then."""
        self.queue[kind, device].append((at, what))
        if (kind, device) not in self.looks:
            self.looks.add((kind, device))
            self.events.append((at, kind, (device,)))

    def look(self, kind: str, device: int, now: float) -> None:
        queue = self.queue[kind, device]
        if not queue:
            self.looks.remove((kind, device))
        elif queue[0][0] > now:
            self.events.append((queue[0][0], kind, (device,)))
        elif kind == "2 bus":
            tensor, *readers = queue.pop(0)[1]
            arrival = now + float(self.problem.unit_graph.tensor_bytes[tensor]) / 7600
            maker = int(self.problem.unit_graph.tensor_producers[tensor])
            self.events += [(arrival, "1 input", (maker, reader)) for reader in readers]
            self.events.append((arrival + 25, kind, (device,)))
        else:
            self.run(queue.pop(0)[1][0], device, now)

    def run(self, unit: int, device: int, now: float) -> None:
        self.begin[unit] = now
        cost = self.cost(unit)
        end = now + cost
        self.events.append((end + (5.7 if cost > 0 else 0.0), "3 device", (device,)))
        readers = [reader for maker, reader in sorted(self.read) if maker == unit]
        away = [reader for reader in readers if self.device_of[reader] != device]
        for reader in set(readers) - set(away):
            self.events.append((end, "1 input", (unit, reader)))
        for tensor in dict.fromkeys(self.read[unit, reader] for reader in away):
            to = [reader for reader in away if self.read[unit, reader] == tensor]
            self.put("2 bus", device, end, (tensor, *to))

    def cost(self, unit: int) -> float:
        """Microseconds, without the rounding of whole ones."""
        micros = float(self.problem.costs.seconds[unit, self.device_of[unit]]) * 1e6
        return float(round(micros)) if math.isclose(micros, round(micros)) else micros

    def peak(self, device: int) -> float:
        """Most bytes at the start of an op: outputs stay until 1 before their last reader's end."""
        graph, most = self.problem.unit_graph, 0.0
        for at in self.begin.values():
            alive = 0.0
            for tensor, maker in enumerate(graph.tensor_producers.tolist()):
                if maker < 0 or self.device_of[maker] != device:
                    continue
                readers = [reader for m, reader in self.read if m == maker]
                ends = [int(self.begin[r]) + int(self.cost(r)) - 1 for r in readers]
                if self.begin[maker] <= at <= max([self.begin[maker], *ends]):
                    alive += float(graph.tensor_bytes[tensor])
            most = max(most, alive)
        return most
