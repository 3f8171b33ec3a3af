"""Ops by name and by pattern: listed with their seconds, pinned, and moved in a what-if."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import placewright as pw
from placewright.cli.app import with_bare_options
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster, Device, Link
from placewright.core.execution_models import MaxLoad
from placewright.core.op_patterns import by_op, matching
from placewright.core.problem import Objective
from placewright.core.source import ModelSource
from placewright.errors import FieldError, GraphError, InfeasibleError, RuntimeFailure
from placewright.execution.state_pairs import option_of
from placewright.files.problem_file import write_problem
from placewright.profiling.profile import UnitTimes, keep_last, model_identity
from placewright.profiling.store import CostStore
from placewright.session.models import Model
from placewright.session.problems import _refuse_what_cannot_fit, constrained, listed_ops
from placewright.testing.problems import random_problem, with_power

NAMES = ("layers.0.mul", "layers.0.add", "layers.1.mul", "layers.1.add", "head")


def chain(slow: int = 2) -> pw.Problem:
    """Five ops in a row on two devices, of which `slow` takes 9 s on the faster one."""
    costs = np.array([[1.0, 2.0]] * 5)
    costs[slow] = [9.0, 8.0]
    costs[4, 1] = np.inf
    builder = GraphBuilder()
    tensor = builder.add_input(4, shape=(1,), dtype="f32")
    for name in NAMES:
        op = builder.add_op(name, name.rpartition(".")[2], inputs=[tensor])
        tensor = builder.add_tensor(op, 4, shape=(1,), dtype="f32", is_output=name == "head")
    return pw.Problem.from_costs(builder.build(), costs, (0.0, 1e9))


MEASURED = Model(chain(slow=1).graph, ModelSource("m.onnx", "0" * 64, "openvino"))


class TestPatterns:
    def test_a_name_before_a_later_pattern_before_an_earlier_one(self) -> None:
        said = {"head": "a", "layers.0.add": "b", "*": "c", "layers.?.*": "d", "layers.1.*": "e"}
        found = by_op(chain().graph, said)
        assert [found[op] for op in range(5)] == ["d", "b", "e", "e", "a"]
        assert list(found)[-2:] == [4, 1]  # of two in one unit the last one said holds

    def test_a_name_with_marks_is_a_name(self) -> None:
        problem = chain()
        graph = replace(problem.graph, op_names=("a[0]", "a0", "b*", "bc", "d"))
        assert matching(graph, "a[0]") == [0]
        assert matching(graph, "b*") == [2]
        assert matching(graph, "a[0-9]") == [1]

    @pytest.mark.parametrize(
        ("pattern", "hint"),
        [
            ("*head?*", "near names are head"),
            ("layer.*", "near names are layers"),
            ("*zzz*", "`placewright graph MODEL --ops` lists all names"),
        ],
    )
    def test_a_pattern_of_nothing_is_one_line(self, pattern: str, hint: str) -> None:
        with pytest.raises(GraphError) as caught:
            matching(chain().graph, pattern)
        assert str(caught.value).startswith(f"no op fits the pattern '{pattern}'; {hint}")
        assert "\n" not in str(caught.value)


class TestUse:
    def test_pins_by_pattern(self) -> None:
        problem = chain()
        first, second = problem.cluster.device_names
        pins = {"layers.1.*": second, "layers.1.add": first, "head": first}
        plan = pw.place(problem, pins=pins, placer="heft", evaluations=5)
        assert plan.problem.pins == {2: 1, 3: 0, 4: 0}
        at = plan.placement.device_of[plan.problem.units.group_of]
        assert at[2:].tolist() == [1, 0, 0]
        with pytest.raises(GraphError, match=r"no op fits the pattern 'layers\.7"):
            pw.place(problem, pins={"layers.7.*": first})

    def test_a_name_before_a_pattern_within_a_unit(self) -> None:
        from placewright.core.arrays import frozen_ints
        from placewright.core.costs import CostTable
        from placewright.core.grouping import Grouping

        problem = chain()
        units = Grouping(frozen_ints([0, 0, 1, 1, 2]))
        costs = CostTable(problem.costs.seconds[:3], "measured")
        first, second = problem.cluster.device_names
        fused = replace(problem, units=units, costs=costs)
        found = constrained(fused, {}, {"layers.*": first, "layers.0.add": second})
        assert found.pins == {0: 1, 1: 1, 2: 0, 3: 0}

    def test_what_if_by_pattern(self) -> None:
        problem = chain()
        first, second = problem.cluster.device_names
        pinned = {name: first for name in NAMES}
        plan = pw.place(problem, pins=pinned, placer="heft", evaluations=5)
        free = replace(plan, problem=replace(plan.problem, pins={}))
        moved = pw.simulate(free, {"*add": second, "layers.1.add": first}).plan
        at = moved.placement.device_of[problem.units.group_of]
        assert at.tolist() == [0, 1, 0, 0, 0]


class TestListing:
    def test_the_slowest_on_the_fastest_device_comes_first(self) -> None:
        problem = chain()
        found = listed_ops(Model(problem.graph, None, problem), "*")
        assert found.ops[0].name == "layers.1.mul"
        first, second = found.devices
        assert found.ops[0].seconds == {first: 9.0, second: 8.0}
        assert next(op for op in found.ops if op.name == "head").seconds[second] is None
        assert [op.name for op in listed_ops(Model(problem.graph, None, problem), "*0*").ops] == [
            "layers.0.mul", "layers.0.add",
        ]  # fmt: skip
        json.dumps(found.data(), allow_nan=False)

    def test_what_was_measured_last_is_found_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.measured(tmp_path, monkeypatch, "", "")
        found = listed_ops(MEASURED, "*")
        assert found.ops[0].name == "layers.0.add"
        assert found.ops[0].seconds == {"device:0": 9.0, "device:1": 8.0}

    @staticmethod
    def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *changes: str) -> None:
        """Store seconds of a machine; the fingerprints of its devices here differ by `changes`."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert listed_ops(MEASURED, "*").ops[0].seconds == {}
        assert [op.name for op in listed_ops(MEASURED, "*").ops] == list(NAMES)
        problem = chain(slow=1)
        devices = tuple(replace(device, fingerprint="f32") for device in problem.cluster.devices)
        problem = replace(problem, cluster=replace(problem.cluster, devices=devices))
        assert MEASURED.source is not None
        identity = model_identity(problem.graph, MEASURED.source)
        keep_last(CostStore(), identity, UnitTimes.of(problem))
        here = [replace(device, fingerprint=device.fingerprint + change)
                for device, change in zip(devices, changes, strict=True)]  # fmt: skip
        runtime = SimpleNamespace(discover=lambda: here)
        monkeypatch.setattr("placewright.session.problems.runtime_named", lambda name: runtime)

    def test_seconds_of_another_machine_or_option_are_not_those_of_its_devices(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.measured(tmp_path, monkeypatch, "", " and bf16")
        found = listed_ops(MEASURED, "*")
        assert found.devices == ("device:0",)
        assert found.ops[0].seconds == {"device:0": 9.0}

    def test_seconds_of_no_device_here_are_not_listed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.measured(tmp_path, monkeypatch, ", newer", ", newer")
        found = listed_ops(MEASURED, "*")
        assert found.devices == ()
        assert [op.name for op in found.ops] == list(NAMES)

    @pytest.mark.parametrize(
        ("here", "expected"),
        [
            (["cpu", "gpu"], ("device:0", "device:1")),
            (["cpu"], ("device:0",)),
            (["device:1"], ("device:1",)),
            (["cpu", "device:0"], ("device:0", "device:1")),
        ],
    )
    def test_a_device_of_another_name_is_found_by_its_fingerprint(
        self,
        here: list[str],
        expected: tuple[str, ...],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A cluster file may name it; one that is gone is not found in another of its type."""
        self.measured(tmp_path, monkeypatch, "", "")
        found = [Device(name, fingerprint="f32") for name in here]
        runtime = SimpleNamespace(discover=lambda: found)
        monkeypatch.setattr("placewright.session.problems.runtime_named", lambda name: runtime)
        assert listed_ops(MEASURED, "*").devices == expected

    def test_devices_whose_seconds_are_left_out_are_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.measured(tmp_path, monkeypatch, "", " and bf16")
        with caplog.at_level("INFO", "placewright.session.problems"):
            listed_ops(MEASURED, "*")
        assert caplog.messages == ["seconds are left out of devices not found here: device:1"]

    @pytest.mark.parametrize("error", [RuntimeError("no driver"), RuntimeFailure("no driver")])
    def test_a_runtime_that_finds_no_devices_ends_no_listing(
        self, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.measured(tmp_path, monkeypatch, "", "")

        def refuse() -> list[Device]:
            raise error

        runtime = SimpleNamespace(discover=refuse)
        monkeypatch.setattr("placewright.session.problems.runtime_named", lambda name: runtime)
        found = listed_ops(MEASURED, "*")
        assert found.devices == ()
        assert [op.name for op in found.ops] == list(NAMES)

    def test_a_profile_keeps_its_seconds(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from model_makers import write_onnx

        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        write_onnx(tmp_path / "small.onnx")
        name = str(tmp_path / "small.onnx")
        problem = pw.profile(name, devices="cpu:0", quick=True)
        found = listed_ops(pw.read(name), "*")
        assert found.devices == ("cpu:0",)
        unit = int(problem.units.group_of[problem.graph.op_index[found.ops[0].name]])
        assert found.ops[0].seconds["cpu:0"] == problem.costs.seconds[unit, 0]


class TestBeforeMeasuring:
    """An op that keeps 2 GiB and reads one input; the host, cpu:0, has a link from cpu:1 alone."""

    def check(self, request: pw.Request) -> None:
        builder = GraphBuilder()
        given, weight = builder.add_input(4.0), builder.add_weight(2.0**31)
        builder.add_op("read", "Op", inputs=[given], weights=[weight])
        devices = (Device("cpu:0"), Device("cpu:1"))
        cluster = Cluster(devices, (Link("cpu:1", "cpu:0"),), host="cpu:0")
        _refuse_what_cannot_fit(Model(builder.build(), None), cluster, request)

    def test_a_resident_input_needs_no_way_from_the_host(self) -> None:
        pins = {"read": "cpu:1"}
        with pytest.raises(InfeasibleError, match="is reached from the host"):
            self.check(pw.Request("m.onnx", pins=pins))
        self.check(pw.Request("m.onnx", pins=pins, resident=("input_0",)))

    @pytest.mark.parametrize("model", ["event", "max-load"])
    def test_memory_is_refused_where_the_execution_model_counts_weights(self, model: str) -> None:
        memory = {"cpu:*": 2.0**30}
        with pytest.raises(InfeasibleError, match="nothing was measured"):
            self.check(pw.Request("m.onnx", memory=memory, execution_model=model))
        self.check(pw.Request("m.onnx", memory=memory, execution_model="placeto"))


class TestStoredObjective:
    """The objective that is asked for wins over that of a stored problem; else this one stays."""

    @pytest.mark.parametrize(
        ("stored", "asked", "told", "model"),
        [
            ("throughput", None, "throughput", "max-load"),
            ("throughput", "latency", "latency", "event"),
            ("throughput", "energy", "energy", "event"),
            ("energy", None, "energy", "event"),
            ("energy", "latency", "latency", "event"),
            ("energy", "throughput", "throughput", "max-load"),
            ("training", None, "training", "event"),
        ],
    )
    def test_as_asked(
        self, stored: Objective, asked: Objective | None, told: str, model: str, tmp_path: Path
    ) -> None:
        rng = np.random.default_rng(0)
        problem = random_problem(
            rng, objective="latency" if stored == "energy" else stored, constrained=False
        )
        write_problem(tmp_path / "p.json", with_power(problem, stored))
        found = pw.Session(str(tmp_path / "p.json"), objective=asked).problem
        assert (found.objective, found.execution_model.name) == (told, model)
        again = pw.Request(str(tmp_path / "p.json"), objective=asked)
        assert pw.Session(replace(again, seed=1)).problem.objective == told

    @pytest.mark.parametrize(
        "asked", [{"objective": "throughput"}, {"execution_model": "max-load"}]
    )
    def test_a_model_that_keeps_state_has_no_stream(self, asked: dict[str, Any]) -> None:
        """Each sample in flight would begin with a state of its own."""
        source = ModelSource("m.onnx", "0", "onnx", options=option_of({"new_keys": "keys"}))
        stored: Any = replace(chain(), source=source)
        with pytest.raises(FieldError, match=r"objective: throughput: .* keeps state from call"):
            _ = pw.Session(stored, **asked).problem
        assert pw.Session(stored, objective="latency").problem.objective == "latency"

    def test_a_training_step_keeps_max_load(self) -> None:
        made = random_problem(np.random.default_rng(0), objective="training", constrained=False)
        stored = made.under(MaxLoad(samples_in_flight=3))
        found = pw.Session(stored, objective="training").problem
        assert (found.objective, found.execution_model) == ("training", stored.execution_model)

    @pytest.mark.parametrize("asked", ["latency", "throughput", "energy"])
    def test_a_training_step_stays_one(self, asked: Objective) -> None:
        problem = random_problem(np.random.default_rng(0), objective="training")
        with pytest.raises(FieldError, match=f"{asked}: .* carries a problem of training"):
            _ = pw.Session(with_power(problem, "training"), objective=asked).problem


def test_the_pattern_may_be_left_out(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.touch()
    for words, expected in (
        (["graph", "--ops", str(model)], ["graph", "--ops=*", str(model)]),
        (["graph", str(model), "--ops"], ["graph", str(model), "--ops=*"]),
        (["graph", "zoo:lstm", "--ops", "--json"], ["graph", "zoo:lstm", "--ops=*", "--json"]),
        (["graph", "--ops", "zoo:lstm"], ["graph", "--ops=*", "zoo:lstm"]),
        (["graph", str(model), "--ops", "conv*"], ["graph", str(model), "--ops", "conv*"]),
    ):
        assert with_bare_options(words) == expected
