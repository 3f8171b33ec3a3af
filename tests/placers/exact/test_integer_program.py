"""The solver of integer programs: optima of small programs, found by hand, and silence."""

from __future__ import annotations

import numpy as np
import pytest
from testing.proof_campaign import Tally, look_at

from placewright.placers.exact.integer_program import IntegerProgram, Rows, solve


def a_gap_and_a_size() -> tuple[IntegerProgram, float]:
    """gap + x = 3, x <= t, x >= 0.45 and whole: no gap if x = t = 3."""
    rows = Rows()
    rows.add(3.0, 3.0, [0, 1], [1.0, 1.0])
    rows.add(-np.inf, 0.0, [1, 2], [1.0, -1.0])
    rows.add(0.45, 3.0, [1], [1.0])
    upper = np.array([np.inf, 3.0, np.inf])
    return IntegerProgram(
        rows, upper, np.array([False, True, False]), np.array([100, 0, 0.01])
    ), 0.03


def a_slot_for_one_of_two() -> tuple[IntegerProgram, float]:
    """Columns x0, x1 (whole), z0, z1, d0, d1: who gets the slot loses nothing; 10 d0 + 8 d1."""
    rows = Rows()
    for at in (0, 1):
        rows.add(-np.inf, 0.0, [2 + at, at], [1.0, -1000.0])
        rows.add(1000.0, 1000.0, [2 + at, 4 + at], [1.0, 1.0])
    rows.add(-np.inf, 1.0, [0, 1], [1.0, 1.0])
    upper = np.array([1.0, 1.0, *[1000.0] * 4])
    cost = np.array([0.0, 0.0, 0.0, 0.0, 10.0, 8.0])
    return IntegerProgram(rows, upper, np.arange(6) < 2, cost), 8000.0


def half_a_unit() -> tuple[IntegerProgram, float]:
    """x + z >= 4.5 with z whole, 2 x + 3 z: all of it by x."""
    rows = Rows()
    rows.add(4.5, np.inf, [0, 1], [1.0, 1.0])
    cost = np.array([2.0, 3.0])
    return IntegerProgram(rows, np.full(2, 10.0), np.array([False, True]), cost), 9.0


@pytest.mark.parametrize("make", [a_gap_and_a_size, a_slot_for_one_of_two, half_a_unit])
def test_optima_by_hand(make: object, capfd: pytest.CaptureFixture[str]) -> None:
    program, best = make()  # type: ignore[operator]
    for presolve in (True, False):
        found = solve(program, presolve=presolve)
        assert found.columns is not None
        assert program.cost @ found.columns == pytest.approx(best)
        assert found.lower_bound == pytest.approx(best, rel=1e-6, abs=3e-6)
        assert found.lower_bound <= best * (1 + 1e-9)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("seed", [7036, 7163])
def test_claims_about_problems_of_the_campaign_are_true(seed: int) -> None:
    """In the first HiGHS rounds a bound of 0 to 1.5e-14.

    In the second, versions before 1.16 call a value of 17.25 optimal where 15.25 exists.
    """
    tally = Tally()
    look_at("sequential", seed, tally, ("sequential-ip",))
    assert tally.faults == []
    assert tally.counts["sequential-ip"]["problems"] == 1


def test_values_within_the_solvers_cut_off_are_not_proven() -> None:
    """HiGHS may leave out what is better by less than 1e-6, and then repeats its own value."""
    rows = Rows()
    rows.add(1.0, np.inf, [0, 1], [1.0, 1.0])
    program = IntegerProgram(rows, np.ones(2), np.ones(2, dtype=np.bool_), np.array([3e-7, 1e-7]))
    for presolve in (True, False):
        assert solve(program, presolve=presolve).lower_bound <= 1e-7


def test_a_coefficient_that_the_solver_refuses_proves_nothing() -> None:
    rows = Rows()
    rows.add(1.0, np.inf, [0, 1], [1e18, 1.0])
    program = IntegerProgram(rows, np.ones(2), np.ones(2, dtype=np.bool_), np.ones(2))
    found = solve(program)
    assert found.columns is None
    assert found.lower_bound == -np.inf
    assert not found.is_infeasible
