"""The document of one plan, or of two side by side."""

from __future__ import annotations

from typing import Any

from placewright.core.plan import Plan
from placewright.report.page.document import document_of


def plans_document(first: tuple[str, Plan]) -> dict[str, Any]:
    """What a page shows of a plan.

    Args:
        first: title and plan.
    """
    return document_of(first[1], first[0])
