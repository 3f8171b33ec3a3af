"""Variants of a placer as presets: what a user sets is always kept."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

P = TypeVar("P")


def with_presets(presets: Mapping[str, Mapping[str, object]]) -> Callable[[type[P]], type[P]]:
    """Decorate a dataclass that has a field `variant`.

    Fields that the caller does not give take the values of the variant's preset, and only where
    that says nothing those of the class.

    Args:
        presets: variant -> field -> value.
    """

    def decorate(found: type[P]) -> type[P]:
        original: Callable[..., None] = found.__init__
        signature = inspect.signature(original)
        default = signature.parameters["variant"].default

        @functools.wraps(original)
        def init(self: P, *args: object, **settings: object) -> None:
            given = dict(signature.bind(self, *args, **settings).arguments)
            given.pop("self")
            preset = presets.get(str(given.get("variant", default)), {})
            original(self, **{**preset, **given})

        found.__init__ = init  # type: ignore[assignment]
        return found

    return decorate
