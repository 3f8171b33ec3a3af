"""`run` believes no plan that contradicts its problem, its placement or itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli.edited_plans import CHANGES, EARLIER
from cli.runner import InProcess, the_line

import placewright as pw
from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord
from placewright.core.problem import Objective
from placewright.core.solution import Solution
from placewright.session.plans import plan_of
from placewright.testing.problems import random_problem, with_power


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for file in EARLIER.iterdir():
        shutil.copy(file, tmp_path / file.name)
    return tmp_path


@pytest.mark.parametrize("name", CHANGES)
def test_an_edited_plan_is_refused(name: str, here: Path, cli: InProcess) -> None:
    of, change, told = CHANGES[name]
    document = json.loads((here / f"{of}.json").read_text())
    change(document)
    (here / "edited.json").write_text(json.dumps(document))
    line = the_line(cli("run", "edited.json", cwd=here), 2)
    assert told in line
    assert len(line) <= 300
    with pytest.raises(pw.PlacewrightError, match=r"edited\.json"):
        pw.read_plan(here / "edited.json")


@pytest.mark.parametrize("name", ["lost", "pinned", "throughput"])
def test_a_plan_as_it_was_written_is_believed(name: str, here: Path, cli: InProcess) -> None:
    assert pw.read_plan(here / f"{name}.json").value > 0
    pw.write_plan(here / "again.json", pw.read_plan(here / f"{name}.json"))
    done = cli("simulate", "again.json", cwd=here)
    assert done.returncode == 0, done.stderr


def test_what_the_search_found_is_checked_too(here: Path, cli: InProcess) -> None:
    pw.write_plan(here / "again.json", pw.read_plan(here / "pinned.json"))
    document = json.loads((here / "again.json").read_text())
    value = document["predicted"]["value"]
    kept = {key: document[key] for key in ("placement", "order")}
    document["searched"] = {**kept, "value": value}
    (here / "again.json").write_text(json.dumps(document))
    assert pw.read_plan(here / "again.json").searched is not None
    document["searched"]["value"] = value * 2
    (here / "again.json").write_text(json.dumps(document))
    assert "searched.value" in the_line(cli("run", "again.json", cwd=here), 2)


@pytest.mark.parametrize("objective", ["energy", "price"])
def test_a_plan_by_energy_or_price_may_leave_out_its_seconds(
    objective: Objective, tmp_path: Path
) -> None:
    """A run needs them for its time limit, and they follow from the placement."""
    plain = random_problem(np.random.default_rng(0), n_ops=5, constrained=False)
    problem = with_power(plain, objective=objective)
    placement = Placement.on_one_device(problem.n_units, 0)
    found = Solution(placement, 1.0, "feasible", 0.0)
    plan = plan_of(problem, found, PlacerRecord("heft", "1", 0, 1, 1.0), "openvino")
    pw.write_plan(tmp_path / "plan.json", plan)
    document = json.loads((tmp_path / "plan.json").read_text())
    assert document["predicted"].pop("amounts")
    (tmp_path / "plan.json").write_text(json.dumps(document))
    read = pw.read_plan(tmp_path / "plan.json")
    assert read.timed.value == pytest.approx(plan.amounts["latency"])
