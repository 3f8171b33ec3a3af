"""Ten ordinary nets x three memory limits: plans of whole modules, which Accelerate runs."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import accelerate
import numpy as np
import pytest
import torch
from accelerate.hooks import AlignDevicesHook, SequentialHook
from support.ordinary_nets import NETS, net_of, problem_of_net

from placewright.core.placement import Placement
from placewright.core.plan import PlacerRecord, Plan
from placewright.core.problem import Problem
from placewright.core.solution import Solution
from placewright.placers.repair import repaired
from placewright.profiling.units import with_granularity
from placewright.session.plans import plan_of
from placewright.simulation.model import Simulator
from placewright.writers.device_map import device_map

PLACES = {"cuda:0": "cpu", "cpu": "disk"}  # of the map -> here
SHARES = (0.35, 0.6, 0.85)  # of all weights, on the accelerator


def limited(problem: Problem, share: float) -> Plan:
    """The fastest device first; what does not fit goes to the other one."""
    graph = problem.graph
    limit = share * float(graph.weight_bytes.sum()) + float(graph.tensor_bytes.sum())
    changed = Problem(
        graph, problem.cluster.with_limit("cuda:0", limit), problem.costs, problem.units,
        source=problem.source,
    )  # fmt: skip
    resident = np.array([share * float(graph.weight_bytes.sum()), math.inf])
    wish = np.zeros(problem.n_units, dtype=np.int64)
    placement = Placement.of(repaired(changed, wish, resident))
    assert Simulator(changed).violation(placement) is None
    found = Solution(placement, 1.0, "feasible", 0.0)
    return plan_of(changed, found, PlacerRecord("manual", "0", 0, 0, 0.0), "torch")


def on_disk(module: torch.nn.Module) -> bool:
    """Whether the hook of a module, or one around it, brings its parameters from the disk."""
    hook = getattr(module, "_hf_hook", None)
    hooks = hook.hooks if isinstance(hook, SequentialHook) else [hook]
    return any(isinstance(one, AlignDevicesHook) and one.offload for one in hooks)


@pytest.mark.filterwarnings("ignore:The following device_map keys do not match any submodules")
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", sorted(NETS))
def test_accelerate_runs_each_plan_of_whole_modules(
    name: str, share: float, tmp_path: Path
) -> None:
    net, coarse = net_of(name), with_granularity(problem_of_net(name), "module")
    plan = limited(coarse, share)
    devices = set(plan.placement.device_of.tolist())
    assert devices == {0, 1}, "both devices are in use"
    there = {path: PLACES[device] for path, device in device_map(plan).items()}
    module = copy.deepcopy(net.module)
    with torch.no_grad():
        expected = module(*net.example_inputs)
        split = accelerate.dispatch_model(
            module, there, main_device="cpu", offload_dir=str(tmp_path), force_hooks=True
        )
        torch.testing.assert_close(split(*net.example_inputs), expected)
    names = [PLACES[device.name] for device in plan.problem.cluster.devices]
    of_op = plan.problem.device_of_ops(plan.placement.device_of)
    for op, path in enumerate(plan.problem.graph.op_modules):
        inner = module.get_submodule(path)
        if len(plan.problem.graph.op_weights.row(op)) and list(inner.parameters(recurse=False)):
            assert on_disk(inner) == (names[int(of_op[op])] == "disk"), path
