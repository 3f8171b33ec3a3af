"""What is printed of a plan, and hints for a name that is not there."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from writers.plans import plan_with

from placewright.cli.place import print_plan
from placewright.core.arrays import frozen_floats, frozen_ints
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device
from placewright.core.costs import CostTable
from placewright.core.execution_models import EVENT, ExecutionModel, MaxLoad, Sequential
from placewright.core.graph import ComputationGraph
from placewright.core.grouping import Grouping
from placewright.core.op_patterns import op_named
from placewright.core.placement import Placement
from placewright.core.plan import EVEN_SPLIT, Measurement, _cut, no_choice
from placewright.core.solution import Solution
from placewright.core.source import Call, ModelSource, Port, Signature, calls_option
from placewright.errors import GraphError
from placewright.execution.state_pairs import option_of
from placewright.io.content import one_line
from placewright.report.page import page_text
from placewright.report.page_document import plans_document
from placewright.report.plan_text import default_text, plan_lines
from placewright.report.stream_text import stream_lines
from placewright.report.verdict import verdict_lines
from placewright.session.plans import held_lines, plan_of, simulated
from placewright.simulation.model import Simulator


def chain(*names: str) -> ComputationGraph:
    builder = GraphBuilder()
    tensor = builder.add_input(4)
    for name in names:
        op = builder.add_op(name, "Add", inputs=[tensor], weights=[builder.add_weight(10)])
        tensor = builder.add_tensor(op, 4, is_output=name == names[-1])
    return builder.build()


def side_by_side() -> ComputationGraph:
    builder = GraphBuilder()
    tensor = builder.add_input(4)
    for name in "ab":
        op = builder.add_op(name, "Add", inputs=[tensor], weights=[builder.add_weight(10)])
        builder.add_tensor(op, 4, is_output=True)
    return builder.build()


def test_one_unit_in_one_segment_is_singular() -> None:
    plan = plan_with(chain("a", "b", "c"), [Device("x"), Device("y")], lambda op: int(op > 0))
    lines = plan_lines(plan, "m")
    assert any(line.startswith("found by manual, seed 0") for line in lines)
    texts = [line.strip().partition(",")[0] for line in lines if line.startswith("  ")]
    assert texts == ["x: 1 unit in 1 segment", "y: 2 units in 1 segment"]


def test_where_nothing_can_be_chosen_there_is_no_proof() -> None:
    """One unit, one device for each unit, and a choice."""
    one_unit = plan_with(chain("a"), [Device("x"), Device("y")], lambda op: 0)
    assert (
        "all ops move together, so only 2 placements exist, each on one device"
        in (plan_lines(one_unit, "m")[1])
    )
    one_device = plan_with(chain("a", "b"), [Device("x")], lambda op: 0)
    assert (
        "only one placement exists, because every unit has one possible device"
        in (plan_lines(one_device, "m")[1])
    )
    choice = plan_with(chain("a", "b"), [Device("x"), Device("y")], lambda op: 0)
    assert "lower bound" in plan_lines(choice, "m")[1]


def test_the_verdict_holds_a_split_against_the_best_single_device() -> None:
    def verdict(*seconds: float, memory: float = math.inf, alone: bool = False) -> str:
        devices = [Device("x", memory_bytes=memory), Device("y", memory_bytes=memory)]
        plan = plan_with(chain("a", "b"), devices, lambda op: 0 if alone else op)
        table = CostTable(frozen_floats([seconds[:2], seconds[2:]]))
        problem = replace(plan.problem, costs=table)
        value = Simulator(problem).value(plan.placement)
        return verdict_lines(replace(plan, problem=problem, value=value))[0]

    assert "2.00 times as fast as 'x' alone (4 s)" in verdict(1, 3, 3, 1)
    assert "1.002 times as fast as 'x' alone" in verdict(1, 9, 1.004, 1)
    assert verdict(1, 1, 1, 1).startswith("Do not split: 2 s over 2 devices is no gain on 'x'")
    assert "since no single device can take it" in verdict(1, 1, 1, 1, memory=20.0)
    assert "alone" not in verdict(1, 1, 1, 1, alone=True)


@pytest.mark.parametrize(
    ("source", "is_here"),
    [("measured", True), ("roofline", False), ("measured on several hosts", False)],
)
def test_only_what_can_run_here_is_advised_to_run(source: str, is_here: bool) -> None:
    plan = plan_with(chain("a", "b"), [Device("x"), Device("y")], lambda op: 0)
    table = CostTable(plan.problem.costs.seconds, source)
    model = ModelSource(path="m.onnx", format="onnx", sha256="0" * 64)
    problem = replace(plan.problem, costs=table, source=model)
    told = " ".join(verdict_lines(replace(plan, problem=problem, lower_bound=plan.value)))
    assert ("`placewright run PLAN` runs it" in told) == is_here


@pytest.mark.parametrize(
    ("model", "options", "command"),
    [
        (EVENT, {}, "`placewright run PLAN` runs it"),
        (MaxLoad(), {}, "`placewright run PLAN --samples 200` runs it"),
        (Sequential(), {}, ""),
        (EVENT, calls_option([Call(1, {}), Call(2, {"x": (1,)})]), ""),
    ],
)
def test_the_advised_command_runs_such_a_plan(
    model: ExecutionModel, options: dict[str, str], command: str
) -> None:
    plan = plan_with(chain("a", "b"), [Device("x"), Device("y")], lambda op: 0)
    source = ModelSource(path="m.onnx", format="onnx", sha256="0" * 64, options=options)
    here = replace(plan, problem=replace(plan.problem.under(model), source=source))
    told = verdict_lines(replace(here, lower_bound=plan.value))[1]
    assert command in told
    assert ("placewright run" in told) == bool(command)
    page = page_text(plans_document(("m", here), file="p.json"))
    shown = command.partition(" runs")[0].replace("PLAN", "p.json").strip("`")
    visible = re.sub('<span class="whole">|</span>', "", page)
    assert (f"not yet: <code>{shown}</code>" in visible) == bool(command)


def test_a_placement_with_moved_ops_was_not_found_by_a_search() -> None:
    plan = plan_with(chain("a"), [Device("x"), Device("y")], lambda op: 0)
    lines = plan_lines(plan, "m", is_changed=True)
    assert "moved from what was found by manual, seed 0, 0 evaluations" in lines


def test_the_command_for_the_default_gives_inputs_as_they_were() -> None:
    plan = plan_with(chain("a"), [Device("cpu:0"), Device("cpu:1")], lambda op: 0)
    ports = (Port("x y", (1, 3), "f32", 0), Port("sr", (), "i64", 1, value=(16000,)))
    source = ModelSource(
        "m.onnx", "0" * 64, "onnx", {"x y": (1, 3), "sr": ()}, signature=Signature(ports, ())
    )
    (line,) = default_text(replace(plan, problem=replace(plan.problem, source=source)), "", None)
    assert line.endswith("place m.onnx --devices cpu --shape 'x y=1,3' --value sr=16000")


def test_the_command_for_the_default_reads_the_same_model() -> None:
    """It dropped the optimizer, the state and the flags, so that it planned another model."""
    plan = plan_with(chain("a"), [Device("cpu:0"), Device("cpu:1")], lambda op: 0)
    options = {"optimizer": "adam:clip=1", "colocate_backward": "yes", "dropout": "yes"}
    step = ModelSource("m.pt2", "0" * 64, "training", options=options)
    problem = replace(plan.problem, source=step, objective="training")
    (line,) = default_text(replace(plan, problem=problem), "", None)
    words = "--optimizer adam:clip=1 --colocate-backward --dropout --objective training"
    assert line.endswith(f"place m.pt2 --devices cpu {words}")
    decoder = ModelSource("m.onnx", "0" * 64, "onnx", options=option_of({"new_*": "old_*"}))
    plan = replace(plan, problem=replace(plan.problem, source=decoder))
    measured = Measurement(2.0, 0.1, 9, {"all cores": 1.0}, "all cores")
    assert any(
        "place m.onnx --devices cpu --state 'new_*=old_*'" in line
        for line in held_lines(replace(plan, measured=measured))
    )


def test_a_command_that_would_choose_another_precision_is_left_out() -> None:
    plan = plan_with(chain("a"), [Device("cpu:0"), Device("cpu:1")], lambda op: 0)
    source = ModelSource("m.onnx", "0" * 64, "onnx", {})
    plan = replace(plan, problem=replace(plan.problem, source=source))
    lines = default_text(plan, "", "open(m)", has_command=False)
    assert lines == ["'all cores' in Python: open(m)"]


def test_one_sample_of_one_segment_is_singular() -> None:
    plan = plan_with(chain("a"), [Device("x"), Device("y")], lambda op: 0)
    stream = Simulator(plan.problem).stream(plan.placement, samples=1, in_flight=1)
    assert stream_lines(plan.problem, stream)[0] == "1 sample, at most 1 in flight, 1 segment each"


def test_ops_of_one_unit_go_one_way() -> None:
    plan = plan_with(chain("a", "b", "c"), [Device("x"), Device("y")], lambda op: 0)
    units = Grouping(frozen_ints([0, 0, 1]))
    costs = CostTable(frozen_floats(np.ones((2, 2))))
    problem = replace(plan.problem, units=units, costs=costs)
    solution = Solution(Placement.of([0, 0]), 0.0, "feasible")
    joined = plan_of(problem, solution, plan.placer, plan.runtime)
    with pytest.raises(GraphError, match="'a' and 'b' are in one unit, which moves as a whole"):
        simulated(joined, {"a": "y", "b": "x"})
    assert simulated(joined, {"*": "x", "b": "y"}).plan.placement.device_of.tolist() == [1, 0]
    assert simulated(joined, {"a": "y", "b": "y"}).plan.placement.device_of.tolist() == [1, 0]


def test_an_even_split_is_a_split() -> None:
    """A plan file of version 1 holds the searched placement, and may recommend the even split."""
    plan = plan_with(chain("a", "b"), [Device("x"), Device("y")], lambda op: 0)
    measured = Measurement(2.0, 0.1, 1, {EVEN_SPLIT: 1.0}, EVEN_SPLIT)
    told = verdict_lines(replace(plan, measured=measured))[0]
    assert told.startswith("Split evenly, which was faster on the hardware (1 s against 2 s)")
    assert "measured   2 s, spread 100 ms, 1 run; 'even split' 1 s" in str(
        replace(plan, measured=measured)
    )


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("conv", "did you mean block.conv_1"),
        ("block.conv1", "did you mean block.conv_1"),
        ("softmax", "`placewright graph MODEL --ops` lists all names"),
    ],
)
def test_an_unknown_op_is_answered_with_near_names_or_where_they_are(wrong: str, hint: str) -> None:
    graph = chain("block.conv_1", "head")
    assert np.all(op_named(graph, "head") == 1)
    with pytest.raises(GraphError, match=f"no op '{wrong}'; {hint}"):
        op_named(graph, wrong)


def test_advice_names_the_file_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_with(chain("a", "b"), [Device("x"), Device("y")], lambda op: 0)
    model = ModelSource(path="m.onnx", format="onnx", sha256="0" * 64)
    here = replace(plan, problem=replace(plan.problem, source=model), lower_bound=plan.value)
    print_plan(here, "m.onnx", Path("my plans/p.json"))
    told = " ".join(capsys.readouterr().out.split())
    assert "`placewright run 'my plans/p.json'` runs it" in told
    assert "PLAN" not in told


def test_advice_on_the_searched_placement_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the option, the command runs the simpler placement that the file holds."""
    plan = plan_with(chain("a", "b"), [Device("x"), Device("y")], lambda op: 0)
    model = ModelSource(path="m.onnx", format="onnx", sha256="0" * 64)
    for execution, command in (
        (EVENT, "placewright run p.json --searched"),
        (MaxLoad(), "placewright run p.json --searched --samples 200"),
    ):
        problem = replace(plan.problem.under(execution), source=model)
        here = replace(plan, problem=problem, lower_bound=plan.value)
        print_plan(here, "m.onnx", Path("p.json"), searched=True)
        assert f"`{command}` runs it" in " ".join(capsys.readouterr().out.split())
        part = plans_document(("m", here), file="p.json", options=["--searched"])["plan"]
        assert part["run"] == command
        assert part["verdict"]["next"].startswith(f"`{command}` runs it")


