"""Devices of ONNX Runtime: execution providers with threads, memory and options."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from placewright.core.cluster import Device
from placewright.errors import InputError, MissingExtraError, RuntimeFailure, UnknownNameError
from placewright.execution.processor import physical_cores, processor_devices, processor_text
from placewright.frameworks.weights_in_file import WEIGHTS_OPTION, are_shared

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_OF_NVIDIA = (CUDA, "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")
_SESSION_OPTIONS = ("intra_op_num_threads", "graph_optimization_level")
_OWN_OPTIONS = ("provider", "core", WEIGHTS_OPTION, *_SESSION_OPTIONS)
_LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_INTEGRATED = 18  # CU_DEVICE_ATTRIBUTE_INTEGRATED of the CUDA driver API
_DIGITS = 9  # most of a number of threads, which ONNX Runtime reads as 32 bits
_MOST_OF_KEY, _MOST_OF_VALUE = 1024, 4096  # letters of an entry of the configuration
_LOG_FATAL = 4  # errors are raised anyway
_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")


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
    """Refuse unknown options and values.

    Raises:
        UnknownNameError: there is no such optimization level, no such option of the CPU, or no such
            way to hold weights.
        InputError: the number of threads or of the card is not a number or too long, or so is a
            configuration entry.
    """
    level = options.get("graph_optimization_level", "all")
    if level not in _LEVELS:
        raise UnknownNameError("graph_optimization_level", level, list(_LEVELS))
    are_shared(options)  # refuses another value
    threads = options.get("intra_op_num_threads", "0")
    if not threads.isdecimal() or len(threads) > _DIGITS:
        raise InputError(
            f"device '{device_name}': intra_op_num_threads must be a number of at most {_DIGITS} "
            f"digits, got '{threads:.40}'"
        )
    number = options.get("device_id", "0")
    if not (number.isascii() and number.isdigit()) or len(number) > _DIGITS:
        raise InputError(f"device '{device_name}': device_id must be a number, got '{number:.40}'")
    for key, value in options.items():
        if "." in key and (len(key) > _MOST_OF_KEY or len(value) > _MOST_OF_VALUE):
            raise InputError(
                f"device '{device_name}': ONNX Runtime takes {_MOST_OF_KEY} letters for the name "
                f"of a configuration entry and {_MOST_OF_VALUE} for its value; '{key:.40}' has "
                f"{len(key)} and {len(value)}"
            )
    if options["provider"] == CPU:
        unknown = [key for key in options if key not in _OWN_OPTIONS and "." not in key]
        if unknown:
            what = f"ONNX Runtime option of device '{device_name}'"
            raise UnknownNameError(what, unknown[0], [*_OWN_OPTIONS, "session.*"])


def hardware_text(options: Mapping[str, str]) -> str:
    """Text that differs between different hardware.

    Nobody lists the devices of other makers' providers: those of another machine are others.
    """
    if options["provider"] == CPU:
        return processor_text(options.get("core"))
    number = options.get("device_id", "0")
    known = cuda_devices() if options["provider"] in _OF_NVIDIA else ()
    if number.isdecimal() and int(number) < len(known):
        card = known[int(number)]
        return f"{card.name}; driver {card.driver}" if card.driver else card.name
    return f"{options['provider']} {number} beside {processor_text()}"


def providers(device: Device) -> list[Any]:
    """Execution providers of a session, first choice first; the CPU takes all other nodes."""
    provider = device.options.get("provider", CPU)
    if provider == CPU:
        return [CPU]
    options = {k: v for k, v in device.options.items() if k not in _OWN_OPTIONS and "." not in k}
    return [(provider, options), CPU]


def session_of(model: str | bytes, options: Any, device: Device) -> Any:
    """Make a session of a file, or of the content of one.

    Raises:
        RuntimeFailure: ONNX Runtime left out the provider, and would compute on the CPU instead.
        Exception: a class of ONNX Runtime's own for each reason.
    """
    session = onnxruntime_library().InferenceSession(
        model, sess_options=options, providers=providers(device)
    )
    require_provider(session, device)
    return session


def require_provider(session: Any, device: Device) -> None:
    """Refuse a session that lacks the device's provider.

    ONNX Runtime then computes on the CPU, for example where a library of CUDA is missing.

    Raises:
        RuntimeFailure: the session has other providers.
    """
    wanted, found = device.options.get("provider", CPU), session.get_providers()
    if wanted not in found:
        raise RuntimeFailure(
            f"{wanted} did not start for '{device.name}', and ONNX Runtime would compute on "
            f"{' and '.join(found)}; a library that the provider needs is perhaps missing"
        )


def cuda_number(name: str) -> str:
    """The number in the name of a CUDA device.

    Raises:
        UnknownNameError: it has none, or the driver has no such device.
    """
    number, count = name.removeprefix("cuda:"), len(cuda_devices())
    is_number = number.isascii() and number.isdigit() and len(number) <= _DIGITS
    is_number = is_number and number == str(int(number))  # `00` would be another name of a card
    if not is_number or (count and int(number) >= count):
        raise UnknownNameError("device", name, [f"cuda:{at}" for at in range(count)])
    return number


def memory_of_sessions(device: Device) -> tuple[str, int]:
    """Kind and number of the memory in which a device's sessions keep inputs and outputs."""
    if device.options.get("provider") == CUDA:
        return "cuda", int(device.options.get("device_id", "0"))
    return "cpu", 0


def cuda_options(number: str) -> dict[str, str]:
    """Options of a CUDA device, without TF32: matrix products in f32 stay f32."""
    return {"provider": CUDA, "device_id": number, "use_tf32": "0"}


def session_options(device: Device) -> Any:
    """Make ``SessionOptions`` with a device's threads, level and configuration entries."""
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
    """Import ONNX Runtime.

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


@dataclass(frozen=True)
class CudaDevice:
    """A CUDA device; its place in the list is its number (``CUDA_VISIBLE_DEVICES`` applies)."""

    name: str  # for example ``"NVIDIA H200"``
    memory_bytes: float  # total
    is_integrated: bool = False  # its memory is the machine's RAM
    driver: str = ""  # newest CUDA version that the driver knows, such as ``"12.4"``


@cache
def cuda_devices() -> tuple[CudaDevice, ...]:
    """List all CUDA devices; none if there is no driver or it does not start.

    ONNX Runtime cannot list them, so the NVIDIA driver is asked.
    """
    for library in _LIBRARIES:
        try:
            return listed_by(ctypes.CDLL(library))
        except (OSError, AttributeError):  # there is none, or it lacks a function
            continue
    return ()


def listed_by(driver: ctypes.CDLL) -> tuple[CudaDevice, ...]:
    """List devices through the driver's C interface (``cuInit``, ``cuDeviceGet...``)."""
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    version = ctypes.c_int(0)
    if driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        version.value = 0
    known = f"{version.value // 1000}.{version.value % 1000 // 10}" if version.value else ""
    devices = []
    for number in range(count.value):
        device, size, is_integrated = ctypes.c_int(0), ctypes.c_size_t(0), ctypes.c_int(0)
        text = ctypes.create_string_buffer(128)
        errors = (
            driver.cuDeviceGet(ctypes.byref(device), number),
            driver.cuDeviceGetName(text, len(text), device),
            driver.cuDeviceTotalMem_v2(ctypes.byref(size), device),
            driver.cuDeviceGetAttribute(ctypes.byref(is_integrated), _INTEGRATED, device),
        )
        if any(errors):
            return ()
        name = text.value.decode("utf-8", "replace")
        devices.append(CudaDevice(name, float(size.value), bool(is_integrated.value), known))
    return tuple(devices)
