"""`--isolate`: what a reader that was taken over can do, and how its end is told.

The reader of models is replaced inside the isolated process by one that does harm, which stands for
a fault in a native parser that a file makes use of.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from cli.runner import InProcess
from support.model_files import make_onnx
from support.warm import COMMAND, Warm

from placewright.isolation import command as command_of_isolation
from placewright.isolation import confined
from placewright.isolation.command import IsolatedCommand
from placewright.isolation.confined import Limits, lacks_call_filter, lacks_file_rules
from placewright.profiling.store import CostStore

LACKS = lacks_file_rules() or lacks_call_filter()
needs_isolation = pytest.mark.skipif(LACKS is not None, reason=str(LACKS))
HOOK = """
import importlib.abc, importlib.util, sys

class TakeOver(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "placewright.session.models":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            def read_model(name, *options):
                import os
                if "PLACEWRIGHT_TEST_PARENT" in os.environ:
                    do_harm()
            module.read_model = read_model

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, TakeOver())

def do_harm():
"""


def taken_over(folder: Path, harm: str, *words: str) -> Warm:
    """Start ``graph m.onnx --isolate`` with a reader that does `harm`."""
    hook = folder / "hook"
    hook.mkdir()
    indented = "\n".join(f"    {line}" for line in harm.splitlines())
    (hook / "sitecustomize.py").write_text(HOOK + indented + "\n")
    models = folder / "models"
    models.mkdir()
    make_onnx(models)
    path = os.pathsep.join([str(hook), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PLACEWRIGHT_TEST_PARENT": str(os.getpid())}
    environment |= {"TMPDIR": str(folder)}
    return Warm(COMMAND, ["graph", "models/m.onnx", "--isolate", *words], folder, environment)


def the_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert len(done.stderr) <= 300
    return done.stderr


TRIES = """
import ctypes, os, pathlib, signal, socket, subprocess, threading, _thread
from placewright.errors import InputError
parent, home = int(os.environ["PLACEWRIGHT_TEST_PARENT"]), {home!r}
pathlib.Path("models/m.onnx").read_bytes()
thread = threading.Thread(target=int)
thread.start()
thread.join()
assert pathlib.Path("/dev/zero").open("rb").read(1) == b"\\0"
pathlib.Path(os.environ["TMPDIR"], "allowed").write_text("x")

def udp():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", {port}))

def library_fork():
    child = ctypes.CDLL(None).fork()
    if child == 0:
        os._exit(0)
    if child < 0:
        raise OSError("refused")

tries = {{
    "connect": lambda: socket.create_connection(("127.0.0.1", {port}), timeout=5),
    "udp": udp,
    "unix": lambda: socket.socket(socket.AF_UNIX),
    "write": lambda: open(home + "/stolen", "w"),
    "write beside the model": lambda: open("models/made", "w"),
    "change the model": lambda: open("models/m.onnx", "r+b"),
    "cut the model": lambda: os.truncate("models/m.onnx", 0),
    "rename": lambda: os.rename("models/m.onnx", "models/n.onnx"),
    "remove": lambda: os.unlink("models/m.onnx"),
    "folder": lambda: os.mkdir(home + "/made"),
    "link": lambda: os.symlink("/etc/passwd", os.environ["TMPDIR"] + "/link"),
    "read": lambda: open(home + "/secret.txt").read(),
    "list": lambda: os.listdir(home),
    "environment": lambda: os.environ["MY_TOKEN"],
    "memory of the parent": lambda: open("/proc/%d/environ" % os.getppid(), "rb").read(),
    "run": lambda: subprocess.run(["/bin/true"]),
    "replace": lambda: os.execv("/bin/true", ["true"]),
    "fork": os.fork,
    "library fork": library_fork,
    "signal": lambda: os.kill(parent, 0),
    "own folder": lambda: os.chroot("/"),
    "shared memory": lambda: __import__("mmap").mmap(-1, 1 << 20),
    "memory of a device": lambda: os.open("/dev/zero", os.O_RDWR),
    "memory file": lambda: os.memfd_create("x"),
    "more memory": lambda: __import__("resource").setrlimit(2, (1 << 62, 1 << 62)),
}}
done = []
for name, attempt in tries.items():
    try:
        attempt()
        done.append(name)
    except (OSError, KeyError, ValueError):
        pass