def test_no_command_runs_a_placement_with_moved_ops(capsys: pytest.CaptureFixture[str]) -> None:
    """No file holds it: the command would run the plan without the changes."""
    plan = plan_with(chain("a", "b"), [Device("x"), Device("y")], lambda op: 0)
    model = ModelSource(path="m.onnx", format="onnx", sha256="0" * 64)
    here = replace(plan, problem=replace(plan.problem, source=model), lower_bound=plan.value)
    print_plan(here, "m.onnx", Path("p.json"), is_changed=True)
    told = capsys.readouterr().out
    assert told.startswith("Do not split")
    assert "Next:" not in told
    assert "placewright run" not in told
    document = plans_document(("m", here), file="p.json", is_changed=True)
    assert document["plan"]["run"] == document["plan"]["verdict"]["next"] == ""
    visible = re.sub(r"<script.*?</script>", "", page_text(document), flags=re.DOTALL)
    assert "Next:" not in visible
    assert "placewright run" not in visible


def test_what_is_too_long_is_cut_between_words() -> None:
    text = "word " * 60 + "end"
    for shown in (one_line(text, 100), one_line(text, 102)):
        assert shown.endswith("word ...")
        assert len(shown) <= 102
    assert one_line("x" * 300, 100) == "x" * 96 + " ..."
    assert one_line("short") == "short"
    assert _cut("many words that are cut at the edge", 20) == "many words that ..."
    assert _cut("a" * 30, 20) == "a" * 17 + "..."


