"""Runs a command in an isolated process; passes on its output and its files.

The process may write only to a temporary folder: its cache, its temporary files, and under ``out``
the files of the command, which are copied to their targets after its end. Its measured samples are
stored separately, for isolated runs of the same model.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TextIO

from platformdirs import user_cache_path

from placewright.errors import InputError, PlacewrightError
from placewright.io.opened import printable, read_bytes, shown_name
from placewright.io.scratch import scratch_folder
from placewright.io.written import write_files
from placewright.isolation.confined import Limits, require_isolation

CHILD = "placewright.cli.isolated_process"
_PREFIX = "placewright-isolated-"
_GRACE_SECONDS = 20.0  # for the process to end after a signal
_MAX_PRINTED = 64 << 20  # characters of each stream
_MAX_STORE_BYTES = 1 << 30
_ENVIRONMENT = (
    "PATH", "LANG", "LC_", "TZ", "TERM", "COLUMNS", "OMP_", "MKL_", "OPENBLAS_", "NUMBA_", "PYTHON",
    "LD_LIBRARY_PATH", "CUDA", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_TF32_OVERRIDE", "VIRTUAL_ENV", "PLACEWRIGHT_", "KMP_", "GOMP_",
)  # fmt: skip


@dataclass(frozen=True)
class IsolatedCommand:
    """A command line with its files and limits."""

    words: Sequence[str]  # of the command line
    # parameter of the command -> the files that it writes, its own first
    outputs: Mapping[str, Sequence[Path]]
    readable: Sequence[Path]  # files and folders that the command reads
    model: str  # identifies stored samples
    limits: Limits  # of the process
    prints_json: bool = False  # its standard output is a JSON document


def run_isolated(command: IsolatedCommand) -> int:
    """Run a command in a confined process and return its exit code.

    A signal ends the process; if it still ends with 0, as with the incumbent's plan, so does this.

    Raises:
        InputError: the system cannot confine it, a fault of a library or a limit ended it, or one
            of its files cannot be written.
        KeyboardInterrupt: the process has also been ended.
    """
    require_isolation()
    try:
        with scratch_folder(Path(tempfile.gettempdir()), _PREFIX) as folder:
            return _run_within(folder.resolve(), command)
    except OSError as error:
        raise InputError(f"the isolated process cannot be started: {error.strerror}") from None


def _run_within(folder: Path, command: IsolatedCommand) -> int:
    kernels = _prepared(folder, command.model)
    places = _places(folder, command.outputs)
    pairs = [
        pair
        for name, made_paths in places.items()
        for pair in zip(made_paths, command.outputs[name], strict=True)
    ]
    arguments = {
        "parent": os.getpid(),
        "readable": [str(path) for path in (*command.readable, kernels)],
        "writable": str(folder),
        "limits": asdict(command.limits),
        "outputs": {name: str(paths[0]) for name, paths in places.items()},
        "final": {str(made.parent): os.path.realpath(target.parent) for made, target in pairs},
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", CHILD, json.dumps(arguments), *command.words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(folder),
        start_new_session=True,  # Ctrl-C reaches only this process, which ends the other
    )
    shown = {f"{made.parent}{os.sep}": _beside(target) for made, target in pairs}
    in_json = {_in_json(made): _in_json(place) for made, place in shown.items()}
    printed = in_json if command.prints_json else shown
    with _relayed(process, printed, shown) as output:
        try:
            code = process.wait()
        except BaseException as error:
            output.held = []
            code = _end(process)
            if code != 0 or not isinstance(error, KeyboardInterrupt):
                _keep_samples(folder, command.model)
                raise
    for target, text in output.held or ():
        _show(target, text)
    _keep_samples(folder, command.model)
    if code < 0:
        raise InputError(_ended_by(-code, command))
    _take_outputs(places, command.outputs)
    if output.is_cut and code == 0:
        raise InputError(
            f"the isolated process printed more than {_MAX_PRINTED} characters; the rest is missing"
        )
    return code


def _in_json(text: str) -> str:
    """A text as it stands within the strings of a JSON document."""
    return json.dumps(text)[1:-1]


def _prepared(folder: Path, model: str) -> Path:
    """Fill the process's cache folder, and return the folder of compiled kernels."""
    cache, own = folder / "cache" / "placewright", user_cache_path("placewright")
    cache.mkdir(parents=True)
    (cache / "kernels").symlink_to(kernels := (own / "kernels").resolve())
    with contextlib.suppress(OSError):
        shutil.copyfile(_samples_of(model), cache / "costs.sqlite")
    (folder / "out").mkdir()
    (folder / "tmp").mkdir()
    return kernels


