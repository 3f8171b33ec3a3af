"""The max-load integer program of Tarnawski et al. 2020 as rows and columns.

Columns: x[v, d] item v on device d; in[t, d] and out[t, d] tensor t received, sent by device d;
the loads' maximum T (forward and backward apart where phases split); with contiguity z[v, d].
A processor that devices share has the sum of their loads. With a limit on a price, rent[p] is how
long processor p is paid for: T if a device on it runs an item.

`first_devices` breaks the symmetry of interchangeable devices; `max_load_limits` replaces the
objective by a limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewright.core.arrays import BoolArray, Csr, FloatArray, IntArray
from placewright.core.charges import LIMIT_ROUNDING, Charges
from placewright.core.execution_models import splits_phases
from placewright.core.problem import Problem
from placewright.placers.exact.integer_program import IntegerProgram, Narrowing, ProgramBuilder
from placewright.placers.pipelines.ideals.load_model import (
    AT_HOST,
    FROM_HOST,
    LoadModel,
    load_model_of,
)
from placewright.simulation.evaluator import Evaluator

_Terms = list[tuple[IntArray, FloatArray]]  # columns, -1 for none, and their coefficients


@dataclass(frozen=True, eq=False)
class MaxLoadProgram:
    """The program over a subset of the devices."""

    program: IntegerProgram  # rows and columns
    # column of x[v, d], -1 if the item may not be there; shape (n_items, n_devices)
    placed: IntArray


def max_load_program(
    model: LoadModel,
    *,
    successors: Csr | None = None,
    split_phases: bool = False,
    may_be: BoolArray | None = None,
    longest: float = math.inf,
) -> MaxLoadProgram:
    """Build the program.

    Args:
        model: what items cost.
        successors: precedence among items; given, every device's set must be contiguous.
        split_phases: minimise max forward + max backward load.
        may_be: where each item may be beyond what the model allows, shape (n_items, n_devices).
        longest: value above which no solution is worth finding, in seconds.
    """
    return _Builder(model, split_phases, may_be, longest).build(successors)


class _Builder(ProgramBuilder):
    """Numbers the columns block by block and adds the rows."""

    def __init__(
        self, model: LoadModel, split_phases: bool, may_be: BoolArray | None, longest: float
    ) -> None:
        super().__init__()
        self.model, self.split_phases = model, split_phases
        self.longest = min(longest, _everything(model))
        self.kinds = model.kind_of
        self.n_devices = len(self.kinds)
        allowed = np.isfinite(model.seconds[self.kinds]).T
        if may_be is not None:
            allowed = allowed & may_be
        self.placed = self.columns(allowed, is_integer=True)
        self.by_device: dict[int, tuple[list[int], list[float]]] = {}  # of `_kept_on`

    def build(self, successors: Csr | None) -> MaxLoadProgram:
        """All blocks in turn."""
        model = self.model
        peak = [self.column(np.inf, 1.0) for _ in range(2 if self.split_phases else 1)]
        for item in range(model.n_items):
            columns = self.placed[item][self.placed[item] >= 0].tolist()
            self.rows.add(1.0, 1.0, columns, [1.0] * len(columns))
        received, sent = self._transfers()
        for device in range(self.n_devices):
            self._load([device], peak, received, sent)
            self._memory(device)
        for processor in range(model.users.n_rows):
            self._load(model.users.row(processor).tolist(), peak, received, sent)
        for charges, most in model.limits:
            self._limit(charges, most, peak)
        for pool in range(len(model.pool_bytes)):
            self._pool(pool)
        if successors is not None:
            for device in range(self.n_devices):
                self._contiguity(device, successors)
        return MaxLoadProgram(self.program(), self.placed)

    def _transfers(self) -> tuple[IntArray, IntArray]:
        """in[t, d] >= x[c, d] - x[p, d], out[t, d] >= x[p, d] - x[c, d] for every consumer c."""
        model = self.model
        receive, send = model.receive[self.kinds].T, model.send[self.kinds].T
        received = self.columns((receive > 0) & ~self._is_always()[:, None])
        for tensor in np.flatnonzero(self._is_always()).tolist():
            received[tensor] = self.placed[int(model.consumers.row(tensor)[0])]
        sent = self.columns((send > 0) & (model.producers != FROM_HOST)[:, None])
        for tensor, producer in enumerate(model.producers.tolist()):
            for device in range(self.n_devices):
                home = int(self.placed[producer, device]) if producer >= 0 else -1
                into, out = int(received[tensor, device]), int(sent[tensor, device])
                for consumer in model.consumers.row(tensor).tolist():
                    if producer == FROM_HOST and into == int(self.placed[consumer, device]):
                        continue
                    there = int(self.placed[consumer, device])
                    if into >= 0 and there >= 0:
                        self._difference(into, there, home)
                    if out >= 0 and home >= 0:
                        self._difference(out, home, there)
                    elif out >= 0 and producer == AT_HOST:  # only the host has a price to send it
                        columns = [out] if there < 0 else [out, there]
                        self.rows.add(1.0, np.inf, columns, [1.0] * len(columns))
        return received, sent

    def _is_always(self) -> BoolArray:
        """Tensors from the host that one item reads: they come with it, shape (n_tensors,)."""
        single = np.diff(self.model.consumers.indptr) == 1
        return np.asarray((self.model.producers == FROM_HOST) & single)

    def _difference(self, flag: int, positive: int, negative: int) -> None:
        """flag >= positive - negative; a negative of -1 is 0."""
        if negative >= 0:
            self.rows.add(0.0, np.inf, [flag, positive, negative], [1.0, -1.0, 1.0])
        else:
            self.rows.add(0.0, np.inf, [flag, positive], [1.0, -1.0])

    def _load(
        self, devices: list[int], peak: list[int], received: IntArray, sent: IntArray
    ) -> None:
        """Compute plus transfers (or each on its own, where they overlap) <= T, by phase.

        Devices that share a processor, where none overlaps, have one sum.
        """
        model, kinds = self.model, self.kinds[devices]
        tensor_phase = np.where(model.is_forward, 0, len(peak) - 1)
        for phase in range(len(peak)):
            compute, transfers = _Terms(), _Terms()
            moved = tensor_phase == phase
            for device, kind in zip(devices, kinds.tolist(), strict=True):
                compute.append((self.placed[:, device], self._seconds(kind)[phase]))
                into, out = (np.where(moved, of[:, device], -1) for of in (received, sent))
                transfers += [(into, np.maximum(model.receive[kind], 0.0)), (out, model.send[kind])]
                transfers += self._returned(device, moved)
            groups = [compute, transfers]
            if not model.overlaps[kinds].any():
                groups = [[*compute, *transfers]]
            standing = model.standing[:, kinds].sum(axis=1)
            base = float(standing[phase] if self.split_phases else standing.sum())
            own = float(np.minimum(model.receive[kinds][:, moved], 0.0).sum())
            # `_returned` has the outputs: what is left of them here is rounding, and no load.
            base = max(base + own - LIMIT_ROUNDING * base, 0.0)
            for group in groups:
                row = np.zeros(len(self.upper))
                for numbers, amounts in group:
                    used = np.flatnonzero((numbers >= 0) & (amounts != 0))
                    np.add.at(row, numbers[used], -amounts[used])
                row[peak[phase]] = 1.0
                columns = np.flatnonzero(row)
                low = 0.0 if group is compute else base
                self.rows.add(low, np.inf, columns.tolist(), row[columns].tolist())

    def _returned(self, device: int, moved: BoolArray) -> _Terms:
        """Columns and seconds of the graph outputs that other devices send to a device.

        The load model has them all in `standing` and takes off those of the device's own items. In
        a row that difference would be lost in the rounding of outputs that outlast the load.
        """
        prices, consumers = self.model.receive[self.kinds[device]], self.model.consumers
        tensors = np.flatnonzero(moved & (prices < 0.0))
        items = consumers.indices[consumers.indptr[tensors]]
        elsewhere = np.delete(self.placed, device, axis=1)[items]
        return [(columns, -prices[tensors]) for columns in elsewhere.T]

    def _seconds(self, kind: int) -> list[FloatArray]:
        """Seconds of each item on a device of a kind, by phase."""
        model = self.model
        total = np.where(np.isfinite(model.seconds[kind]), model.seconds[kind], 0.0)
        if not self.split_phases:
            return [total]
        forward = np.minimum(model.forward_seconds[kind], total)
        return [forward, total - forward]

    def _limit(self, charges: Charges, most: float, peak: list[int]) -> None:
        """Add the row of a limit: charges of items, and rates times T and times rents."""
        placed = self.placed >= 0
        terms = list(zip(self.placed[placed].tolist(), charges.own[placed].tolist(), strict=True))
        terms += [(column, charges.always) for column in peak]
        for processor in np.flatnonzero(charges.used).tolist():
            rent = self._rent(charges.users[processor], peak)
            terms.append((rent, float(charges.used[processor])))
        terms = [(column, value / most) for column, value in terms if value > 0]
        columns, values = [column for column, _ in terms], [value for _, value in terms]
        self.rows.add(-np.inf, 1.0 + LIMIT_ROUNDING, columns, values)

    def _rent(self, devices: BoolArray, peak: list[int]) -> int:
        """The column of how long a processor is paid for: at least T if a device runs an item."""
        rent, items, longest = self.column(np.inf), self.placed[:, devices], self.longest
        used = self.any_of(items[items >= 0].tolist())
        self.rows.add(-longest, np.inf, [rent, used, *peak], [1.0, -longest, *(-1.0 for _ in peak)])
        return rent

    def _memory(self, device: int) -> None:
        """Resident bytes fit; a shared weight has a column that every item keeping it raises."""
        model = self.model
        limit = float(model.memory[self.kinds[device]])
        if not np.isfinite(limit) or model.weight_bytes.sum() <= limit:
            return
        columns, sizes = self._kept_on(device)
        self.rows.add(-np.inf, 1.0, columns, [size / limit for size in sizes])

    def _pool(self, pool: int) -> None:
        """Add the row of a memory pool: the bytes that its devices keep fit into it."""
        model, columns, values = self.model, list[int](), list[float]()
        limit = float(model.pool_bytes[pool])
        for device, kind in enumerate(self.kinds.tolist()):
            if model.pool_shares[pool, kind] > 0:
                share = float(model.pool_shares[pool, kind]) / max(limit, 1.0)
                kept, sizes = self._kept_on(device)
                columns += kept
                values += [size * share for size in sizes]
        if columns:
            self.rows.add(-np.inf, limit / max(limit, 1.0), columns, values)

    def _kept_on(self, device: int) -> tuple[list[int], list[float]]:
        """Columns and bytes of all weights that a device may keep, made once."""
        if device not in self.by_device:
            sizes = self.model.weight_bytes
            users = self.model.weights.transposed(len(sizes))
            self.by_device[device] = self.kept(users, sizes, self.placed[:, device])
        return self.by_device[device]

    def _contiguity(self, device: int, successors: Csr) -> None:
        """z[v] >= x[v] for each item v, and the rows of each edge."""
        reach = [self.column(1.0) for _ in range(self.model.n_items)]
        for item in range(self.model.n_items):
            here = int(self.placed[item, device])
            if here >= 0:
                self.rows.add(0.0, np.inf, [reach[item], here], [1.0, -1.0])
            for target in successors.row(item).tolist():
                there = int(self.placed[target, device])
                self.rows.add_reach((reach[item], reach[target]), (here, there))


def first_devices(model: LoadModel) -> BoolArray:
    """Devices that each item may use when devices of a kind are numbered by their costliest item.

    Of the items in falling order of cost, the j-th (from 0) is on one of the first j + 1 devices
    of whichever kind it is on. Every placement has a twin like that: see `relabelled`.

    Returns:
        shape (n_items, n_devices).
    """
    may_be = np.ones((model.n_items, len(model.kind_of)), dtype=np.bool_)
    ranked = _by_cost(model)
    for kind in range(model.n_kinds):
        devices = np.flatnonzero(model.kind_of == kind)
        for rank, item in enumerate(ranked[: len(devices)].tolist()):
            may_be[item, devices[rank + 1 :]] = False
    return may_be


def relabelled(model: LoadModel, device_of: IntArray) -> IntArray:
    """Exchange equal devices so that `first_devices` allows the placement; shape (n_items,)."""
    free = [np.flatnonzero(model.kind_of == kind).tolist() for kind in range(model.n_kinds)]
    new_name = np.full(len(model.kind_of), -1, dtype=np.int64)
    for item in _by_cost(model).tolist():
        device = int(device_of[item])
        if new_name[device] < 0:
            new_name[device] = free[int(model.kind_of[device])].pop(0)
    return new_name[device_of]


def _by_cost(model: LoadModel) -> IntArray:
    """Items in falling order of their least seconds."""
    return np.argsort(-model.seconds.min(axis=0), kind="stable").astype(np.int64)


def max_load_limits(
    problem: Problem, evaluator: Evaluator, solver: Callable[[float], Any]
) -> Narrowing:
    """Make the `Narrowing` of a problem whose transfers do not depend on the other end.

    Args:
        problem: of execution model `max-load`.
        evaluator: values placements; takes the balanced load as a first bound.
    """
    model = load_model_of(problem, problem.colocation)
    evaluator.offer_bound(model.area_bound, "balanced load")
    longest = min(_everything(model), evaluator.best_value)
    program = max_load_program(
        model,
        split_phases=splits_phases(problem.execution_model),
        may_be=first_devices(model),
        longest=longest,
    )

    def decode(columns: FloatArray) -> IntArray:
        values = np.where(program.placed >= 0, columns[program.placed], -1.0)
        return problem.colocation.expand(values.argmax(axis=1))

    return Narrowing(lambda _: (program.program, decode), longest, evaluator, solver)


def _everything(model: LoadModel) -> float:
    """An upper bound on every load, in seconds; devices of one processor may all move a tensor."""
    compute = np.where(np.isfinite(model.seconds), model.seconds, 0.0).max(axis=0).sum()
    moved = (model.receive + model.send).max(axis=0, initial=0.0).sum()
    most_users = np.diff(model.users.indptr).max(initial=1)
    return float(compute + most_users * (moved + model.standing.sum()))
