"""Budgets: which limits are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from placewright.core.solution import Budget
from placewright.errors import InputError


@pytest.mark.parametrize(
    "limit",
    [
        *({"seconds": "10s"}, {"seconds": 0}, {"core_seconds": "2"}, {"core_seconds": [1]}),
        *({"evaluations": 2.5}, {"evaluations": True}, {"evaluations": "9"}, {"evaluations": 0}),
    ],
)
def test_a_limit_that_is_no_number_of_its_kind_is_refused(limit: dict[str, Any]) -> None:
    (name, value) = next(iter(limit.items()))
    with pytest.raises(InputError, match=f"of {name} >=? [01], got {value!r}".replace("[1]", ".1")):
        Budget(**limit)


def test_numbers_of_numpy_are_limits() -> None:
    budget = Budget(seconds=np.float32(2.0), evaluations=np.int64(9))  # type: ignore[arg-type]
    assert budget.half == Budget(seconds=1.0, evaluations=5)
