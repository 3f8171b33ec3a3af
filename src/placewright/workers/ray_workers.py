"""Tasks and measurements on a Ray cluster.

A task has one core and is given again when a worker or its node is lost. A measurement is alone on
all cores of its host.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.errors import AnswerError, InputError, PlacewrightError, optional_library
from placewright.workers.interface import Attempt, Ended, OtherWorkers
from placewright.workers.served import KEPT, KeptValues, limit_threads, thread_variables
from placewright.workers.tasks import (
    Done,
    Shared,
    Versions,
    difference,
    performed,
    result_of,
    versions_here,
)

HERE = "local"  # address of a cluster that is started here
ANY = "auto"  # of the one that `RAY_ADDRESS` names or that runs here, else of one started here
ADDRESS = r"(?:ray://)?(?:[\w.\-]+|\[[0-9a-fA-F:]+\]):\d{1,5}"  # of one that runs already
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def connect(address: str, cpus: int | None) -> tuple[Any, bool]:
    """Connect; return the module `ray`, and True if this call made the connection.

    Args:
        address: ``HOST:PORT`` or ``ray://HOST:PORT`` of a cluster, `HERE`, or `ANY`.
        cpus: of a cluster that is started here; None is all of this machine.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: there is no such cluster, or its nodes have other versions.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = optional_library("ray", "ray", "work on a Ray cluster")
    if ray.is_initialized():
        require_same_versions(ray, nodes_of(ray))
        return ray, False
    if address == ANY:
        address = "auto" if _runs_here(ray) else HERE
    _start(ray, address, cpus)
    try:
        if address != HERE:
            require_same_versions(ray, nodes_of(ray))
    except BaseException:
        ray.shutdown()
        raise
    return ray, True


def _runs_here(ray: Any) -> bool:
    """True if Ray finds a cluster by itself."""
    if os.environ.get("RAY_ADDRESS"):
        return True
    try:
        return bool(ray._private.services.find_gcs_addresses())
    except (AttributeError, OSError):
        return False


