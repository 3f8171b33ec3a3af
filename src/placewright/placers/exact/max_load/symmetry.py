"""Telling interchangeable devices apart, so that a solver looks at one of each set of twins."""

from __future__ import annotations

import numpy as np

from placewright.core.arrays import BoolArray, IntArray
from placewright.placers.pipelines.ideals.load_model import LoadModel


def first_devices(model: LoadModel) -> BoolArray:
    """Where items may be when devices of a kind are numbered by the costliest item they carry.

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
    """The twin of a placement that `first_devices` allows, shape (n_items,)."""
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
