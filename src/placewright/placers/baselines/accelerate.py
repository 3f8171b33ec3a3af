"""Hugging Face Accelerate's automatic device map: fill the devices one after another with modules.

`accelerate.infer_auto_device_map` (S. Gugger et al., 2022) reads module sizes and memory, neither
times nor links. This placer calls it on a skeleton of the model on PyTorch's meta device: the
module paths of the ops, with weights of their sizes. Accelerators are filled first, then a CPU;
modules that the library would spill to disk go where memory is left. An op without a module of the
map runs where the first op is that it reads, as a function between hooked modules does.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from placewright.core.arrays import FloatArray, IntArray
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.errors import Requires, UnknownNameError, optional_library
from placewright.placers.bases import ForEveryProblem, anytime
from placewright.placers.legal import evaluate_within_limits
from placewright.placers.repair import repaired
from placewright.simulation.evaluator import Evaluator


@dataclass(frozen=True)
class Accelerate:
    """The library's greedy rule, with the memory of the cluster.

    Attributes:
        no_split: module paths whose children stay on one device, separated by commas (for example
            residual blocks; ``no_split_module_classes`` of the library).
    """

    name: ClassVar[str] = "accelerate"
    paper: ClassVar[str] = "Gugger et al., Hugging Face Accelerate, 2022"
    objectives: ClassVar[tuple[str, ...]] = ForEveryProblem.objectives
    needs_training: ClassVar[bool] = False
    requires: ClassVar[Requires] = (("accelerate", "accelerate"), ("torch", "accelerate"))

    no_split: str = ""

    def why_not(self, problem: Problem) -> str | None:
        """None for graphs whose ops have module paths."""
        if not any(problem.graph.op_modules):
            return "no op tells the module that it came from"
        return None

    @anytime
    def place(self, problem: Problem, evaluator: Evaluator, rng: np.random.Generator) -> Solution:
        """One evaluation (more if memory binds)."""
        del rng

        def propose(limits: FloatArray) -> tuple[IntArray, None]:
            return repaired(problem, self.wish(problem, limits), limits), None

        evaluate_within_limits(evaluator, propose)
        return evaluator.solution()

    def wish(self, problem: Problem, limits: FloatArray) -> IntArray:
        """Device of each unit by the library's map, -1 if it has none, shape (n_units,).

        Raises:
            MissingExtraError: `accelerate` or PyTorch is not installed.
            UnknownNameError: `no_split` names no module.
        """
        library = optional_library("accelerate.utils", "accelerate", "placer 'accelerate'")
        key_of = _keys(problem)
        total = float(problem.graph.weight_bytes.sum())
        memory = {
            key: int(min(limits[device], 10.0 * total + 1e9)) for key, device in key_of.items()
        }
        whole = [path for part in self.no_split.split(",") if (path := part.strip())]
        _require_modules(problem, whole)
        logger = logging.getLogger("accelerate.utils.modeling")
        level = logger.level
        with warnings.catch_warnings():
            # The library warns about spilling, and about devices that this machine does not have.
            warnings.simplefilter("ignore")
            logger.setLevel(logging.ERROR)
            try:
                device_map = library.infer_auto_device_map(
                    _skeleton(problem, whole), max_memory=memory, no_split_module_classes=["_Whole"]
                )
            finally:
                logger.setLevel(level)
        devices = {name: key_of.get(key, -1) for name, key in device_map.items()}
        return _devices_of_units(problem, devices)


def _require_modules(problem: Problem, paths: Sequence[str]) -> None:
    """Refuse a path that is no module.

    Raises:
        UnknownNameError: the message has near paths.
    """
    modules = {path for path in problem.graph.op_modules if path}
    known = {".".join(parts[:at]) for path in modules if (parts := path.split("."))
             for at in range(1, len(parts) + 1)}  # fmt: skip
    for path in paths:
        if path not in known:
            raise UnknownNameError("module", path, sorted(known))


def _keys(problem: Problem) -> dict[int | str, int]:
    """The library's names of devices, in the order in which it fills them."""
    kinds = [device.kind for device in problem.cluster.devices]
    accelerators = [device for device, kind in enumerate(kinds) if kind != "cpu"]
    if not accelerators:
        return {number: number for number in range(problem.n_devices)}
    keys: dict[int | str, int] = dict(enumerate(accelerators))
    if "cpu" in kinds:
        keys["cpu"] = kinds.index("cpu")
    return keys


def _skeleton(problem: Problem, whole: list[str]) -> Any:
    """Modules by path, with the bytes of their ops' weights on the meta device.

    Two modules that read one weight tie it, as an embedding and a head do. What more of them read
    is a constant, such as a mask, of which each has its own in the model, and which no rule ties.
    """
    import torch

    class _Whole(torch.nn.Module):
        """A module that the library may not split."""

    graph = problem.graph
    shared: dict[int, Any] = {}
    readers: dict[int, set[str]] = {}
    for op, path in enumerate(graph.op_modules):
        for weight in graph.op_weights.row(op).tolist():
            readers.setdefault(weight, set()).add(path)
    root: Any = torch.nn.Module()
    for op, path in enumerate(graph.op_modules):
        module: Any = root
        prefix = ""
        for part in path.split(".") if path else ():
            prefix = f"{prefix}.{part}" if prefix else part
            if part not in module._modules:
                # Not by `add_module`, which refuses names of methods, such as `half`.
                module._modules[part] = _Whole() if prefix in whole else torch.nn.Module()
            module = module._modules[part]
        for weight in graph.op_weights.row(op).tolist():
            if weight not in shared or len(readers[weight]) > 2:
                size = math.ceil(graph.weight_bytes[weight])
                data = torch.empty(size, dtype=torch.uint8, device="meta")
                shared[weight] = torch.nn.Parameter(data, requires_grad=False)
            module.register_parameter(f"weight_{weight}", shared[weight])
    return root


def _devices_of_units(problem: Problem, device_of_path: Mapping[str, int]) -> IntArray:
    """Device of the first op of each unit that has one, shape (n_units,)."""
    graph = problem.graph
    device_of_op = np.full(graph.n_ops, -1, dtype=np.int64)
    for op in graph.topological_order.tolist():
        device = _of_path(graph.op_modules[op], device_of_path)
        if device < 0:
            before = device_of_op[graph.predecessors.row(op)]
            device = int(before[before >= 0][0]) if (before >= 0).any() else -1
        device_of_op[op] = device
    device_of = np.full(problem.n_units, -1, dtype=np.int64)
    for op in graph.topological_order[::-1].tolist():
        if device_of_op[op] >= 0:
            device_of[problem.units.group_of[op]] = device_of_op[op]
    return device_of


def _of_path(path: str, device_of_path: Mapping[str, int]) -> int:
    """Device of the nearest enclosing module of the map, -1 if it names none."""
    while path and path not in device_of_path:
        path = path.rpartition(".")[0]
    return device_of_path.get(path, -1)
