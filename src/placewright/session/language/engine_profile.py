"""The devices of an engine, measured by its own benchmark, and kept for `place`.

Probes of two sizes are measured on each device by turns. Servers that this process starts alike
are measured once.
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

from placewright.core.cluster import Cluster, Device, Link
from placewright.core.data_sheet import DataSheet, TokenRates
from placewright.errors import FieldError, RuntimeFailure
from placewright.execution.engine.probe import EXPERTS, USED, Probe, write_probe
from placewright.execution.engine.programs import BENCH, ENGINE, Programs, long
from placewright.execution.engine.servers import running_servers
from placewright.profiling.token_fit import (
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
from placewright.session.language.kept_rates import keep
from placewright.session.language.problem import asked_tokens
from placewright.session.models import Model
from placewright.session.request import Request
from placewright.writers.llama_cpp import NAME

HIDDEN, FEED, _TINY = 1024, 2816, 64
_LAYERS, _TINY_LAYERS = (1, 3), (2, 6)
_STEPS, _TINY_STEPS = 8, 32  # of decode in a test
_DEPTH, _DEEP_ROWS = 512, 64
PROBE_ROUNDS = 3
_HOST = "cpu"

Formats = Mapping[str, bool]  # format -> whether routed experts have it, too


@dataclass(frozen=True)
class _At:
    """A device of the engine: its name there, and options of the benchmark."""

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
        for product in (product for each in passes for product in each.products):
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
    return keep(cluster, f"{engine.version} {count}")


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
            hand_over = self._hand_overs(cards, probes) if cards else (0.0, 0.0)
        found = {each.name: self._pairs(times, each) for each in chosen}
        return self._cluster(found, cards, hand_over)

    @contextmanager
    def _probes(self) -> Iterator[dict[Probe, Path]]:
        found = [Probe(n, _TINY, 2 * _TINY, "f32") for n in _TINY_LAYERS]
        for dtype, has_experts in self._formats.items():
            found += [Probe(n, HIDDEN, FEED, dtype) for n in _LAYERS]
            if has_experts:
                found += [Probe(n, HIDDEN, HIDDEN, dtype, has_experts=True) for n in _LAYERS]
        with tempfile.TemporaryDirectory() as folder:
            paths = {each: Path(folder) / f"probe-{at}" for at, each in enumerate(found)}
            for each, path in paths.items():
                write_probe(path, each)
            yield paths

    def _times(
        self, devices: Sequence[_At], probes: Mapping[Probe, Path], report: Report
    ) -> dict[tuple[str, Probe, int], dict[int, float]]:
        """Device, probe and depth -> tokens of a pass -> seconds.

        The least of the rounds counts: other work only adds time, and rates are differences.
        """
        samples: dict[tuple[str, Probe, int], dict[int, list[float]]] = {}
        deep = [each for each in probes if each.hidden == HIDDEN][: len(_LAYERS)]
        jobs = [(at, probe, depth) for probe in probes for at in devices
                for depth in ((0, _DEPTH) if probe in deep else (0,))]  # fmt: skip
        for number in range(PROBE_ROUNDS):
            for index, (at, probe, depth) in enumerate(jobs):
                part = (number + index / len(jobs)) / PROBE_ROUNDS
                report(part, f"measuring {probe.dtype} on '{at.name}'")
                rows = self._rows(probe, depth)
                measured = self._bench(probes[probe], at.words, rows, depth, probe)
                own = samples.setdefault((at.name, probe, depth), {})
                for tokens, seconds in measured.items():
                    own.setdefault(tokens, []).append(seconds)
        return {
            key: {tokens: min(row) for tokens, row in own.items()} for key, own in samples.items()
        }

    def _rows(self, probe: Probe, depth: int) -> tuple[int, ...]:
        if probe.hidden == _TINY:
            return (1,)
        return (1, _DEEP_ROWS) if depth else ROWS

    def _bench(
        self, path: Path, words: Sequence[str], rows: Sequence[int], depth: int, probe: Probe
    ) -> dict[int, float]:
        """Tokens of a pass -> seconds of one."""
        steps = _TINY_STEPS if probe.hidden == _TINY else _STEPS
        long = [str(tokens) for tokens in rows if tokens > 1] or ["0"]
        tests = ["-p", ",".join(long), "-n", str(steps), "-d", str(depth)]
        done = self._engine.run(
            BENCH,
            ["-m", str(path), *self._rpc, *words, "-t", str(self._threads), "-fa", "on",
             "-ub", str(ROWS[-1]), *tests, "-r", "1", "-o", "json"],
        )  # fmt: skip
        try:
            return {
                int(row["n_prompt"]) or 1: float(row["avg_ns"]) * 1e-9 / (row["n_gen"] or 1)
                for row in json.loads(done.output)
            }
        except (ValueError, KeyError, TypeError):
            raise RuntimeFailure(f"'{BENCH}' printed no times: {done.output[:200]!r}") from None

    def _hand_overs(
        self, cards: Sequence[_At], probes: Mapping[Probe, Path]
    ) -> tuple[float, float]:
        """Seconds to hand a state from the host to a card, and from a card to another."""
        probe = next(each for each in probes if each.layers == _TINY_LAYERS[1])
        path, layers = probes[probe], probe.layers
        one = ["-dev", cards[0].name, "-ngl", "99"]
        ways = {"one": one, "host": [*one, "-ot", r"blk\..*\.ffn_.*=CPU"]}
        if len(cards) > 1:
            two = "/".join(each.name for each in cards[:2])
            ways["two"] = ["-dev", two, "-ngl", "99", "-ts", "1/1"]
        samples: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(PROBE_ROUNDS):
            for name, words in ways.items():
                samples[name].append(self._bench(path, words, (1,), 0, probe)[1])
        least = {name: min(row) for name, row in samples.items()}
        to_host = max(0.0, least["host"] - least["one"]) / (2 * layers)
        return to_host, max(0.0, least.get("two", least["one"]) - least["one"])

    def _pairs(
        self, times: Mapping[tuple[str, Probe, int], dict[int, float]], at: _At
    ) -> dict[tuple[str, bool, int], ProbePair]:
        """Format ("" for the tiny ones), experts and depth -> the two probes of a device."""
        found: dict[tuple[str, bool, int], list[Probe]] = {}
        for name, probe, depth in times:
            if name == at.name:
                dtype = "" if probe.hidden == _TINY else probe.dtype
                found.setdefault((dtype, probe.has_experts, depth), []).append(probe)
        return {
            key: ProbePair(
                (two[0].layers, two[1].layers),
                (times[at.name, two[0], key[2]], times[at.name, two[1], key[2]]),
                two[0].operations,
                two[0].kernels,
                USED / EXPERTS if key[1] else 1.0,
            )
            for key, two in found.items()
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
        hand_over: tuple[float, float],
    ) -> Cluster:
        first = next(iter(self._formats))
        host = self._rates(pairs[_HOST], 0.0)
        ram = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        threads = {THREADS: str(self._threads)}
        devices, links = [], []
        for at, (card, address) in enumerate(zip(cards, self._servers, strict=True)):
            own = pairs.get(card.name, pairs[cards[0].name])
            rates = self._rates(own, host.per_pass + hand_over[0])
            name = f"rpc:{at}"
            options = {NAME: f"RPC0[{address}]", **threads}
            devices.append(_device(name, "gpu", rates, ram, options))
            per_byte = _per_byte(own[first, False, 0], pairs[_HOST][first, False, 0])
            for source, target in ((_HOST, name), (name, _HOST)):
                links.append(Link(source, target, hand_over[0], 1.0 / per_byte))
            for other in range(at):
                for source, target in ((f"rpc:{other}", name), (name, f"rpc:{other}")):
                    links.append(Link(source, target, hand_over[1], 1.0 / per_byte))
        devices.append(_device(_HOST, "cpu", host, ram, threads))
        return Cluster(tuple(devices), tuple(links), host=_HOST)


def _per_byte(card: ProbePair, host: ProbePair) -> float:
    """Seconds per byte of a hidden state on its way to a card."""
    many, one = ROWS[-1], ROWS[0]
    extra = (card.fixed(many) - host.fixed(many)) - (card.fixed(one) - host.fixed(one))
    return max(1e-10, extra / (4.0 * HIDDEN * (many - one)))


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
