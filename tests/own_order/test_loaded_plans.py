"""Loaded plans in every runtime: by name and position, from many threads, until they are closed."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_order.models import OUTPUTS, SHAPE, WRITERS, by_hand, values
from own_order.plans import for_throughput, own_order, split_plan, unsplit

import placewright as pw
from placewright.core.costs import CostTable
from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.plan import Measurement, Plan
from placewright.core.replicas import grouped
from placewright.core.solution import Solution
from placewright.errors import InputError, RuntimeFailure, UnknownNameError
from placewright.execution.direct import DirectRunner
from placewright.execution.placements import whole_model_runner
from placewright.session.loaded import plans
from placewright.session.loaded.plans import unsplit_devices
from placewright.session.models import loaded_model
from placewright.session.plans import plan_of, searched_plan
from placewright.simulation.model import Simulator


def recommended(plan: Plan, way: str) -> Plan:
    return replace(plan, measured=Measurement(1.0, 0.0, 1, {way: 0.5}, way))


def replicated(plan: Plan) -> Plan:
    alone = replace(plan.problem, objective="throughput", execution_model=MaxLoad())
    problem = grouped(alone, [[0, 1]])
    found = Solution(Placement.on_one_device(problem.n_units, 0), 1.0, "feasible", 0.0)
    return plan_of(problem, found, plan.placer, plan.runtime)


def with_seconds(plan: Plan, seconds: float) -> Plan:
    """Every unit takes so long: 0 for nothing to gain by overlap, 1 for much."""
    costs = CostTable(np.full_like(plan.problem.costs.seconds, seconds))
    found = Solution(plan.placement, 0.0, "feasible", 0.0)
    return plan_of(replace(plan.problem, costs=costs), found, plan.placer, plan.runtime)


PLANS: dict[str, Callable[[Plan], Plan]] = {
    "split": lambda plan: with_seconds(plan, 1.0),
    "serial split": lambda plan: with_seconds(plan, 0.0),
    "unsplit": unsplit,
    "all cores": lambda plan: recommended(plan, "all cores"),
    "one device": lambda plan: recommended(plan, plan.problem.cluster.device_names[0]),
    "one copy per device": lambda plan: recommended(plan, "one copy per device"),
    "throughput mode": lambda plan: recommended(plan, "throughput mode"),
    "throughput": for_throughput,
    "replicated": replicated,
}


NATIVE = {"openvino": "m.xml", "onnxruntime": "m.onnx", "torch": "m.pt2"}


def written_split(folder: Path, runtime: str) -> Plan:
    path = folder / NATIVE[runtime]
    WRITERS[path.name](path)
    return split_plan(path, runtime)


@pytest.fixture(scope="module", params=NATIVE)
def split(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return written_split(tmp_path_factory.mktemp("split"), request.param)


@cache
def names_of_file(path: Path, runtime: str) -> tuple[list[str], list[str]]:
    return own_order(path, runtime)


def names_of(plan: Plan) -> tuple[list[str], list[str]]:
    source = plan.problem.source
    assert source is not None
    return names_of_file(Path(source.path), plan.runtime)


def require_right(outputs: Any, given: dict[str, Any], names: list[str]) -> None:
    right = by_hand(**given)
    for name, value in zip(names, outputs, strict=True):
        np.testing.assert_allclose(value, right[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", PLANS)
def test_many_threads_get_their_own_outputs(split: Plan, kind: str) -> None:
    """Eight threads, twenty calls each with other inputs: by hand, after all calls are over."""
    plan = PLANS[kind](split)
    _, outputs = names_of(split)
    before = set(threading.enumerate())
    with pw.load(plan) as model:

        def call(caller: int) -> list[Any]:
            return [model(**values(1000 * caller + at)) for at in range(20)]

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(call, range(8)))
        for caller, row in enumerate(found):
            for at, answer in enumerate(row):
                require_right(answer, values(1000 * caller + at), outputs)
    assert set(threading.enumerate()) <= before


def test_a_plan_of_another_processor_serves_and_says_so(split: Plan) -> None:
    cluster = split.problem.cluster
    first, *others = cluster.devices
    devices = (replace(first, fingerprint="another processor"), *others)
    problem = replace(split.problem, cluster=replace(cluster, devices=devices))
    changed = replace(split, problem=problem)
    for serve in (lambda: pw.load(changed).close(), lambda: pw.run(changed, values())):
        with pytest.warns(UserWarning, match=f"'{first.name}' has changed.*'another processor'"):
            serve()
    answer = pw.run(changed, values())
    require_right(answer.values(), values(), list(answer))
    pw.unload()


@pytest.mark.parametrize("kind", ["split", "unsplit"])
def test_inputs_and_outputs_by_position_and_by_name(split: Plan, kind: str) -> None:
    inputs, outputs = names_of(split)
    given = values()
    in_a_row = [given[name] for name in inputs]
    with pw.load(PLANS[kind](split)) as model:
        assert [one.name.partition(":")[0] for one in model.inputs] == inputs
        assert [(one.shape, one.dtype) for one in model.inputs] == [(SHAPE, "float32")] * 3
        assert [one.name.partition(":")[0] for one in model.outputs] == outputs
        assert [(one.shape, one.dtype) for one in model.outputs] == [(SHAPE, "float32")] * 2
        rest = {name: given[name] for name in inputs[1:]}
        mixed = model(in_a_row[0], **rest)
        for found in (model(*in_a_row), model(in_a_row), model(given), model(**given), mixed):
            require_right(found, given, outputs)
            require_right([found[one.name] for one in model.outputs], given, outputs)
            assert list(found.by_name) == [one.name for one in model.outputs]
            assert len(found) == len(OUTPUTS)
            assert all(one.name in found for one in model.outputs)
            assert found[0] in found
            assert "none" not in found
            assert given[inputs[0]] not in found
        with pytest.raises(UnknownNameError, match="unknown model output 'none'"):
            model(given)["none"]
        with pytest.raises(InputError, match=r"input 'c' .* has no value"):
            model(a=given["a"], b=given["b"])
        with pytest.raises(InputError, match=r"input 'c' .* has no value"):
            model(given["a"], b=given["b"])
        with pytest.raises(InputError, match=r"input 'a.*position and by name"):
            model(given["a"], given["b"], a=given["a"])
        with pytest.raises(InputError, match="got 3 by position and 1 by name"):
            model(*in_a_row, c=given["c"])
        with pytest.raises(InputError, match="in a list or a dictionary"):
            model([given["a"]], b=given["b"])
        with pytest.raises(InputError, match=r"the model has 3 inputs .*, got values for 1"):
            model(given["a"])
        require_right(model(given), given, outputs)


@pytest.mark.parametrize("kind", ["split", "unsplit", "one copy per device"])
def test_later_calls_leave_outputs_alone(split: Plan, kind: str) -> None:
    """Outputs of a call, and what the caller writes into them, are no other call's."""
    _, outputs = names_of(split)
    with pw.load(PLANS[kind](split)) as model:
        first = model(values(1))
        kept = [value.copy() for value in first]
        for value in model(values(2)):
            value[...] = 7.0
        for value, copy in zip(first, kept, strict=True):
            np.testing.assert_array_equal(value, copy)
        require_right(model(values(3)), values(3), outputs)
        streamed = list(model.stream(values(at) for at in range(9)))
        require_right(first, values(1), outputs)
    for at, found in enumerate(streamed):  # also after the memory of the model is free
        require_right(found, values(at), outputs)


