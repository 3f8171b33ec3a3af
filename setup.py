"""README as a package index shows it: without links and pictures that lead nowhere from there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
_RELATIVE = r"(?!https?://|#)([^)\s]+)"


def described(text: str, base: str | None) -> str:
    """Make relative links and pictures absolute, or leave them out if there is no address yet.

    Args:
        text: Markdown.
        base: address of the repository's files, such as "https://example.org/placewright/blob/main".
    """
    picture, link = rf"!\[([^\]]*)\]\({_RELATIVE}\)\n*", rf"(?<!!)\[([^\]]*)\]\({_RELATIVE}\)"
    if base is None:
        return re.sub(link, r"\1", re.sub(picture, "", text))
    raw = base.replace("/blob/", "/raw/")
    text = re.sub(link, rf"[\1]({base}/\2)", text)
    return re.sub(rf"!\[([^\]]*)\]\({_RELATIVE}\)", rf"![\1]({raw}/\2)", text)


def _base() -> str | None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    source = project.get("urls", {}).get("Source")
    return f"{source}/blob/v{project['version']}" if source else None


if __name__ == "__main__":
    readme = (HERE / "README.md").read_text()
    setup(
        long_description=described(readme, _base()),
        long_description_content_type="text/markdown",
    )