def test_the_order_of_units_is_a_choice_under_event() -> None:
    """Of units on several devices, or of one device with several streams."""
    seconds = frozen_floats([[1.0, math.inf], [math.inf, 1.0]])
    ordered = plan_with(chain("a", "b"), [Device("x"), Device("y")], lambda op: op).problem
    assert no_choice(replace(ordered, costs=CostTable(seconds))).startswith("only one placement")
    plan = plan_with(side_by_side(), [Device("x"), Device("y")], lambda op: op)
    fixed = replace(plan.problem, costs=CostTable(seconds))
    assert no_choice(fixed) == ""
    assert no_choice(fixed.under(Sequential())).startswith("only one placement exists")
    card = plan_with(side_by_side(), [Device("x")], lambda op: 0).problem
    assert no_choice(card) == ""  # its outputs reach the host in an order
    alone = plan_with(side_by_side(), [Device("x", streams=2)], lambda op: 0).problem
    assert no_choice(alone) == ""
    assert no_choice(alone.under(Sequential())).startswith("only one placement exists")
    host = Cluster((Device("x", max_segment_ops=1),), host="x")
    assert no_choice(replace(card, cluster=host)) == ""
    two = [Device("x", streams=2), Device("y")]
    graph = replace(side_by_side(), op_colocation=frozen_ints([0, 0]))
    together = plan_with(graph, two, lambda op: 0).problem
    assert no_choice(together) == ""
    assert no_choice(together.under(Sequential())).startswith("all ops move together")
    one = replace(chain("a", "b"), op_colocation=frozen_ints([0, 0]))
    two = [Device("x"), Device("y")]
    assert no_choice(plan_with(one, two, lambda op: 0).problem).startswith("all ops move together")
