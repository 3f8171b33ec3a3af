"""The interface of workers, and the worker that is this process."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from placewright.workers.tasks import Done, Task, WorkerLost

_LOG = logging.getLogger(__name__)


class Workers(ABC):
    """Workers do tasks. Use them as a context: at the end of the block they have stopped."""

    name: str  # for messages

    @property
    @abstractmethod
    def count(self) -> int:
        """Tasks that are done at the same time at present."""

    @abstractmethod
    def run(self, tasks: Iterable[Task | None]) -> Iterator[Done]:
        """Do tasks; yield each as it ends.

        A task is taken from `tasks` when a worker is free, so that it can depend on the tasks that
        have ended by then. None is no task: the next one is taken when another one has ended.
        Closing the iterator ends tasks that are under way.

        Raises:
            WorkerLost: a task was lost too often.
            InputError, AnswerError: a task raised it.
        """

    def results(self, tasks: Iterable[Task]) -> list[Any]:
        """Do tasks; return their results in the order of the tasks."""
        ordered = list(tasks)
        places: dict[int, list[int]] = {}  # of each task, which may stand in the list twice
        for at, task in enumerate(ordered):
            places.setdefault(id(task), []).append(at)
        results: list[Any] = [None] * len(ordered)
        for done in self.run(ordered):
            results[places[id(done.task)].pop()] = done.result
        return results

    @abstractmethod
    def close(self) -> None:
        """End all workers; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ThisProcess(Workers):
    """Does one task after the other in this process; exceptions of tasks pass unchanged."""

    name = "this process"

    @property
    def count(self) -> int:
        """Always 1."""
        return 1

    def close(self) -> None:
        """Do nothing, since nothing was started."""

    def run(self, tasks: Iterable[Task | None]) -> Iterator[Done]:
        """See `Workers.run`."""
        for task in tasks:
            if task is None:  # all tasks have ended
                return
            first = () if task.shared is None else (task.shared.value,)
            yield Done(task, task.function(*first, *task.arguments), "")


@dataclass(frozen=True, eq=False)
class Attempt:
    """One try of a task."""

    task: Task  # the task
    number: int = 1  # of the try, from 1


@dataclass(frozen=True, eq=False)
class Ended:
    """End of an attempt: its result, or the reason why it was lost."""

    attempt: Attempt
    done: Done | None = None
    lost: str = ""
    is_overdue: bool = False


class OtherWorkers(Workers):
    """Workers in other processes: a task whose worker ends is given to another one."""

    def run(self, tasks: Iterable[Task | None]) -> Iterator[Done]:
        """See `Workers.run`."""
        coming, again = iter(tasks), deque[Attempt]()
        try:
            while True:
                while self._has_room():
                    attempt = again.popleft() if again else _next(coming)
                    if attempt is None:
                        break
                    self._start(attempt)
                if not self._is_busy():
                    return
                for ended in self._wait():
                    if ended.done is not None:
                        yield ended.done
                    elif ended.attempt.number < ended.attempt.task.tries:
                        _LOG.warning("%s: the task is tried again elsewhere", ended.lost)
                        again.append(replace(ended.attempt, number=ended.attempt.number + 1))
                    else:
                        yield _lost(ended)
        finally:
            self._abandon()

    @abstractmethod
    def _has_room(self) -> bool:
        """True when a further task can be started."""

    @abstractmethod
    def _is_busy(self) -> bool:
        """True while a task is under way."""

    @abstractmethod
    def _start(self, attempt: Attempt) -> None:
        """Give a task to a free worker."""

    @abstractmethod
    def _wait(self) -> list[Ended]:
        """Wait until a try has ended, or for about a second."""

    @abstractmethod
    def _abandon(self) -> None:
        """End all tries that are under way."""


def _next(coming: Iterator[Task | None]) -> Attempt | None:
    task = next(coming, None)
    return None if task is None else Attempt(task)


def _lost(ended: Ended) -> Done:
    task = ended.attempt.task
    if task.may_be_lost:
        return Done(task, None, "", ended.lost, ended.is_overdue)
    label = task.label or task.function.__name__
    raise WorkerLost(f"task '{label}' was lost {_times(task.tries)}, at last since {ended.lost}")


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
