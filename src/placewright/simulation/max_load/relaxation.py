"""The linear relaxation under `max-load`.

w >= load of d + transfers that d receives + exchanges of its members, for each device d. A tensor t
of u is received, r[t, d] >= x[v, d] - x[u, d] for its consumers v, at its cheapest transfer, if d
pays transfers. A processor of several devices has the sum of their rows.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from placewright.simulation.bounds.relaxation import RelaxedProgram


class LoadRelaxation(RelaxedProgram):
    """Linear program whose value w bounds the largest load from below."""

    skips_ample_memory: ClassVar[bool] = True

    def value(self) -> None:
        """Add rows: w is at least the load and received transfers of each device."""
        graph, cluster = self.problem.unit_graph, self.problem.cluster
        devices, share = cluster.devices, cluster.transfer_share
        receipts = self._exchanges()
        for tensor in range(graph.n_tensors):
            producer = int(graph.tensor_producers[tensor])
            cheapest = self.cheapest(tensor)
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

    def hop_into(self, tensor: int, source: int, target: int) -> float:
        """Seconds that a receiver pays: the last hop only."""
        host = self.arrays.host
        direct = self.problem.cluster.link_channel[source, target] >= 0
        return self.way(tensor, source if direct else host, target)
