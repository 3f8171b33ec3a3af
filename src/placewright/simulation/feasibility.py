"""Proofs that no placement exists: support, pins, colocation, bytes that must fit."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray
from placewright.core.problem import Problem


def prove_infeasible(problem: Problem) -> str | None:
    """The shortest proof that no placement keeps the constraints, or None when none was found.

    Proven are: a colocation class without a common device; a class whose resident bytes with the
    inputs and outputs of one of its units fit on none of its devices; classes that are left with
    one device and do not fit on it together; resident bytes that all devices together cannot hold.
    A problem without such a proof may still have no placement.

    Returns:
        One line that names the op, the device and how many bytes are missing.
    """
    classes, allowed = problem.colocation, problem.allowed_by_class
    nowhere = np.flatnonzero(~allowed.any(axis=1))
    if len(nowhere):
        return _no_common_device(problem, int(nowhere[0]))
    if problem.execution_model == "placeto":
        return None
    memory = problem.cluster.memory_bytes
    needed = resident_bytes_of_classes(problem) + _largest_working_set(problem)
    fits = allowed & (needed[:, None] <= memory[None, :])
    too_large = np.flatnonzero(~fits.any(axis=1))
    if len(too_large):
        largest = np.where(allowed, memory[None, :], -np.inf).max(axis=1)
        group = int(too_large[np.argmax((needed - largest)[too_large])])
        device = int(np.argmax(np.where(allowed[group], memory, -np.inf)))
        short = needed[group] - memory[device]
        return (
            f"op '{_name(problem, int(classes.members.row(group)[0]))}' with its weights, inputs "
            f"and outputs{_others(problem, group)} needs {needed[group]:.0f} B; the largest device "
            f"that may run it, '{problem.cluster.devices[device].name}', is {short:.0f} B short"
        )
    return _forced_too_large(problem, fits) or _total_too_large(problem)


def resident_bytes_of_classes(problem: Problem) -> FloatArray:
    """Bytes of the distinct weights of each colocation class, shape (colocation.n_groups,)."""
    weights, classes = problem.unit_graph.op_weights, problem.colocation
    n_weights = max(1, len(problem.unit_graph.weight_bytes))
    keys = np.unique(classes.group_of[weights.row_of_each()] * n_weights + weights.indices)
    sizes = problem.unit_graph.weight_bytes[keys % n_weights]
    return np.asarray(np.bincount(keys // n_weights, sizes, minlength=classes.n_groups), float)


def _largest_working_set(problem: Problem) -> FloatArray:
    """Bytes that the widest unit of each class needs for inputs and outputs at once."""
    copies = {"event": 1.0, "max-load": float(problem.samples_in_flight)}
    factor = copies.get(problem.execution_model, 0.0)
    graph, classes = problem.unit_graph, problem.colocation
    own = np.zeros(problem.n_units)
    for rows in (graph.op_inputs, graph.op_outputs):
        np.add.at(own, rows.row_of_each(), graph.tensor_bytes[rows.indices])
    largest = np.zeros(classes.n_groups)
    np.maximum.at(largest, classes.group_of, own * factor)
    return largest


def _no_common_device(problem: Problem, group: int) -> str:
    units = problem.colocation.members.row(group)
    for unit in units.tolist():
        pinned = int(problem.pinned_device[unit])
        if pinned >= 0 and not np.isfinite(problem.costs.seconds[unit, pinned]):
            device = problem.cluster.devices[pinned].name
            return f"op '{_name(problem, unit)}' is pinned to '{device}', which cannot run it"
    return (
        f"op '{_name(problem, int(units[0]))}' and the {len(units) - 1} ops that must share its "
        "device have no device in common; drop a pin or the colocation"
    )


def _forced_too_large(problem: Problem, fits: BoolArray) -> str | None:
    """Classes with one device left that exceed it together."""
    weights, classes = problem.unit_graph.op_weights, problem.colocation
    sizes = problem.unit_graph.weight_bytes
    forced = np.where(fits.sum(axis=1) == 1, fits.argmax(axis=1), -1)
    device_of_entry = forced[classes.group_of[weights.row_of_each()]]
    for device, spec in enumerate(problem.cluster.devices):
        held = np.unique(weights.indices[device_of_entry == device])
        short = float(sizes[held].sum()) - spec.memory_bytes
        if short > 0:
            return (
                f"the ops that only '{spec.name}' may run keep {sizes[held].sum():.0f} B resident; "
                f"'{spec.name}' is {short:.0f} B short"
            )
    return None


def _total_too_large(problem: Problem) -> str | None:
    used = np.unique(problem.unit_graph.op_weights.indices)
    total = float(problem.unit_graph.weight_bytes[used].sum())
    short = total - float(problem.cluster.memory_bytes.sum())
    if short <= 0:
        return None
    return f"{total:.0f} B stay resident; all devices together are {short:.0f} B short"


def _name(problem: Problem, unit: int) -> str:
    return problem.unit_graph.op_names[unit]


def _others(problem: Problem, group: int) -> str:
    n_others = len(problem.colocation.members.row(group)) - 1
    return f", and {n_others} ops that share its device," if n_others else ""
