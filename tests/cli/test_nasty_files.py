"""Every file of `nasty_files` is refused: one line, exit code 2 or 1, nothing else touched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli.nasty_files import NASTY, anchors, endless, inflating_pt2
from cli.runner import InProcess, placewright, the_line
from cli.stranger_files import STRANGERS
from support.model_files import CHAIN, make_onnx
from support.warm import COMMAND, run_warm

from placewright.cli.output import print_table

_LONGEST_LINE = 300
ALL = {**NASTY, **STRANGERS}


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Name -> size and time of the last change; links are not followed."""
    found = {}
    for file in sorted(folder.rglob("*")):
        status = file.lstat()
        found[str(file.relative_to(folder))] = status.st_size, status.st_mtime_ns
    return found


@pytest.mark.parametrize("name", ALL)
def test_a_nasty_file_is_refused(name: str, tmp_path: Path, cli: InProcess) -> None:
    make, told = ALL[name]
    words = make(tmp_path)
    before = files_of(tmp_path)
    result = cli(*words, cwd=tmp_path)
    line = the_line(result, 2 if result.returncode != 1 else 1)
    assert told in line
    assert len(line) <= _LONGEST_LINE
    assert files_of(tmp_path) == before


# Libraries are imported once; each command runs in a process that is forked for it.
_LIMITED = """
import json, os, resource, sys
import numpy, yaml, pydantic, onnx
import placewright.simulation.evaluator
from placewright.cli.app import main
for folder, words in json.loads(sys.argv[1]).items():
    if os.fork() == 0:
        break
    os.wait()
else:
    sys.exit()
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
os.chdir(folder)
sys.argv[1:] = words
code = 70
try:
    main()
except SystemExit as ended:
    code = ended.code
print("KiB", code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used, file=sys.stderr)
"""


