"""A plan as annotations of nodes for ONNX Runtime's "layer assignment".

Each node names its device in ``metadata_props["layer_ann"]``. The session option
``session.layer_assignment_settings`` maps these names to execution providers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from placewright.core.cluster import Device
from placewright.core.plan import Plan
from placewright.core.source import ModelSource, name_of_copy, numbered_position
from placewright.errors import InexpressibleError, StalePlanError, optional_library
from placewright.io.model_parts import onnx_model

OPTION = "session.layer_assignment_settings"
_ANNOTATION = "layer_ann"
_MARKS = re.compile(r"[(),;=]|^\s|\s$")
_CUDA = re.compile(r"cuda:(\d+)")
_DESIGNATORS = {"CPUExecutionProvider": "cpu", "DmlExecutionProvider": "dml"}


def assignment_settings(plan: Plan) -> str:
    """The value of the session option, for example ``"gpu:0(=cuda:0); cpu(=cpu)"``.

    Raises:
        InexpressibleError: the ops are not ONNX nodes, ONNX Runtime has one designator for two
            devices of the plan, such as two cores of the CPU, or the plan uses two cards.
    """
    problem = plan.problem
    require_nodes(problem.source)
    designators: dict[str, str] = {}
    for number in np.unique(plan.placement.device_of).tolist():
        device = problem.cluster.devices[number]
        name = designator(device)
        if name in designators.values():
            raise InexpressibleError(
                f"the plan uses two devices that are '{name}' to ONNX Runtime's layer "
                f"assignment ('{device.name}' is one); export it as onnx-segments"
            )
        designators[device.name] = name
    cards = [name for name, own in designators.items() if own.startswith("gpu")]
    if len(cards) > 1:  # it ignores a second provider of a kind, and leaves its nodes to any
        raise InexpressibleError(
            "a session of ONNX Runtime has one provider of a kind, and the plan uses "
            f"{' and '.join(cards)}; export it as onnx-segments"
        )
    return "; ".join(f"{own}(={name})" for name, own in designators.items())


def session_providers(
    plan: Plan, provider_of: Callable[[Device, str], tuple[str, dict[str, str]]]
) -> list[str | tuple[str, dict[str, str]]]:
    """The argument `providers` of a session for the annotated model.

    Args:
        plan: one that has `assignment_settings`.
        provider_of: a card and its number -> its provider, with the options of measured sessions.
    """
    used = np.unique(plan.placement.device_of).tolist()
    found: list[str | tuple[str, dict[str, str]]] = []
    for device in (plan.problem.cluster.devices[number] for number in used):
        own, _, number = designator(device).partition(":")
        if own != "cpu":
            found.append(provider_of(device, number or device.options.get("device_id", "0")))
    return [*found, "CPUExecutionProvider"]


def require_nodes(source: ModelSource | None) -> None:
    """Refuse a model whose ops are not the nodes of an ``.onnx`` file.

    Raises:
        InexpressibleError: they are not.
    """
    if source is None or source.format != "onnx":
        raise InexpressibleError(
            "this plan's ops are not the nodes of an .onnx file; place one with "
            "argument `runtime` onnxruntime"
        )


def annotated_model(plan: Plan, path: Path, settings: str) -> Any:
    """The plan's model as an ``onnx.ModelProto`` with the device of each node.

    Nodes that were added for state, to copy an input, are in no file and left out.

    Args:
        plan: of an ``.onnx`` file.
        path: of that file; its references to external data stay.
        settings: of the plan, see `assignment_settings`.

    Raises:
        StalePlanError: the file has no such node.
        MissingExtraError: onnx is not installed.
    """
    optional_library("onnx", "onnxruntime", "annotating an .onnx model")
    model, _ = onnx_model(path)
    nodes = model.graph.node
    by_name: dict[str, int] = {}
    for at, node in enumerate(nodes):
        by_name.setdefault(node.name, at)
    problem = plan.problem
    source = problem.source
    assert source is not None, "assignment_settings has checked it"
    names = problem.cluster.device_names
    device_of = problem.device_of_ops(plan.placement.device_of).tolist()
    added = {name_of_copy(value.name) for value in model.graph.output}  # membership only
    device_at: dict[int, str] = {}  # position of a node -> device
    for op, device in zip(problem.graph.op_names, device_of, strict=True):
        native = source.native_name(op)
        if native in added and native not in by_name:
            continue
        numbered = numbered_position(native)
        at = by_name.get(native, len(nodes)) if numbered is None else numbered
        if not at < len(nodes):
            raise StalePlanError(f"model '{path}' has changed: it has no node '{op}'")
        device_at[at] = names[device]
    _follow(nodes, device_at)
    for at, device_name in device_at.items():
        _annotate(nodes[at], _ANNOTATION, device_name)
    _annotate(model, OPTION, settings)
    return model


def _follow(nodes: Any, device_at: dict[int, str]) -> None:
    """Give nodes without a device, which depend on constants only, the device of their reader."""
    reader: dict[str, str] = {}
    for at in reversed(range(len(nodes))):
        if at not in device_at:
            readers = [reader[value] for value in nodes[at].output if value in reader]
            if readers:
                device_at[at] = readers[0]
        if at in device_at:
            for value in nodes[at].input:
                reader[value] = device_at[at]


def _annotate(holder: Any, key: str, value: str) -> None:
    for entry in holder.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    holder.metadata_props.add(key=key, value=value)


def designator(device: Device) -> str:
    """The name of a device in a layer assignment, such as ``"gpu:0"``.

    Raises:
        InexpressibleError: it has none.
    """
    if _MARKS.search(device.name):  # the name is also that of an annotation
        raise InexpressibleError(
            f"device '{device.name}' has a mark in its name by which ONNX Runtime divides a layer "
            "assignment; rename it in a cluster file"
        )
    if "provider" not in device.options and device.kind != "cpu":
        name = _CUDA.fullmatch(device.name)
        if name is None:
            raise InexpressibleError(
                f"device '{device.name}' has no name in ONNX Runtime; name it cuda:0 in a cluster "
                "file, and place again"
            )
        return f"gpu:{name[1]}"
    provider = device.options.get("provider", "CPUExecutionProvider")
    if provider in ("CUDAExecutionProvider", "ROCMExecutionProvider"):
        return f"gpu:{device.options.get('device_id', '0')}"
    if provider not in _DESIGNATORS:
        raise InexpressibleError(
            f"ONNX Runtime's layer assignment has no designator for '{provider}' of device "
            f"'{device.name}'"
        )
    return _DESIGNATORS[provider]
