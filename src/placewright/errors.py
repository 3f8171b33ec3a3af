"""Every error that Placewright raises on purpose: one root, leaves by meaning.

The command line turns an `InputError` into exit code 2 and an `AnswerError` into exit code 1,
each as one line without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

_MOST_NEAR = 3  # suggestions
_SAME_KIND = 0.7  # similarity; "gpu" and "cpu" have less
_LONGEST_LIST = 150  # characters of a list of names
Requires = tuple[tuple[str, str], ...]  # optional packages, each with its extra


class PlacewrightError(Exception):
    """Root of all errors raised on purpose.

    >>> try:
    ...     pw.read("missing.onnx")
    ... except pw.PlacewrightError as error:
    ...     print(type(error).__name__)
    InputError
    """

    def __reduce__(self) -> Any:
        """Let other processes get it as it is, whatever its constructor takes."""
        return _made_again, (type(self), self.args, self.__dict__)


def _made_again(
    kind: type[PlacewrightError], args: tuple[Any, ...], fields: dict[str, Any]
) -> PlacewrightError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class InputError(PlacewrightError, ValueError):
    """An input is wrong; the message names it, its value and a remedy.

    >>> pw.Budget(evaluations=0)
    Traceback (most recent call last):
    placewright.errors.InputError: a budget needs a whole number of evaluations >= 1, got 0
    """


class FieldError(InputError):
    """A field of a request has a wrong value; the command line names its option instead.

    Attributes:
        field: its name in Python, for example ``"pins"``.
        fault: the rest of the sentence.
    """

    def __init__(self, field: str, fault: str) -> None:
        super().__init__(f"{field}: {fault}")
        self.field, self.fault = field, fault


class GraphError(InputError):
    """A computation graph is malformed: a cycle, a duplicate name, a dangling edge."""


class ClusterError(InputError):
    """A cluster is malformed: an unknown device, a negative bandwidth, shared cores."""


class CostError(InputError):
    """A cost table is malformed: a negative or NaN entry, an op that no device supports."""


class GroupingError(InputError):
    """A grouping is malformed, for example its quotient has a cycle."""


class FileFormatError(InputError):
    """A file has another format than its name or header, or is damaged."""


def near_names(name: str, known: Sequence[str]) -> tuple[str, ...]:
    """The known names, at most three, that are most like a name; upper case does not matter."""
    plain = {other.lower(): other for other in known}
    like = difflib.get_close_matches(name.lower(), plain, n=_MOST_NEAR)
    return tuple(plain[other] for other in like if _same_kind(name.lower(), other))


def _same_kind(name: str, other: str) -> bool:
    """True unless both have a kind before a colon, and the kinds differ: ``cuda:0``, ``cpu:0``."""
    kind, colon, _ = name.partition(":")
    other_kind, other_colon, _ = other.partition(":")
    both = bool(colon and other_colon)
    return not both or difflib.SequenceMatcher(None, kind, other_kind).ratio() > _SAME_KIND


class UnknownNameError(InputError):
    """A name is not in its registry; the message lists near ones first, then the known ones.

    Args:
        what: kind of the name, as in "placer".
        name: that somebody gave.
        near: names that were perhaps meant; without any, those that are like `name`.
        listed_by: a command that prints all known names.
    """

    def __init__(
        self,
        what: str,
        name: str,
        known: Sequence[str],
        *,
        near: Sequence[str] = (),
        listed_by: str = "",
    ) -> None:
        near = near or near_names(str(name), known)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        rest = f"; `{listed_by}` lists all" if listed_by else ""
        super().__init__(f"unknown {what} '{name}'; {meant}available: {_listed(known)}{rest}")


def _listed(names: Sequence[str]) -> str:
    """Names with commas between them; a long list ends with the number of those left out."""
    shown, length = 0, 0
    for name in names:
        length += len(name) + 2
        if length > _LONGEST_LIST and shown:
            break
        shown += 1
    text = ", ".join(names[:shown]) or "none"
    return text if shown == len(names) else f"{text} and {len(names) - shown} more"


class MissingExtraError(InputError):
    """An optional dependency is absent; the message names the extra to install."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}'; pip install 'placewright[{extra}]'"
        )


