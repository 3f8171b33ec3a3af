"""The programs and servers of llama.cpp on this machine; a server is a device of the engine."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from placewright.errors import InputError, RuntimeFailure

ENGINE = "llama.cpp"
FOLDER = "PLACEWRIGHT_LLAMA_CPP"  # environment variable: the folder of its programs
BENCH, COMPLETION, FIT, SERVER = (
    "llama-bench",
    "llama-completion",
    "llama-fit-params",
    "ggml-rpc-server",
)
# Weights in memory of the program's own: beside a server, pages of the file were read more slowly.
OWN_MEMORY = ("-lm", "none")
_OLDER = {COMPLETION: "llama-cli", SERVER: "rpc-server"}  # names in earlier versions
_SECONDS = 3600.0  # that a program may take
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl
_TUNABLES, _HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
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
        for known in filter(None, (name, _OLDER.get(name))):
            # Not by argument `path` of `which`, which is split at the colons of a folder's name. In
            # `./NAME` the dot must stay: else the search path is looked at.
            path = known if self.folder is None else os.path.join(self.folder, known)
            found = shutil.which(path)
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
            RuntimeFailure: it cannot run, ended with an error, or took longer than an hour.
        """
        path = self.program(name)
        try:
            done = subprocess.run(
                [path, *words], capture_output=True, stdin=subprocess.DEVNULL, check=False,
                timeout=_SECONDS, env=with_huge_pages(os.environ), preexec_fn=ends_with_parent(),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RuntimeFailure(f"'{name}' took longer than {_SECONDS:.0f} s") from None
        except OSError as error:  # of another kind of machine, or no program
            raise RuntimeFailure(f"'{path}' cannot run: {error.strerror or error}") from None
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
    """Make a function for a new child to call, so that it dies with the thread that starts it.

    It is None but on Linux.
    """
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)

    def before() -> None:
        library.prctl(_DIE_WITH_PARENT, signal.SIGKILL)

    return before


_WAIT_SECONDS = 30.0
_STEP_SECONDS = 0.02
_DIGITS = 5  # of a port at most


@dataclass(frozen=True)
class _Started:
    address: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def require_alive(self) -> None:
        code = self.process.poll()
        if code is None:
            return
        self.log.seek(0)
        why = last_error(self.log.read().decode(errors="replace"))
        raise RuntimeFailure(f"the server on {self.address} {ending(code)}: {why}")


@dataclass(frozen=True)
class Servers:
    """Servers that answer."""

    started: tuple[_Started, ...] = ()  # those that this process started; they end with the block

    def require_alive(self) -> None:
        """Refuse to go on if a started server has ended.

        Raises:
            RuntimeFailure: the message names the server and its last line.
        """
        for server in self.started:
            server.require_alive()


@contextmanager
def running_servers(
    engine: Programs, addresses: Mapping[str, int | None], *, may_answer: bool
) -> Iterator[Servers]:
    """Servers at addresses, for a block.

    Addresses of this machine where nothing answers get a server, which is killed when the block
    ends. Those of other machines must answer.

    Args:
        addresses: ``host:port`` -> threads of a server that is started; None is its default.
        may_answer: use what answers at an address of this machine; False refuses it.

    Raises:
        InputError: an address is wrong or taken, or nobody answers there.
        RuntimeFailure: a server ended, or does not answer in time.
    """
    with ExitStack() as stack:
        started = []
        for address, threads in addresses.items():
            host, port = _parts(address)
            if _answers(host, port):
                if is_of_this_machine(address) and not may_answer:
                    raise InputError(
                        f"port {port} of {host} is taken; end the program that listens there, or "
                        f"give argument `servers` {address} if it is a server of the engine"
                    )
            elif not is_of_this_machine(address):
                raise InputError(f"no server answers at {address}; start one there")
            else:
                started.append(stack.enter_context(_server(engine, address, threads)))
        for server in started:
            _wait_for(server)
        yield Servers(tuple(started))


@contextmanager
def _server(engine: Programs, address: str, threads: int | None) -> Iterator[_Started]:
    host, port = _parts(address)
    words = [engine.program(SERVER), "-H", host, "-p", str(port)]
    words += [] if threads is None else ["-t", str(threads)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=with_huge_pages(os.environ),
            preexec_fn=ends_with_parent(),
        )
        try:
            yield _Started(address, process, log)
        finally:
            process.kill()
            process.wait()


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment whose programs get huge pages from the C library, if it says nothing of them.

    A token reads all weights once. With pages of 4 KiB that took 1.25 to 1.4 times as long in a
    virtual machine, where it takes long to find a page. Other C libraries ignore the variable.
    """
    said = environment.get(_TUNABLES, "")
    if _HUGE_PAGES in said:
        return dict(environment)
    return {**environment, _TUNABLES: ":".join(filter(None, (said, f"{_HUGE_PAGES}=1")))}


def _wait_for(server: _Started) -> None:
    host, port = _parts(server.address)
    end = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < end:
        server.require_alive()
        if _answers(host, port):
            return
        time.sleep(_STEP_SECONDS)
    raise RuntimeFailure(f"the server on {server.address} does not answer in {_WAIT_SECONDS:.0f} s")


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host.strip("[]"), port), timeout=2.0).close()
    except (OSError, UnicodeError):  # the second: a label of the name is empty or too long
        return False
    return True


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= _DIGITS
    if not host or not is_number or not 0 < int(port) < 65536:
        raise InputError(f"'{address}' is no address; give host:port, such as 127.0.0.1:50052")
    return host, int(port)


def is_of_this_machine(address: str) -> bool:
    """True if the host of an address, host:port, is localhost or a loopback number."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
