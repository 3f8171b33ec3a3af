"""Values after moving a few units of a held placement, bit for bit those of a full evaluation.

Under `max-load` only the sums that a move touches are redone. A change of one device may shift
every later event, so that the other execution models play the whole placement; they cost a full
evaluation and nothing more.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from placewright.core.arrays import BoolArray, IntArray
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.errors import InputError
from placewright.simulation.compiled import compiled
from placewright.simulation.max_load import Loads
from placewright.simulation.max_load_sums import (
    BLOCK,
    LoadTables,
    Sums,
    new_sums,
    sum_all,
    sum_kept,
    sum_tensors,
    sum_units,
)
from placewright.simulation.model import Simulator


class Incremental:
    """A placement without order, and what it would be worth with some units elsewhere.

    Attributes:
        device_of: the placement that is held, shape (n_units,).
        value: its value, inf where it is infeasible.
    """

    def __init__(self, simulator: Simulator, device_of: ArrayLike) -> None:
        self._simulator = simulator
        self.device_of: IntArray = np.array(device_of, dtype=np.int64)
        problem = simulator.problem
        in_range = (self.device_of >= 0) & (self.device_of < problem.n_devices)
        if self.device_of.shape != (problem.n_units,) or not in_range.all():
            raise InputError(
                f"a placement needs {problem.n_units} devices from 0 to {problem.n_devices - 1}"
            )
        seen = self.device_of.view()
        seen.setflags(write=False)  # as kernels take placements
        self._seen = Placement(seen)
        self._sums = None
        if isinstance(problem.execution_model, MaxLoad):
            self._sums = _HeldSums(simulator, self.device_of)
        self.value = self._played()

    def value_after(self, units: ArrayLike, device: int) -> float:
        """Value with `units` on `device`; what is held stays.

        Args:
            units: numbers of units, shape (n,).
            device: number of a device.

        Raises:
            InputError: there is no such unit or device.
        """
        moved = self._checked(units, device)
        before = self.device_of[moved]
        if self._sums is not None:
            value = self._sums.move(moved, np.full(len(moved), device))
            self._sums.undo(moved, before)
            return value
        self.device_of[moved] = device
        try:
            return self._played()
        finally:
            self.device_of[moved] = before

    def move(self, units: ArrayLike, device: int) -> float:
        """Move `units` to `device` for good; the new value.

        Raises:
            InputError: there is no such unit or device.
        """
        moved = self._checked(units, device)
        if self._sums is None:
            self.device_of[moved] = device
            self.value = self._played()
        else:
            self.value = self._sums.move(moved, np.full(len(moved), device))
        return self.value

    def _played(self) -> float:
        """Value of `device_of` as it is now, of which no copy is made."""
        return self._simulator.value(self._seen)

    def _checked(self, units: ArrayLike, device: int) -> IntArray:
        moved = np.array(units, dtype=np.int64, ndmin=1)
        if not 0 <= device < self._simulator.problem.n_devices:
            raise InputError(f"there is no device {device}")
        if len(moved) and not 0 <= moved.min() <= moved.max() < len(self.device_of):
            raise InputError(f"units go from 0 to {len(self.device_of) - 1}, got {moved.tolist()}")
        return moved


class _HeldSums:
    """Sums of `max-load` of one placement, and what is broken in it.

    Args:
        simulator: of the problem.
        device_of: the placement, which moves change.
    """

    def __init__(self, simulator: Simulator, device_of: IntArray) -> None:
        problem = simulator.problem
        self._model: Loads = simulator.max_load
        self._device_of, self._seen = device_of, device_of.view()
        self._seen.setflags(write=False)  # as kernels take placements
        self._allowed = problem.allowed
        self._group_of = problem.colocation.group_of
        self._members = problem.colocation.members
        tables = self._model.tables
        self._sums, self._before = new_sums(tables), new_sums(tables)
        sum_all(tables, self._seen, self._sums)
        self._touched = np.zeros(sum(len(part) for part in self._sums[:3]), dtype=np.bool_)
        units = np.arange(problem.n_units)
        self._is_forbidden = ~self._allowed[units, device_of]
        self._n_forbidden = int(self._is_forbidden.sum())
        self._is_alone = problem.colocation.n_groups == problem.n_units
        self._is_split = np.zeros(problem.colocation.n_groups, dtype=np.bool_)
        if not self._is_alone:
            for group in range(problem.colocation.n_groups):
                self._is_split[group] = self._splits(group)

    def move(self, units: IntArray, devices: IntArray) -> float:
        """Change the placement and all that follows; the value."""
        self._place(units, devices)
        redo(self._model.tables, self._seen, units, self._sums, self._before, self._touched)
        if self._n_forbidden or self._is_split.any():
            return math.inf
        return self._model.value_of(self._sums)[0]

    def undo(self, units: IntArray, before: IntArray) -> None:
        """Take the last move back."""
        self._place(units, before)
        put_back(self._sums, self._before, self._touched)

    def _place(self, units: IntArray, devices: IntArray) -> None:
        self._device_of[units] = devices
        self._n_forbidden -= int(self._is_forbidden[units].sum())
        self._is_forbidden[units] = ~self._allowed[units, devices]
        self._n_forbidden += int(self._is_forbidden[units].sum())
        if not self._is_alone:
            for group in np.unique(self._group_of[units]).tolist():
                self._is_split[group] = self._splits(group)

    def _splits(self, group: int) -> bool:
        devices = self._device_of[self._members.row(group)]
        return bool((devices != devices[0]).any())


@compiled
def redo(
    tables: LoadTables,
    device_of: IntArray,
    units: IntArray,
    sums: Sums,
    before: Sums,
    touched: BoolArray,
) -> None:
    """Sum the blocks anew that moved units touch; keep their earlier rows in `before`.

    Args:
        tables: the problem.
        device_of: (n_units,) after the move.
        units: those that moved.
        sums: of the placement before; after the call of the one in `device_of`.
        before: where rows are kept.
        touched: (n_blocks,) filled with the blocks that were redone: units, tensors, kept entries.
    """
    touched[:] = False
    n_unit_blocks, n_tensor_blocks = len(sums.units), len(sums.tensors)
    for unit in units:
        touched[unit // BLOCK] = True
        for at in range(tables.input_ptr[unit], tables.input_ptr[unit + 1]):
            touched[n_unit_blocks + tables.inputs[at] // BLOCK] = True
        for at in range(tables.output_ptr[unit], tables.output_ptr[unit + 1]):
            touched[n_unit_blocks + tables.outputs[at] // BLOCK] = True
        for at in range(tables.of_units_ptr[unit], tables.of_units_ptr[unit + 1]):
            touched[n_unit_blocks + n_tensor_blocks + tables.of_units[at] // BLOCK] = True
    for index in range(len(touched)):
        if not touched[index]:
            continue
        if index < n_unit_blocks:
            before.units[index] = sums.units[index]
            sum_units(tables, device_of, index, sums)
        elif index < n_unit_blocks + n_tensor_blocks:
            block = index - n_unit_blocks
            before.tensors[block] = sums.tensors[block]
            before.cut_off[block] = sums.cut_off[block]
            sum_tensors(tables, device_of, block, sums)
        else:
            block = index - n_unit_blocks - n_tensor_blocks
            before.kept[block] = sums.kept[block]
            sum_kept(tables, device_of, block, sums)


@compiled
def put_back(sums: Sums, before: Sums, touched: BoolArray) -> None:
    """Restore the rows that `redo` has kept."""
    n_unit_blocks, n_tensor_blocks = len(sums.units), len(sums.tensors)
    for index in range(len(touched)):
        if not touched[index]:
            continue
        if index < n_unit_blocks:
            sums.units[index] = before.units[index]
        elif index < n_unit_blocks + n_tensor_blocks:
            block = index - n_unit_blocks
            sums.tensors[block] = before.tensors[block]
            sums.cut_off[block] = before.cut_off[block]
        else:
            block = index - n_unit_blocks - n_tensor_blocks
            sums.kept[block] = before.kept[block]
