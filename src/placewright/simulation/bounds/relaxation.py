"""Lower bound by linear programming: assignment, precedence, load, cut communication, memory.

The program relaxes the integer programs of Tarnawski et al., NeurIPS 2020 (section 4), to fractions
x[class, device] of each colocation class. Valid for every placement in every order, because it
leaves out: that transfers wait for each other, dispatch and cut overheads, contention (factors are
>= 1), live tensors, and, between two devices, everything but the cheapest transfer of a tensor.

Rows of each execution model bound its value: `LatencyRelaxation`, `LoadRelaxation`. In both:
sum over d of x = 1,  resident bytes: y[weight, d] >= x[v, d],  sum of bytes y <= memory.

Energy and price (`core.charges`) are linear in x and the seconds w, but for the sum over used
devices. Two rows replace it: each used device is there while its own units run, and at least one is
there all the time:  amount >= sum of (own + used x seconds / streams) x + always w,  and
amount >= sum of own x + (always + least used) w.  A limit bounds the amount; an objective is its
minimum.

The value of an approximate solver is made safe by weak duality: the bound is recomputed from the
dual multipliers (see `safe_dual_bound`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, diags_array

from placewright.core.arrays import FloatArray
from placewright.core.charges import CHARGED, LIMIT_ROUNDING
from placewright.core.problem import Problem
from placewright.simulation.interruptible import interruptible
from placewright.simulation.layout import (
    DIRECT,
    VIA_HOST,
    ProblemArrays,
    all_in_turn,
    copies_in_turn,
    problem_arrays,
    transfer_seconds,
)

_SIZE = 1e3  # seconds of all units and transfers together, as the solver gets them


@dataclass
class _Rows:
    """Rows `a . columns <= limit`, added one after another."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    def add(self, terms: list[tuple[int, float]], limit: float) -> None:
        for column, value in terms:
            self.rows.append(len(self.limits))
            self.columns.append(column)
            self.values.append(value)
        self.limits.append(limit)

    def matrix(self, n_columns: int) -> csr_array:
        shape = (len(self.limits), n_columns)
        return csr_array((self.values, (self.rows, self.columns)), shape=shape)


