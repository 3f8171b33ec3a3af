"""Start processes at once on one cold cache, then with kernels compiled, all at once and in pairs.

    python scripts/processes_at_once.py [--count 8] [--rounds 3] [-o FILE]

Each process places a model of the zoo on the catalogue's `2gpu` with a fixed number of evaluations,
so that all must give one answer. On an empty cache the first of them compiles the kernels and the
others wait: what all took in processor seconds beyond what they take later is compared with what
one process alone takes more on a cache of its own. Then the time of all at once is measured beside
that of the same processes two at a time, in turn. Writes both and the machine's versions as JSON.
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


@dataclass(frozen=True)
class Batch:
    """Processes that did the same.

    Attributes:
        seconds: from the first start to the last end.
        core_seconds: of all, as the system counts them.
        answers: value and bound of each.
    """

    seconds: float
    core_seconds: float
    answers: tuple[tuple[float, float], ...]


def batch(count: int, at_once: int, cache: Path, scratch: Path) -> Batch:
    """Run `count` processes, at most `at_once` of them at a time."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
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
    alone_cold = batch(1, 1, scratch / "cache of one", scratch)
    told("one on a cold cache", alone_cold)
    alone = batch(1, 1, cache, scratch)
    told("one with compiled kernels", alone)
    ways: dict[int, list[Batch]] = {count: [], PAIR: []}
    for number in range(rounds):
        for at_once in (count, PAIR) if number % 2 == 0 else (PAIR, count):
            ways[at_once].append(batch(count, at_once, cache, scratch))
            told(f"{count}, {at_once} at a time", ways[at_once][-1])
    warm = [one for found in ways.values() for one in found]
    answers = {one for found in (cold, alone_cold, alone, *warm) for one in found.answers}
    if len(answers) != 1:
        raise SystemExit(f"answers differ: {sorted(answers)}")
    more = cold.core_seconds - statistics.median(one.core_seconds for one in warm)
    seconds = {at_once: [one.seconds for one in found] for at_once, found in ways.items()}
    return {
        "format": "placewright.processes-at-once/1",
        "versions": {"python": platform.python_version()},
        "cores": len(os.sched_getaffinity(0)),
        "processes": count,
        "cold_seconds": cold.seconds,
        "compilations": more / (alone_cold.core_seconds - alone.core_seconds),
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
