"""Limits of containers, in both versions of control groups."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from placewright.io.machine import memory_bytes, processor_quota

INSTALLED = memory_bytes(Path("no root"))


def root_with(folder: Path, groups: str, files: dict[str, str]) -> Path:
    """A root of a file system whose process is in some groups."""
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        # of a container, which sees its own group as the root
        ("0::/\n", {"memory.max": "4096\n", "cpu.max": "150000 100000\n"}),
        (
            "4:memory:/docker/f00\n1:cpu,cpuacct:/docker/f00\n0::/\n",
            {
                "memory/memory.limit_in_bytes": "4096\n",
                "cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
        ),
        # of a service on the machine itself: the limit of a parent counts, too
        (
            "0::/user.slice/job.service\n",
            {
                "user.slice/memory.max": "4096\n",
                "user.slice/cpu.max": "max 100000\n",
                "user.slice/job.service/memory.max": "max\n",
                "user.slice/job.service/cpu.max": "300000 200000\n",
            },
        ),
        (
            "4:memory:/a/b\n1:cpu:/a/b\n",
            {
                "memory/a/memory.limit_in_bytes": "4096\n",
                "memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
                "cpu/a/cpu.cfs_quota_us": "-1\n",
                "cpu/a/cpu.cfs_period_us": "100000\n",
                "cpu/a/b/cpu.cfs_quota_us": "150000\n",
                "cpu/a/b/cpu.cfs_period_us": "100000\n",
            },
        ),
    ],
    ids=["container, version 2", "container, version 1", "service, version 2", "job, version 1"],
)
def test_limits_of_a_group(groups: str, files: dict[str, str], tmp_path: Path) -> None:
    inside = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    root = root_with(tmp_path, groups, inside)
    assert memory_bytes(root) == 4096
    assert processor_quota(root) == 1.5


@pytest.mark.parametrize("groups", ["0::/\n", "4:memory:/x\n1:cpu:/x\n0::/\n", "", "odd\n"])
def test_a_process_without_limits_has_the_machine(groups: str, tmp_path: Path) -> None:
    root = root_with(tmp_path, groups, {"sys/fs/cgroup/memory.max": "max\n"})
    assert memory_bytes(root) == INSTALLED
    assert processor_quota(root) == math.inf


def test_a_system_without_groups_has_no_limits() -> None:
    assert INSTALLED > 2**20
    assert processor_quota(Path("no root")) == math.inf
