"""Energy and price of placements, beside their time.

    amount = sum of own(unit, device)
           + T x (always + sum over the processors of devices that run a unit of used(processor))

T is the value of the placement in seconds under the problem's execution model.

- Energy, in joules: own = (busy power - idle power) x seconds / streams, or a table of the
  problem's own; always = the idle power of all processors.
- Price: used(processor) = its price per second.

A device has a processor of its own unless it shares some. A card idles once and is paid for once,
however many modes it has: see `core.processors.amounts_of_processors`.

Every processor of the cluster takes its idle power, whether or not a unit runs on it: a card that
sits in the machine is not switched off for one run. Nobody pays for a card that runs nothing.
Overheads, waiting and the slowdown of contention make T longer, so they take idle power alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from placewright.core.arrays import BoolArray, FloatArray, IntArray
from placewright.core.cluster import Cluster
from placewright.core.costs import LONGEST
from placewright.core.processors import (
    amounts_of_processors,
    idle_watts_within,
    users_of_each,
)
from placewright.core.quantities import format_duration
from placewright.errors import CostError, FieldError, UnknownNameError

Quantity = Literal["latency", "energy", "price"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
CHARGED: tuple[Quantity, ...] = ("energy", "price")  # objectives that are not time
LIMIT_ROUNDING = 1e-9  # relative excess that breaks no limit: sums round
_HOUR = 3600.0


@dataclass(frozen=True, eq=False)
class Charges:
    """One quantity of placements; see the module's docstring for the formula."""

    # amount of each unit on each device, shape (n_units, n_devices); 0 where it cannot run
    own: FloatArray
    always: float  # amount per second, whatever the placement
    used: FloatArray  # amount per second of each processor in use, shape (n_processors,)
    users: BoolArray  # True for a device that computes on a processor, (n_processors, n_devices)

    @property
    def of_devices(self) -> FloatArray:
        """Amount per second of the processors of each device, shape (n_devices,)."""
        return np.asarray(self.used @ self.users)

    @property
    def least_rate(self) -> float:
        """Amount per second that every placement takes at least."""
        return self.always + float(self.of_devices.min())

    def rate(self, devices: BoolArray) -> float:
        """Amount per second of placements that use so many devices, shape (n_devices,)."""
        return self.always + float(self.used[(self.users & devices).any(axis=1)].sum())

    def of(self, devices_of: IntArray, seconds: ArrayLike) -> FloatArray:
        """Amounts of placements that take so many seconds; inf stays inf.

        Args:
            devices_of: shape (n_placements, n_units).
            seconds: shape (n_placements,).
        """
        amounts = np.array(seconds, dtype=np.float64)
        ends = np.flatnonzero(np.isfinite(amounts))  # others may have unknown devices
        rows, rates = devices_of[ends], np.full(len(ends), self.always)
        for processor in np.flatnonzero(self.used).tolist():
            in_use = np.zeros(len(rows), dtype=np.bool_)
            for device in np.flatnonzero(self.users[processor]).tolist():
                in_use |= (rows == device).any(axis=1)
            rates += self.used[processor] * in_use
        amounts[ends] *= rates
        amounts[ends] += self.own[np.arange(len(self.own)), rows].sum(axis=1)
        return amounts

    def of_one(self, device_of: IntArray, seconds: float) -> float:
        """The amount of one placement, device_of (n_units,)."""
        return float(self.of(device_of[None, :], [seconds])[0])


def charges_of(
    quantity: str, cluster: Cluster, seconds: FloatArray, joules: FloatArray | None
) -> Charges:
    """The charges of a quantity of `QUANTITIES`.

    Args:
        seconds: of each unit on each device, shape (n_units, n_devices).
        joules: of each unit in addition to idle power, of that shape; None is power x seconds.
    """
    nothing, devices = np.zeros(seconds.shape), cluster.devices
    users = np.zeros((len(by_processor := users_of_each(devices)), len(devices)), dtype=np.bool_)
    for at, found in enumerate(by_processor.values()):
        users[at, list(found)] = True
    unused = np.zeros(len(users))
    if quantity == "latency":
        return Charges(nothing, 1.0, unused, users)
    if quantity == "price":
        hourly = [(device.price_per_hour or 0.0) * device.replicas for device in devices]
        return Charges(
            nothing, 0.0, np.array(amounts_of_processors(devices, hourly)) / _HOUR, users
        )
    all_idle = [(device.idle_watts or 0.0) * device.replicas for device in devices]
    always = float(sum(amounts_of_processors(devices, all_idle)))
    idle = np.array(idle_watts_within(devices))
    if joules is None:
        busy = np.array([device.busy_watts or 0.0 for device in devices])
        streams = np.array([device.streams for device in devices])
        added = np.maximum(busy - idle, 0.0) / streams  # sums of shares round
        joules = np.where(np.isfinite(seconds), seconds, 0.0) * added
    return Charges(np.where(np.isfinite(seconds), joules, 0.0), always, unused, users)


def require_known(cluster: Cluster, quantity: str) -> None:
    """Refuse a quantity for which a device lacks its power or its price.

    Raises:
        FieldError: a device lacks it; the message shows the entry of a cluster file.
    """
    device = unknown(cluster, quantity)
    if device is not None:
        what = "power, such as `power: {busy: 65 W, idle: 10 W}`"
        what = what if quantity == "energy" else "price, such as `price: 0.35/h`"
        raise FieldError(
            "cluster", f"has no {quantity} of device '{device}': add its {what}, to the file"
        )


def check_limits(limits: Mapping[str, float], *, is_load: bool) -> None:
    """Check names and amounts of limits.

    Raises:
        UnknownNameError: there is no such quantity.
        FieldError: an amount is not a number > 0, or of latency under max-load.
    """
    for quantity, amount in limits.items():
        if quantity not in QUANTITIES:
            raise UnknownNameError("limited quantity", quantity, QUANTITIES)
        if not 0 < amount < math.inf:
            raise FieldError("limits", f"of {quantity} must be > 0 and finite, got {amount}")
        if quantity == "latency" and is_load:
            raise FieldError(
                "limits",
                "of latency is of one sample; give argument `latency_limit` for throughput",
            )


def check_joules(joules: FloatArray, seconds: FloatArray) -> None:
    """Check a table of energy, shape (n_units, n_devices).

    Raises:
        CostError: its shape differs from that of the costs, or an entry is no number >= 0.
    """
    if joules.shape != seconds.shape or not (joules >= 0).all():
        raise CostError(
            f"op_joules has shape {joules.shape} and must have {seconds.shape}, with numbers >= 0 "
            "J, one for each unit and device"
        )
    if not joules[np.isfinite(seconds)].sum() < LONGEST:
        raise CostError("op_joules must be finite where a device can run a unit")


def amount_text(amount: float, quantity: str) -> str:
    """An amount for people: seconds and joules with prefixes; a price has no currency."""
    if quantity == "price":
        return f"{amount:.4g}"
    return format_duration(amount) if quantity == "latency" else format_duration(amount, "J")


def amounts_text(amounts: Mapping[str, float]) -> str:
    """Amounts of one sample: ``"latency 12.3 ms, energy 1.5 J, price 3.4e-07"``."""
    return ", ".join(f"{name} {amount_text(amount, name)}" for name, amount in amounts.items())


def unknown(cluster: Cluster, quantity: str) -> str | None:
    """The first device without its power or price; None if all have it."""
    field = {"energy": "busy_watts", "price": "price_per_hour"}.get(quantity)
    if field is None:
        return None
    return next((device.name for device in cluster.devices if getattr(device, field) is None), None)
