"""Draw the pictures of docs/pictures: the report page at two widths, light and dark.

python -m benchmarks.report_pictures
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]

from placewright.report.page import page_text  # noqa: E402
from placewright.report.page_document import plans_document  # noqa: E402
from tests.report.report_problems import layered_plan  # noqa: E402


def main() -> None:
    """Write four pictures."""
    folder = ROOT / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    path = Path(tempfile.mkdtemp()) / "page.html"
    path.write_text(page_text(plans_document(("network of 1,000 ops", layered_plan(1_000)))))
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                page = browser.new_page(
                    viewport={"width": width, "height": 1400}, color_scheme=scheme
                )
                page.goto(path.as_uri())
                page.wait_for_selector("html[data-checked]")
                page.screenshot(path=folder / f"report-{width}-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
