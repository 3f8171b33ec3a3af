"""Numbers by which other tools know the cards of a plan of a language model."""

from __future__ import annotations

import re
from collections.abc import Sequence

from placewright.core.cluster import Device
from placewright.core.plan import Plan

_OWN = re.compile(r"cuda:(\d+)")


def card_numbers(cards: Sequence[Device]) -> tuple[int, ...]:
    """The number of each card: that of its name, such as ``cuda:1``, if all have such names.

    Others are numbered by their order.
    """
    own = [_OWN.fullmatch(card.name) for card in cards]
    return tuple(
        at if name is None or not all(own) else int(name[1]) for at, name in enumerate(own)
    )


def numbering_note(plan: Plan, option: str) -> str | None:
    """One line about cards that an export numbers by their order; None if they name themselves.

    Args:
        option: of a device that names it.
    """
    cards = [device for device in plan.problem.cluster.devices if device.kind == "gpu"]
    numbered = [
        f"{card.name} is {number}"
        for card, number in zip(cards, card_numbers(cards), strict=True)
        if option not in card.options
    ]
    if len(cards) < 2 or not numbered or all(_OWN.fullmatch(card.name) for card in cards):
        return None
    listed = ", ".join(numbered)
    return (
        f"cards are numbered by their order in argument `devices` ({listed}), and a driver may "
        "number them otherwise: compare, and name them in its order, or cuda:0, cuda:1 in a "
        "cluster file"
    )
