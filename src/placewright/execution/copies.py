"""Streams through one copy of the unsplit model per device: a free copy takes the next sample."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from queue import SimpleQueue

from placewright.errors import RuntimeFailure
from placewright.execution.requests import Execution, Outcome, Sample, executions, in_order
from placewright.execution.runner import ConcurrentRunner


class CopyPerDevice:
    """Streams samples through several runners at once. A context manager, as a runner is.

    Args:
        runners: of the unsplit model, each on one device; this object closes them.
        in_flight: most samples that are taken and not yet fetched. None is two for each runner and
            two that wait, of which half are under way: a fast copy goes on while the answer of a
            slow one, which must be fetched first, is not ready.
    """

    def __init__(self, runners: Sequence[ConcurrentRunner], *, in_flight: int | None = None):
        self._runners = tuple(runners)
        self.in_flight = len(self._runners) + 1 if in_flight is None else in_flight
        self._window = 2 * self.in_flight if in_flight is None else in_flight
        if self.in_flight < 1:
            raise ValueError(f"in_flight must be >= 1, got {in_flight}")

    def __enter__(self) -> CopyPerDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def burst(self) -> int:
        """Number of copies: samples finish in groups of so many."""
        return len(self._runners)

    def close(self, timeout: float = 10.0) -> None:
        """End all runners after their present segments.

        Args:
            timeout: seconds to wait for all of them together.
        """
        for runner in self._runners:
            runner.stop()
        deadline = time.monotonic() + timeout
        for runner in self._runners:
            runner.close(max(0.0, deadline - time.monotonic()))

    def run_many(self, samples: Sequence[Sample]) -> list[Execution]:
        """Execute samples; answers in their order.

        Raises:
            RuntimeFailure: a copy failed; the message names it.
        """
        return executions(self.outcomes(samples))

    def outcomes(self, samples: Iterable[Sample]) -> Iterator[Outcome]:
        """Execute samples as they come; yield their executions or failures in order.

        Samples are taken as `ConcurrentRunner.outcomes` takes them. Leaving the loop early closes
        the runners.
        """
        waiting: SimpleQueue[tuple[int, Sample] | None] = SimpleQueue()
        done: SimpleQueue[tuple[int, Outcome]] = SimpleQueue()
        threads = [
            threading.Thread(target=_serve, args=(runner, waiting, done), daemon=True)
            for runner in self._runners
        ]
        for thread in threads:
            thread.start()
        try:
            yield from in_order(
                iter(samples),
                lambda number, sample: waiting.put((number, sample)),
                done.get,
                in_flight=self.in_flight,
                window=self._window,
            )
        except BaseException as error:
            # Samples under way must not outlive the caller, who may not want to wait.
            self.close(1.0 if isinstance(error, KeyboardInterrupt) else 10.0)
            raise
        finally:
            for _ in threads:
                waiting.put(None)


def _serve(
    runner: ConcurrentRunner,
    waiting: SimpleQueue[tuple[int, Sample] | None],
    done: SimpleQueue[tuple[int, Outcome]],
) -> None:
    """Run samples on one device until None comes."""
    while (item := waiting.get()) is not None:
        number, sample = item
        try:
            result = next(iter(list(runner.outcomes([sample]))))
        except BaseException as error:  # goes to the thread that waits for this sample
            result = error if isinstance(error, RuntimeFailure) else RuntimeFailure(str(error))
        done.put((number, result))
