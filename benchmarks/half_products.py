"""Products in half precision: seconds by the catalogue, held against public tables of kernels.

    python -m benchmarks.half_products WHEEL [--results docs/results/half-products.json]

WHEEL is the file that ``pip download --no-deps aiconfigurator==0.6.0`` brings (Apache-2.0, NVIDIA).
Its tables have the seconds of products in the kernels of serving engines. Later versions of the
package lack them. Every so many rows of a table count, so that it has some 1,500.
"""

from __future__ import annotations

import csv
import io
import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.command import Results, run, write_results
from placewright.core.arrays import FloatArray
from placewright.core.builder import GraphBuilder
from placewright.core.cluster import Cluster
from placewright.profiling.catalogue import catalogue_cluster
from placewright.profiling.roofline import roofline_costs

FOLDER = "aiconfigurator/systems/data"
TABLES: Mapping[str, str] = {  # folder -> device of the catalogue
    "a100_sxm/trtllm/1.0.0": "gpu-a100-80gb",
    "h100_sxm/vllm/0.12.0": "gpu-h100-sxm",
    "h100_sxm/trtllm/1.2.0rc5": "gpu-h100-sxm",
    "h200_sxm/vllm/0.12.0": "gpu-h200-sxm",
    "l40s/trtllm/1.0.0": "gpu-l40s",
    "l40s/sglang/0.5.5.post3": "gpu-l40s",
}
_ROWS = 1500
_LARGE = 100e-6  # seconds from which a launch matters little
_HALF = ("float16", "bfloat16")


def row_of(text: str, folder: str) -> dict[str, Any]:
    """Errors of the products of a table, as shares; ratios are of predicted to measured."""
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["gemm_dtype"] in _HALF]
    rows = rows[:: max(1, len(rows) // _ROWS)]
    measured = np.array([float(row["latency"]) * 1e-3 for row in rows])
    sizes = [(int(row["m"]), int(row["n"]), int(row["k"])) for row in rows]
    errors = np.log(predicted_seconds(sizes, TABLES[folder]) / measured)
    large = measured >= _LARGE
    gpu, engine, version = folder.split("/")
    return {
        "gpu": gpu,
        "engine": f"{engine} {version}",
        "products": len(rows),
        "error": _error(errors),
        "ratio": _ratio(errors),
        "large": int(large.sum()),
        "large_error": _error(errors[large]),
        "large_ratio": _ratio(errors[large]),
    }


def predicted_seconds(sizes: list[tuple[int, int, int]], device: str) -> FloatArray:
    """Seconds of products (m x k) (k x n) in f16 by the catalogue, shape (n_products,)."""
    builder = GraphBuilder()
    for number, (m, n, k) in enumerate(sizes):
        inputs = [
            builder.add_input(2.0 * m * k, shape=(m, k), dtype="f16"),
            builder.add_input(2.0 * k * n, shape=(k, n), dtype="f16"),
        ]
        op = builder.add_op(f"product {number}", "MatMul", inputs=inputs, flops=2.0 * m * n * k)
        builder.add_tensor(op, 2.0 * m * n, shape=(m, n), dtype="f16", is_output=True)
    cluster = Cluster((catalogue_cluster([device]).devices[0],))
    return roofline_costs(builder.build(), cluster).seconds[:, 0]


def _error(errors: FloatArray) -> float:
    return round(math.exp(float(np.median(np.abs(errors)))) - 1.0, 3)


def _ratio(errors: FloatArray) -> float:
    return round(math.exp(float(np.median(errors))), 3)


def main(
    wheel: Annotated[Path, typer.Argument(help="File of the package with the tables.")],
    results: Results = Path("docs/results/half-products.json"),
) -> None:
    """Judge the catalogue, and write the rows."""
    with zipfile.ZipFile(wheel) as package:
        rows = [
            row_of(package.read(f"{FOLDER}/{folder}/gemm_perf.txt").decode(), folder)
            for folder in TABLES
        ]
    write_results(results, json.dumps({"source": wheel.name, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    run(main)
