"""Seconds of the modules of a language model on devices with data sheets.

    seconds of a pass = repeats x (kernels x launch + sum over formats: the larger of
                                   bytes / bandwidth and operations / rate of so many rows)
                      + the larger of cache bytes / bandwidth and scores / rate of scores

A column of the problem says where a module rests and who computes it in each phase. A device
computes what rests in its own memory. Column ``cpu+gpu`` rests in the memory of the CPU, which
computes short passes; for long ones the GPU copies the weights and computes. llama.cpp does so from
32 rows of a product on, which are tokens, also for experts. The head has at most one in prefill. A
tensor pays for its way in those phases whose devices differ.

Rates of a device are fitted to seconds of probes of two sizes. Two probes that differ in their
layers alone give the seconds of a layer. One of them may have none, if the seconds of a pass beyond
layers are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewright.core.arrays import frozen_ints
from placewright.core.cluster import STREAMED_BY, Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.data_sheet import TokenRates
from placewright.core.execution_models import Sequential
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem
from placewright.errors import ClusterError
from placewright.execution.token_work import PHASES, ModuleWork, Pass, Phase, RequestedWork
from placewright.profiling.catalogue import (
    CatalogueDevice,
    EngineRates,
    engine_rates,
    entry_of,
    has_data_sheet,
)

ENGINE = "llama.cpp"
LEAST_STREAMED = 32  # rows (tokens, also for experts) from which llama.cpp copies weights to a GPU
POOL = "ram"
_SERVED = "RPC"  # begin of the engine's name of a card that another process serves
_SOURCE = "data sheets"
_TOGETHER = ("Attention", "Router")  # kinds of a layer whose tensors an engine keeps on one device


@dataclass(frozen=True)
class Column:
    """A choice for a module: the memory that holds its weights, and the device that computes it."""

    name: str  # of the problem's device
    rests: int  # index of the device whose memory holds them
    computes: dict[Phase, int]  # index of the device that computes a phase

    @property
    def streamed_by(self) -> int | None:
        """Index of the device that copies what rests elsewhere; None without one."""
        return next((at for at in self.computes.values() if at != self.rests), None)


def columns_of(cluster: Cluster, request_passes: Sequence[Pass]) -> tuple[Column, ...]:
    """One column for each device, and one for weights of the host that a GPU copies if that pays.

    llama.cpp copies weights to the first of its devices only, and never to one of a server.
    """
    found = [
        Column(device.name, at, dict.fromkeys(PHASES, at))
        for at, device in enumerate(cluster.devices)
    ]
    host = cluster.device_index.get(cluster.host, -1)
    first = next(
        (
            at
            for at, device in enumerate(cluster.devices)
            if device.kind == "gpu" and not device.options.get(ENGINE, "").startswith(_SERVED)
        ),
        -1,
    )
    long = {pass_.phase for pass_ in request_passes if pass_.tokens >= LEAST_STREAMED}
    if host >= 0 and first >= 0 and long:
        names = cluster.device_names
        computes = {phase: first if phase in long else host for phase in PHASES}
        found.append(Column(f"{names[host]}+{names[first]}", host, computes))
    return tuple(found)


def token_problem(
    work: RequestedWork, cluster: Cluster, phases: Sequence[Phase] = PHASES
) -> Problem:
    """The problem of a request on devices, under `sequential`.

    Args:
        cluster: of devices with data sheets; its limits are those of the devices.
        phases: that are counted; memory is that of the whole request.

    Raises:
        ClusterError: a device has no data sheet, or is no CPU or GPU.
    """
    return _Builder(work, cluster, phases).build()


class _Builder:
    def __init__(self, work: RequestedWork, cluster: Cluster, phases: Sequence[Phase]) -> None:
        for device in cluster.devices:
            if not has_data_sheet(device):
                raise ClusterError(
                    f"device '{device.name}' has no data sheet; name a device of the catalogue, or "
                    "give it peak and bandwidth in a cluster file"
                )
        self._work, self._cluster = work, cluster
        self._phases = phases
        self._entries = [entry_of(device) for device in cluster.devices]
        self._rates = [_rates_of(device) for device in cluster.devices]
        self._measured = [
            None if device.data_sheet is None else device.data_sheet.tokens
            for device in cluster.devices
        ]
        self._columns = tuple(
            column
            for column in columns_of(cluster, work.request.passes)
            if column.streamed_by is None or self._can_copy(column.rests, column.streamed_by)
        )
        self._passes = [
            (number, each)
            for number, each in enumerate(work.request.passes)
            if each.phase in phases
        ]

    def build(self) -> Problem:
        graph = _together(self._work.graph)
        seconds = np.array([[self._seconds(op, column) for column in self._columns]
                            for op in range(graph.n_ops)])  # fmt: skip
        messages = max(1, sum(pass_.repeats for pass_ in self._work.request.passes))
        return Problem(
            graph,
            self._columns_cluster(messages),
            CostTable(seconds, source=_SOURCE),
            Grouping.identity(graph.n_ops),
            execution_model=Sequential(messages),
            pins=self._pins(),
            source=self._work.source,
        )

    def _pins(self) -> dict[int, int]:
        """llama.cpp keeps the embedding in the memory of the host, where it looks tokens up."""
        host = self._cluster.device_index.get(self._cluster.host, -1)
        return {} if host < 0 else {self._work.graph.op_index["embedding"]: host}

    def _seconds(self, op: int, column: Column) -> float:
        total, kind = 0.0, self._work.graph.op_kinds[op]
        for number, each in self._passes:
            module, device = self._work.work[op][number], column.computes[each.phase]
            measured = self._measured[column.rests]
            # in prefill, the head multiplies the last token of a prompt at most
            rows = 1 if kind == "Head" and each.phase == "prefill" else each.tokens
            if device != column.rests and rows >= LEAST_STREAMED:
                total += self._streamed(module, each, kind, column.rests, device)
            elif measured is not None:
                total += _measured_seconds(module, each, kind, measured)
            else:
                total += self._plain(module, each, column.rests)
            total += each.repeats * self._per_pass(op, column)
        return total

    def _per_pass(self, op: int, column: Column) -> float:
        """Seconds of a pass beyond its kernels, if they were measured.

        The embedding has those of every pass, the head on a card those of reading its logits.
        """
        measured, index = self._measured[column.rests], self._work.graph.op_index
        is_host = column.rests == self._cluster.device_index.get(self._cluster.host, -1)
        if measured is None or op != index["embedding" if is_host else "head"]:
            return 0.0
        return measured.per_pass

    def _plain(self, module: ModuleWork, of: Pass, device: int) -> float:
        return resident_seconds(module, of, self._entries[device], self._rates[device])

    def _streamed(self, module: ModuleWork, of: Pass, kind: str, rests: int, device: int) -> float:
        """Seconds of a module whose weights are copied in each repeat, and its cache, too.

        llama.cpp computes attention where the product behind it is computed
        (`ggml_backend_sched_split_graph`). New keys and values go to the cache before that.
        """
        entry, rates, measured = self._entries[device], self._rates[device], self._measured[device]
        latency, per_byte = self._way(rests, device)
        each, cache = len(module.products) * latency + module.weight_bytes * per_byte, 0.0
        if module.cache_bytes:
            back, back_per_byte = self._way(device, rests)
            each += back + latency + 2 * rates.message_seconds + module.entry_bytes * back_per_byte
            cache = module.cache_bytes * per_byte
        if measured is None:
            computed = resident_seconds(module, of, entry, rates)
        else:
            computed = _measured_seconds(module, of, kind, measured)
        return of.repeats * each + cache + computed

    def _way(self, source: int, target: int) -> tuple[float, float]:
        """Seconds of latency and per byte between two devices, through the host without a link."""
        if source == target:
            return 0.0, 0.0
        cluster = self._cluster
        latency, per_byte = cluster.link_latency, cluster.link_seconds_per_byte
        if math.isfinite(latency[source, target]):
            return float(latency[source, target]), float(per_byte[source, target])
        host = cluster.host_endpoint
        return (
            float(latency[source, host] + latency[host, target]),
            float(per_byte[source, host] + per_byte[host, target]),
        )

    def _columns_cluster(self, messages: int) -> Cluster:
        cluster, names = self._cluster, [column.name for column in self._columns]
        host = cluster.device_index.get(cluster.host, -1)
        pools = {} if host < 0 else {POOL: self._limit(host)}
        devices = tuple(
            replace(
                cluster.devices[column.rests],
                name=column.name,
                memory_bytes=self._limit(column.rests),
                pool=POOL if column.rests == host else None,
                options=self._options(column),
            )
            for column in self._columns
        )
        links = [
            link
            for source, a in enumerate(self._columns)
            for target, b in enumerate(self._columns)
            if source != target
            and (link := self._link(names[source], names[target], a, b, messages)) is not None
        ]
        if host < 0:
            links += self._host_links(messages)
        return Cluster(devices, tuple(links), host=cluster.host, pools=pools)

    def _can_copy(self, rests: int, device: int) -> bool:
        """True if a device has a way to another's memory, and room for what it copies."""
        ways = self._way(rests, device), self._way(device, rests)
        if not all(math.isfinite(latency) for latency, _ in ways):
            return False
        reserve = self._rates[device].reserve_bytes + self._work.buffer_bytes
        room = self._cluster.devices[device].memory_bytes
        return room >= reserve + self._work.streamed_bytes

    def _options(self, column: Column) -> dict[str, str]:
        own = dict(self._cluster.devices[column.rests].options)
        device = column.streamed_by
        if device is None:
            return own
        return {**own, STREAMED_BY: self._cluster.devices[device].name}

    def _limit(self, device: int) -> float:
        """Bytes of a device for weights and caches, without those of driver, engine and buffers."""
        work = self._work
        reserve = self._rates[device].reserve_bytes + work.buffer_bytes
        if any(column.streamed_by == device for column in self._columns):
            reserve += work.streamed_bytes
        if device == self._cluster.device_index.get(self._cluster.host, -1):
            reserve += work.embedding_bytes - work.spared_bytes
        return max(0.0, self._cluster.devices[device].memory_bytes - reserve)

    def _link(self, source: str, target: str, a: Column, b: Column, messages: int) -> Link | None:
        """Link between two columns: a phase pays if different devices compute it."""
        ways = {
            phase: self._way(a.computes[phase], b.computes[phase])
            for phase in self._phases
            if a.computes[phase] != b.computes[phase]
        }
        extra = {phase: self._rates[b.computes[phase]].message_seconds for phase in ways}
        seconds = {phase: (way[0] + extra[phase], way[1]) for phase, way in ways.items()}
        return self._weighed(source, target, seconds, messages)

    def _host_links(self, messages: int) -> list[Link]:
        """Links to a host that computes nothing."""
        found, host = [], self._cluster.host_endpoint
        for at, column in enumerate(self._columns):
            for source, target in ((at, host), (host, at)):
                ways = dict.fromkeys(self._phases, self._way(source, target))
                own, outside = column.name, self._cluster.host
                ends = (own, outside) if source == at else (outside, own)
                link = self._weighed(*ends, ways, messages)
                found += [] if link is None else [link]
        return found

    def _weighed(
        self, source: str, target: str, ways: dict[Phase, tuple[float, float]], messages: int
    ) -> Link | None:
        """Link whose latency and bandwidth give the sum of the phases; None without a route."""
        if not all(math.isfinite(latency) for latency, _ in ways.values()):
            return None
        passes = self._work.request.passes
        tokens = {phase: sum(x.repeats * x.tokens for x in passes if x.phase == phase)
                  for phase in PHASES}  # fmt: skip
        repeats = {phase: sum(x.repeats for x in passes if x.phase == phase) for phase in PHASES}
        latency = sum(repeats[phase] * way[0] for phase, way in ways.items()) / messages
        per_byte = sum(tokens[phase] * way[1] for phase, way in ways.items()) / sum(tokens.values())
        bandwidth = 1.0 / per_byte if per_byte > 0 else math.inf
        return Link(source, target, latency, bandwidth)


