"""Options that mean the same in every command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placewright.cli.overwriting import Writes

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model file, or zoo:NAME.")]
Devices = Annotated[
    str | None, typer.Option("--devices", help="For example cpu:0,cpu:1, cores, catalogue:4gpu.")
]
ClusterFile = Annotated[
    Path | None, typer.Option("--cluster", help="YAML file of devices and links.")
]
RuntimeName = Annotated[
    str | None, typer.Option("--runtime", help="openvino, onnxruntime or torch.")
]
ObjectiveName = Annotated[
    str | None, typer.Option("--objective", help="latency, throughput or training.")
]
ExecutionModelName = Annotated[
    str | None,
    typer.Option("--execution-model", help="event, max-load, subgraph, subgraph-ip or placeto."),
]
Optimizer = Annotated[
    str,
    typer.Option(
        "--optimizer", help="Of a training step: sgd, adam or adamw, as in adam:learning_rate=1e-4."
    ),
]
ColocateBackward = Annotated[
    bool,
    typer.Option("--colocate-backward", help="Keep each backward op with its forward op."),
]
Compile = Annotated[
    bool,
    typer.Option("--compile", help="Segments through torch.compile (--runtime torch)."),
]
Remeasure = Annotated[
    bool, typer.Option("--remeasure", help="Measure again what earlier runs have stored.")
]
PlacerName = Annotated[str, typer.Option("--placer", help="See `placewright placers`.")]
PlacerSettings = Annotated[
    list[str] | None, typer.Option("--set-placer", help="Hyperparameter KEY=VALUE; repeatable.")
]
PolicyFile = Annotated[
    Path | None, typer.Option("--policy", help="Trained policy (.safetensors) to apply.")
]
BudgetText = Annotated[str | None, typer.Option("--budget", help="Wall-clock limit such as 30s.")]
Total = Annotated[
    str | None,
    typer.Option(
        "--total", help="Limit such as 60s on everything: profiling, calibration, search, check."
    ),
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="Few rounds, a stored calibration or none, no check on the hardware, 10 s of search.",
    ),
]
Evaluations = Annotated[
    int | None, typer.Option("--evaluations", help="Limit on queries to the evaluator.")
]
Replicate = Annotated[
    bool,
    typer.Option(
        "--replicate",
        help="Groups of alike devices may take turns with the samples (throughput).",
    ),
]
LatencyLimit = Annotated[
    str | None,
    typer.Option(
        "--latency-limit",
        help="95 % of the samples of a stream take less, e.g. 200ms (throughput).",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of every random choice.")]
EvaluatorName = Annotated[
    str, typer.Option("--evaluator", help="simulated, or measured on the hardware.")
]
SamplesInFlight = Annotated[
    str | None,
    typer.Option(
        "--samples-in-flight",
        help="Samples whose tensors a device keeps (throughput): a number, 0 for weights only, or "
        "pipeline: as many as devices.",
    ),
]
Memory = Annotated[
    list[str] | None, typer.Option("--memory", help="Limit DEVICE=2GiB; repeatable.")
]
Pins = Annotated[list[str] | None, typer.Option("--pin", help="Fix OP=DEVICE; repeatable.")]
Resident = Annotated[
    list[str] | None,
    typer.Option("--resident", help="Input NAME that stays where it is used; repeatable."),
]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", help="Input NAME=1,3,224,224; repeatable.")
]
Searched = Annotated[
    bool,
    typer.Option(
        "--searched", help="Take what the search found, where the plan holds a simpler placement."
    ),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="File to write."), Writes()]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")]
