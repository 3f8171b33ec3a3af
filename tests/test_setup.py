"""README in the wheel has no link or picture that only works inside the repository."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
DESCRIBED = runpy.run_path(str(ROOT / "setup.py"))["described"]
README = (ROOT / "README.md").read_text()
TARGETS = r"\]\(([^)]+)\)"


def test_without_an_address_the_texts_of_links_stay() -> None:
    text = DESCRIBED(README, None)
    assert re.findall(TARGETS, text) == []
    assert "Hardware status has the details." in text
    assert "![" not in text


def test_with_an_address_links_and_pictures_are_absolute() -> None:
    text = DESCRIBED(README, "https://example.org/p/blob/v1")
    assert len(re.findall(TARGETS, README)) == len(re.findall(TARGETS, text)) > 10
    assert all(target.startswith("https://example.org/p/") for target in re.findall(TARGETS, text))
    assert "(https://example.org/p/raw/v1/docs/pictures/report-1280-light.png)" in text
    assert "(https://example.org/p/blob/v1/docs/start/hardware.md)" in text


def test_absolute_links_stay() -> None:
    text = "[a](https://example.org/b) and [c](#d)"
    assert DESCRIBED(text, None) == DESCRIBED(text, "https://example.org/x/blob/v1") == text
