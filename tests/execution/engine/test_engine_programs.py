"""Programs and servers of the engine: where they are found, and addresses that are wrong."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from placewright.errors import InputError, RuntimeFailure
from placewright.execution.engine.programs import (
    BENCH,
    Programs,
    is_of_this_machine,
    running_servers,
)


def test_a_folder_with_a_colon(tmp_path: Path) -> None:
    """Search paths are split there."""
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / BENCH).write_text("#!/bin/sh\n")
    (folder / BENCH).chmod(0o755)
    assert Programs(folder).program(BENCH) == str(folder / BENCH)
    with pytest.raises(InputError, match=r"is not in '.*none'"):
        Programs(tmp_path / "none").program(BENCH)


def test_the_present_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the search path."""
    (tmp_path / BENCH).write_text("#!/bin/sh\n")
    (tmp_path / BENCH).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert Programs(Path()).program(BENCH) == f"./{BENCH}"


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    (tmp_path / BENCH).write_bytes(b"\x00of another machine")
    (tmp_path / BENCH).chmod(0o755)
    with pytest.raises(RuntimeFailure, match=f"{BENCH}' cannot run: "):
        Programs(tmp_path).run(BENCH, [])


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1:²", "is no address"),
        ("127.0.0.1:" + "9" * 5000, "is no address"),
        ("127.0.0.1:0", "is no address"),
        ("a..b:50052", "no server answers at a..b:50052"),
        ("l" * 70 + ":50052", "no server answers at"),
    ],
)
def test_a_wrong_address(address: str, told: str, tmp_path: Path) -> None:
    wanted = {address: None}
    with (
        pytest.raises(InputError, match=told),
        running_servers(Programs(tmp_path), wanted, may_answer=True),
    ):
        pass


def test_an_address_in_brackets_is_used_where_something_listens(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as listening:
        try:
            listening.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6 address of its own")
        listening.listen()
        address = f"[::1]:{listening.getsockname()[1]}"
        assert is_of_this_machine(address)
        # The folder has no server that could be started.
        with running_servers(Programs(tmp_path), {address: None}, may_answer=True):
            pass
