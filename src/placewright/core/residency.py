"""What the bytes of a device stand for under each execution model."""

from __future__ import annotations

from placewright.core.problem import Problem


def memory_counts(problem: Problem) -> str:
    """What a device's bytes are: ``"peak"``, ``"weights only"``, or weights and samples."""
    if counts_weights_only(problem):
        return "weights only"
    if problem.execution_model == "max-load":
        samples = problem.samples_in_flight
        return f"weights and {samples} {'sample' if samples == 1 else 'samples'} in flight"
    return "peak"


def counts_weights_only(problem: Problem) -> bool:
    """True where tensors take no memory: as published, or with no sample in flight."""
    if problem.execution_model == "max-load":
        return problem.samples_in_flight == 0
    return problem.execution_model in ("subgraph", "subgraph-ip")
