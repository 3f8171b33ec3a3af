"""Everything that one machine has to tell of PyTorch placements, in one folder.

Cost files (problems) of every model, the accuracy of predictions, and the chosen placement beside
simpler ones with and without a memory limit, with machine and versions. What a folder holds already
is not measured again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from placewright import zoo
from placewright.benchmarks.accuracy import run_accuracy_benchmark, summaries
from placewright.benchmarks.hardware_table import compare_on_hardware
from placewright.core.placement import Placement
from placewright.core.problem import Objective, Problem
from placewright.core.solution import Budget
from placewright.errors import AnswerError, InputError
from placewright.files.problem_file import read_problem, write_problem
from placewright.files.quantities import format_bytes, parse_bytes, parse_seconds
from placewright.files.text import read_json_object, write_text
from placewright.simulation.model import Simulator
from placewright.workflow.problems import ProblemRequest, build_problem, checked_objective
from placewright.workflow.running import loaded_model

FORMAT = "placewright.hardware-record/1"
RUNTIME = "torch"
_SHARE = 0.5  # of what the whole model takes: the limit where none is given


@dataclass(frozen=True)
class RecordRequest:
    """What to measure.

    Attributes:
        folder: for everything.
        devices: names separated by commas; None is ``cpu`` with every accelerator.
        models: ``NAME`` or ``NAME/VARIANT`` of the zoo.
        objective: ``"training"`` or ``"latency"``.
        placements: of the accuracy table, per model.
        accuracy_models: that the accuracy table is made of.
        budget: of each search.
        memory: bytes that the first device is limited to; None is half of what the whole model
            takes there.
    """

    folder: Path
    devices: str | None = None
    models: tuple[str, ...] = ()
    objective: Objective = "training"
    placements: int = 20
    accuracy_models: tuple[str, ...] = ()
    budget: Budget = field(default_factory=lambda: Budget(seconds=60.0))
    memory: float | None = None

    @classmethod
    def of_texts(
        cls,
        *,
        folder: Path,
        devices: str | None,
        models: str | None,
        objective: str,
        placements: int,
        accuracy_models: str,
        budget: str,
        memory: str | None,
    ) -> RecordRequest:
        """From command-line options.

        Raises:
            InputError: one of them is wrong.
        """
        named = tuple(models.split(",")) if models else zoo.names()
        wanted = tuple(name for name in accuracy_models.split(",") if name)
        return cls(
            folder,
            devices or _default_devices(),
            named,
            checked_objective(objective),
            placements,
            tuple(name for name in named if name in wanted or name.partition("/")[0] in wanted),
            Budget(seconds=parse_seconds(budget)),
            None if memory is None else parse_bytes(memory),
        )


def record(request: RecordRequest, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure what is missing and write the folder.

    Args:
        request: what to measure.
        tell: called with a line before each step.

    Returns:
        The content of ``record.json``.
    """
    request.folder.mkdir(parents=True, exist_ok=True)
    path = request.folder / "record.json"
    known: dict[str, Any] = {"format": FORMAT, "models": {}}
    if path.exists():
        known = read_json_object(path)
    if known.get("format") != FORMAT:
        raise InputError(f"'{path}' is no record of this benchmark; name another folder")
    for name in request.models:
        entry = known["models"].setdefault(name, {})
        try:
            _measure_model(name, entry, request, tell)
        except AnswerError as error:  # one model that a device refuses must not end the others
            entry["failure"] = str(error)
            tell(f"{name}: {error}")
        known["machine"] = _machine(request)
        write_text(path, json.dumps(known, indent=1) + "\n")
        write_text(request.folder / "table.md", _markdown(known))
    return known


