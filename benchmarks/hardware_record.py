"""A record of PyTorch placements on one machine, in one folder.

It contains the problems of every model with costs, the equality of outputs of split placements,
the accuracy of predictions, and the chosen placement beside simpler placements with and without a
memory limit, with machine and versions. Finished steps are not measured again; failed steps are.
"""

from __future__ import annotations

import json
import math
import platform
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from benchmarks.accuracy import run_accuracy_benchmark
from benchmarks.accuracy_report import summaries
from benchmarks.equality import run_equality_benchmark
from benchmarks.hardware_report import record_text
from benchmarks.hardware_table import compare_on_hardware
from benchmarks.memory import whole_model_bytes
from placewright import zoo
from placewright.core.problem import Objective, Problem
from placewright.core.quantities import parse_bytes, parse_seconds
from placewright.core.solution import Budget
from placewright.errors import InputError, StalePlanError
from placewright.execution.runtime import LoadedModel, Runtime
from placewright.files.problem_file import read_problem, write_problem
from placewright.frameworks.runtimes import default_runtime_name
from placewright.io.json_text import read_json_object
from placewright.io.written import write_text
from placewright.session.models import loaded_model, runtime_named
from placewright.session.parsing import parse_objective
from placewright.session.problems import constrained
from placewright.session.running import check_devices
from placewright.session.session import Session

FORMAT = "placewright.hardware-record/1"
_EQUALITY_PLACEMENTS = 3
_STEPS = {
    "equality": "split placements beside the unsplit model",
    "table": "contenders",
    "limited": "contenders under a memory limit",
    "accuracy": "accuracy of predictions",
}
_SHARE = 0.5  # of what the whole model takes: the limit where none is given


@runtime_checkable
class HasLibraries(Protocol):
    """A runtime that computes with other libraries whose versions matter."""

    def versions(self) -> Mapping[str, str]:
        """Library -> version, the runtime's own library first."""
        ...


@dataclass(frozen=True)
class RecordRequest:
    """Parameters of a record.

    Attributes:
        folder: of the record.
        devices: comma-separated names; None takes ``cpu`` and every accelerator.
        models: ``NAME`` or ``NAME/VARIANT`` of the zoo.
        objective: ``"training"`` or ``"latency"``.
        placements: of each model in the accuracy table.
        accuracy_models: models of the accuracy table.
        budget: of each search.
        memory: limit of the first device in bytes; None is half of the whole model's peak there.
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
        """The request of command-line options.

        Raises:
            InputError: an option is wrong.
        """
        named = tuple(models.split(",")) if models else zoo.names()
        wanted = tuple(name for name in accuracy_models.split(",") if name)
        return cls(
            folder,
            devices or _default_devices(),
            named,
            parse_objective(objective),
            placements,
            tuple(name for name in named if name in wanted or name.partition("/")[0] in wanted),
            Budget(seconds=parse_seconds(budget)),
            None if memory is None else parse_bytes(memory),
        )


def record_hardware(request: RecordRequest, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure the missing steps and write the folder.

    Args:
        request: parameters of the record.
        tell: called with a line before each step.

    Returns:
        The content of ``record.json``.

    Raises:
        InputError: the folder has other content.
        StalePlanError: it was recorded on another machine, or on other devices of this one.
    """
    request.folder.mkdir(parents=True, exist_ok=True)
    path = request.folder / "record.json"
    known: dict[str, Any] = {"format": FORMAT, "models": {}}
    if path.exists():
        known = read_json_object(path)
    if known.get("format") != FORMAT:
        raise InputError(f"'{path}' is no record of this benchmark; name another folder")
    known.setdefault("recorded", datetime.now(UTC).date().isoformat())
    machine = _machine(request)
    if known.setdefault("machine", machine)["devices"] != machine["devices"]:
        raise StalePlanError(f"'{path}' was recorded on other devices; name another folder with -o")
    known["machine"] = machine

    def save() -> None:
        write_text(path, json.dumps(known, indent=1) + "\n")
        write_text(request.folder / "table.md", record_text(known))

    for name in request.models:
        _ModelRecord(name, known["models"].setdefault(name, {}), request, tell, save).measure()
    save()
    return known


