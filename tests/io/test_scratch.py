"""Scratch folders of killed work are removed, and no others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from placewright.io.scratch import scratch_folder


def test_scratch_folders_of_killed_work_are_removed(tmp_path: Path) -> None:
    left = tmp_path / ".converting-x.scratch"
    left.mkdir()
    (left / "half").write_text("x")
    others = [tmp_path / name for name in (".kept-x.scratch", ".converting-x")]
    for other in others:
        other.mkdir()
    with scratch_folder(tmp_path, ".converting-") as used:
        assert not left.exists()
        with scratch_folder(tmp_path, ".converting-") as folder:
            assert folder != used
            assert folder.parent == tmp_path
            assert used.is_dir()
        assert not folder.exists()
    assert not used.exists()
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_no_scratch_folder_is_taken_for_one_that_was_left(tmp_path: Path) -> None:
    def work(_: int) -> None:
        for _turn in range(200):
            with scratch_folder(tmp_path, "w-") as folder:
                (folder / "file").write_text("x")
                assert (folder / "file").read_text() == "x"

    with ThreadPoolExecutor(8) as workers:
        list(workers.map(work, range(8)))
    assert list(tmp_path.iterdir()) == []
