"""CUDA devices through the driver's C interface: none without a driver; a stand-in's otherwise."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from placewright.frameworks.onnxruntime import devices
from placewright.frameworks.onnxruntime.devices import CudaDevice, cuda_devices, listed_by


class Driver:
    """Answers like a driver with two devices; `failing` names a function that returns an error."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == self.failing:
                return 100
            if name == "cuDeviceGetCount":
                _write(arguments[0], ctypes.c_int, 2)
            elif name == "cuDriverGetVersion":
                _write(arguments[0], ctypes.c_int, 12040)
            elif name == "cuDeviceGet":
                _write(arguments[0], ctypes.c_int, arguments[1] + 40)
            elif name == "cuDeviceGetName":
                arguments[0].value = f"device {arguments[2].value}".encode()
            elif name == "cuDeviceGetAttribute":  # the second device is integrated
                _write(arguments[0], ctypes.c_int, arguments[1] == 18 and arguments[2].value == 41)
            elif name == "cuDeviceTotalMem_v2":
                _write(arguments[0], ctypes.c_size_t, arguments[1].value * 2**30)
            return 0

        return call


def _write(reference: Any, kind: Any, value: int) -> None:
    ctypes.cast(reference, ctypes.POINTER(kind)).contents.value = value


def test_devices_in_the_drivers_order() -> None:
    found = listed_by(Driver())  # type: ignore[arg-type]
    assert found == (
        CudaDevice("device 40", 40.0 * 2**30, driver="12.4"),
        CudaDevice("device 41", 41.0 * 2**30, is_integrated=True, driver="12.4"),
    )


def test_the_driver_is_part_of_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of the driver before an update were taken; an old one tells no version."""
    options = {"provider": devices.CUDA, "device_id": "1"}
    for failing, text in (
        ("", "device 41; driver 12.4"),
        ("cuDriverGetVersion", "device 41"),
    ):
        found = listed_by(Driver(failing))  # type: ignore[arg-type]
        monkeypatch.setattr(devices, "cuda_devices", lambda now=found: now)
        assert devices.hardware_text(options) == text


@pytest.mark.parametrize(
    "failing", ["cuInit", "cuDeviceGetCount", "cuDeviceTotalMem_v2", "cuDeviceGetAttribute"]
)
def test_a_driver_that_does_not_start_has_no_devices(failing: str) -> None:
    assert listed_by(Driver(failing)) == ()  # type: ignore[arg-type]


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    cuda_devices.cache_clear()
    assert cuda_devices() == ()
    cuda_devices.cache_clear()
