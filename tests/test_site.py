"""The documentation site in a real browser: its search, at two widths, light and dark."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"
    ),
]
ROOT = Path(__file__).parents[1]
PATIENCE = 120_000  # milliseconds, against hanging
MOST = 4  # results that a reader looks at


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the site and serve it on the loopback interface."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "docs", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE
        )
        yield launched
        launched.close()


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("memory limit", "how-to/limits"),
        ("hsdag", "reference/placers/hsdag"),
        ("do not split", "start/do-i-need-this"),
    ],
)
def test_search_leads_to_the_right_page(query: str, page: str, browser: Any, address: str) -> None:
    tab = browser.new_page()
    tab.set_default_timeout(PATIENCE)
    tab.goto(f"{address}/search.html?q={query.replace(' ', '+')}")
    tab.wait_for_selector("#search-results ul.search li a")
    tab.wait_for_function(
        "document.querySelector('#search-results .search-summary').innerText.includes('found')"
    )
    links = tab.eval_on_selector_all(
        "#search-results ul.search li > a", "all => all.map((link) => link.pathname)"
    )
    assert f"/{page}.html" in links[:MOST]
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_width(width: int, scheme: str, browser: Any, address: str) -> None:
    """No page is wider than the window, and no file of a page is missing."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    tab, missing = context.new_page(), list[str]()
    tab.set_default_timeout(PATIENCE)
    tab.on("response", lambda answer: missing.append(answer.url) if answer.status >= 400 else None)
    for page in ("index", "start/index", "concepts/time-and-memory", "reference/commands/place",
                 "results/index"):  # fmt: skip
        tab.goto(f"{address}/{page}.html")
        wide = tab.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, page
    assert missing == []
    context.close()
