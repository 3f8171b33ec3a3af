"""Worker processes of this machine, and the way to open whichever workers a request names."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection, wait

from placewright.errors import FieldError, InputError
from placewright.workers.interface import Attempt, Ended, OtherWorkers, ThisProcess, Workers
from placewright.workers.served import thread_variables
from placewright.workers.tasks import Done, result_of, versions_here

_LOOKS_EVERY = 1.0  # seconds
_FAR = 10.0**8  # seconds
_KILLED = -9  # status of a process that a signal ended which it cannot catch


class Processes(OtherWorkers):
    """Processes that do one task at a time each; those that end are replaced.

    A process ends with this one, however this one ends. Processes do not run the user's script,
    which needs no ``if __name__ == "__main__"``.

    Args:
        count: of processes, >= 1; each starts when there is a task for it.
        threads: of the libraries of each, >= 1; None leaves them as they are here.

    Raises:
        InputError: a number is below 1.
    """

    def __init__(self, count: int, *, threads: int | None = 1) -> None:
        if count < 1 or (threads is not None and threads < 1):
            raise InputError(f"workers and their threads must be >= 1, got {count}, {threads}")
        self.name = f"{count} processes"
        self._count, self._threads = count, threads
        self._free: list[_Process] = []
        self._busy: list[_Process] = []

    @property
    def count(self) -> int:
        """The number that was asked for."""
        return self._count

    def close(self) -> None:
        """See `Workers.close`."""
        self._abandon()
        while self._free:
            self._free.pop().end()

    def _has_room(self) -> bool:
        return len(self._busy) < self._count

    def _is_busy(self) -> bool:
        return bool(self._busy)

    def _start(self, attempt: Attempt) -> None:
        given = False
        while not given:
            process = self._free_process(attempt.task.alone)
            self._busy.append(process)  # so that an interrupt ends it, too
            given = process.give(attempt)
            if not given:  # it has ended since its last task
                self._busy.remove(process)
                process.end()

    def _free_process(self, alone: bool) -> _Process:
        if alone:
            while self._free:
                self._free.pop().end()
        return self._free.pop() if self._free else _Process(self._threads)

    def _wait(self) -> list[Ended]:
        now = time.monotonic()
        soonest = min(process.deadline for process in self._busy)
        ready = wait(
            [process.connection for process in self._busy],
            timeout=min(_LOOKS_EVERY, max(0.0, soonest - now)),
        )
        ended = []
        for process in list(self._busy):
            end_of_task = None
            if process.connection in ready:
                end_of_task = process.answer()
            elif process.deadline < time.monotonic():
                end_of_task = process.overdue()
            if end_of_task is not None:
                self._busy.remove(process)
                ended.append(end_of_task)
                if end_of_task.done is None or end_of_task.attempt.task.alone:
                    process.end()
                else:
                    self._free.append(process)
        return ended

    def _abandon(self) -> None:
        while self._busy:
            self._busy.pop().end()


class _Process:
    """One process and its present task."""

    def __init__(self, threads: int | None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            handle = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _program(handle, threads)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # results of a command alone may stand there
                env=os.environ if threads is None else {**os.environ, **thread_variables(threads)},
                pass_fds=(handle,),
                start_new_session=True,  # Ctrl-C reaches the driver, which ends it
            )
        self.connection = Connection(ours.detach())
        self.deadline = math.inf
        self._attempt: Attempt | None = None

    @property
    def name(self) -> str:
        return f"{socket.gethostname()}:{self._process.pid}"

    def give(self, attempt: Attempt) -> bool:
        """Send it a task; False if the process had ended before, after another task.

        It is True, too, if a new process has ended; `answer` then tells that the task is lost.
        """
        task, is_new, self._attempt = attempt.task, self._attempt is None, attempt
        key = None if task.shared is None else task.shared.key
        self.deadline = time.monotonic() + min(task.seconds, _FAR)
        try:
            self.connection.send_bytes(pickle.dumps((key, versions_here(), task.content)))
        except OSError:
            return is_new
        return True

    def answer(self) -> Ended | None:
        """The end of its task; None if the process only asked for the shared value."""
        assert self._attempt is not None
        task = self._attempt.task
        try:
            outcome = self.connection.recv_bytes()
            if not outcome:
                assert task.shared is not None
                self.connection.send_bytes(task.shared.content)
                return None
        except (EOFError, OSError):
            return Ended(self._attempt, lost=_why(self._process.wait()))
        return Ended(self._attempt, Done(task, result_of(outcome, self.name), self.name))

    def overdue(self) -> Ended:
        assert self._attempt is not None
        seconds = self._attempt.task.seconds
        return Ended(self._attempt, lost=f"it took more than {seconds:g} s", is_overdue=True)

    def end(self) -> None:
        """End the process and all that it started."""
        self.connection.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()


def _why(status: int) -> str:
    """The reason of a loss, by the status with which the process ended."""
    hint = "; a system that has no memory left ends processes like this"
    return f"the process ended with {status}{hint if status == _KILLED else ''}"


def _program(handle: int, threads: int | None) -> str:
    """Code of a worker process, which searches modules where this process does."""
    folders = [folder for folder in sys.path if isinstance(folder, str)]  # as Python's own search
    return (
        f"import sys; sys.path[:] = {folders!r}; from placewright.workers.served import main; "
        f"main({handle}, {os.getpid()}, {threads})"
    )


_MOST_PROCESSES, _PER_PROCESSOR = 64, 4  # each takes two hundred MiB with its libraries


def open_workers(count: int | None, ray: str | None = None, *, apart: bool = False) -> Workers:
    """Open workers for a block; see `Workers`.

    Args:
        count: processes, or tasks at a time on a cluster at most; None is one, or all of a cluster.
        ray: address of a Ray cluster; ``"auto"`` is the one that ``RAY_ADDRESS`` names or that runs
            here, else one that is started here; ``"local"`` one that is started here; None uses
            none.
        apart: a single worker is a process of its own, and not this one; without effect on `ray`.

    Raises:
        FieldError: `count` is below 1, or more processes than this machine can be asked for.
        MissingExtraError: Ray is not installed.
        InputError: there is no such cluster, or its nodes have other versions.
    """
    if count is not None and count < 1:
        raise FieldError("workers", f"expects a whole number >= 1, got {count}")
    if ray is not None:
        from placewright.workers.ray_workers import RayWorkers

        return RayWorkers(ray, count)
    require_processes(count)
    if count is None or count == 1:
        return Processes(1, threads=None) if apart else ThisProcess()
    return Processes(count)


def require_processes(count: int | None) -> None:
    """Refuse more processes than this machine can be asked for.

    Raises:
        FieldError: there are more.
    """
    most = max(_MOST_PROCESSES, _PER_PROCESSOR * (os.cpu_count() or 1))
    if count is not None and count > most:
        raise FieldError("workers", f"can be at most {most} processes here, got {count}")
