"""A plan of a language model, run by the engine itself: places, tokens, speed and a verdict.

Other ways to run the model on the same devices are its contenders, as options of the engine.

Speed is measured in rounds. Each round runs the plan and its contenders once, in turn, and the
verdict compares them within rounds, which cancels drift of the machine.
"""

from __future__ import annotations

import json
import math
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.placement import Placement
from placewright.core.plan import EVEN_SPLIT, PLAN, PlacerRecord, Plan, contender_of
from placewright.core.problem import Problem
from placewright.core.quantities import counted
from placewright.core.solution import Solution
from placewright.errors import FieldError, InexpressibleError, InputError, RuntimeFailure
from placewright.execution.engine.printed import printed_devices, printed_places, session_tokens
from placewright.execution.engine.programs import (
    BENCH,
    COMPLETION,
    FIT,
    OWN_MEMORY,
    Programs,
    Servers,
    long,
    running_servers,
)
from placewright.execution.token_work import PHASES, Phase, TokenRequest, Works
from placewright.profiling.token_costs import driver_bytes
from placewright.profiling.verdict import LEAST_FOR_INTERVAL, Verdict, judge
from placewright.report.language_text import engine_lines
from placewright.report.time_left import Report, no_report
from placewright.session.language.answer import problem_again, works_again
from placewright.session.language.engine_places import Places, compared_places, rounded
from placewright.session.language.problem import is_of_tokens, physical_cluster, tokens_of
from placewright.session.language.run_search import layer_runs
from placewright.session.plans import plan_of
from placewright.simulation.model import Simulator
from placewright.writers.llama_cpp import (
    NAME,
    SERVED,
    EngineOptions,
    engine_options,
    has_weights,
    threads_of,
)

ROUNDS = LEAST_FOR_INTERVAL
_REPEATS = 3  # of a test within a round, whose median counts
_LETTERS = (4, 40, 200)  # of the prompts whose answers are compared
_MOST_TOKENS = 24  # that are compared, of each prompt
_SEED = 1
_GREEDY = (
    *("-fit", "off", "-no-cnv", "-v", long("no-repack"), long("temp"), "0"),
    *map(long, ("ignore-eos", "no-display-prompt", "no-warmup", "prompt-cache-all")),
)
_MIB = 2.0**20
BY_MEMORY, FITTED = "split by memory", "the engine's fit"
_FIT_OPTIONS = {"-ngl", "-ts", "-ot", "-ncmoe", "-c"}  # that the fitting tool prints
_Simulators = Mapping[Phase, Simulator]


@dataclass(frozen=True)
class EngineContender:
    """A way to run the model."""

    name: str  # of the way
    words: tuple[str, ...]  # options of `llama-bench` that place it
    placement: Placement | None  # None if it is the engine's own
    is_split: bool  # it uses several devices


@dataclass(frozen=True)
class Contenders:
    """Ways that are measured, the plan first, and others with the reason why they are not."""

    measured: tuple[EngineContender, ...]
    left_out: dict[str, str]


