"""Seconds of the options of a comparison, by the costs of `profiling.token_costs`.

A *column* is a set of devices with the share of each module that each of them holds. Devices of a
column compute at once; the slowest counts. They sum what they computed once for each module:

    ring:  collective + 2 (n - 1) / n x bytes / rate of the slowest link
    star:  waits x latency + messages x message + bytes / rate, as `sums` counts them

Cards without access to each other's memory sum through that of the host, where each byte is
written and read: the rate of a ring is then at most bandwidth of the host / (2 n).

A tensor that passes to another column takes latency + message + bytes / rate, each time.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from placewright.core.source import ModelSource
from placewright.errors import FieldError
from placewright.execution.token_work import ModuleWork, Pass, RequestedWork, TokenRequest
from placewright.frameworks.language.work import requested_work
from placewright.profiling.catalogue import (
    Between,
    CatalogueDevice,
    EngineRates,
    between_devices,
    device_entry,
    engine_rates,
    is_device_name,
)
from placewright.profiling.token_costs import resident_seconds
from placewright.suites.llm_ab.documents import (
    DeviceFields,
    Expected,
    LinkFields,
    OptionFields,
    PartFields,
    PlanFields,
    PublishedComparison,
    language_model,
)
from placewright.suites.llm_ab.sums import Exchange, slices, star

Column = tuple[tuple[str, float], ...]  # device and share, by device
_Item = tuple[str, tuple[tuple[ModuleWork, Pass], ...], Column]
_Message = tuple[Column, Column, float, int]  # from, to, bytes, and repeats
SERVED = 64  # sequences at once where a comparison says that there were many
UNNAMED_CPU = 50e9  # bytes/s of a processor that a comparison does not name
# Cards of which the driver refuses access to each other's memory over PCIe (its fork
# tinygrad/open-gpu-kernel-modules exists to allow it), and words of comparisons that say so.
_GEFORCE = re.compile(r"\bRTX [345]0[5-9]0\b")
_THROUGH_HOST = ("through the host", "no peer access")
_PROMPT = 512  # tokens before those that are timed, if none are stated
_PCIE_LATENCY = 10e-6  # as the catalogue assumes it
_SUMMED = ("Attention", "FeedForward", "Experts", "SharedExperts")
_KINDS = {
    "all": ("Embedding", "Attention", "FeedForward", "Router", "Experts", "SharedExperts", "Head"),
    "attention": ("Attention",),
    "ffn": ("FeedForward", "Router", "Experts", "SharedExperts"),
    "experts": ("Experts",),
    "shared": ("SharedExperts",),
    "router": ("Router",),
    "embedding": ("Embedding",),
    "head": ("Head",),
}


class NotExpressible(Exception):
    """A comparison that the model cannot express; the message has the reason."""


@dataclass(frozen=True)
class Constants:
    """Rates of an engine, times factors that a fit may change."""

    engine: str  # of the catalogue
    # bandwidth, launch, message, link: factors of the share of the memory's bandwidth, of the
    # seconds of a kernel, of those of messages and sums, and of the rate of links
    bandwidth: float = 1.0
    launch: float = 1.0
    message: float = 1.0
    link: float = 1.0

    def rates(self, kind: str) -> EngineRates:
        """Rates on a kind of device."""
        found = engine_rates(self.engine, kind)
        return replace(
            found,
            bandwidth=min(1.0, found.bandwidth * self.bandwidth),
            launch_seconds=found.launch_seconds * self.launch,
            message_seconds=found.message_seconds * self.message,
        )

    @property
    def between(self) -> Between:
        """Sums over devices."""
        found = between_devices(self.engine)
        return replace(
            found,
            link=min(1.0, found.link * self.link),
            collective_seconds=found.collective_seconds * self.message,
        )


@dataclass(frozen=True)
class DeviceWay:
    """A link, or several in a row."""

    latency: float  # seconds
    per_byte: float  # seconds at the nominal rate
    host_per_byte: float = 0.0  # seconds of the host's memory; 0 if the link does without it

    def seconds(self, n_bytes: float, constants: Constants) -> float:
        """Seconds of a message, without its hand-over."""
        return self.latency * constants.message + n_bytes * self.per_byte / constants.between.link


@dataclass(frozen=True)
class Option:
    """An option, as counted items."""

    key: str  # of the option
    engine: str  # whose constants hold
    columns: tuple[Column, ...]  # of each op
    replicas: int  # alike copies of the placement, which share the sequences
    work: RequestedWork  # of the request of one replica
    ways: Mapping[tuple[str, str], DeviceWay]  # between devices
    # device that keeps weights, and device that copies them and computes
    copies: tuple[str, str] | None = None
    # whose rates are known, by name
    devices: Mapping[str, CatalogueDevice] = field(default_factory=dict)
    # pieces of its graph that the engine printed, each with one hand-over; 0 if unknown
    splits: int = 0
    # kind of module -> numbers that its first products make, if slices of them are exchanged
    sliced: Mapping[str, float] = field(default_factory=dict)

    def timed(self) -> list[tuple[int, Pass]]:
        """Passes that are timed, with their numbers."""
        request = self.work.request
        phase = "decode" if request.generate else "prefill"
        return [(n, each) for n, each in enumerate(request.passes) if each.phase == phase]

    @property
    def tokens(self) -> int:
        """Tokens that are timed, of all replicas."""
        return self.replicas * sum(each.repeats * each.tokens for _, each in self.timed())

    def rate(self, constants: Constants) -> float:
        """Tokens per second of all replicas."""
        return self.tokens / seconds_of(self, constants)

    @cached_property
    def items(self) -> Counter[_Item]:
        """Modules, alike ones counted."""
        timed, kinds = self.timed(), self.work.graph.op_kinds
        return Counter(
            (kind, tuple((self.work.work[op][number], each) for number, each in timed), column)
            for op, (kind, column) in enumerate(zip(kinds, self.columns, strict=True))
        )

    @cached_property
    def messages(self) -> Counter[_Message]:
        """Arrivals of tensors at columns that did not make them, alike ones counted."""
        graph, found = self.work.graph, Counter[_Message]()
        tokens = sum(pass_.repeats * pass_.tokens for pass_ in self.work.request.passes)
        for tensor, producer in enumerate(graph.tensor_producers.tolist()):
            if producer < 0:
                continue
            source = self.computing(producer)
            readers = {self.computing(op) for op in graph.tensor_consumers.row(tensor).tolist()}
            each_token = float(graph.tensor_bytes[tensor]) / tokens
            for target in sorted(readers - {source}):
                for _, of in self.timed():
                    found[source, target, each_token * of.tokens, of.repeats] += 1
        return found

    def computing(self, op: int) -> Column:
        """The devices that compute an op, which are not those that keep its weights if copied."""
        column = self.columns[op]
        if self.copies is None:
            return column
        keeps, copies = self.copies
        return tuple(sorted((copies if name == keeps else name, share) for name, share in column))

    @property
    def hidden(self) -> int:
        """Elements of the state that modules hand on."""
        graph = self.work.graph
        tensor = graph.tensor_producers.tolist().index(graph.op_index["embedding"])
        return int(graph.tensor_shapes[tensor][-1])

    def used(self) -> list[str]:
        """Devices that hold more than an embedding."""
        kinds = self.work.graph.op_kinds
        found = {
            device
            for kind, column in zip(kinds, self.columns, strict=True)
            if kind != "Embedding"
            for device, _ in column
        }
        return sorted(found)


def seconds_of(option: Option, constants: Constants) -> float:
    """Seconds of the timed passes of one replica."""
    modules = math.fsum(
        count * module_seconds(option, constants, kind, work, column)
        for (kind, work, column), count in option.items.items()
    )
    messages = math.fsum(
        count * repeats * message_seconds(option, constants, source, target, n_bytes)
        for (source, target, n_bytes, repeats), count in option.messages.items()
    )
    counted = sum(count * repeats for (*_, repeats), count in option.messages.items())
    if not (option.splits and counted):
        return modules + messages
    repeats = sum(of.repeats for _, of in option.timed())
    return modules + messages * option.splits * repeats / counted


def module_seconds(
    option: Option,
    constants: Constants,
    kind: str,
    work: Sequence[tuple[ModuleWork, Pass]],
    column: Column,
) -> float:
    """Seconds of a module in a column, with the sum over its devices."""
    total = 0.0
    for module, of in work:
        total += max(
            _share_seconds(option, constants, module, of, device, share) for device, share in column
        )
        if len(column) > 1 and kind in _SUMMED:
            total += of.repeats * _sum_seconds(option, constants, kind, column, of)
    return total


def _share_seconds(
    option: Option, constants: Constants, module: ModuleWork, of: Pass, device: str, share: float
) -> float:
    at, copying = device, 0.0
    if option.copies is not None and option.copies[0] == device:
        at = option.copies[1]
        way = option.ways[device, at]
        copying = of.repeats * way.seconds(share * module.weight_bytes, constants)
    entry = option.devices[at]
    rates = constants.rates(entry.kind)
    return copying + resident_seconds(_scaled(module, share), of, entry, rates)


def _scaled(module: ModuleWork, share: float) -> ModuleWork:
    if share == 1.0:
        return module
    return replace(
        module,
        products=tuple(
            replace(product, flops=share * product.flops, n_bytes=share * product.n_bytes)
            for product in module.products
        ),
        cache_bytes=share * module.cache_bytes,
        score_flops=share * module.score_flops,
    )


def _sum_seconds(
    option: Option, constants: Constants, kind: str, column: Column, of: Pass
) -> float:
    between, names = constants.between, [device for device, _ in column]
    n_bytes = option.hidden * between.element_bytes * of.tokens
    root, others = names[0], names[1:]
    if between.form == "star":
        ways = [option.ways[root, other] for other in others]
        per_byte = sum(way.per_byte for way in ways) / len(ways) / between.link
        return _exchange(option, kind, len(names)).seconds(
            max(way.latency for way in ways) * constants.message,
            _network_message(option.devices[root], constants),
            between.element_bytes * of.tokens * per_byte,
        )
    pairs = [option.ways[a, b] for a in names for b in names if a != b]
    slowest = max(max(way.per_byte, len(names) * way.host_per_byte) for way in pairs)
    ring = 2.0 * len(others) / len(names)
    return between.collective_seconds + ring * n_bytes * slowest / between.link


def _exchange(option: Option, kind: str, n_devices: int) -> Exchange:
    if kind in option.sliced:
        return slices(kind, n_devices, option.hidden, option.sliced[kind])
    return star(n_devices, option.hidden)


def _network_message(device: CatalogueDevice, constants: Constants) -> float:
    """Seconds that a device works for a message."""
    if device.message_seconds is None:
        return constants.rates(device.kind).message_seconds
    return device.message_seconds * constants.message


def message_seconds(
    option: Option, constants: Constants, source: Column, target: Column, n_bytes: float
) -> float:
    """Seconds of a tensor's way to the devices of a column that do not have it."""
    have = [device for device, _ in source]
    n_bytes *= constants.between.element_bytes / 4.0  # the graph has elements of four bytes
    ways = [
        min(option.ways[a, b].seconds(n_bytes, constants) for a in have)
        + constants.rates(option.devices[b].kind).message_seconds
        for b, _ in target
        if b not in have
    ]
    return max(ways, default=0.0)


