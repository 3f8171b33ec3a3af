"""No command writes over what it reads, whatever the file is called there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, get_args, get_type_hints

import pytest
import typer
from cli.runner import InProcess, the_line
from model_makers import saved_model
from support.model_files import make_onnx, make_xml

from placewright.cli.command import plain_command
from placewright.cli.overwriting import Writes, files_behind

CORE = ("--devices", "cpu:0")
SEARCH = ("--no-check", "--evaluations", "1", "--placer", "single")
QUICK = (*CORE, *SEARCH)
CLUSTER = "devices:\n  a: {kind: cpu}\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.fixture
def refused(cli: InProcess, tmp_path: Path) -> Callable[..., str]:
    """The one line; every file of the folder stays as it was, and none is added."""

    def call(*words: object) -> str:
        before = contents(tmp_path)
        line = the_line(cli(*words, cwd=tmp_path), 2)
        assert contents(tmp_path) == before
        assert "overwritten" in line
        return line

    return call


Refused = Callable[..., str]


def test_the_model(tmp_path: Path, refused: Refused) -> None:
    make_onnx(tmp_path)
    assert "'m.onnx'" in refused("graph", "m.onnx", "-o", "m.onnx")
    assert "'m.onnx'" in refused("place", "m.onnx", *QUICK, "-o", "m.onnx")
    assert "'m.onnx'" in refused("profile", "m.onnx", *CORE, "-o", "m.onnx")


@pytest.mark.parametrize("kind", ["symlink", "hard link", "other spelling", "absolute"])
def test_other_names_of_the_model(kind: str, tmp_path: Path, refused: Refused) -> None:
    model = make_onnx(tmp_path)
    (tmp_path / "sub").mkdir()
    other = {
        "symlink": "link.json",
        "hard link": "hard.json",
        "other spelling": "sub/../m.onnx",
        "absolute": str(model),
    }[kind]
    if kind == "symlink":
        (tmp_path / other).symlink_to(model)
    if kind == "hard link":
        os.link(model, tmp_path / other)
    assert "m.onnx" in refused("graph", "m.onnx", "-o", other)


def test_a_link_to_the_model_is_read(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "link.onnx").symlink_to(make_onnx(tmp_path))
    refused("graph", "link.onnx", "-o", "m.onnx")


def test_weights_beside_the_model(tmp_path: Path, refused: Refused) -> None:
    make_xml(tmp_path)
    assert "m.bin" in refused("graph", "m.xml", "-o", "m.bin")


def test_external_data_of_the_model(tmp_path: Path, refused: Refused) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(str(make_onnx(tmp_path)))
    onnx.save(
        model,
        str(tmp_path / "e.onnx"),
        save_as_external_data=True,
        location="e.weights",
        size_threshold=0,
    )
    assert (tmp_path / "e.weights").exists()
    assert "e.weights" in refused("graph", "e.onnx", "-o", "e.weights")


def test_a_file_of_a_folder(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "saved" / "variables").mkdir(parents=True)
    (tmp_path / "saved" / "saved_model.pb").write_bytes(saved_model())
    (tmp_path / "saved" / "variables" / "more").write_bytes(b"numbers")
    refused("graph", "saved", "-o", "saved/saved_model.pb")
    refused("graph", "saved", "-o", "saved/variables/more")


def test_the_problem_beside_the_plan(tmp_path: Path, refused: Refused, cli: InProcess) -> None:
    """`place x.problem.json -o x.json` would write x.problem.json, too."""
    make_onnx(tmp_path)
    made = cli("profile", "m.onnx", *CORE, "-o", "x.problem.json", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "x.problem.json" in refused("place", "x.problem.json", *SEARCH, "-o", "x.json")
    assert "m.onnx" in refused("place", "x.problem.json", *SEARCH, "-o", "m.onnx")
    for _ in range(2):  # an earlier output is replaced
        placed = cli("place", "x.problem.json", *SEARCH, "-o", "y.json", cwd=tmp_path)
        assert placed.returncode == 0, placed.stderr


def test_the_plan_its_problem_and_its_model(
    tmp_path: Path, refused: Refused, cli: InProcess
) -> None:
    make_onnx(tmp_path)
    assert cli("place", "m.onnx", *QUICK, "-o", "p.json", cwd=tmp_path).returncode == 0
    for output in ("p.json", "p.problem.json", "m.onnx"):
        assert output in refused("simulate", "p.json", "--trace", output)
        assert output in refused("export", "p.json", "--to", "device-map", "-o", output)


def test_segments_in_the_folder_of_the_model(
    tmp_path: Path, refused: Refused, cli: InProcess
) -> None:
    make_onnx(tmp_path).rename(tmp_path / "segment-0000.onnx")
    words = ("segment-0000.onnx", *QUICK, "--runtime", "onnxruntime", "-o", "p.json")
    made = cli("place", *words, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "segment-0000.onnx" in refused("export", "p.json", "--to", "onnx-segments", "-o", ".")


def test_the_cluster_and_the_policy(tmp_path: Path, refused: Refused) -> None:
    make_onnx(tmp_path)
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "p.safetensors").write_bytes(b"policy")
    (tmp_path / "q.problem.json").write_text("{}")
    assert "c.yaml" in refused("profile", "m.onnx", "--cluster", "c.yaml", "-o", "c.yaml")
    policy = ("--placer", "post", "--policy", "p.safetensors")
    assert "p.safetensors" in refused("place", "m.onnx", *policy, "-o", "p.safetensors")
    settings = ("--placer", "post", "--set-placer", "policy=p.safetensors")
    assert "p.safetensors" in refused("place", "m.onnx", *settings, "-o", "p.safetensors")
    graphs = ("--graphs", "m.onnx", "--graphs", "q.problem.json")
    train = ("train", "--placer", "post", *graphs)
    assert "q.problem.json" in refused(*train, "-o", "q.problem.json")


def test_a_large_problem_is_looked_at_only_where_something_is_replaced(tmp_path: Path) -> None:
    """A new output costs nothing: what is read is not opened twice."""
    from placewright.cli.overwriting import refuse_overwriting

    def forbidden() -> object:
        raise AssertionError("looked at")
        yield

    refuse_overwriting([tmp_path / "new.json"], forbidden())  # type: ignore[arg-type]


def test_two_outputs_in_one_file(tmp_path: Path) -> None:
    ran: list[int] = []

    @plain_command
    def both(
        one: Annotated[Path, typer.Option(), Writes()],
        two: Annotated[Path, typer.Option(), Writes()],
    ) -> None:
        ran.append(1)

    (tmp_path / "a").write_text("")
    with pytest.raises(ValueError, match="one file"):
        both(one=tmp_path / "a", two=tmp_path / "." / "a")
    both(one=tmp_path / "a", two=tmp_path / "b")
    assert ran == [1]


def test_a_word_too_long_for_a_name_is_no_file() -> None:
    """A list of placers with settings is longer than the 255 bytes that a name may have."""
    assert list(files_behind(Path("hsdag:discount=0.99," * 20))) == []


def test_references_in_circles_end(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"problem": {"path": f"{other}.json"}}))
    found = {file.name for file in files_behind(tmp_path / "a.json")}
    assert found == {"a.json", "b.json"}


def test_files_behind_a_model_with_the_prefix_of_its_reader(tmp_path: Path) -> None:
    """A plan of a language model names ``hf:FOLDER``, whose files an output must not replace."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    plan = tmp_path / "plan.json"
    plan.write_text('{"model": {"source": "hf:model"}}')
    assert {file.name for file in files_behind(plan)} == {"plan.json", "config.json"}


