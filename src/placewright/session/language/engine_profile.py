"""The devices of an engine, measured by its own benchmark, and kept for `place`.

Probes are measured on each device by turns, and medians count, as they do where a plan is measured.
Two tiny ones give the seconds of a pass beyond its layers, and the rest of a large one's is its
layers'. Servers that this process starts alike are measured once.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from placewright.core.cluster import Cluster, Device, Link
from placewright.core.data_sheet import DataSheet, TokenRates
from placewright.errors import FieldError, RuntimeFailure
from placewright.execution.engine.probe import EXPERTS, USED, Probe, write_probe
from placewright.execution.engine.programs import BENCH, ENGINE, Programs, long, running_servers
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
from placewright.session.language.engine_run import THREADS
from placewright.session.language.kept_rates import keep_engine_cluster
from placewright.session.language.problem import asked_tokens
from placewright.session.models import Model
from placewright.session.request import Request
from placewright.writers.llama_cpp import NAME

HIDDEN, FEED, _TINY = 1024, 2816, 64
# Experts are narrow: what a layer does besides products is a larger part of their time. Published
# models have 0.3 (DeepSeek V3, Qwen3 235B) to 1 (gpt-oss) times the width of the state.
EXPERT_FEED = 1024
# Weights of probes are a few times a processor's cache. If a good part of them stays there from one
# pass to the next, products are faster than those of a model.
_LAYERS, _TINY_LAYERS = 8, (2, 6)
_STEPS, _TINY_STEPS = 8, 32  # of decode in a test
_DEPTH, _DEEP_ROWS = 512, 64
PROBE_ROUNDS, _REPEATS = 4, 2  # of each test: in turn with others, and one after the other
_PER_BYTE = 1e-10  # seconds, at least, on the way to a card
_HALVES = r"blk\..*\.ffn_.*"  # tensors of the second half of each layer
_HOST = "cpu"

Formats = Mapping[str, bool]  # format -> whether routed experts have it, too


@dataclass(frozen=True)
class _At:
    """A device that the engine's benchmark measures."""

    name: str
    words: tuple[str, ...]


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
    count = threads or os.cpu_count() or 1
    with running_servers(engine, dict.fromkeys(servers, count), may_answer=True) as running:
        alike = len(running.started) == len(servers)
        session = _Session(engine, formats, servers, count, alike)
        cluster = session.measured(report)
    return keep_engine_cluster(cluster, f"{engine.version} {count} {_LAYERS} {EXPERT_FEED}")


