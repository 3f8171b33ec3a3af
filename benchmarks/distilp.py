"""Published inputs of DistilP, planned beside its own answer.

    python -m benchmarks.distilp CHECKOUT [--results docs/results/distilp.json]

CHECKOUT is a clone of firstbatchxyz/distilp; under Python 3.11, write ``Name = ...`` for ``type
Name = ...`` in its ``common/types.py``. Its solver divides the layers of a model among machines
that read what does not fit from their disks. It has the seconds of a layer on processor and GPU,
and a message per machine. With one round of layers these costs are a chain under `sequential`: each
machine is a device that holds layers, and another that reads each layer from the disk. The seconds
of its answer and of ours must agree, except that its solver gives each machine a layer. With more
rounds it overlaps reading with the other machines' rounds, which `sequential` does not have: its
best answer of all rounds is shown beside.
"""

from __future__ import annotations

import importlib
import sys
import time
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import networkx as nx
import numpy as np
import typer

import placewright as pw
from benchmarks.command import ResultsIfAny, run
from benchmarks.result_tables import distilp as table_of_inputs
from placewright.cli.output import print_note, print_table
from placewright.core.execution_models import Sequential
from placewright.core.solution import Budget
from placewright.files.results import write_rows
from placewright.placers.registry import make_placer
from placewright.simulation.evaluator import Evaluator

FORMAT = "placewright.distilp/1"
_PROFILES = Path("test/profiles")
_PAIR = ("llama_3_70b/online/m1", "llama_3_70b/online/m2")
# name -> machines, the first of which is the head, and model
INPUTS = {
    "Llama 3 70B, 4 bits, two machines": (_PAIR, "llama_3_70b/online/model_profile"),
    "Llama 3 70B, 4 bits, three machines": (
        (*_PAIR, "llama_3_70b/4bit/m3_air"), "llama_3_70b/online/model_profile",
    ),
    "Hermes 70B, one machine": (("hermes_70b/m3_air",), "hermes_70b/model_profile"),
    "Hermes 70B, two machines": (_PAIR, "hermes_70b/model_profile"),
    "Qwen3 32B, one machine": (("qwen3_32b/bf16/m3_air",), "qwen3_32b/bf16/model_profile"),
}  # fmt: skip
_SECONDS = 10.0


@dataclass(frozen=True)
class InputRow:
    """An input with both answers; seconds are those of a token by DistilP's costs.

    Attributes:
        name: of the input.
        layers: of the model.
        one_round: seconds of DistilP's answer with one round.
        their_layers: of each machine in that answer.
        best_rounds, best: rounds and seconds of its best answer.
        value, lower_bound, status: of our answer.
        our_layers: of each machine.
        resident: layers of each machine that its memory holds, in our answer.
        search_seconds: of our search.
    """

    name: str
    layers: int
    one_round: float
    their_layers: list[int]
    best_rounds: int
    best: float
    value: float
    lower_bound: float
    status: str
    our_layers: list[int]
    resident: list[int]
    search_seconds: float


@dataclass(frozen=True)
class Costs:
    """Costs of an input: seconds, and bytes of a layer and of each machine's memory."""

    layers: int
    layer_bytes: float
    resident: list[float]  # seconds of a layer that the GPU holds, of each machine
    from_disk: list[float]  # of a layer that the processor computes from the disk
    memory: list[float]
    messages: list[float]  # of each machine to the next
    constant: float  # of the head, in any answer


def costs_of(machines: list[Any], model: Any, common: Any) -> Costs:
    """Costs by DistilP's own functions, for machines with shared memory (its case 2)."""
    sets = common.assign_sets(machines)
    first, change, _ = common.objective_vectors(machines, model, sets, 1.0)
    memory = []
    for machine in machines:
        head = model.b_out if machine.is_head else 0.0
        free = machine.d_avail_metal - machine.c_gpu - max(common.b_cio_b(machine, model), head)
        memory.append(float(free))
    return Costs(
        model.L,
        float(common.b_prime(model, kv_bits_k=1.0)),
        [a + b for a, b in zip(first, change, strict=True)],
        [a + model.b_layer / m.s_disk for a, m in zip(first, machines, strict=True)],
        memory,
        [machine.t_comm for machine in machines],
        common.kappa_constant(machines, model, sets),
    )


