"""First hops of two that are under way, in the order of (end, tensor, target)."""

from __future__ import annotations

from placewright.simulation.compiled import inlined, uncounted
from placewright.simulation.event.state import N_RELAYS, State
from placewright.simulation.records import ONE, TWO, ZERO, Record, Records, U


@inlined
def _precedes(one: Record, other: Record) -> bool:
    if one.time != other.time:
        return bool(one.time < other.time)
    if one.tensor != other.tensor:
        return bool(one.tensor < other.tensor)
    return bool(one.target < other.target)


@uncounted
def add_relay(state: State, time: float, tensor: int, target: int) -> None:
    """Add a tensor that reaches the host at `time` and then goes on to `target`."""
    relays, at = state.relays, U(state.counts[N_RELAYS])
    state.counts[N_RELAYS] += 1
    relays[at].time = time
    relays[at].tensor = tensor
    relays[at].target = target
    while at > ZERO:
        above = (at - ONE) >> ONE
        if _precedes(relays[above], relays[at]):
            break
        _swap(relays, above, at)
        at = above


@uncounted
def pop_relay(state: State) -> tuple[float, int, int]:
    """Remove the first: its time, tensor and target."""
    relays = state.relays
    time, tensor, target = relays[ZERO].time, U(relays[ZERO].tensor), U(relays[ZERO].target)
    state.counts[N_RELAYS] -= 1
    size = U(state.counts[N_RELAYS])
    _swap(relays, ZERO, size)
    at = ZERO
    while TWO * at + ONE < size:
        child = TWO * at + ONE
        if child + ONE < size and _precedes(relays[child + ONE], relays[child]):
            child += ONE
        if _precedes(relays[at], relays[child]):
            break
        _swap(relays, at, child)
        at = child
    return time, tensor, target


@inlined
def _swap(relays: Records, one: int, other: int) -> None:
    time, tensor, target = relays[one].time, relays[one].tensor, relays[one].target
    relays[one].time = relays[other].time
    relays[one].tensor = relays[other].tensor
    relays[one].target = relays[other].target
    relays[other].time = time
    relays[other].tensor = tensor
    relays[other].target = target
