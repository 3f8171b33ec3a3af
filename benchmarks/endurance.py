"""Does a process leak memory or handles while it runs a plan and places in a loop?"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.command import ResultsIfAny, run
from benchmarks.resident import Resident, resident
from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import print_json, print_line, print_note
from placewright.errors import AnswerError, InputError, PlacewrightError
from placewright.session.request import Request
from placewright.session.session import Session

TOLERANCE = 0.02
_LEAST_LOOKS = 8
_PROCESS = Path("/proc/self")


@dataclass(frozen=True)
class Look:
    """Resources of the process at a moment between two runs and two placements.

    Attributes:
        seconds: since the start.
        runs, placements: finished so far.
        resident_bytes: resident memory.
        peak_bytes: peak of the resident memory so far.
        handles: number of open files.
        threads: number of threads.
        where: location of the memory.
    """

    seconds: float
    runs: int
    placements: int
    resident_bytes: int
    peak_bytes: int
    handles: int
    threads: int
    where: Resident


@dataclass(frozen=True)
class Endurance:
    """All looks at a process, and their verdict.

    Attributes:
        looks: in order of time.
    """

    looks: tuple[Look, ...]

    @property
    def growth(self) -> float:
        """Largest memory of the second half relative to that of the second quarter, minus 1.

        In the first quarter, caches, compiled kernels and allocators grow once.
        """
        return self._over_second_quarter("resident_bytes")

    @property
    def peak_growth(self) -> float:
        """`growth` of the peaks, which contain temporary memory of runs and placements."""
        return self._over_second_quarter("peak_bytes")

    @property
    def more_handles(self) -> int:
        """Fewest open files of the last quarter minus the most of the second; at least 0."""
        most = max(look.handles for look in self._quarter(1))
        return max(0, min(look.handles for look in self._quarter(3)) - most)

    @property
    def more_threads(self) -> int:
        """`more_handles` of threads."""
        most = max(look.threads for look in self._quarter(1))
        return max(0, min(look.threads for look in self._quarter(3)) - most)

    @property
    def holds(self) -> bool:
        """Whether memory is flat within 2 % and no handle or thread leaks."""
        return self.growth <= TOLERANCE and not self.more_handles and not self.more_threads

    def _over_second_quarter(self, field: str) -> float:
        later = self.looks[2 * (len(self.looks) // 4) :]
        most = max(getattr(look, field) for look in self._quarter(1))
        return float(max(getattr(look, field) for look in later) / most - 1.0)

    def _quarter(self, number: int) -> tuple[Look, ...]:
        size = len(self.looks) // 4
        return self.looks[number * size : (number + 1) * size]


def run_endurance(
    model: str,
    minutes: float,
    *,
    devices: str = "cpu:0,cpu:1",
    runtime: str | None = None,
    look_seconds: float = 5.0,
    on_look: Callable[[Look], None] = lambda look: None,
) -> Endurance:
    """Run a plan of a model in a loop in one thread, and place the model in another.

    Args:
        model: path or zoo name.
        minutes: duration.
        devices: of the plan.
        runtime: for the plan.
        look_seconds: time between two looks at the process.
        on_look: called with each look.

    Raises:
        InputError: the system has no data about processes, or the time is too short.
        AnswerError: a run has other outputs than the first run.
    """
    if not (_PROCESS / "smaps").exists():
        raise InputError("this system has no /proc, which tells what a process holds")
    if minutes * 60.0 < _LEAST_LOOKS * look_seconds:
        raise InputError(f"{minutes:g} minutes are too short; take {look_seconds * 8 / 60:.1f}")
    said: dict[str, Any] = {"devices": devices, "runtime": runtime, "quick": True}
    _load_libraries(model, said)
    plan = Session(model, **said).place()
    loop = _Loop(Session(model, **said), plan)
    began, placements, looks = time.monotonic(), 0, list[Look]()
    loop.start()
    try:
        while (now := time.monotonic() - began) < minutes * 60.0 and loop.error is None:
            if now >= len(looks) * look_seconds:
                with loop.between_runs():
                    looks.append(_look(now, loop.runs, placements))
                on_look(looks[-1])
            Session(model, budget=0.2, seed=placements, **said).place()
            placements += 1
    finally:
        loop.stop.set()
        loop.join()
    if loop.error is not None:
        raise loop.error
    if len(looks) < _LEAST_LOOKS:
        raise AnswerError(f"only {len(looks)} looks were had in {minutes:g} minutes; take more")
    return Endurance(tuple(looks))


def _load_libraries(model: str, said: Mapping[str, Any]) -> None:
    """Place once with the member of `auto` that imports the largest libraries.

    OR-tools and its imports take 48 MiB. On a busy machine, a search may import them for the first
    time after an hour, which would look like growth.
    """
    with contextlib.suppress(PlacewrightError):
        Session(model, placer="cp-sat", budget=1.0, **said).place()


class _Loop(threading.Thread):
    """Runs a plan until it is stopped, and compares each run with the first."""

    def __init__(self, session: Session, plan: Any) -> None:
        super().__init__(daemon=True)
        self._session, self._plan = session, plan
        self.stop = threading.Event()
        self.runs = 0
        self.error: Exception | None = None
        self._next, self._running = threading.Lock(), threading.Lock()

    def run(self) -> None:
        try:
            first = self._outputs()
            while not self.stop.is_set():
                for found, expected in zip(self._outputs(), first, strict=True):
                    if not np.allclose(found, expected, rtol=1e-3, atol=1e-4, equal_nan=True):
                        raise AnswerError(f"run {self.runs} gave other outputs than the first")
        except Exception as error:  # raised again in the thread that waits
            self.error = error

    @contextlib.contextmanager
    def between_runs(self) -> Iterator[None]:
        """Wait for the end of a run and stop the next: its tensors are not growth."""
        with self._next, self._running:
            yield

    def _outputs(self) -> list[Any]:
        with self._next:
            self._running.acquire()
        try:
            found = self._session.run(self._plan)
        finally:
            self._running.release()
        self.runs += 1
        assert isinstance(found, list)
        return [np.array(value) for value in found]


def _look(seconds: float, runs: int, placements: int) -> Look:
    where = resident()
    return Look(
        seconds=round(seconds, 1),
        runs=runs,
        placements=placements,
        resident_bytes=where.bytes,
        peak_bytes=_peak_bytes(),
        handles=len(list((_PROCESS / "fd").iterdir())),
        threads=len(list((_PROCESS / "task").iterdir())),
        where=where,
    )


def _peak_bytes() -> int:
    status = (_PROCESS / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


@command("devices", "runtime", model=None, devices="cpu:0,cpu:1")
def endurance(
    request: Request,
    model: Annotated[str, typer.Option(help="A model file, or zoo:NAME.")] = "zoo:resnet50",
    minutes: Annotated[float, typer.Option(help="How long.")] = 60.0,
    results: ResultsIfAny = None,
    as_json: opt.Json = False,
) -> None:
    """Run a plan and place in a loop in one process; memory must stay flat within 2 %."""
    import json

    from placewright.core.quantities import format_bytes
    from placewright.io.written import write_text

    found = run_endurance(
        model,
        minutes,
        devices=request.devices or "cpu:0,cpu:1",
        runtime=request.runtime,
        on_look=lambda look: print_note(
            f"{look.seconds:.0f} s: {look.runs} runs, {look.placements} placements, "
            f"{format_bytes(look.resident_bytes)}, {look.handles} files, {look.threads} threads; "
            f"{_parts(look)}"
        ),
    )
    last = found.looks[-1]
    summary = {
        "model": model, "minutes": minutes, "runs": last.runs, "placements": last.placements,
        "memory_growth": found.growth, "peak_growth": found.peak_growth,
        "more_handles": found.more_handles, "more_threads": found.more_threads,
        "holds": found.holds,
    }  # fmt: skip
    if results is not None:
        document = {**summary, "looks": [asdict(look) for look in found.looks]}
        write_text(results, json.dumps(document, indent=1) + "\n")
    if as_json:
        print_json(summary)
    else:
        print_line(
            f"{last.runs} runs and {last.placements} placements: memory {found.growth:+.1%}, "
            f"its peak {found.peak_growth:+.1%}, "
            f"{found.more_handles} more open files, {found.more_threads} more threads"
        )
    if not found.holds:
        raise typer.Exit(1)


def _parts(look: Look) -> str:
    """The locations of the memory as a line."""
    from placewright.core.quantities import format_bytes

    where = look.where
    parts = {
        "files": where.file_bytes, "heap": where.heap_bytes,
        f"{where.arenas} arenas": where.arena_bytes, "other": where.other_bytes,
        "used": where.used_bytes, "free": where.free_bytes,
    }  # fmt: skip
    return ", ".join(f"{name} {format_bytes(held)}" for name, held in parts.items())


if __name__ == "__main__":
    run(endurance)
