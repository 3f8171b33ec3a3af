"""Devices of OpenVINO: the processor and its cores, and what OpenVINO calls a device."""

from __future__ import annotations

from placewright.core.cluster import Device
from placewright.execution.processor import processor_devices


def cpu_devices() -> tuple[Device, ...]:
    """``cpu`` with all threads, and ``cpu:N``, one thread on the N-th core that we may use."""
    hint = {"device": "CPU", "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": "1"}
    # Pinning is ours (`worker_setup`): OpenVINO would pin every one-thread model to the same core.
    one = {**hint, "INFERENCE_NUM_THREADS": "1", "ENABLE_CPU_PINNING": "NO"}
    return processor_devices(hint, one)


def native_device(device: Device) -> str:
    """What OpenVINO calls a device."""
    if "device" in device.options:
        return device.options["device"]
    return "CPU" if device.kind == "cpu" else device.name
