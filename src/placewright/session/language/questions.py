"""Plans of variants of a request to a language model, such as with fewer cards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from placewright.core.cluster import Cluster, Device, Link
from placewright.core.data_sheet import DataSheet
from placewright.core.plan import Plan
from placewright.core.quantities import format_bytes, plain_number
from placewright.errors import FieldError, InfeasibleError, InputError
from placewright.execution.token_work import PHASES, Phase
from placewright.profiling.catalogue import entry_of
from placewright.report.tables import ShownTable, table
from placewright.session.language.answer import TokenAnswer, token_answer
from placewright.session.language.problem import devices_of
from placewright.session.parsing import SWEPT
from placewright.session.request import Request

_MOST_VALUES = 20  # of a sweep
_MOST_CARDS = 8  # of which every choice is planned
_NOTHING = 0.01  # share of the speed below which a change brings nothing
_NO_CARD = "no card"  # begin of a variant's name
_FASTER = 2.0  # times the memory, the bandwidth or the link of an upgrade
_Places = Callable[[Request], Plan]


@dataclass(frozen=True)
class Variant:
    """The best plan of a changed request."""

    name: str  # of the change
    answer: TokenAnswer | None  # speed of the plan; None if nothing fits
    gap: float = 0.0  # proven of the plan
    used: tuple[str, ...] = ()  # devices that hold modules
    reason: str = ""  # why nothing fits or was found, or why the model refuses a swept value
    is_infeasible: bool = True  # without an answer: nothing fits, or nothing was found
    is_proven: bool = True  # if it is infeasible: nothing fits

    @property
    def decode(self) -> float:
        """Tokens per second of decode; 0 if nothing fits."""
        return self.rate("decode")

    def rate(self, phase: Phase) -> float:
        """Tokens per second of a phase; 0 if nothing fits."""
        return 0.0 if self.answer is None else self.answer.rate(phase)

    def data(self) -> dict[str, object]:
        """The variant as JSON."""
        fits = self.answer is not None
        return {
            "name": self.name,
            "fits": fits,
            "reason": self.reason or None,
            "gap": self.gap if fits else None,
            "devices": list(self.used),
            "tokens": self.answer.data() if self.answer is not None else None,
        }


class Questions:
    """Plans variants of a request.

    Args:
        place: makes the plan of a request.

    Raises:
        FieldError: the request has no devices with data sheets.
    """

    def __init__(self, request: Request, place: _Places) -> None:
        cluster = devices_of(request)
        for name, size in request.memory.items():
            cluster = cluster.with_limit(name, size)
        self._request = replace(request, devices=None, cluster=cluster, memory={})
        self._cluster, self._place = cluster, place

    def as_it_is(self) -> Variant:
        """Plan the request without a change."""
        return self._variant("as it is", self._request)

    def require(
        self, *, sweeps: Mapping[str, Sequence[int]] | None = None, rate: float | None = None
    ) -> None:
        """Refuse wrong questions before the work of answering others.

        Raises:
            FieldError: a field is none of `SWEPT`, there are too many values or cards, or the rate
                is no number > 0.
        """
        for field, values in (sweeps or {}).items():
            if field not in SWEPT:
                raise FieldError("sweep", f"knows {', '.join(SWEPT)}, got '{field}'")
            if not 1 <= len(values) <= _MOST_VALUES:
                raise FieldError("sweep", f"takes 1 to {_MOST_VALUES} values, got {len(values)}")
        if rate is None:
            return
        if not 0 < rate < math.inf:
            raise FieldError("reach", f"must be > 0 tokens/s and finite, got {rate}")
        if len(self._cards) > _MOST_CARDS:
            raise FieldError("reach", f"chooses among {_MOST_CARDS} cards, got {len(self._cards)}")

    def sweep(self, field: str, values: Sequence[int]) -> list[Variant]:
        """Plan the request with each value of a field, one of `SWEPT`.

        Raises:
            FieldError: there is no such field, or there are too many values.
        """
        self.require(sweeps={field: values})
        changes: list[dict[str, Any]] = [{field: value} for value in values]
        return [
            self._variant(f"{field} {change[field]}", replace(self._request, **change), field)
            for change in changes
        ]

    def without_each(self) -> list[Variant]:
        """Plan the request without each of its cards; cards that nothing tells apart count once."""
        found = []
        seen: list[object] = []
        for device in self._cards:
            kept = [other for other in self._cards if other.name != device.name]
            # In their order: layers lie in runs, and the first card copies weights of the host.
            traits = self._traits(device), [self._traits(other) for other in kept]
            if traits in seen:
                continue
            seen.append(traits)
            if kept or self._host:
                found.append(self._of_cards(f"without {device.name}", kept))
        return found

    def upgrades(self) -> list[Variant]:
        """Plan the request with twice the memory or bandwidth of a device, or faster links.

        All links are twice as fast then. A device whose rates were measured keeps its bandwidth.
        """
        found = []
        for device in self._cluster.devices:
            sheet = entry_of(device)
            if math.isfinite(device.memory_bytes):
                more = replace(device, memory_bytes=_FASTER * device.memory_bytes)
                size = format_bytes(more.memory_bytes)
                found.append(self._with_device(f"{device.name} with {size}", more))
            if device.data_sheet is not None and device.data_sheet.tokens is not None:
                continue  # measured rates do not tell bandwidth from anything else
            faster = replace(device, data_sheet=DataSheet(sheet.peak, _FASTER * sheet.bandwidth))
            rate = f"{_FASTER * sheet.bandwidth / 1e9:.0f} GB/s"
            found.append(self._with_device(f"{device.name} with memory of {rate}", faster))
        links = tuple(
            replace(link, bandwidth=_FASTER * link.bandwidth) for link in self._cluster.links
        )
        if links:
            found.append(self._with("links twice as fast", replace(self._cluster, links=links)))
        return found

    def cheapest(self, rate: float) -> list[Variant]:
        """Choices of cards that decode so many tokens per second: the cheapest, or the fewest.

        The plan of a choice is the fastest one for prefill and decode together.

        The host's CPU is always there. Prices count if every card has one; otherwise the number of
        cards does. If no choice reaches the rate, the answer is the fastest one.

        Raises:
            FieldError: there are too many cards, or the rate is no number > 0.
        """
        self.require(rate=rate)
        is_priced = self.is_priced

        def cost(chosen: Sequence[Device]) -> float:
            prices = [device.price_per_hour or 0.0 for device in chosen]
            return math.fsum(prices) if is_priced else len(chosen)

        numbers = range(0 if self._host else 1, len(self._cards) + 1)
        choices = [chosen for number in numbers for chosen in self._choices(number)]
        choices.sort(key=cost)
        tried: list[Variant] = []
        for total, alike in itertools.groupby(choices, key=cost):
            price = f" (price {total:g})" if is_priced else ""
            new = [self._of_cards(f"{_listed(chosen)}{price}", chosen) for chosen in alike]
            tried += new
            if reached := [variant for variant in new if variant.decode >= rate]:
                return sorted(reached, key=lambda variant: -variant.decode)
        best = max(tried, key=lambda variant: (variant.decode, variant.is_infeasible))
        return [replace(best, is_proven=all(variant.is_proven for variant in tried))]

    @property
    def is_priced(self) -> bool:
        """True if every card has a price."""
        prices = [device.price_per_hour for device in self._cards]
        return bool(prices) and None not in prices

    @property
    def _host(self) -> list[Device]:
        return [device for device in self._cluster.devices if device.name == self._cluster.host]

    @property
    def _cards(self) -> list[Device]:
        return [device for device in self._cluster.devices if device.name != self._cluster.host]

    def _choices(self, number: int) -> Iterator[tuple[Device, ...]]:
        """Sets of so many cards; sets that nothing tells apart count once."""
        seen: list[object] = []
        for chosen in itertools.combinations(self._cards, number):
            names = {card.name for card in chosen}
            within = [
                link for link in self._cluster.links if {link.source, link.destination} <= names
            ]
            traits = [self._traits(card) for card in chosen], sorted(map(_plain_link, within))
            if traits not in seen:
                seen.append(traits)
                yield chosen

    def _traits(self, card: Device) -> object:
        """All of a card but its name, to tell it from others; all of it where a pin names it.

        Its links count, too. The other end of one counts by its traits, as far as it is a card.
        """
        if any(card.name in at.split("+") for at in self._request.pins.values()):
            return card
        unnamed = {other.name: replace(other, name="card") for other in self._cards}
        links = []
        for link in self._cluster.links:
            ends = [link.source, link.destination]
            if card.name in ends:
                others = [repr(unnamed.get(end, end)) for end in ends]
                links.append((others, _plain_link(link)))
        return unnamed[card.name], sorted(links)

    def _of_cards(self, name: str, cards: Sequence[Device]) -> Variant:
        names = {device.name for device in cards}
        absent = {device.name for device in self._cards} - names
        for at in self._request.pins.values():
            if pinned := sorted(absent.intersection(at.split("+"))):
                reason = f"argument `pins` names '{pinned[0]}'"
                return Variant(name, None, reason=reason, is_infeasible=False)
        devices = tuple(
            device
            for device in self._cluster.devices
            if device.name in names or device.name == self._cluster.host
        )
        left = {*(device.name for device in devices), self._cluster.host}
        links = tuple(
            link for link in self._cluster.links if {link.source, link.destination} <= left
        )
        return self._with(name, replace(self._cluster, devices=devices, links=links))

    def _with_device(self, name: str, device: Device) -> Variant:
        devices = tuple(
            device if other.name == device.name else other for other in self._cluster.devices
        )
        return self._with(name, replace(self._cluster, devices=devices))

    def _with(self, name: str, cluster: Cluster) -> Variant:
        return self._variant(name, replace(self._request, cluster=cluster))

    def _variant(self, name: str, request: Request, swept: str = "") -> Variant:
        try:
            plan = self._place(request)
        except InfeasibleError as fault:
            return Variant(name, None, reason=str(fault), is_proven=fault.is_proven)
        except FieldError as fault:  # of a swept value, such as more context than the model has
            if not swept or fault.field not in SWEPT:
                raise
            reason = fault.fault if fault.field == swept else f"{fault.field} {fault.fault}"
            return Variant(name, None, reason=reason, is_infeasible=False)
        answer = token_answer(plan, contexts=False)
        if answer is None:
            raise InputError(f"'{request.name}' is not a language model")
        names = plan.problem.cluster.device_names
        used = sorted({names[int(at)] for at in plan.placement.device_of[1:]})
        return Variant(name, answer, plan.gap, tuple(used))


def _plain_link(link: Link) -> str:
    """A link without the names of its ends and of its channel."""
    plain = link.latency_seconds, link.bandwidth, link.queues, link.occupies
    return repr(plain)


def _listed(cards: Sequence[Device]) -> str:
    return ", ".join(card.name for card in cards) or _NO_CARD


def variants_table(title: str, base: Variant | None, variants: Sequence[Variant]) -> ShownTable:
    """Speeds of variants, beside a request that is compared with them if there is one."""
    columns = ["variant", "decode (tokens/s)", "prefill (tokens/s)", "gap", "devices"]
    rows = [base, *variants] if base is not None else list(variants)
    if base is not None:
        columns.insert(2, "change")
    return table(title, columns, [_row(base, variant) for variant in rows])


def _row(base: Variant | None, variant: Variant) -> list[str]:
    if variant.answer is None:
        none = "does not fit" if variant.is_proven else "none found"
        cells = [none if variant.is_infeasible else "refused", "-", "-", "-"]
    else:
        texts = [plain_number(variant.answer.rate(phase)) for phase in ("decode", "prefill")]
        cells = [*texts, f"{variant.gap:.2%}", ", ".join(variant.used)]
    if base is not None:
        cells.insert(1, _change(base, variant))
    return [variant.name, *cells]


def _change(base: Variant, variant: Variant) -> str:
    if variant is base or not (base.decode and variant.decode):
        return "-"
    return f"{variant.decode / base.decode - 1:+.1%}"


def refused_lines(variants: Sequence[Variant]) -> list[str]:
    """The reason of each variant that the model refuses."""
    refused = [one for one in variants if one.answer is None and not one.is_infeasible]
    return [f"{one.name} is refused: {one.reason}" for one in refused]


def reach_lines(rate: float, found: Sequence[Variant], *, is_priced: bool = False) -> list[str]:
    """The cards whose fastest plan decodes so many tokens per second, or that no choice does.

    Args:
        rate: tokens per second that were asked.
        found: choices of cards, see `Questions.cheapest`.
        is_priced: they are the cheapest, and otherwise the fewest.
    """
    best = max(variant.decode for variant in found)
    if best < rate:
        none = "the model fits on none" if found[0].is_proven else "no placement was found"
        none = none if found[0].is_infeasible else found[0].reason
        fastest = f"the best one decodes {best:.4g}" if best else none
        return [
            "no choice of these devices has a fastest plan for the request that decodes "
            f"{rate:g} tokens/s: {fastest}"
        ]
    if found[0].name.startswith(_NO_CARD):
        alone = " and ".join(found[0].used)
        return [f"no card is needed for {rate:g} tokens/s: {alone} decodes {best:.4g}"]
    least = "cheapest" if is_priced else "fewest"
    named = [one.name.replace(", ", " and ") for one in found]
    each = " or ".join(
        f"{name} with {one.decode:.4g} tokens/s" for name, one in zip(named, found, strict=True)
    )
    return [
        f"the {least} cards whose fastest plan for the request decodes {rate:g} tokens/s: {each}"
    ]


def advice_lines(
    base: Variant, without: Sequence[Variant], upgrades: Sequence[Variant]
) -> list[str]:
    """Cards that bring nothing, and the change that helps decode most.

    All speeds are those of plans that are fastest for the whole request.
    """
    lines = []
    for variant in without:
        name = variant.name.removeprefix("without ")
        slower = [
            phase for phase in PHASES if variant.rate(phase) < base.rate(phase) * (1 - _NOTHING)
        ]
        if variant.decode and not slower:
            lines.append(
                f"{name} brings nothing: prefill and decode are as fast without it; do not split"
            )
        elif variant.decode:
            phase = slower[-1]  # decode, if it is slower
            times = base.rate(phase) / variant.rate(phase)
            lines.append(f"{name} makes {phase} {times:.2f} times as fast")
        elif base.decode and variant.is_infeasible and not variant.is_proven:
            lines.append(f"no placement was found without {name}")
        elif base.decode:
            why = "nothing fits without it" if variant.is_infeasible else variant.reason
            lines.append(f"{name} is needed: {why}")
    best = max(upgrades, key=lambda variant: variant.decode, default=None)
    if best is not None and best.decode > base.decode * (1 + _NOTHING):
        more = f"decode {best.decode / base.decode - 1:+.1%}" if base.decode else "then it fits"
        lines.append(f"the single change that helps most: {best.name} ({more})")
    elif upgrades:
        lines.append(
            f"no single change helps decode by more than {_NOTHING:.0%}, in plans that are fastest "
            "for the whole request"
        )
    return lines