def _measure_model(
    name: str, entry: dict[str, Any], request: RecordRequest, tell: Callable[[str], None]
) -> None:
    tell(f"{name}: reading, profiling, calibrating")
    problem = _problem(name, request)
    model = loaded_model(problem, RUNTIME)
    entry["ops"], entry["units"] = problem.graph.n_ops, problem.n_units
    if name in request.accuracy_models and "accuracy" not in entry:
        tell(f"{name}: accuracy of {request.placements} placements")
        rows = run_accuracy_benchmark(
            name,
            problem,
            model,
            request.placements,
            results_path=request.folder / "accuracy.json",
            on_row=lambda row: tell(f"{name}: {row.origin} {row.error:.1%}"),
        )
        entry["accuracy"] = [asdict(one) for one in summaries(rows)]
    limit = request.memory if request.memory is not None else _half(problem)
    limited = _limited(problem, limit)
    for key, wanted, limits in (
        ("table", problem, {}),
        ("limited", limited, {problem.cluster.device_names[0]: limit}),
    ):
        if key not in entry:
            tell(f"{name}: contenders{' under a memory limit' if limits else ''}")
            table = compare_on_hardware(name, wanted, model, budget=request.budget, limits=limits)
            entry[key] = _finite(asdict(table))


def _problem(name: str, request: RecordRequest) -> Problem:
    """The cost file's problem where it is there and was made on this machine, else a new one."""
    path = request.folder / f"{name.replace('/', '-')}-problem.json"
    if path.exists():
        return read_problem(path)
    problem = build_problem(
        ProblemRequest(
            f"zoo:{name}", devices=request.devices, runtime=RUNTIME, objective=request.objective
        )
    )
    write_problem(path, problem)
    return problem


def _half(problem: Problem) -> float:
    everything = Placement.of(np.zeros(problem.n_units, dtype=np.int64))
    return _SHARE * float(Simulator(_limited(problem, math.inf)).memory_peaks(everything)[0])


def _limited(problem: Problem, limit: float) -> Problem:
    first, *others = problem.cluster.devices
    devices = (replace(first, memory_bytes=limit), *others)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def _default_devices() -> str:
    """The processor and every accelerator, the accelerators first."""
    from placewright.runtimes.torch_devices import discovered

    names = [device.name for device in discovered()]
    others = [name for name in names if not name.startswith("cpu")]
    if not others:
        raise InputError("there is no accelerator here; name devices, for example cpu:0,cpu:1")
    return ",".join([*others, "cpu"])


def _machine(request: RecordRequest) -> dict[str, Any]:
    from placewright.runtimes.torch_devices import discovered, machine

    wanted = (request.devices or "").split(",")
    return asdict(machine(tuple(d for d in discovered() if d.name in wanted)))


def _finite(value: Any) -> Any:
    """JSON has no infinity: None stands for it."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _markdown(known: dict[str, Any]) -> str:
    lines = ["# Placements on the hardware", "", "Machine:", ""]
    for name, text in known["machine"]["devices"].items():
        lines.append(f"- `{name}`: {text}")
    lines += [f"- {name} {text}" for name, text in known["machine"]["versions"].items()]
    for key, title in (("table", "Without limits"), ("limited", "Under a memory limit")):
        tables = {n: e[key] for n, e in known["models"].items() if key in e}
        if tables:
            lines += ["", f"## {title}", "", *_rows(tables)]
    errors = [row for e in known["models"].values() for row in e.get("accuracy", [])]
    if errors:
        lines += ["", "## Predicted against measured", "", *_accuracy(errors)]
    return "\n".join(lines) + "\n"


def _rows(tables: dict[str, Any]) -> list[str]:
    lines = ["| model | contender | measured | predicted | peak memory, measured (predicted) |",
             "| --- | --- | ---: | ---: | --- |"]  # fmt: skip
    for name, table in tables.items():
        for row in table["rows"]:
            measured = (
                row["reason"] if row["measured"] is None else f"{row['measured'] * 1e3:.2f} ms"
            )
            predicted = "-" if row["predicted"] is None else f"{row['predicted'] * 1e3:.2f} ms"
            memory = ", ".join(
                f"{device} {format_bytes(size)} ({format_bytes(row['memory_predicted'][device])})"
                for device, size in row["memory_measured"].items()
                if size
            )
            lines.append(f"| {name} | {row['name']} | {measured} | {predicted} | {memory or '-'} |")
    return lines


def _accuracy(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| model | placements | number | median error | 95th percentile |",
             "| --- | --- | ---: | ---: | ---: |"]  # fmt: skip
    return lines + [
        f"| {row['model']} | {row['kind']} | {row['placements']} | {row['median']:.1%} | "
        f"{row['p95']:.1%} |"
        for row in rows
    ]
