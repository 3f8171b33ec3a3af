"""Everything that a user can ask for: arguments of `placewright`, options of the command line.

Each field has one declaration: its default, its help on the command line, and how a text becomes a
value. Nothing heavy is imported before a request is made, so that `--help` is quick.
"""

# ruff: noqa: RUF009 - `said` makes a field, as `dataclasses.field` does

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from placewright.errors import FieldError, InputError, near_names
from placewright.workers.processes import require_processes

if TYPE_CHECKING:
    from placewright.core.cluster import Cluster
    from placewright.core.execution_models import Dispatch, ExecutionModel
    from placewright.core.problem import Objective, Samples
    from placewright.core.solution import Budget
    from placewright.core.source import Call
    from placewright.placers.registry import Placer

Checked = Callable[[Any], Any]
# Fields that say how a model is read, and how its problem is made.
READ = (
    "runtime", "objective", "optimizer", "colocate_backward", "dropout", "shapes", "values",
    "state", "weights",
)  # fmt: skip
PROFILED = (
    *READ, "calls", "devices", "cluster", "execution_model", "dispatch", "compiled", "remeasure",
    "calibrate", "quick", "profiling", "samples_in_flight", "memory", "pins", "resident",
    "precision", "prompt", "generate", "context", "kv", "micro_batch", "sequences",
    "granularity", "limits",
)  # fmt: skip
OF_TRAINING = ("optimizer", "colocate_backward", "dropout")
# A comparison runs each placer with seeds and, behind its name, settings of its own.
SPREAD = ("workers", "ray")  # who does the tasks of a search
COMPARED = (*PROFILED, "budget", "evaluations", "core_seconds", "evaluator", *SPREAD)
EVALUATORS = ("simulated", "measured")
QUICK_SECONDS, USUAL_SECONDS = 5.0, 10.0
PROFILING_SECONDS = 120.0


@dataclass(frozen=True)
class Said:
    """Declaration of a field as an option of the command line."""

    help: str  # one line
    kind: type = str  # type of the option: `str`, `bool`, `int`, `Path`, or `list` of texts
    word: str = ""  # the option, if that is not the field's name; ``"pin"`` for one of `pins`
    checked: Checked | None = None  # a value or its text -> the value; None takes it as it is
    bare: str = ""  # the value of an option without a value; "" if it needs one