@dataclass(frozen=True)
class EngineRun:
    """A plan as the engine ran it."""

    version: str  # of the engine
    request: TokenRequest  # that was measured
    places: Places  # the plan beside the engine's print
    # letters of a prompt -> tokens that are equal to those of the unsplit model, from the first on,
    # and the number that was compared
    equal_tokens: Mapping[int, tuple[int, int]]
    # contender -> phase -> seconds of each round
    seconds: Mapping[str, Mapping[Phase, Sequence[float]]]
    # contender -> phase -> seconds, of those that are placements
    predicted: Mapping[str, Mapping[Phase, float]]
    left_out: Mapping[str, str]  # contender -> why it was not measured
    verdict: Verdict | None  # of the whole request; None of too few rounds for an interval

    @property
    def equal(self) -> bool:
        """Tensors lie where the plan has them, and tokens are those of the unsplit model."""
        return not self.places.faults and all(
            same == count for same, count in self.equal_tokens.values()
        )

    def data(self) -> dict[str, Any]:
        """The run as a JSON document."""
        return {
            "engine": self.version,
            "request": vars(self.request),
            "equal": self.equal,
            "place_faults": list(self.places.faults),
            "layers": self.places.layers,
            "moved_tensors": self.places.moved,
            "memory": {name: vars(each) for name, each in self.places.memory.items()},
            "equal_tokens": [
                {"letters": letters, "equal": same, "compared": count}
                for letters, (same, count) in self.equal_tokens.items()
            ],
            "contenders": {name: self._contender(name) for name in self.seconds},
            "left_out": dict(self.left_out),
            "recommendation": None if self.verdict is None else self.verdict.recommendation,
            "verdict": self._too_few() if self.verdict is None else self.verdict.text,
        }

    def _too_few(self) -> str:
        """One sentence in place of a verdict: the median ratio to the fastest other, and advice."""
        totals = _totals(self.seconds)
        others = {name: float(np.median(row)) for name, row in totals.items() if name != PLAN}
        best = min(others, key=lambda name: others[name])
        ratio = float(np.median(np.asarray(totals[PLAN]) / np.asarray(totals[best])))
        return (
            f"no verdict: the plan takes {ratio:.2f} of the time of '{best}' in "
            f"{counted(len(totals[PLAN]), 'round')}; a 95 % interval needs {LEAST_FOR_INTERVAL} "
            "(argument `runs`)"
        )

    def _contender(self, name: str) -> dict[str, Any]:
        predicted = self.predicted.get(name, {})
        tokens = {"prefill": self.request.prompt, "decode": self.request.generate}
        return {
            phase: {
                "seconds": list(row),
                "median": float(np.median(row)),
                "tokens_per_second": tokens[phase] / float(np.median(row)),
                "predicted": predicted.get(phase),
            }
            for phase, row in self.seconds[name].items()
        }

    def lines(self) -> list[str]:
        """The run as lines of text."""
        return engine_lines(self.data())


def run_on_engine(
    plan: Plan,
    engine: Programs,
    *,
    servers: Sequence[str] = (),
    runs: int | None = None,
    compares: bool = True,
    report: Report = no_report,
) -> EngineRun:
    """Run a plan by the engine, compare it with the unsplit model, and measure it beside others.

    Args:
        servers: addresses of servers for the plan's cards, in their order; without any, those of
            the plan are started if they are of this machine.
        runs: rounds; None is 6.
        compares: measure other ways to use the devices, too.

    Raises:
        InexpressibleError: the engine cannot express the plan.
        InputError: the plan has no language model or uses a device that is gone, a program is
            missing, or an address is wrong.
        RuntimeFailure: a program or a server ended with an error.
        StalePlanError: the model's file has changed.
    """
    if not is_of_tokens(plan.problem):
        raise InputError("this plan is not of a language model, and an engine runs no other")
    if engine_options(plan).sizes["-ctk"] == "f32":
        raise InputError(
            "this plan has caches of f32, which the engine's benchmark does not know; place with "
            "argument `kv` f16 or narrower"
        )
    source = plan.problem.source
    if source is not None and not has_weights(source):
        raise InputError(
            f"'{source.path}' has no weights, which the engine needs: convert the model, and place "
            "its file"
        )
    if runs is not None and runs < 1:
        raise FieldError("runs", f"must be >= 1, got {runs}")
    request = tokens_of(plan.problem)
    if request.sequences > 1:
        raise FieldError("sequences", f"{request.sequences}: the engine's benchmark measures one")
    works = _works(plan.problem)
    plan = with_servers(plan, servers)
    simulators = _simulators(plan, works, request)  # refuses earlier plans before programs run
    with engine_servers(plan.problem, engine, may_answer=bool(servers)) as running:
        session = _Session(plan, engine, running, works, simulators)
        return session.run(runs or ROUNDS, report, compares=compares)


