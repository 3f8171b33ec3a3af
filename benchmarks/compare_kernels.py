"""Time the event kernel of two source trees in turn: ``compare_kernels.py BASE/src NEW/src``.

Each tree has its own process, which builds the problems of `benchmarks.kernel` and compiles once.
Then the trees take turns, so that other load of the machine affects both. The program prints the
ratio of processor seconds, new to base, for each round, and the median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

WORKER = """
import statistics, sys, time
import numpy as np
from placewright.core.placement import Placement
from placewright.simulation.model import Simulator
from placewright.suites.suite.runs import random_layered_problem

cases = []
for n_ops in map(int, sys.argv[1].split(",")):
    rng = np.random.default_rng(0)
    problem = random_layered_problem(rng, n_ops, 4, 2)
    simulator = Simulator(problem)
    placements = [Placement.of(rng.integers(0, 4, n_ops)) for _ in range(16)]
    value = simulator.value_and_peaks(placements[0])[0]
    cases.append((simulator, placements))
    print(n_ops, repr(value), flush=True)
print("ready", flush=True)
for line in sys.stdin:
    medians = []
    for simulator, placements in cases:
        samples, spent = [], 0.0
        while len(samples) < 16 or spent < float(line):
            placement = placements[len(samples) % 16]
            began = time.process_time_ns()
            simulator.value_and_peaks(placement)
            samples.append((time.process_time_ns() - began) * 1e-9)
            spent += samples[-1]
        medians.append(repr(statistics.median(samples)))
    print(*medians, flush=True)
"""


class Tree:
    """A source tree and the process that times its kernel."""

    def __init__(self, source: Path, sizes: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, sizes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.values = list(iter(self._line, "ready"))

    def medians(self, seconds: float) -> list[float]:
        """Median processor seconds of an evaluation for each size."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return [float(text) for text in self._line().split()]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a tree's process ended; its error is above")
        return line.strip()


def main() -> None:
    """Take turns and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--sizes", default="1000,10000,100000", help="numbers of ops")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each size in a round")
    asked = parser.parse_args()
    base, new = Tree(asked.base, asked.sizes), Tree(asked.new, asked.sizes)
    if base.values != new.values:
        raise SystemExit(f"the trees give other values: {base.values} and {new.values}")
    rounds = []
    for index in range(asked.rounds):
        pair = [base, new] if index % 2 == 0 else [new, base]
        seconds = {tree: tree.medians(asked.seconds) for tree in pair}
        rounds.append([b / a for a, b in zip(seconds[base], seconds[new], strict=True)])
        sys.stdout.write(" ".join(f"{ratio:.3f}" for ratio in rounds[-1]) + "\n")
        sys.stdout.flush()
    medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
    for size, ratio in zip(asked.sizes.split(","), medians, strict=True):
        sys.stdout.write(f"{size} ops: new over base, median of {asked.rounds}: {ratio:.3f}\n")
    base.close()
    new.close()


if __name__ == "__main__":
    main()
