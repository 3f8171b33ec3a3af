"""One run of a plan on the hardware, segment by segment, beside its prediction."""

from __future__ import annotations

import numpy as np

from placewright.core.plan import Plan
from placewright.execution.placements import placement_runner
from placewright.execution.runtime import LoadedModel
from placewright.report.trace import SegmentRun, run_trace_text
from placewright.simulation.model import Simulator

_RUNS = 9  # the one of median length is kept


def measured_run(plan: Plan, model: LoadedModel, runs: int = _RUNS) -> tuple[SegmentRun, ...]:
    """Run a plan by its model, and keep the segments of the run of median length."""
    problem = plan.problem
    inputs = model.random_inputs(np.random.default_rng(0))
    found = []
    with placement_runner(problem, plan.placement, model) as runner:
        runner.run(inputs)
        for _ in range(runs):
            seconds = runner.time(1)[0]
            found.append((seconds, runner.last_spans))
        segments = runner.segments
    found.sort(key=lambda one: one[0])
    spans = found[len(found) // 2][1]
    names = problem.graph.op_names
    return tuple(
        SegmentRun(segment.device, tuple(names[op] for op in segment.ops), start, end)
        for segment, (start, end) in zip(segments, spans, strict=True)
    )


def run_trace(plan: Plan, model: LoadedModel) -> str:
    """A Chrome trace of a measured run beside the predicted timeline."""
    timeline = Simulator(plan.problem).timeline(plan.placement)
    return run_trace_text(plan.problem, timeline, measured_run(plan, model))
