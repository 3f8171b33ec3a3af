"""`placewright bench`: reproduce published tables and our own figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options as opt
from placewright.cli.command import command, plain_command
from placewright.cli.help import Application
from placewright.cli.output import (
    print_json,
    print_line,
    print_note,
    print_shown,
    progress,
    recorded,
)
from placewright.cli.overwriting import Writes
from placewright.cli.report import ReportFile, write_tables_report
from placewright.errors import FieldError, InputError
from placewright.io.written import require_folder
from placewright.report.time_left import Counted, Report
from placewright.session.request import SPREAD, Request

if TYPE_CHECKING:
    from placewright.suites.suite.runs import SuiteProblem, SuiteRow
    from placewright.workers.interface import Workers

Data = Annotated[
    Path | None,
    typer.Option("--data", help="Add the Tarnawski workloads of this folder."),
]
Problems = Annotated[
    str, typer.Option(help="Take the problems with these comma-separated names or parts of names.")
]
Seconds = Annotated[float, typer.Option(help="Search for this many seconds in each run.")]
Seeds = Annotated[int, typer.Option(help="Runs of each placer, with seeds 0 to N-1.")]
_PAGES = (".html", ".htm")


def _no_page(path: Path) -> Path:
    """Refuse results under the name of a page, which the report of the group would replace."""
    if path.suffix.lower() in _PAGES:
        raise FieldError("results", f"is a JSON file, got '{path}', the name of a page")
    return path


def _results(what: str) -> Any:
    return typer.Option("--results", help=what, callback=_no_page)


Results = Annotated[
    Path,
    _results("Write to this file; runs that it holds are not repeated."),
    Writes(),
]


def group() -> typer.Typer:
    """The commands of `bench`."""
    made = Application(help="Reproduce tables and figures.", no_args_is_help=True)
    made.callback()(_reported)
    for member in (tarnawski, learned, paper, suite, auto, llm_ab):
        made.command()(member)
    return made


def _reported(context: typer.Context, report_file: ReportFile = None) -> None:
    """Reproduce tables and figures; `bench --report FILE.html SUITE` also writes them as a page."""
    if report_file is None:
        return
    if report_file.suffix.lower() not in _PAGES:  # it may be the file of the results
        raise FieldError("report", f"must be a name that ends in .html, got '{report_file}'")
    require_folder(report_file)
    shown = context.with_resource(recorded())
    title = f"bench {context.invoked_subcommand}"

    def write() -> None:
        if shown:
            write_tables_report(report_file, title, shown)
        else:
            print_note(f"warning: {report_file} was not written: no table was printed")

    context.call_on_close(write)


def _workers(request: Request, *, apart: bool = False) -> AbstractContextManager[Workers]:
    """Open the workers of ``--workers`` and ``--ray`` for a block.

    Args:
        apart: a single worker is also another process.

    Raises:
        InputError: there are no such workers.
    """
    from placewright.workers.processes import open_workers

    return open_workers(request.workers, request.ray, apart=apart)


@plain_command
def tarnawski(
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Read this folder with throughput/, latency/, experts/."),
    ] = None,
    fetch: Annotated[
        Path | None, typer.Option("--fetch", help="Download the workloads into this folder first.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Run these comma-separated placers.")] = None,
    workloads: Annotated[
        str | None, typer.Option(help="Take the workloads with these parts of names.")
    ] = None,
    seconds: Seconds = 60.0,
    results: Results = Path("tarnawski.json"),
    as_json: opt.Json = False,
) -> None:
    """Run every method on every workload of Tarnawski et al 2020.

    The table has value, bound, gap, time and memory of each run.
    """
    from placewright.report.tables import tarnawski_table
    from placewright.session.parsing import parse_names
    from placewright.suites.tarnawski import fetch_workloads, run_tarnawski_benchmark

    if data is not None and fetch is not None:
        raise InputError("--fetch also reads the workloads from its folder; leave out --data")
    folder = fetch_workloads(fetch) if fetch is not None else data
    if folder is None:
        raise InputError("give --data FOLDER, or --fetch FOLDER to download the workloads")
    counted = Counted()
    rows = run_tarnawski_benchmark(
        folder,
        methods=parse_names(methods) if methods else None,
        workloads=parse_names(workloads) if workloads else None,
        seconds_per_run=seconds,
        results_path=results,
        on_row=lambda row: print_note(
            counted.numbered(
                f"{row.workload} {row.method}: "
                f"{row.status if row.value is None else f'{row.value:.6g} ms'}"
            )
        ),
        on_ahead=counted.ahead,
    )
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_shown(tarnawski_table(rows))


@command(*SPREAD, model=None)
def suite(
    request: Request,
    data: Data = None,
    problems: Problems = "",
    placers: Annotated[
        str,
        typer.Option(
            help="Run these comma-separated placers instead of all that need no training."
        ),
    ] = "",
    seconds: Seconds = 60.0,
    seeds: Seeds = 1,
    results: Results = Path("suite.json"),
    profile: Annotated[
        Path | None, typer.Option(help="Draw performance profiles into this SVG file."), Writes()
    ] = None,
    over_time: Annotated[
        Path | None,
        typer.Option(help="Draw value and bound over time into this SVG file."),
        Writes(),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Run every placer on every problem of the suite.

    The table has performance profiles. An interrupted suite can be resumed.
    """
    from placewright.report.tables import profiles_table
    from placewright.session.parsing import parse_names
    from placewright.suites.suite.pictures import draw_over_time, draw_profiles, profiles, pyplot
    from placewright.suites.suite.runs import chosen_problems, suite_problems
    from placewright.suites.tarnawski import untrained_methods

    if profile is not None or over_time is not None:
        pyplot()  # a missing package ends the command before the long work
    chosen = chosen_problems(suite_problems(data), parse_names(problems) if problems else [])
    names = parse_names(placers) if placers else untrained_methods()
    rows = _suite_rows(request, chosen, names, seconds, results, range(seeds))
    if profile is not None:
        draw_profiles(rows, profile)
    if over_time is not None:
        draw_over_time(rows, over_time)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_shown(profiles_table(profiles(rows)))


