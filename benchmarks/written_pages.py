"""Pages of results that are mostly prose: templates whose numbers and claims come from rows.

A template in `benchmarks/pages` holds ``{{name}}`` for each value, so that its prose states no
figure of its own. `claim` guards a sentence that rows must support: if they no longer do, the pages
cannot be made before somebody rewrites it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from benchmarks.learned_values import learned_values
from benchmarks.paper_values import paper_values
from benchmarks.tarnawski_values import tarnawski_values

TEMPLATES = Path(__file__).parent / "pages"
_NAME = re.compile(r"\{\{(\w+)\}\}")
_VALUES = {"learned": learned_values, "papers": paper_values, "tarnawski": tarnawski_values}


def written_pages(folder: Path) -> dict[str, str]:
    """Name and Markdown of each page that a template makes from rows in `folder`."""
    return {
        f"{name}.md": filled((TEMPLATES / f"{name}.md").read_text(), values(folder))
        for name, values in _VALUES.items()
    }


def filled(template: str, values: Mapping[str, str]) -> str:
    """A template with its values.

    Raises:
        ValueError: a value is missing, or the template does not use one.
    """
    names = set(_NAME.findall(template))
    if names != set(values):
        raise ValueError(f"values and template differ in {sorted(names ^ set(values))}")
    return "\n".join(_with_values(line, values) for line in template.split("\n"))


def _with_values(line: str, values: Mapping[str, str]) -> str:
    """A line of a template; what gets longer than the page is wide by its values is wrapped."""
    text = _NAME.sub(lambda match: values[match[1]], line)
    return line if text == line else "\n".join(map(_wrapped, text.split("\n")))


def _wrapped(line: str) -> str:
    """A line of prose or of a list, at most 100 characters wide; tables and origins as they are."""
    if line.startswith(("|", "Command: ")):
        return line
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(
        line, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
