"""Plans of modules in memory, used by another process."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import placewright as pw  # noqa: E402
from placewright.errors import InputError, StalePlanError  # noqa: E402
from placewright.session import models  # noqa: E402


def test_a_plan_of_another_process_takes_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, other = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
    x, file = torch.randn(3, 8), tmp_path / "plan.json"
    placed = pw.place(
        module, example_inputs=x, devices="cpu:0", runtime="torch", check=False, calibrate=False,
        placer="single",
    )  # fmt: skip
    pw.write_plan(file, placed)
    monkeypatch.setattr(models, "_modules", {})
    with pytest.raises(InputError, match="in the memory of another process; pass it as `model`"):
        pw.load(file)
    with pytest.raises(StalePlanError, match="'module:Linear' has changed"):
        pw.read_plan(file, model=other, example_inputs=x)
    with pw.load(file, model=module, example_inputs=x) as found:
        torch.testing.assert_close(found(x), module(x).detach())