@command("seed", *SPREAD, model=None)
def auto(
    request: Request,
    problems: Problems = "",
    placers: Annotated[
        str, typer.Option(help="Run these comma-separated placers instead of the usual rivals.")
    ] = "",
    seconds: Seconds = 20.0,
    results: Results = Path("auto.json"),
    as_json: opt.Json = False,
) -> None:
    """Compare `auto` with the best of the others on 24 problems.

    The second table has the figures that are promised of `auto`.
    """
    from placewright.report.tables import promises_table, rivals_table
    from placewright.session.parsing import parse_names
    from placewright.suites.suite.pictures import (
        AUTO,
        EXACT,
        RIVALS,
        comparisons,
        figures,
    )
    from placewright.suites.suite.runs import OF_AUTO, chosen_problems, suite_problems

    chosen = chosen_problems(suite_problems(), parse_names(problems) if problems else OF_AUTO)
    rivals = parse_names(placers) if placers else [*RIVALS, *EXACT]
    names = [AUTO, *(name for name in rivals if name != AUTO)]
    rows = _suite_rows(request, chosen, names, seconds, results, (request.seed,))
    compared = comparisons(rows)
    promised = figures(compared, len(chosen))
    if as_json:
        print_json(
            {
                "comparisons": [asdict(row) for row in compared],
                "figures": [asdict(figure) for figure in promised],
            }
        )
        return
    print_shown(rivals_table(compared))
    print_shown(promises_table(promised))


def _suite_rows(
    request: Request,
    problems: Sequence[SuiteProblem],
    placers: Sequence[str],
    seconds: float,
    results: Path,
    seeds: Sequence[int],
) -> list[SuiteRow]:
    """Run placers on problems, and print each row with the time left."""
    from placewright.suites.suite.runs import run_suite

    counted = Counted()

    def note(row: SuiteRow) -> None:
        value = row.status if math.isnan(row.value) else f"{row.value:.6g}"
        print_note(counted.numbered(f"{row.problem}, {row.placer}, seed {row.seed}: {value}"))

    with _workers(request, apart=True) as workers:  # a single one is another process, too
        return run_suite(
            problems,
            placers,
            seconds,
            results,
            seeds=seeds,
            on_row=note,
            on_ahead=counted.ahead,
            workers=workers,
        )


