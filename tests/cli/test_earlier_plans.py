"""Plan files of version 1 (written by commit a6355c6) are read, simulated, run and exported.

``data/plans`` has three plans of one small model: ``lost`` is a split beside which `cpu:1` was
faster, ``pinned`` has pins and an order, ``throughput`` is a max-load plan that was never measured.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli.runner import InProcess

import placewright as pw
from placewright.core.plan import Plan
from placewright.files.problem_file import text_sha256
from placewright.frameworks.registry import make_runtime

EARLIER = Path(__file__).parents[1] / "data" / "plans"
NAMES = ("lost", "pinned", "throughput")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A copy of the files whose devices are this machine's: `run` refuses other hardware."""
    for file in EARLIER.iterdir():
        shutil.copy(file, tmp_path / file.name)
    runtime = make_runtime("openvino")
    for name in NAMES:
        plan_path, problem_path = tmp_path / f"{name}.json", tmp_path / f"{name}.problem.json"
        document, problem = json.loads(plan_path.read_text()), problem_path.read_text()
        for device in pw.read_plan(plan_path).problem.cluster.devices:
            found = runtime.completed(device).fingerprint
            problem = problem.replace(json.dumps(device.fingerprint), json.dumps(found))
        problem_path.write_text(problem)
        document["cluster"] = json.loads(problem)["cluster"]
        document["problem"]["sha256"] = text_sha256(problem)
        plan_path.write_text(json.dumps(document))
    return tmp_path


def devices_of_ops(plan: Plan) -> dict[str, str]:
    problem = plan.problem
    devices = problem.device_of_ops(plan.placement.device_of).tolist()
    names = [problem.cluster.device_names[device] for device in devices]
    return dict(zip(problem.graph.op_names, names, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_everything_in_the_file_is_read(name: str) -> None:
    document = json.loads((EARLIER / f"{name}.json").read_text())
    assert document["format"] == "placewright.plan/1"
    plan = pw.read_plan(EARLIER / f"{name}.json")
    assert devices_of_ops(plan) == document["placement"]
    assert plan.searched is None
    assert plan.value == document["predicted"]["value"]
    assert (plan.placement.order is None) == (document["order"] is None)
    rows = [[p.evaluations, p.seconds, p.value] for p in plan.placer.history]
    assert rows == document["placer"]["history"]
    assert [point.lower_bound for point in plan.placer.history] == [None] * len(rows)
    if plan.measured is not None:
        assert plan.measured.recommendation == document["measured"]["recommendation"]
        assert plan.measured.median == document["measured"]["median"]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_simulated_as_it_was(name: str, cli: InProcess, tmp_path: Path) -> None:
    recorded = json.loads((EARLIER / f"{name}.json").read_text())["predicted"]
    done = cli("simulate", EARLIER / f"{name}.json", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["value"] == pytest.approx(recorded["value"], rel=1e-12)
    assert found["memory"] == recorded["memory"]


def test_a_written_copy_is_of_the_present_version(tmp_path: Path) -> None:
    before = pw.read_plan(EARLIER / "pinned.json")
    pw.write_plan(tmp_path / "plan.json", before)
    document = json.loads((tmp_path / "plan.json").read_text())
    assert document["format"] == "placewright.plan/2"
    assert document["searched"] is None
    after = pw.read_plan(tmp_path / "plan.json")
    assert devices_of_ops(after) == devices_of_ops(before)
    assert after.placement.order is not None
    assert before.placement.order is not None
    assert after.placement.order.tolist() == before.placement.order.tolist()


def test_it_runs_and_says_what_was_recommended(here: Path, cli: InProcess) -> None:
    """The file holds the split that lost: that runs, and the faster way is named."""
    done = cli("run", "lost.json", "--runs", 1, cwd=here)
    assert done.returncode == 0, done.stderr
    assert "outputs equal to the unsplit model" in done.stdout
    assert "'cpu:1' was recommended when this plan was measured: 59.6 us, 0.24" in done.stdout
    assert "place again for a plan that holds it" in done.stdout


def test_a_default_that_breaks_a_pin_is_no_longer_recommended(here: Path, cli: InProcess) -> None:
    """Commit a6355c6 recommended 'all cores', though ops were pinned to single cores."""
    done = cli("run", "pinned.json", "--runs", 1, cwd=here)
    assert done.returncode == 0, done.stderr
    assert "'all cores' was measured beside this plan, but is not comparable" in done.stdout
    assert "pinned to 'cpu:1'" in done.stdout


def test_it_runs_from_python_and_is_exported(
    here: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    assert len(pw.run(pw.read_plan("lost.json"))) == 2
    done = cli("export", "throughput.json", "--to", "openvino-affinity", "-o", "x.json", cwd=here)
    assert done.returncode == 0, done.stderr
    assert json.loads((here / "x.json").read_text())["device"] == "HETERO:CPU"
