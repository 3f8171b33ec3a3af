"""A search in a thread beside another method."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from placewright.errors import BudgetSpent

_LOOKS_EVERY = 0.1  # seconds


@contextmanager
def beside(search: Callable[[], object], stop: Callable[[], None]) -> Iterator[None]:
    """Run `search` in a thread while the block runs, and after it until the search ends.

    Args:
        search: ends with `BudgetSpent`, or by itself.
        stop: makes it end soon; called when the block raises. A block that ends by the budget, or
            with an interrupt, ends the search, too.

    Raises:
        Exception: what the search raised, where the block raised nothing.
    """
    thread = _Searching(search)
    thread.start()
    try:
        try:
            yield
        except BudgetSpent:
            stop()
        while thread.is_alive():
            thread.join(_LOOKS_EVERY)
    except BaseException:
        stop()
        raise
    if thread.error is not None:
        raise thread.error


class _Searching(threading.Thread):
    def __init__(self, search: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._search = search
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._search()
        except BudgetSpent:
            pass
        except BaseException as error:  # raised again in the thread that waits
            self.error = error
