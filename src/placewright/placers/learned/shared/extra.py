"""Optional packages of learned placers, checked when a placer runs."""

from __future__ import annotations

import importlib

from placewright.errors import MissingExtraError


def require_packages(*packages: str) -> None:
    """Raise early, by name, if an optional package is missing.

    Raises:
        MissingExtraError: one of `packages` cannot be imported.
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError(package, "learned", "this learned placer") from error