raise InputError("did: " + str(done))
"""


@needs_isolation
def test_a_reader_that_was_taken_over_reaches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    monkeypatch.setenv("MY_TOKEN", "secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        harm = TRIES.format(home=str(tmp_path), port=server.getsockname()[1])
        done = taken_over(tmp_path, harm).ended()
        assert the_line(done, 2) == "placewright: did: []\n"
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hook", "models", "secret.txt"]
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["m.onnx"]


@needs_isolation
@pytest.mark.parametrize(
    ("harm", "words", "code", "told"),
    [
        ("import ctypes\nctypes.string_at(0)", (), 2, "was ended by SIGSEGV while a library read"),
        (
            "held = bytearray(4 << 30)",
            ("--isolation-limits", "memory=1GiB"),
            1,
            "there is not enough memory",
        ),
        (
            "while True: pass",
            ("--isolation-limits", "cpu=3s"),
            2,
            "was stopped after 3 s of CPU time; --isolation-limits cpu=6s allows more",
        ),
        (
            "import os\nwith open(os.environ['TMPDIR'] + '/f', 'wb') as f:\n"
            "    f.write(bytes(1 << 20))",
            ("--isolation-limits", "files=1000"),
            2,
            "was stopped when a file grew beyond 1000 bytes; --isolation-limits files=2000B allows",
        ),
        (
            "import os\nfrom placewright.errors import InputError\n"
            "os.write(2, b'\\x1b]0;title\\x07')\nraise InputError('end')",
            (),
            2,
            "\\x1b]0;title\\x07placewright: end",
        ),
    ],
)
def test_its_end_is_told_in_one_line(
    harm: str, words: tuple[str, ...], code: int, told: str, tmp_path: Path
) -> None:
    done = taken_over(tmp_path, harm, *words).ended()
    assert told in the_line(done, code)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hook", "models"]


@needs_isolation
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it(number: signal.Signals, code: int, tmp_path: Path) -> None:
    harm = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    process = taken_over(tmp_path, harm)
    inner = int(process.first_line())
    os.kill(process.pid, number)
    done = process.ended()
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    assert not is_alive(inner)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hook", "models"]


# As `place` does with an incumbent: a signal lets it write its file and end with 0.
KEEPS = """
import os, time
print("ready", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    with open(os.environ["HOME"] + "/out/0/g.json", "w") as stream:
        stream.write("kept")
    print("wrote", flush=True)
    raise SystemExit(0) from None
"""


@needs_isolation
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_file_that_it_writes_after_a_signal_comes_to_its_place(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = taken_over(tmp_path, KEEPS, "-o", "g.json")
    process.first_line()
    os.kill(process.pid, number)
    done = process.ended()
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\nwrote\n", "")
    assert (tmp_path / "g.json").read_text() == "kept"


@needs_isolation
def test_a_file_that_cannot_be_written_after_a_signal_is_told(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    process = taken_over(tmp_path, KEEPS, "-o", "made/g.json")
    process.first_line()
    (tmp_path / "made").rmdir()
    os.kill(process.pid, signal.SIGINT)
    done = process.ended()
    assert done.returncode == 2
    assert "made/g.json' cannot be written" in done.stderr


@needs_isolation
def test_it_does_not_begin_without_its_parent(tmp_path: Path) -> None:
    told = {
        "parent": os.getppid(),
        "readable": [],
        "writable": str(tmp_path),
        "limits": asdict(Limits.usual()),
        "outputs": {},
        "final": {},
    }
    words = [sys.executable, "-P", "-m", command_of_isolation.CHILD, json.dumps(told), "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@needs_isolation
def test_a_killed_parent_takes_it_along_and_the_next_run_clears_up(tmp_path: Path) -> None:
    harm = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    process = taken_over(tmp_path, harm)
    inner = int(process.first_line())
    os.kill(process.pid, signal.SIGKILL)
    process.ended()
    for _ in range(600):
        if not is_alive(inner):
            break
        time.sleep(0.1)
    else:
        pytest.fail("the isolated process goes on")
    (left,) = tmp_path.glob("placewright-isolated-*")
    from placewright.io.scratch import scratch_folder
    from placewright.isolation.command import _PREFIX

    with scratch_folder(tmp_path, _PREFIX) as folder:
        with scratch_folder(tmp_path, _PREFIX):
            assert folder.exists()  # somebody works in it
        assert not left.exists()


def is_alive(process: int) -> bool:
    """True for a process that runs; one that nobody has waited for yet does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@needs_isolation
def test_what_it_writes_comes_to_its_place(tmp_path: Path, cli: InProcess) -> None:
    make_onnx(tmp_path)
    (tmp_path / "out").mkdir()
    plain = cli("graph", "m.onnx", "-o", "plain.json", cwd=tmp_path)
    result = cli("graph", "m.onnx", "--isolate", "-o", "out/g.json", cwd=tmp_path)
    assert result.returncode == plain.returncode == 0, result.stderr
    assert result.stdout == plain.stdout
    assert result.stderr == "wrote out/g.json\n"
    made = json.loads((tmp_path / "out" / "g.json").read_text())
    assert made == json.loads((tmp_path / "plain.json").read_text())
    refused = cli("graph", "m.onnx", "--isolate", "-o", "m.onnx", cwd=tmp_path)
    assert refused.returncode == 2


@needs_isolation
def test_profile(tmp_path: Path, cli: InProcess) -> None:
    """Samples are kept for isolated runs of this model, and for no others."""
    make_onnx(tmp_path)
    words = ("--devices", "cpu:0", "--runtime", "onnxruntime", "--isolate", "--json")
    first = cli("profile", "m.onnx", *words, "--quick", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "placewright"
    shared = cache / "costs.sqlite"
    assert not shared.exists() or not all_keys(shared)
    (kept,) = (cache / "isolated").iterdir()
    assert CostStore(kept).samples(all_keys(kept))
    again = cli("profile", "m.onnx", *words, "--quick", cwd=tmp_path)
    assert json.loads(again.stdout)["whole_model"] == json.loads(first.stdout)["whole_model"]


def all_keys(store: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(store)) as connection:
        return [key for (key,) in connection.execute("SELECT key FROM samples")]


@needs_isolation
@pytest.mark.slow  # kernels that nobody has compiled yet are compiled twice and not kept
def test_place_and_run(tmp_path: Path, cli: InProcess) -> None:
    make_onnx(tmp_path)
    words = ("--devices", "cpu:0,cpu:1", "--runtime", "onnxruntime", "--quick", "--budget", "1s")
    placed = cli("place", "m.onnx", *words, "--isolate", cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    assert "wrote plan.json and plan.problem.json" in placed.stderr
    ran = cli("run", "plan.json", "--runs", "2", "--isolate", "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["equal"] is True


def test_a_system_that_cannot_says_so(
    tmp_path: Path, cli: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_onnx(tmp_path)
    monkeypatch.setattr(confined, "lacks_file_rules", lambda: "the kernel has no Landlock")
    result = cli("graph", "m.onnx", "--isolate", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == (
        "placewright: --isolate is not possible here: the kernel has no Landlock\n"
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[IsolatedCommand]:
    """The isolated commands that were asked for; none is run."""
    commands: list[IsolatedCommand] = []

    def noted(command: IsolatedCommand) -> int:
        commands.append(command)
        return 0

    monkeypatch.setattr(command_of_isolation, "run_isolated", noted)
    return commands


def test_the_plans_of_several_sizes_come_to_their_places(
    tmp_path: Path, cli: InProcess, asked: list[IsolatedCommand]
) -> None:
    make_onnx(tmp_path)
    words = ("--shape", "x=1,4|2,4", "-o", "p.json", "--isolate")
    assert cli("place", "m.onnx", *words, cwd=tmp_path).returncode == 0
    (command,) = asked
    assert [str(path) for path in command.outputs["output"]] == [
        "p.json", "p.problem.json",
        "p-x=1x4.json", "p-x=1x4.problem.json", "p-x=2x4.json", "p-x=2x4.problem.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "document",
    [
        {"model": {"source": "../secret/key"}},
        {"problem": {"path": "../secret/key"}},
        {"source": {"path": "../secret/key"}},
    ],
)
def test_a_file_opens_no_folder_that_the_command_does_not_name(
    document: dict[str, object], tmp_path: Path, cli: InProcess, asked: list[IsolatedCommand]
) -> None:
    for folder in ("secret", "given"):
        (tmp_path / folder).mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    (tmp_path / "given" / "p.json").write_text(json.dumps(document))
    told = the_line(cli("place", "given/p.json", "--isolate", cwd=tmp_path), 2)
    assert "'given/p.json' refers to" in told
    assert "give the model in place of 'given/p.json'" in told
    assert asked == []


def test_run_opens_the_folder_of_a_model_that_it_names(
    tmp_path: Path, cli: InProcess, asked: list[IsolatedCommand]
) -> None:
    for folder in ("models", "plans"):
        (tmp_path / folder).mkdir()
    model = make_onnx(tmp_path / "models")
    plan = tmp_path / "plans" / "p.json"
    plan.write_text(json.dumps({"model": {"source": str(model)}}))
    told = the_line(cli("run", "plans/p.json", "--isolate", cwd=tmp_path), 2)
    assert "give the plan's model as --model FILE" in told
    assert asked == []
    words = ("run", "plans/p.json", "--isolate", "--model", "models/m.onnx")
    assert cli(*words, cwd=tmp_path).returncode == 0
    (command,) = asked
    assert set(command.readable) == {plan, plan.parent, model, model.parent}


def test_a_model_beside_its_plan_is_read_and_not_one_of_its_name_elsewhere(
    tmp_path: Path, cli: InProcess, asked: list[IsolatedCommand]
) -> None:
    (tmp_path / "plans").mkdir()
    make_onnx(tmp_path)
    make_onnx(tmp_path / "plans")
    plan = tmp_path / "plans" / "p.json"
    plan.write_text(json.dumps({"model": {"source": "m.onnx"}}))
    assert cli("run", "plans/p.json", "--isolate", cwd=tmp_path).returncode == 0
    (command,) = asked
    assert set(command.readable) == {plan, plan.parent}


def test_a_problem_elsewhere_is_told_apart_from_a_model_elsewhere(
    tmp_path: Path, cli: InProcess, asked: list[IsolatedCommand]
) -> None:
    for folder in ("problems", "plans"):
        (tmp_path / folder).mkdir()
    model = make_onnx(tmp_path / "plans")
    (tmp_path / "problems" / "x.json").write_text("{}")
    document = {"model": {"source": str(model)}, "problem": {"path": "../problems/x.json"}}
    (tmp_path / "plans" / "p.json").write_text(json.dumps(document))
    words = ("run", "plans/p.json", "--isolate", "--model", "plans/m.onnx")
    assert "copy it to the folder of the plan" in the_line(cli(*words, cwd=tmp_path), 2)
    assert asked == []


def test_links_of_a_cache_lead_to_its_files_only(
    tmp_path: Path, cli: InProcess, asked: list[IsolatedCommand]
) -> None:
    snapshot, blobs = tmp_path / "models--a" / "snapshots" / "r", tmp_path / "models--a" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "a1").write_text("{}")
    (snapshot / "config.json").symlink_to(blobs / "a1")
    (tmp_path / "key").write_text("secret")
    (snapshot / "more").symlink_to(tmp_path / "key")
    words = ("advise", f"hf:{snapshot}", "--isolate")
    assert cli(*words, cwd=tmp_path).returncode == 0
    assert set(asked.pop().readable) == {snapshot, blobs}
    blobs.rename(tmp_path / "blobs")
    blobs.symlink_to(tmp_path / "blobs")
    assert cli(*words, cwd=tmp_path).returncode == 0
    assert set(asked.pop().readable) == {snapshot}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--isolation-limits", "cpu=1h"), "--isolation-limits needs --isolate"),
        (("--isolate", "--isolation-limits", "ram=1"), "memory=SIZE, cpu=TIME and files=SIZE"),
        (("--isolate", "--isolation-limits", "cpu=0"), "expected a limit of 1 or more"),
        (("--isolate", "--isolation-limits", ""), "memory=SIZE, cpu=TIME and files=SIZE"),
    ],
)
def test_wrong_words(words: tuple[str, ...], told: str, tmp_path: Path, cli: InProcess) -> None:
    make_onnx(tmp_path)
    result = cli("graph", "m.onnx", *words, cwd=tmp_path)
    assert result.returncode == 2
    assert told in result.stderr
