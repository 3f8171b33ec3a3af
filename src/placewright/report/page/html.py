"""The page: one HTML file that holds its data, its scripts and its styles, and asks for nothing."""

from __future__ import annotations

import base64
import json
import zlib
from importlib.resources import files
from string import Template
from typing import Any

from placewright.report.page.summary import summary_parts

# In this order: each file uses only what stands before it.
LIBRARIES = (
    "d3-dispatch",
    "d3-selection",
    "d3-drag",
    "d3-color",
    "d3-interpolate",
    "d3-timer",
    "d3-ease",
    "d3-transition",
    "d3-zoom",
    "uplot",
)
EVENT_MODEL = ("event_model", "event_queue", "simulate", "what_if")
VIEWS = (
    "format",
    "state",
    "timeline_rows",
    "timeline_draw",
    "timeline",
    "graph_draw",
    "graph",
    "charts",
    "details",
    "moves",
    "main",
)
_LEVEL = 6  # of compression: 9 takes ten times as long and saves a hundredth


def asset(name: str) -> str:
    """Text of a file of this package."""
    return (files("placewright.report.page") / "assets" / name).read_text(encoding="utf-8")


def page_text(document: dict[str, Any]) -> str:
    """The whole page.

    Args:
        document: from `document_of`, or `tables_document`.
    """
    libraries = "\n".join(asset(f"vendor/{name}.min.js") for name in LIBRARIES)
    scripts = "\n".join(asset(f"{name}.js") for name in (*EVENT_MODEL, *VIEWS))
    licences = "\n".join(
        asset(f"vendor/{name}") for name in ("LICENSE-d3.txt", "LICENSE-uplot.txt")
    )
    return Template(asset("page.html")).substitute(
        **summary_parts(document),
        styles=asset("vendor/uplot.min.css") + asset("page.css"),
        libraries=_in_script(libraries),
        scripts=_in_script(scripts),
        licences=licences.replace("--", "- -"),
        data=compressed(document),
    )


def compressed(document: dict[str, Any]) -> str:
    """A document as the page keeps it: JSON, compressed, in letters."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), _LEVEL)).decode()


def unpacked(page: str) -> dict[str, Any]:
    """The document of a page: what `packed` wrote."""
    letters = page.split('<script type="application/octet-stream" id="data">')[1].split("<")[0]
    document: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(letters)))
    return document


def _in_script(text: str) -> str:
    """Nothing in a script may look like its end."""
    return text.replace("</script", "<\\/script")
