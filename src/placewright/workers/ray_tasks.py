"""Tasks on a Ray cluster: one core each, given again when a worker or its node is lost."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from placewright.errors import InputError, MissingExtraError
from placewright.workers.interface import Attempt, Ended, OtherWorkers
from placewright.workers.ray_hosts import nodes_of
from placewright.workers.served import KEPT, KeptValues, limit_threads
from placewright.workers.tasks import Done, Shared, Versions, performed, result_of, versions_here

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
    from placewright.workers.ray_hosts import nodes_of, require_same_versions

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "ray", "work on a Ray cluster") from None
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
    from placewright.workers.served import thread_variables

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