@plain_command
def llm_ab(
    data: Annotated[
        Path,
        typer.Option("--data", help="Read comparisons of language models from this JSON file."),
    ],
    results: Annotated[
        Path,
        _results("Write to this file, with our figures only."),
        Writes(),
    ] = Path("llm-ab.json"),
    as_json: opt.Json = False,
) -> None:
    """Predict published comparisons of placements of language models.

    The tables have predicted and measured speeds, winners, and the reason for each row left out.
    """
    from placewright.io.written import write_text
    from placewright.report.tables import (
        ab_engines,
        ab_left_out_table,
        ab_table,
        ab_winners,
        table,
    )
    from placewright.suites.llm_ab.documents import read_comparisons
    from placewright.suites.llm_ab.judging import judge_comparisons

    found = judge_comparisons(read_comparisons(data), on_row=print_note)
    document = found.data()
    write_text(results, json.dumps(document, indent=1) + "\n")
    if as_json:
        print_json(document)
        return
    print_shown(ab_table(found.rows, found.measured))
    print_shown(ab_left_out_table(found.rows))
    print_shown(table("Winners that were found", *ab_winners(document["rows"])))
    print_shown(table("Errors of speeds", *ab_engines(document["engines"])))


def report_of(results: Path, name: str) -> Path:
    """Path of a report beside the results file."""
    return results.with_name(f"{results.stem}-{name}.md")


def _reports_beside(results: Path) -> Iterable[Path]:
    """Files that `bench learned` may replace beside a results file, each of a number."""
    begin = len(f"{results.stem}-")
    found = results.parent.glob(report_of(Path(escape(results.name)), "*").name)
    return [path for path in found if path.stem[begin:].isdecimal()]


