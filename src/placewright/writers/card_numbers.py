"""Numbers by which other tools know the cards of a plan of a language model."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count, islice

from placewright.core.cluster import Device
from placewright.errors import InexpressibleError

_OWN = re.compile(r"cuda:(\d+)")


def card_numbers(cards: Sequence[Device], taken: Collection[int] = ()) -> tuple[int, ...]:
    """The number of each card: that of its name, such as ``cuda:1``, if all have such names.

    Others are numbered by their order.

    Args:
        taken: numbers of other cards, which no order gives.
    """
    own = [int(name[1]) for card in cards if (name := _OWN.fullmatch(card.name))]
    if len(own) == len(cards):
        return tuple(own)
    return tuple(islice((number for number in count() if number not in taken), len(cards)))


def require_distinct(tool: str, names: Mapping[str, str], option: str) -> None:
    """Refuse cards that a tool calls by one name.

    Args:
        names: card -> its name there.
        option: of a device that names it.

    Raises:
        InexpressibleError: the message has the name and two of them.
    """
    seen: dict[str, str] = {}
    for card, name in names.items():
        if name in seen:
            raise InexpressibleError(
                f"{tool} has one name, '{name}', for '{seen[name]}' and '{card}'; give each its "
                f"own with option {option} in a cluster file"
            )
        seen[name] = card


def numbering_note(
    cards: Sequence[Device], names: Sequence[str | None], is_named: Callable[[Device], bool]
) -> str | None:
    """One line about cards that an export numbers by their order; None if they name themselves.

    Args:
        names: of the cards in the export.
        is_named: True if an option of a card has its name there.
    """
    numbered = {
        card.name: name
        for card, name in zip(cards, names, strict=True)
        if name is not None and not is_named(card)
    }
    if len(cards) < 2 or all(_OWN.fullmatch(card) for card in numbered):
        return None
    listed = ", ".join(f"{card} is {name}" for card, name in numbered.items())
    return (
        f"cards are numbered by their order in argument `devices` ({listed}), and a driver may "
        "number them otherwise: compare, and name them in its order, or cuda:0, cuda:1 in a "
        "cluster file"
    )
