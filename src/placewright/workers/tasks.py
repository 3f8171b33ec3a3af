"""What workers are given and what they give back."""

from __future__ import annotations

import math
import pickle
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from placewright.errors import AnswerError, InputError, PlacewrightError
from placewright.workers.versions import Versions, difference, versions_here

# Arrays that are read-only stay so in protocol 5 alone, and kernels are compiled for such arrays.
_PROTOCOL = 5
TRIES = 3


class Shared:
    """A value that many tasks take: pickled once, sent to each worker once.

    Args:
        value: what `pickle` takes.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.key = uuid.uuid4().hex

    @cached_property
    def content(self) -> bytes:
        """The value as workers get it."""
        return pickle.dumps(self.value, _PROTOCOL)


@dataclass(frozen=True, eq=False)
class Task:
    """One call of a function, somewhere.

    Attributes:
        function: of a module, so that a worker finds it by its name.
        arguments: of the function.
        shared: comes before the arguments; None where there is none.
        label: the task in a message.
        seconds: after which a worker that is not done is ended, and the task is lost.
        tries: a task whose worker ends is given to another one until it was tried so often.
        may_be_lost: a loss is told as a `Done`; otherwise it is an error.
        alone: the worker has done nothing before, and does nothing after it: what the system counts
            for its process is the task's own.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    shared: Shared | None = None
    label: str = ""
    seconds: float = math.inf
    tries: int = TRIES
    may_be_lost: bool = False
    alone: bool = False

    @property
    def content(self) -> bytes:
        """Function and arguments as a worker gets them."""
        return pickle.dumps((self.function, self.arguments), _PROTOCOL)


@dataclass(frozen=True, eq=False)
class Done:
    """How a task ended.

    Attributes:
        task: the task.
        result: of its function; None where it was lost.
        worker: host and process that did it last.
        lost: why it was lost; empty where it was not.
        is_overdue: it was lost since it took longer than its seconds.
    """

    task: Task
    result: Any
    worker: str
    lost: str = ""
    is_overdue: bool = False


class WorkerLost(AnswerError):
    """A task was lost as often as it may be tried; the message names it and how workers ended."""


def performed(content: bytes, shared: tuple[Any, ...], driver: Versions) -> bytes:
    """Do a task in this process; what came of it, for `result_of`.

    Args:
        content: of the task.
        shared: none, or what comes before its arguments.
        driver: versions of the process that asks.
    """
    if fault := difference(driver, versions_here()):
        return pickle.dumps(("input", fault), _PROTOCOL)
    try:
        function, arguments = pickle.loads(content)
        return pickle.dumps(("value", function(*shared, *arguments)), _PROTOCOL)
    except PlacewrightError as error:
        kind = "answer" if isinstance(error, AnswerError) else "input"
        return pickle.dumps((kind, str(error)), _PROTOCOL)
    except Exception:  # a fault in a program, which is told where somebody can see it
        return pickle.dumps(("failed", traceback.format_exc()), _PROTOCOL)


def result_of(outcome: bytes, worker: str) -> Any:
    """The value that a task gave.

    Raises:
        InputError, AnswerError: the task raised one of them; the message names the worker.
        RuntimeError: the task failed in another way; the message has its traceback.
    """
    kind, value = pickle.loads(outcome)
    if kind == "value":
        return value
    if kind == "failed":
        raise RuntimeError(f"a task failed in worker {worker}:\n{value}")
    raise (AnswerError if kind == "answer" else InputError)(f"worker {worker}: {value}")
