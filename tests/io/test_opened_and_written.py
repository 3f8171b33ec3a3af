"""The bounded opener and the atomic writer, each beside what the operating system says."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from placewright.errors import FileFormatError, InputError
from placewright.files.cluster_file import yaml_value
from placewright.io.json_text import json_object, read_json_object
from placewright.io.model_parts import fields
from placewright.io.opened import (
    beside,
    inside,
    opened,
    read_bytes,
    require_bounded,
    shown_name,
    usable_name,
)
from placewright.io.written import is_written_through, require_folder, write_files


def test_a_regular_file_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "link").symlink_to("a")
    for name in ("a", "link"):
        stream, size = opened(tmp_path / name)
        with stream:
            assert (stream.read(), size) == (b"content", 7)
    assert read_bytes(tmp_path / "a", limit=7) == b"content"
    with pytest.raises(FileFormatError, match="more than the 6"):
        read_bytes(tmp_path / "a", limit=6)


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in (
        (tmp_path / "pipe", "a pipe"),
        ("/dev/zero", "a device"),
        (tmp_path, "a fo"),
    ):
        with pytest.raises(InputError, match=kind):
            opened(path)
    with pytest.raises(InputError, match="NUL"):
        usable_name("a\0b")


def test_links_are_kept_inside(tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "data").write_bytes(b"1")
    (tmp_path / "out").write_bytes(b"2")
    (tmp_path / "in" / "good").symlink_to("sub/data")
    (tmp_path / "in" / "bad").symlink_to("../out")
    (tmp_path / "in" / "circle").symlink_to("circle")
    folder = tmp_path / "in"
    for name in ("good", "sub/data", "sub/../good"):
        assert inside(folder, name).read_bytes() == b"1"
    absolute = str(tmp_path / "out"), str(folder / "good")
    for name in ("bad", "../out", *absolute, ".", "circle", "", "none", "sub", "a\0"):
        with pytest.raises(FileFormatError):
            inside(folder, name)


def test_a_linked_model_has_its_data_where_it_leads(tmp_path: Path) -> None:
    for name in ("blobs", "named", "elsewhere"):
        (tmp_path / name).mkdir()
    for name in ("blobs/0a", "blobs/1b", "elsewhere/2c"):
        (tmp_path / name).write_bytes(b"1")
    model = tmp_path / "named" / "model"
    model.symlink_to("../blobs/0a")
    (tmp_path / "named" / "good").symlink_to("../blobs/1b")
    (tmp_path / "named" / "bad").symlink_to("../elsewhere/2c")
    assert beside(model, "good") == tmp_path / "named" / "good"
    for name in ("bad", "../blobs/1b", "none", "1b", str(tmp_path / "named" / "good")):
        with pytest.raises(FileFormatError):
            beside(model, name)
    with pytest.raises(FileFormatError):
        beside(tmp_path / "named" / "none", "good")


def test_files_are_replaced_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "a").chmod(0o640)
    with pytest.raises(InputError, match="none"):
        write_files({tmp_path / "a": b"new", tmp_path / "none" / "b": b"new"})
    assert (tmp_path / "a").read_bytes() == b"old"
    write_files({tmp_path / "a": b"new", tmp_path / "b": b"too"})
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]


def test_the_mask_of_new_files_is_read_and_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that other threads made meanwhile could be written by everyone."""
    status = Path("/proc/self/status")
    if not status.exists() or "Umask:" not in status.read_text():
        pytest.skip("the system does not tell the mask")
    asked: list[int] = []

    def umask(mask: int) -> int:
        asked.append(mask)
        return 0o027

    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "umask", umask)
            write_files({tmp_path / "new": b"1"})
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    assert asked == []