def problem_of(costs: Costs) -> pw.Problem:
    """The chain of layers; device i holds layers of machine i, the device after all reads them."""
    n = len(costs.memory)
    graph = nx.DiGraph()
    for layer in range(costs.layers):
        first = {"inputs": {"token": 1.0}} if layer == 0 else {}
        graph.add_node(f"layer{layer}", weight_bytes=costs.layer_bytes, **first)
        if layer:
            graph.add_edge(f"layer{layer - 1}", f"layer{layer}", bytes=1.0)
    graph.add_node("head", output_bytes=1.0)
    graph.add_edge(f"layer{costs.layers - 1}", "head", bytes=1.0)
    seconds = np.tile([*costs.resident, *costs.from_disk], (costs.layers + 1, 1))
    seconds[-1] = [costs.constant, *[np.inf] * (2 * n - 1)]
    machine = np.arange(2 * n) % n
    latency = np.where(machine[:, None] == machine, 0.0, np.tile(costs.messages, 2)[:, None])
    names = [f"m{i}" for i in range(n)]
    return pw.Problem.from_costs(
        graph, seconds, (latency, 1e30),
        memory=[*costs.memory, *[np.inf] * n],
        devices=[*names, *(f"{name}:disk" for name in names)],
        host="m0", execution_model=Sequential(),
    )  # fmt: skip


def answered(name: str, checkout: Path) -> InputRow:
    """Ask both solvers about an input."""
    solver = importlib.import_module("distilp.solver.halda_p_solver")
    common = importlib.import_module("distilp.solver.components.dense_common")
    reading = importlib.import_module("cli.solver")
    files, model_file = INPUTS[name]
    at = checkout / _PROFILES
    machines, model = reading.load_devices_and_model(
        [str(at / f"{file}.json") for file in files], str(at / f"{model_file}.json")
    )
    for index, machine in enumerate(machines):
        machine.is_head = index == 0
    with redirect_stdout(StringIO()):  # it prints the factors of the number of layers
        best = solver.halda_solve(machines, model, plot=False)
        one = solver.halda_solve(machines, model, k_candidates=[1], plot=False)
    problem = problem_of(costs_of(machines, model, common))
    began = time.perf_counter()
    budget = Budget(seconds=_SECONDS)
    found = make_placer("auto").place(problem, Evaluator(problem, budget), np.random.default_rng(0))
    spent, n = time.perf_counter() - began, len(files)
    assert found.placement is not None
    of_layer = np.asarray(found.placement.device_of)[: model.L]
    return InputRow(
        name, model.L, one.obj_value, list(one.w), best.k, best.obj_value,
        value=found.value,
        lower_bound=found.lower_bound,
        status=found.status,
        our_layers=np.bincount(of_layer % n, minlength=n).tolist(),
        resident=np.bincount(of_layer, minlength=2 * n)[:n].tolist(),
        search_seconds=spent,
    )  # fmt: skip


def distilp(
    checkout: Annotated[Path, typer.Argument(help="A clone of firstbatchxyz/distilp.")],
    results: ResultsIfAny = None,
) -> None:
    """Plan the published inputs of DistilP beside its own answers."""
    sys.path.insert(0, str(checkout / "src"))
    rows = []
    for name in INPUTS:
        print_note(name)
        rows.append(answered(name, checkout))
    if results is not None:
        write_rows(results, FORMAT, rows)
    columns, cells = table_of_inputs({"rows": [asdict(row) for row in rows]})
    print_table("Inputs of DistilP", columns, cells)


if __name__ == "__main__":
    run(distilp)
