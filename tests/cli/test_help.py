"""Help pages: panels, values, defaults, examples, `--help-all`; a mistyped name gets a near one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.runner import InProcess, the_line
from typer.main import get_command

from placewright.cli.app import all_commands
from placewright.cli.help import EXAMPLES, OPTIONS, OTHER, default_of, panels_of, shown_of
from placewright.cli.output import error_line
from placewright.errors import UnknownNameError

GROUP: Any = get_command(all_commands())
BENCH: Any = GROUP.commands["bench"]
COMMANDS = [*(n for n in GROUP.commands if n != "bench"), *(f"bench {n}" for n in BENCH.commands)]


def command_named(name: str) -> Any:
    first, _, inner = name.partition(" ")
    return BENCH.commands[inner] if inner else GROUP.commands[first]


def options() -> Iterator[tuple[str, str, Any]]:
    for name in COMMANDS:
        for panel, within in panels_of(command_named(name), shows_all=True):
            for option in within:
                yield name, panel, option


def test_each_option_of_a_tool_is_in_a_panel() -> None:
    assert [(name, *o.opts) for name, panel, o in options() if panel == OTHER] == []
    flags = {flag for _, _, option in options() for flag in option.opts}
    assert set(OPTIONS) <= flags, "the table names options that no command has"


def test_each_option_that_takes_a_value_shows_one() -> None:
    without = [(name, *o.opts) for name, _, o in options() if not (o.is_flag or shown_of(o).value)]
    assert without == []


def test_each_value_that_can_be_left_out_shows_what_is_taken() -> None:
    without = {
        (name, option.opts[-1])
        for name, _, option in options()
        if not (option.is_flag or option.required or default_of(option))
    }
    assert {flag for _, flag in without} == {
        "--calls",
        "--value",
        "--resident",
        "--state",
        "--pin",
        "--set",
        "--cluster",
        "--set-placer",
        "--placers",
        "--policy",
        "--ray",
        "--output",
        "--report",
        "--trace",
        "--ops",
        "--catalogue",
        "--tensorboard",
        "--isolation-limits",
        "--seconds",
        "--sweep",
        "--reach",
    }  # fmt: skip - nothing is taken, or the help itself says what


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_page_has_panels_and_examples(name: str, cli: InProcess, tmp_path: Path) -> None:
    page = cli(*name.split(), "--help", cwd=tmp_path).stdout
    assert page.startswith(f"Usage: placewright {name}")
    assert "\nExamples:\n  placewright " in page
    assert not re.search(r"<\w+|\{[A-Z]+\}|\[str\]", page), "a type of Python"
    assert max(map(len, page.splitlines())) <= 80


def test_the_first_page_leads_to_commands_and_to_all_options(
    cli: InProcess, tmp_path: Path
) -> None:
    page = cli("--help", cwd=tmp_path).stdout
    for line in EXAMPLES["placewright"]:
        assert f"\n  placewright {line}\n" in page
        words = shlex.split(line)
        command_named(words[0]).make_context(words[0], words[1:])
    assert "placewright COMMAND --help-all" in page
    assert "...\n" not in page.partition("Commands:")[2], "a description that is too long"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_example_can_be_read(name: str) -> None:
    for line in EXAMPLES[name.split()[-1]]:
        words = shlex.split(line)
        assert " ".join(words).startswith(name)
        command_named(name).make_context(name, words[len(name.split()) :])


def test_rare_options_are_behind_help_all(cli: InProcess, tmp_path: Path) -> None:
    short = cli("place", "--help", cwd=tmp_path).stdout
    whole = cli("place", "--help-all", cwd=tmp_path).stdout
    rare = [flag for flag, shown in OPTIONS.items() if shown.is_rare and f"{flag} " in whole]
    assert len(rare) > 10
    assert not [flag for flag in rare if re.search(rf"^  {flag}\b", short, re.M)]
    assert f"Show {len(rare)} rarely used options" in short
    headings = [line for line in short.splitlines() if re.fullmatch(r"[A-Z][\w ]+:", line)]
    assert headings == [
        "Arguments:", "Model:", "Devices and limits:", "Goal:", "Search:", "Measuring:", "Output:",
        "Help:", "Examples:",
    ]  # fmt: skip
    assert "Isolation:" in whole


def test_commands_without_rare_options_take_help_all(cli: InProcess, tmp_path: Path) -> None:
    """As `placewright --help` says of every command."""
    for name in ("simulate", "explain", "placers", "export"):
        whole, short = (cli(name, flag, cwd=tmp_path) for flag in ("--help-all", "--help"))
        assert whole.returncode == 0, name
        assert whole.stdout.splitlines()[0] == short.stdout.splitlines()[0]


def test_a_rare_option_still_works(cli: InProcess, tmp_path: Path) -> None:
    words = ("--devices", "catalogue:2gpu", "--dispatch", "fifo", "--evaluations", "5")
    done = cli("place", "zoo:rnnlm/tiny", *words, "--placer", "heft", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("plce m.onnx", "'place'"),
        ("bench tarnawsky", "'tarnawski'"),
        ("bench paper plaeto", "placeto"),
        ("bench suite --problems inceptoin", "inception_v3"),
        ("place zoo:resnet5", "resnet50"),
        ("place zoo:resnet50/tinny", "tiny"),
        ("place zoo:rnnlm/tiny --placer hfet", "heft"),
        ("place zoo:rnnlm/tiny --placer hsdag --set-placer droput=0.1", "dropout"),
        ("place zoo:rnnlm/tiny --objective latncy", "latency"),
        ("place zoo:rnnlm/tiny --execution-model evnt", "event"),
        ("place zoo:rnnlm/tiny --dispatch fif", "fifo"),
        ("place zoo:rnnlm/tiny --runtime openvio", "openvino"),
        ("place zoo:rnnlm/tiny --evaluator meassured", "measured"),
        ("place zoo:rnnlm/tiny --devices catalogue:4gp", "4gpu"),
        ("place zoo:rnnlm/tiny --devices cpu:O,cpu:1", "cpu:0"),
        ("place zoo:rnnlm/tiny --evalutions 3", "--evaluations"),
        ("place modle.onnx", "model.onnx"),
        ("compare zoo:rnnlm/tiny --placers hfet,single", "heft"),
    ],
)
def test_a_mistyped_name_gets_a_near_one(
    words: str, meant: str, cli: InProcess, tmp_path: Path
) -> None:
    (tmp_path / "model.onnx").touch()
    line = the_line(cli(*words.split(), cwd=tmp_path), 2)
    asked = re.search(r"[dD]id you mean (.*?)\?", line)
    assert asked is not None, line
    assert meant in asked[1]


def test_a_long_list_of_names_ends_with_their_number() -> None:
    names = [f"placer-{at}" for at in range(100)]
    text = str(UnknownNameError("placer", "zzz", names))
    assert text.startswith("unknown placer 'zzz'; available: placer-0, placer-1, ")
    listed, _, more = text.removeprefix("unknown placer 'zzz'; available: ").rpartition(" and ")
    assert more == f"{100 - len(listed.split(', '))} more"
    assert set(listed.split(", ")) <= set(names)
    long = "a" * 200
    assert str(UnknownNameError("op", "zzz", [long, "b"])).endswith(f"{long} and 1 more")


def test_a_long_message_is_cut_between_words() -> None:
    words = [f"word{at}" for at in range(200)]
    begin, end = error_line(" ".join(words)).removeprefix("placewright: ").split(" ... ")
    assert set(begin.split()) <= set(words)
    assert set(end.split()) <= set(words)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["place", "m.onnx", "--evaluations", "1.5"],
            "--evaluations expects a whole number, got '1.5'",
        ),
        (["advise", "m.gguf", "--reach", "fast"], "--reach expects a number, got 'fast'"),
        (["export", "plan.json"], "Missing option '--to'; `placewright export --help` lists"),
        (["report"], "Missing argument 'PLAN'; `placewright report --help` lists"),
        (["graph", "."], "folder '.' is no model"),
        (["graph", "empty.json"], "'empty.json' is no model: it has no `format`"),
        (["place", "m.onnx", "--cluster", "bad.yaml"], "while parsing a flow mapping at line 1"),
    ],
)
def test_the_line_about_a_wrong_word_says_what_to_give(
    words: list[str], told: str, tmp_path: Path, cli: InProcess
) -> None:
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "bad.yaml").write_text("{bad")
    (tmp_path / "m.onnx").touch()
    assert told in the_line(cli(*words, cwd=tmp_path), 2)