def _written_until_killed(path: Path) -> None:
    def kill(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    os.replace = kill  # type: ignore[assignment]
    write_files({path: b"new"})


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"old")
    (tmp_path / ".plan.json.unrelated").write_bytes(b"")
    process = multiprocessing.get_context("spawn").Process(
        target=_written_until_killed, args=(path,)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert len(list(tmp_path.glob(".plan.json.*.partial"))) == 1
    write_files({path: b"new"})
    assert sorted(file.name for file in tmp_path.iterdir()) == [".plan.json.unrelated", "plan.json"]


def test_a_temporary_file_that_another_writer_removes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is locked, it looks like one that a killed process left."""
    make, made = tempfile.mkstemp, list[str]()

    def removed_at_once(**said: Any) -> tuple[int, str]:
        handle, name = make(**said)
        made.append(name)
        if len(made) == 1:
            os.unlink(name)
        return handle, name

    monkeypatch.setattr(tempfile, "mkstemp", removed_at_once)
    write_files({tmp_path / "a": b"content"})
    assert (tmp_path / "a").read_bytes() == b"content"
    assert len(made) == 2


def test_a_signal_that_another_thread_takes_waits_for_the_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python runs handlers in the main thread, whichever thread takes the signal."""
    replace, seen = os.replace, list[list[str]]()

    def told(*_: object) -> None:
        seen.append(sorted(file.name for file in tmp_path.iterdir()))

    before = signal.signal(signal.SIGINT, told)
    try:
        with ThreadPoolExecutor(1) as other:
            other.submit(int).result()  # a thread that begins later blocks what this one does

            def interrupted(source: Path, target: Path) -> None:
                replace(source, target)
                other.submit(signal.raise_signal, signal.SIGINT).result()

            monkeypatch.setattr(os, "replace", interrupted)
            write_files({tmp_path / "a": b"new", tmp_path / "b": b"new"})
            monkeypatch.setattr(os, "replace", replace)
            other.submit(write_files, {tmp_path / "a": b"newer"}).result()
        assert signal.getsignal(signal.SIGINT) is told
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [["a", "b"]]
    assert (tmp_path / "a").read_bytes() == b"newer"


def test_aliases_stand_for_what_they_name() -> None:
    assert yaml_value("{a: &x [1, 2], b: *x}", "f") == {"a": [1, 2], "b": [1, 2]}
    bomb = "\n".join(
        ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
    )
    with pytest.raises(FileFormatError, match="more than 1000000 values"):
        yaml_value(bomb, "f")


def test_a_number_of_many_parts_is_refused_before_it_is_computed() -> None:
    """YAML reads 1:30 as 90, and takes minutes for a million parts."""
    assert yaml_value("1:30", "f") == 90
    with pytest.raises(FileFormatError, match="more than 10000 characters"):
        yaml_value("a: 1" + ":1" * 2_000_000, "f")


@pytest.mark.parametrize("value", ["!!float ''", "!!int ''", "!!bool x", "!!timestamp x"])
def test_a_value_that_does_not_fit_its_tag_is_refused(value: str) -> None:
    with pytest.raises(FileFormatError, match="a value does not fit its tag"):
        yaml_value(f"a: {value}", "f")


def test_a_set_of_yaml_is_refused() -> None:
    with pytest.raises(FileFormatError, match="a set, which has no order; write a list"):
        yaml_value("devices: !!set {a, b}", "f")


def test_a_key_of_json_that_stands_twice_is_refused() -> None:
    assert json_object('{"a": {"b": 1}, "c": {"b": 2}}', "f") == {"a": {"b": 1}, "c": {"b": 2}}
    with pytest.raises(FileFormatError, match="key 'b' stands twice"):
        json_object('{"a": {"b": 1, "c": 3, "b": 2}}', "f")


def test_json_keeps_what_arrays_can_hold() -> None:
    assert json_object('{"a": [9223372036854775807, -1, 1e400]}', "f")["a"][0] == 2**63 - 1
    assert json_object('{"a": "\\ud83d\\ude00"}', "f") == {"a": "\N{GRINNING FACE}"}
    for text in ('{"a": 9223372036854775808}', '{"a": "\\ud83d"}', "[]", "null", "", "{} {}"):
        with pytest.raises(FileFormatError):
            json_object(text, "f")


def test_a_tag_that_parsers_cut_is_refused() -> None:
    long_tag = bytes([0x8A, 0x80, 0x80, 0x80, 0x10])  # 2^32 + (1 << 3 | 2): field 1 when cut
    with pytest.raises(FileFormatError):
        list(fields(memoryview(long_tag + b"\x00")))


def test_names_are_shown_on_one_line() -> None:
    assert shown_name("a\nb\udce9") == "a\\nb\\udce9"
    assert len(shown_name("x" * 5000)) <= 120
    assert callable(require_bounded)


def test_the_longest_name_is_written_and_a_longer_one_refused_before(tmp_path: Path) -> None:
    for name in ("n" * 255, "é" * 120 + ".json"):
        require_folder(tmp_path / name)
        (tmp_path / name).write_bytes(b"old")
        write_files({tmp_path / name: b"new"})
        assert (tmp_path / name).read_bytes() == b"new"
    left = tmp_path / f".{hashlib.sha256(b'n' * 255).hexdigest()[:16]}.abcdefgh.partial"
    left.touch()
    write_files({tmp_path / ("n" * 255): b"newer"})
    assert not left.exists()
    for parts in (("n" * 256,), ("f" * 256, "n")):
        with pytest.raises(InputError, match=r"name is too long|does not exist"):
            require_folder(tmp_path.joinpath(*parts))
        assert not is_written_through(tmp_path.joinpath(*parts))


def test_a_mark_before_a_text_in_utf_8_is_no_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "marked.json"
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert read_json_object(path) == {}