class RelaxedProgram(ABC):
    """The rows that hold under every execution model; a subclass adds those of its `value`.

    Column 0 is w; x of class g on device d is column 1 + g * n_devices + d.

    Attributes:
        skips_ample_memory: leave out the memory of a device that has room for all weights.
        counts_last_hop: a transfer through the host counts by its last hop alone.
        amount: column of what is minimised: 0 for seconds.
    """

    skips_ample_memory: ClassVar[bool] = False
    counts_last_hop: ClassVar[bool] = False

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.arrays: ProblemArrays = problem_arrays(problem)
        self.group_of = problem.colocation.group_of
        self.n_devices = problem.n_devices
        self.seconds = np.where(problem.allowed, problem.costs.seconds, 0.0)
        self.upper = [math.inf]
        self.upper += problem.allowed_by_class.astype(float).ravel().tolist()
        self.less, self.equal = _Rows(), _Rows()
        self.load_terms: list[list[tuple[int, float]]] = [[] for _ in range(self.n_devices)]
        self.assignment()
        self.memory()
        self.loads()
        self.value()
        self.amount = self.amounts()

    def x(self, unit: int, device: int) -> int:
        """Column of a unit's class on a device."""
        return 1 + int(self.group_of[unit]) * self.n_devices + device

    def column(self, upper: float = math.inf) -> int:
        """A new column in [0, upper]."""
        self.upper.append(upper)
        return len(self.upper) - 1

    def assignment(self) -> None:
        """Add a row for each class: it is on one device."""
        for members in range(self.problem.colocation.n_groups):
            first = 1 + members * self.n_devices
            self.equal.add([(first + d, 1.0) for d in range(self.n_devices)], 1.0)

    def memory(self) -> None:
        """Add a row for each device and each shared pool: resident bytes, a shared weight once."""
        arrays, of_pools = self.arrays, [list[tuple[int, float]]() for _ in self.arrays.pool_bytes]
        ample = self.skips_ample_memory and self.problem.keeps_everything
        for device in np.flatnonzero(np.isfinite(arrays.memory)).tolist():
            pools = [] if ample else np.flatnonzero(arrays.pool_shares[:, device]).tolist()
            fits = self.skips_ample_memory and self.problem.kept.total <= arrays.memory[device]
            if fits and not pools:
                continue
            terms = self._kept_on(device)
            self._at_most(terms, math.inf if fits else float(arrays.memory[device]))
            for pool in pools:
                share = float(arrays.pool_shares[pool, device])
                of_pools[pool] += [(column, size * share) for column, size in terms]
        for terms, size in zip(of_pools, arrays.pool_bytes.tolist(), strict=True):
            self._at_most(terms, size)

    def _kept_on(self, device: int) -> list[tuple[int, float]]:
        """Column and bytes of each entry that a device may keep."""
        arrays = self.arrays
        terms: list[tuple[int, float]] = []
        for weight, size in enumerate(arrays.kept_bytes.tolist()):
            first, stop = arrays.kept_ptr[weight], arrays.kept_ptr[weight + 1]
            columns = sorted({self.x(int(u), device) for u in arrays.kept_units[first:stop]})
            if size == 0 or not columns:
                continue
            kept = columns[0]
            if len(columns) > 1:
                kept = self.column(1.0)
                for column in columns:
                    self.less.add([(column, 1.0), (kept, -1.0)], 0.0)
            terms.append((kept, size))
        return terms

    def _at_most(self, terms: list[tuple[int, float]], limit: float) -> None:
        """Add the row: bytes of the terms <= limit."""
        if terms and math.isfinite(limit):
            scale = max(size for _, size in terms)
            self.less.add([(column, size / scale) for column, size in terms], limit / scale)

    def loads(self) -> None:
        """Collect seconds of each device, divided by its streams and replicas, as terms of rows."""
        concurrency = self.problem.cluster.concurrency
        for unit in range(self.problem.n_units):
            for device in range(self.n_devices):
                value = float(self.seconds[unit, device] / concurrency[device])
                if value > 0:
                    self.load_terms[device].append((self.x(unit, device), value))

    @abstractmethod
    def value(self) -> None:
        """Add the rows that bound w from below by the value of the execution model."""

    def amounts(self) -> int:
        """Add the rows of limited and minimised quantities; return the column to minimise."""
        minimised = 0
        for quantity, charges in self.problem.charges.items():
            terms: list[tuple[int, float]] = []
            if quantity == self.problem.objective and quantity in CHARGED:
                minimised = self.column()
                terms = [(minimised, -1.0)]
            most = self.problem.limits.get(quantity, math.inf)
            shares = charges.of_devices / self.problem.cluster.concurrency
            rows = [(charges.own + self.seconds * shares, charges.always)]
            if charges.used.any():
                rows.append((charges.own, charges.least_rate))
            for own, rate in rows:
                self._add_amount(own, [(0, rate)], terms, most)
        return minimised

    def _add_amount(
        self,
        own: FloatArray,
        rates: list[tuple[int, float]],
        minimised: list[tuple[int, float]],
        most: float,
    ) -> None:
        """Add the rows: amount <= the minimised column, and amount <= `most`."""
        by_class = self.problem.colocation.sums(np.where(self.problem.allowed, own, 0.0))
        costs = enumerate(by_class.ravel().tolist(), start=1)
        terms = [(column, cost) for column, cost in costs if cost > 0] + rates
        if minimised:
            self.less.add([*terms, *minimised], 0.0)
        if math.isfinite(most):
            self.less.add(terms, most * (1.0 + LIMIT_ROUNDING))

    def solved(self, seconds: float) -> float:
        """Solve with HiGHS and return the safe value of its dual solution."""
        n_columns = len(self.upper)
        cost = np.zeros(n_columns)
        cost[self.amount] = 1.0
        bounds = np.zeros((n_columns, 2))
        bounds[:, 1] = self.upper
        options = {"time_limit": seconds} if math.isfinite(seconds) else {}
        less, equal = self.less.matrix(n_columns), self.equal.matrix(n_columns)
        # Tolerances of the solver are absolute: it gets times and amounts in their own scale.
        times, whole = ~np.isfinite(bounds[:, 1]), self._whole
        scale = _SIZE / whole if 0.0 < whole < math.inf else 1.0
        columns = np.where(times, 1.0 / scale, 1.0)
        rows = np.where(abs(less) @ times > 0, scale, 1.0)
        solve = partial(
            linprog,
            cost,
            A_ub=diags_array(rows) @ less @ diags_array(columns),
            b_ub=rows * self.less.limits,
            A_eq=equal,
            b_eq=self.equal.limits,
            bounds=bounds,
            method="highs",
            options=options,
        )
        solution: Any = interruptible(solve)
        if solution.status != 0:
            return 0.0
        value = safe_dual_bound(
            (less, np.array(self.less.limits), solution.ineqlin.marginals * rows / scale),
            (equal, np.array(self.equal.limits), solution.eqlin.marginals / scale),
            cost,
            self._column_limits(float(solution.fun) / scale),
        )
        return max(0.0, value)

    @property
    def _rate(self) -> float:
        """Least change of the objective per second of w; 1 if w is the objective."""
        if self.amount == 0:
            return 1.0
        return self.problem.charges[self.problem.objective].least_rate

    @property
    def _whole(self) -> float:
        """Seconds of all units, transfers and exchanges one after the other."""
        exchanges = float(self.problem.exchange_seconds.max(axis=1, initial=0.0).sum())
        return all_in_turn(self.problem) + copies_in_turn(self.problem) + exchanges

    def _column_limits(self, value: float) -> FloatArray:
        """Finite upper bounds that some optimal solution keeps: times and delays stay below 2 w.

        An amount is at least its rate x w, so that w is at most value / rate. If w costs nothing,
        the w that a schedule needs is enough: no row asks for more than all units and transfers
        one after the other. The addend is for a solver whose value is too low.
        """
        longest = self._whole if self._rate <= 0 else value / min(self._rate, 1.0)
        most = 2.0 * max(value, longest) + (1.0 if self.amount else min(1.0, 2.0 * self._whole))
        upper = np.array(self.upper)
        return np.where(np.isfinite(upper), upper, most)

    def way(self, tensor: int, source: int, target: int) -> float:
        """Seconds of a transfer; 0 without a route (such placements are infeasible)."""
        value = transfer_seconds(self.arrays, tensor, source, target)
        return float(value) if math.isfinite(value) else 0.0

    @cached_property
    def cheapest(self) -> list[float]:
        """Least seconds of each tensor between two different devices.

        Of a way in two hops, `counts_last_hop` leaves out the first.
        """
        arrays, host = self.arrays, self.arrays.host
        size, fixed, per_size = arrays.tensor_bytes, arrays.latency, arrays.seconds_per_byte
        if len(arrays.own_transfer):
            size, fixed, per_size = arrays.own_transfer, np.zeros_like(fixed), np.ones_like(fixed)
        routes = arrays.route[: self.n_devices, : self.n_devices]
        source, target = np.nonzero((routes == DIRECT) | (routes == VIA_HOST))
        is_direct = routes[source, target] == DIRECT
        has_first = ~is_direct & (not self.counts_last_hop)
        last = np.where(is_direct, source, host), target
        hops = [np.where(has_first, each[source, host], 0.0) for each in (fixed, per_size)]
        hops += [fixed[last], per_size[last]]
        least = np.full(len(size), np.inf)
        for first, first_rate, second, second_rate in np.unique(np.column_stack(hops), axis=0):
            seconds = (first + size * first_rate) + (second + size * second_rate)
            least = np.minimum(least, np.where(np.isfinite(seconds), seconds, 0.0))
        return [float(value) for value in np.where(np.isfinite(least), least, 0.0)]