def _works(problem: Problem) -> Works:
    assert problem.source is not None
    works, _ = works_again(problem)
    if works is None:
        raise InputError(
            f"the model '{problem.source.path}' is not there, or has changed; give argument `model`"
        )
    return works


def _simulators(plan: Plan, works: Works, request: TokenRequest) -> _Simulators:
    """Phase of a request -> its simulator, on the devices of a plan."""
    work, cluster = works(request), physical_cluster(plan.problem)
    phases = [phase for phase in PHASES if any(x.phase == phase for x in work.request.passes)]
    return {x: Simulator(problem_again(plan, work, cluster, x)) for x in phases}


def with_servers(plan: Plan, servers: Sequence[str]) -> Plan:
    """The plan with its cards, in their order, on servers; without any it stays.

    Raises:
        FieldError: there are more or fewer servers than cards.
    """
    if not servers:
        return plan
    cluster = plan.problem.cluster
    cards = [device.name for device in cluster.devices if device.pool is None]
    if len(cards) != len(servers):
        raise FieldError(
            "servers", f"has {len(servers)} addresses for the {len(cards)} cards of the plan"
        )
    buffer = dict(zip(cards, (f"RPC0[{address}]" for address in servers), strict=True))
    devices = tuple(
        replace(device, options={**device.options, NAME: buffer[device.name]})
        if device.name in buffer
        else device
        for device in cluster.devices
    )
    problem = replace(plan.problem, cluster=replace(cluster, devices=devices))
    return replace(plan, problem=problem)


def engine_servers(
    problem: Problem, engine: Programs, *, may_answer: bool
) -> AbstractContextManager[Servers]:
    """The servers that a problem's cards name, for a block; see `running_servers`."""
    addresses = {}
    for device in problem.cluster.devices:
        served = SERVED.fullmatch(device.options.get(NAME, ""))
        if served is not None:
            addresses[served[1]] = threads_of(device)
    return running_servers(engine, addresses, may_answer=may_answer)


def listed_text(
    engine: Programs, servers: Sequence[str], *, explain: Callable[[], None] | None = None
) -> str:
    """The engine's own list of its devices, with those of servers.

    Raises:
        RuntimeFailure: the engine ended with an error.
    """
    words = [long("rpc"), ",".join(servers)] if servers else []
    done = engine.run(BENCH, [*words, long("list-devices")], explain=explain)
    return done.output.decode(errors="replace") + done.log


