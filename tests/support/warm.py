"""Runs programs in processes that are forked from one that has imported the package.

A new interpreter imports the package and loads compiled kernels for seconds, which is most of what
a short command takes. A fork has done so, and is else a process like any other: with its own files,
limits, signals and end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

COMMAND = "from placewright.cli import main\nmain()"
# The child leaves the loop and ends as a program does, not inside a call of ours.
_SERVER = """
import gc, json, os, socket, sys
import numpy, onnx, scipy.optimize
import placewright.cli.app, placewright.session.session, placewright.session.checking
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator
from placewright.testing.problems import random_problem
random = numpy.random.default_rng(0)
problem = random_problem(random, n_ops=4, n_devices=2)
make_placer("heft").place(problem, Evaluator(problem), random)  # loads the compiled kernels
sys.path.insert(0, sys.argv[2])
from support.machine import take_the_record
take_the_record()
del sys.path[0], take_the_record
del numpy, onnx, scipy, placewright, make_placer, Evaluator, random_problem, random, problem
gc.freeze()  # a collection in a fork would copy all pages
channel = socket.socket(fileno=int(sys.argv[1]))
while True:
    message, files, *_ = socket.recv_fds(channel, 1 << 20, 3)
    if not message:
        os._exit(0)
    child = os.fork()
    if child == 0:
        break
    for file in files:
        os.close(file)
    channel.send(b"%d" % child)
    channel.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
channel.close()
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
asked = json.loads(message)
os.chdir(asked["cwd"])
os.environ.clear()
os.environ.update(asked["environment"])
sys.argv[:] = ["placewright", *asked["words"]]
program = compile(asked["program"], "<string>", "exec")
del child, files, file, message, number, channel, asked
exec(program)
"""
_TESTS = str(Path(__file__).parents[1])
_ENVIRONMENT = dict(os.environ)  # before any test changes it
_server: list[socket.socket] = []  # it ends when this process does, which closes the socket


class Warm:
    """A program under way in a fork; see `run_warm`.

    Attributes:
        pid: number of its process.
    """

    def __init__(
        self, program: str, words: list[str], cwd: Path, environment: Mapping[str, str]
    ) -> None:
        asked = {"program": program, "words": words, "cwd": str(cwd)}
        message = json.dumps({**asked, "environment": dict(environment)}).encode()
        self._words, self._channel = words, _channel()
        self._written = [os.memfd_create(name) for name in ("out", "err")]
        with open(os.devnull, "rb") as nothing:
            socket.send_fds(self._channel, [message], [nothing.fileno(), *self._written])
        self.pid = int(self._channel.recv(64))

    def first_line(self) -> str:
        """The first line of standard output, as soon as it is there."""
        while "\n" not in (text := _text(self._written[0])):
            time.sleep(0.02)
        return text.partition("\n")[0]

    def ended(self, timeout: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Wait for the end.

        Raises:
            TimeoutError: it did not end in `timeout` seconds, and was killed.
        """
        self._channel.settimeout(timeout)
        try:
            code = int(self._channel.recv(64))
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            self._channel.settimeout(None)
            self._channel.recv(64)
            raise
        self._channel.settimeout(None)
        told = [_text(file) for file in self._written]
        for file in self._written:
            os.close(file)
        return subprocess.CompletedProcess(self._words, code, *told)


def run_warm(
    program: str,
    words: list[str],
    *,
    cwd: Path,
    environment: Mapping[str, str] = os.environ,
    timeout: float = 600.0,
) -> subprocess.CompletedProcess[str]:
    """Run a program as ``python -c PROGRAM WORDS`` does.

    Args:
        program: its text.
        words: its arguments.
        cwd: the folder that it runs in.
        environment: all its variables; compiled kernels stay where this run of tests has them.
        timeout: seconds until it is killed.

    Raises:
        TimeoutError: it was killed.
    """
    return Warm(program, words, cwd, environment).ended(timeout)


def _text(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode().replace("\r\n", "\n")


def _channel() -> socket.socket:
    """The connection to the process that forks, which is started once."""
    if not _server:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(theirs.fileno()), _TESTS],
                pass_fds=[theirs.fileno()],
                env=dict(_ENVIRONMENT, OMP_NUM_THREADS="1"),
                start_new_session=True,
            )
        _server.append(ours)
    return _server[0]
