"""Rank dispatch, transfers and memory of execution model `event` in plain Python.

The compiled kernel is compared with it. It uses precomputed lists and `heapq`, and covers problems
with one stream per device, a link between any two endpoints, no overheads and no contention.
"""

from __future__ import annotations

import heapq

from placewright.core.problem import Problem
from placewright.errors import InputError
from placewright.simulation.layout import problem_arrays


class PlainSimulator:
    """Simulates placements of a problem; all lists are made once.

    Raises:
        InputError: the plain rules do not cover the problem.
    """

    def __init__(self, problem: Problem) -> None:
        graph, cluster = problem.unit_graph, problem.cluster
        arrays = problem_arrays(problem)
        linked = (cluster.link_channel >= 0).sum()
        n_ends = cluster.n_endpoints
        if (
            arrays.dispatch.any()
            or arrays.has_cuts
            or cluster.contention
            or linked < n_ends * (n_ends - 1)
        ):
            raise InputError("the plain simulator needs all links, no overheads, no contention")
        self.n_devices, self.host = problem.n_devices, cluster.host_endpoint
        self.n_channels = cluster.n_channels
        self.seconds = problem.costs.seconds.tolist()
        self.order = graph.topological_order.tolist()
        self.inputs = [graph.op_inputs.row(unit).tolist() for unit in range(graph.n_ops)]
        self.outputs = [graph.op_outputs.row(unit).tolist() for unit in range(graph.n_ops)]
        self.readers = [graph.tensor_consumers.row(t).tolist() for t in range(graph.n_tensors)]
        self.producer = graph.tensor_producers.tolist()
        self.is_output = graph.tensor_is_output.tolist()
        self.size = graph.tensor_bytes.tolist()
        self.latency = cluster.link_latency.tolist()
        self.per_byte = cluster.link_seconds_per_byte.tolist()
        self.channel = cluster.link_channel.tolist()

    def ranks(self, device_of: list[int]) -> list[float]:
        """Upward rank of each unit with the placement's own costs."""
        rank = [0.0] * len(device_of)
        for unit in reversed(self.order):
            device, longest = device_of[unit], 0.0
            for tensor in self.outputs[unit]:
                for reader in self.readers[tensor]:
                    path, other = rank[reader], device_of[reader]
                    if other != device:
                        size_seconds = self.size[tensor] * self.per_byte[device][other]
                        path += self.latency[device][other] + size_seconds
                    if path > longest:
                        longest = path
            rank[unit] = self.seconds[unit][device] + longest
        return rank

    def makespan(self, device_of: list[int]) -> tuple[float, list[float]]:
        """Seconds until the last event, and peak live bytes of each device."""
        run = _Run(self, device_of)
        return run.play(), run.peak


