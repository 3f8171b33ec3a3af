"""A plan as a Hugging Face Accelerate ``device_map``: module path -> device.

Accelerate moves the inputs of a mapped module to the module's device and leaves its outputs there.
Ops that a module computes between its children run on the device of their inputs. So a module may
be spread over devices only if it has no parameters of its own, and if all inputs of these ops lie
on the device that the plan gives them. The model's own inputs lie on the main device, and so do
results of ops that need nothing else.

Accelerate refuses a map without a device for every parameter and buffer, even if no op reads them.
Of parameters that are tied it keeps one tensor, on one device.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placewright.core.cluster import STREAMED_BY, Device
from placewright.core.graph import ComputationGraph
from placewright.core.plan import Plan
from placewright.core.residency import tied_ops
from placewright.core.source import ModelSource
from placewright.errors import InexpressibleError
from placewright.writers.card_numbers import card_numbers, require_distinct
from placewright.writers.llama_cpp import NAME

_TORCH_DEVICE = re.compile(r"(cpu|mps|(cuda|xpu|npu|hpu|mlu)(:\d+)?)")
_NAMED = re.compile(r"(?:CUDA|ROCm)(\d+)")  # option of a device: PyTorch calls both ``cuda``
_NUMBERED = re.compile(r"[^\d.]+(?:\.[^\d.]+)*\.(\d+)(?=\.)")  # path of a layer
_OF_EMBEDDING = re.compile(r"(^|\.)embed_tokens_per_layer\.")  # made behind the layers
_SCALAR_BYTES = 8  # of a tensor without dimensions at most; a larger one's shape is unknown


def device_map(plan: Plan) -> dict[str, str]:
    """Module path -> PyTorch device; a whole model on one device is ``{"": device}``.

    The map covers all of ``plan.problem.source.state``. A module without ops lies beside the
    nearest parameter or buffer by module path, then by order.

    Args:
        plan: of a model whose ops have module paths.

    Raises:
        InexpressibleError: the plan splits a module that must stay whole, uses two devices with
            one name in PyTorch, has modules of one parameter on two devices, or its ops have no
            module paths.
    """
    problem, source = plan.problem, plan.problem.source
    require_modules(source)
    used = np.unique(plan.placement.device_of).tolist()
    names = torch_names([problem.cluster.devices[device] for device in used])
    by_device = dict(zip(used, names, strict=True))
    devices = [by_device[d] for d in problem.device_of_ops(plan.placement.device_of).tolist()]
    if len(names) == 1:
        return {"": names[0]}
    modules = problem.graph.op_modules
    if not any(modules):
        raise InexpressibleError(
            "this plan's ops have no module paths, which a device_map needs; place a .pt2 file "
            "or a zoo model"
        )
    state = () if source is None else source.state
    for ops in tied_ops(problem.graph, state):
        places = {devices[op]: modules[op] for op in ops}
        if len(places) > 1:
            texts = [f"'{module}' on {device}" for device, module in places.items()]
            raise InexpressibleError(
                f"modules {' and '.join(texts)} share a parameter, which Accelerate keeps on one "
                "device; pin them to one device with argument `pins`, or place with argument "
                "`granularity` module"
            )
    return _Writing(plan, devices).written(state)


def require_modules(source: ModelSource | None) -> None:
    """Refuse a model without PyTorch modules that have parameters.

    Raises:
        InexpressibleError: it has none.
    """
    if source is not None and not source.state:
        raise InexpressibleError(
            f"'{source.path}' has no PyTorch modules with parameters, which a device_map needs; "
            "place a module, a .pt2 file or a zoo model"
        )


def why_refused(mapped: Mapping[str, str], state: Sequence[str]) -> str | None:
    """Check a map with Accelerate, and return its objection.

    Args:
        mapped: module path -> device.
        state: paths of the model's parameters and buffers.

    Returns:
        "" if Accelerate accepts the map, None if it is not installed.
    """
    try:
        import torch
        from accelerate.utils.modeling import check_device_map
    except ImportError:
        return None
    root: Any = torch.nn.Module()
    for path in state:
        *above, name = path.split(".")
        module = root
        for part in above:  # its methods refuse names of its own, such as ``double`` and ``type``
            module = module._modules.setdefault(part, torch.nn.Module())
        module._buffers[name] = torch.empty(0)
    try:
        check_device_map(root, dict(mapped))
    except ValueError as error:
        return str(error)
    return ""


def main_device(mapped: Mapping[str, str]) -> str:
    """The device to which Accelerate is to move the model's inputs.

    Args:
        mapped: module path -> device.
    """
    # With a card as the main device, Accelerate would copy modules of the CPU to it for each call.
    return "cpu" if "cpu" in mapped.values() else next(iter(mapped.values()), "cpu")


def layer_map(plan: Plan) -> dict[str, str]:
    """The map of a language model's plan, whose layers stay whole; cards are ``cuda:0`` and so on.

    Modules before the layers lie with the embedding, and those behind them with the head. If
    the embedding is also the head, all these lie there: the plan has room for it on that device.

    Args:
        plan: of a configuration of `transformers`.

    Raises:
        InexpressibleError: the model has no PyTorch modules, or the plan has another cache than
            these make, divides a layer, streams weights, or uses a card of another process, or two
            that PyTorch calls by one name.
    """
    problem, source = plan.problem, plan.problem.source
    assert source is not None, "a plan of a language model has a source"
    _require_layers(source)
    graph, cluster = problem.graph, problem.cluster
    names, device_of = card_names(cluster.devices), problem.device_of_ops(plan.placement.device_of)
    cards = {cluster.device_names[at]: str(names[at]) for at in dict.fromkeys(device_of.tolist())}
    require_distinct("PyTorch", {card: name for card, name in cards.items() if ":" in name}, NAME)
    of_module: dict[str, dict[str, None]] = {}
    for op, at in enumerate(device_of.tolist()):
        path = graph.op_modules[op] or graph.op_names[op]
        if names[at] is None:
            raise InexpressibleError(
                f"'{path}' is on '{cluster.device_names[at]}', which is no device of PyTorch; "
                "leave it out of argument `devices`"
            )
        of_module.setdefault(path, {})[str(names[at])] = None
    for path, used in of_module.items():
        if len(used) > 1:
            raise InexpressibleError(
                f"'{path}' is on {_listed(used)}, and a device_map keeps it whole; pin '{path}.*' "
                "to one device with argument `pins`"
            )
    mapped: dict[str, str] = {}
    places = {path: next(iter(used)) for path, used in of_module.items()}
    looked_up = places["embedding"]
    if _is_tied(graph):
        places["embedding"] = places["head"]
    own, layers = "embedding", _list_of_layers(source.state, of_module)
    for path in source.state:
        numbered = _NUMBERED.match(path)
        if numbered is not None and numbered[0].rpartition(".")[0] != layers:
            numbered = None
        if numbered is not None:
            own = f"layers.{numbered[1]}"
        elif own != "embedding":
            own = "head"
        module = path.rpartition(".")[0] if numbered is None else numbered[0]
        # An entry of the model itself, or of a module around the layers, would hold for them, too.
        if not module or f"{layers}.".startswith(f"{module}."):
            module = path
        mapped.setdefault(module, looked_up if _OF_EMBEDDING.search(path) else places[own])
    return mapped


def _require_layers(source: ModelSource) -> None:
    """Refuse a language model without PyTorch modules, and a cache that these do not make."""
    if not source.state:
        raise InexpressibleError(
            f"'{source.path}' has no PyTorch modules that a device_map can name; place the "
            "configuration of a model that only writes, hf:PATH"
        )
    if (cache := source.options.get("cache", "f16")) not in ("f16", "bf16"):
        raise InexpressibleError(
            f"a cache as {cache} is nothing that a device_map asks for; plan with argument `kv` f16"
        )


def _is_tied(graph: ComputationGraph) -> bool:
    """True if the head multiplies by the weights of the embedding."""
    embedding, head = (
        set(graph.op_weights.row(graph.op_index[name]).tolist()) for name in ("embedding", "head")
    )
    return bool(embedding & head)


def _list_of_layers(paths: Sequence[str], modules: Mapping[str, object]) -> str:
    """Path of the list with the numbers of the layers; there may be other lists beside it.

    Raises:
        InexpressibleError: no list has these numbers.
    """
    numbers: dict[str, set[str]] = {}
    counts: Counter[str] = Counter()  # parameters and buffers of each list
    for path in paths:
        if numbered := _NUMBERED.match(path):
            own = numbered[0].rpartition(".")[0]
            numbers.setdefault(own, set()).add(numbered[1])
            counts[own] += 1
    layers = {name.removeprefix("layers.") for name in modules if name.startswith("layers.")}
    fitting = [path for path, found in numbers.items() if found == layers]
    if layers and not fitting:
        raise InexpressibleError(
            f"none of the module's lists has {len(layers)} layers; place a .pt2 file of it"
        )
    return max(fitting, key=lambda path: counts[path], default="")


def is_numbered(card: Device) -> bool:
    """True if the option of llama.cpp has the card's number."""
    return _NAMED.fullmatch(card.options.get(NAME, "")) is not None


