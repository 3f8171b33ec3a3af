"""Tasks of workers, their results, and versions that driver and workers must share."""

from __future__ import annotations

import math
import pickle
import platform
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from placewright.errors import AnswerError, InputError, PlacewrightError

# Arrays that are read-only stay so in protocol 5 alone, and kernels are compiled for such arrays.
_PROTOCOL = 5
TRIES = 3
Versions = dict[str, str]  # package, or "python" -> version; empty where it is not installed
_PACKAGES = ("placewright", "numpy", "scipy", "numba")


class Shared:
    """A value that many tasks take: pickled once, sent to each worker once.

    Args:
        value: any that `pickle` takes.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.key = uuid.uuid4().hex

    @cached_property
    def content(self) -> bytes:
        """The pickled value."""
        return pickle.dumps(self.value, _PROTOCOL)


@dataclass(frozen=True, eq=False)
class Task:
    """One call of a function in some worker."""

    function: Callable[..., Any]  # of a module, so that a worker finds it by its name
    arguments: tuple[Any, ...] = ()  # of the function
    shared: Shared | None = None  # comes before the arguments; None where there is none
    label: str = ""  # the task in a message
    # after which a worker that is not done is ended, and the task is lost
    seconds: float = math.inf
    # a task whose worker ends is given to another one until it was tried so often
    tries: int = TRIES
    may_be_lost: bool = False  # a loss is a `Done` with its reason; otherwise it is an error
    # the worker does nothing before or after it, so that the system's counts for its process are
    # those of the task
    alone: bool = False

    @property
    def content(self) -> bytes:
        """The pickled function and arguments."""
        return pickle.dumps((self.function, self.arguments), _PROTOCOL)


@dataclass(frozen=True, eq=False)
class Done:
    """The end of a task."""

    task: Task  # the task
    result: Any  # of its function; None where it was lost
    worker: str  # host and process that did it last
    lost: str = ""  # why it was lost; empty where it was not
    is_overdue: bool = False  # it was lost since it took longer than its seconds


class WorkerLost(AnswerError):
    """A task was lost as often as it may be tried; the message names it and how workers ended."""


def performed(content: bytes, shared: tuple[Any, ...], driver: Versions) -> bytes:
    """Do a task in this process; return its outcome, which `result_of` reads.

    Args:
        shared: none, or the value that comes before its arguments.
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
    except Exception:  # a fault in a program: the driver shows it
        return pickle.dumps(("failed", traceback.format_exc()), _PROTOCOL)


def result_of(outcome: bytes, worker: str) -> Any:
    """Return the result in a task's outcome.

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


def versions_here() -> Versions:
    """Return the versions of this process."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = ""
    return versions


def difference(ours: Versions, theirs: Versions) -> str:
    """Describe the versions that differ and their remedy; empty if none differs."""
    faults = [
        f"{name} {theirs[name]} where this process has {mine}"
        if theirs.get(name)
        else f"no {name}, of which this process has {mine}"
        for name, mine in ours.items()
        if theirs.get(name, "") != mine
    ]
    return f"it has {', '.join(faults)}; install the same versions there" if faults else ""