class LatencyRelaxation(RelaxedProgram):
    """Linear program whose value w bounds the makespan under `event` from below.

    Variables: x[u, d], the share of unit u on device d; end[u]; c[u, v], the delay of the edge from
    u to v. Minimise w subject to

      end[v] >= end[u] + c[u, v] + sum over d of seconds[v, d] x[v, d]   for each edge (u, v);
      c[u, v] >= transfer(u, v) (x[u, d] - x[v, d])   for each edge and each d;
      streams[d] w >= sum over u of seconds[u, d] x[u, d]   for each d; over all d of a processor;
      w >= end[u] + sum over d of home(u, d) x[u, d]   for each producer u of a graph output.

    ``transfer(u, v)`` is the cheapest transfer of the tensor between two devices: in an integral
    solution, c is this time if the edge is cut, and 0 otherwise. ``home(u, d)`` are the seconds
    from device d to the host. A unit with a graph input also ends after the input's way from the
    host.
    """

    def value(self) -> None:
        """Add the rows of loads, ends and delays."""
        for terms in self.load_terms:
            self.less.add([*terms, (0, -1.0)], 0.0)
        for users in self.problem.cluster.shared_processors.values():
            whole = [term for device in users for term in self.load_terms[device]]
            self.less.add([*whole, (0, -1.0)], 0.0)
        self._precedence()

    def _precedence(self) -> None:
        """Add the rows of ends and delays."""
        arrays, host = self.arrays, self.arrays.host
        ends = [self.column() for _ in range(self.problem.n_units)]
        for unit in range(self.problem.n_units):
            own = [(self.x(unit, d), float(s)) for d, s in enumerate(self.seconds[unit])]
            self.less.add([*own, (ends[unit], -1.0)], 0.0)
            self.less.add([(ends[unit], 1.0), (0, -1.0)], 0.0)
            for tensor in self.problem.unit_graph.op_inputs.row(unit).tolist():
                producer = int(arrays.producer[tensor])
                if producer < 0:
                    late = [
                        (self.x(unit, d), self.way(tensor, host, d)) for d in range(self.n_devices)
                    ]
                    self.less.add([*own, *late, (ends[unit], -1.0)], 0.0)
                    continue
                terms = [*own, (ends[producer], 1.0), (ends[unit], -1.0)]
                self.less.add(terms, 0.0)
                cheapest = self.cheapest[tensor]
                if cheapest > 0 and self.group_of[producer] != self.group_of[unit]:
                    self._delayed(terms, producer, unit, cheapest)
        for tensor in np.flatnonzero(arrays.is_output & (arrays.producer >= 0)).tolist():
            unit = int(arrays.producer[tensor])
            home = [(self.x(unit, d), self.way(tensor, d, host)) for d in range(self.n_devices)]
            self.less.add([(ends[unit], 1.0), *home, (0, -1.0)], 0.0)

    def _delayed(
        self, terms: list[tuple[int, float]], producer: int, unit: int, cheapest: float
    ) -> None:
        delay = self.column()
        for device in range(self.n_devices):
            here, there = self.x(producer, device), self.x(unit, device)
            self.less.add([(here, cheapest), (there, -cheapest), (delay, -1.0)], 0.0)
        self.less.add([*terms, (delay, 1.0)], 0.0)


