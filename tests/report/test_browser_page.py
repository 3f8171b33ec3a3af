"""The page in a real browser: opened from disk, with no network, by pointer, keys and touch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.report_problems import N_MOVES, N_PROBLEMS, moved_rows

from placewright.core.placement import Placement
from placewright.report.page import page_text
from placewright.report.page_document import event_data, plans_document
from placewright.simulation.model import Simulator
from tests.report.report_problems import layered_plan, odd_problem, plan_for

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"
)
NET = 600_000  # milliseconds: against hanging only, for machines that are busy
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


@dataclass
class Opened:
    """A page that is ready, and what went wrong in it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        """Text of an element."""
        return str(self.page.text_content(selector))

    def settled(self) -> None:
        """Wait until what was asked for is drawn."""
        self.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=NET)
        yield found
        found.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of 1,000 and 10,000 ops, and of two plans."""
    folder = tmp_path_factory.mktemp("pages")
    small, large = layered_plan(1_000), layered_plan(10_000)
    documents = {
        "small": plans_document(("network of 1,000 ops", small)),
        "large": plans_document(("network of 10,000 ops", large)),
        "two": plans_document(("first", small), ("other", layered_plan(1_000, seed=2))),
    }
    for name, document in documents.items():
        (folder / f"{name}.html").write_text(page_text(document))
    return {name: folder / f"{name}.html" for name in documents}


def opened(browser: Any, path: Path, **options: Any) -> Opened:
    """Open a file; anything but the file itself is refused and remembered."""
    options = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **options}
    context = browser.new_context(offline=True, **options)
    page = context.new_page()
    page.set_default_timeout(NET)
    found = Opened(page)
    page.on("console", lambda m: found.errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: found.errors.append(str(error)))
    page.on("request", lambda r: found.asked.append(r.url) if r.url != path.as_uri() else None)
    page.goto(path.as_uri())
    if options.get("java_script_enabled", True):
        page.wait_for_selector("html[data-checked]", timeout=NET)
    return found


def until(page: Any, expression: str) -> None:
    """Wait for an expression; the page's own rules forbid the driver to poll inside it."""
    for _ in range(NET // 25):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never became true: {expression}")


@pytest.mark.parametrize("name", ["small", "large", "two"])
def test_a_page_opens_without_an_error_and_asks_for_nothing(
    browser: Any, files: dict[str, Path], name: str
) -> None:
    found = opened(browser, files[name])
    order = found.page.eval_on_selector_all("h2", "all => all.map((one) => one.textContent)")
    assert order[0] == "Predicted and measured"
    wanted = ["Timeline", "Critical path", "Idle time by cause", "Memory", "Graph", "What if"]
    assert [title for title in order if title in wanted] == wanted
    assert found.page.evaluate("placewright.difference") <= 1e-12
    assert found.text("#what-if-value") == ""
    assert found.errors == []
    assert found.asked == []


@pytest.mark.parametrize("name", ["small", "large"])
def test_the_timeline_by_wheel_pointer_and_keys(
    browser: Any, files: dict[str, Path], name: str
) -> None:
    found = opened(browser, files[name])
    page, canvas = found.page, found.page.locator("#timeline canvas")
    canvas.scroll_into_view_if_needed()
    whole = _view(page)
    assert whole["from"] == pytest.approx(0.0, abs=1e-9)
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 35)
    page.mouse.wheel(0, -600)
    until(page, "placewright.views.timeline.transform.k > 1.5")
    closer = _view(page)
    assert closer["to"] - closer["from"] < (whole["to"] - whole["from"]) / 1.5
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 - 150, box["y"] + 35, steps=4)
    page.mouse.up()
    found.settled()
    assert _view(page)["from"] > closer["from"]
    canvas.focus()
    before = _view(page)
    page.keyboard.press("ArrowLeft")
    found.settled()
    assert _view(page)["from"] < before["from"]
    page.keyboard.press("0")
    found.settled()
    assert _view(page) == pytest.approx(whole)
    page.keyboard.press("n")
    first = found.text("#details")
    page.keyboard.press("n")
    assert found.text("#details") != first
    assert "Reads" in first
    page.keyboard.press("ArrowDown")
    assert found.text("#live") != ""
    assert found.errors == []


