"""Ties units that share a weight if memory is too short for copies of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placewright.core.arrays import BoolArray, IntArray, frozen_ints
from placewright.core.problem import Problem


def with_shared_weights_tied(problem: Problem) -> Problem:
    """The problem with units that share a weight in one colocation class, if memory is short.

    A device keeps every weight that any of its units reads. The steps of an unrolled recurrent
    layer read one matrix: if they are placed at random, every device needs a copy of everything,
    and if some device cannot hold that, sampling hardly ever yields a placement that fits. Only
    classes that some device can hold are tied, and none for a weight that devices hold once.

    Memory is short unless every device can keep what all units need, all devices of a shared memory
    at the same time: weights, and under `max-load` the tensors of samples in flight. If it is not
    short, the result is the problem itself.

    A placement of the tied problem is also a placement of the original: the units are the same.
    """
    if problem.keeps_everything:
        return problem
    classes, weights = problem.colocation.group_of, problem.counted_weights
    label = _joined(classes, weights.row_of_each(), weights.indices)
    fits = _fits_somewhere(problem, label)
    labels = np.where(fits[label], label, len(fits) + classes)
    _, numbers = np.unique(labels, return_inverse=True)
    tied = replace(problem.graph, op_colocation=frozen_ints(problem.units.expand(numbers)))
    return replace(problem, graph=tied)


def _joined(classes: IntArray, reader: IntArray, weight: IntArray) -> IntArray:
    """Components of units over common classes and common weights, shape (n_units,)."""
    # SciPy takes long to import, and few commands come here.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n_units, n_classes = len(classes), int(classes.max()) + 1
    units = np.concatenate([np.arange(n_units), reader])
    others = n_units + np.concatenate([classes, n_classes + weight])
    size = int(others.max()) + 1
    links = coo_array((np.ones(len(units)), (units, others)), shape=(size, size))
    _, label = connected_components(links, directed=False)
    _, numbers = np.unique(label[:n_units], return_inverse=True)
    return np.asarray(numbers, dtype=np.int64)


def _fits_somewhere(problem: Problem, label: IntArray) -> BoolArray:
    """True if some device may run all units of a label and hold their weights, (n_labels,)."""
    n_labels = int(label.max()) + 1
    allowed = np.ones((n_labels, problem.n_devices), dtype=np.bool_)
    np.logical_and.at(allowed, label, problem.allowed)
    fits = problem.kept.bytes_by_label(label)[:, None] <= problem.cluster.memory_bytes[None, :]
    return np.asarray((allowed & fits).any(axis=1))
