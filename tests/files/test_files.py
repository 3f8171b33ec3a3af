"""Files: what is written reads back; what is wrong is named; an earlier file survives."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.small_problems import PAIR, problem

import placewright as pw
from placewright.core.data_sheet import DataSheet
from placewright.core.grouping import Grouping
from placewright.core.placement import Placement
from placewright.core.plan import Measurement, PlacerRecord, Plan, Searched
from placewright.core.problem import Problem
from placewright.core.quantities import parse_bandwidth, parse_bytes, parse_seconds
from placewright.core.solution import HistoryPoint
from placewright.core.source import ModelSource, Port, Signature, calls_of
from placewright.errors import ClusterError, FileFormatError, InputError, StalePlanError
from placewright.files.cluster_file import (
    cluster_data,
    read_cluster,
    read_cluster_and_links,
    write_cluster,
)
from placewright.files.graph_file import read_graph, write_graph
from placewright.files.plan_file import problem_path_of, read_plan, write_plan
from placewright.files.problem_file import (
    path_from,
    problem_text,
    read_problem,
    write_problem,
    written_in,
)
from placewright.io.content import existing_path
from placewright.io.json_text import read_json_object
from placewright.io.opened import is_missing
from placewright.io.written import tell_final_folders, write_text
from placewright.testing.problems import random_problem

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "plan.schema.json"


def plan() -> Plan:
    placed = problem([[1, 2], [3, 4], [5, np.inf], [7, 8]], pins={0: 1}).coarsened(
        Grouping.from_labels([0, 1, 1, 2])
    )
    return Plan(
        problem=placed,
        placement=Placement.of([1, 0, 0], [0, 1, 2]),
        value=17.0,
        lower_bound=16.0,
        status="feasible",
        runtime="openvino",
        memory={"cpu:0": 10.0, "cpu:1": 20.0},
        segments=((1, (0,)), (0, (1, 2))),
        placer=PlacerRecord(
            "heft", "1", 3, 5, 0.5, (HistoryPoint(1, 0.1, 17.0), HistoryPoint(4, 0.2, 16.5, 16.0))
        ),
        measured=Measurement(18.0, 0.5, 9, {"cpu:0": 20.0}),
    )


@pytest.mark.parametrize(
    ("parse", "written", "value"),
    [
        (parse_bytes, "16GiB", 16 * 2**30),
        (parse_bytes, "1.5 kB", 1500),
        (parse_bytes, 12, 12),
        (parse_bytes, "4 gb", 4e9),
        (parse_bytes, "4gib", 4 * 2**30),
        (parse_bytes, "inf", np.inf),
        (parse_seconds, "12us", 12e-6),
        (parse_seconds, "2min", 120),
        (parse_bandwidth, "24GB/s", 24e9),
    ],
)
def test_quantities(parse: object, written: object, value: float) -> None:
    assert parse(written) == pytest.approx(value)  # type: ignore[operator]


@pytest.mark.parametrize("wrong", ["banana", "", "-3s", "3 parsecs", "nan", "1s2", True])
def test_quantities_that_are_none(wrong: object) -> None:
    with pytest.raises(InputError, match="expected a duration"):
        parse_seconds(wrong)  # type: ignore[arg-type]


@given(st.floats(0, 1e12))
def test_a_bare_number_is_itself(value: float) -> None:
    assert parse_bytes(repr(value)) == value


def test_cluster_round_trip(tmp_path: Path) -> None:
    write_cluster(tmp_path / "c.yaml", PAIR)
    cluster, links_given = read_cluster_and_links(tmp_path / "c.yaml")
    assert links_given
    assert cluster_data(cluster) == cluster_data(PAIR)


def test_groups_of_devices_round_trip(tmp_path: Path) -> None:
    """Single devices say nothing of replicas, so that files of before keep their hashes."""
    first, second = PAIR.devices
    group = replace(first, replicas=3, replica_bandwidth=math.inf)
    inference = replace(first, replicas=2)
    single = replace(first, replica_bandwidth=1e9, members=(second,))
    for device in (group, inference, single):
        cluster = replace(PAIR, devices=(device, second))
        write_cluster(tmp_path / "c.yaml", cluster)
        assert read_cluster(tmp_path / "c.yaml").devices == cluster.devices
    assert "replicas" not in str(cluster_data(PAIR))


def test_a_cluster_with_a_card_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "format: placewright.cluster/1\ndevices:\n- {name: card, kind: gpu, memory: 12GiB, "
        "peak: {f16: 101 TFLOPS, f32: 12700GFLOP/s, i8: 203e12}, bandwidth: 360GB/s}\n"
    )
    cluster = read_cluster(path)
    sheet = DataSheet({"f16": 101e12, "f32": 12.7e12, "i8": 203e12}, 360e9)
    assert cluster.devices[0].data_sheet == sheet
    write_cluster(tmp_path / "again.yaml", cluster)
    assert read_cluster(tmp_path / "again.yaml").devices == cluster.devices
    assert "peak" not in str(cluster_data(PAIR))


def test_cluster_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "format: placewright.cluster/1\nhost: cpu\n"
        "devices:\n- {name: cpu, memory: 16GiB}\n- {name: gpu, kind: gpu, dispatch: 12us}\n"
        "links:\n- {from: cpu, to: gpu, bandwidth: 24GB/s, latency: 10us, both: true}\n"
    )
    cluster = read_cluster(path)
    assert cluster.devices[1].dispatch_seconds == pytest.approx(12e-6)
    assert cluster.link_seconds_per_byte[1, 0] == pytest.approx(1 / 24e9)


def test_seconds_of_a_call_have_a_unit(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("format: placewright.cluster/1\ndevices: [{name: a}]\ncall_seconds: 20us\n")
    assert read_cluster(path).call_seconds == pytest.approx(20e-6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("devices: [", "not valid YAML"),
        ("format: placewright.cluster/9\ndevices: []", "has format 'placewright.cluster/9'"),
        ("just text", "has no entry `format`; this version reads 'placewright.cluster/1'"),
        ("format: placewright.cluster/1\ndevices: [{name: a, memroy: 1}]", "memroy"),
        ("format: placewright.cluster/1\ndevices: []", "at least one device"),
        (
            "format: placewright.cluster/1\ndevices: [{name: a, kind: gqu}]",
            "unknown kind of device 'a' 'gqu'; .*available: cpu, gpu, npu, accelerator",
        ),
        (
            "format: placewright.cluster/1\ndevices: [{name: a, peak: {f32: 5 TFLOPS}}]",
            "device 'a' has no bandwidth; a data sheet needs both",
        ),
        (
            "format: placewright.cluster/1\ndevices: [{name: a, bandwidth: 9GB/s}]",
            "device 'a' has no peak",
        ),
        (
            "format: placewright.cluster/1\n"
            "devices: [{name: a, bandwidth: 9GB/s, peak: {fp32: 5 TFLOPS}}]",
            "device 'a': peak names precision 'fp32'; known: f32, tf32",
        ),
        (
            "format: placewright.cluster/1\n"
            "devices: [{name: a, bandwidth: 9GB/s, peak: {f32: 5 GHz}}]",
            "expected operations per second such as 101 TFLOPS or 24 TOPS, got '5 GHz'",
        ),
        (
            "format: placewright.cluster/1\n"
            "devices: [{name: a, bandwidth: 0, peak: {f32: 5 TFLOPS}}]",
            "device 'a': bandwidth of a data sheet must be > 0 B/s",
        ),
        (
            "format: placewright.cluster/1\ndevices: [{name: a}, {name: b}]\n"
            "links: [{from: a, to: b, bandwidth: -1GB/s}]",
            "expected a bandwidth",
        ),
        ("a: &a [1]\nb: [*a, *a]", "has no entry `format`"),
    ],
)
def test_wrong_cluster_files(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_cluster(path)


def test_graph_and_problem_round_trip(tmp_path: Path) -> None:
    original = plan().problem
    write_graph(tmp_path / "g.json", original.graph, None)
    graph, source = read_graph(tmp_path / "g.json")
    assert source is None
    assert graph.op_names == original.graph.op_names
    write_problem(tmp_path / "p.json", original)
    assert problem_text(read_problem(tmp_path / "p.json")) == problem_text(original)


def test_the_path_of_a_model_starts_where_the_file_will_be(tmp_path: Path) -> None:
    """An isolated process writes into a folder of its own, from which another one takes files."""
    scratch, folder, model = tmp_path / "a" / "scratch", tmp_path / "plans", tmp_path / "m.onnx"
    scratch.mkdir(parents=True)
    model.touch()
    source = ModelSource(str(model), "0" * 64, "onnx")
    made = replace(problem([[1, 2]] * 4), source=source)
    written = written_in(made, scratch / "plan.problem.json").source
    assert written is not None
    assert written.path == "../../m.onnx"
    for path in ("", "n" * 300):  # no model of this machine
        other = replace(made, source=replace(source, path=path))
        kept = written_in(other, scratch / "plan.problem.json").source
        assert kept is not None
        assert kept.path == path_from(path, tmp_path / "plan.json") == path
    tell_final_folders({str(scratch): str(folder)})
    moved = written_in(made, scratch / "plan.problem.json").source
    assert moved is not None
    assert moved.path == "../m.onnx"


def with_model(path: str) -> Problem:
    return replace(plan().problem, source=ModelSource(path, "0" * 64, "onnx"))


def test_a_model_that_is_a_link_keeps_its_name(tmp_path: Path) -> None:
    """A cache of downloads has content without a suffix, and a link with the model's name."""
    for folder in ("blobs", "named", "plans"):
        (tmp_path / folder).mkdir()
    (tmp_path / "blobs" / "0a1b").touch()
    model, file = tmp_path / "named" / "m.onnx", tmp_path / "plans" / "p.json"
    model.symlink_to("../blobs/0a1b")
    write_problem(file, with_model(str(model)))
    assert json.loads(file.read_text())["source"]["path"] == "../named/m.onnx"
    found = read_problem(file).source
    assert found is not None
    assert found.path == str(model)


