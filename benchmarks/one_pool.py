"""Memory of a process whose cores share a pool that is too small for a second copy of the weights.

The model has two towers with the same weights, as networks that compare two inputs have. If each
core runs a tower and has copies of its own, both keep 1.1 GiB, and the pool has 1 GiB. A search
finds a placement within the pool, and a process of its own loads it. OpenVINO and ONNX Runtime get
the weights as read (option ``weights: shared``). The proportional set size of the process, above
that of one with a tiny plan of this kind, should stay below the limit of the pool.
"""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.command import ResultsIfAny, run
from placewright.cli.output import print_json, print_line, print_note
from placewright.core.arrays import frozen_floats
from placewright.core.costs import CostTable
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import AnswerError
from placewright.execution.processor import processor_text
from placewright.files.plan_file import write_plan
from placewright.files.results import read_rows, write_rows
from placewright.frameworks.registry import make_runtime
from placewright.placers.registry import make_placer
from placewright.profiling.discover import discover
from placewright.session.plans import plan_of
from placewright.session.problems import constrained
from placewright.simulation.evaluator import Evaluator

FORMAT = "placewright.one-pool/1"
LIMIT = 2**30
_LAYERS, _WIDTH, _ROWS = 4, 6144, 64
_TINY = 32  # width of the model whose plan loads the libraries
_RUNS = 5
_OPTIONS = {name: {"weights": "shared"} for name in ("openvino", "onnxruntime")}
_FLOPS = 50e9  # per second of a core; the same for both, so that it decides nothing


@dataclass(frozen=True)
class PoolRow:
    """One runtime. All sizes are bytes.

    Attributes:
        runtime: its name.
        limit: of the pool.
        weights: of the model, each once.
        copies: of weights, if each core ran a tower.
        predicted: sum of the predicted peaks of the pool's devices.
        ops: number of operators on each device.
        segments: of the plan.
        idle: proportional set size of a process that has loaded and run a tiny plan.
        loaded: above `idle`, after loading.
        ran: above `idle`, after five runs.
        compiling: peak of the resident set while the plan was loaded, above `idle`.
        error: largest difference between outputs and NumPy's, relative to the largest output.
        machine: name of the processor.
    """

    runtime: str
    limit: float
    weights: float
    copies: float
    predicted: float
    ops: dict[str, int]
    segments: int
    idle: float
    loaded: float
    ran: float
    compiling: float
    error: float
    machine: str

    @property
    def is_kept(self) -> bool:
        """Both cores compute, outputs are right, and memory is within the limit."""
        is_right = len(self.ops) == 2 and self.error < 1e-4
        return is_right and max(self.loaded, self.ran, self.predicted) <= self.limit


def pool_row(runtime: str, folder: Path) -> PoolRow:
    """Place the model, and measure a process that loads the plan.

    Args:
        runtime: its name.
        folder: for models and plans.
    """
    plans, paths = [], []
    for width, name in ((_TINY, "tiny"), (_WIDTH, "towers")):
        model = folder / (f"{name}.pt2" if runtime == "torch" else f"{name}.onnx")
        if not model.exists():
            (_export_towers if runtime == "torch" else _write_towers)(model, width)
        plans.append(_placed(model, runtime))
        paths.append(folder / f"{name}-{runtime}.json")
        write_plan(paths[-1], plans[-1])
    with multiprocessing.get_context("spawn").Pool(1) as process:
        measured = process.apply(_measure, tuple(map(str, paths)))
    plan = plans[1]
    assert plan.segments is not None
    names = [plan.problem.cluster.device_names[at] for at in plan.placement.device_of.tolist()]
    weights = float(sum(weight.nbytes for weight in _weights(_WIDTH)))
    return PoolRow(
        runtime,
        float(LIMIT),
        weights,
        2.0 * weights,
        float(sum(plan.memory.values())),
        {name: names.count(name) for name in sorted(set(names))},
        len(plan.segments),
        machine=processor_text(),
        **measured,
    )


