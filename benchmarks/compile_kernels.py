"""Compile the kernels that a first `place` needs, so that the demo and tests find them.

python -m benchmarks.compile_kernels
"""

from __future__ import annotations

from placewright.core.execution_models import Event
from placewright.placers.portfolio.kernels import make_ready


def main() -> None:
    """Run the placers of `auto` once on a small problem; the compiled code stays in the cache."""
    make_ready("latency", Event())


if __name__ == "__main__":
    main()
