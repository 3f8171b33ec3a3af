"""An isolated process: the length of its output and the paths in it, its variables and its end."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli.runner import InProcess
from support.model_files import make_onnx

from placewright.isolation import command
from placewright.isolation.confined import lacks_call_filter, lacks_file_rules

LACKS = lacks_file_rules() or lacks_call_filter()
needs_isolation = pytest.mark.skipif(LACKS is not None, reason=str(LACKS))


@needs_isolation
def test_output_that_is_cut_is_told(
    tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_onnx(tmp_path)
    monkeypatch.setattr(command, "_MAX_PRINTED", 10)
    result = cli("graph", "m.onnx", "--isolate", "-o", "g.json", cwd=tmp_path)
    assert result.returncode == 2
    assert "the isolated process printed more than 10 characters" in result.stderr
    assert (tmp_path / "g.json").exists(), "its files are whole"


@needs_isolation
def test_a_folder_with_a_quotation_mark_leaves_json_whole(tmp_path: Path, cli: InProcess) -> None:
    make_onnx(tmp_path)
    (tmp_path / 'a"b').mkdir()
    target = 'a"b/plan.json'
    words = ("--devices", "catalogue:2gpu", "--evaluations", 9, "--json", "-o", target)
    result = cli("place", "m.onnx", *words, "--isolate", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["problem"]["path"] == f'a"b{os.sep}plan.problem.json'


def test_a_character_at_the_border_of_two_pieces_stays_whole() -> None:
    """A long line is read in pieces of 65,536 bytes."""
    line = "x" * 65_535 + "é" + "y" * 10 + "\n"
    target = io.StringIO()
    command._relay(io.BytesIO(line.encode() + b"end \xc3"), target, {}, command._Output())
    assert target.getvalue() == f"{line}end \ufffd"


@pytest.mark.parametrize(
    ("number", "advice"), [(signal.SIGXCPU, "cpu=40000s"), (signal.SIGXFSZ, "files=34359738368B")]
)
def test_the_advice_is_twice_the_limit_that_was_hit(number: int, advice: str) -> None:
    limits = command.Limits(memory=1e9, cpu=20_000.0, files=float(16 << 30))
    asked = command.IsolatedCommand([], {}, [], "m.onnx", limits)
    assert advice in command._ended_by(number, asked)


def test_a_key_among_the_variables_of_a_driver_is_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_API_KEY", "secret")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    passed = command._environment(tmp_path)
    assert "NVIDIA_API_KEY" not in passed
    assert passed["NVIDIA_VISIBLE_DEVICES"] == "all"


_STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_second_signal_ends_a_process_that_does_not_end_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = subprocess.Popen([sys.executable, "-c", _STUBBORN], stdout=subprocess.PIPE)
    wait = process.wait

    def interrupted(timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return wait()

    monkeypatch.setattr(process, "wait", interrupted)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(KeyboardInterrupt):
            command._end(process)
        assert process.returncode == -signal.SIGKILL
    finally:
        process.kill()
        process.communicate()
