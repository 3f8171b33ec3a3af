"""Devices of OpenVINO: the processor and its cores, GPUs and NPUs, and the library itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from placewright.core.cluster import Device
from placewright.errors import UnknownNameError, optional_library
from placewright.execution.processor import RAM, processor_devices, processor_text
from placewright.frameworks.weights_in_file import WEIGHTS_OPTION, are_shared

_OWN_OPTIONS = ("device", "core", WEIGHTS_OPTION)


def discovered() -> tuple[Device, ...]:
    """The CPU with all its threads, each core with one thread, every GPU and NPU."""
    accelerators = [
        _accelerator(name)
        for name in openvino_core().available_devices
        if name.startswith(("GPU", "NPU"))
    ]
    return tuple(completed(device) for device in (*_cpu_devices(), *accelerators))


def _accelerator(name: str) -> Device:
    """A GPU or NPU; it takes its bytes from the machine's RAM if OpenVINO calls it integrated."""
    kind = "gpu" if name.startswith("GPU") else "npu"
    total = _reported(name, f"{kind.upper()}_DEVICE_TOTAL_MEM_SIZE")
    integrated = openvino_library().properties.device.Type.INTEGRATED  # without own memory
    is_integrated = _reported(name, "DEVICE_TYPE") == integrated
    return Device(
        name=name,
        kind=kind,
        memory_bytes=float(total) if total else math.inf,
        pool=RAM if is_integrated else None,
        options={"device": name},
    )


def _reported(name: str, entry: str) -> Any:
    """A property of a device; None if its plugin does not report it."""
    try:
        return openvino_core().get_property(name, entry)
    except RuntimeError:
        return None


def completed(device: Device) -> Device:
    """Return a device with its fingerprint and, by its name, the options that it leaves open.

    Raises:
        UnknownNameError: OpenVINO has no such device here, or there is no such option.
    """
    known = {cpu.name: cpu for cpu in _cpu_devices()}
    options = {**(known[device.name].options if device.name in known else {}), **device.options}
    are_shared(options)  # refuses another value
    if device.processors and device.kind != "cpu":  # a mode, whose name is its own
        options.setdefault("device", device.name)
    filled = replace(device, options=options)
    available = openvino_core().available_devices
    is_named = device.name in known or "device" in options or device.kind != "cpu"
    if not is_named or not _is_present(native_device(filled), available):
        others = [name for name in available if name != "CPU"]
        raise UnknownNameError("device", device.name, [*known, *others])
    settings = {k: v for k, v in sorted(options.items()) if k != "core"}
    return replace(filled, fingerprint=f"{_hardware_text(filled)} {settings}")


def _is_present(native: str, available: Sequence[str]) -> bool:
    """True for a device here, also by its bare kind, as the first of its kind, or as a tile of it.

    What follows ``NPU.`` is a platform, by which OpenVINO compiles.
    """
    kind, _, rest = native.partition(".")
    number = rest.partition(".")[0] or "0"
    kinds = [name.partition(".")[0] for name in available]
    return f"{kind}.{number}" in available or (kind in kinds and (number == "0" or kind == "NPU"))


def native_device(device: Device) -> str:
    """OpenVINO's name of a device."""
    if "device" in device.options:
        return device.options["device"]
    return "CPU" if device.kind == "cpu" else device.name


def compile_options(device: Device) -> dict[str, str]:
    """OpenVINO properties among the options of a device."""
    return {k: v for k, v in device.options.items() if k not in _OWN_OPTIONS}


def _cpu_devices() -> tuple[Device, ...]:
    """``cpu`` with all threads, and ``cpu:N``, one thread on the N-th core that we may use."""
    hint = {"device": "CPU", "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": "1"}
    # Workers pin themselves (`worker_setup`): OpenVINO would pin all one-thread models to one core.
    one_core = {**hint, "INFERENCE_NUM_THREADS": "1", "ENABLE_CPU_PINNING": "NO"}
    return processor_devices(hint, one_core)


def _hardware_text(device: Device) -> str:
    """Text that differs between different hardware, and not between equal cores."""
    native = native_device(device)
    if native != "CPU":
        name = str(_reported(native, "FULL_DEVICE_NAME") or native)
        driver = _reported(native, f"{native.partition('.')[0]}_DRIVER_VERSION")
        return f"{name}; driver {driver}" if driver else name
    return processor_text(device.options.get("core"))


@functools.cache
def openvino_core() -> Any:
    """The only ``openvino.Core`` of this process, which is never released.

    OpenVINO's CPU plugin gives the thread that loads it another stack for signals, and takes it
    back with the last model of its core. If cores come and go in any order, a released stack stays
    in use, and Ctrl-C ends the process without a message.
    """
    return openvino_library().Core()


def openvino_library(what: str = "the OpenVINO runtime") -> Any:
    """Import OpenVINO.

    Args:
        what: needs it, for the message.

    Raises:
        MissingExtraError: it is not installed.
    """
    return optional_library("openvino.opset13", "openvino", what)