def test_a_bar_says_what_it_is_and_why_it_waited(browser: Any, files: dict[str, Path]) -> None:
    found = opened(browser, files["small"])
    page = found.page
    page.locator("#timeline canvas").scroll_into_view_if_needed()
    page.evaluate("placewright.views.timeline.zoomBy(60)")
    found.settled()
    place = page.evaluate(
        """() => {
          const t = placewright.views.timeline;
          const view = t.view();
          const row = t.rows.find((one) => one.kind === "unit" && one.items.some((_, i) =>
            one.start[i] > view.from && one.end[i] < view.to));
          const isInside = (_, i) => row.start[i] > view.from && row.end[i] < view.to;
          const at = row.items.findIndex(isInside);
          const box = t.canvas.getBoundingClientRect();
          const left = placewright.labelWidth(box.width);
          const middle = (row.start[at] + row.end[at]) / 2;
          const share = (middle - view.from) / (view.to - view.from);
          const x = box.left + left + share * (box.width - left);
          return { x, y: box.top + row.top + 8, unit: row.items[at] };
        }"""
    )
    page.mouse.move(place["x"], place["y"])
    until(page, "!document.getElementById('tip').hidden")
    tip = found.text("#tip").split("\n")
    plan = layered_plan(1_000)
    timeline = Simulator(plan.problem).timeline(plan.placement)
    assert tip[0] == plan.problem.unit_graph.op_names[place["unit"]]
    device = plan.problem.cluster.device_names[int(timeline.device_of[place["unit"]])]
    assert tip[1].endswith(f"on {device}")
    text, _, other = timeline.last_before(place["unit"])
    word = {"input": "waited for", "stream": "its device was busy", "none": "waited for nothing"}
    assert tip[3].startswith(word[text.split(" ")[0]]), (text, other)
    page.mouse.click(place["x"], place["y"])
    assert tip[0] in found.text("#details")


@pytest.mark.parametrize("name", ["small", "large"])
def test_the_graph_opens_group_by_group(browser: Any, files: dict[str, Path], name: str) -> None:
    found = opened(browser, files[name])
    page, canvas = found.page, found.page.locator("#graph canvas")
    canvas.scroll_into_view_if_needed()
    assert page.evaluate("placewright.views.graph.open.size") == 1
    place = page.evaluate(
        """() => {
          const graph = placewright.views.graph;
          const node = graph.state.children[0][0];
          const [x, y, width, height] = graph.picture().box(node);
          const box = graph.canvas.getBoundingClientRect();
          return { node, x: box.left + x + width / 2, y: box.top + y + height / 2 };
        }"""
    )
    page.mouse.click(place["x"], place["y"])
    assert page.evaluate("node => placewright.views.graph.open.has(node)", place["node"])
    assert "units" in found.text("#details")
    canvas.focus()
    page.keyboard.press("Enter")
    found.settled()
    inner = page.evaluate("placewright.views.graph.selected")
    assert (
        page.evaluate("node => placewright.views.state.data.graph.parent[node]", inner)
        == place["node"]
    )
    page.keyboard.press("Backspace")
    assert page.evaluate("placewright.views.graph.selected") == place["node"]
    page.fill("#find", "op_77")
    names = page.eval_on_selector_all("#found option", "all => all.map((one) => one.value)")
    assert names
    assert all("op_77" in one for one in names)
    page.fill("#find", names[-1])
    page.keyboard.press("Tab")
    until(page, f"document.getElementById('details').textContent.includes('{names[-1]}')")
    page.click("[data-do=graph-open]")
    found.settled()
    page.click("[data-do=graph-close]")
    assert found.errors == []


