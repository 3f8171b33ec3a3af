"""How the kernels are compiled: cached on disk, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])
_COMPILE = cast(Callable[..., Callable[[Any], Any]], numba.njit)


def compiled(function: F) -> F:
    """Compile a function that may allocate."""
    return cast(F, _COMPILE(cache=True, nogil=True)(function))


def uncounted(function: F) -> F:
    """Compile a function that allocates nothing: without reference counts, which cost most."""
    return cast(F, _COMPILE(cache=True, nogil=True, _nrt=False)(function))


def inlined(function: F) -> F:
    """Like `uncounted`, and part of whatever calls it."""
    return cast(F, _COMPILE(cache=True, nogil=True, _nrt=False, inline="always")(function))
