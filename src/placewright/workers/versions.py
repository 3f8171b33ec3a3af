"""Versions that must be the same wherever tasks of one run are done."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

Versions = dict[str, str]  # package, or "python" -> version; empty where it is not installed
_PACKAGES = ("placewright", "numpy", "scipy", "numba")


def versions_here() -> Versions:
    """Of this process."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def difference(ours: Versions, theirs: Versions) -> str:
    """What differs, as a sentence with what to do; empty where nothing does."""
    found = [
        f"{name} {theirs[name]} where this process has {mine}"
        if theirs.get(name)
        else f"no {name}, of which this process has {mine}"
        for name, mine in ours.items()
        if theirs.get(name, "") != mine
    ]
    return f"it has {', '.join(found)}; install the same versions there" if found else ""
