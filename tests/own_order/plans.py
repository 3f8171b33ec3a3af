"""Plans of the models with an order of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from own_order.models import INPUTS, OUTPUTS
from writers.plans import plan_with

from placewright.core.execution_models import MaxLoad
from placewright.core.placement import Placement
from placewright.core.plan import Plan
from placewright.core.solution import Solution
from placewright.session.models import load_model, runtime_named
from placewright.session.plans import plan_of


def split_plan(path: Path, runtime: str) -> Plan:
    """Ops dealt to two cores in turn: every tensor travels."""
    model = load_model(str(path), runtime=runtime)
    cores = [one for one in runtime_named(runtime).discover() if one.name.startswith("cpu:")][:2]
    cores = cores if len(cores) == 2 else cores * 2
    assert model.source is not None
    return plan_with(model.graph, cores, lambda op: op % 2, model.source, runtime)


def own_order(path: Path, runtime: str) -> tuple[list[str], list[str]]:
    """Names in the order of the library that the file was made for."""
    if runtime == "torch" or path.suffix == ".pt2":
        return list(INPUTS), list(OUTPUTS)  # of the module's ``forward`` and its dictionary
    if runtime == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path))
        return [i.name for i in session.get_inputs()], [o.name for o in session.get_outputs()]
    import openvino

    compiled = openvino.compile_model(str(path), "CPU")

    def known(ports: Any, names: tuple[str, ...]) -> list[str]:
        bare = [{name.partition(":")[0] for name in port.get_names()} for port in ports]
        return [next(name for name in names if name in found) for found in bare]

    return known(compiled.inputs, INPUTS), known(compiled.outputs, OUTPUTS)


def unsplit(plan: Plan) -> Plan:
    alone = Placement.on_one_device(plan.problem.n_units, 0)
    return plan_of(plan.problem, Solution(alone, 1.0, "feasible", 0.0), plan.placer, plan.runtime)


def for_throughput(plan: Plan) -> Plan:
    problem = replace(plan.problem, objective="throughput", execution_model=MaxLoad())
    found = Solution(Placement.of(plan.placement.device_of), 1.0, "feasible", 0.0)
    return plan_of(problem, found, plan.placer, plan.runtime)
