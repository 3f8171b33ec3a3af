"""The command line from end to end, on problems that need no hardware.

Whole processes cost seconds each, so that only what belongs to a process has one of its own.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.runner import InProcess, placewright, the_line
from support import toys

from placewright.files.plan_file import read_plan
from placewright.files.problem_file import write_problem
from placewright.testing.problems import packing_problem, random_problem, with_power

WORKLOAD = {
    "maxSizePerFPGA": 100.0,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {
            "id": node,
            "name": f"n{node}",
            "supportedOnFpga": 1,
            "cpuLatency": 40.0,
            "fpgaLatency": 4.0,
            "isBackwardNode": 0,
            "colorClass": node,
            "size": 40.0,
        }
        for node in (1, 2, 3)
    ],
    "edges": [
        {"sourceId": 1, "destId": 2, "cost": 1.0, "size": 1.0},
        {"sourceId": 2, "destId": 3, "cost": 1.0, "size": 1.0},
    ],
}


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(WORKLOAD))
    return path


def test_the_catalogue_is_listed_without_measuring(cli: InProcess, tmp_path: Path) -> None:
    """By data sheet: 24 GiB, 1008 GB/s, 82.6 TFLOPS in f32 and twice that in f16."""
    lines = cli("devices", "--catalogue", "RTX-4090", cwd=tmp_path).stdout.splitlines()
    assert lines[1].split()[:7] == ["gpu-rtx-4090", "24", "GiB", "1008", "GB/s", "82.6", "165.2"]
    assert lines[1].endswith("NVIDIA GeForce RTX 4090")
    everything = json.loads(cli("devices", "--catalogue", "--json", cwd=tmp_path).stdout)
    [found] = [one for one in everything["devices"] if one["name"] == "gpu-rtx-4090"]
    assert (found["kind"], found["memory_bytes"]) == ("gpu", 24 * 2**30)
    assert found["operations_per_second"]["f32"] == pytest.approx(82.6e12)
    assert everything["clusters"]["4gpu"] == ["cpu-xeon-e5-2699v3", *["gpu-k80"] * 4]
    assert "pcie-4-x16" in [link["name"] for link in everything["links"]]


def test_a_list_of_names_is_no_cluster_file(cli: InProcess, tmp_path: Path) -> None:
    done = cli("devices", "--catalogue", "rtx", "-o", "cluster.yaml", cwd=tmp_path)
    assert "leave out -o" in the_line(done, 2)
    assert not (tmp_path / "cluster.yaml").exists()
    for option in (("--runtime", "torch"), ("--ray",), ("--ray", "head:6379")):
        done = cli("devices", "--catalogue", "rtx", *option, cwd=tmp_path)
        assert f"leave out {option[0]}" in the_line(done, 2)
    wrong = cli("devices", "--catalogue", "rtx-4091", cwd=tmp_path)
    assert "did you mean gpu-rtx-4090" in the_line(wrong, 2)


def test_place_finds_the_best_split_of_a_chain(workload: Path) -> None:
    """Three ops of 4 ms and 40 bytes on two accelerators of 100 bytes: 8 + 1 against 4 + 1."""
    result = placewright(
        "place", workload, "--objective", "throughput", "--json", "-o", "plan.json",
        cwd=workload.parent,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["predicted"]["value"] == pytest.approx(9.0)
    assert document["unit"] == "ms"
    assert 0 < document["predicted"]["lower_bound"] <= 9.0
    written = json.loads((workload.parent / "plan.json").read_text())
    assert written["placement"] == document["placement"]
    assert (workload.parent / "plan.problem.json").is_file()


def test_place_with_replicas_names_the_groups(workload: Path, cli: InProcess) -> None:
    """Ops of 30 bytes fit one accelerator together: two copies carry 12 / 2. No runtime and no
    writer takes such a plan, and workloads do not say what training exchanges."""
    text = workload.read_text()
    workload.write_text(text.replace('"size": 40.0', '"size": 30.0'))
    words = ("place", workload, "--objective", "throughput", "--replicate")
    result = cli(*words, "--json", cwd=workload.parent)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["predicted"]["value"] == pytest.approx(6.0)
    assert set(document["placement"].values()) == {"acc:0+acc:1"}
    group = document["cluster"]["devices"][0]
    assert (group["name"], group["replicas"]) == ("acc:0+acc:1", 2)
    folder = workload.parent
    for command in (
        ("run", "plan.json"),
        ("export", "plan.json", "--to", "device-map", "-o", "map.json"),
    ):
        line = the_line(cli(*command, cwd=folder), 2)
        assert "'acc:0+acc:1' stands for 2 devices" in line
    latency = cli("place", workload, "--replicate", cwd=folder)
    assert "stages cannot be replicated: it minimises max-load" in the_line(latency, 2)
    workload.write_text(workload.read_text().replace('"isBackwardNode": 0', '"isBackwardNode": 1'))
    step = cli(*words, cwd=folder)
    assert "which tensors are gradients" in the_line(step, 2)


def test_place_then_simulate_with_a_change(workload: Path, cli: InProcess) -> None:
    result = cli(
        "place", workload, "--execution-model", "event", "--placer", "single", "-o", "p.json",
        "--memory", "acc:0=1kB", "--memory", "acc:1=1kB", cwd=workload.parent,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    told = cli("simulate", "p.json", "--set", "2=acc:1", "--json", cwd=workload.parent)
    document = json.loads(told.stdout)
    assert {unit["device"] for unit in document["units"]} == {"acc:0", "acc:1"}
    assert document["value"] == pytest.approx(12.0 + 4.0)  # two tensors, two hops of 1 ms each
    wrong = cli("simulate", "p.json", "--set", "9=acc:1", cwd=workload.parent)
    assert "no op '9'" in the_line(wrong, 2)


@pytest.mark.parametrize("model", ["event", "sequential"])
def test_simulate_gives_an_energy_and_its_time_each_a_unit(
    model: str, tmp_path: Path, cli: InProcess
) -> None:
    """The value and its bound are joules; all times, one of them the plan's, are seconds."""
    rng = np.random.default_rng(4)
    problem = random_problem(rng, n_ops=6, n_devices=2, constrained=False)
    problem = with_power(problem, "energy")
    write_problem(tmp_path / "p.json", problem)
    asked = ("--objective", "energy", "--execution-model", model, "--evaluations", "30")
    placed = cli("place", "p.json", *asked, "-o", "plan.json", cwd=tmp_path)
    assert placed.returncode == 0, placed.stderr
    plan = read_plan(tmp_path / "plan.json")
    document = json.loads(cli("simulate", "plan.json", "--json", cwd=tmp_path).stdout)
    assert (document["value_unit"], document["unit"]) == ("J", "s")
    assert document["value"] == pytest.approx(plan.value)
    assert document["value"] == pytest.approx(plan.amounts["energy"])
    assert document["lower_bound"] <= document["value"]
    assert document["time"] == pytest.approx(plan.amounts["latency"])
    assert document["time"] != document["value"]


