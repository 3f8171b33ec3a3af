"""Plans of modules in memory: of another process, of several shapes, and of weights that change."""

from __future__ import annotations

import copy
import gc
import pickle
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import placewright as pw  # noqa: E402
from placewright.errors import InputError, RuntimeFailure, StalePlanError  # noqa: E402
from placewright.frameworks.torch.reading import reader  # noqa: E402
from placewright.session import modules  # noqa: E402
from placewright.session.loaded import plans  # noqa: E402

QUICK: dict[str, Any] = {
    "devices": "cpu:0", "runtime": "torch", "check": False, "calibrate": False, "placer": "single",
}  # fmt: skip


def test_a_plan_of_another_process_takes_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, other = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
    x, file = torch.randn(3, 8), tmp_path / "plan.json"
    pw.write_plan(file, pw.place(module, example_inputs=x, **QUICK))
    monkeypatch.setattr(modules, "_modules", {})
    with pytest.raises(InputError, match=r"in the memory of another process.*pass it as `model`"):
        pw.load(file)
    with pytest.raises(StalePlanError, match="'module:Linear' has changed"):
        pw.read_plan(file, model=other, example_inputs=x)
    with pw.load(file, model=module, example_inputs=x) as found:
        torch.testing.assert_close(found(x), module(x).detach())


def test_plans_of_one_module_for_two_shapes_both_load() -> None:
    module = torch.nn.Linear(8, 4)
    one, eight = torch.randn(1, 8), torch.randn(8, 8)
    placed = [pw.place(module, example_inputs=x, **QUICK) for x in (one, eight)]
    for plan, x in (*zip(placed, (one, eight), strict=True), (placed[0], one)):
        with pw.load(plan) as loaded:
            torch.testing.assert_close(loaded(x), module(x).detach())
        torch.testing.assert_close(pw.run(plan, [x]), module(x).detach())


def test_a_module_lives_as_long_as_its_last_plan() -> None:
    module, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
    expected, known = module(x).detach(), weakref.ref(module)
    plan = pw.place(module, example_inputs=x, **QUICK)
    assert plan.problem.source is not None
    name = str(plan.problem.source.path)
    del module
    gc.collect()
    torch.testing.assert_close(pw.run(plan, [x]), expected)
    pw.unload()
    del plan
    gc.collect()
    assert known() is None
    assert name not in modules._modules


def test_the_name_of_a_module_is_a_plain_text_in_another_process() -> None:
    module = torch.nn.Linear(8, 4)
    name = modules.remember_module(module, torch.randn(3, 8))
    assert copy.deepcopy(name).module is module
    sent = pickle.loads(pickle.dumps(name))
    assert type(sent) is str
    assert sent == name


def changed_in_place(module: Any) -> None:
    other = type(module)(8, 4)
    module.load_state_dict(other.state_dict())


def replaced(module: Any) -> None:
    module.weight = torch.nn.Parameter(torch.randn(4, 8))


def trained(module: Any) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.ones(3, 8)).sum().backward()
    optimizer.step()


def test_other_weights_of_a_module_are_refused() -> None:
    """A plan that is loaded has some weights as they are, and others as they were."""
    module, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
    session = pw.Session(module, example_inputs=x, **QUICK)
    plan = session.place()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    expected = module(x).detach()
    torch.testing.assert_close(pw.run(plan, [x]), expected)
    torch.testing.assert_close(session.run(plan, [x]), expected)
    for change in (changed_in_place, replaced, trained):
        change(module)
        for refused in (lambda: pw.run(plan, [x]), lambda: session.run(plan, [x])):
            with pytest.raises(StalePlanError, match=r"'module:Linear.*' has changed.*place it"):
                refused()
    module.load_state_dict(before)
    torch.testing.assert_close(pw.run(plan, [x]), expected)


def test_a_module_with_buffers_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither reading it nor comparing outputs writes into its buffers."""
    reads: list[str] = []
    read = reader.read_inference

    def counted(*given: Any, name: str, **said: Any) -> Any:
        reads.append(name)
        return read(*given, name=name, **said)

    monkeypatch.setattr(reader, "read_inference", counted)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).eval()
    x = torch.randn(3, 8)
    plan = pw.place(module, example_inputs=x, **QUICK | {"check": True})
    pw.run(plan, [x])
    pw.load(plan).close()
    assert len(reads) == 1


def test_a_step_reads_the_weights_that_were_written_back() -> None:
    class Loss(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x).square().mean()

    module, x = Loss(8, 4), torch.randn(3, 8)
    plan = pw.place(module, example_inputs=x, objective="training", **QUICK)
    losses = []
    for _ in range(3):
        with pw.load(plan, learning_rate=0.1) as step:
            losses.append(step(x))
            step.write_back(module)
        assert losses[-1] > float(module(x).detach())
    assert losses == sorted(losses, reverse=True)


def test_a_call_that_waits_for_its_turn_hears_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing waits for calls, but not for ever."""

    class Summing(torch.nn.Module):
        def forward(self, x: Any, held: Any) -> dict[str, Any]:
            return {"y": held + x, "new": held + x}

    monkeypatch.setattr(plans, "_CLOSING_SECONDS", 0.02)
    x = torch.ones(2)
    plan = pw.place(Summing(), example_inputs=(x, x), state={"new": "held"}, **QUICK)
    step = pw.load(plan)
    with ThreadPoolExecutor(2) as pool:
        with step._turns.lock:
            waiting = [pool.submit(step, x), pool.submit(step.reset)]
            while step._under_way < 2:
                time.sleep(0.001)
            step.close()
        for call in waiting:
            with pytest.raises(RuntimeFailure, match="was closed; load it again"):
                call.result()


def test_a_step_of_other_parameters_than_train_now_is_refused() -> None:
    """The parameters that train are those of the module when it was placed."""

    class Loss(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x).square().mean()

    module, x = Loss(8, 4), torch.randn(3, 8)
    both = pw.place(module, example_inputs=x, objective="training", **QUICK)
    pw.load(both).close()
    module.bias.requires_grad_(False)
    with pytest.raises(StalePlanError, match=r"'module:Loss.*' has changed: .* place (it )?again"):
        pw.load(both)
    one = pw.place(module, example_inputs=x, objective="training", **QUICK)
    pw.load(one).close()
    module.bias.requires_grad_(True)
    told = r"'module:Loss.*' has changed: 'bias' trains now and did not; place it again"
    with pytest.raises(StalePlanError, match=told):
        pw.load(one)
    with pw.load(both) as step:
        assert step(x) == pytest.approx(float(module(x).detach()), rel=1e-5)
