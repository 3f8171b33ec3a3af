"""A slow, obvious reference of execution model `event`; it imports nothing of the simulator."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from placewright.core.cluster import Cluster
from placewright.core.placement import Placement
from placewright.core.problem import Problem


def is_too_full(cluster: Cluster, peaks: list[float]) -> bool:
    """A device is over its limit, or the devices of a pool together over that of the pool."""
    taken = dict.fromkeys(cluster.pools, 0.0)
    for device, peak in zip(cluster.devices, peaks, strict=True):
        if peak > device.memory_bytes:
            return True
        whole = {device.pool: 1.0} if isinstance(device.pool, str) else device.pool or {}
        for name, share in whole.items():
            taken[name] += device.replicas * peak * share
    return any(taken[name] > size for name, size in cluster.pools.items())


def weights_counted(problem: Problem, unit: int) -> set[int]:
    """Weights that count where a unit runs: its own, or those whose first op it holds."""
    own = set(problem.unit_graph.op_weights.row(unit).tolist())
    apart = any(device.replicas > 1 for device in problem.cluster.devices)
    if not problem.cluster.shares_weights or problem.objective == "training" or apart:
        return own
    graph, inputs = problem.graph, sorted(problem.resident_inputs)
    n_weights = len(graph.weight_bytes)
    counted = set()
    for weight in own:
        if weight < n_weights:
            ops = [op for op in range(graph.n_ops) if weight in graph.op_weights.row(op)]
        else:
            ops = graph.tensor_consumers.row(inputs[weight - n_weights]).tolist()
        if problem.units.group_of[min(ops)] == unit:
            counted.add(weight)
    return counted


@dataclass
class Copy:
    """Bytes of a tensor on one device, from `start` until `end`."""

    device: int
    size: float
    start: float
    users: int = 0
    end: float = math.inf


@dataclass
class Sending:
    """A tensor on its way: the hops that are left, and the copy it makes."""

    tensor: int
    target: int
    hops: list[tuple[int, int]]
    readers: list[int]
    copy: Copy | None = None


@dataclass
class Reference:
    """One placement through time."""

    problem: Problem
    placement: Placement
    start: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    segment: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph, self.cluster = self.problem.unit_graph, self.problem.cluster
        self.device_of = self.placement.device_of.tolist()
        self.events: list[tuple[float, int, int, int, object]] = []
        self.copies: list[Copy] = []
        self.copy_at: dict[tuple[int, int], Copy] = {}
        self.busy_until: dict[int, float] = {}  # of each channel: first come, first served
        self.ready_at: dict[int, float] = {}
        self.missing = [len(self.graph.op_inputs.row(u)) for u in range(self.graph.n_ops)]
        self.open_segment: dict[int, int] = {}
        self.ops_in: dict[int, int] = {}  # of each segment
        self.n_segments = 0
        self.paid: set[tuple[int, int]] = set()
        self.read_on: set[tuple[int, int]] = set()  # tensor, device
        self.is_cut_off = False
        self.rank = self.ranks()
        given = self.placement.order
        self.lists = (
            None
            if given is None
            else {
                d: [u for u in given.tolist() if self.device_of[u] == d]
                for d in range(self.problem.n_devices)
            }
        )

    def value(self) -> float:
        """Makespan; inf when a constraint is broken."""
        if not self.is_legal():
            return math.inf
        last = self.play()
        over = is_too_full(self.cluster, self.peaks()) or self.has_too_many_segments()
        return math.inf if self.is_cut_off or over else last

    def has_too_many_segments(self) -> bool:
        for device, spec in enumerate(self.cluster.devices):
            mine = {s for unit, s in self.segment.items() if self.device_of[unit] == device}
            if spec.max_segments is not None and len(mine) > spec.max_segments:
                return True
        return False

    def makes_too_long(self, unit: int, device: int) -> bool:
        most = self.cluster.devices[device].max_segment_ops
        if most is None or device not in self.open_segment:
            return False
        ops = self.problem.units.group_of.tolist().count(unit)
        return self.ops_in[self.open_segment[device]] + ops > most

    def is_legal(self) -> bool:
        device_of_class: dict[int, int] = {}
        for unit, device in enumerate(self.device_of):
            group = int(self.problem.colocation.group_of[unit])
            if not self.problem.allowed[unit, device]:
                return False
            if device_of_class.setdefault(group, device) != device:
                return False
        return True

    def ranks(self) -> dict[int, float]:
        rank: dict[int, float] = {}
        for unit in self.graph.topological_order.tolist()[::-1]:
            longest = 0.0
            for tensor in self.graph.op_outputs.row(unit).tolist():
                for reader in self.graph.tensor_consumers.row(tensor).tolist():
                    way = self.route(self.device_of[unit], self.device_of[reader])
                    path = (
                        math.inf
                        if way is None
                        else sum(self.hop_seconds(tensor, *hop) for hop in way)
                    )
                    longest = max(longest, rank[reader] + path)
            rank[unit] = float(self.problem.costs.seconds[unit, self.device_of[unit]]) + longest
        return rank

    def route(self, source: int, target: int) -> list[tuple[int, int]] | None:
        linked, host = self.cluster.link_channel >= 0, self.cluster.host_endpoint
        if source == target:
            return []
        if linked[source, target]:
            return [(source, target)]
        if linked[source, host] and linked[host, target]:
            return [(source, host), (host, target)]
        return None

    def hop_seconds(self, tensor: int, source: int, target: int) -> float:
        own = self.problem.unit_transfer_seconds
        if own is not None:
            return float(own[tensor])
        return (
            0.0
            if self.occupant(source, target) != "nobody"
            else self.copied(tensor, source, target)
        )

    def occupant(self, source: int, target: int) -> str:
        names = list(self.cluster.endpoint_index)
        ends = names[source], names[target]
        found = [one for one in self.cluster.links if (one.source, one.destination) == ends]
        return (found[0].occupies or "nobody") if found else "nobody"

    def copied(self, tensor: int, source: int, target: int) -> float:
        size = float(self.graph.tensor_bytes[tensor])
        per_byte = float(self.cluster.link_seconds_per_byte[source, target])
        return float(self.cluster.link_latency[source, target]) + size * per_byte

    def copies_of(self, unit: int, device: int) -> float:
        """Seconds in which the device copies what the unit reads first there, and what it makes."""
        seconds, graph = 0.0, self.graph
        for tensor in graph.op_inputs.row(unit).tolist():
            producer = int(graph.tensor_producers[tensor])
            home = self.device_of[producer] if producer >= 0 else device
            is_first = (tensor, device) not in self.read_on
            self.read_on.add((tensor, device))
            if home != device and is_first and self.occupant(home, device) in ("receiver", "both"):
                seconds += self.copied(tensor, home, device)
        for tensor in graph.op_outputs.row(unit).tolist():
            readers = graph.tensor_consumers.row(tensor).tolist()
            for target in sorted({self.device_of[reader] for reader in readers} - {device}):
                if self.occupant(device, target) in ("sender", "both"):
                    seconds += self.copied(tensor, device, target)
        return seconds

    def play(self) -> float:
        for tensor in range(self.graph.n_tensors):
            if self.graph.tensor_producers[tensor] < 0:
                self.hand_on(tensor, self.cluster.host_endpoint, 0.0)
        now = 0.0
        while True:
            while self.events and self.events[0][0] == now:
                what = heapq.heappop(self.events)[4]
                if isinstance(what, Sending):
                    self.end_hop(what, now)
                else:
                    self.end_unit(int(str(what)), now)
            self.begin_all(now)
            if not self.events:
                return now
            now = self.events[0][0]

    def begin_all(self, now: float) -> None:
        """Begin one unit after the other, each the first of all that could begin now."""
        while True:
            found = []
            for device, spec in enumerate(self.cluster.devices):
                mine = [u for u, d in enumerate(self.device_of) if d == device]
                running = [u for u in mine if u in self.start and u not in self.end]
                unit = self.next_unit(device, mine)
                is_full = len(running) == spec.streams or self.is_held(device, unit)
                if unit is not None and not is_full:
                    found.append((*self.turn(unit), device))
            if not found:
                return
            _, unit, device = min(found)
            self.begin(unit, device, now)

    def turn(self, unit: int) -> tuple[float, int]:
        """The unit with the least begins first, on devices that share processors."""
        if self.placement.order is not None:
            return self.placement.order.tolist().index(unit), unit
        if getattr(self.problem.execution_model, "dispatch", "rank") == "fifo":
            return self.ready_at.get(unit, 0.0), unit
        return -self.rank[unit], unit

    def processors(self, device: int) -> set[str]:
        spec = self.cluster.devices[device]
        return set(spec.processors or (spec.name,))

    def is_held(self, device: int, unit: int | None) -> bool:
        """Another device computes on a processor of this one, or has to before it, by the order."""
        for other, home in enumerate(self.device_of):
            if home == device or not self.processors(device) & self.processors(home):
                continue
            is_running = other in self.start and other not in self.end
            is_earlier = (
                self.placement.order is not None
                and unit is not None
                and other not in self.start
                and self.turn(other) < self.turn(unit)
            )
            if is_running or is_earlier:
                return True
        return False

    def next_unit(self, device: int, mine: list[int]) -> int | None:
        if self.lists is not None:
            later = [u for u in self.lists[device] if u not in self.start]
            return later[0] if later and self.missing[later[0]] == 0 else None
        ready = [u for u in mine if u not in self.start and self.missing[u] == 0]
        if getattr(self.problem.execution_model, "dispatch", "rank") == "fifo":
            return min(ready, key=lambda u: (self.ready_at.get(u, 0.0), u)) if ready else None
        return min(ready, key=lambda u: (-self.rank[u], u)) if ready else None

    def begin(self, unit: int, device: int, now: float) -> None:
        spec, graph = self.cluster.devices[device], self.graph
        seconds = float(self.problem.costs.seconds[unit, device]) * self.factor(device)
        inputs = graph.op_inputs.row(unit).tolist()
        before = [int(graph.tensor_producers[t]) for t in inputs]
        after = [
            r for t in graph.op_outputs.row(unit) for r in graph.tensor_consumers.row(t).tolist()
        ]
        from_elsewhere = any(p >= 0 and self.device_of[p] != device for p in before)
        is_new = device not in self.open_segment or from_elsewhere
        if is_new or self.makes_too_long(unit, device):
            self.open_segment[device] = self.n_segments
            self.ops_in[self.n_segments] = 0
            self.n_segments += 1
            seconds += spec.dispatch_seconds
        segment = self.segment[unit] = self.open_segment[device]
        self.ops_in[segment] += self.problem.units.group_of.tolist().count(unit)
        for tensor, producer in zip(inputs, before, strict=True):
            if producer < 0 or self.segment[producer] == segment:
                continue
            if (tensor, segment) not in self.paid:
                self.paid.add((tensor, segment))
                size = float(graph.tensor_bytes[tensor])
                seconds += spec.cut_seconds + size * spec.cut_seconds_per_byte
                if graph.op_flops[producer] >= max(20 * size, 1e-300):
                    seconds += spec.layout_seconds + size * spec.layout_seconds_per_byte
        seconds += self.copies_of(unit, device)
        if any(self.device_of[r] != device for r in after):
            del self.open_segment[device]
        self.start[unit] = now
        for tensor in graph.op_outputs.row(unit).tolist():
            self.new_copy(tensor, device, now)
        heapq.heappush(self.events, (now + seconds, unit, -1, -1, unit))

    def factor(self, device: int) -> float:
        domain = self.cluster.devices[device].memory_domain
        factors = self.cluster.contention.get(domain or "")
        if not factors:
            return 1.0
        used = {d for d in self.device_of if self.cluster.devices[d].memory_domain == domain}
        return factors[min(len(used), len(factors)) - 1]

    def new_copy(self, tensor: int, device: int, now: float) -> Copy:
        copy = Copy(device, float(self.graph.tensor_bytes[tensor]), now)
        if device < self.problem.n_devices:
            self.copies.append(copy)
        self.copy_at[tensor, device] = copy
        return copy

    def hand_on(self, tensor: int, source: int, now: float) -> None:
        readers = self.graph.tensor_consumers.row(tensor).tolist()
        host = self.cluster.host_endpoint
        is_output = bool(self.graph.tensor_is_output[tensor])
        copy = self.copy_at.get((tensor, source)) or self.new_copy(tensor, source, now)
        here = [r for r in readers if self.device_of[r] == source]
        targets = list(dict.fromkeys(self.device_of[r] for r in readers))
        if is_output and host not in targets:
            targets.append(host)
        targets = [target for target in targets if target != source]
        copy.users = len(here) + len(targets) + is_output
        if copy.users == 0:
            copy.end = now
        self.arrived(here, now)
        for target in targets:
            way = self.route(source, target)
            if way is None:
                self.is_cut_off = True
                continue
            there = [r for r in readers if self.device_of[r] == target]
            self.queue(Sending(tensor, target, way, there), now)

    def queue(self, sending: Sending, now: float) -> None:
        hop, tensor, target = sending.hops[0], sending.tensor, sending.target
        begin, seconds = now, self.hop_seconds(tensor, *hop)
        if self.cluster.link_queues[hop]:
            channel = int(self.cluster.link_channel[hop])
            begin = max(now, self.busy_until.get(channel, 0.0))
            self.busy_until[channel] = begin + seconds
        if len(sending.hops) == 1:
            is_host = target == self.cluster.host_endpoint
            copy = self.new_copy(tensor, target, begin)
            stays = is_host and bool(self.graph.tensor_is_output[tensor])
            copy.users = len(sending.readers) + stays
        producer = int(self.graph.tensor_producers[tensor])
        heapq.heappush(self.events, (begin + seconds, producer, tensor, target, sending))

    def end_hop(self, sending: Sending, now: float) -> None:
        source, target = sending.hops.pop(0)
        producer = int(self.graph.tensor_producers[sending.tensor])
        home = self.device_of[producer] if producer >= 0 else self.cluster.host_endpoint
        if source == home:
            self.release(sending.tensor, source, now)
        if target != sending.target:
            self.queue(sending, now)
            return
        self.arrived(sending.readers, now)

    def arrived(self, readers: list[int], now: float) -> None:
        """An input of each reader is at its device; the last one makes it ready."""
        for reader in readers:
            self.missing[reader] -= 1
            self.ready_at[reader] = now

    def release(self, tensor: int, endpoint: int, now: float) -> None:
        copy = self.copy_at[tensor, endpoint]
        copy.users -= 1
        if copy.users == 0:
            copy.end = now

    def end_unit(self, unit: int, now: float) -> None:
        self.end[unit] = now
        device = self.device_of[unit]
        for tensor in self.graph.op_outputs.row(unit).tolist():
            self.hand_on(tensor, device, now)
        for tensor in self.graph.op_inputs.row(unit).tolist():
            self.release(tensor, device, now)

    def peaks(self) -> list[float]:
        """Resident weights plus the most bytes alive at one instant, per device."""
        result = []
        for device in range(self.problem.n_devices):
            held = {
                weight
                for unit in range(self.graph.n_ops)
                if self.device_of[unit] == device
                for weight in weights_counted(self.problem, unit)
            }
            resident = sum(float(self.graph.weight_bytes[weight]) for weight in sorted(held))
            mine = [copy for copy in self.copies if copy.device == device]
            alive = [sum(c.size for c in mine if c.start <= at.start < c.end) for at in mine]
            result.append(resident + max(alive, default=0.0))
        return result