def test_simulate_tells_the_loads_of_a_pipeline_and_of_a_change(
    workload: Path, cli: InProcess
) -> None:
    """Two ops of 4 ms with a tensor of 1 ms between them: together 8 ms on one accelerator; apart,
    each device has its op and its end of the transfer."""
    options = ("--objective", "throughput", "--placer", "single", "-o", "t.json")
    result = cli("place", workload, *options, cwd=workload.parent)
    assert result.returncode == 0, result.stderr
    before = json.loads(cli("simulate", "t.json", "--json", cwd=workload.parent).stdout)
    assert before["value"] == max(before["loads"].values())
    change = ("--set", "2=acc:1")
    told = cli("simulate", "t.json", *change, "--json", cwd=workload.parent)
    document = json.loads(told.stdout)
    assert document["value"] == max(document["loads"].values())
    assert document["loads"]["acc:1"] > 0
    text = cli("simulate", "t.json", *change, cwd=workload.parent).stdout
    assert "Loads" in text
    assert "before the change" in text
    trace = cli("simulate", "t.json", "--trace", "t.trace", cwd=workload.parent)
    assert "'max-load' has no timeline" in the_line(trace, 2)
    run = cli("run", "t.json", cwd=workload.parent)
    assert "this plan cannot be executed" in the_line(run, 2)