class _Session:
    """The programs that run a plan, with the options that they share."""

    def __init__(
        self, plan: Plan, engine: Programs, servers: Servers, works: Works, simulators: _Simulators
    ) -> None:
        assert plan.problem.source is not None
        self._plan, self._engine, self._servers = plan, engine, servers
        self._works, self._simulators = works, simulators
        self._request = tokens_of(plan.problem)
        self._path, self._explain = plan.problem.source.path, servers.require_alive
        self._options = engine_options(plan)

    def run(self, rounds: int, report: Report, *, compares: bool) -> EngineRun:
        plan = self._plan
        free = self._free()
        report(0.0, "comparing places and tokens")
        log, generated = self._generated(self._options, OWN_MEMORY)
        places = compared_places(plan, self._works, self._request, printed_places(log))
        contenders = contenders_of(
            plan,
            self._path,
            lambda: fitted_words(self._engine, plan, self._path, free, self._explain),
        )
        if not compares:
            contenders = Contenders(contenders.measured[:1], {})
        tokens = self._equal_tokens(generated)
        seconds = self._measured(contenders, rounds, report)
        return EngineRun(
            self._engine.version,
            self._request,
            places,
            tokens,
            seconds,
            self._predictions(contenders),
            contenders.left_out,
            verdict_of_rounds(contenders, seconds),
        )

    def _free(self) -> dict[str, float]:
        """Device of the engine -> free bytes.

        Raises:
            InputError: a device of the plan is not there.
        """
        listed = listed_text(self._engine, self._options.servers, explain=self._explain)
        found = printed_devices(listed)
        for name in self._options.devices:
            if name not in found:
                known = ", ".join(found) or "none"
                raise InputError(
                    f"the engine has no device '{name}' here; it has: {known}. Give argument "
                    "`servers` with an address for each card of the plan"
                )
        return found

    def _generated(
        self, options: EngineOptions, loading: Sequence[str] = ()
    ) -> tuple[str, dict[int, list[int]]]:
        """The log of the first run, and the tokens that greedy decoding adds to each prompt.

        Kernels are those that all processors have, so that tokens can be equal.

        Args:
            options: where tensors lie.
            loading: further options; without any, the file is mapped, and may be larger than RAM.
        """
        log, found = "", {}
        rng = np.random.default_rng(_SEED)
        words = options.words(self._path, COMPLETION)[1:]
        count = min(_MOST_TOKENS, max(1, self._request.generate))
        context = rounded(self._request).context
        for letters in (n for n in _LETTERS if n + count + 2 <= context):
            prompt = "".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), letters))
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "session"
                done = self._engine.run(
                    COMPLETION,
                    [*words, *_GREEDY, *loading, "-p", prompt, "-n", str(count),
                     long("seed"), str(_SEED), long("prompt-cache"), str(file)],
                    explain=self._explain,
                )  # fmt: skip
                tokens = session_tokens(file)
            log, found[letters] = log or done.log, tokens
        return log, {letters: tokens[-count:] for letters, tokens in found.items()}

    def _equal_tokens(self, tokens: Mapping[int, list[int]]) -> dict[int, tuple[int, int]]:
        """Letters of a prompt -> tokens that are equal from the first on, and all of them."""
        unsplit = replace(
            self._options, devices=(), servers=(), gpu_layers=0, shares=(), overrides={},
            cpu_experts=0,
        )  # fmt: skip
        _, expected = self._generated(unsplit)
        found = {}
        for letters, own in tokens.items():
            differs = np.flatnonzero(np.array(own) != np.array(expected[letters]))
            found[letters] = (int(differs[0]) if len(differs) else len(own), len(own))
        return found

    def _measured(
        self, contenders: Contenders, rounds: int, report: Report
    ) -> dict[str, dict[Phase, list[float]]]:
        request, ways = self._request, contenders.measured
        tests: dict[Phase, list[str]] = {
            "prefill": ["-p", str(request.prompt), "-n", "0"],
            "decode": ["-p", "0", "-n", str(request.generate), "-d", str(request.prompt)],
        }
        phases = [phase for phase in PHASES if phase == "prefill" or request.generate]
        found: dict[str, dict[Phase, list[float]]] = {
            way.name: {phase: [] for phase in phases} for way in ways
        }
        for number in range(rounds):
            for at in range(len(ways)):  # another begins each round
                each = ways[(at + number) % len(ways)]
                report((number + at / len(ways)) / rounds, f"measuring '{each.name}'")
                for phase in phases:
                    found[each.name][phase].append(self._seconds(each, tests[phase]))
        return found

    def _seconds(self, contender: EngineContender, test: Sequence[str]) -> float:
        words = [*contender.words, *test, "-r", str(_REPEATS), "-o", "json"]
        words += OWN_MEMORY if self._options.servers else ()
        done = self._engine.run(BENCH, words, explain=self._explain)
        try:
            (row,) = json.loads(done.output)
            return float(np.median(row["samples_ns"])) * 1e-9
        except (ValueError, KeyError, TypeError):
            raise RuntimeFailure(f"'{BENCH}' printed no time: {done.output[:200]!r}") from None

    def _predictions(self, contenders: Contenders) -> dict[str, dict[Phase, float]]:
        def of(placement: Placement) -> dict[Phase, float]:
            return {phase: one.value(placement) for phase, one in self._simulators.items()}

        return {
            contender.name: of(contender.placement)
            for contender in contenders.measured
            if contender.placement is not None
        }


