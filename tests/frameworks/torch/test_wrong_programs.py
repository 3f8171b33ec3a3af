"""A ``.pt2`` file whose parts are well formed and whose whole is wrong is refused in one line."""

from __future__ import annotations

import contextlib
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.runner import InProcess, the_line

from placewright.errors import FileFormatError, InputError
from placewright.frameworks.torch.pt2.file import refused_in_one_line, require_bounded_tensors
from placewright.frameworks.torch.reading.reader import read_inference
from placewright.frameworks.torch.training.step import read_training

Change = Callable[[Any], None]
X = torch.ones(2, 4)


class Products(torch.nn.Module):
    """A layer, a reshape and a product with an equation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return torch.einsum("ij,kj->ik", self.layer(x).reshape(4, 2).t(), x.reshape(2, 4))


def saved(path: Path, module: torch.nn.Module, **how: Any) -> Path:
    torch.export.save(torch.export.export(module.eval(), (X,), **how), path)
    return path


def changed(path: Path, ending: str, change: Change) -> Path:
    """Change a member of the archive that is JSON."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in members if name.endswith(ending))
    document = json.loads(members[name])
    change(document)
    members[name] = json.dumps(document).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for key, value in members.items():
            archive.writestr(key, value)
    return path


def inputs_of(document: Any, kind: str) -> list[Any]:
    """Arguments of all calls of an operator."""
    nodes = document["graph_module"]["graph"]["nodes"]
    return [
        entry["arg"] for node in nodes if f".{kind}." in node["target"] for entry in node["inputs"]
    ]


def wrong_equation(document: Any) -> None:
    inputs_of(document, "einsum")[0]["as_string"] = "nonsense"


def wrong_reshape(document: Any) -> None:
    for argument in inputs_of(document, "reshape"):
        if "as_ints" in argument:
            argument["as_ints"] = [3, 5]


def without_hints(value: Any) -> None:
    if isinstance(value, dict):
        if "hint" in value:
            value["hint"] = None
        for entry in value.values():
            without_hints(entry)
    elif isinstance(value, list):
        for entry in value:
            without_hints(entry)


@pytest.mark.parametrize("change", [wrong_equation, wrong_reshape])
@pytest.mark.parametrize("read", [read_inference, read_training])
def test_a_call_that_cannot_be_made(change: Change, read: Any, tmp_path: Path) -> None:
    path = changed(saved(tmp_path / "m.pt2", Products()), "model.json", change)
    with pytest.raises(FileFormatError, match=r"^PyTorch cannot read '.*m\.pt2': ") as caught:
        read(path)
    told = str(caught.value)
    assert "\n" not in told
    assert ("einsum" if change is wrong_equation else "[3, 5]") in told


@pytest.mark.parametrize("objective", ["latency", "training"])
def test_the_command_ends_as_for_other_damage(
    objective: str, tmp_path: Path, cli: InProcess
) -> None:
    changed(saved(tmp_path / "m.pt2", Products()), "model.json", wrong_reshape)
    done = cli("graph", "m.pt2", "--objective", objective, "--runtime", "torch", cwd=tmp_path)
    assert "PyTorch cannot read" in the_line(done, 2)


def test_a_dimension_without_an_example_asks_for_its_size(tmp_path: Path, cli: InProcess) -> None:
    rows = torch.export.Dim("rows", min=2, max=20)
    path = saved(tmp_path / "m.pt2", torch.nn.Linear(4, 4), dynamic_shapes=({0: rows},))
    changed(path, "model.json", without_hints)
    with pytest.raises(InputError, match=r"input 'input'.*argument `shapes`"):
        read_inference(path)
    read = read_inference(path, shapes={"input": (3, 4)})
    assert read.source.shapes == {"input": (3, 4)}
    done = cli("graph", "m.pt2", "--runtime", "torch", cwd=tmp_path)
    assert "--shape" in the_line(done, 2)


