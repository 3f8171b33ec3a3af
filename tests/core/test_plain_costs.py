"""Problems from plain arrays and from graphs of other libraries, and a plan on one screen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import placewright as pw
from placewright.core.plan import Measurement, Plan
from placewright.errors import CostError, FieldError, GraphError
from placewright.testing.problems import random_problem


class Drawn:
    """What a NetworkX ``DiGraph`` offers, without the library."""

    def __init__(self, nodes: dict[Any, dict[str, Any]], edges: list[tuple[Any, Any, Any]]) -> None:
        self._nodes, self._edges = nodes, edges

    def is_directed(self) -> bool:
        return True

    def nodes(self, data: bool) -> Any:
        assert data
        return self._nodes.items()

    def edges(self, data: bool) -> Any:
        assert data
        return self._edges


DIAMOND = Drawn(
    {"a": {"flops": 5.0}, 2: {"kind": "MatMul"}, "c": {"weight_bytes": 30.0}, "d": {}},
    [
        ("a", 2, {"bytes": 8.0, "tensor": "x"}),
        ("a", "c", {"bytes": 8.0, "tensor": "x"}),
        (2, "d", {"bytes": 4.0}),
        ("c", "d", {"bytes": 4.0}),
    ],
)
SECONDS = np.array([[1.0, 9.0], [5.0, np.inf], [9.0, 3.0], [1.0, 9.0]])
LATENCY, BANDWIDTH = np.array([[0, 0.5], [0.25, 0]]), np.array([[0, 8.0], [4.0, 0]])


def test_a_diamond_takes_what_is_counted_by_hand() -> None:
    """a on 0 until 1; x to 1 takes 0.5 + 1; c there until 5.5; its 4 bytes back 0.25 + 1; d."""
    problem = pw.Problem.from_costs(
        DIAMOND, SECONDS, (LATENCY, BANDWIDTH), memory=[1e9, 50.0], devices=["big", "small"]
    )
    assert problem.graph.op_names == ("a", "2", "c", "d")
    assert problem.graph.op_kinds[1] == "MatMul"
    assert problem.graph.op_flops.tolist() == [5.0, 0.0, 0.0, 0.0]
    assert problem.cluster.device_names == ("big", "small")
    assert problem.cluster.memory_bytes.tolist() == [1e9, 50.0]
    assert pw.Simulator(problem).value(pw.Placement.of([0, 0, 1, 0])) == 1 + 1.5 + 3 + 1.25 + 1
    assert pw.place(problem, evaluations=50).value == 7.75
    pinned = pw.place(problem, pins={"c": "big"}, evaluations=50)
    assert pinned.value == 16.0


def test_a_tensor_with_two_readers_crosses_once() -> None:
    """a; x crosses once, 0.5 + 1; three ops; the output, of no bytes, to the host, 0.25."""
    alone = pw.Problem.from_costs(DIAMOND, np.ones((4, 2)), (LATENCY, BANDWIDTH))
    assert alone.graph.n_tensors == 4  # x once, two more edges, and the output
    apart = pw.Placement.of([0, 1, 1, 1])
    assert pw.Simulator(alone).value(apart) == 1 + 1.5 + 3 + 0.25


def test_networkx_itself_is_read_alike() -> None:
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph()
    for node, given in DIAMOND.nodes(data=True):
        graph.add_node(node, **given)
    for source, target, given in DIAMOND.edges(data=True):
        graph.add_edge(source, target, **given)
    found = pw.Problem.from_costs(graph, SECONDS, (LATENCY, BANDWIDTH)).graph
    same = pw.Problem.from_costs(DIAMOND, SECONDS, (LATENCY, BANDWIDTH)).graph
    assert found.op_names == same.op_names
    assert found.tensor_bytes.tolist() == same.tensor_bytes.tolist()
    assert found.tensor_producers.tolist() == same.tensor_producers.tolist()


def test_our_own_graph_and_numbers_for_all_pairs() -> None:
    graph = random_problem(np.random.default_rng(1), n_ops=6, constrained=False).graph
    problem = pw.Problem.from_costs(graph, np.ones((6, 3)), (1e-6, 1e9), objective="latency")
    assert problem.graph is graph
    assert len(problem.cluster.links) == 6


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"seconds": np.ones((3, 2))}, CostError, r"seconds has shape \(3, 2\)"),
        ({"seconds": np.full((4, 2), np.inf)}, CostError, "has no device"),
        ({"links": (np.ones((3, 3)), 1.0)}, FieldError, "^latency: has shape"),
        ({"memory": [1.0]}, FieldError, "^memory: has shape"),
        ({"devices": ["one"]}, FieldError, "^devices: names 1"),
        ({"graph": [1, 2]}, GraphError, "got list"),
        ({"graph": Drawn({1: {}, 2: {}}, [(1, 2, {}), (2, 1, {})])}, GraphError, "cycle"),
        ({"graph": Drawn({1: {}, 2: {}, 3: {}}, [
            (1, 2, {"tensor": "t", "bytes": 1}), (1, 3, {"tensor": "t", "bytes": 2})
        ])}, GraphError, "1 bytes on one edge and 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    changed: dict[str, Any], error: type[Exception], text: str
) -> None:
    given: dict[str, Any] = {"graph": DIAMOND, "seconds": SECONDS, "links": (LATENCY, BANDWIDTH)}
    given |= changed
    if isinstance(given["graph"], Drawn) and given["graph"] is not DIAMOND:
        given["seconds"] = np.ones((len(given["graph"]._nodes), 2))
    with pytest.raises(error, match=text):
        pw.Problem.from_costs(**given)


def screen(plan: Plan) -> list[str]:
    lines = str(plan).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    return lines


def test_a_plan_is_printed_on_one_screen() -> None:
    problem = pw.Problem.from_costs(
        DIAMOND, SECONDS, (LATENCY, BANDWIDTH), devices=["big", "small"]
    )
    plan = pw.place(problem, evaluations=50)
    text = "\n".join(screen(plan))
    assert "verdict    split over 2 devices" in text
    assert "value      7.75 s predicted" in text
    assert "measured   not yet" in text
    assert "big" in text
    assert "small" in text
    measured = replace(plan, measured=Measurement(8.0, 0.5, 9, {"big": 7.0}, "big"))
    told = "\n".join(screen(replace(measured, left_out=("x" * 200,) * 40)))
    assert "measured   8 s, spread 500 ms, 9 runs; 'big' 7 s" in told


def test_a_plan_of_many_devices_is_printed_on_one_screen() -> None:
    n_devices = 200
    nodes = {f"{at}-{'o' * 90}": {} for at in range(400)}
    problem = pw.Problem.from_costs(
        Drawn(nodes, []), np.ones((400, n_devices)), (1e-6, 1e9),
        devices=[f"device-with-a-name-longer-than-its-column:{at}" for at in range(n_devices)],
    )  # fmt: skip
    lines = screen(pw.place(problem, placer="round-robin", evaluations=5))
    assert lines[-1] == "... and 188 more devices"
