"""Devices of PyTorch: the processor, its cores and accelerators; settings of their threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from placewright.core.cluster import Device
from placewright.errors import InputError, UnknownNameError
from placewright.execution.processor import (
    RAM,
    physical_cores,
    processor_devices,
    processor_text,
    stay_on,
)

MODES = ("eager", "inductor")  # of option ``compile``
_OPTIONS = ("device", "threads", "core", "compile")


def discovered() -> tuple[Device, ...]:
    """``cpu`` with one thread per physical core, ``cpu:N`` with one, and every accelerator."""
    processor = processor_devices(
        {"device": "cpu", "threads": str(physical_cores())}, {"device": "cpu", "threads": "1"}
    )
    return tuple(_with_fingerprint(device) for device in (*processor, *_accelerators()))


_DIGITS = 9  # most of a number of threads
_WHOLE = ("none", "ieee")  # PyTorch's names of f32 without a lower precision inside


def completed(device: Device) -> Device:
    """Return a device with its fingerprint and, by its name, the options that it leaves open.

    Raises:
        UnknownNameError: PyTorch has no such device or option here.
        InputError: the number of threads is not a number.
    """
    known = {present.name: present for present in discovered()}
    base = known.get(device.name)
    options = {**(base.options if base else {}), **device.options}
    native = [present.options["device"] for present in known.values()]
    if options.get("device", "") not in native:
        if "device" in device.options:
            what = f"option 'device' of device '{device.name}'"
            raise UnknownNameError(what, options["device"], list(dict.fromkeys(native)))
        raise UnknownNameError("device", device.name, list(known))
    unknown = [key for key in options if key not in _OPTIONS]
    if unknown:
        what = f"PyTorch option of device '{device.name}'"
        raise UnknownNameError(what, unknown[0], _OPTIONS)
    threads = options.get("threads", "1")
    is_number = threads.isascii() and threads.isdigit() and len(threads) <= _DIGITS
    if not (is_number and int(threads) >= 1):
        raise InputError(
            f"device '{device.name}': threads must be a number >= 1, got '{threads:.40}'"
        )
    if (mode := options.get("compile", MODES[0])) not in MODES:
        raise UnknownNameError(f"option 'compile' of device '{device.name}'", mode, MODES)
    if mode == MODES[0]:
        options.pop("compile", None)  # it is the same device as one that does not say so
    memory = base.memory_bytes if base else device.memory_bytes
    memory = min(device.memory_bytes, memory)
    return _with_fingerprint(replace(device, options=options, memory_bytes=memory))


def native_device(device: Device) -> torch.device:
    """PyTorch's name of a device."""
    name = device.options.get("device", "cpu" if device.kind == "cpu" else device.name)
    return torch.device(name)


def n_threads(device: Device) -> int:
    """Threads that an operator may use on the processor."""
    return int(device.options.get("threads", "1"))


@contextmanager
def limited_threads(number: int) -> Iterator[None]:
    """Let each operator use this many threads of the processor, then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compile_mode(device: Device) -> str:
    """One of `MODES`; eager execution unless the device says otherwise."""
    return device.options.get("compile", MODES[0])


def is_compiled(device: Device) -> bool:
    """True if ``torch.compile`` makes the code of a device's segments, which fuses their ops."""
    return compile_mode(device) != MODES[0]


def _accelerators() -> list[Device]:
    if not torch.accelerator.is_available():
        return []
    current = torch.accelerator.current_accelerator()
    kind = current.type if current is not None else "cuda"
    accelerators = []
    for number in range(torch.accelerator.device_count()):
        name = f"{kind}:{number}"
        properties = _properties(torch.device(name))
        total = getattr(properties, "total_memory", None)
        accelerators.append(
            Device(
                name,
                "npu" if kind == "npu" else "gpu",
                memory_bytes=float(total) if total else float("inf"),
                pool=RAM if _is_integrated(kind, properties) else None,
                overlaps_transfers=True,
                options={"device": name},
            )
        )
    return accelerators


def _properties(device: torch.device) -> Any:
    """Properties of an accelerator; None if its library reports none."""
    module: Any = torch.get_device_module(device)
    properties = getattr(module, "get_device_properties", None)
    return properties(device) if properties else None


def _is_integrated(kind: str, properties: Any) -> bool:
    """True if the accelerator takes its bytes from the machine's RAM.

    CUDA says so of the GPUs of its systems on a chip, and GPUs of Apple's processors always do.
    """
    return kind == "mps" or bool(getattr(properties, "is_integrated", False))


def _with_fingerprint(device: Device) -> Device:
    settings = {k: v for k, v in sorted(device.options.items()) if k not in ("core", "device")}
    native = native_device(device)
    if native.type == "cpu":
        processor = processor_text(device.options.get("core"))
        text = f"{processor}; {torch.backends.cpu.get_cpu_capability()}"
    else:
        text = _accelerator_text(native)
    text = "; ".join([text, *_unusual_settings(native.type)])
    return replace(device, fingerprint=f"{text} {settings}")


