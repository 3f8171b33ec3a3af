"""The commands `compare` (placers), `replay` (plans of others) and `train` (a learned placer)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from placewright.cli import options as opt
from placewright.cli.command import command, plain_command
from placewright.cli.output import (
    print_all,
    print_json,
    print_line,
    print_lines,
    print_note,
    print_table,
    progress,
    tell_warning,
    told_with,
)
from placewright.cli.overwriting import Writes
from placewright.cli.report import ReportFile, write_tables_report
from placewright.errors import InfeasibleError
from placewright.session.request import COMPARED, SPREAD, Request


@command(*COMPARED)
def compare(
    request: Request,
    placers: Annotated[
        str, typer.Option(help="Comma-separated placers; `placewright placers` lists them.")
    ] = "heft,local-search,random",
    seeds: Annotated[
        int, typer.Option(help="Run each placer N times, with seeds 0 to N-1; there is no --seed.")
    ] = 1,
    pareto: Annotated[
        int | None,
        typer.Option(help="Also search N points of the Pareto front of latency and energy."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Write to this file; runs that it holds are not repeated."
        ),
        Writes(),
    ] = None,
    report_file: ReportFile = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Compare placers on MODEL with one evaluator and equal budgets.

    The table has a lower bound, which is computed once, within the seconds of one run. With
    --seeds, it has the median, the best and the spread of each placer. With --pareto, a second
    table shows placements that no other one found beats in latency and energy. If no run has a
    placement, the exit code is 1.
    """
    from placewright.core.quantities import counted
    from placewright.report.plan_text import limit_warning
    from placewright.report.tables import ShownTable
    from placewright.session.comparison import (
        FRONT_COLUMNS,
        ParetoPoint,
        charged_by_energy,
        front_data,
        front_rows,
        pareto_front,
        require_front,
    )
    from placewright.session.parsing import parse_names
    from placewright.session.problems import require_counted
    from placewright.session.session import Session

    with progress("compare", hidden=quiet or as_json) as report:
        session = Session(request, report)
        if pareto is not None:
            require_front(request, pareto)  # refused before any measuring
            require_counted(request, "energy")
            charged_by_energy(session.problem, pareto)  # refused before any search
        table = session.compare(parse_names(placers), seeds=seeds, results=output)
        front: tuple[ParetoPoint, ...] = ()
        if pareto is not None:
            limit, seed = request.limit, request.seed
            try:
                front = pareto_front(
                    session.problem, limit, points=pareto, seed=seed, report=report
                )
            except InfeasibleError as error:  # the table of the placers stays
                tell_warning(f"no Pareto front: {error}")
    tell_warning(limit_warning(session.problem))
    if output is not None:
        print_note(f"wrote {output}")
    title = f"{request.name}, {counted(seeds, 'seed')}"
    shown: list[str | ShownTable] = [
        table.headline,
        ShownTable(title, table.columns, tuple(map(tuple, table.text_rows()))),
        *([ShownTable("Pareto front", FRONT_COLUMNS, front_rows(front))] if front else []),
        *table.legend,
        *table.settings_lines(),
    ]
    write_tables_report(report_file, title, shown)
    if as_json:
        print_json({**table.data(), **({"pareto": front_data(front)} if front else {})})
    else:
        print_all(shown)
    if not table.has_placement:
        raise typer.Exit(1)


@plain_command
def replay(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Measurements of other hardware, as JSON.")
    ],
    copies: Annotated[
        str | None,
        typer.Option(
            help="Who computes nothing while bytes move: nobody, receiver, sender or both."
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Predict plans that others have measured, and show the errors.

    DATA has operator times, copies, and plans with their measured latency.
    """
    from placewright.report.replay_text import GROUP_COLUMNS, PLAN_COLUMNS, RULE_COLUMNS
    from placewright.suites.replay import replay as replayed

    found = replayed(data, copies)
    if as_json:
        print_json(found.data())
        return
    print_lines(found.lines())
    if found.has_split:
        print_table("Rules about copies", RULE_COLUMNS, found.rule_rows())
    print_table("Errors by group", GROUP_COLUMNS, found.group_rows())
    print_table("Plans", PLAN_COLUMNS, found.plan_rows())


@command("settings", "devices", "cluster", "runtime", "seed", *SPREAD, model=None)
def train(
    request: Request,
    placer: Annotated[str, typer.Option("--placer", help="Train this placer, such as zero-shot.")],
    graphs: Annotated[
        list[str], typer.Option("--graphs", help="Train on a problem file or model; repeatable.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="Write the policy to this file; a training that it holds continues.",
        ),
        Writes(),
    ],
    more_graphs: Annotated[
        list[str] | None, typer.Argument(metavar="[GRAPH]...", help="More problem files or models.")
    ] = None,
    episodes: Annotated[
        int,
        typer.Option(help="Train for N episodes in all; those in the file of -o count."),
    ] = 1000,
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
    from placewright.placers.learned.training import TrainingOptions, episodes_of
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
        shown = report if workers is None else told_with(report, workers.name)
        steps: list[str] = []

        def noted(fraction: float, what: str) -> None:
            steps.append(what)
            shown(fraction, what)

        written = train_policy(
            placer,
            problems,
            output,
            episodes=episodes,
            settings=request.settings,
            progress=noted,
            options=options,
        )
    if not steps:
        held = episodes_of(written)
        ended = "give more with --episodes" if held >= episodes else "--patience has ended it"
        has = counted(held, "episode")
        tell_warning(f"{written} has {has} already, and nothing was trained: {ended}")
    if as_json:
        print_json({"placer": placer, "graphs": len(problems), "policy": str(written)})
    elif steps:
        trained_on = counted(len(problems), "graph")
        print_line(f"wrote {written}: {placer} trained on {trained_on}")
