"""Solvers that are asked to stop."""

from __future__ import annotations

import threading

import pytest

from placewright.simulation.interruptible import interruptible


def test_an_interrupt_while_the_work_stops_does_not_ask_again() -> None:
    ended, asked = threading.Event(), []

    def stop() -> None:
        asked.append(1)
        ended.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interruptible(ended.wait, stop=stop, is_over=lambda: True)
    assert len(asked) == 1