@pytest.mark.parametrize("kind", ["split", "one copy per device", "throughput mode", "throughput"])
@pytest.mark.parametrize("in_flight", [None, 1, 4])
def test_a_stream_takes_arrays_that_are_filled_again(
    split: Plan, kind: str, in_flight: int | None
) -> None:
    """A camera has one buffer, and fills it while earlier samples are still under way."""
    _, outputs = names_of(split)
    buffer = values()

    def frames() -> Iterator[dict[str, Any]]:
        for at in range(12):
            for name, value in values(at).items():
                buffer[name][...] = value
            yield buffer

    with pw.load(PLANS[kind](split)) as model:
        for at, found in enumerate(model.stream(frames(), in_flight=in_flight)):
            require_right(found, values(at), outputs)


def _own_threads() -> set[int | None]:
    return {one.ident for one in threading.enumerate() if one.name.startswith("placewright")}


@pytest.mark.parametrize("kind", PLANS)
def test_streams_are_warm_and_calls_go_on_beside_them(split: Plan, kind: str) -> None:
    _, outputs = names_of(split)
    with pw.load(PLANS[kind](split)) as model:
        require_right(next(iter(list(model.stream([values(0)])))), values(0), outputs)
        threads = _own_threads()
        for at, found in enumerate(model.stream(values(at) for at in range(20))):
            require_right(found, values(at), outputs)
            require_right(model(values(at + 50)), values(at + 50), outputs)
        if kind not in ("one copy per device", "throughput mode"):  # these start theirs
            assert _own_threads() == threads
        left_early = model.stream(values(at) for at in range(20))
        next(left_early)
        left_early.close()
        assert len(list(model.stream(values(at) for at in range(5)))) == 5


