"""Plans that earlier versions wrote, and changes that contradict them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def _optimal_with_a_gap(document: Document) -> None:
    predicted = document["predicted"]
    predicted |= {"status": "optimal", "lower_bound": predicted["value"] / 2, "gap": 1.0}


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
    "optimal with a gap": ("pinned", _optimal_with_a_gap, "is 'optimal', but lower_bound"),
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
