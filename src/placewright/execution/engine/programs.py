"""The programs of llama.cpp on this machine."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from placewright.errors import InputError, RuntimeFailure

ENGINE = "llama.cpp"
FOLDER = "PLACEWRIGHT_LLAMA_CPP"  # environment variable: the folder of its programs
BENCH, COMPLETION, FIT, SERVER = (
    "llama-bench",
    "llama-completion",
    "llama-fit-params",
    "ggml-rpc-server",
)
_OLDER = {COMPLETION: "llama-cli", SERVER: "rpc-server"}  # names in earlier versions
_SECONDS = 3600.0  # that a program may take
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl
_MOST = 300  # characters of a program's line in a message


@dataclass(frozen=True)
class Finished:
    """Text that a program printed."""

    output: bytes  # of standard output, as bytes
    log: str  # of standard error


@dataclass(frozen=True)
class Programs:
    """The folder of the programs."""

    folder: Path | None = None  # that holds them; None is the search path

    def program(self, name: str) -> str:
        """The path of a program.

        Raises:
            InputError: it is not there.
        """
        path = None if self.folder is None else str(self.folder)
        for known in filter(None, (name, _OLDER.get(name))):
            found = shutil.which(known, path=path)
            if found is not None:
                return found
        where = f"in '{self.folder}'" if self.folder else "on the search path"
        raise InputError(
            f"{ENGINE}'s program '{name}' is not {where}; build it, and give argument "
            f"`engine_folder`, or set {FOLDER}, to the folder of its programs"
        )

    def has(self, name: str) -> bool:
        """True if a program is there."""
        try:
            self.program(name)
        except InputError:
            return False
        return True

    def run(
        self, name: str, words: Sequence[str], *, explain: Callable[[], None] | None = None
    ) -> Finished:
        """Run a program to its end; it is killed if an exception ends the wait.

        Args:
            explain: is called when the program fails, and raises if it knows a better reason.

        Raises:
            InputError: the program is not there.
            RuntimeFailure: it ended with an error, or took longer than an hour.
        """
        path = self.program(name)
        try:
            done = subprocess.run(
                [path, *words], capture_output=True, stdin=subprocess.DEVNULL, check=False,
                timeout=_SECONDS, preexec_fn=ends_with_parent(),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RuntimeFailure(f"'{name}' took longer than {_SECONDS:.0f} s") from None
        log = done.stderr.decode(errors="replace")
        if done.returncode:
            if explain is not None:
                explain()
            raise RuntimeFailure(f"'{name}' {ending(done.returncode)}: {last_error(log)}")
        return Finished(done.stdout, log)

    @property
    def version(self) -> str:
        """Build number and commit, as the engine prints them."""
        done = self.run(BENCH, [long("version")])
        lines = (done.output.decode(errors="replace") + done.log).splitlines()
        found = next((line for line in lines if line.startswith("version:")), "")
        return found.removeprefix("version:").strip() or "unknown"


def engine_at(folder: str | Path | None = None) -> Programs:
    """The engine in a folder, else in the folder that the environment names, else on the path.

    Raises:
        InputError: the folder is not there.
    """
    chosen = folder or os.environ.get(FOLDER)
    if chosen is None or not str(chosen):
        return Programs()
    if not Path(chosen).is_dir():
        which = "argument `engine_folder`" if folder else f"variable {FOLDER}"
        raise InputError(f"{which}: there is no folder '{chosen}'")
    return Programs(Path(chosen))


def long(option: str) -> str:
    """Spell an option that has no short form."""
    return f"--{option}"


def ending(code: int) -> str:
    """Describe how a process ended."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def last_error(log: str) -> str:
    """Last line of a log that mentions an error or a failure, else its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "failed" in line.lower()]
    chosen = (telling or lines or ["it printed nothing"])[-1]
    return chosen if len(chosen) <= _MOST else f"{chosen[:_MOST]} ..."


def ends_with_parent() -> Callable[[], None] | None:
    """Make a function for a new child to call, so that it dies with this process (Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)

    def before() -> None:
        library.prctl(_DIE_WITH_PARENT, signal.SIGKILL)

    return before
