"""What a page says, held against the simulator's own figures."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from support.page_data import unpacked

from placewright.core.arrays import frozen_floats
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.costs import CostTable
from placewright.core.execution_models import Sequential
from placewright.core.graph import ComputationGraph
from placewright.core.placement import Placement
from placewright.core.plan import Measurement
from placewright.core.problem import Objective, Problem
from placewright.core.source import CLUSTER, ModelSource
from placewright.report.explain import explain
from placewright.report.page import _CAUSE_TEXTS, asset, html_table, page_text, summary_parts
from placewright.report.page_document import document_of, page_graph, plans_document
from placewright.report.page_graph import MOST_CHILDREN, Layout, Node, group_tree, layout_of
from placewright.report.page_times import ORDER, device_times, memory_curves, thinned
from placewright.simulation.model import Simulator
from placewright.testing.problems import random_problem, with_power
from tests.report.report_problems import allowed_rows, layered_plan, odd_problem, plan_for


@pytest.mark.parametrize("seed", range(24))
def test_memory_and_idle_add_up_to_what_the_simulator_says(seed: int) -> None:
    problem = odd_problem(seed)
    simulator = Simulator(problem)
    order = problem.unit_graph.topological_order if seed % 3 == 2 else None
    for row in allowed_rows(problem, np.random.default_rng(seed), 8):
        placement = Placement.of(row, order)
        if not np.isfinite(simulator.value(placement)):
            continue
        timeline = simulator.timeline(placement)
        curves = memory_curves(problem, timeline)
        assert [max(curve.bytes) for curve in curves] == pytest.approx(
            timeline.memory_peaks.tolist()
        )
        few = [max(thinned(curve, timeline.value, 5).bytes) for curve in curves]
        assert few == pytest.approx(timeline.memory_peaks.tolist())
        for one in device_times(problem, timeline):
            assert one.busy + sum(one.idle.values()) == pytest.approx(timeline.value)


def test_idle_by_cause_worked_by_hand() -> None:
    """Two ops in a row on two devices, over a channel that another tensor uses first.

    On d0 `a` ends at 2 and `b` at 3. The outputs of both go to d1 over one channel, 4 s each: from
    2 to 6 and from 6 to 10. `c` on d1 reads both and runs from 10 to 11. Of d1's idle 10 s, 3 pass
    until `b` is made, 3 until the channel is free, 4 on the way.
    """
    builder = GraphBuilder()
    builder.add_op("a", "Op")
    first = builder.add_tensor(0, 4.0)
    builder.add_op("b", "Op")
    second = builder.add_tensor(1, 4.0)
    builder.add_op("c", "Op", inputs=[first, second])
    cluster = Cluster((Device("d0"), Device("d1")), (Link("d0", "d1", 0.0, 1.0),))
    costs = CostTable(frozen_floats([[2.0, 9.0], [1.0, 9.0], [9.0, 1.0]]))
    problem = Problem.of_ops(builder.build(), cluster, costs)
    timeline = Simulator(problem).timeline(Placement.of([0, 0, 1]))
    assert timeline.value == 11.0
    zero, one = device_times(problem, timeline)
    assert (zero.busy, zero.idle["no work left"]) == (3.0, 8.0)
    assert one.busy == 1.0
    assert {name: part for name, part in one.idle.items() if part} == {
        "input": 3.0,
        "channel": 3.0,
        "transfer": 4.0,
    }


def children_in(layout: Layout) -> list[list[int]]:
    """The numbers of each node's children."""
    children: list[list[int]] = [[] for _ in layout.parent]
    for node, above in enumerate(layout.parent):
        if above >= 0:
            children[above].append(node)
    return children


@pytest.mark.parametrize("modules", [True, False])
def test_groups_hold_every_unit_once_and_boxes_lie_in_their_group(modules: bool) -> None:
    graph = layered_plan(700, modules=modules).problem.unit_graph
    root = group_tree(graph)
    assert sorted(root.units()) == list(range(graph.n_ops))
    layout = layout_of(graph, root)
    assert max(map(len, children_in(layout))) <= MOST_CHILDREN
    for node, above in enumerate(layout.parent):
        if above < 0:
            continue
        x, y, width, height = layout.boxes[node]
        left, top, wide, high = layout.boxes[above]
        assert left <= x <= x + width <= left + wide + 1e-6
        assert top <= y <= y + height <= top + high + 1e-6
    for children in children_in(layout):
        for at, one in enumerate(children):
            for other in children[at + 1 :]:
                assert not _overlap(layout.boxes[one], layout.boxes[other])


def test_every_edge_between_units_is_one_between_siblings() -> None:
    graph = layered_plan(300).problem.unit_graph
    layout = layout_of(graph, group_tree(graph))
    node_of = {unit: node for node, unit in enumerate(layout.unit) if unit >= 0}

    def above(node: int) -> list[int]:
        return [] if node < 0 else [*above(layout.parent[node]), node]

    wanted = {}
    for producer in range(graph.n_ops):
        for reader in graph.successors.row(producer).tolist():
            one, other = above(node_of[producer]), above(node_of[reader])
            depth = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
            wanted[one[depth], other[depth]] = None
    drawn = {
        (children[a], children[b]): None
        for children, edges in zip(children_in(layout), layout.edges, strict=True)
        for a, b in edges
    }
    assert drawn == wanted