def _start(ray: Any, address: str, cpus: int | None) -> None:
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    local = {"num_cpus": cpus, "include_dashboard": False} if address == HERE else {}
    try:
        ray.init(
            address=address,
            configure_logging=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": thread_variables(1)},
            **local,
        )
    except SystemExit:  # of Ray's own handler: the signal is for who was asked first
        _restore(handlers)
        signal.raise_signal(signal.SIGTERM)
        raise
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        # Ray itself sends its token to no address that somebody names, unless it is told to.
        token = (
            "" if "RAY_AUTH_MODE" in os.environ else "; if it asks for one, set RAY_AUTH_MODE=token"
        )
        raise InputError(f"no Ray cluster answers at '{address}': {reason}{token}") from None
    finally:
        _restore(handlers)


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    """Restore the handlers of signals: Ray's own handler of SIGTERM ends in a loop of faults."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)


_LOOKS_EVERY = 1.0  # seconds
_COUNTS_EVERY = 2.0  # seconds: nodes come and go
_VALUES = KeptValues()  # of a process that does tasks
_APART = {"env_vars": {"PLACEWRIGHT_TASK_ALONE": "1"}}  # Ray keeps processes of their own for it


class RayWorkers(OtherWorkers):
    """All cores of a Ray cluster, those that come later included.

    Args:
        address: see `connect`.
        count: tasks at a time at most; None is one for each core.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: there is no such cluster, or its nodes have other versions.
    """

    def __init__(self, address: str = HERE, count: int | None = None) -> None:
        self._ray, self._is_ours = connect(address, count)
        self._most = math.inf if count is None else count
        self._count, self._counted = 1, -math.inf
        self._versions = versions_here()
        self._busy: dict[Any, tuple[Attempt, float]] = {}  # reference -> attempt, deadline
        self._kept: dict[str, tuple[Shared, Any]] = {}  # key -> value, its reference
        self._perform = self._ray.remote(num_cpus=1, max_retries=0)(perform)
        self._perform_apart = self._ray.remote(
            num_cpus=1, max_retries=0, max_calls=1, runtime_env=_APART
        )(perform)
        self.name = f"Ray with {self.count} cores on {len(nodes_of(self._ray))} nodes"

    @property
    def count(self) -> int:
        """Cores of the cluster, up to the number that was asked for."""
        now = time.monotonic()
        if now - self._counted > _COUNTS_EVERY:
            cpus = sum(node.cpus for node in nodes_of(self._ray))
            self._count, self._counted = int(max(1.0, min(self._most, cpus))), now
        return self._count

    def close(self) -> None:
        """See `Workers.close`; a cluster that was started here ends, too."""
        self._abandon()
        self._kept.clear()
        if self._is_ours:
            self._is_ours = False
            self._ray.shutdown()

    def _has_room(self) -> bool:
        return len(self._busy) < self.count

    def _is_busy(self) -> bool:
        return bool(self._busy)

    def _start(self, attempt: Attempt) -> None:
        task = attempt.task
        key, references = None, []
        if task.shared is not None:
            key, references = task.shared.key, [self._reference(task.shared)]
        function = self._perform_apart if task.alone else self._perform
        reference = function.options(scheduling_strategy="SPREAD").remote(
            task.content, key, references, self._versions
        )
        self._busy[reference] = attempt, time.monotonic() + task.seconds

    def _reference(self, shared: Shared) -> Any:
        """Reference to a value in the object store, where it is put once."""
        if shared.key not in self._kept:
            self._kept[shared.key] = shared, self._ray.put(shared.content)
            while len(self._kept) > 2 * KEPT:
                del self._kept[next(iter(self._kept))]
        return self._kept[shared.key][1]

    def _wait(self) -> list[Ended]:
        soonest = min(deadline for _, deadline in self._busy.values())
        seconds = min(_LOOKS_EVERY, max(0.0, soonest - time.monotonic()))
        ready, _ = self._ray.wait(list(self._busy), timeout=seconds)
        ended = []
        for reference in ready:
            attempt, _ = self._busy.pop(reference)
            ended.append(self._ended(reference, attempt))
        now = time.monotonic()
        overdue = [call for call, (_, deadline) in self._busy.items() if deadline < now]
        for reference in overdue:
            if self._ray.wait([reference], timeout=0)[0]:  # it ended after the look above
                continue
            attempt, _ = self._busy.pop(reference)
            self._ray.cancel(reference, force=True)
            ended.append(
                Ended(
                    attempt, lost=f"it took more than {attempt.task.seconds:g} s", is_overdue=True
                )
            )
        return ended

    def _ended(self, reference: Any, attempt: Attempt) -> Ended:
        errors = self._ray.exceptions
        try:
            outcome, worker = self._ray.get(reference)
        except errors.RayTaskError as error:  # before or after the task: its node cannot do it
            cause = str(error.cause).strip().splitlines() or [type(error.cause).__name__]
            raise InputError(
                f"a node of the cluster cannot do '{attempt.task.label}': {cause[-1]}; install "
                "there what this process has"
            ) from None
        except errors.RayError as error:
            return Ended(attempt, lost=_why(error))
        return Ended(attempt, Done(attempt.task, result_of(outcome, worker), worker))

    def _abandon(self) -> None:
        while self._busy:
            reference, _ = self._busy.popitem()
            self._ray.cancel(reference, force=True)


def _why(error: Exception) -> str:
    first = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first[0]}".rstrip(": ")


def perform(
    content: bytes, key: str | None, references: list[Any], driver: Versions
) -> tuple[bytes, str]:
    """Do a task in a process of the cluster.

    Args:
        key: of its shared value; None without one.
        references: to the shared value; in a list, so that Ray does not fetch it for each task.
        driver: versions of the process that asks.

    Returns:
        Its outcome, which `tasks.result_of` reads, and the worker.
    """
    import ray

    limit_threads(1)
    worker = f"{socket.gethostname()}:{os.getpid()}"
    shared: tuple[Any, ...] = ()
    if key is not None:
        if key not in _VALUES:
            _VALUES.add(key, ray.get(references[0]))
        shared = (_VALUES.get(key),)
    return performed(content, shared, driver), worker


_SECONDS = 120.0  # until a node has answered; a first process of a node imports Ray


@dataclass(frozen=True)
class RayNode:
    """One node that is alive."""

    identity: str  # of Ray
    host: str  # name of its machine
    cpus: float  # that Ray gives to tasks


def nodes_of(ray: Any) -> list[RayNode]:
    """Return the nodes that are alive, sorted by name."""
    alive = [
        RayNode(
            identity=node["NodeID"],
            host=node["NodeManagerHostname"],
            cpus=float(node["Resources"].get("CPU", 0.0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(alive, key=lambda node: (node.host, node.identity))


def require_same_versions(ray: Any, nodes: Sequence[RayNode]) -> None:
    """Check that all nodes have the versions of this process.

    Raises:
        InputError: a node has other versions, or lacks a package.
        AnswerError: a node does not answer.
    """
    ours = versions_here()
    answers = ask(ray, nodes, _versions_there(tuple(ours)))
    faults = [
        f"node '{node.host}' ({node.identity[:8]}): {fault}"
        for node, theirs in zip(nodes, answers, strict=True)
        if (fault := difference(ours, theirs))
    ]
    if faults:
        more = f" (and {len(faults) - 1} further nodes)" if len(faults) > 1 else ""
        raise InputError(faults[0] + more)


def ask(ray: Any, nodes: Sequence[RayNode], function: Callable[[], Any]) -> list[Any]:
    """Call a function on each node, which need not have this package.

    Args:
        nodes: in the order of the answers.
        function: no function of a module, since Ray sends those by name only.

    Raises:
        AnswerError: a node does not answer.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = ray.remote(function)
    calls = [
        asked.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.identity, soft=False),
        ).remote()
        for node in nodes
    ]
    answers = []
    for node, call in zip(nodes, calls, strict=True):
        try:
            answers.append(ray.get(call, timeout=_SECONDS))
        except ray.exceptions.RayError as error:
            raise AnswerError(
                f"node '{node.host}' ({node.identity[:8]}) does not answer: "
                f"{type(error).__name__}; see `ray status`"
            ) from None
    return answers


