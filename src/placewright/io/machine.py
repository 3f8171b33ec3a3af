"""Memory and processor time that this process may use: those of the machine, or of a container.

A container is a control group of Linux, whose limits the usual counts of memory and processors do
not contain. Version 2 keeps all limits in one tree of folders, version 1 a tree for each resource.
The limits of all parents count, and a container may see its own folder as the root.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS, _TREES = "proc/self/cgroup", "sys/fs/cgroup"


def memory_bytes(root: Path = Path("/")) -> float:
    """Bytes of memory; inf if the system does not report them.

    Args:
        root: of the file system.
    """
    try:
        installed = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        installed = math.inf
    limits = [
        *(_number(folder / "memory.max") for folder in _folders(root, "")),
        *(_number(folder / "memory.limit_in_bytes") for folder in _folders(root, "memory")),
    ]
    return min([installed, *limits])


def processor_quota(root: Path = Path("/")) -> float:
    """Processors whose whole time this process may use; inf without a limit.

    Args:
        root: of the file system.
    """
    shares = [_share(*_words(folder / "cpu.max")) for folder in _folders(root, "")]
    for folder in _folders(root, "cpu"):
        quota, period = (_words(folder / f"cpu.cfs_{part}_us") for part in ("quota", "period"))
        shares.append(_share(*quota, *period))
    return min([math.inf, *shares])


def _folders(root: Path, resource: str) -> Iterator[Path]:
    """Folders with limits of this process's group and its parents, innermost first.

    Args:
        resource: whose tree of version 1 is meant; "" is the tree of version 2.
    """
    try:
        lines = (root / _GROUPS).read_text().splitlines()
    except OSError:  # no Linux
        return
    for _, resources, group in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if resource in resources.split(","):
            top = root / _TREES / resources
            top = top if top.exists() else root / _TREES / resource
            inner = top / group.strip("/")
            yield from (inner, *(at for at in inner.parents if at.is_relative_to(top)))


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:  # the root has no limits, and a container does not see its parents
        return []


def _number(file: Path) -> float:
    """The number in a file; inf for "max", or without a number."""
    words = _words(file)
    return float(words[0]) if words and words[0].isdecimal() else math.inf


def _share(quota: str = "max", period: str = "0", *_: str) -> float:
    """Processors of a quota in each period; inf for "max", -1, or without both."""
    if not (quota.isdecimal() and period.isdecimal() and int(period) > 0):
        return math.inf
    return int(quota) / int(period)
