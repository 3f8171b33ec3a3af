"""Files of converted models, and exports of modules in several threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewright.errors import InputError
from placewright.frameworks.conversion import Converter
from placewright.frameworks.onnxruntime.conversion import OnnxConverter
from placewright.frameworks.openvino.conversion import OpenVinoConverter


class Consuming(Converter):
    """Saving takes the model apart, as ONNX does with large weights, and fails at first."""

    suffix = ".made"
    number = 1

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.conversions = 0

    def versions(self) -> tuple[str, ...]:
        return ("1",)

    def of_module(self, module: Any, example_inputs: Sequence[Any], input_names: Any) -> Any:
        self.conversions += 1
        return {"weights": "1 2 3"}

    def of_program(self, program: Any, path: str, input_names: Sequence[str]) -> Any:
        raise AssertionError

    def keep_interface(self, model: Any, interface: Any) -> None:
        raise AssertionError

    def save(self, model: Any, path: Path) -> None:
        path.write_text(model.pop("weights", "none"))
        if self.failures:
            self.failures -= 1
            raise OSError(28, "No space left on device")


def test_a_long_name_is_cut_between_letters(tmp_path: Path) -> None:
    name = "é" * 120  # 240 bytes, more than a file's name has room for with a hash
    file = Consuming(0).file_of_module(name, None, [np.zeros(2)], folder=tmp_path)  # type: ignore[arg-type, list-item]
    assert file.is_file()
    assert file.name.startswith("é" * 75 + "-")


def test_a_second_attempt_has_the_weights_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = Consuming(1).file_of_module("m", None, [np.zeros(2)])  # type: ignore[arg-type, list-item]
    assert file.read_text() == "1 2 3"
    assert not file.is_relative_to(tmp_path)
    with pytest.raises(InputError, match=r"cannot be written: .*No space left"):
        Consuming(2).file_of_module("n", None, [np.zeros(2)])  # type: ignore[arg-type, list-item]


@pytest.mark.parametrize("is_full", [False, True])
def test_without_a_cache_a_model_is_converted_once_per_process(
    is_full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk shows only as the file is saved, so that the model is made a second time."""
    home = tmp_path / "cache"
    if not is_full:
        home.write_text("a file, in which no folder can be made")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    converter = Consuming(is_full)
    files = [
        converter.file_of_module(name, None, [np.zeros(2)])  # type: ignore[arg-type, list-item]
        for name in ("one", "one", "other", "one")
    ]
    assert converter.conversions == 2 + is_full
    assert files[0] == files[1] == files[3] != files[2]
    assert files[0].read_text() == "1 2 3"
    assert not files[0].is_relative_to(tmp_path)


def test_the_file_of_a_process_without_a_cache_ends_with_it(tmp_path: Path) -> None:
    program = (
        "import numpy, test_conversion as own\n"
        "file = own.Consuming(0).file_of_module('m', None, [numpy.zeros(2)])\n"
        "assert file.is_file()\n"
        "print(file)"
    )
    (tmp_path / "cache").write_text("a file, in which no folder can be made")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", program]
    here = Path(__file__).parent
    ran = subprocess.run(
        command, cwd=here, env=environment, capture_output=True, text=True, check=True
    )
    file = Path(ran.stdout.strip())
    assert file.name.startswith("m-")
    assert not file.parent.exists()


@pytest.mark.parametrize(
    ("converter", "function", "libraries"),
    [
        (OpenVinoConverter(), "torch.export.export", ("torch", "openvino")),
        (OnnxConverter(), "torch.onnx.export", ("torch", "onnx", "onnxscript")),
    ],
)
def test_threads_convert_modules_one_after_the_other(
    converter: Converter,
    function: str,
    libraries: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An export hooks the module, and PyTorch's tracing is of one thread."""
    torch, *_ = [pytest.importorskip(library) for library in libraries]
    both, met = threading.Barrier(2), list[int]()

    def export(*_: Any, **__: Any) -> Any:
        with suppress(threading.BrokenBarrierError):
            met.append(both.wait(timeout=0.2))
        raise RuntimeError("no export here")

    monkeypatch.setattr(function, export)
    module, examples = torch.nn.Linear(4, 4), (torch.ones(3, 4),)
    with ThreadPoolExecutor(2) as pool:
        for call in [pool.submit(converter.of_module, module, examples, ()) for _ in range(2)]:
            with pytest.raises(InputError, match="no export here"):
                call.result()
    assert not met