def test_without_module_paths_pieces_are_cut_where_one_tensor_crosses() -> None:
    """Ten diamonds in a row: between two of them one tensor passes, within one two do."""
    graph = _diamonds(10)
    root = group_tree(graph)
    assert len(root.children) > 1
    for piece in root.children:
        units = set(piece.units())
        leaving = [
            unit
            for unit in sorted(units)
            if any(r not in units for r in graph.successors.row(unit).tolist())
        ]
        assert len(leaving) <= 1, (piece.name, leaving)


def test_a_page_asks_for_nothing_and_gives_its_document_back() -> None:
    plan = layered_plan(200)
    document = document_of(plan, "net")
    page = page_text(document)
    assert unpacked(page) == json.loads(json.dumps(document))
    without_licences = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=[\"'](?!#)", without_licences)
    assert "@import" not in page
    assert "default-src 'none'" in page
    assert "Mike Bostock" in page
    assert "Leon Sorokin" in page


@pytest.mark.parametrize("objective", ["energy", "price"])
@pytest.mark.parametrize("is_sequential", [False, True])
def test_shares_of_time_are_of_time_whatever_is_minimised(
    objective: Objective, is_sequential: bool
) -> None:
    """The page of the same placement for latency has the same shares."""
    plain = random_problem(np.random.default_rng(3), n_ops=12, constrained=False)
    if is_sequential:
        plain = replace(plain, execution_model=Sequential())
    charged = with_power(plain, objective=objective)
    devices = np.arange(12) % plain.n_devices
    pages = [document_of(plan_for(problem, devices), "net") for problem in (plain, charged)]
    parts = [summary_parts(page) for page in pages]
    for part in ("devices", "critical", "idle"):
        assert parts[0][part] == parts[1][part], part
    assert pages[1]["plan"]["time"] == pages[0]["plan"]["value"] != pages[1]["plan"]["value"]


def test_a_unit_of_time_cannot_become_markup() -> None:
    """A problem file may have any; it stands in the tips of the bars."""
    plan = layered_plan(60)
    evil = '"><img src=x onerror=alert(1)>'
    plan = plan_for(replace(plan.problem, time_unit=evil), plan.placement.device_of)
    assert "<img" not in page_text(document_of(plan, "net"))


def test_a_device_with_countless_streams_has_a_page() -> None:
    plan = layered_plan(12)
    cluster = plan.problem.cluster
    devices = tuple(replace(device, streams=10**12) for device in cluster.devices)
    problem = replace(plan.problem, cluster=replace(cluster, devices=devices))
    found = document_of(plan_for(problem, plan.placement.device_of), "net")
    assert max(found["plan"]["timeline"]["lane"]) < 12


def test_a_unit_held_back_by_one_that_takes_no_time_names_it() -> None:
    """`late` is ready at once, and stands in the order behind `none`, which waits for its input."""
    builder = GraphBuilder()
    builder.add_op("first", "Op")
    made = builder.add_tensor(0, 4.0)
    builder.add_op("none", "Op", inputs=[made])
    builder.add_op("late", "Op")
    cluster = Cluster((Device("d0"), Device("d1")), (Link("d0", "d1", 0.0, 1.0),))
    costs = CostTable(frozen_floats([[2.0, 9.0], [9.0, 0.0], [9.0, 1.0]]))
    problem = Problem.of_ops(builder.build(), cluster, costs)
    plan = plan_for(problem, np.array([0, 1, 1]), np.array([0, 1, 2]))
    timeline = document_of(plan, "net")["plan"]["timeline"]
    assert (timeline["wait"][2], timeline["wait_on"][2]) == (ORDER, 1)
    lines = explain(plan, "late").lines()
    assert any("it stood in the order behind none" in line for line in lines), lines


def test_an_op_with_the_name_of_a_transfer_is_no_transfer() -> None:
    plan = layered_plan(60)
    graph = plan.problem.graph
    named = replace(graph, op_names=tuple(f"transfer of {name}" for name in graph.op_names))
    renamed = plan_for(replace(plan.problem, graph=named), plan.placement.device_of)
    found, wanted = (document_of(each, "net")["plan"]["timeline"] for each in (renamed, plan))
    assert found["critical"] == wanted["critical"]


def test_names_cannot_become_markup() -> None:
    plan = layered_plan(60)
    graph = plan.problem.graph
    evil = "</script><img src=x onerror=alert(1)>`<b>`"
    named = replace(graph, op_names=(evil, *graph.op_names[1:]))
    plan = plan_for(replace(plan.problem, graph=named), plan.placement.device_of)
    page = page_text(document_of(plan, evil))
    assert evil not in page
    assert "<img src=x" not in page
    assert unpacked(page)["units"]["names"][0] == evil


