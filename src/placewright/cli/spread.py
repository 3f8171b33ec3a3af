"""Workers of a command, as its options say."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from placewright.session.request import Request

if TYPE_CHECKING:
    from placewright.workers.interface import Workers


def spread(request: Request, *, apart: bool = False) -> AbstractContextManager[Workers]:
    """The workers behind ``--workers`` and ``--ray``, for a block.

    Args:
        request: what was asked for.
        apart: a single worker is another process, too.

    Raises:
        InputError: there are no such workers.
    """
    from placewright.workers.opened import open_workers

    return open_workers(request.workers, request.ray, apart=apart)