def _together(graph: ComputationGraph) -> ComputationGraph:
    """Colocate the router of each layer with its attention."""
    number = {module: at for at, module in enumerate(dict.fromkeys(graph.op_modules))}
    pairs = zip(graph.op_kinds, graph.op_modules, strict=True)
    classes = [number[module] if kind in _TOGETHER else -1 for kind, module in pairs]
    return replace(graph, op_colocation=frozen_ints(classes))


def _peak(entry: CatalogueDevice) -> float:
    """Operations per second of matrix products in the engine's own precision."""
    return entry.peak[entry.precision("f32" if entry.kind == "cpu" else "f16")]


def resident_seconds(
    module: ModuleWork, of: Pass, entry: CatalogueDevice, rates: EngineRates
) -> float:
    """Seconds of a module in all repeats of a pass, where its weights and its cache rest."""
    return of.repeats * _product_seconds(module, entry, rates) + _scores(module, entry, rates)


def _product_seconds(module: ModuleWork, entry: CatalogueDevice, rates: EngineRates) -> float:
    """Seconds of the kernels and products of one repeat."""
    bandwidth, each = entry.bandwidth * rates.bandwidth, module.kernels * rates.launch_seconds
    for product in module.products:
        rate = _peak(entry) * rates.share(product.rows)
        each += max(product.n_bytes / bandwidth, product.flops / rate)
    return each