@command(*SPREAD, model=None)
def learned(
    request: Request,
    models: Annotated[
        str, typer.Option(help="Take these comma-separated zoo models; '' for none.")
    ] = "inception_v3,resnet50,bert_base,gnmt,rnnlm",
    clusters: Annotated[
        str, typer.Option(help="Take these comma-separated clusters of the catalogue.")
    ] = "2gpu",
    objectives: Annotated[
        str, typer.Option(help="Minimise these, comma-separated: latency, training.")
    ] = ("latency,training"),
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Add the workloads of this folder of Tarnawski, under latency/."
        ),
    ] = None,
    workloads: Annotated[
        str,
        typer.Option(
            help="Take the workloads with these comma-separated parts of names under latency/."
        ),
    ] = "",
    placers: Annotated[
        str,
        typer.Option(
            help="Run these comma-separated placers instead of all that learn while they search; "
            "NAME:key=value sets hyperparameters."
        ),
    ] = "",
    controls: Annotated[
        bool,
        typer.Option(help="Run the controls of each learner too, HEFT and local search."),
    ] = True,
    starts: Annotated[
        bool, typer.Option(help="Let all runs evaluate each single device first.")
    ] = True,
    evaluations: Annotated[
        int, typer.Option(help="Limit each run to N evaluations, those of single devices included.")
    ] = 500,
    seeds: Seeds = 10,
    results: Annotated[
        Path,
        _results("Write to this file; runs that it holds are not repeated."),
        Writes(_reports_beside),
    ] = Path("learned.json"),
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Compare learned placers with their controls.

    Writes a report beside --results.
    """
    from placewright.io.written import write_text
    from placewright.placers.registry import placers_that_learn
    from placewright.report.learned_statistics import report_text
    from placewright.session.comparison import settings_by_placer
    from placewright.session.parsing import parse_choice, parse_names, parse_objective
    from placewright.suites.learned import (
        read_runs,
        run_learned_benchmark,
        with_controls,
        workload_cases,
        zoo_cases,
    )

    if workloads and data is None:
        raise InputError("--workloads names workloads of a folder; give it as --data, too")
    require_folder(text := report_of(results, str(evaluations)))
    cases = []
    for objective in parse_names(objectives) if models else []:
        names = [name.removeprefix("zoo:") for name in parse_names(models)]
        goal = parse_objective(parse_choice(objective, "objectives", ("latency", "training")))
        cases += zoo_cases(names, parse_names(clusters), goal)
    if data is not None:
        cases += workload_cases(data, parse_names(workloads) if workloads else ())
    chosen = parse_names(placers) if placers else placers_that_learn()
    wanted = with_controls(chosen, controls=controls, starts=starts)
    with progress("learned", hidden=quiet or as_json) as report, _workers(request) as workers:
        runs = run_learned_benchmark(
            cases, wanted, evaluations, seeds, results, workers=workers, progress=report
        )
    all_runs = [run for run in read_runs(results) if run.evaluations == evaluations]
    settings = settings_by_placer(run.placer for run in all_runs)
    write_text(text, report_text(all_runs, evaluations, settings))
    print_note(f"wrote {text}")
    if as_json:
        print_json([asdict(run) for run in runs])
    else:
        print_line(report_text(runs, evaluations, settings))


def picture_of(results: Path, name: str) -> Path:
    """Path of the figure of a paper, beside the results file."""
    return results.with_name(f"{results.stem}-{name}.svg")


def _beside(results: Path) -> Iterable[Path]:
    """All files that `bench paper` may write beside a results file."""
    from placewright.suites.papers.suite import PAPERS

    for name in PAPERS:
        yield from (report_of(results, name), picture_of(results, name))
    yield picture_of(results, "placeto-unseen")


@command(*SPREAD, model=None)
def paper(
    request: Request,
    name: Annotated[
        str, typer.Argument(help="hsdag, liu2019, mirhoseini2017, mirhoseini2018, placeto or post.")
    ],
    seeds: Annotated[
        int, typer.Option(help="Runs of each placer at most; some stages make fewer.")
    ] = 5,
    unseen: Annotated[
        bool,
        typer.Option(
            help="placeto: also train on a family and place its unseen graphs. The report shows "
            "stored runs of these in any case."
        ),
    ] = True,
    run: Annotated[
        bool,
        typer.Option(help="--no-run writes report and figure from the rows of the results file."),
    ] = True,
    results: Annotated[
        Path,
        _results("Write to this file; runs that it holds are not repeated."),
        Writes(_beside),
    ] = Path("paper.json"),
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run the experiment of a paper.

    Shows the paper's figures, ours under its rules, and ours with equal budgets.
    Writes a report and a figure beside --results. For docs/results of the repository,
    `python -m benchmarks.result_pages` writes it with the origin of its rows.
    """
    from placewright.io.written import write_text
    from placewright.suites.learned import read_runs
    from placewright.suites.papers.report import draw_suite, draw_transfer, paper_text, unseen_rows
    from placewright.suites.papers.suite import paper_suite, run_suite

    experiment = paper_suite(name)
    with progress(f"paper {name}", hidden=quiet or as_json) as report:
        if run:
            with _workers(request) as workers:
                run_suite(experiment, results, seeds=seeds, workers=workers, progress=report)
        if run and unseen and name == "placeto":
            _run_unseen(results, report)
    stored, picture = read_runs(results), picture_of(results, "placeto-unseen")
    problems = {case.name for case in experiment.cases}
    rows = [row for row in stored if row.problem in problems]
    text = paper_text(experiment, stored, picture_of(results, name).name, picture.name)
    write_text(report_of(results, name), text)
    if name == "placeto" and (transferred := unseen_rows(stored)):
        draw_transfer(transferred, picture)
    draw_suite(experiment, rows, picture_of(results, name))
    print_note(f"wrote {report_of(results, name)} and {picture_of(results, name)}")
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print_line(text)


def _run_unseen(results: Path, report: Report) -> None:
    """Train policies on families of graphs, and place others of each family with them."""
    import platformdirs

    from placewright.suites.papers.generalisation import TransferRuns, run_transfer

    policies = Path(platformdirs.user_cache_dir("placewright")) / "policies"
    run_transfer(TransferRuns(), results, policies, report)