def _versions_there(names: tuple[str, ...]) -> Callable[[], Versions]:
    def versions() -> Versions:
        import platform
        from importlib.metadata import PackageNotFoundError, version

        found = {}
        for name in names:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = ""
        return {**found, "python": ".".join(platform.python_version_tuple()[:2])}

    return versions


_MESSAGES, _TRANSFERS = 50, 5
_LARGE = 32 << 20  # bytes of a timed transfer


@dataclass(frozen=True)
class RayHost:
    """A node that measures."""

    name: str  # of its machine; a second node of it has a number behind it
    machine: str  # name of its machine: nodes of one machine measure one after the other
    node: RayNode  # its node


@dataclass(frozen=True)
class Answer:
    """The answer of a host."""

    value: Any = None  # of the function; None without one
    error: str = ""  # the exception that it raised, as one line
    is_lost: bool = False  # the host went away


def hosts_of(nodes: Sequence[RayNode], first: str) -> list[RayHost]:
    """Name the nodes, the node with the identity `first` before the others."""
    ordered = sorted(nodes, key=lambda node: (node.identity != first, node.host, node.identity))
    free = {node.host for node in ordered}  # each goes to the first node of its machine
    used: set[str] = set()
    named = []
    for node in ordered:
        name, number = node.host, 1
        while name in used or (number > 1 and name in free):
            number += 1
            name = f"{node.host}-{number}"
        used.add(name)
        named.append(RayHost(name, node.host, node))
    return named


