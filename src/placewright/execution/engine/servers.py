"""Servers of llama.cpp on this machine, which are devices of the engine."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO

from placewright.errors import InputError, RuntimeFailure
from placewright.execution.engine.programs import (
    SERVER,
    Programs,
    ending,
    ends_with_parent,
    last_error,
)

_WAIT_SECONDS = 30.0
_STEP_SECONDS = 0.02


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
        RuntimeFailure: a server ended.
    """
    with ExitStack() as stack:
        started = []
        for address, threads in addresses.items():
            host, port = _parts(address)
            if _answers(host, port):
                if _is_here(host) and not may_answer:
                    raise InputError(
                        f"port {port} of {host} is taken; end the program that listens there, or "
                        f"give argument `servers` {address} if it is a server of the engine"
                    )
            elif not _is_here(host):
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
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=ends_with_parent()
        )
        try:
            yield _Started(address, process, log)
        finally:
            process.kill()
            process.wait()


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
        socket.create_connection((host, port), timeout=2.0).close()
    except OSError:
        return False
    return True


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"'{address}' is no address; give host:port, such as 127.0.0.1:50052")
    return host, int(port)


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
