"""Plans that stay loaded between calls: within a limit of bytes, and never of another content."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from own_order.models import OUTPUTS, values, write_onnx
from own_order.plans import for_throughput, split_plan, unsplit

import placewright as pw
from placewright.core.plan import Plan
from placewright.errors import InputError, StalePlanError
from placewright.execution.runtime import LoadedModel
from placewright.session.loaded.kept import LIMIT_VARIABLE, KeptPlans
from placewright.session.loaded.plans import LoadedPlan
from placewright.session.models import loaded_model


def used(kept: KeptPlans, plan: Plan, loads: list[Plan]) -> LoadedPlan:
    """The loaded plan after one use; a load is noted."""

    def load() -> LoadedModel:
        loads.append(plan)
        return loaded_model(plan.problem, plan.runtime)

    with kept.using(plan, load) as loaded:
        return loaded


def test_what_was_used_longest_ago_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_onnx(tmp_path / "m.onnx")
    first = split_plan(tmp_path / "m.onnx", "onnxruntime")
    makers: tuple[Callable[[Plan], Plan], ...] = (unsplit, for_throughput)
    second, third = (make(first) for make in makers)
    kept, loads = KeptPlans(), list[Plan]()
    weight = used(kept, first, loads).weight
    monkeypatch.setenv(LIMIT_VARIABLE, str(int(2.5 * weight)))  # two of the three
    for plan in (second, first, third, first):
        used(kept, plan, loads)
    assert loads == [first, second, third]
    used(kept, second, loads)  # the second went when the third came
    assert loads == [first, second, third, second]
    kept.clear()


def test_a_plan_is_used_while_another_loads(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m.onnx")
    first = split_plan(tmp_path / "m.onnx", "onnxruntime")
    second = unsplit(first)
    kept, used_both = KeptPlans(), threading.Event()
    used(kept, first, [])
    begun = threading.Event()

    def slow() -> LoadedModel:
        begun.set()
        assert used_both.wait(60)
        return loaded_model(second.problem, second.runtime)

    def load_second() -> None:
        with kept.using(second, slow):
            pass

    loading = threading.Thread(target=load_second)
    loading.start()
    assert begun.wait(60)
    using = threading.Thread(target=used, args=(kept, first, []), daemon=True)
    using.start()
    using.join(20)
    was_served = not using.is_alive()
    used_both.set()
    loading.join()
    assert was_served
    kept.clear()


def test_a_changed_model_file_is_not_served(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write_onnx(path)
    plan = split_plan(path, "onnxruntime")
    kept, loads = KeptPlans(), list[Plan]()
    used(kept, plan, loads)
    used(kept, plan, loads)
    assert loads == [plan]
    model = onnx.load(str(path))
    model.doc_string = "another content"
    onnx.save(model, str(path))
    with pytest.raises(StalePlanError, match="has changed"):
        used(kept, plan, loads)
    assert loads == [plan, plan]
    kept.clear()


def test_a_use_that_fails_leaves_the_plan_to_those_beside_it(tmp_path: Path) -> None:
    """The next use loads it again, and the last user of the old one closes it."""
    write_onnx(tmp_path / "m.onnx")
    plan = split_plan(tmp_path / "m.onnx", "onnxruntime")
    kept, loads = KeptPlans(), list[Plan]()

    def failing_use() -> LoadedPlan:
        with kept.using(plan, lambda: loaded_model(plan.problem, plan.runtime)) as loaded:
            assert loaded is beside
            raise RuntimeError("an error of the caller's own")

    with kept.using(plan, lambda: loaded_model(plan.problem, plan.runtime)) as beside:
        with pytest.raises(RuntimeError, match="of the caller's own"):
            failing_use()
        assert len(beside(values())) == len(OUTPUTS)
        fresh = used(kept, plan, loads)
        assert fresh is not beside
        assert loads == [plan]
    assert not beside.is_open
    assert fresh.is_open
    kept.clear()


def test_a_module_of_this_process_is_loaded() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    given = torch.ones(2, 8)
    plan = pw.place(
        module, example_inputs=(given,), devices="cpu:0", runtime="torch", check=False,
        calibrate=False, placer="random", evaluations=2,
    )  # fmt: skip
    with pw.load(plan) as model:
        found = model(given.numpy())[0]
    np.testing.assert_allclose(found, module(given).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_wrong_limit_is_named_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "much")
    plan = pw.place(torch.nn.Linear(2, 2).eval(), example_inputs=torch.ones(1, 2), budget="3")
    loaded: list[object] = []
    kept = KeptPlans()
    told = pytest.raises(InputError, match=rf"environment variable {LIMIT_VARIABLE}: .*'much'")
    with told, kept.using(plan, lambda: loaded.append(1)):  # type: ignore[arg-type,return-value]
        pass
    assert not loaded


def session_of(path: Path) -> pw.Session:
    """A session that only searches, on one core."""
    return pw.Session(
        str(path), devices="cpu:0", runtime="onnxruntime", check=False, calibrate=False,
        placer="single",
    )  # fmt: skip


def test_a_session_does_not_run_a_model_whose_file_has_changed(tmp_path: Path) -> None:
    """It ran the old weights, and kept them as those of the new file."""
    path = tmp_path / "m.onnx"
    write_onnx(path)
    session = session_of(path)
    plan = session.place()
    model = onnx.load(str(path))
    model.doc_string = "another content"
    onnx.save(model, str(path))
    runs: tuple[Callable[..., Any], ...] = (session.run, pw.run)
    for run in runs:
        with pytest.raises(StalePlanError, match="has changed"):
            run(plan, values())


def test_a_session_runs_a_plan_of_another_model_with_the_weights_of_that(tmp_path: Path) -> None:
    """One graph: `shallow` is a - 2 b + 5 c in one model, and a - 4 b + 5 c in the other."""
    write_onnx(tmp_path / "m.onnx")
    model = onnx.load(str(tmp_path / "m.onnx"))
    two = next(one for one in model.graph.initializer if one.name == "two")
    two.CopyFrom(onnx.helper.make_tensor("two", onnx.TensorProto.FLOAT, [], [4.0]))
    onnx.save(model, str(tmp_path / "other.onnx"))
    plan = session_of(tmp_path / "other.onnx").place()
    given = values()
    found = session_of(tmp_path / "m.onnx").run(plan, given)
    expected = given["a"] - 4 * given["b"] + 5 * given["c"]
    np.testing.assert_allclose(found["shallow"], expected, rtol=1e-5, atol=1e-5)
    pw.unload()
