"""Problems from plain arrays and from graphs of other libraries, and a plan on one screen."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

import placewright as pw
from placewright.core.costs import plain_graph
from placewright.core.execution_models import Event, MaxLoad
from placewright.core.plan import Measurement, Plan
from placewright.errors import CostError, FieldError, GraphError, InputError
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
        ({"memory": "16GiB"}, FieldError, "^memory: must be numbers, .* got '16GiB'"),
        ({"seconds": [["fast", 1.0]]}, FieldError, r"^seconds: must be numbers, .* got \[\['fast'"),
        ({"seconds": [[1.0], [1.0, 2.0]]}, FieldError, "^seconds: .* in rows of one length"),
        ({"links": (np.full((9, 9), "fast"), 1.0)}, FieldError, r"^latency: [^\n]* \.\.\.$"),
        ({"devices": ["one"]}, FieldError, "^devices: names 1"),
        ({"devices": ["twin", "twin"]}, FieldError, "^devices: names 'twin' twice"),
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
    assert "evaluations, " in text  # the amount and the end of the search are whole
    assert " ..." not in text
    assert "big" in text
    assert "small" in text
    measured = replace(plan, measured=Measurement(8.0, 0.5, 9, {"big": 7.0}, "big"))
    told = "\n".join(screen(replace(measured, left_out=("x" * 200,) * 40)))
    assert "measured   8 s, spread 500 ms, 9 runs; 'big' 7 s" in told
    assert told.endswith("... and more in plan.left_out")
    clause = "check on the hardware: outputs were not compared, nor simpler ways measured " * 2
    told = " ".join(" ".join(screen(replace(measured, left_out=(clause.strip(),)))).split())
    assert told.endswith(f"left out {clause.strip()}")


def test_a_plan_of_many_devices_is_printed_on_one_screen() -> None:
    n_devices = 200
    nodes = {f"{at}-{'o' * 90}": {} for at in range(400)}
    problem = pw.Problem.from_costs(
        Drawn(nodes, []), np.ones((400, n_devices)), (1e-6, 1e9),
        devices=[f"device-with-a-name-longer-than-its-column:{at}" for at in range(n_devices)],
    )  # fmt: skip
    lines = screen(pw.place(problem, placer="round-robin", evaluations=5))
    assert lines[-1] == "... and 188 more devices"


TWO_OPS = Drawn({"a": {}, "b": {}}, [("a", "b", {"bytes": 0.0})])


def test_throughput_is_valued_by_the_largest_load() -> None:
    """Two ops of 2 s and 1 s on their own devices: 2 s per sample, where one sample takes 3 s."""
    seconds = np.array([[2.0, 9.0], [9.0, 1.0]])
    problem = pw.Problem.from_costs(TWO_OPS, seconds, (0.0, np.inf), objective="throughput")
    plan = pw.place(problem, evaluations=50)
    assert (plan.value, plan.status) == (2.0, "optimal")
    latency = pw.Problem.from_costs(TWO_OPS, seconds, (0.0, np.inf))
    assert pw.place(latency, evaluations=50).value == 3.0
    again = pw.place(latency, objective="throughput", evaluations=50)
    assert (again.value, again.problem.objective) == (2.0, "throughput")
    named = pw.place(latency, execution_model="max-load", evaluations=50)
    assert (named.value, named.problem.objective) == (2.0, "throughput")


def test_an_objective_and_a_model_that_do_not_go_together() -> None:
    given: Any = (TWO_OPS, np.ones((2, 2)), (0.0, np.inf))
    with pytest.raises(FieldError, match="does not value objective throughput"):
        pw.Problem.from_costs(*given, objective="throughput", execution_model=Event())
    with pytest.raises(FieldError, match="latency is not valued by max-load"):
        pw.Problem.from_costs(*given, objective="latency", execution_model=MaxLoad())
    with pytest.raises(FieldError, match="'event' does not value objective throughput"):
        pw.Request("model.onnx", objective="throughput", execution_model="event")
    assert pw.Problem.from_costs(*given, execution_model=MaxLoad()).objective == "throughput"


def test_host_streams_and_channels_of_plain_costs() -> None:
    """Both ways to the second device share a bus; the host is a memory of its own."""
    square = np.full((3, 3), 1.0)
    problem = pw.Problem.from_costs(
        TWO_OPS,
        np.ones((2, 2)),
        (square, 4.0 * square),
        devices=["fast", "slow"],
        host="ram",
        streams=[1, 2],
        channels=[[None, "bus", ""], ["bus", None, ""], ["", "", None]],
    )
    cluster = problem.cluster
    assert (cluster.host, cluster.host_endpoint, len(cluster.links)) == ("ram", 2, 6)
    assert [device.streams for device in cluster.devices] == [1, 2]
    named = {(link.source, link.destination): link.channel for link in cluster.links}
    assert named["fast", "slow"] == named["slow", "fast"] == "bus"
    assert named["ram", "fast"] is None
    second = pw.Problem.from_costs(
        TWO_OPS, np.ones((2, 2)), (0.0, 1.0), devices=["fast", "slow"], host="slow"
    )
    assert second.cluster.host_endpoint == 1


def test_pins_by_name() -> None:
    given: Any = (TWO_OPS, np.ones((2, 2)), (0.0, np.inf))
    problem = pw.Problem.from_costs(*given, devices=["x", "y"], pins={"a": "y", "b": "x"})
    assert problem.pins == {0: 1, 1: 0}
    assert pw.Problem.from_costs(*given, pins={0: 1}).pins == {0: 1}
    with pytest.raises(GraphError, match="no op 'c'"):
        pw.Problem.from_costs(*given, pins={"c": "x"})
    with pytest.raises(InputError, match="unknown device 'z'"):
        pw.Problem.from_costs(*given, pins={"a": "z"})
    with pytest.raises(FieldError, match="objectiv: is no field of plain costs"):
        pw.Problem.from_costs(*given, objectiv="latency")


def test_graph_inputs_and_outputs_of_inner_nodes() -> None:
    """x (8 bytes) goes once to device 1 for both readers; the inner output comes back.

    By hand, 1 s of latency and 1 byte per second: x arrives after 9 s, a runs until 10, its output
    of 4 bytes is back at 15, b runs until 11 and its own output of no bytes waits for the channel:
    it is back at 16.
    """
    graph = Drawn(
        {"a": {"inputs": {"x": 8.0}, "output_bytes": 4.0}, "b": {"inputs": {"x": 8.0}}},
        [("a", "b", {"bytes": 2.0})],
    )
    problem = pw.Problem.from_costs(graph, np.ones((2, 2)), (1.0, 1.0))
    assert (problem.graph.tensor_producers < 0).sum() == 1
    assert int(problem.graph.tensor_is_output.sum()) == 2
    assert pw.Simulator(problem).value(pw.Placement.of([1, 1])) == 16.0
    shared = Drawn({"a": {}, "b": {}}, [("a", "b", {"bytes": 2.0, "is_output": True})])
    found = pw.Problem.from_costs(shared, np.ones((2, 2)), (1.0, 1.0)).graph
    assert found.tensor_is_output.tolist() == [True, True]
    wrong = Drawn({"a": {"inputs": {"x": 8.0}}, "b": {"inputs": {"x": 9.0}}}, [])
    with pytest.raises(GraphError, match="input 'x' has 8 bytes on one node and 9 on another"):
        pw.Problem.from_costs(wrong, np.ones((2, 2)), (1.0, 1.0))


def test_a_printed_problem_shows_no_array() -> None:
    problem = pw.Problem.from_costs(
        TWO_OPS, np.ones((2, 2)), (0.0, 1.0), devices=["x", "y"], pins={"a": "y"}, memory=[64, 32]
    )
    text = str(problem)
    assert text == repr(problem)
    for what in ("2 ops in 2 units", "x (64 B), y (32 B)", "latency under 'event'", "a=y"):
        assert what in text
    assert "array" not in text
    assert len(text.splitlines()) < 8


def test_arguments_in_the_other_order(tmp_path: Path) -> None:
    problem = pw.Problem.from_costs(TWO_OPS, np.ones((2, 2)), (0.0, 1.0))
    file: Any = tmp_path / "problem.json"
    wrong: Any = problem
    with pytest.raises(InputError, match="write_problem takes a path and a Problem"):
        pw.write_problem(wrong, file)
    plan: Any = pw.place(problem, evaluations=5)
    with pytest.raises(InputError, match="write_plan takes a path and a Plan"):
        pw.write_plan(plan, file)
    assert not file.exists()


def test_a_plan_without_a_framework_names_no_runtime() -> None:
    problem = pw.Problem.from_costs(TWO_OPS, np.ones((2, 2)), (0.0, 1.0))
    assert "openvino" not in str(pw.place(problem, evaluations=5))


@pytest.mark.parametrize(
    ("node", "edge", "message"),
    [
        ({}, {"byte": 8}, "edge 'a' -> 'b' has an attribute 'byte'; did you mean 'bytes'"),
        ({"flop": 8.0}, {}, "node 'a' has an attribute 'flop'; did you mean 'flops'"),
        ({}, {"bytes": "many"}, "edge 'a' -> 'b': 'bytes' must be a number, got 'many'"),
        ({}, {"bytes": None}, "edge 'a' -> 'b': 'bytes' must be a number, got None"),
        ({"flops": math.nan}, {}, "node 'a': 'flops' must be a number, got nan"),
        ({"inputs": {"x": math.nan}}, {}, "inputs of 'a': 'x' must be a number, got nan"),
        ({}, {"bytes": 10**400}, "edge 'a' -> 'b': 'bytes' must be a number, got 1000"),
        ({}, {"tensor": ["t"]}, r"edge 'a' -> 'b': 'tensor' must be a name, got \['t'\]"),
        ({}, {"is_output": np.ones(2)}, "edge 'a' -> 'b': 'is_output' must be True or False"),
    ],
)
def test_a_wrong_attribute_is_refused(
    node: dict[str, Any], edge: dict[str, Any], message: str
) -> None:
    graph = networkx.DiGraph()
    graph.add_node("a", colour="red", **node)
    graph.add_edge("a", "b", label="x", **edge)
    with pytest.raises(GraphError, match=message):
        plain_graph(graph)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("links", 3.0, "links: must be a pair"),
        ("links", (0.0, 1.0, 2.0), "links: must be a pair"),
        ("pools", {"ram": 5}, "pools: 'ram' must be bytes and names, got 5"),
        ("pools", 5, "pools: must map names to values"),
        ("pins", None, "pins: must map names to values"),
        ("limits", {"latency": "x"}, "limits of latency: must be numbers"),
        ("limits", {"latency": [1, 2]}, "limits of latency: has shape"),
        ("op_joules", "x", "op_joules: must be numbers"),
        ("transfer_seconds", "x", "transfer_seconds: must be numbers"),
        ("resident_inputs", "x", "resident_inputs: must be numbers"),
        ("resident_inputs", [math.nan], "resident_inputs: must be numbers of tensors"),
        ("resident_inputs", [[0]], "resident_inputs: must be numbers of tensors"),
        ("resident_inputs", [0.5], "resident_inputs: must be numbers of tensors"),
        ("pools", {"ram": (1e9, 5)}, "pools: 'ram' must have a list of devices, or shares"),
        ("pools", {"ram": (1e9, "device:0")}, "pools: 'ram' must have a list of devices"),
        ("pools", {"ram": (1e9, [["device:0"]])}, "pool 'ram' names .*, which is no device"),
        ("pools", {"ram": (1e9, {"device:0": [1, 2]})}, "share of 'device:0'.* has shape"),
        ("pools", {"ram": ("8GB", ["device:0"])}, "bytes of 'ram': must be numbers"),
        ("pools", {"ram": ([1, 2], ["device:0"])}, "bytes of 'ram': has shape"),
        ("devices", 2, "devices: must be a list of names, got 2"),
        ("devices", [1, 2], "devices: must be a list of names"),
        ("devices", "ab", "devices: must be a list of names"),
        ("streams", math.inf, "streams: are whole numbers"),
        ("links", (0.0, 1j), "bandwidth: must be numbers"),
        ("objective", [], "unknown objective"),
        ("memory", "16", "memory: must be numbers"),
        ("memory", [None, 1.0], "memory: must be numbers"),
        ("op_joules", np.full((3, 2), "1"), "op_joules: must be numbers"),
        ("op_joules", np.full((3, 2), 1, dtype="timedelta64[ms]"), "op_joules: must be numbers"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(field: str, value: Any, message: str) -> None:
    given = {"links": (0.0, 1.0), field: value}
    with pytest.raises(InputError, match=message):
        pw.Problem.from_costs(networkx.path_graph(3, networkx.DiGraph), np.ones((3, 2)), **given)


@pytest.mark.parametrize("graph", [networkx.DiGraph, networkx.Graph([("a", "b")]), 5])
def test_what_is_no_graph_is_refused(graph: Any) -> None:
    with pytest.raises(GraphError, match="a graph is a ComputationGraph or a NetworkX DiGraph"):
        plain_graph(graph)


def test_complex_seconds_are_refused() -> None:
    with pytest.raises(FieldError, match="seconds: must be numbers"):
        pw.Problem.from_costs(networkx.path_graph(2, networkx.DiGraph), [[1j], [1.0]], (0.0, 1.0))


def test_devices_of_a_pool_may_be_a_set() -> None:
    graph = networkx.path_graph(2, networkx.DiGraph)
    pools = {"ram": (1e9, {"device:0", "device:1"})}
    problem = pw.Problem.from_costs(graph, np.ones((2, 2)), (0.0, 1.0), pools=pools)
    assert [device.pool for device in problem.cluster.devices] == ["ram", "ram"]


def test_a_channel_may_be_called_0() -> None:
    """Links of one channel wait for each other; an empty name is a channel of its own."""
    graph = networkx.path_graph(2, networkx.DiGraph)
    found = [
        pw.Problem.from_costs(graph, np.ones((2, 2)), (0.0, 1.0), channels=name)
        for name in (0, "bus", "", None)
    ]
    channels = [{link.channel for link in each.cluster.links} for each in found]
    assert channels == [{"0"}, {"bus"}, {None}, {None}]


def test_a_tensor_whose_name_holds_a_list_is_refused() -> None:
    graph = networkx.DiGraph()
    graph.add_edge("a", "b", tensor=("t", [1]))
    with pytest.raises(GraphError, match="'tensor' must be a name"):
        pw.Problem.from_costs(graph, np.ones((2, 2)), (0.0, 1.0))


def test_two_pins_of_one_op_are_refused() -> None:
    graph = networkx.path_graph(["a", "b"], networkx.DiGraph)
    with pytest.raises(FieldError, match="pins: has op 'a' on two devices"):
        pw.Problem.from_costs(graph, np.ones((2, 2)), (0.0, 1.0), pins={"a": 0, 0: 1})
    problem = pw.Problem.from_costs(graph, np.ones((2, 2)), (0.0, 1.0), pins={"a": 1, 0: 1})
    assert problem.pins == {0: 1}


def test_tensors_without_a_name_are_tensors_of_their_own() -> None:
    """Programs that fill in every attribute say None where there is no name."""
    graph = networkx.DiGraph()
    for reader in "bc":
        graph.add_edge("a", reader, bytes=8.0, tensor=None)
    problem = pw.Problem.from_costs(graph, np.ones((3, 2)), (0.0, 1.0))
    assert problem.graph.op_outputs.row(0).tolist() == [0, 1]
