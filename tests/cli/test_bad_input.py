"""What a user may get wrong: exit code 2 or 1, one line that says what, earlier files intact."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.runner import InProcess, placewright, the_line
from model_makers import WEIGHT, saved_model, write_onnx
from support.model_files import CHAIN, make_onnx, make_pb, make_pt2, make_tflite, make_xml

CORES = ("--devices", "cpu:0")


MAKERS = (make_onnx, make_xml, make_tflite, make_pt2, make_pb)


Refused = Callable[..., str]


@pytest.fixture
def refused(cli: InProcess, tmp_path: Path) -> Refused:
    """The line that `place` ends with; a plan that was there before stays as it was."""

    def call(model: object, *extra: object, code: int = 2) -> str:
        plan = tmp_path / "plan.json"
        plan.write_text("an earlier plan")
        line = the_line(cli("place", model, *(extra or CORES), cwd=tmp_path), code)
        assert plan.read_text() == "an earlier plan"
        assert not list(tmp_path.glob("plan.problem.json")), "a problem without its plan"
        assert not list(tmp_path.glob(".plan*")), "a temporary file was left behind"
        return line

    return call


@pytest.mark.parametrize("make", MAKERS)
def test_a_truncated_model(make: Callable[[Path], Path], tmp_path: Path, refused: Refused) -> None:
    path = make(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert path.name in refused(path.name)


def test_a_truncated_model_with_onnx_runtime(tmp_path: Path, refused: Refused) -> None:
    path = make_onnx(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    assert "m.onnx" in refused("m.onnx", *CORES, "--runtime", "onnxruntime")


def test_a_resident_input_that_the_model_lacks(tmp_path: Path, refused: Refused) -> None:
    make_onnx(tmp_path)
    line = refused("m.onnx", *CORES, "--resident", "cash")
    assert "unknown model input 'cash'; available: " in line


@pytest.mark.parametrize("runtime", ["openvino", "torch", "onnxruntime"])
@pytest.mark.parametrize("command", ["graph", "place"])
def test_a_pt2_file_does_not_run_the_name_of_an_input(
    command: str, runtime: str, tmp_path: Path, cli: InProcess
) -> None:
    """PyTorch writes names into source text and executes that."""
    with zipfile.ZipFile(make_pt2(tmp_path)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        for name, data in members.items():
            named = json.dumps('input=__import__("os").system("touch PWNED")').encode()
            changed = data.replace(b'"input"', named) if name.endswith("model.json") else data
            archive.writestr(name, changed)
    line = the_line(cli(command, "m.pt2", "--runtime", runtime, cwd=tmp_path), 2)
    assert "no plain identifier" in line
    assert len(line) <= 300
    assert [file.name for file in tmp_path.iterdir()] == ["m.pt2"]


@pytest.mark.parametrize("suffix", ["onnx", "xml", "tflite", "pt2", "pb", "json"])
def test_a_text_under_a_models_name(suffix: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / f"notes.{suffix}").write_text("these are my notes\n")
    assert f"notes.{suffix}" in refused(f"notes.{suffix}")


@pytest.mark.parametrize("suffix", ["onnx", "xml", "tflite", "pt2", "pb", "json"])
def test_a_model_that_does_not_exist(suffix: str, tmp_path: Path, refused: Refused) -> None:
    assert f"'none.{suffix}' does not exist" in refused(f"none.{suffix}")


def test_options_that_contradict_each_other(tmp_path: Path, refused: Refused) -> None:
    write_onnx(tmp_path / "m.onnx")
    pins = ("--pin", "activation=cpu:0", "--pin", "activation=cpu:1")
    assert "'activation' both 'cpu:0' and 'cpu:1'" in refused("m.onnx", *pins)


def test_weights_that_are_missing_or_short(tmp_path: Path, refused: Refused) -> None:
    path = make_xml(tmp_path)
    weights = path.with_suffix(".bin")
    weights.write_bytes(weights.read_bytes()[:10])
    assert "'m.bin' ends after 10 bytes of" in refused("m.xml")
    weights.unlink()
    assert "'m.bin' are missing" in refused("m.xml")
    write_onnx(tmp_path / "s.onnx", external="short.data")
    (tmp_path / "short.data").write_bytes(WEIGHT.tobytes()[:-1])
    assert "'short.data' ends after 47 bytes of 48" in refused("s.onnx")
    assert "'short.data' ends after 47 bytes" in refused("s.onnx", "--runtime", "onnxruntime")
    write_onnx(tmp_path / "e.onnx", external="gone.bin")
    assert "'gone.bin' is missing" in refused("e.onnx")


def test_a_folder_that_is_no_model(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "folder").mkdir()
    assert "has no saved_model.pb" in refused("folder")
    (tmp_path / "folder" / "saved_model.pb").write_bytes(saved_model()[:-30])
    assert "saved_model.pb" in refused("folder")
    (tmp_path / "folder" / "saved_model.pb").write_bytes(saved_model())
    assert "give its folder, which holds the variables too" in refused("folder/saved_model.pb")


def test_a_name_that_is_too_long_for_a_file(refused: Refused) -> None:
    assert "does not exist" in refused("n" * 300 + ".onnx")


def test_a_suffix_that_nothing_reads(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "m.h5").write_bytes(b"HDF")
    assert "known are .xml, .onnx" in refused("m.h5")
    make_xml(tmp_path)
    told = refused("m.xml", *CORES, "--runtime", "onnxruntime")
    assert "ONNX Runtime runs .onnx and .pt2" in told


def test_a_workload_with_a_cycle_or_cut_off(tmp_path: Path, refused: Refused) -> None:
    back = {"sourceId": 2, "destId": 1, "cost": 1.0}
    cyclic = {**CHAIN, "edges": [*CHAIN["edges"], back]}
    (tmp_path / "w.json").write_text(json.dumps(cyclic))
    assert "cycle: '1' -> '2' -> '1'" in refused("w.json", "--placer", "heft")
    (tmp_path / "w.json").write_text(json.dumps(CHAIN)[:150])
    assert "not valid JSON" in refused("w.json", "--placer", "heft")


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("links: [{from: cpu:0, to: cpu:1, bandwidth: -1GB/s}]", "links.0.bandwidth"),
        ("links: [{from: cpu:0, to: cpu:1, bandwidth: 0GB/s}]", "bandwidth must be > 0"),
        ("links: [{from: cpu:0, to: cpu:1, latency: -1us}]", "links.0.latency"),
        ("links: [{from: cpu:0, to: cpu:5}]", "'cpu:5'"),
        ("speed: 3", "speed"),
        ("links: [", "not valid YAML"),
    ],
)
def test_a_cluster_file_that_is_wrong(
    cluster: str, message: str, tmp_path: Path, refused: Refused
) -> None:
    make_onnx(tmp_path)
    head = "format: placewright.cluster/1\ndevices: [{name: cpu:0}, {name: cpu:1}]\n"
    (tmp_path / "c.yaml").write_text(head + cluster)
    assert message in refused("m.onnx", "--cluster", "c.yaml")


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_devices_that_are_not_there(runtime: str, tmp_path: Path, refused: Refused) -> None:
    make_onnx(tmp_path)
    extra = ("--runtime", runtime)
    told = refused("m.onnx", "--devices", "cpu:0,cpu:4711", *extra)
    assert "unknown device 'cpu:4711'; did you mean cpu:" in told
    assert "available: cpu, cpu:0" in told
    cluster = "format: placewright.cluster/1\ndevices: [{name: tpu:0}]\n"
    (tmp_path / "c.yaml").write_text(cluster)
    assert "'tpu:0'" in refused("m.onnx", "--cluster", "c.yaml", *extra)
    assert "overlap" in refused("m.onnx", "--devices", "cpu,cpu:0", *extra)
    told = refused("m.onnx", "--devices", "cuda:0", *extra)
    assert "unknown device 'cuda:0'; available: cpu, cpu:0" in told
    assert "did you mean cores?" in refused("m.onnx", "--devices", "core", *extra)
    told = refused("m.onnx", "--devices", "rtx-4090,cpu", *extra)
    assert "catalogue:gpu-rtx-4090,cpu-desktop takes devices of the catalogue" in told
    assert "names no device" in refused("m.onnx", "--devices", ",", *extra)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--runtime", "banana"], "unknown runtime 'banana'"),
        (["--placer", "banana"], "unknown placer 'banana'"),
        (["--placer", "mine.Greedy"], "'mine.Greedy'; did you mean mine:Greedy? available: "),
        (["--placer", "zero-shot", "--policy", "none.safetensors"], "none.safetensors"),
        (["--placer", "zero-shot", "--policy", "m.onnx"], "m.onnx"),
        (["--placer", "heft", "--policy", "m.onnx"], "takes no policy file"),
        (["--budget", "banana"], "got 'banana'"),
        (["--budget", "-3s"], "got '-3s'"),
        (["--budget", "0s"], "seconds > 0"),
        (["--memory", "cpu:9=1GiB"], "unknown device 'cpu:9'"),
        (["--memory", "cpu:0=-1GiB"], "got '-1GiB'"),
        (["--shape", "y=1,4"], "unknown model input 'y'"),
        (["--shape", "x=1,5"], "shape"),
        (["--pin", "nothing=cpu:0"], "no op 'nothing'"),
        (["--evaluator", "banana"], "got 'banana'"),
        (["-o", "."], "is a folder"),
        (["-o", "none/plan.json"], "folder 'none'"),
    ],
)
def test_an_option_that_is_wrong(
    options: list[str], message: str, tmp_path: Path, refused: Refused
) -> None:
    make_onnx(tmp_path)
    assert message in refused("m.onnx", *CORES, *options)


def test_a_model_that_fits_no_memory(tmp_path: Path, refused: Refused) -> None:
    make_onnx(tmp_path)
    told = refused("m.onnx", *CORES, "--memory", "cpu:0=8B", code=1)
    assert "no placement is possible" in told
    assert "'cpu:0'" in told
    assert "nothing was measured" in told


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """Neither file of the earlier plan is replaced where one of the new ones does not fit."""
    (tmp_path / "w.json").write_text(json.dumps(CHAIN))
    words = ("place", "w.json", "--objective", "throughput", "--placer", "single")
    assert placewright(*words, cwd=tmp_path).returncode == 0
    plan, problem = tmp_path / "plan.json", tmp_path / "plan.problem.json"
    before = plan.read_bytes(), problem.read_bytes()
    smaller, larger = sorted(map(len, before))
    between = (smaller + larger) // 2  # the seconds in a plan make it some bytes longer or shorter
    assert larger - smaller > 200, "one of the files must fit"
    heavier = json.dumps(CHAIN).replace("40.0", "41.0")
    (tmp_path / "w.json").write_text(heavier)
    told = the_line(placewright(*words, cwd=tmp_path, largest_file=between), 2)
    assert "cannot be written: File too large" in told
    assert (plan.read_bytes(), problem.read_bytes()) == before
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "plan.json",
        "plan.problem.json",
        "w.json",
    ]
    assert placewright("simulate", "plan.json", cwd=tmp_path).returncode in (0, 2)


def test_a_cost_store_that_cannot_grow(tmp_path: Path) -> None:
    make_onnx(tmp_path)
    result = placewright(
        "profile", "m.onnx", *CORES, cwd=tmp_path, cache=tmp_path / "c", largest_file=4096
    )
    warning, error = [x for x in result.stderr.splitlines() if ": about " not in x]
    assert warning.startswith("warning: the cache folder")  # and its copy cannot grow, either
    assert "cost store" in error
    assert (result.returncode, result.stdout) == (2, "")


def test_a_plan_whose_model_is_gone_or_changed(tmp_path: Path, cli: InProcess) -> None:
    path = make_onnx(tmp_path)
    words = ("place", "m.onnx", *CORES, "--placer", "single", "--quick", "--no-check")
    made = cli(*words, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    content = path.read_bytes()
    shutil.copy(path, tmp_path / "kept.onnx")
    path.write_bytes(content.replace(WEIGHT.tobytes(), (WEIGHT + 1).tobytes()))
    assert "has changed" in the_line(cli("run", "plan.json", cwd=tmp_path), 2)
    path.unlink()
    told = the_line(cli("run", "plan.json", cwd=tmp_path), 2)
    assert "'m.onnx' does not exist; if it has moved, give its path as --model" in told
    shutil.copy(tmp_path / "kept.onnx", path)
    done = cli("run", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "outputs equal" in done.stdout


def test_an_unknown_runtime_is_refused_before_any_work(tmp_path: Path, cli: InProcess) -> None:
    (tmp_path / "m.onnx").write_text("nobody looks at it")
    for command in (("graph", "m.onnx"), ("profile", "m.onnx"), ("devices",)):
        told = the_line(cli(*command, "--runtime", "banana", cwd=tmp_path), 2)
        assert "unknown runtime 'banana'; available: onnxruntime, openvino" in told
