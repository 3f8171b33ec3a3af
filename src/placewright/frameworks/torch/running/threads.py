"""Settings of the threads that run segments: of workers, and of callers who run one themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch

from placewright.core.cluster import Device
from placewright.execution.processor import stay_on
from placewright.frameworks.torch.running.devices import n_threads, native_device
from placewright.frameworks.torch.running.memory import without_optimization


def worker_setup(device: Device) -> Callable[[], None]:
    """A function that the worker of a device calls once: stay on the core, use its threads."""
    pin = stay_on(device.options.get("core"), device.name)
    number, native = n_threads(device), native_device(device)

    def setup() -> None:
        pin()
        torch.set_num_threads(number)
        # Gradients of a batch that is seen again and again shrink to subnormal numbers, which
        # take many times as long; a step's time must not depend on how many came before.
        torch.set_flush_denormal(True)
        # Both hold for the calling thread, until it ends. Without optimization TorchScript
        # calls each operator as it stands.
        torch._C._set_graph_executor_optimize(False)
        if native.type == "cuda":
            torch.cuda.set_device(native)
            _use_same_kernels()

    return setup


@contextmanager
def prepared_caller(device: Device) -> Iterator[None]:
    """The same settings for a thread that runs one segment and gets its own settings back."""
    threads, native = torch.get_num_threads(), native_device(device)
    is_cuda = native.type == "cuda"
    if is_cuda:
        _use_same_kernels()
    try:
        with without_optimization(), torch.cuda.device(native) if is_cuda else nullcontext():
            yield
    finally:
        torch.set_num_threads(threads)  # each segment sets its device's


def _use_same_kernels() -> None:
    """Let cuDNN choose the same kernels in every run; this holds for the whole process."""
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
