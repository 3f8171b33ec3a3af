"""Pictures of results as SVG; equal numbers give equal bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from placewright.errors import MissingExtraError
from placewright.io.written import write_files

_SETTINGS = {
    "svg.hashsalt": "placewright",  # without it, identifiers differ between runs
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def pyplot() -> Any:
    """Matplotlib's drawing module, set up for files.

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
    """Write the figure that `draw` returns as an SVG file.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    module = pyplot()
    with module.rc_context(_SETTINGS):
        figure = draw(module)
        text = io.StringIO()
        # Without a date, equal numbers give equal files. White can be read on dark pages.
        figure.savefig(text, format="svg", metadata={"Date": None}, facecolor="white")
        module.close(figure)
    write_files({path: text.getvalue().encode()})