def test_compare_without_any_placement_is_no(tmp_path: Path, cli: InProcess) -> None:
    """Three times 3 bytes fit on no two devices of 5, whoever places them."""
    write_problem(tmp_path / "p.json", packing_problem())
    words = ("compare", "p.json", "--placers", "single,random", "--evaluations", 20)
    done = cli(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert "random" in done.stdout
    assert cli(*words, "--json", cwd=tmp_path).returncode == 1


def test_a_front_without_points_costs_no_table(tmp_path: Path, cli: InProcess) -> None:
    write_problem(tmp_path / "p.json", with_power(packing_problem(), objective="latency"))
    words = ("compare", "p.json", "--placers", "single,random", "--evaluations", 20)
    done = cli(*words, "--pareto", 3, cwd=tmp_path)
    assert done.returncode == 1
    assert "random" in done.stdout
    assert "warning: no Pareto front: none was found" in done.stderr
    measured = cli(*words, "--pareto", 3, "--evaluator", "measured", cwd=tmp_path)
    assert "--pareto is of predicted values" in the_line(measured, 2)


def test_a_policy_that_has_its_episodes_is_not_trained(tmp_path: Path, cli: InProcess) -> None:
    pytest.importorskip("torch_geometric")
    write_problem(tmp_path / "p.json", toys.two_cluster_problem(2))
    train = ("train", "--placer", "placeto", "--graphs", "p.json", "-o", "p.safetensors")
    first = cli(*train, "--episodes", 1, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "wrote p.safetensors: placeto trained on 1 graph" in first.stdout
    policy = (tmp_path / "p.safetensors").read_bytes()
    again = cli(*train, "--episodes", 1, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, "")
    assert "p.safetensors has 1 episode already, and nothing was trained" in again.stderr
    assert "give more with --episodes" in again.stderr
    assert (tmp_path / "p.safetensors").read_bytes() == policy
    more = cli(*train, "--episodes", 2, cwd=tmp_path)
    assert "wrote p.safetensors" in more.stdout


def test_compare_prints_one_json_document(workload: Path, cli: InProcess) -> None:
    result = cli(
        "compare", workload, "--placers", "single,random,dpl", "--seeds", 2, "--evaluations", 50,
        "--objective", "throughput", "--json", cwd=workload.parent,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    rows = {row["placer"]: row for row in json.loads(result.stdout)["rows"]}
    assert rows["dpl"]["median"] == pytest.approx(9.0)


def test_graph_and_placers(workload: Path, cli: InProcess) -> None:
    summary = json.loads(cli("graph", workload, "--json", cwd=workload.parent).stdout)
    assert (summary["ops"], summary["edges"]) == (3, 2)
    names = json.loads(cli("placers", "--json", cwd=workload.parent).stdout)
    assert {"heft", "auto", "ideal-dp", "post"} <= {row["name"] for row in names}
    assert all(row["summary"] for row in names)


def test_no_arguments_show_the_help_and_version_the_version(tmp_path: Path) -> None:
    for arguments in ((), ("bench",)):
        done = placewright(*arguments, cwd=tmp_path)
        assert done.returncode == 0
        assert done.stdout.startswith("Usage: ")
        assert len(done.stdout.splitlines()) > 5
        assert done.stderr == ""
    done = placewright("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"placewright {version('placewright')}\n")


def test_memory_that_is_too_small_is_the_answer_no(workload: Path, cli: InProcess) -> None:
    result = cli(
        "place", workload, "--objective", "throughput", "--pin", "1=acc:0", "--memory", "acc:0=10B",
        cwd=workload.parent,
    )  # fmt: skip
    assert "acc:0" in the_line(result, 1)
    assert not (workload.parent / "plan.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["place", "missing.onnx"], "'missing.onnx' does not exist"),
        (["place", "text.onnx"], "text.onnx"),
        (["place", "cycle.json"], "cycle"),
        (["place", "zoo:alexnet"], "unknown zoo model 'alexnet'"),
        (["place", "chain.json", "--budget", "banana"], "got 'banana'"),
        (["place", "chain.json", "--placer", "best"], "unknown placer 'best'"),
        (["place", "chain.json", "--set-placer", "x=1"], "unknown setting of placer auto 'x'"),
        (["place", "chain.json", "--pin", "1=tpu"], "unknown device 'tpu'"),
        (["place", "chain.json", "--pin", "nothing"], "--pin expects OP=DEVICE"),
        (["place", "chain.json", "--memory", "acc:0=lots"], "got 'lots'"),
        (["place", "chain.json", "--objective", "speed"], "unknown objective 'speed'"),
        (["place", "chain.json", "--devices", "cpu"], "carries its own devices"),
        (["place", "chain.json", "--remeasure"], "--remeasure says how 'chain.json' is measured"),
        (["place", "chain.json", "--compile"], "--compile says how 'chain.json' is measured"),
        (
            ["place", "chain.json", "--evaluations", "0"],
            "--evaluations expects a whole number >= 1",
        ),
        (["place", "chain.json", "--seed", "x"], "--seed"),
        (["place", "chain.json", "-o", "none/plan.json"], "folder 'none'"),
        (["place", "negative.json"], "graph"),
        (["run", "chain.json"], "has no entry `format`"),
        (["simulate", "missing.json"], "does not exist"),
        (["bench", "tarnawski"], "--data"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_input_is_one_line(
    workload: Path, arguments: list[str], message: str, cli: InProcess
) -> None:
    folder = workload.parent
    (folder / "plan.json").write_text("an earlier plan")
    (folder / "text.onnx").write_text("this is no model")
    (folder / "negative.json").write_text('{"format": "graph"}')
    cyclic = dict(WORKLOAD, edges=[*WORKLOAD["edges"], {"sourceId": 3, "destId": 1, "cost": 1.0}])  # type: ignore[misc]
    (folder / "cycle.json").write_text(json.dumps(cyclic))
    line = the_line(cli(*arguments, cwd=folder), 2)
    assert message in line
    assert (folder / "plan.json").read_text() == "an earlier plan"


def test_a_full_disk_leaves_the_earlier_plan(workload: Path, cli: InProcess) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    plan = workload.parent / "plan.json"
    plan.symlink_to("/dev/full")
    result = cli("place", workload, "--objective", "throughput", "-o", plan, cwd=workload.parent)
    assert "No space left on device" in the_line(result, 2)


def test_devices_of_the_catalogue_need_no_hardware(tmp_path: Path, cli: InProcess) -> None:
    """Costs from data sheets: a plan, which cannot be run; names and mixed files are checked."""
    words = ["zoo:moe/tiny", "--runtime", "torch", "--evaluations", 20]
    result = cli(
        "place", *words, "--devices", "catalogue:2gpu", "--placer", "expert", "--json", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert set(plan["searched"]["placement"].values()) == {"gpu:0", "gpu:1"}
    assert plan["measured"] is None
    two = "catalogue:cpu-xeon-8480,gpu-t4"
    result = cli("compare", *words, "--placers", "single", "--devices", two, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    unknown = cli("compare", *words, "--devices", "catalogue:9gpu", cwd=tmp_path)
    line = the_line(unknown, 2)
    assert "unknown cluster or device of the catalogue '9gpu'; did you mean 8gpu or" in line
    assert "available: cpu+gpu" in line
    file = tmp_path / "mixed.yaml"
    file.write_text(
        "format: placewright.cluster/1\ndevices:\n"
        "- {name: a, fingerprint: 'catalogue:gpu-t4'}\n- {name: 'cpu:0'}\n"
    )
    mixed = cli("compare", *words, "--cluster", file, cwd=tmp_path)
    assert "device 'cpu:0' is not of the catalogue and has no peak, but" in the_line(mixed, 2)


def test_a_card_of_ones_own_and_a_precision(tmp_path: Path, cli: InProcess) -> None:
    """A cluster file with peaks needs no hardware; what really runs is said."""
    words = ["zoo:moe/tiny", "--runtime", "torch", "--evaluations", 5, "--placer", "single"]
    file = tmp_path / "card.yaml"
    file.write_text(
        "format: placewright.cluster/1\ndevices:\n- {name: card, kind: gpu, "
        "peak: {f16: 101 TFLOPS, f32: 12.7 TFLOPS}, bandwidth: 360GB/s, memory: 12GiB}\n"
    )
    told = {}
    for precision in (None, "f16", "bf16"):
        wish = [] if precision is None else ["--precision", precision]
        result = cli("place", *words, "--cluster", file, *wish, "-o", "p.json", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        told[precision] = next(line for line in result.stderr.splitlines() if "products" in line)
    assert "card: products run in f32; how fast they run is assumed" in told[None]
    assert "card: products run in f16; how fast they run is assumed" in told["f16"]
    assert "run in f16; its data sheet has no rate for bf16" in told["bf16"]
    wrong = cli("place", *words, "--cluster", file, "--precision", "f8", cwd=tmp_path)
    assert "unknown precision 'f8'; available: f32, tf32" in the_line(wrong, 2)
    here = cli("place", *words, "--devices", "cpu:0", "--precision", "f16", cwd=tmp_path)
    assert "--precision f16: says in which precision devices of the" in the_line(here, 2)
