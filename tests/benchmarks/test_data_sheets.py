"""Op tables become graphs, and the catalogue holds what a fit to them gives."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import half_products
from benchmarks.data_sheets import (
    FAMILIES,
    all_fits,
    coverage_rows,
    device_of,
    fit_row,
    fitted,
    model_rows,
    ratios,
    tables_of,
    whole_seconds,
)
from benchmarks.op_tables import OpTable, read_tables
from placewright.errors import FileFormatError
from placewright.profiling.catalogue import Fit, fit_named, fit_names

DATA = Path(__file__).parents[3] / "shared" / "neusight"
needs_tables = pytest.mark.skipif(
    not DATA.exists(), reason="the op tables of NeuSight are not beside the repository"
)
COLUMNS = "op,target,meta,input_shapes,input_contiguous,fw_latency,bw_latency,output_shape,dtype"
LINEAR = "\"[('h', <class 'x.Block'>), ('model.layers.0.fc', <class 'torch.nn.Linear'>)]\""
ROWS = [
    'call_method,view,[],"[[8, 1024]]",[True],0.01,0,"(8, 1024)",torch.float32',
    'call_function,<built-in function add>,[],"[[8, 8], [8, 8]]",[True],0.02,0,"(8, 8)",'
    "torch.float32",
    f'call_module,decoder.layers.0.fc,{LINEAR},"[[8, 128, 1024]]",[True],0.82,1,'
    '"(8, 128, 4096)",torch.float32',
    'call_method,size,[],"[[8, 1024]]",[True],0.01,0,"(1,)",',
    'call_function,<built-in method matmul of type object>,[],"[[8, 16, 128, 64], [8, 16, 64, '
    '128]]",[True],0.07,0.2,"(8, 16, 128, 128)",torch.float32',
    'call_function,<function softmax at 0x1>,[],"[[8, 16, 128, 128]]",[True],0.03,0.1,'
    '"(8, 16, 128, 128)",torch.float32',
    'call_method,contiguous,[],"[[8, 1024]]",[True],0.01,0,"(8, 1024)",torch.float32',
]
PRODUCT_OF_NUMBERS = (
    'call_function,<built-in function mul>,[],"[[8192, 1024], [1]]",[True],0.12,0,'
    '"(8192, 1024)",torch.float32'
)


def written(folder: Path, name: str, rows: list[str]) -> OpTable:
    """A table as the folder of a Tesla V100 has it; its whole model repeats the layer 24 times."""
    gpu = folder / "Tesla_V100-PCIE-32GB"
    gpu.mkdir(exist_ok=True)
    with gzip.open(gpu / f"{name}.csv.gz", "wt") as file:
        file.write("\n".join([COLUMNS, *rows]))
    whole = {"num_layer": 24, "e2e_latency": 20.0, "fw_latency": 19.8}
    (gpu / f"{name}.json").write_text(json.dumps(whole))
    return read_tables(folder)[0]


def test_rows_become_ops_with_their_bytes_and_operations(tmp_path: Path) -> None:
    table = written(tmp_path, "m-inf-128-8", ROWS)
    assert table.graph.op_kinds == ("add", "matmul", "matmul", "softmax")
    assert table.repeats.tolist() == [1, 24, 1, 1]
    linear = 2.0 * 8 * 128 * 1024 * 4096
    scores = 2.0 * 8 * 16 * 128 * 128 * 64
    assert table.graph.op_flops.tolist() == [0, linear, scores, 0]
    assert table.graph.tensor_bytes.tolist() == [
        *(2 * 8 * 8 * 4, 8 * 8 * 4),
        *(4 * (8 * 128 * 1024 + 1024 * 4096), 4 * 8 * 128 * 4096),
        *(4 * 8 * 16 * 2 * 128 * 64, 4 * 8 * 16 * 128 * 128),
        *(4 * 8 * 16 * 128 * 128, 4 * 8 * 16 * 128 * 128),
    ]
    # The addition of 256 bytes tells what timing and a launch take: 20 us.
    np.testing.assert_allclose(table.measured, [1e-7, 800e-6, 50e-6, 10e-6], atol=1e-9)
    assert table.whole == pytest.approx(20e-3)
    assert not table.is_doubtful


def test_a_training_step_has_two_more_products_and_sums_of_gradients(tmp_path: Path) -> None:
    table = written(tmp_path, "m-train-128-8", ROWS)
    graph = table.graph
    assert graph.op_kinds == (
        *("add", "matmul", "matmul", "matmul", "add", "matmul", "matmul", "matmul"),
        *("softmax", "softmax"),
    )
    assert len(set(graph.op_flops[1:4].tolist())) == 1
    shapes = [graph.tensor_shapes[int(graph.op_outputs.row(op)[0])] for op in (1, 2, 3)]
    assert shapes == [(1, 1024, 4096), (1, 1024, 1024), (1, 4096, 1024)]
    assert np.isnan(table.measured[[2, 3, 4, 6, 7, 9]]).all()


def test_a_whole_model_that_contradicts_its_ops_is_doubtful(tmp_path: Path) -> None:
    table = written(tmp_path, "m-inf-128-8", ROWS)
    assert replace(table, forward=1.3).is_doubtful
    assert replace(table, forward=0.7).is_doubtful


def test_damaged_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"has no GPU/MODEL\.csv\.gz"):
        read_tables(tmp_path)
    with pytest.raises(FileFormatError, match=r"m-inf-1-1\.csv\.gz' is damaged"):
        written(tmp_path, "m-inf-1-1", ["call_function,mul,[],[[,,,,,"])


def test_an_efficiency_is_the_share_of_the_peak(tmp_path: Path) -> None:
    """The product reaches 8.59e9 operations / 800 us of 14 TFLOPS."""
    table = replace(written(tmp_path, "m-inf-128-8", [*ROWS, PRODUCT_OF_NUMBERS] * 4), forward=1.0)
    found = fitted("nvidia", [table])
    # 67.1 MB at 900 GB/s take 74.6 us, and the kernel took 100.
    assert found.efficiency["vector"] == (0.746,) * 4 == found.efficiency["copy"]
    too_few = replace(written(tmp_path, "m-inf-128-8", ROWS), forward=1.0)
    with pytest.raises(FileFormatError, match="tables of nvidia have no 4 ops of class 'matmul'"):
        fitted("nvidia", [too_few])
    assert found.efficiency["matmul"] == (round(2 * 8 * 128 * 1024 * 4096 / 800e-6 / 14e12, 3),) * 4


@needs_tables
def test_the_catalogue_holds_the_fits_and_they_meet_the_promises() -> None:
    """Whole models on a GPU that no fit has seen: 15 %. Nine of ten of its ops in intervals."""
    tables = tables_of(DATA)
    fits = all_fits(tables)
    assert set(fits) == set(FAMILIES) == set(fit_names())
    for name, fit in fits.items():
        row = fit_row(fit, FAMILIES[name], tables[name])
        kept = fit_row(fit_named(name), FAMILIES[name], tables[name])
        assert row == kept
    rows = model_rows(fits, tables)
    judged = [abs(row["fitted"] - 1.0) for row in rows if row["judged"]]
    assert len(judged) == 8
    assert float(np.median(judged)) <= 0.15
    left_out = [abs(row["left_out"] - 1.0) for row in rows
                if row["family"] == "amd-instinct" and row["left_out"]]  # fmt: skip
    assert float(np.median(left_out)) <= 0.15
    covered = coverage_rows(fits, tables)
    assert sum(row["inside"] for row in covered) >= 0.9 * sum(row["ops"] for row in covered)


@needs_tables
def test_predictions_of_the_catalogue_are_those_of_the_fit() -> None:
    table = read_tables(DATA, ["NVIDIA_A100_80GB_PCIe"])[0]
    fit: Fit = fit_named("nvidia")
    assert whole_seconds(table, True) == whole_seconds(table, fit) != whole_seconds(table, False)
    assert device_of(table).fingerprint == "catalogue:gpu-a100-pcie-80gb"
    assert (ratios(table, fit).of_ops > 0).all()


def test_products_in_half_precision_are_judged_without_other_formats() -> None:
    sizes = [(16, 1024, 1024), (8192, 8192, 8192)]
    lines = ["gemm_dtype,m,n,k,latency", "fp8,1,1,1,5.0"]
    for (m, n, k), seconds in zip(
        sizes, half_products.predicted_seconds(sizes, "gpu-l40s"), strict=True
    ):
        lines.append(f"float16,{m},{n},{k},{seconds * 2e3}")  # milliseconds, twice as long
    row = half_products.row_of("\n".join(lines), "l40s/trtllm/1.0.0")
    assert (row["products"], row["large"], row["ratio"], row["error"]) == (2, 1, 0.5, 1.0)