def test_the_path_of_a_model_leads_through_a_linked_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder above a linked one is that of its target."""
    home = tmp_path / "home" / "project"
    home.mkdir(parents=True)
    (tmp_path / "data" / "plans").mkdir(parents=True)
    (home / "out").symlink_to(tmp_path / "data" / "plans")
    (home / "m.onnx").touch()
    monkeypatch.chdir(home)
    write_problem("out/p.json", with_model("m.onnx"))
    found = read_problem("out/p.json").source
    assert found is not None
    assert Path(found.path).samefile(home / "m.onnx")


@pytest.mark.parametrize(
    ("file", "beside"),
    [
        ("plan.json", "plan.problem.json"),
        ("plan-1.5GB.json", "plan-1.5GB.problem.json"),
        ("plan.JSON", "plan.JSON-problem.json"),
        ("plan", "plan-problem.json"),
        ("plan-1.5GB", "plan-1.5GB-problem.json"),
        ("plan-model.past=64", "plan-model.past=64-problem.json"),
    ],
)
def test_each_plan_has_a_problem_of_its_own(file: str, beside: str) -> None:
    assert problem_path_of(Path("plans") / file) == Path("plans") / beside


def test_plans_whose_names_differ_in_their_suffix_keep_their_problems(tmp_path: Path) -> None:
    """The second one replaced the problem of the first one, which could not be read any more."""
    sizes = {"best.json": 1e9, "best": 2e9}
    for name, size in sizes.items():
        write_plan(tmp_path / name, on_device(memory_bytes=size))
    for name, size in sizes.items():
        assert read_plan(tmp_path / name).problem.cluster.devices[0].memory_bytes == size


def test_a_plan_finds_the_problem_that_it_names(tmp_path: Path) -> None:
    """Earlier plans without a suffix have that of ``best.json``."""
    write_problem(tmp_path / "best.problem.json", plan().problem)
    write_plan(tmp_path / "best", plan(), problem_path=tmp_path / "best.problem.json")
    assert json.loads((tmp_path / "best").read_text())["problem"]["path"] == "best.problem.json"
    assert read_plan(tmp_path / "best").value == 17.0


def test_a_plan_does_not_replace_its_own_problem(tmp_path: Path) -> None:
    write_problem(tmp_path / "same.json", plan().problem)
    before = (tmp_path / "same.json").read_bytes()
    (tmp_path / "link.json").symlink_to("same.json")
    for name in ("same.json", "link.json"):
        with pytest.raises(InputError, match="is the problem file itself; name another file"):
            write_plan(tmp_path / name, plan(), problem_path=tmp_path / "same.json")
    assert (tmp_path / "same.json").read_bytes() == before


def test_plan_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, plan())
    found = read_plan(path)
    assert found.placement.device_of.tolist() == [1, 0, 0]
    assert found.placement.order is not None
    assert found.placement.order.tolist() == [0, 1, 2]
    assert found.segments == plan().segments
    assert found.measured == plan().measured
    assert found.placer == plan().placer
    document = json.loads(path.read_text())
    assert document["format"] == "placewright.plan/2"
    assert document["searched"] is None
    assert document["placer"]["history"] == [[1, 0.1, 17.0, None], [4, 0.2, 16.5, 16.0]]
    assert document["placement"] == {
        "split": "cpu:1", "left": "cpu:0", "right": "cpu:0", "join": "cpu:0"
    }  # fmt: skip
    assert document["predicted"]["gap"] == pytest.approx(1 / 16)


def without_measurement(found: Plan) -> Plan:
    return replace(found, measured=None, segments=None, lower_bound=0.0)


def no_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def with_searched(found: Plan) -> Plan:
    return replace(found, searched=Searched(Placement.of([1, 0, 1], [0, 1, 2]), 16.5, 2))


def test_the_searched_placement_is_kept_beside_the_recommended_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, with_searched(plan()))
    searched = read_plan(path).searched
    assert searched is not None
    assert (searched.value, searched.in_flight) == (16.5, 2)
    assert searched.placement.device_of.tolist() == [1, 0, 1]
    assert searched.placement.order is not None
    assert searched.placement.order.tolist() == [0, 1, 2]
    assert json.loads(path.read_text())["searched"]["placement"]["join"] == "cpu:1"


@pytest.mark.parametrize("change", [lambda found: found, with_searched, without_measurement])
def test_written_plans_keep_the_published_schema(change: object, tmp_path: Path) -> None:
    """By another library than the one that reads them; the schema itself is strict JSON."""
    path = tmp_path / "plan.json"
    write_plan(path, change(plan()))  # type: ignore[operator]
    document = json.loads(path.read_text())
    schema = json.loads(SCHEMA.read_text(), parse_constant=no_constant)
    check = jsonschema.Draft202012Validator(schema)
    check.check_schema(schema)
    assert [error.message for error in check.iter_errors(document)] == []
    assert not check.is_valid({**document, "searched": {}})
    assert not check.is_valid({**document, "format": "placewright.plan/1"})


def test_a_plan_whose_problem_changed_is_refused(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", plan())
    write_problem(problem_path_of(tmp_path / "plan.json"), problem([[1, 2]] * 4))
    with pytest.raises(StalePlanError, match="made for another problem"):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["placement"].update(left="cpu:1"), "splits a unit"),
        (lambda d: d["placement"].pop("join"), "places no device for op 'join'"),
        (lambda d: d["placement"].update(ghost="cpu:0"), "op 'ghost'"),
        (lambda d: d["placement"].update(join="tpu"), "unknown device 'tpu'"),
        (lambda d: d["order"].pop(), "order names 3 ops in 2 of 3"),
        (lambda d: d.update(objective="speed"), "objective"),
        (lambda d: d["cluster"]["devices"][0].update(streams=2), "other devices or links"),
        (lambda d: d.pop("predicted"), "predicted"),
        (lambda d: d.update(format="placewright.plan/3"), "plan/2' and 'placewright.plan/1'"),
        (lambda d: d.update(format="placewright.plan/1"), r"history\.0"),
        (lambda d: d["searched"]["placement"].pop("join"), "places no device for op 'join'"),
        (lambda d: d["searched"]["placement"].update(left="cpu:1"), "splits a unit"),
        (lambda d: d["placer"]["history"][0].__setitem__(1, math.nan), "None after nan s"),
        (lambda d: d["placer"]["history"][0].__setitem__(1, -1.0), "None after -1.0 s"),
        (lambda d: d["placer"]["history"][0].__setitem__(2, math.nan), "history has nan with"),
        (lambda d: d["placer"]["history"][1].__setitem__(3, math.inf), "has 16.5 with the bound i"),
        (lambda d: d["placer"].update(core_seconds=math.inf), "core_seconds is inf"),
    ],
)
def test_a_damaged_plan_is_refused(tmp_path: Path, change: object, message: str) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, with_searched(plan()))
    document = json.loads(path.read_text())
    change(document)  # type: ignore[operator]
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=message):
        read_plan(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(execution_parameters={"name": "x"}), "no parameter 'name'"),
        (lambda d: d.update(execution_parameters={"dispatch": 5}), "must be a text, got 5"),
        (
            lambda d: d.update(execution_model="sequential", execution_parameters={"messages": []}),
            r"must be a whole number, got \[\]",
        ),
        (
            lambda d: d.update(
                execution_model="max-load", execution_parameters={"samples_in_flight": 3}
            ),
            "'samples_in_flight' has an entry of its own",
        ),
        (lambda d: d["costs"]["seconds"][0].__setitem__(0, "1"), "number"),
        (lambda d: d["costs"]["seconds"][0].__setitem__(0, True), "number"),
        (lambda d: d["units"].__setitem__(0, False), "units.0: .*integer"),
        (lambda d: d["units"].__setitem__(0, "0"), "units.0: .*integer"),
        (lambda d: d.update(samples_in_flight=True), "flight: cannot be true or false"),
        (lambda d: d["cluster"].update(contention={"bus": [1, True]}), "be true or false"),
        (lambda d: d["graph"]["ops"]["flops"].__setitem__(0, True), "be true or false"),
        (lambda d: d["graph"]["tensors"]["producer"].__setitem__(1, False), "be true or false"),
        (lambda d: d["source"]["signature"]["inputs"][0].update(value=[1, 2]), "has 2 values"),
        (lambda d: d["source"]["signature"]["inputs"][0].update(shape=[-3]), r"shape \[-3\]"),
    ],
)
def test_a_damaged_problem_is_refused(tmp_path: Path, change: object, message: str) -> None:
    ports = Port("x", (3,), "f32", 0), Port("y", (3,), "f32", 5)
    signature = Signature(ports[:1], ports[1:])
    source = ModelSource("m.onnx", "0" * 64, "onnx", signature=signature)
    write_problem(tmp_path / "p.json", replace(plan().problem, source=source))
    read_problem(tmp_path / "p.json")
    document = json.loads((tmp_path / "p.json").read_text())
    change(document)  # type: ignore[operator]
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=message):
        read_problem(tmp_path / "p.json")


@pytest.mark.parametrize("text", ["{", "[[1]]", '[["many", {}]]', "[[1, []]]", '[[1, {"x": 2}]]'])
def test_calls_that_are_none_are_refused(text: str) -> None:
    source = ModelSource("m.onnx", "0" * 64, "onnx", options={"calls": text})
    with pytest.raises(InputError, match="no list of calls"):
        calls_of(source)


def test_a_link_to_a_plan_leads_to_its_problem_and_its_model(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "m.onnx").touch()
    source = ModelSource(str(tmp_path / "kept" / "m.onnx"), "0" * 64, "onnx")
    whole = replace(plan().problem, source=source)
    write_plan(tmp_path / "kept" / "best.json", replace(plan(), problem=whole))
    (tmp_path / "now.json").symlink_to("kept/best.json")
    found = read_plan(tmp_path / "now.json").problem.source
    assert found is not None
    assert Path(found.path).samefile(source.path)


def test_a_cluster_has_a_few_thousand_devices_at_most(tmp_path: Path) -> None:
    """Links have matrices of all pairs."""
    names = "".join(f"- {{name: d{number}}}\n" for number in range(4097))
    (tmp_path / "c.yaml").write_text(f"format: placewright.cluster/1\ndevices:\n{names}")
    with pytest.raises(ClusterError, match="at most 4096 devices, got 4097"):
        read_cluster(tmp_path / "c.yaml")


def test_a_failed_write_leaves_the_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("earlier")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        write_text(path, "later")
    assert path.read_text() == "earlier"
    assert [item.name for item in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"{", b"[]", b"{'a': 1}", b"[" * 100000])
def test_what_is_no_json_object_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"x\.json"):
        read_json_object(path)


def test_a_name_that_the_system_refuses_is_not_missing(tmp_path: Path) -> None:
    assert is_missing(tmp_path / "none")
    assert not is_missing(tmp_path)
    assert not is_missing(tmp_path / ("n" * 300))
    assert not is_missing(tmp_path / "a\0b")


def test_a_name_that_is_too_long_names_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model '.*nnn\.onnx' does not exist"):
        existing_path(tmp_path / ("n" * 300 + ".onnx"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_problem(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("power: 5 W", "devices.0.power: expected an entry such as {busy: 65 W, idle: 10 W}"),
        ("power: {busy: 5 Watt}", "devices.0.power.busy: expected a power such as 65 W or 800 mW"),
        ("options: 5", "devices.0.options: expected an entry with fields"),
        ("members: 5", "devices.0.members: expected a list"),
        ("streams: yes", "devices.0.streams: cannot be true or false (got True)"),
        ("pool: {ram: true}", "devices.0.pool"),
        ("members: [5]", 'members.0: expected an entry such as {name: "cpu:0", memory: 2GiB}'),
    ],
)
def test_a_wrong_entry_is_refused_with_a_right_one(entry: str, fault: str, tmp_path: Path) -> None:
    text = f"format: placewright.cluster/1\ndevices:\n- {{name: cpu, {entry}}}\n"
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(FileFormatError) as error:
        read_cluster(tmp_path / "c.yaml")
    assert fault in str(error.value)


def test_a_plan_refers_to_a_problem_that_was_written_by_hand(tmp_path: Path) -> None:
    """Its hash is that of the file, not of what would have been written."""
    plan = pw.place(random_problem(np.random.default_rng(0), constrained=False), evaluations=5)
    own = tmp_path / "own.json"
    write_problem(own, plan.problem)
    own.write_text(json.dumps(json.loads(own.read_text()), indent=4))
    pw.write_plan(tmp_path / "plan.json", plan, problem_path=own)
    assert pw.read_plan(tmp_path / "plan.json").value == plan.value
    write_problem(own, random_problem(np.random.default_rng(1)))
    with pytest.raises(InputError, match="holds another problem than the plan's"):
        pw.write_plan(tmp_path / "plan.json", plan, problem_path=own)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["own.json", "plan.json"]


@pytest.mark.parametrize(
    "calls", ["[[0, {}]]", "[[NaN, {}]]", '[[1, {"x": "12"}]]', '[[1, {"x": [-1]}]]']
)
def test_calls_of_somebody_else_are_refused(calls: str) -> None:
    source = ModelSource("m.onnx", sha256="0" * 64, format="onnx", options={"calls": calls})
    with pytest.raises(InputError, match="are no list of calls"):
        calls_of(source)


@pytest.mark.parametrize("where", ["producer", "colocation"])
def test_a_number_of_more_than_64_bits_is_refused(where: str, tmp_path: Path) -> None:
    write_graph(tmp_path / "g.json", random_problem(np.random.default_rng(0)).graph, None)
    document = json.loads((tmp_path / "g.json").read_text())
    columns = document["graph"]
    part = columns["tensors"] if where == "producer" else columns["ops"]
    part[where][0] = "9" * 20
    (tmp_path / "g.json").write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match="too large"):
        read_graph(tmp_path / "g.json")


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    text = "format: placewright.cluster/1\ndevices:\n- {name: a, memory: 8GiB, memory: 80GiB}\n"
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(FileFormatError, match="key 'memory' stands twice"):
        read_cluster(tmp_path / "c.yaml")
    merged = "devices:\n- &one {name: a, memory: 8GiB}\n- &two {<<: *one, name: b}\n"
    (tmp_path / "c.yaml").write_text(
        f"format: placewright.cluster/1\n{merged}- {{<<: *two, name: c}}\n"
    )
    assert read_cluster(tmp_path / "c.yaml").device_names == ("a", "b", "c")


def test_numbers_of_numpy_are_written(tmp_path: Path) -> None:
    device = replace(PAIR.devices[0], memory_bytes=np.float64(1e9))
    write_cluster(tmp_path / "c.yaml", replace(PAIR, devices=(device, PAIR.devices[1])))
    assert read_cluster(tmp_path / "c.yaml").devices[0].memory_bytes == 1e9


def test_a_plan_whose_model_has_no_name_of_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(path, replace(plan(), problem=with_model("m.onnx")))
    document = json.loads(path.read_text())
    document["model"]["source"] = "a\0b"
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match="contradicts itself"):
        read_plan(path)


def on_device(**numbers: Any) -> Plan:
    """The plan, with numbers of its first device."""
    first, second = PAIR.devices
    cluster = replace(PAIR, devices=(replace(first, **numbers), second))
    return replace(plan(), problem=replace(plan().problem, cluster=cluster))


def test_plans_with_numbers_of_numpy_are_written(tmp_path: Path) -> None:
    made = on_device(streams=np.int64(2), dispatch_seconds=np.float32(2))
    write_plan(tmp_path / "plan.json", made)
    device = read_plan(tmp_path / "plan.json").problem.cluster.devices[0]
    assert (device.streams, device.dispatch_seconds) == (2, 2.0)


def test_whole_numbers_make_no_other_problem(tmp_path: Path) -> None:
    """A file has 65 as the program gave it, and what is read from it 65.0."""
    made = on_device(busy_watts=65)
    made = replace(made, problem=replace(made.problem, limits={"latency": 3}))
    write_problem(tmp_path / "own.json", made.problem)
    write_plan(tmp_path / "plan.json", made, problem_path=tmp_path / "own.json")
    assert read_plan(tmp_path / "plan.json").value == made.value