def said(
    help: str,
    default: Any = None,
    *,
    kind: type = str,
    word: str = "",
    checked: Checked | None = None,
    bare: str = "",
) -> Any:
    """Declare a field of a request that can be given on the command line."""
    metadata = {"said": Said(help, kind, word, checked, bare)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def _parsing(name: str, *arguments: Any) -> Checked:
    """A function of `session.parsing`, which is imported when it is first needed."""

    def checked(raw: Any) -> Any:
        from placewright.session import parsing

        return getattr(parsing, name)(raw, *arguments)

    return checked


@dataclass(frozen=True)
class Request:
    """All that a user asks for; None leaves a choice to the default.

    You can give texts in the form of the command line: ``pins=["op=cpu:0"]`` is equal to
    ``pins={"op": "cpu:0"}``, and ``memory={"cpu:0": "2GiB"}`` to that many bytes. The constructor
    converts texts, so that the fields hold values: bytes, seconds, tuples.

    >>> request = pw.Request(model="model.onnx", devices="cpu:0,cpu:1", memory=["cpu:1=1KiB"])
    >>> request.devices, request.memory
    ('cpu:0,cpu:1', {'cpu:1': 1024.0})

    Attributes:
        model: a path, ``"zoo:NAME"``, a PyTorch module, a model from `placewright.read`, a problem,
            or a plan, which stands for its problem and its runtime.
        example_inputs: positional inputs of a module, or a mapping by the names of its arguments; a
            single one may stand alone.
        devices: names separated by commas, or several; a `Cluster` is taken as `cluster`.
        cluster: a cluster file, or the cluster itself, instead of `devices`.
        runtime: that measures and executes.
        objective: quantity that is minimised. ``"energy"`` and ``"price"`` are of one sample, of
            devices whose power or price the cluster says. None is latency, and the objective of
            a stored problem.
        execution_model: rules that turn a placement into a value: a name, or one of
            `core.execution_models` with its parameters. With a name alone, a problem of a file
            keeps its parameters.
        dispatch: which ready op a device without an order begins, under `event`: ``"rank"`` or
            ``"fifo"``; None is the execution model's own, ``"rank"`` by default.
        optimizer: of a training step: a text, or the module's new optimizer of ``torch.optim``.
        colocate_backward: every backward op shares a device with its forward op.
        dropout: a training step keeps dropout and other random operators.
        weights: format of the weights of ``"hf:PATH"``, whose file states sizes only.
        compiled: segments go through ``torch.compile``; overheads are not calibrated then, since
            every placement would be compiled for it.
        remeasure: measure and calibrate again, instead of using stored samples.
        calibrate: measure a few placements to fit overheads and contention.
        profiling: seconds after which nothing further is measured or calibrated; a later call adds
            to the stored samples. None is no limit.
        placer: the algorithm, by name or as an object; ``package.module:Class`` is a foreign one.
        settings: its hyperparameters.
        policy: file of a trained policy to apply.
        budget: seconds of the search; None is 10, 5 with `quick`, if `evaluations` and
            `core_seconds` are None, too. A `Budget` sets all three.
        evaluations: queries to the evaluator.
        core_seconds: processor seconds of the search: those of all threads of this process, and of
            the turns of its workers.
        total: seconds of everything, measuring and checking included; None is no limit.
        quick: few rounds, a stored calibration or a short one, a probe instead of the check.
        replicate: groups of equal devices may take turns.
        latency_limit: of a throughput plan: seconds that 95 % of its samples may take from entry to
            end; None is no limit.
        seed: of every random choice.
        evaluator: ``"simulated"`` or ``"measured"``.
        workers: number of processes that search, or of tasks at a time on a cluster. None is this
            process alone, or all cores of a cluster. With `evaluations` alone the answer is the
            same for any number.
        ray: a Ray cluster that searches instead: ``"HOST:PORT"``, ``"auto"`` for the one that
            ``RAY_ADDRESS`` names or that runs here (else one is started here), ``"local"`` for one
            that is started here.
        samples_in_flight: whose tensors a device keeps at a time under max-load; 0 counts weights
            only, ``"pipeline"`` one sample for each device. None is 1 for a model that is read,
            or 0 where that leaves no placement; and the number of a stored problem or a workload.
        memory: name of a device or memory pool -> bytes.
        limits: ``"latency"`` (seconds), ``"energy"`` (joules) or ``"price"`` -> its largest amount
            for one sample.
        pins: op name, module path, or pattern of either -> device name; later ones win, and names
            of ops over all.
        shapes: input name, pattern of such names or symbol of open dimensions -> dimensions.
        calls: the mix of calls of several shapes that one placement serves: pairs of how often and
            shapes by input name, such as ``[(1, {}), (300, {"token": (1, 1)})]``. Inputs without a
            shape have that of `shapes`, else of the example inputs.
        values: input name -> its constant value: a number, or as many as it holds.
        state: output name -> name of the input that takes its value in the next call, on the same
            device, such as the keys and values of a decoder; ``"new_keys_*": "keys_*"`` pairs all
            whose ``*`` stands for the same text.
        granularity: parts that move as a whole: ``"op"`` (units, which hold one heavy op),
            ``"module"`` or ``"layer"`` by module path.
        target: a format of `export` that must be able to express the plan; None is any.
        resident: names of inputs, or patterns of names, that lie where they are used before a run
            begins.
        precision: of all floating-point data on devices whose costs come from data sheets: f32,
            tf32, bf16, f16 or i8. A device without it computes in another, which is reported. None
            leaves each op the precision of its own data.
        check: measure the plan beside simpler contenders if it can run here; None does so, except
            for a problem in memory, which is only searched.

    Raises:
        InputError: a value has the wrong form; values are checked here as far as possible.
    """

    model: Any
    example_inputs: Any = ()
    devices: str | None = said(
        "Take these devices, such as cpu:0,cpu:1, cores or catalogue:4gpu.",
        checked=lambda raw: _devices(raw),
    )
    cluster: Path | Cluster | None = said("Take devices and links from a YAML file.", kind=Path)
    runtime: str | None = said("Use openvino, onnxruntime or torch.")
    objective: Objective | None = said(
        "Minimise latency, time per sample (throughput), a training step, energy or price.",
        checked=_parsing("parse_known", "objective"),
    )
    execution_model: str | ExecutionModel | None = said(
        "Value placements by event, max-load, sequential, subgraph, subgraph-ip or placeto.",
        checked=lambda raw: _execution_model(raw),
    )
    dispatch: Dispatch | None = said(
        "Let a device without an order begin the ready op of highest rank (rank) or the first one "
        "(fifo), under event.", checked=_parsing("parse_known", "dispatch"),
    )  # fmt: skip
    optimizer: Any = said("Train with sgd, adam or adamw, as in adam:learning_rate=1e-4.", "sgd")
    colocate_backward: bool = said("Keep each backward op with its forward op.", False, kind=bool)
    dropout: bool = said(
        "Keep dropout on in a training step; its masks do not depend on the split.",
        False,
        kind=bool,
    )
    weights: str | None = said("Count the weights of hf:PATH in this format, such as q4_k_m.")
    compiled: bool = said(
        "Compile segments with torch.compile (argument `runtime` torch).",
        False,
        kind=bool,
        word="compile",
    )
    remeasure: bool = said("Measure again what earlier runs have stored.", False, kind=bool)
    calibrate: bool = True
    profiling: float | None = said(
        "Limit measuring and calibrating to a time such as 10min; inf is no limit.",
        PROFILING_SECONDS,
        checked=_parsing("parse_duration", "profiling"),
    )
    placer: str | Placer = said(
        "Search with this placer; `placewright placers` lists them.", "auto"
    )
    settings: Mapping[str, str] = said(
        "Set a hyperparameter of the placer; repeatable.", {}, kind=list, word="set-placer",
        checked=_parsing("parse_pairs", "settings", "KEY=VALUE"),
    )  # fmt: skip
    policy: Path | None = said(
        "Apply a trained policy (.safetensors).",
        kind=Path,
        checked=_parsing("parse_path", "policy"),
    )
    budget: float | None = said(
        "Search for this long, such as 30s.", checked=_parsing("parse_duration", "budget")
    )
    evaluations: int | None = said(
        "Limit the number of placements that the evaluator values.", kind=int,
        checked=_parsing("parse_count", "evaluations"),
    )  # fmt: skip
    core_seconds: float | None = said(
        "Limit the processor time of the search, of all threads and workers, such as 60s.",
        checked=_parsing("parse_duration", "core_seconds"),
    )
    total: float | None = said(
        "Limit everything, such as 60s: profiling, calibration, search and check.",
        checked=_parsing("parse_duration", "total"),
    )
    quick: bool = said(
        "Measure few rounds, search for 5 s, and probe a split instead of the full check on the "
        "hardware.",
        False, kind=bool,
    )  # fmt: skip
    replicate: bool = said(
        "Let groups of equal devices take turns with the samples (throughput).", False, kind=bool
    )
    latency_limit: float | None = said(
        "Keep 95 % of the samples of a stream below a time such as 200ms (throughput).",
        checked=_parsing("parse_duration", "latency_limit"),
    )
    seed: int = said(
        "Set the seed of every random choice.", 0, kind=int, checked=_parsing("parse_seed")
    )
    evaluator: str = said(
        "Value placements as simulated, or measured on the hardware.", "simulated",
        checked=_parsing("parse_choice", "evaluator", EVALUATORS),
    )  # fmt: skip
    workers: int | None = said(
        "Search in N processes; with argument `ray`, with N tasks at a time.", kind=int,
        checked=_parsing("parse_count", "workers"),
    )  # fmt: skip
    ray: str | None = said(
        "Use a Ray cluster: HOST:PORT, auto (also without a value) or local.",
        checked=_parsing("parse_ray"), bare="auto",
    )  # fmt: skip
    samples_in_flight: Samples | None = said(
        "Count the tensors of N samples in a device's memory (throughput); 0 counts weights only, "
        "pipeline as many samples as devices.", checked=_parsing("parse_samples"),
    )  # fmt: skip
    memory: Mapping[str, float] = said(
        "Limit the memory of a device or pool, as in cpu:0=2GiB; repeatable.",
        {},
        kind=list,
        checked=_parsing("parse_memory"),
    )
    limits: Mapping[str, float] = said(
        "Limit latency, energy or price of a sample, as in energy=3J; repeatable.", {},
        kind=list, word="limit", checked=_parsing("parse_limits"),
    )  # fmt: skip
    pins: Mapping[str, str] = said(
        "Fix an op, or all of a pattern as in 'layers.0.*=cpu:0'; repeatable.",
        {},
        kind=list,
        word="pin",
        checked=_parsing("parse_pairs", "pins", "OP=DEVICE"),
    )
    shapes: Mapping[str, tuple[int, ...]] = said(
        "Set the shape of an input or pattern (x=1,3,224,224) or an open dimension (n=128); "
        "repeatable.", {},
        kind=list, word="shape",
        checked=_parsing("parse_shapes"),
    )  # fmt: skip
    calls: tuple[Call, ...] = said(
        "Place one model for calls of several shapes, as in 300:token=1,1; repeatable.", (),
        kind=list, checked=_parsing("parse_calls"),
    )  # fmt: skip
    values: Mapping[str, tuple[int | float, ...]] = said(
        "Give an input a constant value, as in sr=16000; repeatable.", {}, kind=list, word="value",
        checked=_parsing("parse_values"),
    )  # fmt: skip
    state: Mapping[str, str] = said(
        "Keep an output for the next call, as in new_keys_*=keys_*; repeatable.", {}, kind=list,
        checked=_parsing("parse_pairs", "state", "OUTPUT=INPUT"),
    )  # fmt: skip
    granularity: str = said(
        "Move single ops, whole modules or whole layers.", "op",
        checked=_parsing("parse_granularity"),
    )  # fmt: skip
    target: str | None = said(
        "Place only what this format of `placewright export` can express.",
        checked=_parsing("parse_target"),
    )
    resident: tuple[str, ...] = said(
        "Keep an input, or all of a pattern, where they are used before a run; repeatable.", (),
        kind=list, checked=_parsing("names_in", "resident", "names of inputs"),
    )  # fmt: skip
    prompt: int | None = said(
        "Plan a language model for a prompt of N tokens.",
        checked=_parsing("parse_tokens", "prompt"),
    )
    generate: int | None = said(
        "Generate N tokens after the prompt.", checked=_parsing("parse_tokens", "generate")
    )
    context: int | None = said(
        "Keep room for a context of N tokens, such as 32k, in the cache.",
        checked=_parsing("parse_tokens", "context"),
    )
    kv: str | None = said("Keep keys and values as f32, f16, bf16, q8_0 or q4_0.")
    micro_batch: int | None = said(
        "Compute N tokens of the prompt at once.", checked=_parsing("parse_tokens", "micro_batch")
    )
    sequences: int | None = said(
        "Generate N sequences at once.", kind=int, checked=_parsing("parse_count", "sequences")
    )
    precision: str | None = said(
        "Compute in f32, tf32, bf16, f16 or i8 on devices of the catalogue or with a peak.",
        checked=_parsing("parse_known", "precision"),
    )  # fmt: skip
    check: bool | None = said(
        "Run the placement and simpler ones on the hardware before the verdict.", kind=bool
    )

    def __post_init__(self) -> None:
        self._take_objects()
        for name, how in words().items():
            if how.checked is not None:
                given = getattr(self, name)
                self._set(name, how.checked({} if given is None and how.kind is list else given))
        self._agree()
        if self.ray is None:
            require_processes(self.workers)
        if isinstance(self.model, os.PathLike):
            self._set("model", os.fspath(self.model))

    def _take_objects(self) -> None:
        """Take objects that set two fields, or another one."""
        from placewright.core.cluster import Cluster
        from placewright.core.execution_models import MaxLoad
        from placewright.core.solution import Budget

        if isinstance(self.devices, Cluster):
            if self.cluster is not None:
                raise FieldError("devices", "or a cluster, not both")
            self._set("cluster", self.devices)
            self._set("devices", None)
        if isinstance(self.cluster, str):
            self._set("cluster", Path(self.cluster))
        if isinstance(self.budget, Budget):
            limit = self.budget
            self._set("budget", limit.seconds)
            self._set("evaluations", self.evaluations or limit.evaluations)
            self._set("core_seconds", self.core_seconds or limit.core_seconds)
        if isinstance(self.execution_model, MaxLoad) and self.samples_in_flight is None:
            self._set("samples_in_flight", self.execution_model.samples_in_flight)

    def _agree(self) -> None:
        """Set objective throughput if the request names max-load and no objective.

        Raises:
            FieldError: the request combines throughput with another execution model, or a setting
                of training with another objective.
        """
        from placewright.core.execution_models import MaxLoad

        for name in OF_TRAINING:
            usual = type(self).__dataclass_fields__[name].default
            if self.objective != "training" and getattr(self, name) != usual:
                raise FieldError(name, "is of a training step; give objective training, too")
        model = getattr(self.execution_model, "name", self.execution_model)
        if model is None:
            return
        if model == MaxLoad.name and self.objective in (None, "latency"):
            self._set("objective", "throughput")
        if model != MaxLoad.name and self.objective == "throughput":
            raise FieldError(
                "execution_model",
                f"'{model}' does not value objective throughput, which is that of max-load; leave "
                "one of them out",
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def reads_for(self) -> Objective:
        """Objective for which a model is read and measured, latency for energy and price."""
        from placewright.core.problem import timed_objective

        return timed_objective(self.objective or "latency")

    @property
    def limit(self) -> Budget:
        """Budget of the search."""
        from placewright.core.solution import Budget

        said = Budget(self.budget, self.evaluations, self.core_seconds)
        if said.is_limited:
            return said
        return Budget(seconds=QUICK_SECONDS if self.quick else USUAL_SECONDS)

    @property
    def name(self) -> str:
        """Name of the model in a message."""
        return self.model if isinstance(self.model, str) else "the model"


def words() -> dict[str, Said]:
    """Fields that can be given on the command line, in their order."""
    return {item.name: item.metadata["said"] for item in fields(Request) if "said" in item.metadata}


def _devices(raw: Any) -> str | None:
    if raw is None or isinstance(raw, str):
        return raw
    if isinstance(raw, Sequence) and all(isinstance(name, str) for name in raw):
        return ",".join(raw)
    raise FieldError("devices", f"expects names of devices or a cluster, got {raw!r}")


def _execution_model(raw: Any) -> Any:
    if isinstance(raw, str):
        from placewright.files.model_names import model_of

        model_of(raw)  # raises for an unknown name
    return raw


def request_of(model: Any, said: Mapping[str, Any]) -> Request:
    """Make a request from a model, or from another request, and arguments by name.

    An object that sets several fields takes the place of all that the other request has of them.

    Raises:
        InputError: there is no such field; the message names near ones.
    """
    refuse_unknown("a request", said, [item.name for item in fields(Request)])
    if not isinstance(model, Request):
        return Request(model, **said)
    taken: list[str] = []
    if hasattr(said.get("budget"), "evaluations"):
        taken += ["evaluations", "core_seconds"]
    models = [said["execution_model"], model.execution_model] if "execution_model" in said else []
    if any(hasattr(each, "samples_in_flight") for each in models):
        taken += ["samples_in_flight"]
    if said.get("devices") is not None or said.get("cluster") is not None:
        taken += ["devices", "cluster"]
    return replace(model, **{**dict.fromkeys(taken), **said}) if said else model


def refuse_unknown(what: str, said: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse an argument that is not a field.

    Raises:
        InputError: there is no such field; the message names near ones.
    """
    for name in said:
        if name not in known:
            near = near_names(name, known) or sorted(known)
            raise InputError(f"{what} takes no '{name}'; did you mean {' or '.join(near)}?")


Function = TypeVar("Function", bound=Callable[..., Any])


def _shown_type(one: Field[Any]) -> str:
    """The annotation of a field, with None if that is what a caller may leave it at."""
    text = str(one.type)
    return f"{text} | None" if one.default is None and "None" not in text else text


def takes_fields(*names: str) -> Callable[[Function], Function]:
    """Give a function with ``**said`` the signature of the request's fields; refuse others.

    Args:
        names: of the fields; without any, all but the model.
    """

    def changed(function: Function) -> Function:
        own = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        taken = {parameter.name for parameter in own} | {"model"}
        shown = [item for item in fields(Request) if item.name in names or not names]
        shown = [item for item in shown if item.name not in taken]
        allowed = [item.name for item in shown]

        @wraps(function)
        def call(*arguments: Any, **said: Any) -> Any:
            refuse_unknown(function.__name__, said, [*taken, *allowed])
            return function(*arguments, **said)

        added = [
            inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                default={} if item.default is MISSING else item.default,
                annotation=_shown_type(item),
            )
            for item in shown
        ]
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*own, *added], return_annotation=inspect.signature(function).return_annotation
        )
        return cast(Function, call)

    return changed