class LoadRelaxation(RelaxedProgram):
    """Linear program whose value w bounds the largest load under `max-load` from below.

    w >= load of d + transfers that d receives + exchanges of its members, for each device d. A
    tensor t of u is received, r[t, d] >= x[v, d] - x[u, d] for its consumers v, at its cheapest
    transfer, if d pays transfers. A processor of several devices has the sum of their rows.
    """

    skips_ample_memory: ClassVar[bool] = True
    counts_last_hop: ClassVar[bool] = True  # a receiver pays no other

    def value(self) -> None:
        """Add rows: w is at least the load and received transfers of each device."""
        graph, cluster = self.problem.unit_graph, self.problem.cluster
        devices, share = cluster.devices, cluster.transfer_share
        receipts = self._exchanges()
        for tensor in range(graph.n_tensors):
            producer = int(graph.tensor_producers[tensor])
            cheapest = self.cheapest[tensor]
            if producer < 0 or cheapest == 0:
                continue
            for device, spec in enumerate(devices):
                if not spec.pays_transfers:
                    continue
                arrives = self.column(1.0)
                for consumer in graph.tensor_consumers.row(tensor).tolist():
                    if self.group_of[consumer] != self.group_of[producer]:
                        there, here = self.x(consumer, device), self.x(producer, device)
                        self.less.add([(there, 1.0), (here, -1.0), (arrives, -1.0)], 0.0)
                receipts[device].append((arrives, cheapest * float(share[device])))
        for spec, load, receipt in zip(devices, self.load_terms, receipts, strict=True):
            if spec.overlaps_transfers:
                self.less.add([*load, (0, -1.0)], 0.0)
                self.less.add([*receipt, (0, -1.0)], 0.0)
            else:
                self.less.add([*load, *receipt, (0, -1.0)], 0.0)
        for users in cluster.shared_processors.values():  # none of which overlaps
            terms = [term for d in users for term in (*self.load_terms[d], *receipts[d])]
            self.less.add([*terms, (0, -1.0)], 0.0)

    def _exchanges(self) -> list[list[tuple[int, float]]]:
        """Seconds in which members of each device exchange gradients, as terms of its row."""
        exchange = self.problem.exchange_seconds
        terms: list[list[tuple[int, float]]] = [[] for _ in range(self.n_devices)]
        for unit, device in np.argwhere(exchange > 0).tolist():
            terms[device].append((self.x(unit, device), float(exchange[unit, device])))
        return terms


