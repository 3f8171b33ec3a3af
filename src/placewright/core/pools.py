"""Memory pools: from which ones a device takes its bytes, and by which shares.

A device keeps what it keeps in one pool, or in several by shares: a card that reads a quarter of
each weight from RAM has ``{"vram": 0.75, "ram": 0.25}``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from placewright.errors import ClusterError

Pools = str | Mapping[str, float] | None  # name, or name -> share of a device's bytes
_ROUNDING = 1e-9


class Keeps(Protocol):
    """Fields of a device that say where its bytes are; see `core.cluster.Device`."""

    @property
    def name(self) -> str:
        """Of the device."""

    @property
    def pool_shares(self) -> dict[str, float]:
        """Pool -> share of its bytes."""


def shares_of(pool: Pools) -> dict[str, float]:
    """Pool -> share of a device's bytes; empty if it shares its memory with no other device."""
    if pool is None:
        return {}
    return {pool: 1.0} if isinstance(pool, str) else dict(pool)


def pools_text(pool: Pools) -> str:
    """The pools of a device: ``"'ram'"``, or ``"75% of 'vram' and 25% of 'ram'"`` of its bytes."""
    if isinstance(pool, str):
        return f"'{pool}'"
    parts = [f"{100.0 * share:.4g}% of '{name}'" for name, share in shares_of(pool).items()]
    return " and ".join(parts)


def renamed(pool: Pools, prefix: str) -> Pools:
    """The pools of a device with a prefix before each name."""
    if pool is None or isinstance(pool, str):
        return None if pool is None else f"{prefix}{pool}"
    return {f"{prefix}{name}": share for name, share in pool.items()}


def check_pools(
    pools: Mapping[str, float], devices: Sequence[Keeps], taken: Collection[str]
) -> None:
    """Check names and sizes of pools, and the shares of devices.

    Args:
        pools: name -> bytes.
        taken: names of devices and of the host.

    Raises:
        ClusterError: a pool has the name of a device or a negative size, a device names an unknown
            pool, or its shares do not add up to 1.
    """
    for name, size in pools.items():
        if not name or name in taken:
            raise ClusterError(
                f"pool '{name}' needs a name that no device and no host has; rename it"
            )
        if not size >= 0:
            raise ClusterError(f"pool '{name}': bytes must be >= 0, got {size}")
    for device in devices:
        shares = device.pool_shares
        for name in shares:
            if name not in pools:
                known = ", ".join(pools) or "none"
                raise ClusterError(
                    f"device '{device.name}' names pool '{name}', which the cluster does "
                    f"not have; known: {known}"
                )
        if shares and not (min(shares.values()) > 0 and abs(sum(shares.values()) - 1) < _ROUNDING):
            raise ClusterError(
                f"device '{device.name}': shares of its pools must be > 0 and add up to 1, got "
                f"{', '.join(f'{name} {share:g}' for name, share in shares.items())}"
            )