class MeasuringActor:
    """An actor that calls functions, one at a time."""

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
        """Return the function's result and no text, or None and its error as one line."""
        try:
            return function(*arguments), ""
        except PlacewrightError as error:
            return None, " ".join(str(error).split())

    def echo(self) -> None:
        """Answer an empty message."""

    def fetch_seconds(self, reference: list[Any]) -> float:
        """Measure the seconds to bring a value here."""
        import ray

        began = time.perf_counter()
        ray.get(reference[0])
        return time.perf_counter() - began

    def way_seconds(self, other: Any) -> tuple[float, float]:
        """Measure the seconds of a message and of `_LARGE` bytes to another host, medians."""
        import ray

        for _ in range(3):  # the first ones make connections
            ray.get(other.echo.remote())
        messages = []
        for _ in range(_MESSAGES):
            began = time.perf_counter()
            ray.get(other.echo.remote())
            messages.append((time.perf_counter() - began) / 2)
        transfers = []
        for number in range(_TRANSFERS + 1):
            value = ray.put(np.full(_LARGE, number, dtype=np.uint8))
            transfers.append(ray.get(other.fetch_seconds.remote([value])))
        return statistics.median(messages), statistics.median(transfers[1:])


@contextmanager
def measuring_actors(ray: Any, hosts: Sequence[RayHost]) -> Iterator[dict[str, Any]]:
    """Yield host -> its actor, which has all cores of its node; actors end with the block."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actors = {}
    try:
        for host in hosts:
            actors[host.name] = (
                ray.remote(MeasuringActor)
                .options(
                    num_cpus=host.node.cpus,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(
                        host.node.identity, soft=False
                    ),
                )
                .remote()
            )
        yield actors
    finally:
        for actor in actors.values():
            ray.kill(actor)


def answers(
    ray: Any,
    actors: Mapping[str, Any],
    hosts: Sequence[RayHost],
    function: Callable[..., Any],
    arguments: Mapping[str, tuple[Any, ...]],
    report: Callable[[str, int], None] = lambda host, done: None,
) -> dict[str, Answer]:
    """Call a function of this package on each host; machines work at the same time.

    Args:
        actors: of `measuring_actors`.
        hosts: that are asked, in this order on each machine.
        arguments: host -> arguments.
        report: called with the host that begins, and the number of hosts that are done.
    """
    waiting: dict[str, list[RayHost]] = {}
    for host in hosts:
        waiting.setdefault(host.machine, []).append(host)
    busy: dict[Any, RayHost] = {}
    answered: dict[str, Answer] = {}
    while waiting or busy:
        at_work = {host.machine for host in busy.values()}
        for machine in [name for name in waiting if name not in at_work]:
            host = waiting[machine].pop(0)
            if not waiting[machine]:
                del waiting[machine]
            report(host.name, len(answered))
            call = actors[host.name].call.remote(function, arguments[host.name])
            busy[call] = host
        ready, _ = ray.wait(list(busy), timeout=_LOOKS_EVERY)
        for call in ready:
            answered[busy.pop(call).name] = _answer(ray, call)
    return {host.name: answered[host.name] for host in hosts}


def way_between(ray: Any, source: Any, destination: Any) -> tuple[float, float]:
    """Measure latency in seconds and bytes per second between the hosts of two actors."""
    message, transfer = ray.get(source.way_seconds.remote(destination))
    return message, _LARGE / max(transfer - message, 1e-9)


def is_there(ray: Any, actor: Any) -> bool:
    """True if an actor answers."""
    try:
        ray.get(actor.echo.remote(), timeout=_SECONDS)
    except ray.exceptions.RayError:
        return False
    return True


def _answer(ray: Any, call: Any) -> Answer:
    try:
        value, fault = ray.get(call)
    except ray.exceptions.RayTaskError as error:
        lines = str(error.cause).strip().splitlines() or [type(error.cause).__name__]
        return Answer(error=lines[-1])
    except ray.exceptions.RayError as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return Answer(error=f"{type(error).__name__}: {first}"[:200], is_lost=True)
    return Answer(value, fault)
