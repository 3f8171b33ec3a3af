"""A ``.pt2`` file whose parts are well formed and whose whole is wrong is refused in one line."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.runner import InProcess, the_line

from placewright.errors import FileFormatError, InputError
from placewright.frameworks.torch.pt2.file import refused_in_one_line
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