def card_names(devices: Sequence[Device]) -> list[str | None]:
    """Names in PyTorch, by option or order; None for streamed weights and for served cards."""
    cards = [
        device
        for device in devices
        if device.kind == "gpu" and not any("RPC" in name for name in device.options.values())
    ]
    numbers = {
        card.name: int(found[1])
        for card in cards
        if (found := _NAMED.fullmatch(card.options.get(NAME, "")))
    }
    unnamed = [card for card in cards if card.name not in numbers]
    free = card_numbers(unnamed, tuple(numbers.values()))
    numbers |= {card.name: at for card, at in zip(unnamed, free, strict=True)}
    names = {card: f"cuda:{at}" for card, at in numbers.items()}
    return [
        "cpu"
        if device.kind == "cpu" and STREAMED_BY not in device.options
        else names.get(device.name)
        for device in devices
    ]


@dataclass
class _Module:
    """A module: paths of its children, its own ops, and the devices of all ops in it."""

    path: str
    children: dict[str, None] = field(default_factory=dict)
    ops: list[int] = field(default_factory=list)
    devices: dict[str, None] = field(default_factory=dict)


class _Writing:
    """Walks from the root module down and writes the map."""

    def __init__(self, plan: Plan, devices: list[str]) -> None:
        self.graph = plan.problem.graph
        self.devices = devices
        self.modules: dict[str, _Module] = {"": _Module("")}
        for op, path in enumerate(self.graph.op_modules):
            self._add(op, path)
        self.map: dict[str, str] = {}
        self.loose: list[int] = []  # ops of modules that are spread over devices

    def written(self, state: Sequence[str]) -> dict[str, str]:
        self._write(self.modules[""])
        self._choose_main_device()
        self._add_unread(state)
        return self.map

    def _choose_main_device(self) -> None:
        """Put the modules of the main device first: the CPU, else a device that fits loose ops."""
        first = main_device(self.map)
        for main in [first] if first == "cpu" else dict.fromkeys(self.map.values()):
            with suppress(InexpressibleError):
                self._check_loose_ops(main)
                self.map = {path: at for path, at in self.map.items() if at == main} | self.map
                return
        self._check_loose_ops(first)

    def _add_unread(self, state: Sequence[str]) -> None:
        """Map modules that have parameters or buffers but no ops, beside their neighbours."""
        below: dict[str, list[int]] = {}  # module path -> positions of the mapped names below it
        for at, name in enumerate(state):
            if self._device_of(name) is not None:
                for path in ("", *_paths(name)):
                    below.setdefault(path, []).append(at)
        for at, name in enumerate(state):
            if self._device_of(name) is not None:
                continue
            paths = _paths(name)
            entry = next((path for path in paths if path not in self.modules), name)
            around = next((below[p] for p in (*reversed(paths), "") if p in below), [])
            behind = bisect_left(around, at)
            nearest = min(around[max(0, behind - 1) : behind + 1], key=lambda to: abs(to - at),
                          default=None)  # fmt: skip
            device = None if nearest is None else self._device_of(state[nearest])
            self.map[entry] = next(iter(self.map.values())) if device is None else device

    def _device_of(self, name: str) -> str | None:
        """The device of a parameter or buffer, by its longest mapped path."""
        devices = (self.map[path] for path in reversed(_paths(name)) if path in self.map)
        return next(devices, None)

    def _add(self, op: int, path: str) -> None:
        parts = path.split(".") if path else []
        above = self.modules[""]
        above.devices[self.devices[op]] = None
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            above.children[name] = None
            above = self.modules.setdefault(name, _Module(name))
            above.devices[self.devices[op]] = None
        above.ops.append(op)

    def _write(self, module: _Module) -> None:
        if len(module.devices) == 1:
            self.map[module.path] = next(iter(module.devices))
            return
        for op in module.ops:
            if len(self.graph.op_weights.row(op)):
                raise InexpressibleError(
                    f"module '{module.path}' is on {_listed(module.devices)} and has parameters of "
                    f"its own (op '{self.graph.op_names[op]}'); a device_map keeps it whole"
                )
        self.loose += module.ops
        for child in module.children:
            self._write(self.modules[child])

    def _check_loose_ops(self, main: str) -> None:
        """Refuse ops of modules that are spread, if they would not run where the plan has them.

        Ops that need nothing but the model's inputs run on the main device wherever the plan has
        them: Accelerate moves their results to the modules that read them. PyTorch takes a tensor
        without dimensions from the CPU beside tensors of a card, but none from another card. An op
        that reads nothing else runs on the CPU.
        """
        graph = self.graph
        is_loose = np.zeros(graph.n_ops, dtype=bool)
        is_loose[self.loose] = True
        device_of: dict[int, str | None] = {}  # of loose ops; None if they follow nothing
        of_inputs: set[int] = {-1}  # makers of what needs nothing but inputs
        for op in graph.topological_order.tolist():
            if not is_loose[op]:
                continue
            places: dict[int, str | None] = {}  # of what the op follows: maker -> device
            scalars: dict[int, str | None] = {}  # which it follows only without other tensors
            for tensor in graph.op_inputs.row(op).tolist():
                maker = int(graph.tensor_producers[tensor])
                place = main if maker < 0 else device_of.get(maker, self.devices[maker])
                is_scalar = place == "cpu" and self._is_scalar(tensor)
                (scalars if is_scalar else places)[maker] = place
            places = places or scalars
            sources = dict.fromkeys(place for place in places.values() if place is not None)
            device_of[op] = next(iter(sources), None)
            if places.keys() <= of_inputs:
                of_inputs.add(op)
            elif len(sources) > 1 or (sources and device_of[op] != self.devices[op]):
                self._refuse(op, sources)

    def _is_scalar(self, tensor: int) -> bool:
        graph = self.graph
        return not graph.tensor_shapes[tensor] and bool(graph.tensor_bytes[tensor] <= _SCALAR_BYTES)

    def _refuse(self, op: int, sources: dict[str, None]) -> None:
        path = self.graph.op_modules[op]
        module = f"module '{path}'" if path else "the model itself"
        raise InexpressibleError(
            f"{module} is split: its op '{self.graph.op_names[op]}' is on {self.devices[op]} and "
            f"reads from {_listed(sources)}; a device_map runs it where its inputs lie, so the "
            "module must stay on one device"
        )


def _paths(name: str) -> list[str]:
    """``a.b.c`` -> ``a``, ``a.b``, ``a.b.c``."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def torch_names(devices: Sequence[Device]) -> list[str]:
    """The names of devices in PyTorch.

    Raises:
        InexpressibleError: one has none, or two have the same.
    """
    names: list[str] = []
    for device in devices:
        name = "cpu" if device.kind == "cpu" else device.name
        if not _TORCH_DEVICE.fullmatch(name):
            raise InexpressibleError(
                f"device '{device.name}' has no name in PyTorch; name it cpu, cuda:0, xpu:0 or mps "
                "in a cluster file, and place again"
            )
        if name in names:
            raise InexpressibleError(
                f"the plan uses two devices that PyTorch calls '{name}' ('{device.name}' is one); "
                "a device_map cannot tell them apart"
            )
        names.append(name)
    return names


def _listed(names: dict[str, None]) -> str:
    return " and ".join(names)