class _Run:
    """State of the simulation of one placement."""

    def __init__(self, model: PlainSimulator, device_of: list[int]) -> None:
        self.model, self.device_of = model, device_of
        self.rank = model.ranks(device_of)
        self.missing = [len(row) for row in model.inputs]
        self.ready: list[list[tuple[float, int]]] = [[] for _ in range(model.n_devices)]
        self.busy = [False] * model.n_devices
        self.events: list[tuple[float, int, int, int, int]] = []
        self.lines: list[list[tuple[int, int, int]]] = [[] for _ in range(model.n_channels)]
        self.users: dict[tuple[int, int], int] = {}
        self.usage = [0.0] * model.n_devices
        self.peak = [0.0] * model.n_devices
        self.changed = [0.0] * model.n_devices
        self.now = 0.0

    def play(self) -> float:
        """Handle the events in order of time."""
        for unit, missing in enumerate(self.missing):
            if missing == 0:
                heapq.heappush(self.ready[self.device_of[unit]], (-self.rank[unit], unit))
        for tensor, producer in enumerate(self.model.producer):
            if producer < 0:
                self.hand_on(tensor, self.model.host, 0.0)
        now = 0.0
        while True:
            while self.events and self.events[0][0] == now:
                _, unit, tensor, source, target = heapq.heappop(self.events)
                if tensor < 0:
                    self.end_unit(unit, now)
                else:
                    self.arrive(tensor, source, target, now)
            self.begin(now)
            if not self.events:
                break
            now = self.now = self.events[0][0]
        self.peak = [max(pair) for pair in zip(self.peak, self.usage, strict=True)]
        return now

    def begin(self, now: float) -> None:
        """Start the ready unit of highest rank on every idle device."""
        for device, ready in enumerate(self.ready):
            if ready and not self.busy[device]:
                unit = heapq.heappop(ready)[1]
                self.busy[device] = True
                for tensor in self.model.outputs[unit]:
                    self.use(device, self.model.size[tensor])
                end = now + self.model.seconds[unit][device]
                heapq.heappush(self.events, (end, unit, -1, device, device))

    def end_unit(self, unit: int, now: float) -> None:
        """Free the device, release the inputs and pass on the outputs."""
        device = self.device_of[unit]
        self.busy[device] = False
        for tensor in self.model.outputs[unit]:
            self.hand_on(tensor, device, now)
        for tensor in self.model.inputs[unit]:
            self.release(tensor, device)

    def hand_on(self, tensor: int, source: int, now: float) -> None:
        """Wake the readers on this endpoint, and queue a transfer for each other endpoint."""
        model, counts = self.model, dict[int, int]()
        for reader in model.readers[tensor]:
            device = self.device_of[reader]
            counts[device] = counts.get(device, 0) + 1
            if device == source:
                self.wake(reader)
        if model.is_output[tensor]:
            counts[model.host] = counts.get(model.host, 0) + 1
        self.users[tensor, source] = counts.pop(source, 0) + len(counts)
        if model.is_output[tensor] and source != model.host:
            self.users[tensor, source] += 1  # an output stays where it was made
        for target, readers in counts.items():
            self.users[tensor, target] = readers
            line = self.lines[model.channel[source][target]]
            line.append((tensor, source, target))
            if len(line) == 1:
                self.begin_transfer(tensor, source, target, now)
        if self.users[tensor, source] == 0:
            self.use(source, -model.size[tensor])

    def begin_transfer(self, tensor: int, source: int, target: int, now: float) -> None:
        """Put a tensor on its channel."""
        model = self.model
        self.use(target, model.size[tensor])
        size_seconds = model.size[tensor] * model.per_byte[source][target]
        end = now + (model.latency[source][target] + size_seconds)
        heapq.heappush(self.events, (end, model.producer[tensor], tensor, source, target))

    def arrive(self, tensor: int, source: int, target: int, now: float) -> None:
        """Start the next transfer of the channel, and wake the readers."""
        line = self.lines[self.model.channel[source][target]]
        line.pop(0)
        if line:
            following, start, stop = line[0]
            self.begin_transfer(following, start, stop, now)
        self.release(tensor, source)
        for reader in self.model.readers[tensor]:
            if self.device_of[reader] == target:
                self.wake(reader)

    def wake(self, unit: int) -> None:
        """Count an input of a unit that has arrived."""
        self.missing[unit] -= 1
        if self.missing[unit] == 0:
            heapq.heappush(self.ready[self.device_of[unit]], (-self.rank[unit], unit))

    def release(self, tensor: int, endpoint: int) -> None:
        """Count a finished user of a copy."""
        self.users[tensor, endpoint] -= 1
        if self.users[tensor, endpoint] == 0:
            self.use(endpoint, -self.model.size[tensor])

    def use(self, endpoint: int, size: float) -> None:
        """Count bytes of a device; at one instant, ends count before starts."""
        if endpoint >= self.model.n_devices:
            return
        if self.now > self.changed[endpoint]:
            self.peak[endpoint] = max(self.peak[endpoint], self.usage[endpoint])
            self.changed[endpoint] = self.now
        self.usage[endpoint] += size
