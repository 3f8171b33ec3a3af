"""Proofs that no placement exists: support, pins, colocation, routes, bytes that must fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.charges import LIMIT_ROUNDING, amount_text
from placewright.core.grouping import unit_text
from placewright.core.problem import Problem
from placewright.core.quantities import format_bytes
from placewright.simulation.behaviours import behaviour_of
from placewright.simulation.bounds.lower import least_amounts
from placewright.simulation.layout import (
    NO_ROUTE,
    all_in_turn,
    copies_in_turn,
    once_per_problem,
    routes,
)

# Relative error of sums of bytes: another order of terms rounds otherwise, and shares of pools add
# up to 1 within 1e-9.
MEMORY_ROUNDING = 2e-9
_VANISHING = 1e-12  # seconds over those of a whole run; adding them may change nothing
_MOST_SETS_OF_DEVICES = 64  # that are tried; those of few devices first


@once_per_problem  # every placer asks again
def prove_infeasible(problem: Problem) -> str | None:
    """The shortest proof that no placement keeps the constraints, or None if none was found.

    Tried in this order, so that the first one that holds concerns the fewest ops and devices:

    1. an op is pinned to a device that cannot run it;
    2. ops that must share a device have none in common;
    3. the weights, inputs and outputs of one op fit on none of its devices;
    4. nor do the weights of ops that must share a device with inputs and outputs of one of them;
    5. no device of an op has a route to one of its reader's, or to or from the host;
    6. ops that are left with the same few devices (at last: all ops with all devices) keep more
       bytes resident, with inputs and outputs of one of them, than these devices hold;
    7. a lower bound on latency, energy or price is above its limit.

    A problem without such a proof may still have no placement. Inputs and outputs count under
    `event`, of units that take time, and under `max-load` with samples in flight. Under `subgraph`
    and `subgraph-ip` there are no routes; under `placeto` nothing between 2. and 7. is tried.

    Returns:
        One line that names the op, the device and how many bytes are missing.
    """
    return behaviour_of(problem).why_nothing_fits(problem) or _limit_too_low(problem)


def _limit_too_low(problem: Problem) -> str | None:
    """Name a limit of `core.charges` that is below what every placement takes."""
    for quantity, most in problem.limits.items():
        bounds = least_amounts(problem, problem.charges[quantity])
        least = max(bound.value for bound in bounds)
        if least > most * (1.0 + LIMIT_ROUNDING):
            texts = [amount_text(amount, quantity) for amount in (least, most, least - most)]
            return (
                f"every placement takes {quantity} of at least {texts[0]}, and the limit is "
                f"{texts[1]}: {texts[2]} too low (argument `limits`)"
            )
    return None


@dataclass(frozen=True)
class Proofs:
    """The kinds of proofs that hold under an execution model."""

    bytes_and_routes: bool = True  # anything beyond support, pins and colocation
    routes: bool = True  # tensors need one
    # inputs and outputs of a unit that takes time count beside what stays
    working_sets: bool = False


def proof_of(problem: Problem, proofs: Proofs) -> str | None:
    """The first proof of `prove_infeasible` that applies; `proofs` selects the kinds to try."""
    if _all_fits_everywhere(problem):
        return None
    allowed = problem.allowed_by_class
    nowhere = np.flatnonzero(~allowed.any(axis=1))
    if len(nowhere):
        return _no_common_device(problem, nowhere)
    if not proofs.bytes_and_routes:
        return None
    working = _working_sets(problem, counts=proofs.working_sets)
    if too_large_unit := _unit_too_large(problem, working):
        return too_large_unit
    needed = _needed(problem, working)
    fits = allowed & (needed <= problem.cluster.memory_bytes * (1.0 + MEMORY_ROUNDING))
    too_large = np.flatnonzero(~fits.any(axis=1))
    if len(too_large):
        return _class_too_large(problem, needed, too_large)
    cut_off = _no_route(problem, fits) if proofs.routes else None
    return cut_off or _set_of_devices_too_small(problem, fits, working)


def _all_fits_everywhere(problem: Problem) -> bool:
    """True if every device may run every op beside all weights, and all devices are linked.

    Then no proof can hold, and large problems need no look at each op and device.
    """
    if not problem.allowed_by_class.all() or (routes(problem) == NO_ROUTE).any():
        return False
    graph = problem.unit_graph
    own = np.zeros(problem.n_units)
    for rows in (graph.op_inputs, graph.op_outputs):
        own += np.bincount(
            rows.row_of_each(), graph.tensor_bytes[rows.indices], minlength=problem.n_units
        )
    needed = problem.kept.total + float(own.max(initial=0.0))
    return needed <= float(problem.cluster.memory_bytes.min())


def _working_sets(problem: Problem, *, counts: bool) -> FloatArray:
    """Bytes of all inputs and outputs of each unit together, shape (n_units, n_devices).

    Under `event` a unit that takes no time has no instant at which both are there.
    """
    seconds = problem.costs.seconds
    if not counts:
        return np.zeros(seconds.shape)
    graph = problem.unit_graph
    own = np.zeros(problem.n_units)
    for rows in (graph.op_inputs, graph.op_outputs):
        np.add.at(own, rows.row_of_each(), graph.tensor_bytes[rows.indices])
    longest = all_in_turn(problem) + copies_in_turn(problem)
    return np.where(seconds > _VANISHING * longest, own[:, None], 0.0)


def _needed(problem: Problem, working: FloatArray) -> FloatArray:
    """Weights of each class with its widest unit, shape (colocation.n_groups, n_devices)."""
    widest = np.zeros((problem.colocation.n_groups, problem.n_devices))
    np.maximum.at(widest, problem.colocation.group_of, working)
    return problem.kept.bytes_by_label(problem.colocation.group_of)[:, None] + widest


def _no_common_device(problem: Problem, nowhere: IntArray) -> str:
    for unit in np.flatnonzero(~problem.allowed.any(axis=1)).tolist():
        device = problem.cluster.device_names[int(problem.pinned_device[unit])]
        return f"op '{_name(problem, unit)}' is pinned to '{device}', which cannot run it"
    for group in nowhere.tolist():
        units = problem.colocation.members.row(group)
        patterns, first = np.unique(problem.allowed[units], axis=0, return_index=True)
        apart = np.argwhere(~(patterns[:, None] & patterns[None]).any(axis=2))
        if len(apart):
            a, b = np.sort(units[first[apart[0]]]).tolist()
            return (
                f"op '{_name(problem, a)}' and op '{_name(problem, b)}' must share a device; "
                f"the first may run on {_devices(problem, problem.allowed[a])} only, the second on "
                f"{_devices(problem, problem.allowed[b])}; drop a pin or the colocation"
            )
    units = problem.colocation.members.row(int(nowhere[0]))
    return (
        f"{_who_share_a_device(problem, units)} have no device in common; drop a pin or the "
        "colocation"
    )


def _unit_too_large(problem: Problem, working: FloatArray) -> str | None:
    resident = problem.kept.bytes_by_label(np.arange(problem.n_units))
    needed = resident[:, None] + working
    allowed = problem.allowed_by_class[problem.colocation.group_of]
    unit, device, short = _shortest_of_memory(problem, needed, allowed)
    if short <= MEMORY_ROUNDING * needed[unit, device]:
        return None
    held = "all that it keeps in memory"
    if working[unit, device] > 0:
        held = "its weights, inputs and outputs"
    return (
        f"{unit_text(problem.graph, problem.units, unit)} with {held} "
        f"needs {format_bytes(needed[unit, device])}; the largest device that may run it, "
        f"'{problem.cluster.device_names[device]}', is {format_bytes(short)} short"
    )


def _class_too_large(problem: Problem, needed: FloatArray, too_large: IntArray) -> str:
    allowed = problem.allowed_by_class
    row, device, short = _shortest_of_memory(problem, needed[too_large], allowed[too_large])
    units = problem.colocation.members.row(int(too_large[row]))
    weights = float(problem.kept.bytes_by_label(problem.colocation.group_of)[too_large[row]])
    most = float(needed[too_large[row], device])
    held = "all that they keep in memory"
    if most > weights:
        held = "their weights and the inputs and outputs of one of them"
    return (
        f"{_who_share_a_device(problem, units)} need {format_bytes(most)} for "
        f"{held}; the largest device that may run "
        f"them, '{problem.cluster.device_names[device]}', is {format_bytes(short)} short"
    )


def _shortest_of_memory(
    problem: Problem, needed: FloatArray, allowed: BoolArray
) -> tuple[int, int, float]:
    """The row with the largest shortage on its best device: row, device, bytes (<= 0: it fits)."""
    short = np.where(allowed, needed - problem.cluster.memory_bytes, np.inf)
    row = int(short.min(axis=1).argmax())
    device = int(short[row].argmin())
    return row, device, float(short[row, device])


def _no_route(problem: Problem, fits: BoolArray) -> str | None:
    """Name a tensor that no device of its producer can send to any device of a reader."""
    has_route = routes(problem) != NO_ROUTE
    if has_route.all():
        return None
    graph, host, n_devices = problem.unit_graph, problem.cluster.host_endpoint, problem.n_devices
    fits = fits[problem.colocation.group_of]
    n_routes = fits.astype(float) @ has_route[:n_devices].astype(float)
    reached = np.asarray(n_routes > 0, dtype=np.bool_)  # (n_units, M)
    producers = graph.tensor_producers
    tensors, readers = graph.tensor_consumers.row_of_each(), graph.tensor_consumers.indices
    sources = producers[tensors]
    from_op = reached[np.maximum(sources, 0), :n_devices]
    from_host = has_route[host, :n_devices][None, :]
    meets = (np.where(sources[:, None] >= 0, from_op, from_host) & fits[readers]).any(axis=1)
    for edge in np.flatnonzero(~meets).tolist():
        source, reader = int(sources[edge]), _name(problem, int(readers[edge]))
        if source < 0:
            return f"no device that may run op '{reader}' is reached from the host; add a link"
        return (
            f"no device that may run op '{_name(problem, source)}' has a link, or a way through "
            f"the host, to one that may run op '{reader}'; add a link"
        )
    outputs = np.flatnonzero(graph.tensor_is_output & (producers >= 0))
    for source in producers[outputs].tolist():
        if not reached[source, host]:
            name = _name(problem, source)
            return f"no device that may run op '{name}' reaches the host; add a link"
    return None


def _set_of_devices_too_small(problem: Problem, fits: BoolArray, working: FloatArray) -> str | None:
    """Name a set of devices that cannot hold all ops that are confined to it."""
    kept, classes = problem.kept, problem.colocation
    least = np.where(fits[classes.group_of], working, np.inf).min(axis=1)
    for mask in _sets_of_devices(fits):
        room = problem.cluster.room(mask)
        if np.isinf(room):
            continue
        confined = np.asarray((fits <= mask).all(axis=1), dtype=np.bool_)
        units = confined[classes.group_of]
        held = np.unique(kept.of_units.indices[units[kept.of_units.row_of_each()]])
        resident, widest = float(kept.sizes[held].sum()), float(least[units].max(initial=0.0))
        short = resident + widest - room
        if short > MEMORY_ROUNDING * room:
            working_set = (
                f", and one of them needs {format_bytes(widest)} more for its inputs and outputs"
                if widest > 0
                else ""
            )
            return (
                f"{_ops_confined_to(problem, mask)} keep {format_bytes(resident)} in memory"
                f"{working_set}; "
                f"{_devices(problem, mask)} "
                f"{'is' if mask.sum() == 1 else 'together are'} {format_bytes(short)} short"
                f"{_pools_of(problem, mask)}"
            )
    return None


def _sets_of_devices(fits: BoolArray) -> Iterator[BoolArray]:
    """Sets of devices that a class is confined to, small sets first, then all devices."""
    sets = np.unique(fits, axis=0)
    order = np.argsort(sets.sum(axis=1), kind="stable")[:_MOST_SETS_OF_DEVICES]
    yield from sets[order]
    yield np.ones(fits.shape[1], dtype=np.bool_)


def _name(problem: Problem, unit: int) -> str:
    return problem.unit_graph.op_names[unit]


def _who_share_a_device(problem: Problem, units: IntArray) -> str:
    first, second = (_name(problem, unit) for unit in units[:2].tolist())
    if len(units) == 2:
        return f"op '{first}' and op '{second}', which must share a device,"
    return f"op '{first}' and the {len(units) - 1} ops that must share its device"


def _ops_confined_to(problem: Problem, mask: BoolArray) -> str:
    return "all ops" if mask.all() else f"the ops that only {_devices(problem, mask)} may run"


def _pools_of(problem: Problem, mask: BoolArray) -> str:
    """The pools whose limits count for a set of devices, as a clause; empty without any."""
    devices = problem.cluster.devices
    chosen = np.flatnonzero(mask).tolist()
    used = dict.fromkeys(name for at in chosen for name in devices[at].pool_shares)
    known = [
        f"'{name}' with {format_bytes(problem.cluster.pools[name])}"
        for name in used
        if np.isfinite(problem.cluster.pools[name])
    ]
    return f" (pool {' and '.join(known)})" if known else ""


def _devices(problem: Problem, mask: BoolArray) -> str:
    names = [problem.cluster.device_names[device] for device in np.flatnonzero(mask).tolist()]
    return " and ".join(f"'{name}'" for name in names)