def safe_dual_bound(
    less: tuple[csr_array, FloatArray, FloatArray],
    equal: tuple[csr_array, FloatArray, FloatArray],
    cost: FloatArray,
    upper: FloatArray,
) -> float:
    """Lower bound of min cost . z, A z <= b, E z = f, 0 <= z <= upper, from any multipliers.

    Weak duality: with y <= 0 of A and any v of E, the value is at least y.b + v.f + the sum over
    columns of min(0, reduced cost) x upper. Rounding is taken off, that of the sums and that of the
    reduced costs, whose terms may cancel and outlast the value.

    Args:
        less: A, b, multipliers (positive ones are set to 0).
        equal: E, f, multipliers.
        cost: shape (n_columns,).
        upper: finite upper bounds, shape (n_columns,).
    """
    matrix, limits, multipliers = less
    equal_matrix, sides, free = equal
    y = np.minimum(multipliers, 0.0)
    reduced = cost - matrix.T @ y - equal_matrix.T @ free
    sizes = np.abs(cost) + abs(matrix).T @ np.abs(y) + abs(equal_matrix).T @ np.abs(free)
    entries = np.concatenate([matrix.indices, equal_matrix.indices])
    n_terms = 4.0 + np.bincount(entries, minlength=len(cost))
    reduced -= n_terms * sizes * np.finfo(np.float64).eps
    below = np.minimum(reduced, 0.0) * upper
    value = float(y @ limits + free @ sides + below.sum())
    magnitude = float(np.abs(y * limits).sum() + np.abs(free * sides).sum() - below.sum())
    return value - 1e-12 * magnitude
