"""Sentences of result pages that rows must support, and lists in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def claim(holds: bool, sentence: str) -> str:
    """The sentence, if rows support it.

    Raises:
        ValueError: they do not; the sentence must be rewritten.
    """
    if not holds:
        raise ValueError(f"the rows do not support this sentence any more: {sentence}")
    return sentence


def listed(names: Iterable[str]) -> str:
    """Names in code spans: ``"`a`, `b` and `c`"``; "none" without names."""
    spans = [f"`{name}`" for name in names]
    if len(spans) < 2:
        return spans[0] if spans else "none"
    return f"{', '.join(spans[:-1])} and {spans[-1]}"


def span(values: Sequence[float], form: str = ".3f") -> str:
    """Smallest and largest value: ``"0.9 to 1.2"``, or the only one."""
    texts = [format(value, form) for value in (min(values), max(values))]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)
