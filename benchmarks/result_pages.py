"""Makes the pages of docs/results whose tables come from the rows beside them.

    python -m benchmarks.result_pages [docs/results]

Every number on these pages is computed here from a results file. Run it after a results file has
changed; a test compares the pages with what it makes.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy_report import AccuracyRow, summaries
from benchmarks.refusals import is_good
from placewright.core.quantities import format_bytes, format_duration
from placewright.report.markdown import markdown_table

Rows = Sequence[dict[str, Any]]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
_KIND_ORDER = ("all", "random", "heuristic", "near-best", "replicated")


@dataclass(frozen=True)
class Section:
    """One table of a page.

    Attributes:
        title: heading.
        file: results file, without its ending.
        command: that wrote the rows.
        text: what the columns mean.
        table: columns and cells from the content of the file.
        picture: SVG beside the results file, and its description.
    """

    title: str
    file: str
    command: str
    text: str
    table: Callable[[Any], Table]
    picture: tuple[str, str] | None = None


def page(title: str, folder: Path, sections: Sequence[Section]) -> str:
    """Markdown of one page."""
    parts = [f"# {title}", "`python -m benchmarks.result_pages` made this page from stored rows."]
    for section in sections:
        path = folder / f"{section.file}.json"
        document = json.loads(path.read_text())
        parts += [
            f"## {section.title}",
            section.text,
            f"Command: `{section.command}`. Rows: [{path.name}]({path.name}).",
            *_provenance(document),
            "\n".join(markdown_table(*section.table(document))),
        ]
        if section.picture is not None:
            name, description = section.picture
            parts.append(f"![{description}]({name})")
    return "\n\n".join(parts) + "\n"


def _provenance(document: Any) -> list[str]:
    """Machines, versions and dates, as far as the rows hold them."""
    rows = [document, *document.get("rows", [])]
    known = [
        dict.fromkeys(str(row[key]) for row in rows if row.get(key) and isinstance(row[key], str))
        for key in ("machine", "version", "date")
    ]
    names = ("Machine", "Version", "Date")
    shown = [
        f"{name}: {', '.join(values)}." for name, values in zip(names, known, strict=True) if values
    ]
    return [" ".join(shown)] if shown else []


def accuracy(document: Any) -> Table:
    """Errors of predictions, a line for each model and kind of placement."""
    rows = [
        AccuracyRow(**{**row, "visits": tuple(row.get("visits", ()))}) for row in document["rows"]
    ]
    found = sorted(summaries(rows), key=lambda s: (s.model, _KIND_ORDER.index(s.kind)))
    columns = ["model", "placements", "number", "median error", "95th percentile", "Kendall tau"]
    return columns, [
        [
            s.model.removeprefix("zoo:"),
            s.kind,
            str(s.placements),
            f"{s.median:.1%}",
            f"{s.p95:.1%}",
            "-" if s.tau != s.tau else f"{s.tau:.2f}",
        ]
        for s in found
    ]


def memory(document: Any) -> Table:
    """Predicted and measured peaks under a limit."""
    columns = ["model", "on one device", "limit of each"]
    columns += ["measured peaks (error of the prediction)", "samples in flight"]
    columns += ["segments", "outputs equal"]
    columns = [
        "model",
        "on one device",
        "limit of each",
        "measured peaks (error of the prediction)",
    ]
    columns += ["samples in flight", "segments", "outputs equal"]
    return columns, [
        [
            row["model"].removeprefix("zoo:"),
            format_bytes(row["whole"]),
            format_bytes(row["limit"]),
            ", ".join(
                f"{device} {format_bytes(peak)} ({row['predicted'][device] / peak - 1.0:+.1%})"
                for device, peak in row["measured"].items()
                if peak
            ),
            str(row.get("in_flight", "-")),
            str(row["segments"]),
            "yes" if row["equal"] else "NO",
        ]
        for row in document["rows"]
    ]


def enlarged(document: Any) -> Table:
    """Placers on a model that fits into no device."""
    columns = ["placer", "predicted", "evaluations", "measured", "peaks", "outputs equal"]
    return columns, [
        [
            f"`{row['placer']}`",
            _time(row["value"]),
            f"{row['evaluations']:,}",
            _time(row["measured"]),
            ", ".join(format_bytes(peak) for peak in row["peaks"]),
            "yes" if row["equal"] else "no",
        ]
        for row in document["rows"]
    ]


def equality_of_steps(document: Any) -> Table:
    """Random splits of training steps against the unsplit step."""
    columns = ["model", "equal", "largest relative error", "tolerance", "segments"]
    return columns, [
        [
            name.removeprefix("zoo:"),
            f"{row['equal']}/{row['placements']}",
            f"{row['largest_error']:.2g}",
            f"{row['tolerance']:.2g}",
            f"{row['fewest_segments']} to {row['most_segments']}",
        ]
        for name, row in document["models"].items()
    ]


def equality_of_streams(document: Any) -> Table:
    """Streams of samples against the library's own unsplit run."""
    columns = ["model", "runtime", "samples", "equal", "largest error", "segments", "under way"]
    return columns, [
        [
            row["model"].removeprefix("zoo:"),
            row["runtime"],
            f"{row['samples']:,}",
            row["message"] or ("yes" if row["largest_error"] <= row["tolerance"] else "NO"),
            f"{row['largest_error']:.2g}",
            str(row["segments"]),
            str(row["under_way"] or "-"),
        ]
        for row in document["rows"]
    ]


