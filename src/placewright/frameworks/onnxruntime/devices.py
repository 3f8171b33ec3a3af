"""Devices of ONNX Runtime: execution providers with threads, memory and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placewright.core.cluster import Device
from placewright.errors import InputError, MissingExtraError, UnknownNameError
from placewright.execution.processor import physical_cores, processor_devices, processor_text
from placewright.frameworks.onnxruntime.cuda_driver import cuda_devices

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_SESSION_OPTIONS = ("intra_op_num_threads", "graph_optimization_level")
_OWN_OPTIONS = ("provider", "core", *_SESSION_OPTIONS)
_LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_LOG_FATAL = 4  # an error is raised, too


def cpu_devices() -> tuple[Device, ...]:
    """``cpu`` with all threads, and ``cpu:N``, one thread on the N-th core that we may use.

    Waiting threads sleep: a segment's session must not spin while another device computes.
    """
    shared = {"provider": CPU, "session.intra_op.allow_spinning": "0"}
    return processor_devices(
        {**shared, "intra_op_num_threads": str(physical_cores())},
        {**shared, "intra_op_num_threads": "1"},
    )


def check_options(options: Mapping[str, str], device_name: str) -> None:
    """Refuse options that mean nothing.

    Raises:
        UnknownNameError: an optimization level, or an option of the CPU, that there is not.
        InputError: the number of threads is none.
    """
    level = options.get("graph_optimization_level", "all")
    if level not in _LEVELS:
        raise UnknownNameError("graph_optimization_level", level, list(_LEVELS))
    threads = options.get("intra_op_num_threads", "0")
    if not threads.isdecimal():
        raise InputError(
            f"device '{device_name}': intra_op_num_threads must be a number, got '{threads}'"
        )
    if options["provider"] == CPU:
        unknown = [key for key in options if key not in _OWN_OPTIONS and "." not in key]
        if unknown:
            what = f"ONNX Runtime option of device '{device_name}'"
            raise UnknownNameError(what, unknown[0], [*_OWN_OPTIONS, "session.*"])


def hardware_text(options: Mapping[str, str]) -> str:
    """What tells one piece of hardware from another."""
    if options["provider"] == CPU:
        return processor_text(options.get("core"))
    number = options.get("device_id", "0")
    known = cuda_devices() if options["provider"] == CUDA else ()
    if number.isdecimal() and int(number) < len(known):
        return known[int(number)].name
    return f"{options['provider']} {number}"


def providers(device: Device) -> list[Any]:
    """Execution providers of a session, first choice first; the CPU takes what is left."""
    provider = device.options.get("provider", CPU)
    if provider == CPU:
        return [CPU]
    options = {k: v for k, v in device.options.items() if k not in _OWN_OPTIONS and "." not in k}
    return [(provider, options), CPU]


def memory_of_sessions(device: Device) -> tuple[str, int]:
    """Where a device's sessions keep what they read and make."""
    if device.options.get("provider") == CUDA:
        return "cuda", int(device.options.get("device_id", "0"))
    return "cpu", 0


def cuda_options(number: str) -> dict[str, str]:
    """Options of a CUDA device; matrix products in f32 stay f32."""
    return {"provider": CUDA, "device_id": number, "use_tf32": "0"}


def session_options(device: Device) -> Any:
    """``SessionOptions`` with a device's threads, level and configuration entries."""
    library = onnxruntime_library()
    options = library.SessionOptions()
    options.log_severity_level = _LOG_FATAL
    options.intra_op_num_threads = int(device.options.get("intra_op_num_threads", 0))
    level = _LEVELS[device.options.get("graph_optimization_level", "all")]
    options.graph_optimization_level = getattr(library.GraphOptimizationLevel, level)
    for key, value in device.options.items():
        if "." in key:
            options.add_session_config_entry(key, value)
    return options


def onnxruntime_library() -> Any:
    """The module.

    Raises:
        MissingExtraError: it, or onnx, is not installed.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError as error:
        package = str(error.name or "onnxruntime").partition(".")[0]
        raise MissingExtraError(package, "onnxruntime", "the ONNX Runtime runtime") from None
    return onnxruntime