def test_what_if_by_hand_is_what_python_says(browser: Any, files: dict[str, Path]) -> None:
    found = opened(browser, files["small"])
    page, plan = found.page, layered_plan(1_000)
    names, simulator = plan.problem.unit_graph.op_names, Simulator(plan.problem)
    device_of = plan.placement.device_of.copy()
    for unit, device in ((10, 3), (555, 0), (999, 2)):
        page.evaluate("unit => placewright.views.state.select({ unit, from: 'find' })", unit)
        assert names[unit] in found.text("#moved-what")
        page.select_option("#move-to", str(device))
        page.click("[data-do=move]")
        device_of[unit] = device
        value = simulator.value(Placement.of(device_of))
        assert page.evaluate("placewright.views.state.current.value") == pytest.approx(
            value, rel=1e-12
        )
        change = value / plan.value - 1
        sign = "+" if change >= 0 else "−"
        assert f"({sign}{abs(change):.2%})" in found.text("#what-if-value")
    assert page.locator("#moves li").count() == 3
    page.click("[data-do=undo]")
    assert page.locator("#moves li").count() == 2
    page.click("[data-do=reset]")
    assert page.evaluate("placewright.views.state.current.value") == plan.value
    assert found.errors == []


def test_five_hundred_moves_in_the_browser(browser: Any, files: dict[str, Path]) -> None:
    found = opened(browser, files["small"])
    n_feasible = 0
    for seed in range(N_PROBLEMS):
        problem = odd_problem(seed)
        order = problem.unit_graph.topological_order if seed % 4 == 3 else None
        rows = moved_rows(problem, seed, N_MOVES)
        given = {"model": event_data(problem, Placement.of(rows[0], order)), "rows": rows.tolist()}
        values = found.page.evaluate(
            """({ model, rows }) => {
              const read = placewright.eventModel(model);
              return rows.map((row) => {
                const { value } = placewright.simulate(read, row, read.order);
                return Number.isFinite(value) ? value : null;
              });
            }""",
            given,
        )
        simulator = Simulator(problem)
        for row, value in zip(rows, values, strict=True):
            wanted = simulator.value(Placement.of(row, order))
            assert (value is None) == bool(np.isinf(wanted))
            if value is not None:
                n_feasible += 1
                assert value == pytest.approx(wanted, rel=1e-12, abs=0.0)
    assert n_feasible > N_PROBLEMS * N_MOVES / 4


def test_a_limit_that_a_move_breaks_is_named(browser: Any, tmp_path: Path) -> None:
    from dataclasses import replace

    plan = layered_plan(60)
    devices = [replace(d, memory_bytes=2e7) for d in plan.problem.cluster.devices]
    devices[2] = replace(devices[2], memory_bytes=1e6)
    cluster = replace(plan.problem.cluster, devices=tuple(devices))
    problem = replace(plan.problem, cluster=cluster, pins={5: 0})
    path = tmp_path / "page.html"
    plan = plan_for(problem, np.zeros(60, dtype=np.int64))
    path.write_text(page_text(plans_document(("limits", plan))))
    found = opened(browser, path)
    page = found.page
    page.evaluate(
        "placewright.views.state.select({ node: placewright.views.state.children[0][0] })"
    )
    page.select_option("#move-to", "2")
    page.click("[data-do=move]")
    simulator = Simulator(problem)
    units = page.evaluate("placewright.views.whatIf.moves[0].units")
    device_of = plan.placement.device_of.copy()
    device_of[units] = 2
    violation = simulator.violation(Placement.of(device_of))
    assert violation is not None
    word = {"memory": "short of memory", "pin": "is pinned to gpu:0"}[violation.constraint]
    assert word in found.text("#what-if-value")
    page.click("[data-do=reset]")
    page.evaluate("placewright.views.state.select({ unit: 5 })")
    page.click("[data-do=move]")
    assert "is pinned to gpu:0" in found.text("#what-if-value")


