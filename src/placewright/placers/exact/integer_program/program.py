"""A mixed-integer program as rows and columns."""

from __future__ import annotations

from dataclasses import dataclass, field

from placewright.core.arrays import BoolArray, FloatArray


@dataclass
class Rows:
    """Constraints low <= sum of coefficient * column <= high, collected one at a time."""

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, low: float, high: float, columns: list[int], values: list[float]) -> None:
        """Add one constraint; a column that is named twice counts with the sum of its values.

        HiGHS refuses the whole matrix for one row that names a column twice, and then never ends.
        """
        if len(set(columns)) < len(columns):
            merged: dict[int, float] = {}
            for column, value in zip(columns, values, strict=True):
                merged[column] = merged.get(column, 0.0) + value
            columns, values = list(merged), list(merged.values())
        self.low.append(low)
        self.high.append(high)
        self.columns += columns
        self.values += values
        self.starts.append(len(self.columns))


@dataclass(frozen=True, eq=False)
class IntegerProgram:
    """Minimise cost . columns under `rows` with columns in [0, upper].

    Attributes:
        rows: the constraints.
        upper: upper bound of each column, shape (n_columns,); inf is none.
        is_integer: integrality of each column, shape (n_columns,).
        cost: objective coefficients, shape (n_columns,).
    """

    rows: Rows
    upper: FloatArray
    is_integer: BoolArray
    cost: FloatArray

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.upper)
