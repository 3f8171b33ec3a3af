"""Keys, pointer and zoom of the page's graph and timeline, in node with a canvas that records."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from report.report_problems import layered_plan, plan_for

from placewright.core.plan import Plan
from placewright.report.page import VIEWS, asset
from placewright.report.page_document import document_of, plans_document

_STUBS = """
const calls = [];
const area = { on: () => area, transition: () => area, duration: () => area,
  call: (f) => { calls.push(f.label ?? "zoom"); return area; } };
const labelled = (label) => Object.assign(() => zoom, { label });
const zoom = { label: "connected" };
for (const name of ["scaleExtent", "extent", "translateExtent"]) zoom[name] = () => zoom;
zoom.on = (what, f) => { zoom.zoomed = f; return zoom; };
for (const name of ["scaleBy", "transform", "translateBy", "translateTo"])
  zoom[name] = labelled(name);
const identity = { k: 1, x: 0, y: 0, invertX: (x) => x };
for (const name of ["translate", "scale"]) identity[name] = () => identity;
globalThis.d3 = { select: () => area, zoom: () => zoom, zoomIdentity: identity };
globalThis.ResizeObserver = class { observe() {} };
globalThis.requestAnimationFrame = (f) => { calls.push("frame"); f(); return 0; };
globalThis.innerWidth = 300;
globalThis.matchMedia = () => ({ matches: true, addEventListener() {} });
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#000" });
globalThis.document = { documentElement: {} };
const ctx = new Proxy({}, { get: (_, name) => name === "measureText" ? () => ({ width: 9 })
  : () => undefined, set: () => true });
const canvas = (own) => ({ clientHeight: 200, style: {}, getContext: () => ctx,
  getBoundingClientRect: () => ({ left: 0, top: 0, width: 400 }),
  addEventListener: (name, f) => { own[name] = f; } });
const held = (own) => ({ clientWidth: 400, querySelector: () => canvas(own) });
"""
_ASK = """
const root = globalThis.placewright;
const state = new root.State(JSON.parse(require("fs").readFileSync(process.argv[2])));
state.otherMoved = state.movedUnits = new Set();
const answers = {};
for (const name of ["Timeline", "Graph"]) {
  const own = {}, tip = { style: {}, offsetWidth: 40, hidden: true };
  const view = new root[name](state, held(own), tip);
  if (name === "Timeline") view.row = view.rows.findIndex((row) => row.items.length > 0);
  const press = (key, more = {}) => {
    calls.length = 0;
    let stopped = false;
    own.keydown({ key, preventDefault: () => { stopped = true; }, ...more });
    return { calls: [...new Set(calls)].sort(), stopped, selected: state.selected };
  };
  const at = { clientX: 299, clientY: 30 };
  answers[name] = {
    "+": press("+"), Home: press("Home"), ArrowLeft: press("ArrowLeft", { shiftKey: true }),
    ctrl: press("+", { ctrlKey: true }), unknown: press("q"),
    next: press(name === "Timeline" ? "n" : "ArrowRight"),
  };
  view.showTip(at, "text");
  answers[name].tip = { ...tip };
  own.pointerleave();
  answers[name].hidden = tip.hidden;
  own.pointermove({ clientX: 398, clientY: 5000 });
  own.click({ clientX: 398, clientY: 5000 });
  calls.length = 0;
  zoom.zoomed({ transform: identity });
  answers[name].zoomed = [...calls];
}
const two = new root.State(JSON.parse(require("fs").readFileSync(process.argv[3])));
try {
  const { rows, value } = new root.Timeline(two, held({}), { style: {} });
  answers.two = { labels: rows.map((row) => row.label), value };
} catch (error) {
  answers.two = { error: String(error) };
}
process.stdout.write(JSON.stringify(answers));
"""


def _two_plans() -> tuple[tuple[str, Plan], tuple[str, Plan]]:
    """The second one's links to the host have channels of their own, and half the speed."""
    first = layered_plan(12)
    cluster = first.problem.cluster
    links = tuple(
        replace(link, channel=None, bandwidth=link.bandwidth / 2.0) for link in cluster.links
    )
    problem = replace(first.problem, cluster=replace(cluster, links=links))
    return ("one", first), ("two", plan_for(problem, first.placement.device_of))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if shutil.which("node") is None:
        pytest.skip("node is not installed; the browser test presses the same keys")
    folder = tmp_path_factory.mktemp("canvas")
    views = [asset(f"{name}.js") for name in VIEWS if name not in ("main", "charts", "moves")]
    (folder / "ask.js").write_text("\n".join([_STUBS, *views, _ASK]))
    (folder / "data.json").write_text(json.dumps(document_of(layered_plan(12), "net")))
    (folder / "two.json").write_text(json.dumps(plans_document(*_two_plans())))
    command = ["node", *(str(folder / name) for name in ("ask.js", "data.json", "two.json"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", ["Timeline", "Graph"])
def test_keys_zoom_pan_and_choose(name: str, answers: dict[str, Any]) -> None:
    found = answers[name]
    assert found["+"]["calls"] == ["scaleBy"]
    assert found["Home"]["calls"] == ["transform"]
    assert found["ArrowLeft"]["calls"] == ["translateBy"]
    assert found["+"]["stopped"]
    assert found["next"]["selected"]["from"] == name.lower()


@pytest.mark.parametrize("name", ["Timeline", "Graph"])
def test_keys_of_the_browser_are_left_to_it(name: str, answers: dict[str, Any]) -> None:
    for key in ("ctrl", "unknown"):
        assert answers[name][key]["calls"] == []
        assert not answers[name][key]["stopped"]


@pytest.mark.parametrize("name", ["Timeline", "Graph"])
def test_the_tip_stays_inside_the_window(name: str, answers: dict[str, Any]) -> None:
    """299 + 14 is beyond 300 - 40 - 8 pixels."""
    tip = answers[name]["tip"]
    assert (tip["textContent"], tip["hidden"]) == ("text", False)
    assert tip["style"] == {"left": "252px", "top": "46px"}
    assert answers[name]["hidden"]


def test_channels_of_the_second_plan_are_its_own(answers: dict[str, Any]) -> None:
    found = answers["two"]
    assert "error" not in found, found
    (_, first), (_, other) = _two_plans()
    assert "pcie" in found["labels"]
    assert "2: pcie" not in found["labels"]
    assert any(label.startswith("2: host → gpu:") for label in found["labels"])
    assert found["value"] == other.value > first.value


@pytest.mark.parametrize("name", ["Timeline", "Graph"])
def test_a_zoom_draws_once_in_the_next_frame(name: str, answers: dict[str, Any]) -> None:
    assert answers[name]["zoomed"] == ["frame"]
