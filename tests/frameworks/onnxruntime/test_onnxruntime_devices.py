"""CUDA devices through the driver's C interface: none without a driver; a stand-in's otherwise."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from placewright.core.cluster import Device
from placewright.errors import InputError, RuntimeFailure, UnknownNameError
from placewright.frameworks.onnxruntime import devices, runtime
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


@pytest.mark.parametrize("provider", ["TensorrtExecutionProvider", devices.CUDA])
def test_each_provider_of_nvidia_says_which_card_it_has(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples of TensorRT on one card were taken on another, whose number is the same."""
    found = listed_by(Driver())  # type: ignore[arg-type]
    monkeypatch.setattr(devices, "cuda_devices", lambda: found)
    options = {"provider": provider, "device_id": "0"}
    assert devices.hardware_text(options) == "device 40; driver 12.4"


def test_a_device_that_nobody_lists_is_that_of_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for machine in ("one", "other"):
        monkeypatch.setattr(devices, "processor_text", lambda name=machine: name)
        texts.append(devices.hardware_text({"provider": "ROCMExecutionProvider"}))
    assert texts == ["ROCMExecutionProvider 0 beside one", "ROCMExecutionProvider 0 beside other"]


def test_a_session_without_the_provider_is_refused() -> None:
    """ONNX Runtime goes on with the CPU if a library of CUDA is missing, and only logs it."""

    class Session:
        def get_providers(self) -> list[str]:
            return [devices.CPU]

    card = Device("cuda:0", "gpu", options=devices.cuda_options("0"))
    with pytest.raises(RuntimeFailure, match="CUDAExecutionProvider did not start for 'cuda:0'"):
        devices.require_provider(Session(), card)
    devices.require_provider(Session(), Device("cpu:0", options={"provider": devices.CPU}))


@pytest.mark.parametrize("name", ["cuda:", "cuda:foo", "cuda:2", "cuda:²", "cuda:-1"])
def test_names_of_cards_that_are_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = listed_by(Driver())  # type: ignore[arg-type]
    monkeypatch.setattr(devices, "cuda_devices", lambda: found)
    assert devices.cuda_number("cuda:1") == "1"
    with pytest.raises(UnknownNameError, match="available: cuda:0, cuda:1"):
        devices.cuda_number(name)


@pytest.mark.parametrize("options", [{}, {"provider": devices.CUDA}])
def test_the_name_of_a_card_says_which_it_is(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the file names its provider; a mode that was completed has any name."""
    found = listed_by(Driver())  # type: ignore[arg-type]
    monkeypatch.setattr(devices, "cuda_devices", lambda: found)
    library = SimpleNamespace(get_available_providers=lambda: [devices.CUDA, devices.CPU])
    monkeypatch.setattr(runtime, "onnxruntime_library", lambda: library)
    card = runtime.OnnxRuntime().completed(Device("cuda:1", "gpu", options=options))
    assert card.options == {"provider": devices.CUDA, "device_id": "1", "use_tf32": "0"}
    mode = replace(card, name="cuda:1-basic")
    assert runtime.OnnxRuntime().completed(mode) == mode


def test_a_call_of_the_unsplit_model_has_the_options_of_its_sessions() -> None:
    card = Device("cuda:0", "gpu", options=devices.cuda_options("0"))
    call = runtime.OnnxRuntime().unsplit_call("m.onnx", card)
    assert call == f"onnxruntime.InferenceSession('m.onnx', providers={devices.providers(card)!r})"
    assert "'use_tf32': '0'" in call
    whole = Device("cpu", options={"provider": devices.CPU, "intra_op_num_threads": "2"})
    call = runtime.OnnxRuntime().unsplit_call("m.onnx", whole)
    assert call == "onnxruntime.InferenceSession('m.onnx', providers=['CPUExecutionProvider'])"


def test_more_threads_than_fit_into_the_option() -> None:
    options = {"provider": devices.CPU, "intra_op_num_threads": "99999999999"}
    with pytest.raises(InputError, match="'cpu:0': intra_op_num_threads must be a number"):
        devices.check_options(options, "cpu:0")


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