def auto_and_others(document: Any) -> Table:
    """`auto` and the best of the other placers on each problem."""
    columns = ["problem", "`auto`, ms", "gap", "best other", "`auto` / it", "others", "load"]
    lines = []
    for problem in dict.fromkeys(row["problem"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["problem"] == problem and row["value"]]
        mine = next(row for row in rows if row["placer"] == "auto")
        others = [row for row in rows if row["placer"] != "auto"]
        best = min(others, key=lambda row: row["value"])
        lines.append([
            problem,
            f"{mine['value'] * 1e3:.4g}",
            _gap(mine["value"], mine["bound"]),
            f"`{best['placer']}`",
            f"{mine['value'] / best['value']:.3f}",
            str(len(others)),
            f"{max(row['load'] for row in (mine, *others)):.1f}",
        ])  # fmt: skip
    return columns, lines


def gaps(document: Any) -> Table:
    """Values and bounds of `auto`; of a problem with several rows the one with the best value."""
    columns = ["problem", "units", "`auto`, ms", "gap", "seconds", "peak memory", "load"]
    return columns, [
        [
            row["problem"],
            f"{row['units']:,}",
            f"{row['value'] * 1e3:.4g}",
            "optimal" if row["status"] == "optimal" else _gap(row["value"], row["bound"]),
            f"{row['seconds']:.0f}",
            format_bytes(row["peak_bytes"]),
            f"{row['load']:.1f}",
        ]
        for row in _best_rows(document["rows"])
    ]


def _best_rows(rows: Rows) -> list[dict[str, Any]]:
    best: dict[str, dict[str, Any]] = {}
    for row in (row for row in rows if row["value"]):
        before = best.get(row["problem"])
        if before is None or row["value"] / row["bound"] < before["value"] / before["bound"]:
            best[row["problem"]] = row
    return list(best.values())


def gap_causes(document: Any) -> Table:
    """Gap, and its two parts: order and waiting, fractions of the relaxation."""
    columns = ["problem", "`auto`, ms", "gap", "order and waiting", "fractions"]
    return columns, [
        [
            row["problem"],
            f"{row['value'] * 1e3:.4g}",
            f"{row['gap']:.1%}",
            f"{row['value'] / row['fixed'] - 1.0:.1%}",
            f"{row['fixed'] / row['relaxed'] - 1.0:.1%}",
        ]
        for row in document["rows"]
    ]


def zero_shot(document: Any) -> Table:
    """`zero-shot` on models that it was not trained on."""
    columns = ["problem", "`zero-shot`, ms", "`local-search`, ms", "ratio", "policy alone"]
    columns += ["earliest finish alone", "core-seconds"]
    return columns, [
        [
            row["problem"],
            f"{row['value'] * 1e3:.3f}",
            f"{row['local_search'] * 1e3:.3f}",
            f"{row['ratio']:.3f}",
            f"{row['greedy'] / row['local_search']:.3f}",
            f"{row['earliest'] / row['local_search']:.3f}",
            f"{row['seconds']:.1f}",
        ]
        for row in document["rows"]
    ]


def workers(document: Any) -> Table:
    """Seconds of the same runs with one worker and with two."""
    columns = ["workers", "runs", "one worker", "two workers", "speed-up", "same answers"]
    return columns, [
        [
            row["kind"],
            str(row["runs"]),
            f"{statistics.median(row['one']):.1f} s",
            f"{statistics.median(row['two']):.1f} s",
            f"{statistics.median(row['one']) / statistics.median(row['two']):.2f}",
            "yes" if row["equal"] else "NO",
        ]
        for row in document["rows"]
    ]


def hosts(document: Any) -> Table:
    """Costs of one model that two hosts measured."""
    columns = ["model", "runtime", "units", "here", "there", "scatter here", "apart"]
    return columns, [
        [
            row["model"].removeprefix("zoo:"),
            row["runtime"],
            str(row["units"]),
            _time(statistics.median(row["here"])),
            _time(statistics.median(row["there"])),
            f"{row['scatter']:.1%}",
            f"{row['apart']:.1%}",
        ]
        for row in document["rows"]
    ]


def proofs(document: Any) -> Table:
    """Claims of each method against brute force."""
    columns = ["execution model", "method", "problems", "optimal", "proved infeasible"]
    columns += ["share optimal", "faults"]
    return columns, [
        [
            model if number == 0 else "",
            method,
            f"{row['problems']:,}",
            f"{row.get('optimal', 0):,}",
            f"{row.get('infeasible', 0):,}",
            f"{row['share optimal']:.1%}",
            str(len(part["faults"])) if number == 0 else "",
        ]
        for model, part in document["problems"].items()
        for number, (method, row) in enumerate(part["methods"].items())
    ]


def mutations(document: Any) -> Table:
    """Implications that were broken, and the problems until a false claim was seen."""
    columns = ["broken implication", "execution model", "problems until seen"]
    return columns, [
        [name, row["execution model"], str(row["problems"]) if row["seen by"] else "not seen"]
        for name, row in document["mutations"].items()
    ]


def kernel(document: Any) -> Table:
    """Speed of the event kernel."""
    columns = ["ops", "devices", "edges per op", "ops per second", "one evaluation"]
    columns += ["times plain Python", "process memory"]
    return columns, [
        [
            f"{row['ops']:,}",
            str(row["devices"]),
            f"{row['edges'] / row['ops']:.2f}",
            f"{row['ops_per_second'] / 1e6:.1f} million",
            _time(row["seconds"]),
            f"{row['times_plain_python']:.0f}" if row["times_plain_python"] else "-",
            format_bytes(row["process_bytes"]),
        ]
        for row in document["rows"]
    ]


def serving(document: Any) -> Table:
    """Milliseconds of a call of a loaded plan."""
    columns = ["model", "runtime", "plain model", "loaded plan, unsplit", "unsplit minus plain"]
    columns += ["split", "cuts", "per cut"]
    return columns, [
        [
            row["model"].removeprefix("zoo:"),
            row["runtime"],
            f"{row['plain']:.3f} ms",
            f"{row['unsplit']:.3f} ms",
            f"{row['unsplit_above']:+.3f} ms",
            f"{row['split']:.3f} ms",
            str(row["cuts"]),
            f"{row['split_above_per_cut']:.3f} ms",
        ]
        for row in document["rows"]
    ]


def report_page(document: Any) -> Table:
    """Size and speed of the report page."""
    columns = ["ops", "size", "write (CPU)", "open", "draw while panning", "what-if move"]
    return columns, [
        [
            f"{row['ops']:,}",
            format_bytes(row["bytes"]),
            f"{row['write_cpu_s']:.1f} s",
            f"{row['open_s']:.1f} s",
            f"{row['pan_timeline_draw_ms']:.1f} ms",
            f"{row['what_if_ms']:.0f} ms",
        ]
        for row in document["rows"]
    ]


def fuzz(document: Any) -> Table:
    """Mutated files of each format."""
    columns = ["format", "inputs", "read", "refused", "anything else"]
    return columns, [
        [
            name,
            f"{row['inputs']:,}",
            f"{row['read']:,}",
            f"{row['refused']:,}",
            str(row["inputs"] - row["read"] - row["refused"]),
        ]
        for name, row in document.items()
    ]


def refusals(document: Any) -> Table:
    """Files made to do harm, in one line."""
    rows = document["rows"]
    columns = ["files", "refused so", "slowest", "most memory beyond imports"]
    good = sum(map(is_good, rows))
    slowest = max(row["seconds"] for row in rows)
    most = max(row["kibibytes"] for row in rows) * 1024
    return columns, [[str(len(rows)), str(good), _time(slowest), format_bytes(most)]]


def kill_sweep(document: Any) -> Table:
    """Signals at random moments."""
    columns = ["command", "trials", "SIGINT", "SIGTERM", "SIGKILL", "after its end", "faults"]
    trials = [(name.split(" seed")[0], row) for name, row in document.items()]
    lines = []
    for command in dict.fromkeys(name for name, _ in trials):
        rows = [row for name, row in trials if name == command]
        at_work = Counter(row["signal"] for row in rows if row["code"] != 0)
        lines.append([
            f"`{command}`",
            str(len(rows)),
            *(str(at_work[name]) for name in ("SIGINT", "SIGTERM", "SIGKILL")),
            str(len(rows) - at_work.total()),
            str(sum(len(row["faults"]) for row in rows)),
        ])  # fmt: skip
    return columns, lines


def endurance(document: Any) -> Table:
    """One process that runs and places for an hour."""
    columns = ["minutes", "runs", "placements", "growth of memory", "of its peak"]
    columns += ["more handles", "more threads"]
    return columns, [
        [
            f"{document['minutes']:.0f}",
            f"{document['runs']:,}",
            f"{document['placements']:,}",
            f"{document['memory_growth']:+.1%}",
            f"{document['peak_growth']:+.1%}",
            str(document["more_handles"]),
            str(document["more_threads"]),
        ]
    ]


def install(document: Any) -> Table:
    """Seconds of the steps of somebody who has only the wheel."""
    return ["step", "seconds"], [[name, f"{value:.1f}"] for name, value in document.items()]


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def _gap(value: float, bound: float) -> str:
    return f"{value / bound - 1.0:.1%}" if bound else "-"


PAGES: dict[str, tuple[str, tuple[Section, ...]]] = {
    "accuracy": ("Predicted and measured time", (
        Section(
            "One sample", "accuracy",
            "python -m benchmarks.accuracy --results docs/results/accuracy.json",
            "Latency of placements that calibration did not see. The error is "
            "|predicted / measured - 1|. Kendall's tau compares the two rankings, over pairs of "
            "placements that differ by more than their noise.",
            accuracy, ("accuracy.svg", "Predicted against measured time of one sample"),
        ),
        Section(
            "A stream of samples", "accuracy-streams",
            "python -m benchmarks.accuracy --objective throughput "
            "--results docs/results/accuracy-streams.json",
            "Seconds per sample of played streams and of streams on two cores. "
            "*Replicated* is the unsplit model on both cores in turns.",
            accuracy,
        ),
        Section(
            "A training step", "accuracy-training",
            "python -m benchmarks.accuracy --objective training --devices cpu:0,cpu:1 "
            "--placements 20",
            "Seconds of a training step. Each placement had few rounds on a noisy machine.",
            accuracy,
        ),
        Section(
            "Two hosts", "hosts-costs", "python -m benchmarks.hosts",
            "Seconds of the whole model by the costs that two hosts measured, medians.",
            hosts,
        ),
    )),
    "memory": ("Memory under a limit", (
        Section(
            "Training steps", "memory-training",
            "python -m benchmarks.memory --models zoo:MODEL",
            "Each of two devices gets 60 % of the bytes that the whole step takes on one device. "
            "The percentage is the error of the predicted peak.",
            memory,
        ),
        Section(
            "Streams of samples", "memory-streams",
            "python -m benchmarks.memory --objective throughput --models zoo:MODEL",
            "Each of two cores gets 60 % of the bytes that the stream of the whole model takes.",
            memory,
        ),
        Section(
            "A model that fits into no device", "enlarged", "python -m benchmarks.enlarged",
            "RNNLM with enlarged weights, on two cores with a limit each.",
            enlarged,
        ),
    )),
    "equality": ("Equal outputs", (
        Section(
            "Training steps", "equality-training",
            "python -m benchmarks.equality MODEL --objective training --runtime torch "
            "--devices cpu:0,cpu:1 --placements 3",
            "The loss and every updated tensor of random splits, compared with the unsplit step.",
            equality_of_steps,
        ),
        Section(
            "Streams of samples", "stream-equality",
            "python -m benchmarks.stream_equality --results FILE",
            "Different samples through a random split over two cores, three in flight. The "
            "outputs of every sample are compared with the library's own unsplit run. Rows "
            "without a number under way are older than that count.",
            equality_of_streams,
        ),
    )),
    "search": ("Search and bounds", (
        Section(
            "`auto` and the other placers", "auto", "placewright bench auto",
            "20 seconds for each placer, one seed. The gap is what `auto` had proved by then. "
            "The load is the highest number of processes that wanted to run on the two cores.",
            auto_and_others,
        ),
        Section(
            "Gaps", "gaps",
            "placewright bench suite --placers auto --seconds 60 --results docs/results/gaps.json",
            "Value of `auto`, and its distance from the lower bound. If there are several runs "
            "of a problem, the table has the one with the smallest gap.",
            gaps,
        ),
        Section(
            "Causes of gaps", "gap-causes", "python -m benchmarks.gap_causes",
            "The linear relaxation with the placement that was found separates two causes. It "
            "cannot see order and waiting. Its fractions hide transfers, because a unit that is "
            "half on each device pays none.",
            gap_causes,
        ),
        Section(
            "`zero-shot` on unseen models", "zero-shot", "python -m benchmarks.zero_shot",
            "Ten evaluations of `zero-shot`, compared with 2,000 of `local-search`.",
            zero_shot,
        ),
        Section(
            "Workers", "workers", "python -m benchmarks.workers",
            "The same runs with one worker and with two, median of three.",
            workers,
        ),
    )),
    "proofs": ("Proofs against brute force", (
        Section(
            "Claims", "proofs", "make fuzz-proofs",
            "Every bound and status that a method claims on random small problems, compared with "
            "brute force. The share counts the problems that have a placement.",
            proofs,
        ),
        Section(
            "Broken implications", "proofs", "make fuzz-proofs PROOFS='--mutations 150'",
            "Each row breaks one rule that a bound rests on, and counts problems until the "
            "comparison notices a false claim.",
            mutations,
        ),
    )),
    "speed": ("Speed of the program", (
        Section(
            "Event simulator", "kernel",
            "python -m benchmarks.kernel --results docs/results/kernel.json",
            "Random placements on one core, compared with a plain-Python simulator that gives "
            "the same values.",
            kernel, ("kernel.svg", "Ops per second against the number of ops"),
        ),
        Section(
            "A call of a loaded plan", "serving", "python -m benchmarks.serving",
            "Medians of rounds in which all ways take turns. The split alternates between two "
            "cores. *Per cut* is the split, minus unsplit, minus the copies, over the cuts.",
            serving,
        ),
        Section(
            "Report page", "report-page", "python -m benchmarks.measure_report_page",
            "Drawn by a browser without a display.",
            report_page,
        ),
    )),
    "robustness": ("Robustness", (
        Section(
            "Mutated files", "fuzz", "make fuzz",
            "Files of each format with random changes. Anything else would be an exception of "
            "another type, a crash, a hang, a file that was written, or a new process.",
            fuzz,
        ),
        Section(
            "Files made to do harm", "refusals", "python -m benchmarks.refusals",
            "Each file is given to a command of its own, which must refuse it in one line of at "
            "most 300 characters, within 5 s and 1 GiB.",
            refusals,
        ),
        Section(
            "The same with an early version", "refusals-a6355c6", "python -m benchmarks.refusals",
            "The files that were known at commit a6355c6, with the code of that commit.",
            refusals,
        ),
        Section(
            "Killed commands", "kill-sweep", "python -m benchmarks.kill_sweep",
            "Signals at random moments. A fault is a damaged or lost file, a process that goes "
            "on, or a command that fails when it is run again.",
            kill_sweep,
        ),
        Section(
            "An hour of runs and placements", "endurance", "python -m benchmarks.endurance",
            "Growth compares the highest values of the second half with those of the second "
            "quarter.",
            endurance,
        ),
        Section(
            "First minutes outside the repository", "install-outside",
            "pytest -m slow tests/test_outside_the_repository.py",
            "With a wheel, in an empty folder.",
            install,
        ),
    )),
}  # fmt: skip


def pages(folder: Path) -> dict[str, str]:
    """Name and Markdown of each page that is made from rows in `folder`."""
    return {f"{name}.md": page(title, folder, parts) for name, (title, parts) in PAGES.items()}


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0]) if arguments else Path("docs/results")
    for name, text in pages(folder).items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
