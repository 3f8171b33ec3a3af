"""The Markdown report of verdicts on foreign models, with figures about their reliability."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.foreign.verdicts import WheelRow
from placewright.report.tables import markdown_table

_SLOWER, _GAIN = 1.03, 1.10


@dataclass(frozen=True)
class VerdictFigures:
    """Figures over all rows.

    Attributes:
        quick_splits: number of measured quick plans with the verdict *split*.
        quick_slower: models among these that take over 3 % longer split than on one device.
        gains: number of checked plans that are splits at least 10 % faster than one device, also
            where all cores together are faster still and recommended.
        gains_found: number of these whose quick plan also has the verdict *split*.
        full_splits: number of checked plans that recommend a split.
        full_slower: models among these whose 95 % interval against one device is above 1.
        unequal: models whose outputs differ from the unsplit model's.
    """

    quick_splits: int
    quick_slower: tuple[str, ...]
    gains: int
    gains_found: int
    full_splits: int
    full_slower: tuple[str, ...]
    unequal: tuple[str, ...]


def verdict_figures(rows: Sequence[WheelRow]) -> VerdictFigures:
    """Count the figures; a plan that uses one device is not a split."""
    quick = [row for row in rows if row.quick_splits and row.quick_ratio > 0]
    full = [row for row in rows if row.full_splits and row.full_ratio > 0]
    splits = [row for row in rows if row.full_devices > 1 and row.full_ratio > 0]
    gains = [row for row in splits if 1.0 / row.full_ratio >= _GAIN]
    return VerdictFigures(
        len(quick),
        tuple(_name(row) for row in quick if row.quick_ratio > _SLOWER),
        len(gains),
        sum(row.quick_splits for row in gains),
        len(full),
        tuple(_name(row) for row in full if row.full_low > 1.0),
        tuple(_name(row) for row in rows if row.equal is False),
    )


def figure_lines(found: VerdictFigures) -> list[str]:
    """The figures as sentences."""
    share = f" ({found.gains_found / found.gains:.0%})" if found.gains else ""
    return [
        f"Quick plans that say split: {found.quick_splits}. Measured slower than one device by "
        f"more than 3 %: {_listed(found.quick_slower)}.",
        f"Gains of 10 % and more that the full check finds: {found.gains}. The quick plan also "
        f"says split for {found.gains_found}{share}.",
        f"Checked plans that recommend a split: {found.full_splits}. Their whole 95 % interval "
        f"against one device is above 1 for {_listed(found.full_slower)}.",
        f"Models whose outputs differ from the unsplit model's: {_listed(found.unequal)}.",
    ]


def verdict_table(rows: Sequence[WheelRow]) -> str:
    """The report: figures, a line per model, and reasons of models without measurement."""
    counts = Counter(row.outcome for row in rows)
    placed = [row for row in rows if row.quick_devices]
    others = [row for row in rows if row.reason]
    parts = [
        "# Verdicts on real models",
        "",
        "Written by `python -m benchmarks.wheels` from models in installed Python packages.",
        "A ratio is seconds of the plan over seconds of the best single device in the same round,",
        "with its 95 % interval. A plan that uses one device has no ratio.",
        "",
        *(f"- {line}" for line in figure_lines(verdict_figures(rows))),
        f"- Models: {', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}.",
        "",
        *markdown_table(
            ["model", "runtime", "ops", "one device (ms)", "quick says", "quick ratio",
             "quick place (s)", "full says", "full ratio", "full place (s)", "relative error"],
            [_cells(row) for row in placed],
        ),
        "",
        "## Steps that were not done, and why",
        "",
        *markdown_table(
            ["model", "runtime", "outcome", "why"],
            [[row.model, row.runtime, row.outcome, _plain(row.reason)] for row in others],
        ),
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _cells(row: WheelRow) -> list[str]:
    return [
        row.model,
        row.runtime,
        str(row.ops),
        f"{row.single_seconds * 1e3:.3g}" if row.single_seconds > 0 else "-",
        "split" if row.quick_splits else "one device",
        _ratio(row.quick_ratio, row.quick_low, row.quick_high),
        _number(row.quick_place_seconds),
        "split" if row.full_splits else row.full_recommendation or "-",
        _ratio(row.full_ratio, row.full_low, row.full_high),
        _number(row.full_place_seconds),
        f"{row.error:.1g}" if row.error >= 0 else "-",
    ]


def _ratio(middle: float, low: float, high: float) -> str:
    return f"{middle:.2f} ({low:.2f} to {high:.2f})" if middle > 0 else "-"


def _number(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 0 else "-"


def _listed(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "0"


def _name(row: WheelRow) -> str:
    return f"{row.model} under {row.runtime}"


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