def options_of(row: PublishedComparison) -> list[Option]:
    """The options of a comparison that can be scored against each other.

    Raises:
        NotExpressible: the model cannot tell them apart, or lacks a fact.
    """
    if not row.usable or row.model.config is None:
        raise NotExpressible("the file has no placements of it that can be read")
    try:
        model = language_model(row.model.config)
    except ValueError as error:
        raise NotExpressible(str(error)) from None
    expected = row.expected or Expected()
    order = expected.order or [option.key for option in row.options]
    alike = {key for group in expected.same_plan for key in group[1:]}
    source = ModelSource(row.id, "", "comparison")
    found = []
    for option in row.options:
        if (
            option.key not in order
            or option.key in alike
            or math.isnan(option.rate)
            or not option.plan
        ):
            continue
        replicas = option.plan.replicas or 1
        try:
            work = requested_work(model, source, _request(row, option.plan, replicas))
        except FieldError as fault:
            raise NotExpressible(str(fault)) from None
        found.append(_Reader(row, option, option.plan, work).option(replicas))
    if len(found) < 2:
        raise NotExpressible("fewer than two of its options differ in placement and can be read")
    seen: dict[object, str] = {}
    for placed in found:
        same = seen.setdefault(
            (placed.columns, placed.replicas, tuple(placed.ways.items()), placed.copies),
            placed.key,
        )
        if same != placed.key:
            raise NotExpressible(
                f"options {same} and {placed.key} are one placement to the model: which experts "
                "lie where matters only with counts of their use, which are not published"
            )
    return found


