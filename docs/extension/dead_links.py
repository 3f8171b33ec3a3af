"""Sphinx extension that fails a build whose pages link to missing pages or parts of pages."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError


class _Page(HTMLParser):
    """The targets of a page's links, and the names of its parts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: dict[str, None] = {}
        self.parts: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note `id`, `href` and `src` of each element, and the `name` of anchors."""
        for key, value in attrs:
            if key == "id" or (key == "name" and tag == "a"):
                self.parts.add(value or "")
            elif key in ("href", "src") and value:
                self.targets[value] = None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the check, which runs when all pages are written."""
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True}


def dead_links(folder: Path) -> list[str]:
    """``page: target`` of each link in the HTML files of a folder that leads nowhere."""
    pages = {path.resolve(): _Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    return [
        f"{path.relative_to(folder.resolve())}: {target}"
        for path, page in pages.items()
        for target in page.targets
        if _is_dead(path, target, pages)
    ]


def _is_dead(path: Path, target: str, pages: dict[Path, _Page]) -> bool:
    """True if the file of a target, or the part of its page, does not exist."""
    url = urlsplit(target)
    if url.scheme or url.netloc:
        return False
    there = (path.parent / unquote(url.path)).resolve() if url.path else path
    if not there.exists():
        return True
    part = unquote(url.fragment)
    return bool(part) and there in pages and part not in pages[there].parts


def _check(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        dead = dead_links(Path(app.outdir))
        if dead:
            raise ExtensionError("links that lead nowhere:\n" + "\n".join(dead))
