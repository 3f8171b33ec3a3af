"""Pictures of results for the documents: SVG, the same bytes for the same numbers."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from placewright.errors import MissingExtraError
from placewright.io.written import write_files

_SETTINGS = {
    "svg.hashsalt": "placewright",  # or identifiers differ from run to run
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def pyplot() -> Any:
    """Matplotlib's drawing module, for files alone.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "a picture of results") from None
    matplotlib.use("agg")
    from matplotlib import pyplot as module

    return module


def write_picture(draw: Callable[[Any], Any], path: Path) -> None:
    """Write what `draw` makes of matplotlib's drawing module as SVG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    module = pyplot()
    with module.rc_context(_SETTINGS):
        figure = draw(module)
        text = io.StringIO()
        # No date: the same numbers give the same file. A white ground reads on dark pages, too.
        figure.savefig(text, format="svg", metadata={"Date": None}, facecolor="white")
        module.close(figure)
    write_files({path: text.getvalue().encode()})