def test_a_call_in_which_nothing_overlaps_wakes_no_worker(split: Plan) -> None:
    """And one in which units overlap has a worker for each device."""
    for kind, workers in (("serial split", 0), ("split", 2)):
        before = _own_threads()
        with pw.load(PLANS[kind](split)) as model:
            require_right(model(**values(3)), values(3), names_of(split)[1])
            assert len(_own_threads() - before) == workers


@pytest.mark.parametrize("kind", ["split", "serial split", "unsplit"])
def test_close_frees_threads_files_and_memory(split: Plan, kind: str) -> None:
    plan = PLANS[kind](split)
    gc.collect()
    gc.freeze()  # what is here already is no object of this test, and takes a collection a second
    before, files = set(threading.enumerate()), open_files()
    model = pw.load(plan)
    given = values()
    model(given)
    list(model.stream([given]))
    held = [weakref.ref(model._model), weakref.ref(model._runner)]
    under_way = model.stream(given for _ in range(9))
    next(under_way)
    model.close()
    model.close()
    gc.collect()
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeFailure, match="was closed; load it again"):
        list(under_way)
    del under_way
    gc.collect()
    assert [one() for one in held] == [None, None]
    assert open_files() <= files
    for use in (lambda: model(given), lambda: list(model.stream([given])), model.random_inputs):
        with pytest.raises(RuntimeFailure, match="was closed; load it again"):
            use()