def _scores(module: ModuleWork, entry: CatalogueDevice, rates: EngineRates) -> float:
    from_memory = module.cache_bytes / (entry.bandwidth * rates.bandwidth)
    return max(from_memory, module.score_flops / (_peak(entry) * rates.scores))


def _rates_of(device: Device) -> EngineRates:
    """The catalogue's rates of a device's kind; measured links have their hand-over in them."""
    rates = engine_rates(ENGINE, device.kind)
    if device.data_sheet is None or device.data_sheet.tokens is None:
        return rates
    return replace(rates, message_seconds=0.0, reserve_bytes=0.0)


def driver_bytes(device: Device) -> float:
    """Bytes of a device that driver and engine keep beyond buffers."""
    return _rates_of(device).reserve_bytes


def _measured_seconds(module: ModuleWork, of: Pass, kind: str, rates: TokenRates) -> float:
    products = _measured_products(module, kind, rates)
    rows = 1 if of.phase == "decode" else of.tokens  # each sequence has a cache of its own
    return of.repeats * products + module.score_flops * rates.score(rows)


def _measured_products(module: ModuleWork, kind: str, rates: TokenRates) -> float:
    """Seconds of the kernels and products of one repeat."""
    is_expert = kind == "Experts"
    return module.kernels * rates.launch + sum(
        product.flops * rates.product(product.dtype, product.rows, is_expert=is_expert)
        for product in module.products
    )