def test_an_impossible_move_shows_the_plan_again(browser: Any, tmp_path: Path) -> None:
    """Its own value, not that of the move before."""
    from dataclasses import replace

    problem = replace(layered_plan(60).problem, pins={5: 0})
    plan = plan_for(problem, np.zeros(60, dtype=np.int64))
    path = tmp_path / "page.html"
    path.write_text(page_text(plans_document(("pinned", plan))))
    page = opened(browser, path).page
    page.select_option("#move-to", "2")
    values = []
    for unit in (10, 5):
        page.evaluate("unit => placewright.views.state.select({ unit, from: 'find' })", unit)
        page.click("[data-do=move]")
        values.append(page.evaluate("placewright.views.state.current.value"))
    assert values[0] != plan.value
    assert values[1] == plan.value


@pytest.mark.parametrize(
    ("objective", "text"), [("energy", "drawn for times only"), ("latency", "not searched for")]
)
def test_a_plan_without_points_of_its_search_says_why(
    objective: str, text: str, browser: Any, tmp_path: Path
) -> None:
    document = plans_document(("net", layered_plan(100)))
    document["objective"], document["plan"]["history"] = objective, []
    document["plan"]["has_history"] = objective == "energy"
    path = tmp_path / "page.html"
    path.write_text(page_text(document))
    assert text in opened(browser, path).text("#history")


def test_a_page_whose_simulation_differs_says_so(browser: Any, tmp_path: Path) -> None:
    document = plans_document(("net", layered_plan(100)))
    document["plan"]["value"] *= 1.001
    path = tmp_path / "page.html"
    path.write_text(page_text(document))
    assert "do not trust" in opened(browser, path).text("#what-if-value")


def test_two_plans_are_side_by_side(browser: Any, files: dict[str, Path]) -> None:
    found = opened(browser, files["two"])
    assert "ops are on another device" in found.text("#comparison-part")
    labels = found.page.evaluate("placewright.views.timeline.rows.map((row) => row.label)")
    assert "gpu:0" in labels
    assert "2: gpu:0" in labels
    first, other = layered_plan(1_000), layered_plan(1_000, seed=2)
    moved = int((first.placement.device_of != other.placement.device_of).sum())
    assert found.page.evaluate("placewright.views.state.movedUnits.size") == moved
    assert not opened(browser, files["small"]).page.is_visible("#comparison-part")


def test_bars_of_the_other_plan_are_of_that_plan(browser: Any, files: dict[str, Path]) -> None:
    """Their critical path, and the device in the details of a bar."""
    found = opened(browser, files["two"])
    page, first, other = found.page, layered_plan(1_000), layered_plan(1_000, seed=2)
    path = Simulator(other.problem).timeline(other.placement).critical_path
    marked = page.evaluate(
        """["unit", "hop"].map((kind) => {
          const isOther = (row) => row.kind === kind && row.label.startsWith("2: ");
          return [...placewright.views.timeline.rows.find(isOther).critical];
        })"""
    )
    for is_transfer, drawn in zip((False, True), marked, strict=True):
        assert set(drawn) == {step.index for step in path if step.is_transfer == is_transfer}
    unit = int(np.flatnonzero(first.placement.device_of != other.placement.device_of)[0])
    page.evaluate(
        """(unit) => {
          const t = placewright.views.timeline;
          const isOther = (row) => row.label.startsWith("2: ") && row.kind === "unit";
          const row = t.rows.findIndex((one) => isOther(one) && one.items.includes(unit));
          t.choose({ row, place: t.rows[row].items.indexOf(unit) });
        }""",
        unit,
    )
    device = other.problem.cluster.device_names[int(other.placement.device_of[unit])]
    assert f" on {device}" in found.text("#details")
    assert found.errors == []


def test_without_scripts_the_summary_is_there(browser: Any, files: dict[str, Path]) -> None:
    found = opened(browser, files["small"], java_script_enabled=False)
    page = found.page
    for part in ("#verdict", "#next-step", "#measured-part", "#critical-part", "#idle-part"):
        assert page.is_visible(part), part
    assert page.is_visible("#alternatives-part")
    assert not page.is_visible("#timeline-part")
    assert not page.is_visible("#what-if-part")


