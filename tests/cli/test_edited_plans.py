"""`run` believes no plan that contradicts its problem, its placement or itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.runner import InProcess, the_line

import placewright as pw

EARLIER = Path(__file__).parents[1] / "data" / "plans"
Document = dict[str, Any]


def _put(*keys: str, value: object) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        part = document
        for key in keys[:-1]:
            part = part[key]
        assert keys[-1] in part
        assert part[keys[-1]] != value
        part[keys[-1]] = value

    return change


def _swapped_segment(document: Document) -> None:
    segments = document["segments"]
    other = next(s["device"] for s in segments if s["device"] != segments[0]["device"])
    segments[0]["device"] = other


def _op_in_two_segments(document: Document) -> None:
    document["segments"][1]["ops"].append(document["segments"][0]["ops"][0])


def _op_in_no_segment(document: Document) -> None:
    document["segments"][0]["ops"].pop()


def _segments_reversed(document: Document) -> None:
    document["segments"].reverse()


def _segments_joined(document: Document) -> None:
    """Each op where it belongs, but in fewer segments."""
    joined: dict[str, list[str]] = {}
    for segment in document["segments"]:
        joined.setdefault(segment["device"], []).extend(segment["ops"])
    document["segments"] = [{"device": name, "ops": ops} for name, ops in joined.items()]


def _moved_op(document: Document) -> None:
    names = [device["name"] for device in document["cluster"]["devices"]]
    op = next(iter(document["placement"]))
    others = [name for name in names if name != document["placement"][op]]
    for name in document["placement"]:
        document["placement"][name] = others[0]


def _scaled(*keys: str, by: float) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        part = document
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] *= by

    return change


def _below_the_bound(document: Document) -> None:
    predicted = document["predicted"]
    predicted["value"] = predicted["lower_bound"] / 2
    predicted["gap"] = -0.5


def _order_twice(document: Document) -> None:
    document["order"].append(document["order"][0])


def _order_replaced(document: Document) -> None:
    document["order"][1] = document["order"][0]


def _order_reversed(document: Document) -> None:
    document["order"].reverse()


def _first_memory(document: Document) -> None:
    memory = document["predicted"]["memory"]
    memory[next(iter(memory))] += 1.0


CHANGES: dict[str, tuple[str, Callable[[Document], None], str]] = {
    "a segment on another device": ("pinned", _swapped_segment, "segment 0"),
    "an op in two segments": ("pinned", _op_in_two_segments, "twice"),
    "an op in no segment": ("pinned", _op_in_no_segment, "leave out"),
    "segments in another order": ("pinned", _segments_reversed, "segment 0"),
    "segments joined": ("pinned", _segments_joined, "segment"),
    "all ops moved": ("pinned", _moved_op, "segment"),
    "another model": ("lost", _put("model", "source", value="other.onnx"), "model.source"),
    "a wrong hash": ("lost", _put("model", "sha256", value="0" * 64), "model.sha256"),
    "more ops": ("lost", _put("model", "ops", value=999), "model.ops is 999"),
    "more edges": ("lost", _put("model", "edges", value=999), "model.edges is 999"),
    "other shapes": ("lost", _put("model", "shapes", value={"x": [7]}), "model.shapes"),
    "another objective": ("lost", _put("objective", value="throughput"), "objective"),
    "another unit": ("lost", _put("unit", value="ms"), "unit is 'ms'"),
    "another execution model": ("lost", _put("execution_model", value="max-load"), "execution_mod"),
    "another runtime": ("lost", _put("runtime", value="banana"), "banana"),
    "the value 0": ("lost", _put("predicted", "value", value=0.0), "predicted."),
    "a value below the bound": ("lost", _below_the_bound, "predicted."),
    "a value of half": ("throughput", _scaled("predicted", "value", by=0.5), "predicted."),
    "another gap": ("lost", _put("predicted", "gap", value=0.123), "predicted.gap is 0.123"),
    "more memory": ("lost", _first_memory, "predicted.memory"),
    "no device's memory": ("lost", _put("predicted", "memory", value={}), "predicted.memory"),
    "infeasible": ("lost", _put("predicted", "status", value="infeasible"), "infeasible"),
    "an order that is too long": ("pinned", _order_twice, "twice"),
    "an order with duplicates": ("pinned", _order_replaced, "twice"),
    "an order that cannot be": ("pinned", _order_reversed, "order"),
    "a negative time": ("lost", _scaled("measured", "median", by=-1.0), "measured.median"),
    "no runs": ("lost", _put("measured", "runs", value=0), "measured.runs is 0"),
    "a verdict on nothing": ("lost", _put("measured", "recommendation", value="x"), "not measured"),
    "fewer than no evaluations": ("lost", _put("placer", "evaluations", value=-1), "evaluations"),
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for file in EARLIER.iterdir():
        shutil.copy(file, tmp_path / file.name)
    return tmp_path


@pytest.mark.parametrize("name", CHANGES)
def test_an_edited_plan_is_refused(name: str, here: Path, cli: InProcess) -> None:
    of, change, told = CHANGES[name]
    document = json.loads((here / f"{of}.json").read_text())
    change(document)
    (here / "edited.json").write_text(json.dumps(document))
    line = the_line(cli("run", "edited.json", cwd=here), 2)
    assert told in line
    assert len(line) <= 300
    with pytest.raises(pw.PlacewrightError, match=r"edited\.json"):
        pw.read_plan(here / "edited.json")


@pytest.mark.parametrize("name", ["lost", "pinned", "throughput"])
def test_a_plan_as_it_was_written_is_believed(name: str, here: Path, cli: InProcess) -> None:
    assert pw.read_plan(here / f"{name}.json").value > 0
    pw.write_plan(here / "again.json", pw.read_plan(here / f"{name}.json"))
    done = cli("simulate", "again.json", cwd=here)
    assert done.returncode == 0, done.stderr


def test_what_the_search_found_is_checked_too(here: Path, cli: InProcess) -> None:
    pw.write_plan(here / "again.json", pw.read_plan(here / "pinned.json"))
    document = json.loads((here / "again.json").read_text())
    value = document["predicted"]["value"]
    kept = {key: document[key] for key in ("placement", "order")}
    document["searched"] = {**kept, "value": value}
    (here / "again.json").write_text(json.dumps(document))
    assert pw.read_plan(here / "again.json").searched is not None
    document["searched"]["value"] = value * 2
    (here / "again.json").write_text(json.dumps(document))
    assert "searched.value" in the_line(cli("run", "again.json", cwd=here), 2)
