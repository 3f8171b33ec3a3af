"""Measure the size of the report page, and the time to open and pan it.

    python -m benchmarks.measure_report_page docs/results/report-page.json

It needs Playwright and the system's Chromium.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]

from placewright.report.page import page_text  # noqa: E402
from placewright.report.page_document import plans_document  # noqa: E402
from tests.report.report_problems import layered_plan  # noqa: E402

_SIZES, _RUNS, _FRAMES = (1_000, 10_000, 100_000), 5, 60
_PAN = """(frames) => new Promise((done) => {
  const { timeline, graph } = placewright.views;
  const view = WHICH === "timeline" ? timeline : graph;
  const [times, between] = [[], []];
  let left = frames;
  let before = 0;
  const step = (now) => {
    if (before > 0) between.push(now - before);
    before = now;
    const start = performance.now();
    const by = (left % 20 < 10 ? 12 : -12) / view.transform.k;
    d3.select(view.canvas).call(view.zoom.translateBy, by, 0);
    view.draw();
    times.push(performance.now() - start);
    left -= 1;
    if (left === 0) done([times, between]); else requestAnimationFrame(step);
  };
  view.zoomBy(ZOOM);
  requestAnimationFrame(step);
})"""


def main() -> None:
    """Write the figures."""
    rows = []
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for n_ops in _SIZES:
            started = time.process_time()
            text = page_text(plans_document(("net", layered_plan(n_ops))))
            path = Path(folder) / f"{n_ops}.html"
            path.write_text(text)
            row = {"ops": n_ops, "bytes": len(text), "write_cpu_s": time.process_time() - started}
            rows.append(row | _measured(browser, path, _RUNS if n_ops < 100_000 else 1))
        version = browser.version
        browser.close()
    document = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "load_1min": os.getloadavg()[0],
        "browser": f"Chromium {version}, headless, drawing in software",
        "rows": rows,
    }
    Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n")
    sys.stdout.write(json.dumps(document, indent=1) + "\n")


def _measured(browser: Any, path: Path, runs: int) -> dict[str, Any]:
    opening: list[float] = []
    found: dict[str, Any] = {}
    for _ in range(runs):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(600_000)
        page.goto(path.as_uri(), wait_until="commit")
        page.wait_for_selector("html[data-ready]")
        opening.append(page.evaluate("performance.now()") / 1e3)
        page.wait_for_selector("html[data-checked]")
        for which, zoom in (("timeline", 1.0), ("timeline", 8.0), ("graph", 1.0)):
            if which == "graph":
                page.click("[data-do=graph-open]")
            script = _PAN.replace("WHICH", json.dumps(which)).replace("ZOOM", str(zoom))
            times = page.evaluate(script, _FRAMES)
            key = f"pan_{which}{'_zoomed' if zoom > 1 else ''}"
            for what, column in zip(("draw_ms", "frame_ms"), times, strict=True):
                found.setdefault(f"{key}_{what}", []).append(statistics.median(column))
        move = "placewright.views.whatIf.value(placewright.views.state.plan.device).value"
        clock = "performance.now()"
        took = page.evaluate(f"(() => {{ const t = {clock}; {move}; return {clock} - t; }})()")
        found.setdefault("what_if_ms", []).append(took)
        page.close()
    medians = {key: round(statistics.median(values), 3) for key, values in found.items()}
    return {"open_s": round(statistics.median(opening), 3), "runs": runs, **medians}


if __name__ == "__main__":
    main()
