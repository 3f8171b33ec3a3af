"""What splitting costs where nobody measured it: more than it should, so that little is split."""

from __future__ import annotations

from dataclasses import replace

from placewright.core.problem import Problem

# Chosen, not measured, and pessimistic by intent: a split must be worth it on a slow machine, too.
DEFAULT_DISPATCH, DEFAULT_CUT, DEFAULT_CUT_PER_BYTE = 3e-4, 1e-4, 1e-9
DEFAULT_CONTENTION, DEFAULT_ERROR = 1.5, 1.0


def with_default_costs(problem: Problem) -> Problem:
    """The problem where nothing was measured of splitting: a cut costs more than it should."""
    cluster = problem.cluster
    devices = tuple(
        replace(
            device,
            dispatch_seconds=DEFAULT_DISPATCH,
            cut_seconds=DEFAULT_CUT,
            cut_seconds_per_byte=DEFAULT_CUT_PER_BYTE,
        )
        for device in cluster.devices
    )
    domains = sorted({device.memory_domain or "" for device in cluster.devices} - {""})
    contention = {domain: (1.0, DEFAULT_CONTENTION) for domain in domains}
    return replace(
        problem,
        cluster=replace(
            cluster, devices=devices, contention=contention, prediction_error=DEFAULT_ERROR
        ),
    )
