"""Placers from elsewhere: ``package.module:Class``, and entry points ``placewright.placers``."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

from placewright.errors import InputError

GROUP = "placewright.placers"
_MEMBERS = ("name", "paper", "objectives", "needs_training", "why_not", "place")


def entry_points() -> dict[str, str]:
    """Name -> ``"package.module:Class"`` of every placer that an installed package offers."""
    found = importlib.metadata.entry_points(group=GROUP)
    return {point.name: point.value for point in sorted(found, key=lambda point: point.name)}


def is_path(name: str) -> bool:
    """True for ``package.module:Class``."""
    module, colon, attribute = name.partition(":")
    parts = module.split(".")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in parts)


def outside_class(path: str) -> type[Any]:
    """The class at ``package.module:Class``; modules of the current folder are found, too.

    Raises:
        InputError: it cannot be imported, or is no placer.
    """
    module_name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise InputError(f"placer '{path}' cannot be imported: {error}") from error
    finally:
        sys.path.remove(here)
    missing = [member for member in _MEMBERS if not hasattr(found, member)]
    if not isinstance(found, type) or not dataclasses.is_dataclass(found) or missing:
        what = f"it has no {', '.join(missing)}" if missing else "it is no dataclass"
        raise InputError(f"'{path}' is no placer: {what}; see docs/develop/add-a-placer.md")
    return found
