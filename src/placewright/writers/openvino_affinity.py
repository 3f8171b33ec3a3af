"""A plan as affinities of OpenVINO's HETERO device, and their application to a model.

A saved IR file has no affinities, so they are stored as JSON and set after reading the model.
HETERO needs an affinity on every node: parameters, constants and results, which a plan does not
place, follow the ops that read or make them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from placewright.core.cluster import Device
from placewright.core.plan import Plan
from placewright.core.source import ModelSource, numbered_position
from placewright.errors import (
    InexpressibleError,
    InputError,
    MissingExtraError,
    StalePlanError,
    optional_library,
)

FORMAT = "placewright.openvino-affinity/1"
_SHOWN = 200  # last characters of an OpenVINO message, where the reason is
_KEPT = ("INFERENCE_PRECISION_HINT",)
_OPENVINO_DEVICE = re.compile(r"[A-Z][A-Z0-9_]*(\.\w+)*")  # CPU, GPU.0, NPU and other plugins


def affinity_data(plan: Plan) -> dict[str, Any]:
    """The affinities of a plan as data.

    Returns:
        - ``device`` for ``compile_model``: ``"HETERO:GPU.0,CPU"``, the device with most ops first;
        - ``affinity``: friendly name of each op -> its OpenVINO device;
          ``"#<position in get_ordered_ops()>"`` if the name is not stored in the model;
        - ``shapes``: the fixed shapes of the inputs;
        - ``config``, the third argument of ``compile_model``: the precision of each device.

    Raises:
        InexpressibleError: OpenVINO did not read the model, or HETERO has one name for two devices
            of the plan, such as two cores of the CPU.
    """
    problem = plan.problem
    source = require_ops(problem.source)
    device_of = problem.device_of_ops(plan.placement.device_of).tolist()
    counts = np.bincount(device_of, minlength=problem.n_devices)
    used = sorted(np.flatnonzero(counts).tolist(), key=lambda device: (-counts[device], device))
    names: dict[int, str] = {}
    for device in used:
        name = openvino_name(problem.cluster.devices[device])
        if name in names.values():
            raise InexpressibleError(
                f"the plan uses two devices that are '{name}' to OpenVINO "
                f"('{problem.cluster.device_names[device]}' is one); HETERO cannot tell them apart"
            )
        names[device] = name
    return {
        "format": FORMAT,
        "model": {"source": source.path, "sha256": source.sha256},
        "shapes": {name: list(shape) for name, shape in source.shapes.items()},
        "device": "HETERO:" + ",".join(names.values()),
        "config": _config(problem.cluster.devices, names),
        "affinity": {
            source.native_name(op): names[device]
            for op, device in zip(problem.graph.op_names, device_of, strict=True)
        },
    }


def require_ops(source: ModelSource | None) -> ModelSource:
    """The source of a model that OpenVINO has read.

    Raises:
        InexpressibleError: it has not read this one.
    """
    if source is None or source.format != "openvino":
        raise InexpressibleError(
            "this plan's ops are not OpenVINO's; place the model with argument `runtime` openvino"
        )
    return source


def _config(devices: Sequence[Device], names: Mapping[int, str]) -> dict[str, Any]:
    """Properties of the devices; without them, OpenVINO chooses a precision by the processor."""
    properties = {
        name: {key: devices[at].options[key] for key in _KEPT if key in devices[at].options}
        for at, name in names.items()
    }
    return {"DEVICE_PROPERTIES": properties} if any(properties.values()) else {}


def why_refused(path: Callable[[], str], data: Mapping[str, Any]) -> str | None:
    """Compile a model file with its affinities, and return OpenVINO's objection.

    Args:
        path: returns the model file; called only if all devices are here.
        data: from `affinity_data`.

    Returns:
        "" if OpenVINO accepts them, None if OpenVINO or a device is missing on this machine.

    Raises:
        PlacewrightError: see `apply_affinity`.
    """
    try:
        core = _core()
    except MissingExtraError:
        return None
    present = {_with_number(name) for name in core.available_devices}
    if any(_with_number(x) not in present for x in data["device"].partition(":")[2].split(",")):
        return None
    try:
        model = core.read_model(path())
        core.compile_model(model, apply_affinity(model, data), dict(data["config"]))
    except RuntimeError as error:
        return " ".join(str(error).split())[-_SHOWN:]
    return ""


@cache
def _core() -> Any:
    """One core for all exports: a second core unloads the plugins of the first."""
    return _openvino().Core()


def _with_number(device: str) -> str:
    """A device's whole name: a kind alone is its first device."""
    return device if "." in device else f"{device}.0"