def _samples_of(model: str) -> Path:
    """The samples of isolated runs; only these open a file that a foreign model may write."""
    digest = hashlib.sha256(os.path.abspath(model).encode("utf-8", "replace")).hexdigest()[:16]
    return user_cache_path("placewright") / "isolated" / f"{digest}.sqlite"


def _keep_samples(folder: Path, model: str) -> None:
    made, target = folder / "cache" / "placewright" / "costs.sqlite", _samples_of(model)
    if not made.exists() or made.with_name("costs.sqlite-journal").exists():
        return
    with contextlib.suppress(PlacewrightError, OSError):  # else the next run measures again
        content = read_bytes(made, limit=_MAX_STORE_BYTES)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_files({target: content})


def _places(folder: Path, outputs: Mapping[str, Sequence[Path]]) -> dict[str, list[Path]]:
    """The files that the process writes: a folder per parameter, with the same names."""
    places = {}
    for number, (name, paths) in enumerate(outputs.items()):
        within = folder / "out" / str(number)
        within.mkdir()
        places[name] = [within / path.name for path in paths]
    return places


def _beside(target: Path) -> str:
    return "" if target.parent == Path() else f"{target.parent}{os.sep}"


def _take_outputs(
    places: Mapping[str, Sequence[Path]], outputs: Mapping[str, Sequence[Path]]
) -> None:
    """Copy the files of the process to their targets; files come after those that they refer to."""
    contents: dict[Path | str, bytes] = {}
    for name, paths in places.items():
        for made, target in reversed(list(zip(paths, outputs[name], strict=True))):
            if made.is_symlink() or (made.exists() and not made.is_file()):
                raise InputError(f"the isolated process made no file of '{shown_name(target)}'")
            if made.exists():
                contents[target] = read_bytes(made, limit=sys.maxsize)
    if contents:
        write_files(contents)


def _environment(folder: Path) -> dict[str, str]:
    """The environment without passwords and tokens that the user's may contain."""
    passed = {name: text for name, text in os.environ.items() if name.startswith(_ENVIRONMENT)}
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        # An empty entry means the current folder, from which no library may be loaded.
        if name in passed:
            passed[name] = os.pathsep.join(filter(None, passed[name].split(os.pathsep)))
    return passed | {
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _end(process: subprocess.Popen[bytes]) -> int:
    """Ask a process to end, end it after the grace or another signal, and return its exit code."""
    try:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    finally:
        process.kill()
        code = process.wait()
    return code


def _ended_by(number: int, command: IsolatedCommand) -> str:
    name = shown_name(command.model)
    if number == signal.SIGXCPU:
        return (
            f"'{name}' was stopped after {command.limits.cpu:.0f} s of CPU time; "
            f"argument `isolation_limits` cpu={2 * command.limits.cpu:.0f}s allows more"
        )
    if number == signal.SIGXFSZ:
        return (
            f"'{name}' was stopped when a file grew beyond {command.limits.files:.0f} bytes; "
            f"argument `isolation_limits` files={2 * command.limits.files:.0f}B allows more"
        )
    cause = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return (
        f"the isolated process was ended by {cause} while a library read or ran '{name}': "
        "the model is damaged, made to do harm, or needs more memory than argument "
        "`isolation_limits` allows"
    )


@dataclass
class _Output:
    """State of the output of a process, for the threads that pass it on."""

    held: list[tuple[TextIO, str]] | None = None  # lines that are kept; None passes them on
    is_cut: bool = False  # it was too long


@contextlib.contextmanager
def _relayed(
    process: subprocess.Popen[bytes], printed: Mapping[str, str], said: Mapping[str, str]
) -> Iterator[_Output]:
    """Pass on the output of a process until its end.

    Args:
        printed, said: texts of standard output, and of standard error -> their replacements.
    """
    output = _Output()
    assert process.stdout is not None
    assert process.stderr is not None
    threads = [
        threading.Thread(target=_relay, args=(*streams, output), daemon=True)
        for streams in (
            (process.stdout, sys.stdout, printed),
            (process.stderr, sys.stderr, said),
        )
    ]
    for thread in threads:
        thread.start()
    try:
        yield output
    finally:
        for thread in threads:
            thread.join()
        process.stdout.close()
        process.stderr.close()


def _relay(source: IO[bytes], target: TextIO, shown: Mapping[str, str], output: _Output) -> None:
    left = _MAX_PRINTED
    pieces = iter(lambda: source.readline(1 << 16), b"")  # of long lines, cut within characters
    for piece in codecs.iterdecode(pieces, "utf-8", "replace"):
        text = printable(piece, "\n\t")
        for made, place in shown.items():
            text = text.replace(made, place)
        left -= len(text)
        if left < 0:
            output.is_cut = True
        elif output.held is None:
            _show(target, text)
        else:
            output.held.append((target, text))


def _show(target: TextIO, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the stream is closed
        target.write(text)
        target.flush()
