"""A page of lines and tables, for commands whose answer is no plan: no script, one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from placewright.report.page.html import asset
from placewright.report.page.summary import table

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark"><title>{title}: Placewright</title>
<style>{styles}</style></head>
<body><header><h1>{title}</h1></header><main>
{body}
</main></body></html>
"""


@dataclass(frozen=True)
class ShownTable:
    """A table as a command printed it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables_page(title: str, shown: Sequence[str | ShownTable]) -> str:
    """Lines and tables in the order in which they were printed; the first line is the verdict."""
    parts, has_verdict = [], False
    for one in shown:
        if isinstance(one, ShownTable):
            parts.append(table(one.columns, one.rows, one.title))
        elif one and not has_verdict:
            parts.append(f'<p class="verdict">{escape(one)}</p>')
            has_verdict = True
        elif one:
            parts.append(f"<p>{escape(one)}</p>")
    return _PAGE.format(title=escape(title), styles=asset("page.css"), body="\n".join(parts))
