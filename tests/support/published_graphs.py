"""The ten-task example of Topcuoglu et al. 2002 (figure 2 and its cost matrix)."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.grouping import Grouping
from placewright.core.problem import Problem

SECONDS = [
    [14, 16, 9],
    [13, 19, 18],
    [11, 13, 19],
    [13, 8, 17],
    [12, 13, 10],
    [13, 16, 9],
    [7, 15, 11],
    [5, 11, 14],
    [18, 12, 20],
    [21, 7, 16],
]
EDGES = {
    (0, 1): 18,
    (0, 2): 12,
    (0, 3): 9,
    (0, 4): 11,
    (0, 5): 14,
    (1, 7): 19,
    (1, 8): 16,
    (2, 6): 23,
    (3, 7): 27,
    (3, 8): 23,
    (4, 8): 13,
    (5, 7): 15,
    (6, 9): 17,
    (7, 9): 11,
    (8, 9): 13,
}


def topcuoglu() -> Problem:
    """Ten tasks on three processors; one tensor per edge, with seconds of its own.

    In the published model transfers never wait for each other.
    """
    builder = GraphBuilder()
    for task in range(10):
        builder.add_op(f"n{task + 1}", "Task")
    seconds = []
    for (producer, consumer), cost in EDGES.items():
        tensor = builder.add_tensor(producer, 1.0)
        builder.connect(tensor, consumer)
        seconds.append(float(cost))
    names = ("p1", "p2", "p3")
    links = [Link(a, b, queues=False) for a in names for b in names if a != b]
    return Problem(
        builder.build(),
        Cluster(tuple(Device(name) for name in names), tuple(links)),
        CostTable(frozen_floats(np.array(SECONDS, dtype=float))),
        Grouping.identity(10),
        transfer_seconds=frozen_floats(seconds),
    )
