"""The optional packages that learning needs, asked for only when a learned placer runs."""

from __future__ import annotations

import importlib

from placewright.errors import MissingExtraError


def require_packages(*packages: str) -> None:
    """Fail early, by name, where an optional package is absent.

    Raises:
        MissingExtraError: one of `packages` cannot be imported.
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError(package, "learned", "this learned placer") from error