def _request(row: PublishedComparison, plan: PlanFields, replicas: int) -> TokenRequest:
    if row.is_prefill:
        prompt = row.context_tokens or _PROMPT
        batch = row.batch if isinstance(row.batch, int) else min(prompt, 512)
        return TokenRequest(prompt, 0, prompt, batch)
    sequences = plan.concurrency or (SERVED if isinstance(row.batch, str) else row.batch or 1)
    prompt = row.context_tokens or _PROMPT
    sequences = max(1, sequences // replicas)
    # servers compute a step of all sequences at once
    return TokenRequest(prompt, 1, prompt + 1, max(512, sequences), sequences)


class _Reader:
    """Reads the placement of an option."""

    def __init__(
        self, row: PublishedComparison, option: OptionFields, plan: PlanFields, work: RequestedWork
    ) -> None:
        self._row, self._option, self._plan, self._work = row, option, plan, work
        self._engine = engine_family(row.engine, plan.engine_flags or "")

    def option(self, replicas: int) -> Option:
        columns = self._columns()
        stream = self._plan.stream
        used = {device for column in columns for device, _ in column}
        copies = None if stream is None else (stream.source, stream.target)
        if copies is not None:
            used |= {copies[1]}
        entries = {
            device.id: self._entry(device.id, device.id in used) for device in self._row.devices
        }
        devices = {name: entry for name, entry in entries.items() if entry is not None}
        if missing := sorted(used - set(devices)):
            raise NotExpressible(f"it has no device '{missing[0]}'")
        ways = ways_between(self._row.links, self._row.devices, self._plan.link_kind)
        if apart := sorted({(a, b) for a in used for b in used} - ways.keys()):
            raise NotExpressible("no link joins '{}' and '{}'".format(*apart[0]))
        return Option(
            self._option.key,
            self._engine,
            columns,
            replicas,
            self._work,
            ways,
            copies,
            devices,
            self._plan.graph_splits or 0,
            self._sliced(),
        )

    def _sliced(self) -> dict[str, float]:
        shapes, version = self._row.model.config, engine_version(self._row.engine)
        assert shapes is not None
        width = (shapes.heads + 2 * shapes.kv_heads) * shapes.head_dim
        widths = {"Attention": width, "FeedForward": shapes.ffn or 0}
        before = between_devices(self._engine).slices_before
        return {kind: widths[kind] for kind, first in before.items() if version < first}

    def _columns(self) -> tuple[Column, ...]:
        graph = self._work.graph
        shares: list[dict[str, float]] = [{} for _ in range(graph.n_ops)]
        for part in self._plan.parts:
            if part.part == "kv" or (part.replica or 0) != 0:
                continue
            for op in self._ops(part):
                share = (part.share or 1.0) * self._experts(part)
                shares[op][part.device] = shares[op].get(part.device, 0.0) + share
        if not any(shares):
            raise NotExpressible(f"option {self._option.key} places nothing")
        found: list[Column] = []
        for op, own in enumerate(shares):
            if not own and not found:
                own = next((filled for filled in shares if filled), {})
            column = tuple(sorted(own.items())) or found[-1]
            if abs(sum(share for _, share in column) - 1.0) > 0.02:
                name = graph.op_names[op]
                raise NotExpressible(
                    f"option {self._option.key} states no whole placement of '{name}'"
                )
            found.append(column)
        if engine_version(self._row.engine) < between_devices(self._engine).head_before:
            head = graph.op_kinds.index("Head")
            found[head] = ((found[head][0][0], 1.0),)
        return tuple(found)

    def _experts(self, part: PartFields) -> float:
        """Share of the experts that a part has, by their number; a list has the first and last."""
        shapes, experts = self._row.model.config, part.experts
        if isinstance(experts, list):
            assert shapes is not None
            if len(experts) not in (0, 2):
                raise NotExpressible(f"experts {experts} are no first and last one")
            return (experts[-1] - experts[0] + 1) / (shapes.experts or 1) if experts else 0.0
        return 1.0 if experts is None else experts

    def _ops(self, part: PartFields) -> Iterator[int]:
        if part.part not in _KINDS:
            raise NotExpressible(f"it has parts '{part.part}'")
        graph, layers = self._work.graph, part.layers
        kinds = _KINDS[part.part]
        if isinstance(layers, list) and part.part == "all":
            kinds = tuple(kind for kind in kinds if kind not in ("Embedding", "Head"))
        for op, kind in enumerate(graph.op_kinds):
            if kind not in kinds:
                continue
            name = graph.op_modules[op]
            number = int(name.split(".")[1]) if name.startswith("layers.") else None
            if number is not None and not _holds(layers, number):
                continue
            yield op

    def _entry(self, name: str, is_used: bool) -> CatalogueDevice | None:
        """A device with its rates; None if they are not stated, and the option does without."""
        fields = next(device for device in self._row.devices if device.id == name)
        peak = (fields.peak_fp16_TFLOPs or math.inf) * 1e12
        kind = "cpu" if fields.kind == "cpu" else "gpu"
        try:
            bandwidth = bandwidth_of(fields)
            if self._row.is_prefill and kind == "gpu" and math.isinf(peak):
                raise NotExpressible(f"the peak of device '{name}' is not stated")
        except NotExpressible:
            if is_used:
                raise
            return None
        memory = (fields.memory_GB or math.inf) * 1e9
        rates = {"f32" if kind == "cpu" else "f16": peak}
        found = CatalogueDevice(name, "", kind, memory, bandwidth, rates, {}, 0.0, "")
        if not is_device_name(fields.name):
            return found
        return replace(found, message_seconds=device_entry(fields.name).message_seconds)


def bandwidth_of(fields: DeviceFields) -> float:
    """Bytes per second of a device's memory.

    Raises:
        NotExpressible: nothing is known about it.
    """
    rate = fields.bandwidth_GBps or fields.bandwidth_estimate_GBps
    if rate is None and fields.kind != "cpu":
        raise NotExpressible(f"the bandwidth of device '{fields.id}' is not stated")
    return UNNAMED_CPU if rate is None else rate * 1e9


def _holds(layers: str | list[int], number: int) -> bool:
    """True if a layer is within the first and the last of a range, or in all."""
    return isinstance(layers, str) or layers[0] <= number <= layers[1]


def engine_family(engine: str, flags: str) -> str:
    """The engine of the catalogue whose constants hold.

    Raises:
        NotExpressible: there are none of it.
    """
    text = engine.lower()
    if flags.startswith("distributed-llama") or text.startswith("distributed-llama"):
        return "distributed-llama"
    if "sglang" in text:
        return "sglang"
    if "vllm" in text:
        return "vllm"
    if any(name in text for name in ("llama.cpp", "ollama", "koboldcpp")):
        return "llama.cpp"
    raise NotExpressible(f"the catalogue has no rates of engine '{engine}'")


def engine_version(engine: str) -> tuple[float, float]:
    """First two numbers of an engine's version; infinite ones if it is not stated."""
    found = re.search(r"(?<![\w.])v?(\d+)\.(\d+)", engine)
    return (math.inf, math.inf) if found is None else (int(found[1]), int(found[2]))


def ways_between(
    links: Sequence[LinkFields], devices: Sequence[DeviceFields], kind: str | None
) -> dict[tuple[str, str], DeviceWay]:
    """The quickest way between every two devices, by small messages; through others if needed."""
    named = {device.id: device for device in devices}
    names = list(named)
    host = max((bandwidth_of(each) for each in devices if each.kind == "cpu"), default=UNNAMED_CPU)
    found = {(name, name): DeviceWay(0.0, 0.0) for name in names}
    if kind is not None and not any(link.kind.startswith(kind) for link in links):
        raise NotExpressible(f"its link_kind '{kind}' is the kind of none of its links")
    pairs: dict[tuple[str, str], list[LinkFields]] = {}
    for link in links:
        if unknown := {link.a, link.b} - named.keys():
            raise NotExpressible(f"a link names '{min(unknown)}', which is no device of it")
        pairs.setdefault((min(link.a, link.b), max(link.a, link.b)), []).append(link)
    for (a, b), parallel in pairs.items():
        wanted = [link for link in parallel if kind is not None and link.kind.startswith(kind)]
        chosen = min(wanted or parallel, key=lambda link: (_latency(link), -link.GBps))
        latency = _latency(chosen)
        # each byte is written to the host's memory, and read there
        staged = 2.0 / host if _is_staged(chosen, [named[a], named[b]]) else 0.0
        found[a, b] = found[b, a] = DeviceWay(latency, 1e-9 / chosen.GBps, staged)
    for middle in names:
        for a in names:
            for b in names:
                if (a, middle) in found and (middle, b) in found:
                    first, second = found[a, middle], found[middle, b]
                    # bytes between two cards that meet at a processor rest in its memory
                    ends = {named[name].kind for name in (a, b)}
                    rests = named[middle].kind == "cpu" and "cpu" not in ends
                    through = DeviceWay(
                        first.latency + second.latency,
                        first.per_byte + second.per_byte,
                        2.0 / host if rests else max(first.host_per_byte, second.host_per_byte),
                    )
                    if (a, b) not in found or through.latency < found[a, b].latency:
                        found[a, b] = through
    return found


def _latency(link: LinkFields) -> float:
    return _PCIE_LATENCY if link.latency_us is None else link.latency_us * 1e-6


def _is_staged(link: LinkFields, ends: Sequence[DeviceFields]) -> bool:
    """True if two cards reach each other only through the memory of their host."""
    if any(end.kind == "cpu" for end in ends):
        return False
    if any(words in link.kind for words in _THROUGH_HOST):
        return True
    return link.kind.startswith("PCIe") and all(_GEFORCE.search(end.name) for end in ends)
