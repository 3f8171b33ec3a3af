"""Processors that several devices share: such devices are *modes*, and never compute at once.

A column of the cost table need not be a piece of hardware. A card in another precision, a card that
reads its weights from RAM, and a pair of cards that divide each operator are devices that name the
processors they compute on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import numpy as np

from placewright.core.arrays import BoolArray, frozen_bools
from placewright.errors import ClusterError, near_names


class Computes(Protocol):
    """Fields of a device that decide what it computes on; see `core.cluster.Device`."""

    @property
    def name(self) -> str:
        """Of the device."""

    @property
    def processors(self) -> tuple[str, ...]:
        """Names; empty for one of its own."""

    @property
    def streams(self) -> int:
        """Ops at once."""

    @property
    def overlaps_transfers(self) -> bool:
        """It computes while bytes move."""

    @property
    def replicas(self) -> int:
        """Devices that it stands for."""

    @property
    def memory_domain(self) -> str | None:
        """Of contention."""

    @property
    def busy_watts(self) -> float | None:
        """Power while it computes."""

    @property
    def idle_watts(self) -> float | None:
        """Power at all other times."""


def users_of_shared(devices: Sequence[Computes]) -> dict[str, tuple[int, ...]]:
    """Processor -> devices that compute on it, for those of several devices, by first device."""
    return {name: found for name, found in users_of_each(devices).items() if len(found) > 1}


def users_of_each(devices: Sequence[Computes]) -> dict[str, tuple[int, ...]]:
    """Processor -> devices that compute on it, by first device."""
    users: dict[str, list[int]] = {}
    for index, device in enumerate(devices):
        for processor in device.processors or (device.name,):
            users.setdefault(processor, []).append(index)
    return {name: tuple(found) for name, found in users.items()}


def amounts_of_processors(devices: Sequence[Computes], amounts: Sequence[float]) -> list[float]:
    """Divide idle power, or a price, of devices among processors, in order of `users_of_each`.

    A processor has the largest amount of the devices that compute on it alone. If there is none, it
    has an equal share of what the amount of a device of several is above that of the others; the
    largest such share.
    """
    own: dict[str, float] = {}
    for device, amount in zip(devices, amounts, strict=True):
        name, *others = device.processors or (device.name,)
        if not others:
            own[name] = max(amount, own.get(name, 0.0))
    shares: dict[str, float] = {}
    for device, amount in zip(devices, amounts, strict=True):
        names = device.processors or (device.name,)
        left = [name for name in names if name not in own]
        known = sum(own[name] for name in names if name in own)
        for name in left:
            shares[name] = max((amount - known) / len(left), shares.get(name, 0.0))
    return [own[name] if name in own else shares[name] for name in users_of_each(devices)]


def idle_watts_within(devices: Sequence[Computes]) -> list[float]:
    """Idle power of the processors of each device: its own, unless it shares one."""
    own = [device.idle_watts or 0.0 for device in devices]
    users = users_of_each(devices)
    watts = dict(zip(users, amounts_of_processors(devices, own), strict=True))
    shared = users_of_shared(devices)
    return [
        sum(watts[name] for name in names) if any(name in shared for name in names) else own[at]
        for at, names in enumerate(device.processors or (device.name,) for device in devices)
    ]


def pairs_that_exclude(devices: Sequence[Computes]) -> BoolArray:
    """True for two devices with a common processor, not for one with itself, (n, n)."""
    found = np.zeros((len(devices), len(devices)), dtype=np.bool_)
    for users in users_of_shared(devices).values():
        found[np.ix_(users, users)] = True
    np.fill_diagonal(found, False)
    return frozen_bools(found)


def sets_at_once(excludes: BoolArray, devices: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every largest set of devices that may compute at once: no two share a processor.

    A device can be added to none of the sets. Those with devices that come first in `devices` come
    first; without shared processors there is one set, of all devices.

    Args:
        excludes: true for two devices with a common processor, (n, n).
        devices: to choose from, in order of preference.

    Examples:
        >>> both_on_one = np.array([[False, True, False], [True, False, False], [False] * 3])
        >>> list(sets_at_once(both_on_one, [1, 0, 2]))
        [(1, 2), (0, 2)]
    """
    clashes = np.asarray(excludes[np.ix_(devices, devices)].any(axis=1)).tolist()
    free = {device for device, does in zip(devices, clashes, strict=True) if not does}
    rest = [device for device in devices if device not in free]
    # Chosen devices, those left, and those passed over: a set is done if none of these fits.
    waiting: list[tuple[tuple[int, ...], list[int], list[int]]] = [((), rest, [])]
    while waiting:
        chosen, left, passed = waiting.pop()
        if not left and not passed:
            found = free.union(chosen)
            yield tuple(device for device in devices if device in found)
        if left and all(excludes[device, left].any() for device in passed):
            first, left = left[0], left[1:]
            waiting.append((chosen, left, [*passed, first]))
            fits = ~excludes[first]
            left, passed = ([d for d in some if fits[d]] for some in (left, passed))
            waiting.append(((*chosen, first), left, passed))


