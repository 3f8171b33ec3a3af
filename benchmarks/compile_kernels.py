"""Compile the kernels that a first `place` needs, so that the demo and tests find them.

python -m benchmarks.compile_kernels
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from placewright.core.execution_models import Event, MaxLoad, Sequential
from placewright.core.problem import Objective
from placewright.placers.portfolio.kernels import make_ready

OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput", "latency")
MODELS = (Event(), MaxLoad(), Sequential())  # the first has more kernels than the others together


def main() -> None:
    """Run the placers of `auto` on small problems; the compiled code stays in the cache."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        list(pool.map(make_ready, OBJECTIVES, MODELS))


if __name__ == "__main__":
    main()
