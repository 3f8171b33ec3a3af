"""What segments cost while time passes: dispatch, and tensors that enter them."""

from __future__ import annotations

from placewright.simulation.compiled import inlined
from placewright.simulation.event.state import N_SEGMENTS, State
from placewright.simulation.event.tables import EventTables
from placewright.simulation.records import NO_INDEX, ONE, ZERO, U


@inlined
def overhead_seconds(tables: EventTables, state: State, index: int, number: int) -> float:
    """Open or join a segment with the unit that a device begins; seconds that it adds.

    A segment begins where none is open or the unit reads what another device made, and is closed
    by a unit that another device reads. A tensor's cut is paid once per copy and segment.
    """
    device, unit = state.devices[index], state.cuts[number]
    seconds = 0.0
    if device.segment == NO_INDEX or unit.reads_remote > ZERO:
        unit.segment = state.counts[N_SEGMENTS]
        state.counts[N_SEGMENTS] += 1
        seconds += tables.devices[index].dispatch
    else:
        unit.segment = device.segment
    device.segment = NO_INDEX if unit.read_remotely > ZERO else U(unit.segment)
    n_units = U(len(state.units))
    for at in range(U(tables.units[number].input), U(tables.units[number + ONE].input)):
        edge = U(tables.input_edges[at])
        tensor = tables.origins[tables.edge_tensors[edge]]
        if tensor.producer == n_units or state.cuts[tensor.producer].segment == unit.segment:
            continue
        copy = U(state.copy_of_edge[edge])
        if state.charged[copy] != unit.segment:
            state.charged[copy] = unit.segment
            table = tables.devices[index]
            seconds += table.cut + tensor.bytes * table.cut_per_byte
            layout = table.layout + tensor.bytes * table.layout_per_byte
            seconds += layout * tensor.has_layout
    return seconds
