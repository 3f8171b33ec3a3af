"""Work on other processes and hosts.

Each host of a Ray cluster lists and measures its own devices. In a search with workers, turns of
the members of `auto` are tasks, and so are training episodes.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from placewright.core.cluster import Cluster
from placewright.core.problem import Problem
from placewright.core.solution import Budget, Solution
from placewright.errors import AnswerError, FieldError, InputError, UnknownNameError
from placewright.frameworks.runtimes import default_runtime_name
from placewright.placers.bases import anytime
from placewright.placers.learned.shared.training_episodes import (
    Episode,
    Job,
    Known,
    Learned,
    Rollouts,
    learned_in,
)
from placewright.placers.portfolio.auto import Auto
from placewright.placers.portfolio.kernels import make_ready
from placewright.placers.portfolio.turn import Turn, Turns, TurnTaker, take_turn
from placewright.profiling.several_hosts import Way, joined_cluster, joined_problem
from placewright.profiling.units import with_granularity
from placewright.report.time_left import Report, Steps, no_report
from placewright.session.devices import candidates, default_names, discover
from placewright.session.measuring import Measured
from placewright.session.models import ModelOfRequest
from placewright.session.problems import build, constrained, resident
from placewright.session.request import Request
from placewright.simulation.evaluator import Evaluator
from placewright.workers.interface import ThisProcess, Workers
from placewright.workers.processes import open_workers
from placewright.workers.ray_workers import (
    Answer,
    RayHost,
    answers,
    connect,
    hosts_of,
    is_there,
    measuring_actors,
    nodes_of,
    way_between,
)
from placewright.workers.tasks import Shared, Task

_LOG = logging.getLogger(__name__)
_ALL_LOST = "all hosts of the cluster were lost; see `ray status`"


def discover_on_hosts(
    names: str | None, ray: str, *, runtime: str | None = None, report: Report = no_report
) -> Cluster:
    """Devices of a Ray cluster with measured links, within each host and between them.

    Args:
        names: ``host:device`` between commas, or hosts for all that they have; None is all.
        ray: address of the cluster; see `workers.processes.open_workers`.
        runtime: whose devices; None is the first that is installed here.

    Raises:
        UnknownNameError: there is no such host or device.
        InputError: there is no such cluster, or a host cannot do it; the message names the host.
    """
    runtime = runtime or default_runtime_name()  # the same on each host
    with _Hosts.opened(ray) as hosts:
        wanted = hosts.devices(names, runtime)
        report(0.1, "links within hosts")
        arguments = {host: (",".join(of_host), runtime) for host, of_host in wanted.items()}
        clusters = hosts.values(_discovered, arguments, report, "links of")
        ways, left = hosts.ways(list(clusters), report)
        return joined_cluster({host: clusters[host] for host in left}, ways)


def profile_on_hosts(request: Request, report: Report = no_report) -> Measured:
    """Measure a model on devices of a Ray cluster, each on the host that has it.

    Every host reads the model from the same path. Hosts measure at the same time, one measurement
    on each, with all cores that Ray counts there; nodes of one machine do so one after the other. A
    host that is lost is left out.

    Args:
        request: with `ray`; `devices` as of `discover_on_hosts`.

    Returns:
        The problem, whose devices are named ``host:device``, and a clause for each omission of a
        host and for each lost host.

    Raises:
        UnknownNameError: there is no such host or device.
        InputError: the model is no file, or a host cannot measure it; the message names the host.
        AnswerError: all hosts were lost.
    """
    assert request.ray is not None
    here = _for_hosts(request)
    with _Hosts.opened(request.ray) as hosts:
        wanted = hosts.devices(request.devices, here.runtime)
        arguments = {
            host: (replace(here, devices=",".join(of_host)),) for host, of_host in wanted.items()
        }
        results = hosts.values(_profiled, arguments, report, "measuring on")
        ways, left = hosts.ways(list(results), report)
        results = {host: results[host] for host in left}
    problem = joined_problem({host: part for host, (part, _) in results.items()}, ways)
    if request.samples_in_flight == "pipeline":  # each host has counted its own devices
        problem = problem.with_samples_in_flight("pipeline")
    problem = with_granularity(problem, request.granularity)
    problem = resident(problem, request.resident)
    return Measured(
        constrained(problem, request.memory, request.pins),
        tuple(f"{host}: {clause}" for host, (_, left) in results.items() for clause in left)
        + tuple(f"{host}: it was lost" for host in wanted if host not in results),
    )


def _for_hosts(request: Request) -> Request:
    """The request for each host, without limits and pins, which name devices of all hosts."""
    model = request.model
    if not isinstance(model, str):
        raise FieldError("ray", "measures a model that is a file, or zoo:NAME")
    if request.cluster is not None:
        raise FieldError("cluster", "names devices of this machine; with `ray`, take `devices`")
    if request.calls:
        raise FieldError(
            "calls",
            "have a mean on one machine only, as ways between hosts are measured for one shape; "
            "leave out `ray`, or give the shapes of one call",
        )
    if not model.startswith("zoo:"):
        model = str(Path(model).resolve())
    return replace(
        request,
        model=model,
        runtime=request.runtime or default_runtime_name(request.reads_for, model),
        ray=None,
        workers=None,
        memory={},
        pins={},
        resident=(),
        granularity="op",
        devices=None,
    )


class _Hosts:
    """The hosts of a Ray cluster, with an actor on each."""

    def __init__(self, ray: Any, hosts: Sequence[RayHost], actors: Mapping[str, Any]) -> None:
        self.ray, self.hosts, self.actors = ray, hosts, actors

    @classmethod
    @contextmanager
    def opened(cls, address: str) -> Iterator[_Hosts]:
        """Connect to the cluster for a block."""
        ray, is_ours = connect(address, None)
        try:
            first = ray.get_runtime_context().get_node_id()
            hosts = hosts_of([node for node in nodes_of(ray) if node.cpus > 0], first)
            with measuring_actors(ray, hosts) as actors:
                yield cls(ray, hosts, actors)
        finally:
            if is_ours:
                ray.shutdown()

    def devices(self, names: str | None, runtime: str | None) -> dict[str, list[str]]:
        """Host -> local names of its requested devices."""
        known = self.values(_known, {host.name: (runtime,) for host in self.hosts})
        if names is None:
            return {host: usual.split(",") for host, (_, usual) in known.items()}
        wanted: dict[str, list[str]] = {}
        for name in filter(None, map(str.strip, names.split(","))):
            host, _, device = name.partition(":")
            here = known.get(host, ((), ""))
            if host not in known or (device and device not in here[0]):
                listed = [
                    f"{own}:{device}" for own, (local, _) in known.items() for device in local
                ]
                raise UnknownNameError("device", name, listed)
            wanted.setdefault(host, []).extend([device] if device else here[1].split(","))
        if not wanted:
            raise FieldError("devices", f"names no device, got '{names}'")
        return {host.name: wanted[host.name] for host in self.hosts if host.name in wanted}

    def values(
        self,
        function: Any,
        arguments: Mapping[str, tuple[Any, ...]],
        report: Report = no_report,
        doing: str = "",
    ) -> dict[str, Any]:
        """Call a function on each host; host -> result. Lost hosts are left out with a warning.

        Raises:
            InputError: a host cannot do it.
            AnswerError: all were lost.
        """
        hosts = [host for host in self.hosts if host.name in arguments]

        def told(host: str, done: int) -> None:
            report(0.9 * done / len(hosts), f"{doing} {host} ({done} of {len(hosts)} are done)")

        answered = answers(self.ray, self.actors, hosts, function, arguments, told)
        return _usable(answered)

    def ways(
        self, hosts: Sequence[str], report: Report
    ) -> tuple[dict[tuple[str, str], Way], list[str]]:
        """Measure the way between each pair of hosts in both directions, one after the other.

        Returns:
            The ways, and the hosts that are left. Lost hosts are left out with a warning.

        Raises:
            AnswerError: all were lost, or two that are there do not reach each other.
        """
        ways, left = {}, list(hosts)
        for source, target in itertools.permutations(hosts, 2):
            if source not in left or target not in left:
                continue
            report(0.95, f"the way from {source} to {target}")
            try:
                way = way_between(self.ray, self.actors[source], self.actors[target])
                ways[source, target] = Way(*way)
            except self.ray.exceptions.RayError as error:
                there = [host for host in left if is_there(self.ray, self.actors[host])]
                if there == left:
                    raise AnswerError(
                        f"host '{source}' does not reach host '{target}': "
                        f"{type(error).__name__}; see `ray status`"
                    ) from None
                left = _told_lost(left, there)
        return {pair: way for pair, way in ways.items() if set(pair) <= set(left)}, left


def _told_lost(before: Sequence[str], there: Sequence[str]) -> list[str]:
    """The hosts that are there, after a warning for each of the others."""
    for host in before:
        if host not in there:
            _LOG.warning("host '%s' was lost: its devices are left out", host)
    if not there:
        raise AnswerError(_ALL_LOST)
    return list(there)


def _usable(answered: Mapping[str, Answer]) -> dict[str, Any]:
    for host, answer in answered.items():
        if answer.error and not answer.is_lost:
            raise InputError(f"host '{host}': {answer.error}")
        if answer.is_lost:
            _LOG.warning("host '%s' was lost (%s): its devices are left out", host, answer.error)
    values = {host: answer.value for host, answer in answered.items() if not answer.is_lost}
    if not values:
        raise AnswerError(_ALL_LOST)
    return values


def _known(runtime: str | None) -> tuple[tuple[str, ...], str]:
    """On a host: all its devices, and those of a request that names none."""
    usual = default_names(runtime)
    own = candidates(runtime)
    if usual == "cores":
        usual = ",".join(name for name in own if name.startswith("cpu:"))
    return own, usual


def _discovered(names: str, runtime: str | None) -> Cluster:
    """On a host: its devices, and links measured there."""
    return discover(names, runtime=runtime)


def _profiled(request: Request) -> tuple[Problem, tuple[str, ...]]:
    """On a host: the problem of its devices, and clauses about omissions."""
    measured = build(ModelOfRequest(request), Steps())
    return measured.problem, measured.left_out


_PATIENCE = 5.0  # seconds after its own after which a turn is given up
_PATIENCE_WITHOUT_CLOCK = 60.0  # if processor seconds alone count: a busy machine gives few


@contextmanager
def workers_of(request: Request) -> Iterator[Workers | None]:
    """The workers of a request for a block; None if it names none.

    Raises:
        InputError: there are no such workers, or they could only stand in each other's way.
    """
    if request.workers is None and request.ray is None:
        yield None
        return
    if request.evaluator == "measured":
        field = "workers" if request.ray is None else "ray"
        raise FieldError(field, "is for simulated values: one placement is measured at a time")
    with open_workers(request.workers, request.ray) as workers:
        yield workers


@dataclass(frozen=True)
class SpreadAuto:
    """A placer that is `auto` with workers for its members' turns."""

    name: ClassVar[str] = Auto.name
    paper: ClassVar[str] = Auto.paper
    objectives: ClassVar[tuple[str, ...]] = Auto.objectives
    needs_training: ClassVar[bool] = False

    auto: Auto  # its settings
    workers: Workers  # that take the turns

    def why_not(self, problem: Problem) -> str | None:
        """Defined for every problem."""
        return self.auto.why_not(problem)

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """Search as `Auto.place` does; a single worker is this process with its threads."""
        if isinstance(self.workers, ThisProcess):
            return self.auto.place(problem, evaluator, rng)
        takers = _TurnsAsTasks(problem, evaluator.budget, self.workers)
        return self.auto.place_with(takers, problem, evaluator, rng)


