"""One worker: this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from placewright.workers.interface import Workers
from placewright.workers.tasks import Done, Task


class ThisProcess(Workers):
    """Does one task after the other, here; what a task raises comes as it is."""

    name = "this process"

    @property
    def count(self) -> int:
        """One."""
        return 1

    def close(self) -> None:
        """Nothing was started."""

    def run(self, tasks: Iterable[Task | None]) -> Iterator[Done]:
        """See `Workers.run`."""
        for task in tasks:
            if task is None:  # all tasks have ended
                return
            first = () if task.shared is None else (task.shared.value,)
            yield Done(task, task.function(*first, *task.arguments), "")
