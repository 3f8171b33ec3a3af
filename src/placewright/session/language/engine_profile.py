"""The devices of an engine, measured by its own benchmark, and kept for `place`.

Probes are measured on each device by turns, and medians count, as they do where a plan is measured.
Two tiny ones give the seconds of a pass beyond its layers, and the rest of a large one's is its
layers'. Servers that this process starts alike are measured once. Without servers, cards are the
engine's own devices, such as the GPUs of this machine.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from placewright.core.cluster import Cluster, Device, Link
from placewright.core.data_sheet import DataSheet, TokenRates
from placewright.core.quantities import counted
from placewright.errors import FieldError, RuntimeFailure
from placewright.execution.engine.printed import printed_cards, printed_devices
from placewright.execution.engine.probe import EXPERTS, USED, Probe, write_probe
from placewright.execution.engine.programs import (
    BENCH,
    ENGINE,
    OWN_MEMORY,
    Programs,
    is_of_this_machine,
    long,
    running_servers,
)
from placewright.execution.processor import usable_cores
from placewright.io.machine import memory_bytes
from placewright.profiling.token_costs import (
    ROWS,
    ProbePair,
    dense_table,
    expert_table,
    launch_seconds,
    score_table,
    token_rates,
)
from placewright.report.time_left import Report, no_report
from placewright.session.language.engine_run import listed_text
from placewright.session.language.kept_rates import keep_engine_cluster
from placewright.session.language.problem import asked_tokens
from placewright.session.models import Model
from placewright.session.request import Request
from placewright.writers.llama_cpp import NAME, THREADS


@dataclass(frozen=True)
class ProbeSize:
    """Sizes of the large probes.

    Weights are a few times a processor's cache. If a good part of them stays there from one pass to
    the next, products are faster than those of a model. Experts are narrow: what a layer does
    besides products is a larger part of their time. Published models have 0.3 (DeepSeek V3,
    Qwen3 235B) to 1 (gpt-oss) times the width of the state.
    """

    layers: int
    hidden: int
    feed: int
    expert_feed: int


SERVED = ProbeSize(8, 1024, 2816, 1024)
# Kernels of a GPU are slow for their size in small products, and its host has a larger cache.
OWN_CARDS = ProbeSize(4, 4096, 11264, 1536)
_TINY, _TINY_LAYERS = 64, (2, 6)
_STEPS, _TINY_STEPS = 8, 32  # of decode in a test
_DEPTH, _DEEP_ROWS = 512, 64
PROBE_ROUNDS, _REPEATS = 4, 2  # of each test: in turn with others, and one after the other
_OWN_REPEATS = 4  # of a GPU, whose first pass sets its libraries up
_LEAST_COPIED, _COPIED_ROWS = 1e-12, ROWS[-1]  # seconds per byte; tokens of a pass
_PER_BYTE = 1e-10  # seconds, at least, on the way to a card
_HALVES = r"blk\..*\.ffn_.*"  # tensors of the second half of each layer
_HOST = "cpu"
_SHARES_MEMORY = "MTL"  # begin of the engine's name of a card in the memory of its host

_NUMBERED = re.compile(r"([A-Za-z]+)(\d+)")

Formats = Mapping[str, bool]  # format -> whether routed experts have it, too
# Device, probe and depth -> tokens of a pass -> seconds
_Times = Mapping[tuple[str, Probe, int], Mapping[int, float]]


@dataclass(frozen=True)
class _At:
    """A device that the engine's benchmark measures."""

    name: str  # of the engine
    words: tuple[str, ...]
    device: str  # its name here
    buffer: str = ""  # of the engine: where a card's tensors lie
    memory: float = 0.0  # bytes
    hardware: str = ""  # description and total memory, as the engine lists them, or "started" here


def formats_of_model(read: Model, request: Request) -> dict[str, bool]:
    """Formats of a model's matrices, and whether routed experts have them.

    Raises:
        InputError: it is not a language model.
    """
    if read.works is None:
        raise FieldError(
            "engine", f"measures formats of a language model; '{request.name}' is none"
        )
    work = read.works(asked_tokens(request, read.trained_context))
    found: dict[str, bool] = {}
    for kind, passes in zip(work.graph.op_kinds, work.work, strict=True):
        for product in (product for pass_ in passes for product in pass_.products):
            found[product.dtype] = found.get(product.dtype, False) or kind == "Experts"
    return found


