"""The command `train`: train a learned placer over a family of graphs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.command import command
from placewright.cli.output import print_json, print_line, progress, told_with
from placewright.cli.overwriting import Writes
from placewright.session.request import SPREAD, Request


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(train)


@command("settings", "devices", "cluster", "runtime", "seed", *SPREAD, model=None)
def train(
    request: Request,
    placer: Annotated[str, typer.Option("--placer", help="Train this placer, such as zero-shot.")],
    graphs: Annotated[
        list[str], typer.Option("--graphs", help="Train on a problem file or model; repeatable.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Write the policy to this file."), Writes()
    ],
    more_graphs: Annotated[
        list[str] | None, typer.Argument(metavar="[GRAPH]...", help="More problem files or models.")
    ] = None,
    episodes: Annotated[int, typer.Option(help="Train for N episodes.")] = 1000,
    patience: Annotated[
        int,
        typer.Option(help="Stop after this many episodes without a faster round; 0 never stops."),
    ] = 0,
    tensorboard: Annotated[
        str, typer.Option(help="Write TensorBoard scalars into this folder.")
    ] = "",
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Train a learned placer over graphs.

    `placewright place --policy FILE` then applies the policy.
    """
    from placewright.core.quantities import counted
    from placewright.placers.learned.training import TrainingOptions
    from placewright.placers.learned.training import train as train_policy
    from placewright.session.hosts import spread_rollouts, workers_of
    from placewright.session.session import Session

    with progress("train", hidden=quiet or as_json) as report, workers_of(request) as workers:
        problems = [
            Session(replace(request, model=name, workers=None, ray=None), report).problem
            for name in [*graphs, *(more_graphs or [])]
        ]
        options = TrainingOptions(
            seed=request.seed,
            patience=patience,
            tensorboard=tensorboard,
            rollouts=None if workers is None else spread_rollouts(workers),
        )
        written = train_policy(
            placer,
            problems,
            output,
            episodes=episodes,
            settings=request.settings,
            progress=report if workers is None else told_with(report, workers.name),
            options=options,
        )
    if as_json:
        print_json({"placer": placer, "graphs": len(problems), "policy": str(written)})
    else:
        trained_on = counted(len(problems), "graph")
        print_line(f"wrote {written}: {placer} trained on {trained_on}")
