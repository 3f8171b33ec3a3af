"""A slow, obvious reference of streams; of the simulator it takes the list of segments alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from placewright.core.problem import Problem


@dataclass
class Job:
    """Something that a server does for one sample."""

    name: str
    server: tuple
    seconds: float
    needs: list[str] = field(default_factory=list)


class StreamReference:
    """Plays samples by looking at everything again after every event."""

    def __init__(self, problem: Problem, device_of: list[int], segments: list[tuple]) -> None:
        self.problem, self.device_of = problem, device_of
        self.graph, self.cluster = problem.unit_graph, problem.cluster
        self.host = self.cluster.host_endpoint
        self.segments = segments  # (device, units)
        self.segment_of = {u: i for i, (_, units) in enumerate(segments) for u in units}
        self.named = {
            int(self.cluster.link_channel[self.ends(link)])
            for link in self.cluster.links
            if link.channel is not None
        }
        self.jobs: list[Job] = []
        self.layout()

    def ends(self, link) -> tuple[int, int]:
        index = self.cluster.endpoint_index
        return index[link.source], index[link.destination]

    def hop(self, tensor: int, a: int, b: int) -> float:
        own = self.problem.unit_transfer_seconds
        if own is not None:
            return float(own[tensor])
        size = float(self.graph.tensor_bytes[tensor])
        per_byte = float(self.cluster.link_seconds_per_byte[a, b])
        return float(self.cluster.link_latency[a, b]) + size * per_byte

    def way(self, a: int, b: int) -> list[tuple[int, int]]:
        if self.cluster.link_channel[a, b] >= 0:
            return [(a, b)]
        return [(a, self.host), (self.host, b)]

    def source(self, tensor: int) -> int:
        producer = int(self.graph.tensor_producers[tensor])
        return self.host if producer < 0 else self.device_of[producer]

    def targets(self, tensor: int) -> list[int]:
        readers = self.graph.tensor_consumers.row(tensor).tolist()
        found = [self.device_of[r] for r in readers]
        if self.graph.tensor_is_output[tensor] and self.graph.tensor_producers[tensor] >= 0:
            found.append(self.host)
        return [t for t in dict.fromkeys(found) if t != self.source(tensor)]

    def pays(self, device: int) -> bool:
        return device < self.problem.n_devices and self.cluster.devices[device].pays_transfers

    def first_reader(self, tensor: int, device: int) -> int | None:
        readers = self.graph.tensor_consumers.row(tensor).tolist()
        here = [self.segment_of[r] for r in readers if self.device_of[r] == device]
        return min(here) if here else None

    def layout(self) -> None:
        """The jobs of a sample, by number of segment, receiving before computing."""
        tensors = range(self.graph.n_tensors)
        inputs = [t for t in tensors if self.graph.tensor_producers[t] < 0]
        sent = sum(
            max((self.hop(t, *self.way(self.host, d)[0]) for d in self.targets(t)), default=0.0)
            for t in inputs
        )
        if self.pays(self.host) and sent > 0:
            self.jobs.append(Job("entry", self.moving(self.host), sent))
        for t in inputs:
            self.hops(t, "entry")
        last: dict[int, str] = {}
        for i, (device, units) in enumerate(self.segments):
            self.segment(i, device, units, last)
            for t in tensors:
                if int(self.graph.tensor_producers[t]) in units:
                    self.hops(t, f"out {i}")
        arriving = [t for t in tensors if self.host in self.targets(t)]
        only = [t for t in arriving if self.first_reader(t, self.host) is None]
        seconds = sum(self.hop(t, *self.way(self.source(t), self.host)[-1]) for t in only)
        if self.pays(self.host) and seconds > 0:
            needs = [f"hop {t} {self.host}" for t in arriving]
            makers = [int(self.graph.tensor_producers[t]) for t in arriving]
            needs += [f"out {self.segment_of[maker]}" for maker in makers]
            self.jobs.append(Job("exit", self.moving(self.host), seconds, needs))
        self.resolve()

    def segment(self, i: int, device: int, units, last: dict[int, str]) -> None:
        """The jobs of one segment."""
        spec = self.cluster.devices[device]
        comes = goes = 0.0
        waits: list[str] = []
        for t in range(self.graph.n_tensors):
            producer = int(self.graph.tensor_producers[t])
            if device in self.targets(t) and self.first_reader(t, device) == i:
                comes += self.hop(t, *self.way(self.source(t), device)[-1])
            if device in self.targets(t) and self.reads(units, t):
                waits.append("entry" if producer < 0 else f"out {self.segment_of[producer]}")
                waits.append(f"hop {t} {device}")
            if producer in units:
                firsts = [self.hop(t, *self.way(device, d)[0]) for d in self.targets(t)]
                goes += max(firsts, default=0.0)
        goes += self.exchange(units, device)
        comes, goes = (comes, goes) if self.pays(device) else (0.0, 0.0)
        inner = sum(self.unit_seconds(i, units, u, device) for u in units)
        turn = [last[device]] if device in last else []
        last[device] = f"run {i}"
        if not spec.overlaps_transfers:
            total = comes + inner + goes
            self.jobs.append(Job(f"run {i}", ("device", device), total, waits + turn))
            return
        if comes > 0:
            self.jobs.append(Job(f"in {i}", self.moving(device), comes, waits))
            waits = [f"in {i}"]
        self.jobs.append(Job(f"run {i}", ("device", device), inner, waits + turn))
        if goes > 0:
            self.jobs.append(Job(f"out {i}", self.moving(device), goes, [f"run {i}"]))

    def resolve(self) -> None:
        """A need for what takes no job of its own means what comes before it."""
        names = {job.name for job in self.jobs}
        for job in self.jobs:
            needs: list[str] = []
            for need in job.needs:
                if need in names:
                    needs.append(need)
                elif need.startswith("out "):
                    needs.append("run " + need[4:])
                elif need.startswith("hop ") and f"{need} 0" in names:
                    needs.append(max(n for n in names if n.startswith(need + " ")))
            job.needs = needs

    def hops(self, tensor: int, after: str) -> None:
        for target in self.targets(tensor):
            before, number = after, 0
            for way in self.way(self.source(tensor), target):
                channel = int(self.cluster.link_channel[way])
                if channel in self.named:
                    name = f"hop {tensor} {target} {number}"
                    self.jobs.append(
                        Job(name, ("channel", channel), self.hop(tensor, *way), [before])
                    )
                    before, number = name, number + 1

    def moving(self, device: int) -> tuple:
        kind = "engine" if self.cluster.devices[device].overlaps_transfers else "device"
        return (kind, device)

    def reads(self, units, tensor: int) -> bool:
        return any(tensor in self.graph.op_inputs.row(u).tolist() for u in units)

    def exchange(self, units, device: int) -> float:
        r = self.cluster.devices[device].replicas
        return sum(float(self.problem.exchange_seconds[u, device]) for u in units) * r

    def unit_seconds(self, index: int, units, unit: int, device: int) -> float:
        spec = self.cluster.devices[device]
        seconds = float(self.problem.costs.seconds[unit, device]) / spec.streams
        factors = self.cluster.contention.get(spec.memory_domain or "")
        if factors:
            used = {
                d
                for d in self.device_of
                if self.cluster.devices[d].memory_domain == spec.memory_domain
            }
            members = sum(self.cluster.devices[d].replicas for d in used)
            seconds *= factors[min(members, len(factors)) - 1]
        if unit == units[0]:
            seconds += spec.dispatch_seconds
        for t in self.graph.op_inputs.row(unit).tolist():
            producer = int(self.graph.tensor_producers[t])
            before = [u for u in units[: list(units).index(unit)]]
            if producer < 0 or self.segment_of[producer] == index or self.reads(before, t):
                continue
            size = float(self.graph.tensor_bytes[t])
            seconds += spec.cut_seconds + size * spec.cut_seconds_per_byte
            if self.graph.op_flops[producer] >= max(20 * size, 1e-300):
                seconds += spec.layout_seconds + size * spec.layout_seconds_per_byte
        return seconds

    def play(self, samples: int, in_flight: int) -> list[dict[str, tuple[float, float]]]:
        """For each sample: job -> (begin, end); "" -> (entry, done)."""
        spans: list[dict[str, tuple[float, float]]] = [{} for _ in range(samples)]
        busy: dict[tuple, tuple[float, int, str]] = {}
        entry: list[float] = []
        now = 0.0
        while True:
            done = sum(len(s) == len(self.jobs) and self.ended(s, now) for s in spans)
            while len(entry) < samples and len(entry) - done < in_flight:
                entry.append(now)
            for n in range(len(entry)):
                for job in self.jobs:
                    r = 1
                    if job.server[0] != "channel":
                        r = self.cluster.devices[job.server[1]].replicas
                    server = (*job.server, n % r)
                    ready = all(x in spans[n] and spans[n][x][1] <= now for x in job.needs)
                    is_free = not any(self.at_odds(server, other) for other in busy)
                    if job.name not in spans[n] and ready and is_free:
                        spans[n][job.name] = (now, now + job.seconds)
                        busy[server] = (now + job.seconds, n, job.name)
            if not busy:
                break
            now = min(until for until, _, _ in busy.values())
            busy = {s: b for s, b in busy.items() if b[0] != now}
        for at, one in zip(entry, spans, strict=True):
            one[""] = (at, max(end for _, end in one.values()))
        return spans

    def at_odds(self, one: tuple, other: tuple) -> bool:
        """The same server, or devices with a common processor."""
        if one == other or not one[0] == other[0] == "device":
            return one == other
        specs = [self.cluster.devices[server[1]] for server in (one, other)]
        names = [set(spec.processors or (spec.name,)) for spec in specs]
        return one[1] != other[1] and bool(names[0] & names[1])

    def ended(self, spans: dict[str, tuple[float, float]], now: float) -> bool:
        return all(end <= now for _, end in spans.values())

    def peaks(self, spans: list[dict[str, tuple[float, float]]]) -> list[float]:
        """Bytes of tensors on each device, by adding up at every instant at which any begins."""
        kept: list[tuple[int, int, float, float, float]] = []
        for n, one in enumerate(spans):
            for t in range(self.graph.n_tensors):
                for device, start, stop in self.copies(t, one):
                    if device < self.problem.n_devices:
                        r = self.cluster.devices[device].replicas
                        size = float(self.graph.tensor_bytes[t])
                        kept.append((device, n % r, start, stop, size))
        most = [0.0] * self.problem.n_devices
        for device, member, begin, _, _ in kept:
            now = [
                size
                for d, m, start, stop, size in kept
                if (d, m) == (device, member) and (start <= begin < stop or start == begin == stop)
            ]
            most[device] = max(most[device], sum(now))
        return most

    def copies(self, tensor: int, one: dict[str, tuple[float, float]]):
        """(device, start, stop) of each copy of a tensor of one sample."""
        entry, done = one[""]
        producer = int(self.graph.tensor_producers[tensor])
        is_output = bool(self.graph.tensor_is_output[tensor])
        readers = self.graph.tensor_consumers.row(tensor).tolist()
        targets = self.targets(tensor)
        if producer < 0:
            start = stop = entry
            sent = one.get("entry", (entry, entry))[1]
        else:
            start, stop = self.unit_span(producer, one)
            index = self.segment_of[producer]
            sent = one.get(f"out {index}", one[f"run {index}"])[1]
        ends = [stop, *(self.unit_span(r, one)[1] for r in readers if r not in self.away(tensor))]
        ends += [sent] if targets else []
        ends += [one[f"hop {tensor} {d} 0"][1] for d in targets if f"hop {tensor} {d} 0" in one]
        yield self.source(tensor), start, done if is_output else max(ends)
        for device in targets:
            first = self.first_reader(tensor, device)
            if first is None:
                begin = one["exit"][0] if "exit" in one else done
            else:
                begin = one.get(f"in {first}", one[f"run {first}"])[0]
            hops = [name for name in one if name.startswith(f"hop {tensor} {device} ")]
            begin = min([begin, *(one[max(hops)][0] for _ in hops[:1])])
            ends = [self.unit_span(r, one)[1] for r in readers if self.device_of[r] == device]
            if is_output and device == self.host:
                ends.append(done)
            yield device, begin, max([begin, *ends])

    def away(self, tensor: int) -> list[int]:
        readers = self.graph.tensor_consumers.row(tensor).tolist()
        return [r for r in readers if self.device_of[r] != self.source(tensor)]

    def unit_span(self, unit: int, one: dict[str, tuple[float, float]]) -> tuple[float, float]:
        """Units follow each other within a segment, after what it receives there."""
        index = self.segment_of[unit]
        device, units = self.segments[index]
        at, begin = list(units).index(unit), one[f"run {index}"][0]
        seconds = [self.unit_seconds(index, units, u, device) for u in units]
        comes = 0.0
        if not self.cluster.devices[device].overlaps_transfers and self.pays(device):
            comes = sum(
                self.hop(t, *self.way(self.source(t), device)[-1])
                for t in range(self.graph.n_tensors)
                if device in self.targets(t) and self.first_reader(t, device) == index
            )
        return begin + comes + sum(seconds[:at]), begin + comes + sum(seconds[: at + 1])

    def load(self) -> float:
        """The largest load of a server per sample, from the jobs alone."""
        total: dict[tuple, float] = {}
        for job in self.jobs:
            r = 1
            if job.server[0] != "channel":
                r = self.cluster.devices[job.server[1]].replicas
            total[job.server] = total.get(job.server, 0.0) + job.seconds / r
            if job.server[0] == "device":
                spec = self.cluster.devices[job.server[1]]
                for name in spec.processors or (spec.name,):
                    key = ("processor", name)
                    total[key] = total.get(key, 0.0) + job.seconds / r
        return max(total.values(), default=math.nan)