def test_printing_leaves_out_what_paper_cannot_do(browser: Any, files: dict[str, Path]) -> None:
    page = opened(browser, files["small"]).page
    page.emulate_media(media="print")
    assert page.is_visible("#verdict")
    assert page.is_visible("#timeline")
    assert not page.is_visible("#what-if-part")
    assert not page.is_visible("[data-do=timeline-in]")


def test_keys_reach_everything(browser: Any, files: dict[str, Path]) -> None:
    page = opened(browser, files["small"]).page
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "(() => { const e = document.activeElement; return e.dataset.do || e.id || "
                "e.closest('section')?.id + ' ' + e.tagName.toLowerCase(); })()"
            )
        )
    for wanted in ("timeline-part canvas", "graph-part canvas", "find", "move-to", "move", "undo"):
        assert wanted in reached, reached
    unnamed = page.eval_on_selector_all(
        "button, canvas, input, select",
        "all => all.filter((e) => !(e.textContent.trim() || e.ariaLabel || e.labels?.length))"
        ".length",
    )
    assert unnamed == 0


def test_touch_pans_the_timeline(browser: Any, files: dict[str, Path]) -> None:
    found = opened(browser, files["small"], has_touch=True, viewport={"width": 390, "height": 844})
    page = found.page
    page.locator("#timeline canvas").scroll_into_view_if_needed()
    page.evaluate("placewright.views.timeline.zoomBy(4)")
    found.settled()
    before = _view(page)
    box = page.locator("#timeline canvas").bounding_box()
    _swipe(page, box["x"] + 250, box["x"] + 150, box["y"] + 60)
    found.settled()
    assert _view(page)["from"] > before["from"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_colours_of_devices_are_told_apart_without_red_and_green() -> None:
    """Okabe and Ito's first six as a viewer without red cones sees them (Vienot et al. 1999)."""
    from placewright.report.page import asset

    letters = asset("format.js").split("PALETTE = [")[1].split("]")[0]
    colours = [text.strip().strip('"') for text in letters.split(",")][:6]
    seen = [_without_red_cones(colour) for colour in colours]
    for at, one in enumerate(seen):
        for other in seen[at + 1 :]:
            assert np.linalg.norm(one - other) > 0.12
    red, green = _without_red_cones("#e64100"), _without_red_cones("#006c00")
    assert np.linalg.norm(red - green) < 0.1  # the control: a pair that is not told apart


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pictures_in_the_docs_are_what_the_page_looks_like(
    browser: Any, files: dict[str, Path], width: int, scheme: str, tmp_path: Path
) -> None:
    """By shares of a picture, since fonts differ between machines: blocks of 20 pixels."""
    image = pytest.importorskip("PIL.Image", reason="Pillow compares pictures: pip install pillow")
    size = {"width": width, "height": 1400}
    found = opened(browser, files["small"], viewport=size, color_scheme=scheme)
    found.settled()
    found.page.screenshot(path=tmp_path / "now.png")
    stored = image.open(PICTURES / f"report-{width}-{scheme}.png").convert("RGB")
    now = image.open(tmp_path / "now.png").convert("RGB")
    assert stored.size == now.size
    blocks = (width // 20, 1400 // 20)
    one, other = (np.asarray(picture.resize(blocks), dtype=float) for picture in (stored, now))
    assert np.abs(one - other).mean() < 12.0
    assert (one.mean() > 128) == (scheme == "light")


def _view(page: Any) -> dict[str, float]:
    return dict(page.evaluate("placewright.views.timeline.view()"))


def _swipe(page: Any, start: float, end: float, y: float) -> None:
    client = page.context.new_cdp_session(page)
    places = np.linspace(start, end, 6).tolist()
    for kind, x in [("touchStart", start), *(("touchMove", x) for x in places)]:
        points = [{"x": x, "y": y}]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    client.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def _without_red_cones(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]) ** 2.2
    seen = np.array([[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]])
    return np.clip(seen @ rgb, 0, 1) ** (1 / 2.2)