def test_every_option_that_writes_says_so() -> None:
    """A new option without the mark, or a command without the wrapper, would not be protected."""
    from placewright.cli.app import all_commands

    app = all_commands()
    groups = [group.typer_instance for group in app.registered_groups]
    commands = [c for one in (app, *groups) if one is not None for c in one.registered_commands]
    unmarked = []
    for command in commands:
        assert command.callback is not None
        assert getattr(command.callback, "is_wrapped", False), command.callback
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            marks = get_args(hint)
            is_path = any("Path" in str(mark) for mark in marks[:1])
            told = " ".join(str(getattr(mark, "help", "")) for mark in marks).lower()
            writes = any(word in told for word in ("write", "draw", "results", "into this file"))
            if is_path and writes and not any(isinstance(mark, Writes) for mark in marks):
                unmarked.append((command.callback.__name__, name))
    assert unmarked == []


def test_a_word_that_is_also_a_folder_names_no_files(tmp_path: Path, cli: InProcess) -> None:
    """The folder `cpu:0` has nothing to do with the device."""
    make_onnx(tmp_path)
    (tmp_path / "cpu:0").mkdir()
    for _ in range(2):  # an earlier output is replaced
        done = cli("place", "m.onnx", *QUICK, "-o", "cpu:0/plan.json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_a_plan_that_names_a_folder_opens_no_files_in_it(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret").write_text("x")
    plan = tmp_path / "plan.json"
    plan.write_text('{"model": {"source": "home"}}')
    assert [file.name for file in files_behind(plan)] == ["plan.json"]