def apply_affinity(model: Any, data: Mapping[str, Any]) -> str:
    """Set every node's affinity in an ``openvino.Model``, in place.

    Args:
        model: just read from the plan's model file.
        data: from `affinity_data`, for example through a JSON file.

    Returns:
        The device to compile for: ``core.compile_model(model, device, data["config"])``.

    Raises:
        InputError: `data` has another format, or the inputs cannot have its shapes.
        StalePlanError: the model lacks an op.
        InexpressibleError: ops on two devices read one computed constant.
    """
    if data.get("format") != FORMAT:
        raise InputError(f"affinities have format {data.get('format')!r}, expected '{FORMAT}'")
    _fix_shapes(model, data["shapes"])
    nodes = model.get_ordered_ops()
    position = {node.get_instance_id(): at for at, node in enumerate(nodes)}
    # Of equal names the first op's, as for the reader. Constants and results may have it, too.
    last_first = sorted(range(len(nodes)), key=lambda at: (_is_op(nodes[at]), -at))
    by_name = {nodes[at].get_friendly_name(): at for at in last_first}
    device_at: dict[int, str] = {}
    for name, device in data["affinity"].items():
        numbered = numbered_position(name)
        at = by_name.get(name, len(nodes)) if numbered is None else numbered
        if not 0 <= at < len(nodes):
            raise StalePlanError(f"the model has changed: it has no op '{name}'; place it again")
        device_at[at] = str(device)
    varying = _varying(nodes)
    for at in reversed(range(len(nodes))):
        if at not in device_at:
            _follow(
                nodes[at], position, device_at, is_varying=nodes[at].get_instance_id() in varying
            )
    for at, node in enumerate(nodes):
        if at not in device_at:  # results and nodes without readers
            makers = [position[v.get_node().get_instance_id()] for v in node.input_values()]
            device_at[at] = next(
                (device_at[m] for m in makers if m in device_at), next(iter(device_at.values()))
            )
        node.get_rt_info()["affinity"] = device_at[at]
    return str(data["device"])


def _is_op(node: Any) -> bool:
    return node.get_type_name() not in ("Constant", "Parameter", "Result")


def _varying(nodes: list[Any]) -> frozenset[int]:
    """Instance ids of the nodes that depend on an input or its shape, in topological order."""
    varying: dict[int, None] = {}
    for node in nodes:
        makers = [value.get_node().get_instance_id() for value in node.input_values()]
        if node.get_type_name() == "Parameter" or any(maker in varying for maker in makers):
            varying[node.get_instance_id()] = None
    return frozenset(varying)


def _follow(
    node: Any, position: dict[int, int], device_at: dict[int, str], *, is_varying: bool
) -> None:
    """Give a node the device of its readers; if these differ, the first by name."""
    readers = [
        (target, device_at[position[target.get_node().get_instance_id()]])
        for port in node.outputs()
        for target in port.get_target_inputs()
        if position.get(target.get_node().get_instance_id()) in device_at
    ]
    devices = sorted(dict.fromkeys(device for _, device in readers))
    if not devices:
        return
    device_at[position[node.get_instance_id()]] = devices[0]
    if len(devices) == 1 or is_varying:
        return
    if node.get_type_name() != "Constant":
        raise InexpressibleError(
            f"'{node.get_friendly_name()}' is computed from constants for ops on "
            f"{' and '.join(devices)}; HETERO cannot share it"
        )
    for device in devices[1:]:
        # With the tensor, since plain numbers would be other ones in bf16 or with 4 bits.
        copy = _openvino().op.Constant(node.get_tensor_view(), shared_memory=False)
        copy.get_rt_info()["affinity"] = device
        for target, reader in readers:
            if reader == device:
                target.replace_source_output(copy.output(0))


def _fix_shapes(model: Any, shapes: Mapping[str, list[int]]) -> None:
    openvino = _openvino()
    fixed = {
        port: openvino.PartialShape(list(shape))
        for port in model.inputs
        for name, shape in shapes.items()
        if name in port.get_names() or name == port.get_node().get_friendly_name()
    }
    if any(list(port.get_partial_shape()) != list(shape) for port, shape in fixed.items()):
        try:
            model.reshape(fixed)
        except RuntimeError as error:
            raise InputError(f"the model cannot take the plan's input shapes: {error}") from None


def openvino_name(device: Device) -> str:
    """The OpenVINO name of a device.

    Raises:
        InexpressibleError: it has none.
    """
    name = device.options.get("device", "CPU" if device.kind == "cpu" else device.name)
    if not _OPENVINO_DEVICE.fullmatch(name):
        raise InexpressibleError(
            f"device '{device.name}' has no name in OpenVINO; name it CPU, GPU.0 or NPU in a "
            "cluster file, and place again"
        )
    return name


def _openvino() -> Any:
    return optional_library("openvino.opset13", "openvino", "applying affinities")