def check_processors(devices: Sequence[Computes], contended: Collection[str]) -> None:
    """Check names, and refuse what leaves open how much a shared processor does at once.

    Args:
        contended: memory domains with contention.

    Raises:
        ClusterError: a name is empty or given twice, or a device that shares a processor has
            several streams, overlaps transfers, stands for replicas or is in such a domain, or
            takes less power than its processors while they idle.
    """
    for device in devices:
        names = device.processors
        if not all(names) or len(set(names)) < len(names):
            raise ClusterError(
                f"device '{device.name}': processors must be names, each once, got {list(names)}"
            )
    for processor, users in users_of_shared(devices).items():
        for device in (devices[index] for index in users):
            reasons = {
                "several streams": device.streams > 1,
                "transfers that overlap compute": device.overlaps_transfers,
                "replicas": device.replicas > 1,
                "a memory domain with contention": device.memory_domain in contended,
            }
            found = [reason for reason, holds in reasons.items() if holds]
            if found:
                others = ", ".join(f"'{devices[at].name}'" for at in users)
                raise ClusterError(
                    f"device '{device.name}' has {found[0]}, and {others} share processor "
                    f"'{processor}', which computes for one of them at a time; leave one of the "
                    "two out"
                )
    for device, idle in zip(devices, idle_watts_within(devices), strict=True):
        if device.busy_watts is not None and device.busy_watts < idle * (1.0 - 1e-12):
            raise ClusterError(
                f"device '{device.name}': its busy power, {device.busy_watts:g} W, is below the "
                f"idle power of its processors, {idle:g} W, which other devices give"
            )


def check_spelling(devices: Sequence[Computes]) -> None:
    """Refuse names that are wrong, most likely: no other device computes on such a processor.

    A wrong name would make a mode independent of all others. It is for what people write. A cluster
    of some devices may well have names that those left out have. A pair keeps the name of a card
    that no other device has, unless it is like the name of another processor.

    Raises:
        ClusterError: a device names only such a processor, or one that is like another.
    """
    computes = {device.name: device.processors or (device.name,) for device in devices}
    for device in devices:
        others = {
            processor: None
            for name, processors in computes.items()
            for processor in processors
            if name != device.name
        }
        alone = [name for name in device.processors if name not in (*others, device.name)]
        for name in alone:
            near = near_names(name, [other for other in others if other not in device.processors])
            if near or len(device.processors) == 1:
                meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
                raise ClusterError(
                    f"device '{device.name}' names processor '{name}', on which no other device "
                    f"computes; {meant}processors of others: {', '.join(others) or 'none'}; leave "
                    "the name out if it is right"
                )


def first_on_processors(devices: Sequence[Computes]) -> list[int]:
    """For each device, the first that computes on the same processors: itself, or another mode."""
    names = [frozenset(device.processors or (device.name,)) for device in devices]
    return [names.index(name) for name in names]


def require_whole_processors(devices: Sequence[Computes], what: str) -> None:
    """Refuse devices that share some of their processors, where a set of them has one worker.

    Args:
        what: who refuses, for the message.

    Raises:
        ClusterError: two devices share a processor, and one computes on others, too.
    """
    first = first_on_processors(devices)
    for processor, users in users_of_shared(devices).items():
        for other in users[1:]:
            if first[other] != first[users[0]]:
                raise ClusterError(
                    f"devices '{devices[users[0]].name}' and '{devices[other].name}' share "
                    f"processor '{processor}', but not all of their processors, which {what} does "
                    "not know; leave out one of them"
                )


def require_own_processors(devices: Sequence[Computes], what: str, instead: str) -> None:
    """Refuse shared processors where only devices with processors of their own are known.

    Args:
        what: who refuses, for the message.
        instead: what to do.

    Raises:
        ClusterError: two devices share a processor; the message names them.
    """
    for processor, users in users_of_shared(devices).items():
        names = ", ".join(f"'{devices[at].name}'" for at in users)
        raise ClusterError(
            f"devices {names} share processor '{processor}', which {what} does not know; {instead}"
        )