def profile_engine(
    formats: Formats,
    engine: Programs,
    *,
    servers: Sequence[str] = (),
    threads: int | None = None,
    report: Report = no_report,
) -> Cluster:
    """Measure this machine's devices with an engine, and keep the result.

    Args:
        formats: that are measured.
        servers: addresses; those of this machine where nothing answers are started.
        threads: of the engine and of started servers; None is one for each core.

    Raises:
        InputError: a program is missing, a format is unknown, or an address is wrong.
        RuntimeFailure: a program or a server ended with an error.
    """
    if threads is not None and threads < 1:
        raise FieldError("threads", f"must be >= 1, got {threads}")
    count = threads or len(usable_cores())
    with running_servers(engine, dict.fromkeys(servers, count), may_answer=True) as running:
        started = {server.address for server in running.started}
        cards = _served(engine, servers, started) if servers else _own(engine)
        alike = bool(servers) and len(started) == len(servers)
        session = _Session(engine, formats, servers, count, cards, alike)
        cluster = session.measured(report)
    size, hardware = session.size, [card.hardware for card in cards if card.hardware]
    how = " ".join([engine.version, f"{count} {size.layers} {size.hidden}", *hardware])
    return keep_engine_cluster(cluster, how)


def _served(engine: Programs, servers: Sequence[str], started: Container[str]) -> list[_At]:
    """The servers in order; one on another machine has the memory that the engine prints for it.

    Args:
        servers: addresses.
        started: those of servers that this process started, on the processor of the host.

    Raises:
        FieldError: the engine finds more devices than servers, so that its numbers are of others.
    """
    ram, are_here = memory_bytes(), [is_of_this_machine(address) for address in servers]
    are_known = all(address in started for address in servers)
    text = "" if are_known else listed_text(engine, servers)
    printed, listed = printed_devices(text), printed_cards(text)
    found = [name for name in printed if name.startswith("RPC")]
    if len(found) > len(servers):
        raise FieldError(
            "servers",
            f"has {len(servers)} addresses, behind which are {len(found)} devices "
            f"({', '.join(found)}); start one rpc-server for each device, with its option -d",
        )
    return [
        _At(
            f"RPC{at}",
            ("-dev", f"RPC{at}", "-ngl", "99"),
            f"rpc:{at}",
            f"RPC0[{address}]",
            ram if is_here else printed.get(f"RPC{at}", ram),
            "started" if address in started else listed.get(f"RPC{at}", address),
        )
        for at, (address, is_here) in enumerate(zip(servers, are_here, strict=True))
    ]


def _own(engine: Programs) -> list[_At]:
    """The engine's own devices that have memory."""
    found, text = [], listed_text(engine, ())
    hardware = printed_cards(text)
    for name, free in printed_devices(text).items():
        numbered = _NUMBERED.fullmatch(name)
        if free and numbered is not None:
            device = f"{numbered[1].lower()}:{numbered[2]}"
            words = ("-dev", name, "-ngl", "99")
            found.append(_At(name, words, device, name, free, hardware[name]))
    return found


