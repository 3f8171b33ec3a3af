"""A machine that does not change: costs of splitting over two cores that were recorded once.

The record was measured on two cores of a server with OpenVINO's small model; each runtime takes
fifteen seconds to measure. Tests run beside each other, so that a probe would see another machine
from call to call: here it sees nothing, and stored costs stay valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from placewright.core.cluster import Device
from placewright.profiling.evidence import Evidence
from placewright.profiling.store import CostStore
from placewright.session import devices

_RECORD = Path(__file__).parents[1] / "data" / "machine_costs.json"
_TWO_CORES = re.compile(r"\[\('cpu:0', .*\('cpu:1', .*\)\]$")
known_machine_costs = devices.known_machine_costs


def recorded_machine_costs(
    store: CostStore, key: str, probe: Callable[[], Sequence[float]]
) -> Evidence | None:
    """What the store has, or the record for ``cpu:0,cpu:1``; it is never stored."""
    known = known_machine_costs(store, key, probe)
    if known is None and _TWO_CORES.search(key) and key.count("('") == 2:
        return Evidence.of_text(_RECORD.read_text())
    return known


def nothing_seen(_: Sequence[Device]) -> tuple[float, float, float]:
    """The result of a probe that saw nothing, against which no machine has drifted."""
    return (0.0, 0.0, 0.0)


def take_the_record() -> None:
    """Let commands and calls of this process, and of its forks, use the record."""
    devices.known_machine_costs = recorded_machine_costs
    devices.probe = nothing_seen