def test_errors_about_a_module_pass() -> None:
    with pytest.raises(KeyError), refused_in_one_line(torch.nn.Linear(1, 1)):
        raise KeyError("p_weight")
    lacking = pytest.raises(FileFormatError, match=r"'m\.pt2': it lacks 'p_weight'")
    with lacking, refused_in_one_line("m.pt2"):
        raise KeyError("p_weight")


class Expanded(torch.nn.Module):
    """A layer and a buffer that repeats one number."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(1).expand(rows, 4))

    def forward(self, x: Any) -> Any:
        return self.layer(x) * self.scale[:2]


def repeated(name: str, extents: list[int], **other: Any) -> Change:
    """Change the sizes of a tensor, and its strides to 0."""

    def change(document: Any) -> None:
        meta = document["config"][name]["tensor_meta"]
        meta["sizes"] = [{"as_int": extent} for extent in extents]
        meta["strides"] = [{"as_int": 0}] * len(extents)
        meta.update(other)

    return change


@pytest.mark.parametrize(
    "extents",
    [[100_000, 100_000], [2**62] * 1000, [4300, 4096], [1, 2**40]],
    ids=["square", "beyond numbers", "just above", "row"],
)
@pytest.mark.parametrize("name", ["scale", "layer.weight"])
def test_a_small_record_stands_for_no_large_tensor(
    name: str, extents: list[int], tmp_path: Path
) -> None:
    """Its bytes would be allocated for the hash."""
    path = saved(tmp_path / "m.pt2", Expanded(3))
    changed(path, "model_weights_config.json", repeated(name, extents))
    with pytest.raises(FileFormatError, match=f"tensor '{re.escape(name)}' repeats") as caught:
        read_inference(path)
    assert "\n" not in str(caught.value)


def test_many_tensors_share_what_is_allowed(tmp_path: Path) -> None:
    """60 MiB pass, and twice as many do not, even in a record of their own."""
    path = saved(tmp_path / "m.pt2", Expanded(3))
    changed(path, "model_weights_config.json", repeated("scale", [15, 2**20]))
    with pytest.raises(FileFormatError, match="PyTorch cannot read"):  # the program has (3, 4)
        read_inference(path)
    changed(path, "model_weights_config.json", repeated("layer.weight", [15, 2**20]))
    with pytest.raises(FileFormatError, match="repeats"):
        read_inference(path)


@pytest.mark.parametrize("rows", [2, 20, 4 << 20], ids=str)
def test_an_expanded_buffer_is_read(rows: int, tmp_path: Path) -> None:
    """The largest has 64 MiB in the program."""
    graph = read_inference(saved(tmp_path / "m.pt2", Expanded(rows))).graph
    assert graph.op_kinds == ("linear", "mul")


def test_weights_without_values_take_no_memory(tmp_path: Path) -> None:
    with torch.device("meta"):
        layer, example = torch.nn.Linear(10**6, 10**4), torch.empty(1, 10**6)
    torch.export.save(torch.export.export(layer, (example,)), tmp_path / "m.pt2")
    graph = read_inference(tmp_path / "m.pt2").graph
    assert graph.weight_bytes.tolist() == [4e10, 4e4]


def test_elements_have_the_bytes_of_their_type() -> None:
    from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE

    for number, dtype in _SERIALIZE_TO_TORCH_DTYPE.items():
        fits = (64 << 20) // dtype.itemsize
        for extent, is_bounded in ((fits, True), (fits + 1, False)):
            meta = {
                "sizes": [{"as_int": extent}], "dtype": int(number), "device": {"type": "cpu"},
            }  # fmt: skip
            config = {"w": {"path_name": "weight_0", "tensor_meta": meta}}
            with contextlib.nullcontext() if is_bounded else pytest.raises(FileFormatError):
                require_bounded_tensors(config, {"weight_0": 0})


def test_a_changed_buffer_with_two_names_is_refused_in_words() -> None:
    """PyTorch itself ends in an assertion there."""

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sums", torch.zeros(2))
            self.inner = torch.nn.Module()
            self.inner.register_buffer("same", self.sums)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner.same.add_(x)
            return self.inner.same * 2

    with pytest.raises(InputError, match="give that buffer one name"):
        read_inference(Tied(), (torch.ones(2),))