class _TurnsAsTasks:
    """Takers whose turns are tasks of workers.

    Args:
        problem: what is placed; each worker gets it once.
    """

    is_joint, is_elsewhere = False, True

    def __init__(self, problem: Problem, budget: Budget, workers: Workers) -> None:
        self._problem, self._workers = problem, workers
        self._shared = Shared(TurnTaker(problem))
        self._patience = _PATIENCE_WITHOUT_CLOCK if budget.seconds is None else _PATIENCE

    @property
    def count(self) -> int:
        """As many as there are workers now."""
        return self._workers.count

    def make_ready(self) -> None:
        """See `portfolio.turn.Takers`."""
        kernels = (self._problem.objective, self._problem.execution_model)
        tasks = (Task(make_ready, kernels, label="kernels") for _ in range(self.count))
        self._workers.results(tasks)

    def run(self, turns: Iterable[Turn | None]) -> Turns:
        """See `portfolio.turn.Takers`."""
        for done in self._workers.run(self._tasks(turns)):
            turn: Turn = done.task.arguments[0]
            yield turn, None if done.lost else done.result

    def _tasks(self, turns: Iterable[Turn | None]) -> Iterator[Task | None]:
        for turn in turns:
            if turn is None:
                yield None
                continue
            task = Task(take_turn, (turn,), self._shared, label=turn.member)
            if turn.budget.seconds is not None:
                most = turn.budget.seconds + self._patience
                task = replace(task, seconds=most, tries=1, may_be_lost=True)
            yield task


def spread_rollouts(workers: Workers) -> Rollouts:
    """Make the `TrainingOptions.rollouts` whose episodes are tasks of workers.

    The graphs go to each worker once, the parameters once a round with each episode.
    """
    shared: dict[int, tuple[Job, Shared]] = {}  # a job that is kept shares its id with no other

    def rollouts(job: Job, known: Known, episodes: Sequence[Episode]) -> list[Learned]:
        if id(job) not in shared:
            shared.clear()
            # Another object: the driver's own trainee is the one that takes the steps.
            shared[id(job)] = job, Shared(Job(job.placer, job.settings, job.problems))
        _, copy = shared[id(job)]
        tasks = [
            Task(learned_in, (known, episode), copy, f"episode {episode.number}")
            for episode in episodes
        ]
        learned: list[Learned] = workers.results(tasks)
        return learned

    return rollouts
