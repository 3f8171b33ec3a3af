"""Messages of violations show bytes with units."""

from __future__ import annotations

import re

from placewright.core.placement import Placement
from placewright.simulation.model import Simulator
from placewright.testing.problems import impossible_problem


def test_bytes_in_a_message_have_units() -> None:
    """Op 'large' keeps 100 B and op 'small' 10 B on a device of 60 B."""
    violation = Simulator(impossible_problem()).violation(Placement.on_one_device(2, 0))
    assert violation is not None
    assert violation.excess == 51.0  # with the tensor of 1 B between them
    assert re.search(r"needs 111 B and has 60 B: 51 B short", violation.message)