def test_refusing_takes_less_than_a_gibibyte(tmp_path: Path) -> None:
    asked = {}
    for number, make in enumerate((anchors, inflating_pt2, endless("json"), endless("onnx"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        asked[str(folder)] = [str(word) for word in make(folder)]
    result = run_warm(_LIMITED, [json.dumps(asked)], cwd=tmp_path)
    told = re.findall(r"^KiB (\d+) (\d+)$", result.stderr, re.M)
    assert [code for code, _ in told] == ["2"] * len(asked), result.stderr
    assert max(int(kibibytes) for _, kibibytes in told) < 1 << 20


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = b"caf\xe9.json".decode(errors="surrogateescape")
    (tmp_path / name).write_text("{}")
    line = the_line(placewright("graph", name, cwd=tmp_path), 2)
    assert "is not UTF-8; rename the file" in line
    make_onnx(tmp_path)
    line = the_line(placewright("graph", "m.onnx", "-o", name, cwd=tmp_path), 2)
    assert "is not UTF-8; rename the file" in line
    assert (tmp_path / name).read_text() == "{}"


def test_a_plan_that_names_a_problem_with_nul(tmp_path: Path, cli: InProcess) -> None:
    make_onnx(tmp_path)
    quick = ("--devices", "cpu:0", "--no-check", "--evaluations", "1", "--placer", "single")
    assert cli("place", "m.onnx", *quick, cwd=tmp_path).returncode == 0
    text = (tmp_path / "plan.json").read_text()
    changed = text.replace('"plan.problem.json"', '"plan\\u0000problem.json"')
    assert changed != text
    (tmp_path / "plan.json").write_text(changed)
    assert "NUL" in the_line(cli("run", "plan.json", cwd=tmp_path), 2)


@pytest.mark.parametrize("command", ["run", "simulate", "report"])
def test_a_plan_that_names_a_device_outside_its_folder(
    command: str, tmp_path: Path, cli: InProcess
) -> None:
    (tmp_path / "w.json").write_text(json.dumps(CHAIN))
    words = ("place", "w.json", "--placer", "single", "--evaluations", "1")
    assert cli(*words, cwd=tmp_path).returncode == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    plan["placement"] = dict.fromkeys(plan["placement"], "../../x")
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    before = files_of(tmp_path)
    line = the_line(cli(command, "plan.json", cwd=tmp_path), 2)
    assert "unknown device '../../x'" in line
    assert files_of(tmp_path) == before


def test_names_of_a_model_do_nothing_to_a_terminal(tmp_path: Path, cli: InProcess) -> None:
    import onnx

    make_onnx(tmp_path)
    model = onnx.load(str(tmp_path / "m.onnx"))
    last = model.graph.node[-1]
    last.name = last.output[0] = model.graph.output[0].name = "\x1b[31m\x9b31m\u202e"
    onnx.save(model, str(tmp_path / "m.onnx"))
    quick = ("--devices", "cpu:0", "--quick", "--evaluations", "1", "--runtime", "onnxruntime")
    assert cli("place", "m.onnx", *quick, cwd=tmp_path).returncode == 0
    done = cli("run", "plan.json", "--runs", "1", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert r"\x1b[31m\x9b31m\u202e" in done.stdout
    assert all(letter.isprintable() or letter == "\n" for letter in done.stdout + done.stderr)


def test_a_pipe_that_is_read_gets_the_plan(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(json.dumps(CHAIN))
    os.mkfifo(tmp_path / "pipe")
    words = ("place", "w.json", "--placer", "single", "--evaluations", "1", "-o", "pipe")
    with subprocess.Popen(["cat", "pipe"], cwd=tmp_path, stdout=subprocess.PIPE) as reader:
        done = placewright(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert reader.stdout is not None
        assert json.loads(reader.stdout.read())["format"] == "placewright.plan/2"


def test_a_device_as_output_gets_the_plan_alone(tmp_path: Path) -> None:
    """`-o /dev/null` wrote ``/dev/null.problem.json``; here the device is one of our own."""
    (tmp_path / "w.json").write_text(json.dumps(CHAIN))
    (tmp_path / "null").symlink_to("/dev/null")
    words = ("place", "w.json", "--placer", "single", "--evaluations", "1", "-o", "null")
    done = placewright(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["null", "w.json"]
    assert (tmp_path / "null").is_symlink()
    assert "wrote null\n" in done.stderr
    told = json.loads(placewright(*words, "--json", cwd=tmp_path).stdout)
    assert told["problem"].keys() == {"sha256"}, "no path of a file that is not there"


@pytest.mark.parametrize("words", [["placers"], ["graph", "m.onnx"]], ids=["placers", "graph"])
def test_standard_output_that_is_full(words: list[str], tmp_path: Path) -> None:
    make_onnx(tmp_path)
    onto_full = "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\n"
    result = run_warm(onto_full + COMMAND, words, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert result.stderr == "placewright: standard output: No space left on device\n"


def test_an_error_of_no_file_is_not_one_of_output(tmp_path: Path) -> None:
    """Here the system refuses to list the cores, which has to do with no file."""
    refuses = (
        "import os\ndef refuse(_):\n    raise ConnectionRefusedError(111, 'Connection refused')\n"
        "os.sched_getaffinity = refuse\n"
    )
    result = run_warm(refuses + COMMAND, ["devices"], cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert result.stderr.splitlines()[-1] == (
        "placewright: ConnectionRefusedError: Connection refused"
    )


def test_standard_output_that_is_closed(tmp_path: Path) -> None:
    """Nobody wants the result: nothing is wrong."""
    make_onnx(tmp_path)
    line = f'"{sys.executable}" -m placewright graph m.onnx >&-'
    result = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_the_title_of_a_table_holds_no_terminal_sequences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It has the name of the model's file."""
    print_table("m\x1b[2J.onnx", ["a"], [["b"]])
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown
    assert r"m\x1b[2J.onnx" in "".join(shown.split())