def _totals(
    seconds: Mapping[str, Mapping[Phase, Sequence[float]]],
) -> dict[str, list[float]]:
    """Contender -> seconds of the whole request in each round."""
    return {
        name: np.sum([np.asarray(row) for row in phases.values()], axis=0).tolist()
        for name, phases in seconds.items()
    }


def verdict_of_rounds(
    contenders: Contenders, seconds: Mapping[str, Mapping[Phase, Sequence[float]]]
) -> Verdict | None:
    """The plan against all others, by the whole request; None of too few rounds to know."""
    totals = _totals(seconds)
    others = [contender for contender in contenders.measured if contender.name != PLAN]
    if others and len(totals[PLAN]) < LEAST_FOR_INTERVAL:
        return None
    ordered = sorted(others, key=lambda contender: contender.is_split)
    splits = [contender.name for contender in others if contender.is_split]
    return judge(totals, [contender.name for contender in ordered], splits=splits)


def contenders_of(plan: Plan, path: str, fit: Callable[[], list[str]]) -> Contenders:
    """A plan beside each device alone, an even split, a split by memory and the engine's own.

    Args:
        fit: gives the options that the engine's fitting tool chooses.
    """
    options = engine_options(plan)
    found = [_contender(PLAN, plan, options, path)]
    left_out: dict[str, str] = {}
    for name, placement in _simple(plan.problem):
        fault = Simulator(plan.problem).violation(placement)
        if fault is not None:
            left_out[name] = fault.message
            continue
        try:
            other = _plan_at(plan, placement)
            made = _contender(name, other, _alone(engine_options(other)), path)
        except InexpressibleError as error:
            left_out[name] = str(error)
            continue
        same = next((contender.name for contender in found if contender.words == made.words), None)
        if same is None:
            found.append(made)
        else:
            left_out[name] = f"it is the same as '{same}'"
    try:
        words = _fitted(options, path, fit())
    except (RuntimeFailure, InexpressibleError) as error:
        left_out[FITTED] = str(error)
    else:
        found.append(EngineContender(FITTED, tuple(words), None, is_split=True))
    return Contenders(tuple(found), left_out)


def _simple(problem: Problem) -> list[tuple[str, Placement]]:
    """Each device alone, then the splits that ask for no search."""
    names, order = problem.cluster.device_names, layer_runs(problem).order
    cards = [at for at in order if problem.cluster.devices[at].pool is None]
    hosts = [at for at in order if at not in cards]
    alone = [*cards, *hosts[:1]]
    found = [(contender_of(names[at]), _split(problem, [at], [1.0])) for at in alone]
    if len(cards) > 1:
        limits = problem.cluster.memory_bytes[cards].tolist()
        found.append((EVEN_SPLIT, _split(problem, cards, [1.0] * len(cards))))
        if 0 < sum(limits) < math.inf:  # else it has no shares
            found.append((BY_MEMORY, _split(problem, cards, limits)))
    return found


def _split(problem: Problem, devices: Sequence[int], shares: Sequence[float]) -> Placement:
    """Layers on devices by shares, as the engine's rule divides them; the head is the last."""
    graph, layers = problem.graph, layer_runs(problem)
    cumulated = np.cumsum(np.asarray(shares, dtype=np.float32))
    cumulated /= cumulated[-1]
    count = len(layers.ops) + 1
    where = np.arange(count, dtype=np.float32) / np.float32(count)
    chosen = [devices[int(at)] for at in np.searchsorted(cumulated, where, side="right")]
    of_module = {graph.op_modules[op]: at for op, at in zip(layers.ops, chosen, strict=False)}
    own = [of_module.get(graph.op_modules[op], chosen[-1]) for op in range(graph.n_ops)]
    embedding = graph.op_index["embedding"]  # which the engine keeps on the host
    own[embedding] = problem.pins.get(embedding, own[embedding])
    return Placement.of(own)