def is_streamed(device: Device) -> bool:
    """True if another device computes the long passes of a column."""
    return STREAMED_BY in device.options


ROWS = (1, 4, 16, 64, 256)  # tokens of a pass that are measured; 1 is a step of decode
_LEAST = 0.1  # part of a time, or of a rate, that stays if noise makes a difference smaller


@dataclass(frozen=True)
class ProbePair:
    """Seconds of a pass of two probes that differ in the number of their layers."""

    layers: tuple[int, int]  # of both
    seconds: tuple[Mapping[int, float], Mapping[int, float]]  # tokens of a pass -> seconds, of both
    operations: tuple[float, float]  # per token and layer, of dense products and of experts
    kernels: int  # of a layer
    share: float = 1.0  # of the experts that a token uses; 1 without experts

    def of_layer(self, rows: int) -> float:
        """Seconds of a layer in a pass of so many tokens."""
        small, large = (seconds[rows] for seconds in self.seconds)
        slope = (large - small) / (self.layers[1] - self.layers[0])
        return max(slope, _LEAST * large / self.layers[1])

    def fixed(self, rows: int) -> float:
        """Seconds of a pass beyond its layers."""
        return max(0.0, self.seconds[0][rows] - self.layers[0] * self.of_layer(rows))


def launch_seconds(tiny: ProbePair) -> float:
    """Seconds to start a kernel, by probes whose products take next to no time."""
    return max(0.0, tiny.of_layer(1)) / tiny.kernels


def dense_table(pair: ProbePair, launch: float) -> tuple[float, ...]:
    """Seconds per operation of dense products, for each of `ROWS`."""
    return tuple(
        _left(pair.of_layer(rows), pair.kernels * launch) / (pair.operations[0] * rows)
        for rows in ROWS
    )


def _left(whole: float, known: float) -> float:
    """Difference of two times, but at least a tenth of the whole."""
    return max(whole - known, _LEAST * whole)


def expert_table(pair: ProbePair, launch: float, dense: Sequence[float]) -> tuple[float, ...]:
    """Seconds per operation of routed experts, for each of `ROWS` of tokens of an expert.

    Args:
        pair: with experts.
        launch: seconds of a kernel.
        dense: table of the dense products of the same format.
    """
    at, found = [], []
    for rows, rate in zip(ROWS, dense, strict=True):
        touched = 1.0 - (1.0 - pair.share) ** rows
        known = pair.kernels * launch + pair.operations[0] * rows * rate
        left = _left(pair.of_layer(rows), known)
        at.append(math.log(max(1.0, rows * pair.share / touched)))
        found.append(math.log(left / (pair.operations[1] * rows)))
    return tuple(float(np.exp(np.interp(math.log(rows), at, found))) for rows in ROWS)


def score_table(
    shallow: ProbePair, deep: ProbePair, depth: int, per_pair: float, dense: Sequence[float]
) -> tuple[float, ...]:
    """Seconds per operation of attention on its cache, for each of `ROWS`.

    Args:
        shallow, deep: the same probes without and with tokens in their caches.
        depth: number of these tokens.
        per_pair: operations for a pair of tokens.
        dense: table of dense products; scores are taken as ten times as fast at most.
    """
    measured = sorted(set(deep.seconds[0]) & set(shallow.seconds[0]))
    found = [
        max(
            _LEAST * dense[ROWS.index(r)],
            (deep.of_layer(r) - shallow.of_layer(r)) / (r * depth * per_pair),
        )
        for r in measured
    ]
    at = np.log(measured)
    return tuple(float(np.exp(np.interp(math.log(r), at, np.log(found)))) for r in ROWS)


def token_rates(
    products: Mapping[str, tuple[float, ...]],
    scores: tuple[float, ...],
    launch: float,
    per_pass: float,
    source: str,
) -> TokenRates:
    """The tables of a device; see `core.data_sheet.TokenRates`."""
    rows = tuple(float(number) for number in ROWS)
    return TokenRates(rows, products, scores, launch, per_pass, source)
