"""A Ray cluster on this machine with a node per core, for measurements."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache

from placewright.errors import AnswerError
from placewright.workers.ray_workers import connect, nodes_of
from placewright.workers.served import thread_variables

_START_SECONDS = 90.0
_END_SECONDS = 20.0


@contextmanager
def only_on(cores: Sequence[int]) -> Iterator[None]:
    """Bind this process and the processes that it starts in the block to some cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cores))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def ray_nodes_on(cores: Sequence[int]) -> Iterator[str]:
    """Start a cluster with a node bound to each core for the block; its address.

    It requires a token that only this process and its children have.

    Raises:
        MissingExtraError: Ray is not installed.
        AnswerError: the cluster does not start.
    """
    port = _free_port()
    address = f"127.0.0.1:{port}"
    nodes: list[subprocess.Popen[bytes]] = []
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token()}
    before = {name: os.environ.get(name) for name in token}
    os.environ.update(token)
    try:
        for core in cores:
            where = {"address": address}
            if not nodes:
                where = {"head": "", "port": str(port), "include-dashboard": "false"}
            with only_on([core]):
                nodes.append(_node(where))
            _wait_for(address, len(nodes))
        yield address
    finally:
        for node in reversed(nodes):
            _end(node)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@cache
def _token() -> str:
    """The token of all clusters of this process, which Ray reads once."""
    return secrets.token_hex(32)


def _node(where: Mapping[str, str]) -> subprocess.Popen[bytes]:
    options = {**where, "num-cpus": "1", "block": ""}
    words = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
    return subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", *words],
        env={**os.environ, **thread_variables(1), "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # whose processes are ended together
    )


def _wait_for(address: str, n_nodes: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    found: list[object] | str = "no answer"
    while time.monotonic() < deadline:
        with suppress(Exception):  # Ray raises many kinds while a cluster starts
            ray, _ = connect(address, None)
            try:
                if len(found := list(nodes_of(ray))) == n_nodes:
                    return
            finally:
                ray.shutdown()
        time.sleep(1.0)
    raise AnswerError(f"a Ray cluster of {n_nodes} nodes at {address} does not start: {found}")


def _end(node: subprocess.Popen[bytes]) -> None:
    """End a node and the processes that it started."""
    node.terminate()
    with suppress(subprocess.TimeoutExpired):
        node.wait(_END_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(node.pid, signal.SIGKILL)
    node.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
