"""The linear relaxation under `event`.

Variables: x[u, d], the share of unit u on device d; end[u]; c[u, v], the delay of the edge from u
to v. Minimise w subject to

  end[v] >= end[u] + c[u, v] + sum over d of seconds[v, d] x[v, d]   for each edge (u, v);
  c[u, v] >= transfer(u, v) (x[u, d] - x[v, d])   for each edge and each d;
  streams[d] w >= sum over u of seconds[u, d] x[u, d]   for each d, and over all d of a processor;
  w >= end[u] + sum over d of home(u, d) x[u, d]   for each producer u of a graph output.

``transfer(u, v)`` is the cheapest transfer of the tensor between two devices: in an integral
solution, c is this time if the edge is cut, and 0 otherwise. ``home(u, d)`` are the seconds from
device d to the host. A unit with a graph input also ends after the input's way from the host.
"""

from __future__ import annotations

import numpy as np

from placewright.simulation.bounds.relaxation import RelaxedProgram


class LatencyRelaxation(RelaxedProgram):
    """Linear program whose value w bounds the makespan from below; see the module."""

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
                    self.less.add([*_summed(own, late), (ends[unit], -1.0)], 0.0)
                    continue
                terms = [*own, (ends[producer], 1.0), (ends[unit], -1.0)]
                self.less.add(terms, 0.0)
                cheapest = self.cheapest(tensor)
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


def _summed(
    first: list[tuple[int, float]], second: list[tuple[int, float]]
) -> list[tuple[int, float]]:
    """Terms of equal columns added up."""
    total: dict[int, float] = {}
    for column, value in [*first, *second]:
        total[column] = total.get(column, 0.0) + value
    return list(total.items())
