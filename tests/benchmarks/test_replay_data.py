"""Converted tables are files that `replay` reads."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from benchmarks.replay_data import main, of_csv, of_hope, of_neusight
from benchmarks.replays import held_out
from placewright.errors import FileFormatError
from placewright.report.replay_text import Replay, ReplayedPlan
from placewright.suites.replay import read_replay, replay


def test_csv_tables(tmp_path: Path) -> None:
    tables = {
        "ops": "op,cpu,gpu\na,1,0.5\nb,2,\n",
        "edges": "from,to,bytes\na,b,100\n",
        "copies": "from,to,bytes,seconds\ngpu,cpu,1,0.1\ngpu,cpu,9,0.2\n",
        "plans": "plan,op,device,measured\nalone,*,cpu,3.1\nsplit,a,gpu,2.9\nsplit,b,cpu,\n",
    }
    for name, text in tables.items():
        (tmp_path / f"{name}.csv").write_text(text)
    path = tmp_path / "data.json"
    path.write_text(json.dumps(of_csv(tmp_path)))
    case = read_replay(path).cases[0]
    assert case.ops[1].seconds == {"cpu": 2.0, "gpu": None}
    assert [plan.placement for plan in case.plans] == ["cpu", {"a": "gpu", "b": "cpu"}]
    assert [plan.measured for plan in case.plans] == [3.1, 2.9]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ops", "op,cpu\na,x\n", "'x' in column 'cpu' is no number"),
        ("copies", None, "copies.csv' does not exist"),
        ("edges", "from,to\na,b\n", "has no column 'bytes'"),
        ("plans", "plan,op,device,measured\nalone,*,gpu,1\n", "unknown device"),
    ],
)
def test_bad_tables_are_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str | None,
    message: str,
) -> None:
    tables = {
        "ops": "op,cpu\na,1\nb,2\n",
        "edges": "from,to,bytes\na,b,100\n",
        "copies": "from,to,bytes,seconds\n",
        "plans": "plan,op,device,measured\nalone,*,cpu,3.1\n",
        name: text,
    }
    for table, rows in tables.items():
        if rows is not None:
            (tmp_path / f"{table}.csv").write_text(rows)
    out = tmp_path / "data.json"
    monkeypatch.setattr(sys, "argv", ["replay_data", "csv", str(tmp_path), "-o", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_a_folder_without_plans_of_the_phone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no measured plan of phone 'pixel'"):
        of_hope(tmp_path, "pixel", [])


def test_a_tree_like_that_of_hope(tmp_path: Path) -> None:
    """The made-up model has two operators; times of the files are in us and ms."""
    at = tmp_path / "mnn" / "models" / "inception-v3"
    (at / "p").mkdir(parents=True)
    at.joinpath("inception-v3-info.txt").write_text(
        "a 1,2@0x1; 1,3@0x2; n 1;\nb 1,3@0x2; 1,1@0x3; 0; n;\n"
    )
    at.joinpath("p", "p-inception-v3-layerwise-latency.csv").write_text("a 40 20 10 5\nb 4 2 1 9\n")
    at.joinpath("p", "inception-v3-p-data-trans.csv").write_text("1,3 7.0 8.0\n1,9 9.0 10.0\n")
    at.joinpath("p", "mDeviceMap-inception-v3-cpu-2.txt").write_text("a 3\nb 0\n")
    results = tmp_path / "mnn" / "src" / "result_data"
    results.mkdir(parents=True)
    results.joinpath("result-latency-p.txt").write_text(
        "Inception-v3\t1\t2\t3\t4\t5\t6\t7\t8\t9\t10\n"
    )
    path = tmp_path / "data.json"
    path.write_text(json.dumps(of_hope(tmp_path, "p", [])))
    document = read_replay(path)
    (case,) = document.cases
    assert case.groups == {"model": "inception-v3", "threads": "2"}
    assert [op.seconds["cpu"] for op in case.ops] == [20e-6, 2e-6]
    assert [(e.source, e.readers, e.size) for e in case.edges] == [("a", ["b"], 12.0)]
    assert [(p.name, p.measured) for p in case.plans] == [
        ("ilp", 5e-3),
        ("cpu alone", 8e-3),
        ("gpu alone", 10e-3),
    ]
    assert document.copies[1].samples == [(12.0, 8e-6), (36.0, 10e-6)]
    earlier = tmp_path / "earlier"
    times = earlier / at.relative_to(tmp_path) / "p" / "inception-v3-p-data-trans.csv"
    times.parent.mkdir(parents=True)
    times.write_text("1,3 70.0 80.0\n")
    document = of_hope(tmp_path, "p", [], earlier)
    assert document["copies"][0]["samples"] == [(12.0, 70e-6)]
    assert document["cases"] == json.loads(path.read_text())["cases"]


def _table_of_ops(folder: Path, gpu: str, factor: float, mode: str = "train") -> None:
    """An embedding, a layer of a product and a view that runs three times, and a head."""
    rows = [
        "op,target,users,meta,input_shapes,input_contiguous,fw_latency,bw_latency,acc_latency,"
        "output_shape,dtype,Name"
    ]
    for name, target, users, layer, forward, backward in (
        ("embedding", "<function embedding>", "{linear: None}", "bert.embedding", 1.0, 0.5),
        ("linear", "<function matmul>", "{view: None}", "bert.layer.0.linear", 2.0, 4.0),
        ("view", "<function view>", "{head: None}", "bert.layer.0", 0.01, 0.0),
        ("head", "<function matmul>", "{}", "bert.head", 3.0, 0.0),
    ):
        rows.append(
            f'call_function,{target},{users},"{{(\'{layer}\', x)}}","[[4, 8]]",[True],'
            f'{forward * factor},{backward * factor},0,"(4, 8)",torch.float32,{name}'
        )
    (folder / gpu).mkdir()
    with gzip.open(folder / gpu / f"bert-{mode}-4-2.csv.gz", "wt") as file:
        file.write("\n".join(rows))
    whole = {"num_layer": 3, "e2e_latency": 25.0 * factor, "fw_latency": 10.0}
    (folder / gpu / f"bert-{mode}-4-2.json").write_text(json.dumps(whole))


def test_op_tables_of_gpus(tmp_path: Path) -> None:
    _table_of_ops(tmp_path, "fast", 1.0)
    _table_of_ops(tmp_path, "slow", 2.0)
    path = tmp_path / "data.json"
    path.write_text(json.dumps(of_neusight(tmp_path, ["fast", "slow"])))
    document = read_replay(path)
    (case,) = document.cases
    assert {op.name: op.seconds for op in case.ops} == {
        "embedding": {"fast": 1.5e-3, "slow": 3e-3},
        "linear": {"fast": pytest.approx(18e-3), "slow": pytest.approx(36e-3)},
        "view": {"fast": 0.0, "slow": 0.0},
        "head": {"fast": 3e-3, "slow": 6e-3},
    }
    assert [(e.source, e.readers, e.size) for e in case.edges] == [
        ("embedding", ["linear"], 128.0),
        ("linear", ["view"], 128.0),
        ("view", ["head"], 128.0),
    ]
    found = replay(path)
    assert [plan.predicted["nobody"] for plan in found.plans] == pytest.approx([22.5e-3, 45e-3])
    assert [plan.measured for plan in found.plans] == [25e-3, 50e-3]
    assert not found.has_split
    assert "no plan uses several devices" in found.lines()[0]


def test_op_tables_that_are_missing_or_differ(tmp_path: Path) -> None:
    _table_of_ops(tmp_path, "fast", 1.0)
    with pytest.raises(FileFormatError, match="has no slow/MODEL"):
        of_neusight(tmp_path, ["fast", "slow"])
    _table_of_ops(tmp_path, "slow", 2.0)
    path = tmp_path / "slow" / "bert-train-4-2.csv.gz"
    text = gzip.decompress(path.read_bytes()).replace(b"{head: None}", b"{}")
    path.write_bytes(gzip.compress(text))
    with pytest.raises(FileFormatError, match="'bert-train-4-2' has other ops on slow than"):
        of_neusight(tmp_path, ["fast", "slow"])
    _table_of_ops(tmp_path, "other", 1.0, "inf")
    with pytest.raises(FileFormatError, match="no model is measured on all of fast, other"):
        of_neusight(tmp_path, ["fast", "other"])


@pytest.mark.parametrize("gpus", [["fast", "slow"], ["slow", "fast"]])
def test_an_op_without_edges_is_on_every_gpu(tmp_path: Path, gpus: list[str]) -> None:
    _table_of_ops(tmp_path, "fast", 1.0)
    _table_of_ops(tmp_path, "slow", 2.0)
    path = tmp_path / "slow" / "bert-train-4-2.csv.gz"
    *rows, head = gzip.decompress(path.read_bytes()).splitlines()
    alone = head.removesuffix(b"head") + b"alone"
    path.write_bytes(gzip.compress(b"\n".join([*rows, head, alone])))
    with pytest.raises(FileFormatError, match=f"has other ops on {gpus[1]} than on {gpus[0]}"):
        of_neusight(tmp_path, gpus)


@pytest.mark.parametrize("option", ["--without", "--copies"])
def test_options_of_hope_are_refused_for_other_kinds(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["replay_data", "neusight", str(tmp_path), "fast", "-o", "x.json", option, "bert"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        main()
    assert "--without and --copies are for hope alone" in capsys.readouterr().err


def test_the_plans_of_a_model_have_no_say_in_its_own_rule() -> None:
    """`nobody` fits the third model alone, which is judged by what the two others choose."""
    plans = tuple(
        ReplayedPlan("case", {"model": model}, "plan", 1.0, values, is_split=True)
        for model, values in (
            ("a", {"nobody": 0.8, "receiver": 0.9, "sender": 0.9, "both": 1.1}),
            ("b", {"nobody": 0.7, "receiver": 0.8, "sender": 0.8, "both": 0.95}),
            ("c", {"nobody": 1.0, "receiver": 1.2, "sender": 1.2, "both": 1.3}),
        )
    )
    rows = held_out([Replay("title", "", "", (), plans)])
    assert [row["rule"] for row in rows] == ["nobody", "nobody", "both"]
    assert rows[2]["errors"] == [pytest.approx(0.3)]
