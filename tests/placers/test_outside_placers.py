"""A placer that is no part of this repository: by path, and by an entry point's name."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from cli.runner import InProcess, the_line

from placewright.errors import InputError, UnknownNameError
from placewright.files.problem_file import write_problem
from placewright.placers import registry
from placewright.placers.registry import make_placer, placer_names
from placewright.testing.problems import random_problem

MODULE = '''\
from dataclasses import dataclass
from typing import ClassVar
import numpy as np

@dataclass(frozen=True)
class LastDevice:
    """Everything on one device, counted from the last."""
    name: ClassVar[str] = "last-device"
    paper: ClassVar[str] = "none"
    objectives: ClassVar[tuple[str, ...]] = ("latency",)
    needs_training: ClassVar[bool] = False
    back: int = 1

    def why_not(self, problem):
        return None

    def place(self, problem, evaluator, rng):
        evaluator.evaluate(np.full(problem.n_units, problem.n_devices - self.back))
        return evaluator.solution()

class NoPlacer:
    pass
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "devices_from_behind.py").write_text(MODULE)
    problem = random_problem(np.random.default_rng(0), n_ops=4, n_devices=2, constrained=False)
    write_problem(tmp_path / "p.json", problem)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "devices_from_behind", raising=False)
    return tmp_path


def test_a_class_by_its_path_places_and_is_compared(folder: Path, cli: InProcess) -> None:
    path = "devices_from_behind:LastDevice"
    placed = cli("place", "p.json", "--placer", path, "--set-placer", "back=2", "--evaluations", 9,
                 "--json", cwd=folder)  # fmt: skip
    assert placed.returncode == 0, placed.stderr
    assert len(set(json.loads(placed.stdout)["placement"].values())) == 1
    table = cli("compare", "p.json", "--placers", f"{path},{path}:back=2,random", "--evaluations",
                9, "--json", cwd=folder)  # fmt: skip
    assert table.returncode == 0, table.stderr
    rows = json.loads(table.stdout)["rows"]
    assert {row["placer"] for row in rows} == {path, f"{path}:back=2", "random"}
    assert here_is_clean(folder)


def here_is_clean(folder: Path) -> bool:
    return str(folder) not in sys.path


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("nowhere.at_all:Placer", "cannot be imported"),
        ("devices_from_behind:Missing", "cannot be imported"),
        ("devices_from_behind:NoPlacer", "is no placer"),
    ],
)
def test_a_wrong_path_is_one_line(path: str, named: str, folder: Path, cli: InProcess) -> None:
    assert named in the_line(cli("place", "p.json", "--placer", path, cwd=folder), 2)


def test_the_order_of_folders_of_modules_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    before = list(sys.path)
    assert make_placer("devices_from_behind:LastDevice").name == "last-device"
    assert sys.path == before


def test_an_entry_point_has_a_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("last-device", "devices_from_behind:LastDevice", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry.importlib.metadata, "entry_points", lambda group: [point])
    assert "last-device" in placer_names()
    assert make_placer("last-device", {"back": "2"}).back == 2  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="back must be a int"):
        make_placer("last-device", {"back": "two"})
    with pytest.raises(UnknownNameError, match="last-device"):
        make_placer("first-device")


def test_an_entry_point_that_cannot_be_imported_leaves_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cli: InProcess
) -> None:
    point = EntryPoint("lost", "no_such_package:Lost", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry.importlib.metadata, "entry_points", lambda group: [point])
    classes, broken = registry.importable_placers()
    assert "heft" in classes
    assert "no_such_package" in broken["lost"]
    assert "hsdag" in registry.placers_that_learn()
    listed = cli("placers", "--json", cwd=folder)
    assert listed.returncode == 0
    assert "no_such_package" in listed.stderr
    with pytest.raises(InputError, match="no_such_package"):
        make_placer("lost")