def test_models_without_a_timeline_have_a_page_too() -> None:
    problem = random_problem(
        np.random.default_rng(3), n_ops=12, objective="throughput", constrained=False
    )
    plan = plan_for(problem, np.arange(12) % 2)
    document = document_of(plan, "stages")
    assert document["plan"]["timeline"] is None
    assert "does not simulate" in document["what_if"]["why_not"]
    loads = Simulator(problem).loads(plan.placement.device_of).sum(axis=0)
    assert document["plan"]["loads"]["seconds"] == pytest.approx(loads[:2].tolist())
    page = page_text(document)
    assert "no timeline, no critical path" in page  # one sentence for three sections
    for part in ("critical", "idle"):
        section = page.partition(f'id="{part}-part"')[2].partition("</section>")[0]
        assert "<table" not in section
        assert "<p>" not in section


def test_each_cause_of_idle_time_has_a_colour() -> None:
    styles = asset("page.css")
    for cause in _CAUSE_TEXTS:
        assert f".cause-{cause.replace(' ', '-')}{{background:" in styles, cause


def test_a_long_text_that_begins_with_a_number_is_no_number() -> None:
    """It stays whole on a narrow screen, and no word of it is broken."""
    rows = [["measured", "114 ms (median of 15 runs, quartiles 18.5 ms apart)"], ["gap", "0.1%"]]
    assert 'class="number"' not in html_table(["", "time"], rows)
    assert html_table(["", "time"], [["gap", "0.1%"]]).count('class="number"') == 2
    name = "block/relu;block/norm;block/conv"
    assert f'<td class="long">{name}</td>' in html_table(["op"], [[name]])


def test_the_page_of_a_language_model_names_its_engine() -> None:
    model = ModelSource("m.gguf", "0" * 64, "gguf", options={CLUSTER: ""})
    problem = replace(layered_plan(20).problem, execution_model=Sequential(), source=model)
    plan = plan_for(problem, np.zeros(20, dtype=np.int64))
    command = '<code>placewright run PLAN <span class="whole">--engine</span> llama.cpp</code>'
    assert command in page_text(document_of(plan, "m"))


def test_the_verdict_follows_the_hardware_where_it_was_asked() -> None:
    plan = layered_plan(200)
    predicted = document_of(plan, "net")["plan"]["verdict"]
    assert predicted["answer"] == "split"
    baselines = {"gpu:0": plan.value * 0.5}
    measured = Measurement(plan.value, 0.001, 15, baselines, "gpu:0")
    verdict = document_of(replace(plan, measured=measured), "net")["plan"]["verdict"]
    assert verdict["answer"] == "do not split"
    assert "gpu:0" in verdict["sentence"]
    close = replace(plan, measured=Measurement(plan.value / 1.5, 0.001, 15))
    assert "+50%" in document_of(close, "net")["plan"]["verdict"]["next"]


def test_pages_of_real_size_stay_small() -> None:
    assert len(page_text(document_of(layered_plan(1_000), "net"))) <= 1_000_000


@pytest.mark.slow
def test_pages_of_a_hundred_times_real_size_stay_small() -> None:
    assert len(page_text(document_of(layered_plan(100_000), "net"))) <= 15_000_000


def test_graph_data_names_groups_alone() -> None:
    data = page_graph(layered_plan(120).problem)
    assert all(
        (name == "") == (unit >= 0) for name, unit in zip(data["names"], data["unit"], strict=True)
    )


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    small = 1e-9
    apart_x = one[0] + one[2] <= other[0] + small or other[0] + other[2] <= one[0] + small
    apart_y = one[1] + one[3] <= other[1] + small or other[1] + other[3] <= one[1] + small
    return not (apart_x or apart_y)


def _diamonds(n: int) -> ComputationGraph:
    from placewright.core.builder import GraphBuilder

    builder = GraphBuilder()
    tensor = builder.add_input(1.0)
    for at in range(n):
        top = builder.add_op(f"top{at}", "Op", inputs=[tensor])
        start = builder.add_tensor(top, 1.0)
        sides = []
        for side in ("left", "right"):
            op = builder.add_op(f"{side}{at}", "Op", inputs=[start])
            sides.append(builder.add_tensor(op, 1.0))
        end = builder.add_op(f"end{at}", "Op", inputs=sides)
        tensor = builder.add_tensor(end, 1.0, is_output=at == n - 1)
    return builder.build()


def test_a_single_unit_is_its_own_picture() -> None:
    node = group_tree(_diamonds(1))
    assert isinstance(node, Node)
    assert len(node.units()) == 4


def test_commands_on_the_page_name_the_plans_file() -> None:
    plan = layered_plan(60)
    timeless = random_problem(
        np.random.default_rng(3), n_ops=12, objective="throughput", constrained=False
    )
    model = ModelSource("m.onnx", "0" * 64, "onnx")
    for each in (plan, plan_for(timeless, np.arange(12) % 2)):
        shown = replace(each, problem=replace(each.problem, source=model))
        page = page_text(plans_document(("net", shown), file="my plans/p.json"))
        visible = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
        assert " PLAN" not in visible
        assert "placewright run &#x27;my plans/p.json&#x27;" in visible