@dataclass(frozen=True)
class _ModelRecord:
    """The part of a record about one model.

    Attributes:
        name: of the model.
        entry: of the record; it contains the finished steps.
        request: parameters of the record.
        tell: called with a line before each step.
        save: writes the record after each step, so that an interrupted run loses one step.
    """

    name: str
    entry: dict[str, Any]
    request: RecordRequest
    tell: Callable[[str], None]
    save: Callable[[], None]

    def measure(self) -> None:
        """Do all missing steps."""
        wanted = ["equality", "table", "limited"]
        wanted += ["accuracy"] if self.name in self.request.accuracy_models else []
        if not [key for key in wanted if key not in self.entry]:
            return
        found: list[tuple[Problem, LoadedModel]] = []

        def read() -> Any:
            problem = _problem(self.name, self.request)
            found.append((problem, loaded_model(problem, _runtime().name)))
            return {"ops": problem.graph.n_ops, "units": problem.n_units}

        self.entry.pop("size", None)
        self._step("size", "reading, profiling, calibrating", read)
        for key in wanted if found else ():
            self._step(key, _STEPS[key], partial(self._measured, key, *found[0]))

    def _measured(self, key: str, problem: Problem, model: LoadedModel) -> Any:
        if key == "equality":
            return asdict(run_equality_benchmark(problem, model, _EQUALITY_PLACEMENTS))
        if key == "accuracy":
            return self._accuracy(problem, model)
        limits: dict[str, float] = {}
        if key == "limited":
            limit = self.request.memory
            if limit is None:
                limit = _SHARE * whole_model_bytes(problem)
            limits = {problem.cluster.device_names[0]: limit}
            problem = constrained(problem, limits, {})
        budget = self.request.budget
        return asdict(compare_on_hardware(self.name, problem, model, budget=budget, limits=limits))

    def _step(self, key: str, what: str, measure: Callable[[], Any]) -> None:
        if key in self.entry:
            return
        self.tell(f"{self.name}: {what}")
        failures = self.entry.setdefault("failures", {})
        failures.pop(key, None)
        try:
            self.entry[key] = _finite(measure())
        except StalePlanError:
            raise
        except Exception as error:  # what a device or its library refuses must not end the others
            failures[key] = {"error": str(error), "traceback": traceback.format_exc()}
            self.tell(f"{self.name}: {what} failed: {error}")
        self.save()

    def _accuracy(self, problem: Problem, model: LoadedModel) -> Any:
        rows = run_accuracy_benchmark(
            self.name,
            problem,
            model,
            self.request.placements,
            results_path=self.request.folder / "accuracy.json",
            on_row=lambda row: self.tell(f"{self.name}: {row.origin} {row.error:.1%}"),
        )
        return [asdict(one) for one in summaries(rows)]


def _problem(name: str, request: RecordRequest) -> Problem:
    """The problem of the cost file if it was made on this machine, else a new problem."""
    path = request.folder / f"{name.replace('/', '-')}-problem.json"
    if path.exists():
        problem = read_problem(path)
        try:
            check_devices(problem, _runtime().name)
        except InputError as error:
            raise StalePlanError(
                f"'{path}' was recorded on another machine ({error}); name another folder with -o"
            ) from None
        return problem
    problem = Session(
        f"zoo:{name}",
        devices=request.devices,
        runtime=_runtime().name,
        objective=request.objective,
    ).problem
    write_problem(path, problem)
    return problem


def _runtime() -> Runtime:
    """The default runtime of training, also used for inference so that rows are comparable."""
    return runtime_named(default_runtime_name("training"))


def _default_devices() -> str:
    """The processor and every accelerator, the accelerators first."""
    names = [device.name for device in _runtime().discover()]
    others = [name for name in names if not name.startswith("cpu")]
    if not others:
        raise InputError("there is no accelerator here; name devices, for example cpu:0,cpu:1")
    return ",".join([*others, "cpu"])


def _machine(request: RecordRequest) -> dict[str, Any]:
    """The machine of the costs: device -> fingerprint, library or system -> version."""
    runtime, wanted = _runtime(), (request.devices or "").split(",")
    own = {
        "placewright": version("placewright"),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    libraries = runtime.versions() if isinstance(runtime, HasLibraries) else {}
    devices = {one.name: one.fingerprint for one in runtime.discover() if one.name in wanted}
    return {"devices": devices, "versions": {**own, **libraries}}


def _finite(value: Any) -> Any:
    """JSON has no infinity: None stands for it."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
