"""One plan for each size that ``--shape`` gives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli.runner import InProcess
from model_makers import write_onnx

import placewright as pw
from placewright.cli.command import for_each_size
from placewright.core.solution import Stop
from placewright.errors import FieldError
from placewright.session.parsing import each_size, labelled, parse_shapes

QUICK = ("--devices", "catalogue:2gpu", "--evaluations", "20", "--placer", "heft")


@pytest.fixture
def model(tmp_path: Path) -> str:
    write_onnx(tmp_path / "m.onnx", batch="batch")
    return "m.onnx"


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    return InProcess(capfd, monkeypatch)


def test_combinations() -> None:
    assert each_size(["x=1,3", "past=64|128"]) == [
        ("past=64", ["x=1,3", "past=64"]),
        ("past=128", ["x=1,3", "past=128"]),
    ]
    assert [label for label, _ in each_size(["n=1|2", "past=3..14"])] == [
        "n=1,past=3", "n=1,past=6", "n=1,past=12", "n=1,past=14",
        "n=2,past=3", "n=2,past=6", "n=2,past=12", "n=2,past=14",
    ]  # fmt: skip
    assert [label for label, _ in each_size(["past=64..512|100|64"])] == [
        "past=64", "past=128", "past=256", "past=512", "past=100",
    ]  # fmt: skip
    assert each_size(["x*=1,3,8,8|1,3,16,16"])[1] == ("x*=1x3x16x16", ["x*=1,3,16,16"])
    assert labelled(Path("a/plan.json"), "x/*=1x3") == Path("a/plan-x__=1x3.json")


@pytest.mark.parametrize("text", ["n=1|", "n=..4", "n=4..2", "n=0..2", "n=1..2..3", "n=1,2..4"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(FieldError, match=r"expects .*got 'n="):
        each_size([text])


def test_too_many_are_refused() -> None:
    with pytest.raises(FieldError, match="gives 81 combinations of sizes; expected 64 at most"):
        each_size([f"{name}=1|2|3" for name in "abcd"])


def test_other_commands_take_one_size() -> None:
    with pytest.raises(FieldError, match=r"gives 'n' several sizes \(1\|2\)"):
        parse_shapes(["n=1|2"])


def test_a_plan_for_each_size(tmp_path: Path, model: str, command: InProcess) -> None:
    found = command("place", model, "--shape", "batch=2|8", *QUICK, "-o", "p.json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    plans = [pw.read_plan(tmp_path / f"p-batch={size}.json") for size in (2, 8)]
    shapes = [plan.problem.source.shapes["x"] for plan in plans if plan.problem.source]
    assert shapes == [(2, 4), (8, 4)]
    assert not (tmp_path / "p.json").exists()
    assert "One plan for each size" in found.stdout
    assert found.stdout.count("p-batch=8.json") == 1


def test_all_plans_are_one_document(tmp_path: Path, model: str, command: InProcess) -> None:
    found = command("place", model, "--shape", "batch=2|8", *QUICK, "--json", cwd=tmp_path)
    document = json.loads(found.stdout)
    assert list(document["plans"]) == ["batch=2", "batch=8"]
    assert document["plans"]["batch=8"]["model"]["shapes"] == {"x": [8, 4]}


def test_a_size_without_a_plan_does_not_end_the_others(
    tmp_path: Path, model: str, command: InProcess
) -> None:
    limits = [word for name in ("cpu", "gpu:0", "gpu:1") for word in ("--memory", f"{name}=1KiB")]
    words = ("place", model, "--shape", "batch=1000000|1", *QUICK, *limits)
    found = command(*words, cwd=tmp_path)
    assert found.returncode == 1, found.stdout + found.stderr
    assert (tmp_path / "plan-batch=1.json").exists()
    assert not (tmp_path / "plan-batch=1000000.json").exists()
    assert "does not fit" in found.stderr.splitlines()[-1] or "needs" in found.stderr
    assert "batch=1000000" in found.stdout.split("One plan for each size")[1]


def test_a_wrong_size_does_not_end_the_others(
    tmp_path: Path, model: str, command: InProcess
) -> None:
    words = ("place", model, "--shape", "batch=2|-3|8", *QUICK, "-o", "p.json")
    found = command(*words, cwd=tmp_path)
    assert found.returncode == 2, found.stdout + found.stderr
    assert (tmp_path / "p-batch=8.json").exists()


def test_all_outputs_name_the_option(tmp_path: Path, model: str, command: InProcess) -> None:
    words = ("place", model, "--shape", "batch=2|8", *QUICK, "--prompt", "5")
    table = command(*words, cwd=tmp_path)
    assert table.returncode == 2, table.stdout + table.stderr
    assert "--prompt" in table.stdout.split("One plan for each size")[1]
    document = json.loads(command(*words, "--json", cwd=tmp_path).stdout)
    for size in (2, 8):
        assert document["plans"][f"batch={size}"]["error"].startswith("--prompt ")


def test_an_interrupted_plan_is_the_last(tmp_path: Path, model: str) -> None:
    made: list[Path] = []

    def place(*, output: Path, **given: object) -> None:
        plan = pw.place(str(tmp_path / model), devices="catalogue:2gpu", placer="single")
        stopped = replace(plan.placer, stop=Stop.INTERRUPTED if made else Stop.DONE)
        pw.write_plan(output, replace(plan, placer=stopped))
        made.append(output)

    said = {"shapes": ["batch=1|2|4"], "output": tmp_path / "p.json", "report_file": None}
    for_each_size(place, {"model": model, "as_json": False, **said})
    assert [path.name for path in made] == ["p-batch=1.json", "p-batch=2.json"]


def test_what_is_read_is_not_written_over(tmp_path: Path, model: str, command: InProcess) -> None:
    (tmp_path / model).rename(tmp_path / "p-batch=2.onnx")
    words = ("place", "p-batch=2.onnx", "--shape", "batch=2|8", *QUICK, "-o", "p.onnx")
    found = command(*words, cwd=tmp_path)
    assert found.returncode == 2
    assert (tmp_path / "p-batch=2.onnx").read_bytes()[:1] == b"\x08"
