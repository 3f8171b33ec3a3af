"""The pages that the site's extension writes from the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from placewright.profiling.catalogue import cluster_names, device_names, link_names

FILE = Path(__file__).parents[1] / "docs" / "extension" / "reference_pages.py"


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_options_are_definitions(pages: ModuleType) -> None:
    """A table of three columns does not fit a telephone."""
    page = dict(pages.command_pages())["place"]
    assert "`--budget TIME` (default: 10s, or 5s with `--quick`, without another limit)\n: " in page
    assert "| --- |" not in page
    assert "`batch=16`\n: neighbours per call to the evaluator." in pages.placer_page(
        "local-search"
    )


def test_options_in_sentences_are_code(pages: ModuleType) -> None:
    """Typography makes one long dash of two, which no shell takes."""
    for name, page in pages.command_pages():
        plain = re.sub(r"```.*?```|`[^`]*`", "", page, flags=re.DOTALL)
        assert not re.search(r"--[a-z]", plain), name


def test_the_page_of_the_catalogue_has_every_name(pages: ModuleType) -> None:
    page = pages.catalogue_page()
    rows = re.findall(r"^\| `(.*?)` \|", page, re.M)
    assert rows == [*device_names(), *link_names(), *cluster_names()]
    assert "| `gpu-rtx-4090` | 24 GiB | 1008 GB/s |" in page


def test_usage_has_the_whole_name_of_a_command(pages: ModuleType) -> None:
    for name, text in pages.command_pages():
        titles = re.findall(r"^#+ (placewright .*)$", text, re.M)
        usages = re.findall(r"^Usage: `(.*?) [A-Z\[]", text, re.M)
        assert usages == (titles if len(titles) == 1 else titles[1:]), name