def test_an_interrupt_of_close_leaves_nothing_open(
    split: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes while `close` waits for calls under way."""

    def interrupted(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    before = _own_threads()
    model = pw.load(PLANS["split"](split))
    model(values())
    assert _own_threads() - before
    monkeypatch.setattr(threading.Condition, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.close()
    monkeypatch.undo()
    assert _own_threads() <= before
    assert not model.is_open


def test_streams_of_many_sizes_leave_few_threads(split: Plan) -> None:
    with pw.load(PLANS["split"](split)) as model:
        counts = []
        for in_flight in range(1, 9):
            assert len(list(model.stream([values()] * 3, in_flight=in_flight))) == 3
            counts.append(len(_own_threads()))
        assert counts[0] < counts[2], "streams of a size stay for the next one"
        assert len(set(counts[3:])) == 1


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("runtime", NATIVE)
def test_a_plan_moves_with_its_model(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written in one folder, run from another after the folder got another name."""
    split = written_split(tmp_path, runtime)
    source = split.problem.source
    assert source is not None
    names = names_of(split)[1]
    made = tmp_path / "made"
    (made / "plans").mkdir(parents=True)
    for file in tmp_path.glob("m.*"):
        file.rename(made / file.name)
    path = made / Path(source.path).name
    problem = replace(split.problem, source=replace(source, path=str(path)))
    monkeypatch.chdir(made)
    pw.write_plan("plans/plan.json", replace(split, problem=problem))
    text = (made / "plans" / "plan.json").read_text()
    assert f'"../{path.name}"' in text
    assert str(tmp_path) not in text + (made / "plans" / "plan.problem.json").read_text()
    monkeypatch.chdir(tmp_path)
    made.rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pw.load("../moved/plans/plan.json") as model:
        require_right(model(values()), values(), names)
    for file in (tmp_path / "moved").glob("m.*"):
        file.rename(tmp_path / "elsewhere" / file.name)
    with pw.load("../moved/plans/plan.json", model=path.name) as model:
        require_right(model(values()), values(), names)


@pytest.mark.parametrize("way", ["all cores", "throughput mode"])
def test_searched_runs_the_placement_where_another_way_was_recommended(
    split: Plan, way: str
) -> None:
    plan = searched_plan(recommended(split, way))
    assert unsplit_devices(plan, loaded_model(plan.problem, plan.runtime)) == ()
    assert plan.placement is split.placement


def test_calls_run_on_the_recommended_member_of_a_group(split: Plan) -> None:
    """Both members ran them, as if the group had been recommended."""
    first = split.problem.cluster.device_names[0]
    plan = recommended(replicated(split), first)
    model = loaded_model(plan.problem, plan.runtime)
    assert [device.name for device in unsplit_devices(plan, model)] == [first]
    assert len(unsplit_devices(searched_plan(plan), model)) == 2


def test_a_server_that_is_made_while_the_plan_closes_ends_with_it(
    split: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ended = pw.load(PLANS["split"](split)), list[str]()
    closing = threading.Thread(target=model.close)

    def made(plan: Plan, loaded: Any, stack: ExitStack, **_: Any) -> None:
        stack.callback(ended.append, "server")
        closing.start()
        while model.is_open:
            time.sleep(0.001)

    monkeypatch.setattr(plans, "recommended_server", made)
    with pytest.raises(RuntimeFailure, match="was closed; load it again"):
        next(model.stream([values()]))
    closing.join()
    assert ended == ["server"]


def test_streams_run_on_the_recommended_device_of_a_split(
    split: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As calls do; plans of version 1 hold the split beside which the device was faster."""
    opened = []

    def noted(model: Any, device: Any, **options: Any) -> Any:
        opened.append(device.name)
        return whole_model_runner(model, device, **options)

    monkeypatch.setattr(plans, "whole_model_runner", noted)
    with pw.load(PLANS["one device"](split)) as model:
        assert len(list(model.stream([values()] * 3))) == 3
    assert opened == [split.problem.cluster.device_names[0]]


def with_room(plan: Plan, further: int) -> Plan:
    """Limit the first device to the unsplit model with one call and so many further ones."""
    problem = plan.problem
    whole = Placement.on_one_device(problem.n_units, 0)
    one = float(Simulator(problem).memory_peaks(whole)[0])
    weights = problem.kept_weights.total
    assert one > weights
    first, *others = problem.cluster.devices
    limited = replace(first, memory_bytes=one + further * (one - weights))
    cluster = replace(problem.cluster, devices=(limited, *others))
    return replace(plan, problem=replace(problem, cluster=cluster))


@pytest.mark.parametrize("further", [0, 2, 9])
@pytest.mark.parametrize("kind", ["unsplit", "all cores"])
def test_no_more_calls_at_a_time_than_memory_has_room_for(
    split: Plan, kind: str, further: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are cores ran at a time, whatever the limit of the device."""
    allowed = []

    def noted(model: Any, copies: Any, *, at_once: int) -> DirectRunner:
        allowed.append(at_once)
        return DirectRunner(model, copies, at_once=at_once)

    monkeypatch.setattr(plans, "DirectRunner", noted)
    monkeypatch.setattr(plans, "usable_cores", lambda: range(4))
    with pw.load(with_room(PLANS[kind](unsplit(split)), further)):
        assert allowed == [min(1 + further, 4)]


def test_memory_of_the_whole_model_is_counted_once_and_only_for_a_limit(
    split: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number of calls that was tried counted it, even on devices without limits."""
    counted: list[list[int]] = []
    count = plans.whole_peaks

    def noted(simulator: Simulator, devices: list[int]) -> Any:
        counted.append(devices)
        return count(simulator, devices)

    monkeypatch.setattr(plans, "whole_peaks", noted)
    monkeypatch.setattr(plans, "usable_cores", lambda: range(64))
    plan = unsplit(split)
    cluster = plan.problem.cluster.without_memory_limits
    unlimited = replace(plan, problem=replace(plan.problem, cluster=cluster))
    with pw.load(unlimited):
        assert counted == []
    with pw.load(with_room(unlimited, 2)):
        assert len(counted) == 1


@pytest.mark.parametrize(("further", "calls"), [(0, 1), (1, 2), (9, 2)])
def test_a_stream_on_one_device_keeps_its_limit(
    split: Plan, further: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two samples were in flight."""
    under_way = []

    def noted(model: Any, device: Any, *, in_flight: int) -> Any:
        under_way.append(in_flight)
        return whole_model_runner(model, device, in_flight=in_flight)

    monkeypatch.setattr(plans, "whole_model_runner", noted)
    with pw.load(with_room(PLANS["one device"](split), further)) as model:
        assert len(list(model.stream([values()] * 3))) == 3
    assert under_way == [calls]


def test_a_plan_of_split_phases_is_called(split: Plan) -> None:
    """Nothing plays its stream, so that calls come one after the other."""
    problem = replace(
        split.problem, objective="throughput", execution_model=MaxLoad(split_phases=True)
    )
    found = Solution(Placement.of(split.placement.device_of), 1.0, "feasible", 0.0)
    with pw.load(plan_of(problem, found, split.placer, split.runtime)) as model:
        require_right(model(values()), values(), names_of(split)[1])