def optional_library(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional dependency, and return its package.

    Args:
        module: for example ``onnx``, or ``onnx.shape_inference`` to import that part too.
        extra: that brings the package.
        purpose: needs it, for the message.

    Raises:
        MissingExtraError: it cannot be imported.
    """
    try:
        return __import__(module)
    except ImportError:
        raise MissingExtraError(module.partition(".")[0], extra, purpose) from None


class StalePlanError(InputError):
    """A plan no longer fits its model, problem or devices; the message says what changed.

    >>> plan = pw.place("problem.json", placer="heft", evaluations=9)
    >>> pw.write_plan("stale.json", plan)
    >>> sha256 = pw.write_problem("stale.problem.json", pw.read_problem("other.json"))
    >>> pw.read_plan("stale.json")
    Traceback (most recent call last):
    placewright.errors.StalePlanError: ...
    """


class AnswerError(PlacewrightError):
    """The input is valid and the answer is no.

    >>> try:
    ...     pw.place("problem.json", evaluations=9, placer="heft", memory=["cpu=1B", "gpu=1B"])
    ... except pw.AnswerError as error:
    ...     print("no placement:", type(error).__name__)
    no placement: InfeasibleError
    """


class InfeasibleError(AnswerError):
    """No placement can satisfy the constraints; the message says which one and by how much.

    Attributes:
        is_proven: True if a search proved that there is none; else it may have missed one.

    >>> pw.place("problem.json", evaluations=9, placer="heft", memory=["cpu=1B", "gpu=1B"])
    Traceback (most recent call last):
    placewright.errors.InfeasibleError: ...
    """

    is_proven: bool = False


class MismatchError(AnswerError):
    """An executed placement has other outputs than the unsplit model.

    >>> def place_or_single(model):
    ...     try:
    ...         return pw.place(model)
    ...     except pw.MismatchError:  # the runtime computes something else when it is split
    ...         return pw.place(model, placer="single")
    >>> issubclass(pw.MismatchError, pw.AnswerError)
    True
    """


class RuntimeFailure(AnswerError):
    """A runtime refused to compile or run a segment; the message names the ops concerned."""


class UnsuitableInputs(RuntimeFailure, InputError):
    """A runtime gave up a run, because values or shapes of the inputs do not suit the model."""


class TimedOut(RuntimeFailure):
    """A segment did not return in time; the message names its device and its ops."""


class OutOfTime(AnswerError):
    """The limit of the whole call (``total``) ended before there was an answer.

    Attributes:
        plan: the `Plan` that a check on the hardware had improved until then; None without one.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the total ended before {what}; allow more time, or call again: measurements are kept"
        )
        self.plan: Any = None


class InexpressibleError(AnswerError):
    """Another tool's format cannot express a plan; the message names the obstacle."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a search; the error holds its incumbent.

    >>> try:
    ...     plan = pw.place("problem.json", placer="heft", evaluations=9)
    ... except pw.Interrupted as stopped:  # Ctrl-C
    ...     plan = stopped.plan
    >>> plan.value
    4.0

    Attributes:
        solution: the `Solution` so far, with `stop` ``interrupted``; its placement is None without
            an incumbent.
        plan: the same as a `Plan`; None without an incumbent, or if the search makes no plan.
    """

    def __init__(self, solution: Any, plan: Any = None) -> None:
        super().__init__("the search was interrupted")
        self.solution, self.plan = solution, plan


class BudgetSpent(Exception):
    """The budget is used up: an evaluator raises this, which ends the search of a placer."""


def failure_from(cause: BaseException, message: str) -> RuntimeFailure:
    """A failure with another message, which is still of the inputs if its cause is."""
    kind = UnsuitableInputs if isinstance(cause, UnsuitableInputs) else RuntimeFailure
    failure = kind(message)
    failure.__cause__ = cause
    return failure