def _write_towers(path: Path, width: int) -> None:
    """Write the model: x0 and x1 through the same products, and the sum of both ends."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    constants = [
        numpy_helper.from_array(weight, f"w{layer}") for layer, weight in enumerate(_weights(width))
    ]
    nodes = []
    for tower in (0, 1):
        value = f"x{tower}"
        for layer in range(_LAYERS):
            name = f"{tower}.{layer}"
            nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [f"p{name}"], f"p{name}"))
            nodes.append(helper.make_node("Relu", [f"p{name}"], [f"y{name}"], f"y{name}"))
            value = f"y{name}"
    ends = [f"y{tower}.{_LAYERS - 1}" for tower in (0, 1)]
    nodes.append(helper.make_node("Add", ends, ["y"], "y"))
    shape = [_ROWS, width]
    values = [helper.make_tensor_value_info(f"x{t}", TensorProto.FLOAT, shape) for t in (0, 1)]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "towers", values, [output], constants)
    opset = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))


def _export_towers(path: Path, width: int) -> None:
    """Write the same model as a program of PyTorch."""
    import torch

    class Towers(torch.nn.Module):
        """Two inputs through the same layers."""

        def __init__(self) -> None:
            super().__init__()
            found = [torch.nn.Parameter(torch.from_numpy(weight)) for weight in _weights(width)]
            self.weights = torch.nn.ParameterList(found)

        def forward(self, x0: torch.Tensor, x1: torch.Tensor) -> dict[str, torch.Tensor]:
            """The sum of both ends."""
            ends = []
            for value in (x0, x1):
                for weight in self.weights:
                    value = torch.relu(value @ weight)
                ends.append(value)
            return {"y": ends[0] + ends[1]}

    inputs = tuple(map(torch.from_numpy, _inputs(width).values()))
    with torch.no_grad():
        torch.export.save(torch.export.export(Towers(), inputs), str(path))


def _weights(width: int) -> list[Any]:
    """Of each layer, in single precision; outputs stay near 1."""
    rng = np.random.default_rng(0)
    size = (width, width)
    return [
        rng.standard_normal(size, dtype=np.float32) * np.float32(np.sqrt(2.0 / width))
        for _ in range(_LAYERS)
    ]


def _placed(path: Path, runtime: str) -> Plan:
    """The best of 3,000 placements on two cores in a pool of the limit, by counted arithmetic."""
    import placewright as pw

    model = pw.read(str(path), runtime=runtime)
    cluster = discover("cpu:0,cpu:1", make_runtime(runtime), options=_OPTIONS.get(runtime, {}))
    seconds = np.repeat(1e-5 + model.graph.op_flops[:, None] / _FLOPS, 2, axis=1)
    whole = Problem.of_ops(model.graph, cluster, CostTable(frozen_floats(seconds)))
    problem = constrained(replace(whole, source=model.source), {"ram": float(LIMIT)}, {})
    evaluator = Evaluator(problem, Budget(evaluations=3000))
    placer = make_placer("local-search")
    found = placer.place(problem, evaluator, np.random.default_rng(0))
    return plan_of(problem, found, PlacerRecord("local-search", "1", 0, 3000, 0.0), runtime)


def _measure(tiny: str, plan: str) -> dict[str, Any]:
    """Load a tiny plan and then the plan, in a process of its own; fields of a row."""
    import placewright as pw

    inputs = _inputs(_TINY)
    first = pw.load(tiny)
    for _ in range(_RUNS):
        first(inputs)
    gc.collect()
    idle, peak = _set_size("Pss"), _peak_bytes()
    loaded = pw.load(plan)
    gc.collect()
    after = _set_size("Pss")
    compiling = max(_peak_bytes(), peak)
    inputs = _inputs(_WIDTH)
    for _ in range(_RUNS):
        outputs = loaded(inputs)
    gc.collect()
    ran = _set_size("Pss")
    expected = _expected(inputs)
    found = np.asarray(outputs[0])
    return {
        "idle": idle,
        "loaded": after - idle,
        "ran": ran - idle,
        "compiling": compiling - idle,
        "error": float(np.abs(found - expected).max() / np.abs(expected).max()),
    }


def _inputs(width: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal((_ROWS, width), dtype=np.float32) for name in ("x0", "x1")}


def _expected(inputs: dict[str, Any]) -> Any:
    """The outputs by NumPy."""
    ends = []
    for value in inputs.values():
        for weight in _weights(value.shape[1]):
            value = np.maximum(value @ weight, 0.0)
        ends.append(value)
    return ends[0] + ends[1]


def _set_size(name: str) -> int:
    """A sum over all mappings of this process, in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _peak_bytes() -> int:
    """The largest resident set of this process so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def one_pool(
    runtimes: Annotated[str, typer.Option(help="Comma-separated.")] = "openvino,onnxruntime,torch",
    results: ResultsIfAny = None,
) -> None:
    """Measure each runtime; exit with 1 if one takes more than the pool has."""
    rows = [] if results is None else read_rows(results, FORMAT, PoolRow)
    with tempfile.TemporaryDirectory() as folder:
        for runtime in runtimes.split(","):
            row = pool_row(runtime, Path(folder))
            rows = [other for other in rows if other.runtime != runtime] + [row]
            print_json(asdict(row))
            if results is not None:
                write_rows(results, FORMAT, rows)
                print_note(f"wrote {results}")
    over = [row.runtime for row in rows if not row.is_kept]
    if over:
        raise AnswerError(f"not within the pool, or not as a split: {', '.join(over)}")
    print_line("all within the pool")


if __name__ == "__main__":
    run(one_pool)
