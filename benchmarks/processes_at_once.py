"""Start processes at once, on a cold cache and with compiled kernels.

    python -m benchmarks.processes_at_once [--count 8] [--rounds 3] [-o FILE]

Each process places a zoo model on the catalogue's `2gpu` with a fixed number of evaluations, so
that all answers must be equal. On an empty cache, the first process that needs a kernel compiles it
and the others wait. Every compilation writes a line, and the program counts kernels that two
processes compiled. Then it measures the time of all processes at once and in pairs, in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACED = ["zoo:inception_v3", "--devices", "catalogue:2gpu", "--seed", "0", "--evaluations", "400"]
PAIR = 2
# Python imports this module at its start, in each process that a batch starts.
NOTING = """
import os
from numba.core import event

class Noting(event.Listener):
    def on_start(self, started):
        name = started.data["dispatcher"].py_func
        if not name.__module__.startswith("placewright"):
            return  # helpers of Numba's own, which whoever needs them compiles
        line = f"{os.getpid()} {name.__module__}.{name.__qualname__} {started.data['args']}"
        handle = os.open(os.environ["NOTED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, " ".join(line.split()).encode() + b"\\n")
        os.close(handle)

    def on_end(self, ended):
        pass

event.register("numba:compile", Noting())
"""


@dataclass(frozen=True)
class Batch:
    """Equal processes.

    Attributes:
        seconds: from the first start to the last end.
        core_seconds: of all processes, by the system.
        answers: value and bound of each process.
    """

    seconds: float
    core_seconds: float
    answers: tuple[tuple[float, float], ...]


def batch(count: int, at_once: int, cache: Path, scratch: Path) -> Batch:
    """Run `count` processes, at most `at_once` of them at a time."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), **noting(scratch)}
    plans = [folder / f"plan{number}.json" for number in range(count)]
    waiting, running = list(plans), dict[int, subprocess.Popen[bytes]]()
    core_seconds, began = 0.0, time.perf_counter()
    while waiting or running:
        while waiting and len(running) < at_once:
            process = start(waiting.pop(0), environment)
            running[process.pid] = process
        pid, status, usage = os.wait4(-1, 0)
        core_seconds += usage.ru_utime + usage.ru_stime
        running.pop(pid).returncode = os.waitstatus_to_exitcode(status)
        if status:
            raise SystemExit(f"a process ended with {os.waitstatus_to_exitcode(status)}")
    seconds = time.perf_counter() - began
    return Batch(seconds, core_seconds, tuple(map(answer, plans)))


def noting(scratch: Path) -> dict[str, str]:
    """Environment of a process that records its compilations."""
    site = scratch / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(NOTING)
    earlier = os.environ.get("PYTHONPATH")
    return {
        "PYTHONPATH": os.pathsep.join([str(site), *([earlier] if earlier else [])]),
        "NOTED": str(scratch / "noted"),
    }


def compiled(scratch: Path) -> dict[str, set[str]]:
    """Kernel with signature -> the processes that compiled it."""
    found: dict[str, set[str]] = {}
    for line in (scratch / "noted").read_text().splitlines():
        process, _, kernel = line.partition(" ")
        found.setdefault(kernel, set()).add(process)
    return found


def start(plan: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "placewright", "place", *PLACED, "--quiet", "-o", str(plan)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def answer(plan: Path) -> tuple[float, float]:
    held = json.loads(plan.read_text())["predicted"]
    return float(held["value"]), float(held["lower_bound"])


def measured(count: int, rounds: int, scratch: Path) -> dict[str, Any]:
    cache = scratch / "cache"
    cold = batch(count, count, cache, scratch)
    told(f"{count} on a cold cache", cold)
    kernels = compiled(scratch)
    (scratch / "noted").write_text("")
    ways: dict[int, list[Batch]] = {count: [], PAIR: []}
    for number in range(rounds):
        for at_once in (count, PAIR) if number % 2 == 0 else (PAIR, count):
            ways[at_once].append(batch(count, at_once, cache, scratch))
            told(f"{count}, {at_once} at a time", ways[at_once][-1])
    warm = [one for found in ways.values() for one in found]
    answers = {one for found in (cold, *warm) for one in found.answers}
    if len(answers) != 1:
        raise SystemExit(f"answers differ: {sorted(answers)}")
    seconds = {at_once: [one.seconds for one in found] for at_once, found in ways.items()}
    return {
        "format": "placewright.processes-at-once/1",
        "versions": {"python": platform.python_version()},
        "cores": len(os.sched_getaffinity(0)),
        "processes": count,
        "cold_seconds": cold.seconds,
        "kernels": len(kernels),
        "compiled_by_two_processes": sum(len(found) > 1 for found in kernels.values()),
        "compiled_later": len(compiled(scratch)),
        "at_once_seconds": seconds[count],
        "in_pairs_seconds": seconds[PAIR],
        "ratio": statistics.median(seconds[count]) / statistics.median(seconds[PAIR]),
        "answers": len(answers),
    }


def told(what: str, found: Batch) -> None:
    sys.stderr.write(f"{what}: {found.seconds:.1f} s, {found.core_seconds:.1f} core-s\n")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="Processes at once on one cache.")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        found = measured(chosen.count, chosen.rounds, Path(scratch))
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    if chosen.output:
        chosen.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
