"""The build of the site fails if a link leads nowhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("sphinx")
EXTENSION = Path(__file__).parents[1] / "docs" / "extension" / "dead_links.py"


def test_missing_pages_parts_and_pictures_are_found(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("dead_links", EXTENSION)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "part").mkdir()
    (tmp_path / "a picture.png").write_bytes(b"")
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="#top"></a><a href="part/other.html#b%C3%A9"></a>'
        '<img src="a%20picture.png"><a href="https://example.org/x"></a><a href="#"></a>'
        '<a href="#gone"></a><a href="part/other.html#gone"></a><a href="gone.html"></a>'
    )
    (tmp_path / "part" / "other.html").write_text(
        '<h1 id="bé"></h1><a href="../index.html#top"></a><img src="gone.png">'
    )
    assert module.dead_links(tmp_path) == [
        "index.html: #gone",
        "index.html: part/other.html#gone",
        "index.html: gone.html",
        "part/other.html: gone.png",
    ]