class _Session:
    def __init__(
        self,
        engine: Programs,
        formats: Formats,
        servers: Sequence[str],
        threads: int,
        cards: Sequence[_At],
        is_alike: bool,
    ) -> None:
        self._engine, self._formats, self._threads = engine, formats, threads
        self._rpc = [long("rpc"), ",".join(servers), *OWN_MEMORY] if servers else []
        self._cards, self._is_alike = cards, is_alike
        self._is_own = bool(cards) and not servers
        self.size = OWN_CARDS if self._is_own else SERVED
        self._source = f"{ENGINE} {engine.version}, {counted(threads, 'thread')}, {today()}"

    def measured(self, report: Report) -> Cluster:
        host, cards = _At(_HOST, self._host_words(), _HOST), self._cards
        chosen = [host, *(cards[:1] if self._is_alike else cards)]
        with self._probes() as probes:
            times = self._times(chosen, probes, report)
            ways = self._ways(probes, times) if cards else _Ways()
        found = {device.name: self._pairs(times, device) for device in chosen}
        return self._cluster(found, ways)

    def _host_words(self) -> tuple[str, ...]:
        """Options with which the host computes all.

        Beside a GPU it reads weights from pinned memory, which has no format of its own for them.
        """
        if not self._is_own:
            return "-dev", "none", "-ngl", "0"
        return "-dev", self._cards[0].name, "-ngl", "0", "-nopo", "1"

    @contextmanager
    def _probes(self) -> Iterator[dict[Probe, Path]]:
        found = [Probe(n, _TINY, 2 * _TINY, "f32") for n in _TINY_LAYERS]
        size = self.size
        for dtype, has_experts in self._formats.items():
            found.append(Probe(size.layers, size.hidden, size.feed, dtype))
            if has_experts:
                own = Probe(size.layers, size.hidden, size.expert_feed, dtype, has_experts=True)
                found.append(own)
        with tempfile.TemporaryDirectory() as folder:
            paths = {probe: Path(folder) / f"probe-{at}" for at, probe in enumerate(found)}
            for probe, path in paths.items():
                write_probe(path, probe)
            yield paths

    def _times(
        self, devices: Sequence[_At], probes: Mapping[Probe, Path], report: Report
    ) -> dict[tuple[str, Probe, int], dict[int, float]]:
        """Device, probe and depth -> tokens of a pass -> seconds."""
        samples: dict[tuple[str, Probe, int], dict[int, list[float]]] = {}
        deep = self._large(probes)
        jobs = [(at, probe, depth) for probe in probes for at in devices
                for depth in ((0, _DEPTH) if probe == deep else (0,))]  # fmt: skip
        for number in range(PROBE_ROUNDS):
            for index, (at, probe, depth) in enumerate(jobs):
                part = (number + index / len(jobs)) / PROBE_ROUNDS
                report(part, f"measuring {probe.dtype} on '{at.name}'")
                rows = self._rows(probe, depth)
                measured = self._bench(probes[probe], at.words, rows, depth, probe)
                own = samples.setdefault((at.name, probe, depth), {})
                for tokens, seconds in measured.items():
                    own.setdefault(tokens, []).extend(seconds)
        return {
            key: {tokens: median(row) for tokens, row in own.items()}
            for key, own in samples.items()
        }

    def _large(self, probes: Iterable[Probe]) -> Probe:
        """The large dense probe of the first format."""
        return next(probe for probe in probes if probe.hidden == self.size.hidden)

    def _rows(self, probe: Probe, depth: int) -> tuple[int, ...]:
        if probe.hidden == _TINY:
            return (1,)
        return (1, _DEEP_ROWS) if depth else ROWS

    def _bench(
        self, path: Path, words: Sequence[str], rows: Sequence[int], depth: int, probe: Probe
    ) -> dict[int, list[float]]:
        """Tokens of a pass -> seconds of one, in each repetition."""
        steps = _TINY_STEPS if probe.hidden == _TINY else _STEPS
        prompts = [str(tokens) for tokens in rows if tokens > 1] or ["0"]
        tests = ["-p", ",".join(prompts), "-n", str(steps), "-d", str(depth)]
        repeats = _OWN_REPEATS if self._is_own else _REPEATS
        done = self._engine.run(
            BENCH,
            ["-m", str(path), *self._rpc, *words, "-t", str(self._threads), "-fa", "on",
             "-ub", str(ROWS[-1]), *tests, "-r", str(repeats), "-o", "json"],
        )  # fmt: skip
        try:
            return {
                int(row["n_prompt"]) or 1: [
                    float(sample) * 1e-9 / (row["n_gen"] or 1) for sample in row["samples_ns"]
                ]
                for row in json.loads(done.output)
            }
        except (ValueError, KeyError, TypeError):
            raise RuntimeFailure(f"'{BENCH}' printed no times: {done.output[:200]!r}") from None

    def _ways(self, probes: Mapping[Probe, Path], times: _Times) -> _Ways:
        """Seconds from device to device, each measured of the first card, or of the first two."""
        probe = next(probe for probe in probes if probe.layers == _TINY_LAYERS[1])
        path, cards, crossings = probes[probe], self._cards, 2 * probe.layers
        # Weights of the host stay there in long passes, too.
        alone = ["-dev", cards[0].name, "-ngl", "99", "-nopo", "1"]
        ways = {"one": alone, "host": [*alone, "-ot", f"{_HALVES}=CPU"]}
        if len(cards) > 1:
            two = "/".join(card.name for card in cards[:2])
            moved = f"{_HALVES}={cards[1].buffer}"
            ways["two"] = ["-dev", two, "-ngl", "99", "-ts", "1/0", "-ot", moved]
        samples: dict[tuple[str, int], list[float]] = {}
        few, many = ROWS[0], ROWS[-1]
        for _ in range(PROBE_ROUNDS):
            for name, words in ways.items():
                for rows, seconds in self._bench(path, words, (few, many), 0, probe).items():
                    samples.setdefault((name, rows), []).extend(seconds)
        found = {key: median(row) for key, row in samples.items()}
        extra = {rows: found["host", rows] - found["one", rows] for rows in (few, many)}
        per_byte = (extra[many] - extra[few]) / (crossings * 4.0 * _TINY * (many - few))
        between = found.get(("two", few), found["one", few]) - found["one", few]
        hand_overs = [max(0.0, seconds) / crossings for seconds in (extra[few], between)]
        state = max(_PER_BYTE, per_byte)
        copied = self._copied(probes, times) if self._is_own else state
        return _Ways(hand_overs[0], hand_overs[1], state, copied)

    def _copied(self, probes: Mapping[Probe, Path], times: _Times) -> float:
        """Seconds per byte of weights that the first card copies from the host in a long pass."""
        probe, card = self._large(probes), self._cards[0]
        words = ["-dev", card.name, "-ngl", "0"]
        samples: list[float] = []
        for _ in range(PROBE_ROUNDS):
            samples += self._bench(probes[probe], words, (_COPIED_ROWS,), 0, probe)[_COPIED_ROWS]
        extra = median(samples) - times[card.name, probe, 0][_COPIED_ROWS]
        return max(_LEAST_COPIED, extra / probes[probe].stat().st_size)

    def _pairs(self, times: _Times, at: _At) -> dict[tuple[str, bool, int], ProbePair]:
        """Format ("" for the tiny ones), experts and depth -> a pair of a device.

        The smaller one of a large probe has no layers: it is what the tiny ones take beyond theirs.
        """
        own = {(probe, depth): seconds for (name, probe, depth), seconds in times.items()
               if name == at.name}  # fmt: skip
        small, large = (probe for probe, _ in own if probe.hidden == _TINY)
        tiny = ProbePair((small.layers, large.layers), (own[small, 0], own[large, 0]),
                         small.operations, small.kernels)  # fmt: skip
        return {("", False, 0): tiny} | {
            (probe.dtype, probe.has_experts, depth): ProbePair(
                (0, probe.layers),
                (dict.fromkeys(seconds, tiny.fixed(1)), seconds),
                probe.operations,
                probe.kernels,
                USED / EXPERTS if probe.has_experts else 1.0,
            )
            for (probe, depth), seconds in own.items()
            if probe.hidden != _TINY
        }

    def _rates(self, pairs: Mapping[tuple[str, bool, int], ProbePair], extra: float) -> TokenRates:
        """The tables of a device, and seconds of a pass less those that links have."""
        tiny, first = pairs["", False, 0], next(iter(self._formats))
        launch = launch_seconds(tiny)
        products = {}
        for dtype, has_experts in self._formats.items():
            products[dtype] = dense_table(pairs[dtype, False, 0], launch)
            if has_experts:
                table = expert_table(pairs[dtype, True, 0], launch, products[dtype])
                products[f"{dtype}/experts"] = table
        scores = score_table(
            pairs[first, False, 0],
            pairs[first, False, _DEPTH],
            _DEPTH,
            4.0 * self.size.hidden,
            products[first],
        )
        per_pass = max(0.0, tiny.fixed(1) - extra)
        return token_rates(products, scores, launch, per_pass, self._source)

    def _cluster(
        self, pairs: Mapping[str, dict[tuple[str, bool, int], ProbePair]], ways: _Ways
    ) -> Cluster:
        host = self._rates(pairs[_HOST], 0.0)
        threads = {THREADS: str(self._threads)}
        devices: list[Device] = []
        links: list[Link] = []
        for card in self._cards:
            own = pairs.get(card.name, pairs[self._cards[0].name])
            rates = self._rates(own, host.per_pass + ways.to_host)
            name, options = card.device, {NAME: card.buffer}
            links.append(Link(_HOST, name, ways.to_host, 1.0 / ways.copied))
            links.append(Link(name, _HOST, ways.to_host, 1.0 / ways.per_byte))
            for other in devices:
                for source, target in ((other.name, name), (name, other.name)):
                    links.append(Link(source, target, ways.between, 1.0 / ways.per_byte))
            options |= {} if self._is_own else threads
            devices.append(_device(name, "gpu", rates, card.memory, options))
        # Cards of one memory each report all of what they may use of it.
        shared = [card.memory for card in self._cards if card.name.startswith(_SHARES_MEMORY)]
        left = max(0.0, memory_bytes() - max(shared, default=0.0))
        devices.append(_device(_HOST, "cpu", host, left, threads))
        return Cluster(tuple(devices), tuple(links), host=_HOST)


@dataclass(frozen=True)
class _Ways:
    """Seconds of what goes from device to device."""

    # to_host, between: to hand a state from the host to a card or back, and from card to card
    to_host: float = 0.0
    between: float = 0.0
    # per_byte, copied: of a state, and to a card
    per_byte: float = 0.0
    copied: float = 0.0


def _device(
    name: str, kind: str, rates: TokenRates, memory: float, options: Mapping[str, str]
) -> Device:
    fastest = 1.0 / min(min(table) for table in rates.products.values())
    sheet = DataSheet({"f32": fastest, "f16": fastest}, fastest, rates)
    return Device(
        name, kind, memory, options=dict(options), fingerprint=rates.source, data_sheet=sheet
    )


def today() -> str:
    """The date, as files have it."""
    return datetime.now(UTC).date().isoformat()
