"""CUDA devices as the NVIDIA driver lists them, for runtimes that cannot list them themselves."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")


@dataclass(frozen=True)
class CudaDevice:
    """One device, numbered by its place in the list (``CUDA_VISIBLE_DEVICES`` applies).

    Attributes:
        name: for example ``"NVIDIA H200"``.
        memory_bytes: total.
    """

    name: str
    memory_bytes: float


@cache
def cuda_devices() -> tuple[CudaDevice, ...]:
    """All devices; none where there is no driver or it does not start."""
    for library in _LIBRARIES:
        try:
            return listed(ctypes.CDLL(library))
        except OSError:
            continue
    return ()


def listed(driver: ctypes.CDLL) -> tuple[CudaDevice, ...]:
    """Devices through the driver's C interface (``cuInit``, ``cuDeviceGet...``)."""
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    found = []
    for number in range(count.value):
        device, size = ctypes.c_int(0), ctypes.c_size_t(0)
        text = ctypes.create_string_buffer(128)
        answers = (
            driver.cuDeviceGet(ctypes.byref(device), number),
            driver.cuDeviceGetName(text, len(text), device),
            driver.cuDeviceTotalMem_v2(ctypes.byref(size), device),
        )
        if any(answers):
            return ()
        found.append(CudaDevice(text.value.decode("utf-8", "replace"), float(size.value)))
    return tuple(found)
