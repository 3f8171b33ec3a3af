"""Executors of a segment.

A segment runs in TorchScript's interpreter, in Python step by step, or as compiled code.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.fx import Node

from placewright.errors import InputError, RuntimeFailure
from placewright.frameworks.torch.draws import drawn, users_seed
from placewright.frameworks.torch.reading.calls import draws_random_numbers, is_item
from placewright.frameworks.torch.running.devices import MODES
from placewright.frameworks.torch.running.script import NotScriptable, compiled_script, script_text
from placewright.frameworks.torch.running.segments import SegmentModule

_LOG = logging.getLogger(__name__)
# TorchScript marks the line of the call that failed: "name = torch.ops.aten.add(...)".
_FAILED_CALL = re.compile(r"^ *(\S[^=\n]*) = torch\.ops\.[^\n]*\n *~+ <--- HERE", re.MULTILINE)
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


@dataclass
class Draws:
    """Source of random numbers for random operators: a seed and the number of the step."""

    seed: int | None = None  # None is PyTorch's initial seed
    number: int | None = None  # None takes the number of the request


class SegmentFunction(Protocol):
    """Executes one segment. Two threads may call one function at the same time.

    Attributes:
        is_random: some of its operators draw random numbers. The state that `state_box` returns
            then has an attribute `number`, of the request that runs next.
        first_run_seconds: see `execution.runtime.CompilesAtFirstRun`.
    """

    is_random: bool
    first_run_seconds: float

    def state_box(self, tensors: Sequence[torch.Tensor], draws: Draws | None = None) -> Any:
        """Convert state, once, to the form that `run` takes."""
        ...

    def run(self, entering: list[torch.Tensor], state: Any) -> list[torch.Tensor]:
        """Empty the list of tensors that enter and compute those that leave.

        Raises:
            RuntimeFailure: an operator failed; one line that names it.
        """
        ...


def segment_function(segment: SegmentModule, mode: str) -> SegmentFunction:
    """Make the function of a segment for one of `MODES`.

    Compiled code would draw from the default generators, so that segments with random operators
    are never compiled.

    Raises:
        InputError: there is no such mode, or no compiler for it.
    """
    if mode not in MODES:
        raise InputError(f"option 'compile' is one of {', '.join(MODES)}, got '{mode}'")
    try:
        if mode == "inductor" and not any(map(_is_random, segment.module.graph.nodes)):
            return CompiledFunction(segment)
        return ScriptedFunction(segment)
    except NotScriptable as reason:
        _LOG.info("a segment runs in Python, step by step: %s", reason)
        return SteppedFunction(segment)


class ScriptedFunction:
    """TorchScript's interpreter: the kernels of eager execution without Python between them.

    Raises:
        NotScriptable: an operator has no TorchScript form.
    """

    is_random = False
    first_run_seconds = 0.0

    def __init__(self, segment: SegmentModule) -> None:
        self._function = compiled_script(script_text(segment.module, segment.n_inputs))

    def state_box(
        self, tensors: Sequence[torch.Tensor], draws: Draws | None = None
    ) -> _ScriptedState:
        """Lists that the interpreter takes without converting them."""
        return _ScriptedState(script_list([]), script_list(tensors))

    def run(self, entering: list[torch.Tensor], state: _ScriptedState) -> list[torch.Tensor]:
        """Pass the tensors to the interpreter, which drops each after its last use."""
        box = state.entering
        try:
            box.extend(entering)
            entering.clear()
            return self._function(box, state.tensors)
        except BaseException as error:  # operators raise any type
            box.clear()  # what was interrupted may not have taken its tensors
            if isinstance(error, Exception):
                raise _failure(error) from error
            raise


class SteppedFunction:
    """Python calls one operator after the other and drops values after their last use.

    Operators that draw random numbers are seeded by a seed (without one, PyTorch's initial seed),
    their own name and the number of the request or step. So their numbers depend neither on the
    order of the devices, nor on the split, nor on how many requests are in flight.
    """

    first_run_seconds = 0.0

    def __init__(self, segment: SegmentModule) -> None:
        graph = segment.module.graph
        self._placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._calls = [node for node in graph.nodes if node.op == "call_function"]
        self._random = set(filter(_is_random, self._calls))
        self.is_random = bool(self._random)
        self._results: list[Node] = list(next(n for n in graph.nodes if n.op == "output").args[0])
        last: dict[Node, Node] = {}
        for node in self._calls:
            last[node] = node  # stays so for a result without readers
            for source in node.all_input_nodes:
                last[source] = node
        results = set(self._results)
        self._dropped: dict[Node, list[Node]] = {}
        for value, reader in last.items():
            if value not in results:
                self._dropped.setdefault(reader, []).append(value)

    def state_box(
        self, tensors: Sequence[torch.Tensor], draws: Draws | None = None
    ) -> _SteppedState:
        """A plain list, with what random operators draw from."""
        return _SteppedState(list(tensors), draws or Draws())

    def run(self, entering: list[torch.Tensor], state: _SteppedState) -> list[torch.Tensor]:
        """Call every operator in order."""
        arguments = [*entering, *state.tensors]
        entering.clear()
        values: dict[Node, Any] = dict(zip(self._placeholders, arguments, strict=True))
        del arguments
        for node in self._calls:
            args = torch.fx.node.map_arg(node.args, values.__getitem__)
            kwargs = torch.fx.node.map_arg(node.kwargs, values.__getitem__)
            try:
                if node in self._random:
                    values[node] = drawn(node.target, args, kwargs, state.seed(node))
                else:
                    values[node] = node.target(*args, **kwargs)
            except Exception as error:  # operators raise any type
                raise _failure(error, node.name) from error
            del args, kwargs
            for done in self._dropped.get(node, ()):
                del values[done]
        return [values[node] for node in self._results]


class CompiledFunction:
    """Code that ``torch.compile`` makes of the segment's module at the first run.

    Raises:
        InputError: there is no C++ compiler.
    """

    is_random = False
    first_run_seconds = 1800.0

    def __init__(self, segment: SegmentModule) -> None:
        compiler = os.environ.get("CXX", "")
        if not any(shutil.which(name) for name in (compiler, "g++", "clang++", "cl") if name):
            raise InputError(
                "compiled segments need a C++ compiler, and none of g++, clang++ or $CXX is here; "
                "install one, or run without argument `compiled` and option `compile` of devices"
            )
        self._function = torch.compile(segment.module, dynamic=False, fullgraph=True)

    def state_box(
        self, tensors: Sequence[torch.Tensor], draws: Draws | None = None
    ) -> list[torch.Tensor]:
        """A plain list."""
        return list(tensors)

    def run(self, entering: list[torch.Tensor], state: Any) -> list[torch.Tensor]:
        """Call the compiled code."""
        arguments = [*entering, *state]
        entering.clear()
        try:
            return list(self._function(*arguments))
        except Exception as error:  # operators raise any type
            raise _failure(error) from error


@dataclass
class _ScriptedState:
    """Lists of the interpreter. A new one takes as long as some operators, so they are kept."""

    entering: Any  # empty between two runs, see `script_text`
    tensors: Any


def script_list(tensors: Sequence[torch.Tensor]) -> Any:
    """Make a list that TorchScript's interpreter takes without converting it."""
    made = torch._C.ScriptList([torch.empty(0)])  # the type of an empty list would be unknown
    made.clear()
    made.extend(list(tensors))
    return made


@dataclass
class _SteppedState:
    """State of a stepped function, and what its random operators draw from.

    Attributes:
        number: of the request, see `execution.requests.DrawsByRequest`.
    """

    tensors: list[torch.Tensor]
    draws: Draws
    number: int = 0

    def seed(self, node: Node) -> int:
        """The seed of a random operator in the present request or step."""
        draws = self.draws
        seed = users_seed() if draws.seed is None else draws.seed
        number = self.number if draws.number is None else draws.number
        return zlib.crc32(f"{seed} {node.meta.get('op', node.name)} {number}".encode())


def _failure(error: Exception, name: str = "") -> RuntimeFailure:
    """An operator's error in one line; TorchScript adds the text of the whole segment."""
    text = str(error)
    call = _FAILED_CALL.search(text)
    # The first of several results is named after the operator, "NAME_at0".
    name = call.group(1).partition(",")[0].removesuffix("_at0") if call else name
    reason = text.rpartition("\nRuntimeError: ")[2] if call else text
    line = " ".join(reason.split("\n\n")[0].split())
    where = f"op '{name}': " if name else ""
    if any(word in text for word in _OUT_OF_MEMORY):
        hint = "limit the device with argument `memory` to what is free there and place again"
        return RuntimeFailure(f"{where}out of memory ({line}); {hint}")
    return RuntimeFailure(f"{where}{line}")


def _is_random(node: Node) -> bool:
    return node.op == "call_function" and not is_item(node) and draws_random_numbers(node)