def _plan_at(plan: Plan, placement: Placement) -> Plan:
    value = Simulator(plan.problem).value(placement)
    record = PlacerRecord("single", "0", 0, 1, 0.0, ())
    return plan_of(plan.problem, Solution(placement, value, "feasible"), record, plan.runtime)


def _alone(options: EngineOptions) -> EngineOptions:
    """Options that name only the cards that are used, if that is one or none."""
    used = [at for at, share in enumerate(options.shares) if share]
    if options.gpu_layers == 0 or len(used) != 1:
        return options if options.gpu_layers else replace(options, devices=(), shares=())
    return replace(options, devices=(options.devices[used[0]],), shares=(options.shares[used[0]],))


def _contender(name: str, plan: Plan, options: EngineOptions, path: str) -> EngineContender:
    used = np.unique(plan.placement.device_of[1:])
    words = tuple(options.words(path, BENCH)[1:])
    return EngineContender(name, words, plan.placement, is_split=len(used) > 1)


def fitted_words(
    engine: Programs, plan: Plan, path: str, free: dict[str, float], explain: Callable[[], None]
) -> list[str]:
    """The options that the engine's fitting tool prints, with limits as its margins.

    The tool counts buffers, too, so that the limits are those of devices without their drivers.

    Args:
        plan: whose devices, limits and sizes are taken.
        free: device of the engine -> bytes that it reports as free.
        explain: see `Programs.run`.

    Raises:
        InexpressibleError: no card has a limit that margins can express.
        RuntimeFailure: the tool found nothing.
    """
    options = engine_options(plan)
    problem, physical = plan.problem, physical_cluster(plan.problem)
    cards = (problem.cluster.devices[at] for at in layer_runs(problem).order)
    whole = [physical.devices[physical.device(x.name)] for x in cards if x.pool is None]
    limits = [max(0.0, float(card.memory_bytes) - driver_bytes(card)) for card in whole]
    if not limits:
        raise InexpressibleError("the fitting tool takes no limits without cards")
    margins = [
        str(max(0, round((free[name] - limit) / _MIB))) if math.isfinite(limit) else "0"
        for name, limit in zip(options.devices, limits, strict=True)
    ]
    words = ["-m", path]
    words += [long("rpc"), ",".join(options.servers)] if options.servers else []
    words += ["-dev", ",".join(options.devices), "-fitt", ",".join(margins)]
    for option, value in options.sizes.items():
        words += [option, value]
    done = engine.run(FIT, words, explain=explain)
    return shlex.split(done.output.decode(errors="replace"))


def _fitted(options: EngineOptions, path: str, printed: Sequence[str]) -> list[str]:
    """Options of `llama-bench` from those that the fitting tool printed.

    Raises:
        RuntimeFailure: the tool printed something unknown.
    """
    chosen = dict(zip(printed[::2], printed[1::2], strict=False))
    if len(printed) % 2 or not set(chosen) <= _FIT_OPTIONS or "-ngl" not in chosen:
        raise RuntimeFailure(f"the fitting tool printed unknown options: {' '.join(printed)}")
    plain = replace(
        options, gpu_layers=int(chosen["-ngl"]), shares=(), overrides={}, cpu_experts=0,
        is_streaming=True,  # as the tool assumes
    )  # fmt: skip
    words = plain.words(path, BENCH)[1:]
    if "-ts" in chosen:
        words += ["-ts", chosen["-ts"].replace(",", "/")]
    if "-ot" in chosen:
        words += ["-ot", chosen["-ot"].replace(",", ";")]
    if "-ncmoe" in chosen:
        words += ["-ncmoe", chosen["-ncmoe"]]
    return words