def _unusual_settings(kind: str) -> list[str]:
    """Settings of the process other than PyTorch's defaults, by which ops take other seconds.

    Args:
        kind: PyTorch's type of device, such as ``"cuda"``.
    """
    convolutions, products = _convolution_precision(kind), _product_precision(kind)
    texts = []
    if kind == "cpu" and not torch._C._get_mkldnn_enabled():
        texts.append("without oneDNN")
    if convolutions != ("tf32" if kind == "cuda" else "f32"):
        texts.append(f"convolutions in {convolutions}")
    if products != "highest":
        texts.append(f"products in {products} precision")
    return texts


def _convolution_precision(kind: str) -> str:
    """Precision of convolutions of f32; by default ``"tf32"`` on CUDA devices, else ``"f32"``.

    Args:
        kind: PyTorch's type of device, such as ``"cuda"``.
    """
    if kind == "cuda":
        try:
            return "tf32" if torch.backends.cudnn.allow_tf32 else "f32"
        except RuntimeError:  # PyTorch refuses to tell if its newer interface has set it
            return torch._C._get_fp32_precision_getter("cuda", "conv")
    precision = torch._C._get_fp32_precision_getter("mkldnn", "conv") if kind == "cpu" else "none"
    return "f32" if precision in _WHOLE else precision


def _product_precision(kind: str) -> str:
    """Precision of matrix products of f32: ``"highest"`` (default), ``"high"`` or ``"medium"``.

    If PyTorch's newer interface has set a lower one, it is that one's word, such as ``"tf32"``.

    Args:
        kind: PyTorch's type of device, such as ``"cuda"``.
    """
    backend = {"cpu": "mkldnn", "cuda": "cuda"}.get(kind)
    precision = torch._C._get_fp32_precision_getter(backend, "matmul") if backend else ""
    if precision in _WHOLE:
        return "highest"
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # its newer interface has set it, perhaps for other devices
        return precision or "highest"


def _accelerator_text(device: torch.device) -> str:
    """Name, memory, capability, driver and library versions of an accelerator."""
    facts: dict[str, object] = {"type": device.type}
    properties = _properties(device)
    for key in ("name", "total_memory", "major", "minor", "multi_processor_count"):
        if hasattr(properties, key):
            facts[key] = getattr(properties, key)
    if device.type == "cuda":
        facts["cuda"] = torch.version.cuda
        facts["cudnn"] = _cudnn_version()
        facts["driver"] = _driver_version()
    return "; ".join(f"{key} {value}" for key, value in facts.items())


def _cudnn_version() -> str:
    """Version of cuDNN; "None" without it."""
    version: object = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return str(version)


def _driver_version() -> str:
    """Version of NVIDIA's kernel module, as the system reports it."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            return file.readline().strip()
    except OSError:
        return "unknown"


def versions() -> dict[str, str]:
    """Versions of PyTorch, CUDA and cuDNN."""
    return {
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "cudnn": _cudnn_version(),
    }


def worker_setup(device: Device) -> Callable[[], None]:
    """A function that a worker calls once, to stay on its core and use the device's threads."""
    pin = stay_on(device.options.get("core"), device.name)
    number, native = n_threads(device), native_device(device)

    def setup() -> None:
        pin()
        torch.set_num_threads(number)
        # Gradients of a repeated batch shrink to subnormal numbers, which take many times as
        # long. The time of a step must not depend on the number of steps before it.
        torch.set_flush_denormal(True)
        # Both settings hold for the calling thread until it ends. Without optimization
        # TorchScript calls each operator separately.
        torch._C._set_graph_executor_optimize(False)
        if native.type == "cuda":
            torch.cuda.set_device(native)

    return setup


class PreparedCaller:
    """Settings of `worker_setup` for a caller's thread, which gets its own settings back.

    A context manager without the parts of Python's own, as each call of a plan enters it.
    """

    def __init__(self, device: Device) -> None:
        native = native_device(device)
        self._type = native.type
        # To begin the mode here is cheaper than in each segment.
        self._mode = torch.inference_mode()
        self._on_card = torch.cuda.device(native) if native.type == "cuda" else None

    def __enter__(self) -> None:
        self._threads = torch.get_num_threads()
        self._optimizes = torch._C._get_graph_executor_optimize()
        torch._C._set_graph_executor_optimize(False)
        self._is_autocast = torch.is_autocast_enabled(self._type)
        if self._is_autocast:  # a plan computes in its model's types, as workers do
            torch.set_autocast_enabled(self._type, False)
        self._mode.__enter__()
        if self._on_card is not None:
            self._on_card.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        if self._on_card is not None:
            self._on_card.__exit__(*error)
        self._mode.__exit__(*error)
        if self._is_autocast:
            torch.set_autocast_enabled(self._type, True)
        torch._C._set_graph_executor_optimize(self._optimizes)
        torch.set_num_threads(self._threads)  # each segment sets its device's


class SameKernels:
    """Lets cuDNN choose the same kernels in every run, while a thread is inside.

    The choice is the whole process's. The last thread that leaves gives the user's own back.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._own = (False, False)

    def __enter__(self) -> None:
        cudnn = torch.backends.cudnn
        with self._lock:
            if self._inside == 0:
                self._own = (cudnn.benchmark, cudnn.deterministic)
                cudnn.benchmark, cudnn.deterministic = False, True
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        cudnn = torch.backends.cudnn
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                cudnn.benchmark, cudnn.deterministic = self._own


SAME_KERNELS = SameKernels()