class _Session:
    def __init__(
        self,
        engine: Programs,
        formats: Formats,
        servers: Sequence[str],
        threads: int,
        is_alike: bool,
    ) -> None:
        self._engine, self._formats, self._threads = engine, formats, threads
        self._rpc = [long("rpc"), ",".join(servers)] if servers else []
        self._servers = servers
        self._is_alike = is_alike
        self._source = f"{ENGINE} {engine.version}, {count_text(threads)}, {today()}"

    def measured(self, report: Report) -> Cluster:
        cards = [_At(f"RPC{at}", ("-dev", f"RPC{at}", "-ngl", "99"))
                 for at in range(len(self._servers))]  # fmt: skip
        host = _At(_HOST, ("-dev", "none", "-ngl", "0"))
        chosen = [host, *(cards[:1] if self._is_alike else cards)]
        with self._probes() as probes:
            times = self._times(chosen, probes, report)
            ways = self._hand_overs(cards, probes) if cards else (0.0, 0.0, 0.0)
        found = {device.name: self._pairs(times, device) for device in chosen}
        return self._cluster(found, cards, ways)

    @contextmanager
    def _probes(self) -> Iterator[dict[Probe, Path]]:
        found = [Probe(n, _TINY, 2 * _TINY, "f32") for n in _TINY_LAYERS]
        for dtype, has_experts in self._formats.items():
            found.append(Probe(_LAYERS, HIDDEN, FEED, dtype))
            if has_experts:
                found.append(Probe(_LAYERS, HIDDEN, EXPERT_FEED, dtype, has_experts=True))
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
        deep = next(probe for probe in probes if probe.hidden == HIDDEN)  # that of the first format
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

    def _rows(self, probe: Probe, depth: int) -> tuple[int, ...]:
        if probe.hidden == _TINY:
            return (1,)
        return (1, _DEEP_ROWS) if depth else ROWS

    def _bench(
        self, path: Path, words: Sequence[str], rows: Sequence[int], depth: int, probe: Probe
    ) -> dict[int, list[float]]:
        """Tokens of a pass -> seconds of one, in each repetition."""
        steps = _TINY_STEPS if probe.hidden == _TINY else _STEPS
        long = [str(tokens) for tokens in rows if tokens > 1] or ["0"]
        tests = ["-p", ",".join(long), "-n", str(steps), "-d", str(depth)]
        done = self._engine.run(
            BENCH,
            ["-m", str(path), *self._rpc, *words, "-t", str(self._threads), "-fa", "on",
             "-ub", str(ROWS[-1]), *tests, "-r", str(_REPEATS), "-o", "json"],
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

    def _hand_overs(
        self, cards: Sequence[_At], probes: Mapping[Probe, Path]
    ) -> tuple[float, float, float]:
        """Seconds to hand a state from the host to a card, from a card to another, and per byte."""
        probe = next(probe for probe in probes if probe.layers == _TINY_LAYERS[1])
        path, crossings = probes[probe], 2 * probe.layers
        alone = ["-dev", cards[0].name, "-ngl", "99"]
        ways = {"one": alone, "host": [*alone, "-ot", f"{_HALVES}=CPU"]}
        if len(cards) > 1:
            two = "/".join(card.name for card in cards[:2])
            moved = f"{_HALVES}=RPC0[{self._servers[1]}]"
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
        return hand_overs[0], hand_overs[1], max(_PER_BYTE, per_byte)

    def _pairs(
        self, times: Mapping[tuple[str, Probe, int], dict[int, float]], at: _At
    ) -> dict[tuple[str, bool, int], ProbePair]:
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
            4.0 * HIDDEN,
            products[first],
        )
        per_pass = max(0.0, tiny.fixed(1) - extra)
        return token_rates(products, scores, launch, per_pass, self._source)

    def _cluster(
        self,
        pairs: Mapping[str, dict[tuple[str, bool, int], ProbePair]],
        cards: Sequence[_At],
        ways: tuple[float, float, float],
    ) -> Cluster:
        to_host, between, per_byte = ways
        host = self._rates(pairs[_HOST], 0.0)
        ram = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        threads = {THREADS: str(self._threads)}
        devices, links = [], []
        for at, (card, address) in enumerate(zip(cards, self._servers, strict=True)):
            own = pairs.get(card.name, pairs[cards[0].name])
            rates = self._rates(own, host.per_pass + to_host)
            name = f"rpc:{at}"
            options = {NAME: f"RPC0[{address}]", **threads}
            devices.append(_device(name, "gpu", rates, ram, options))
            for source, target in ((_HOST, name), (name, _HOST)):
                links.append(Link(source, target, to_host, 1.0 / per_byte))
            for other in range(at):
                for source, target in ((f"rpc:{other}", name), (name, f"rpc:{other}")):
                    links.append(Link(source, target, between, 1.0 / per_byte))
        devices.append(_device(_HOST, "cpu", host, ram, threads))
        return Cluster(tuple(devices), tuple(links), host=_HOST)


def _device(
    name: str, kind: str, rates: TokenRates, memory: float, options: Mapping[str, str]
) -> Device:
    fastest = 1.0 / min(min(table) for table in rates.products.values())
    sheet = DataSheet({"f32": fastest, "f16": fastest}, fastest, rates)
    return Device(
        name, kind, memory, options=dict(options), fingerprint=rates.source, data_sheet=sheet
    )


def count_text(threads: int) -> str:
    """A number of threads in words."""
    return "1 thread" if threads == 1 else f"{threads} threads"


def today() -> str:
    """The date, as files have it."""
    return datetime.now(UTC).date().isoformat()
