"""Tables of the result pages, each from the content of one results file."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.accuracy_report import AccuracyRow, summaries
from benchmarks.refusals import is_good
from placewright.core.quantities import format_bytes, format_duration
from placewright.report import tables as shown

Rows = Sequence[dict[str, Any]]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]  # columns, cells of each row
_KIND_ORDER = ("all", "random", "heuristic", "near-best", "replicated")


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
    """Values and bounds of `auto` on our own problems; the row with the smallest gap of each."""
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
        if row["kind"] != "tarnawski"
    ]


def workload_gaps(document: Any) -> Table:
    """The same on the workloads of Tarnawski et al., which count in ms."""
    columns = ["workload", "`auto`, ms", "bound, ms", "gap", "seconds"]
    return columns, [
        [
            row["problem"].removeprefix("tarnawski "),
            f"{row['value']:.2f}",
            f"{row['bound']:.2f}",
            "optimal" if row["status"] == "optimal" else _gap(row["value"], row["bound"]),
            f"{row['seconds']:.0f}",
        ]
        for row in _best_rows(document["rows"])
        if row["kind"] == "tarnawski"
    ]


def workloads(document: Any, objective: str) -> Table:
    """Values of every method on every workload of one objective, and the best bound."""
    rows = [row for row in document["rows"] if row["workload"].startswith(objective)]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        found = {row["method"]: row for row in rows if row["workload"] == workload}
        values = [found.get(method, {"status": "", "value": None}) for method in methods]
        lines.append([
            workload.removeprefix(f"{objective}/"),
            *("-" if row["value"] is None else f"{row['value']:.2f}" for row in values),
            f"{max(row['bound'] for row in found.values()):.2f}",
        ])  # fmt: skip
    return ["workload", *(f"`{method}`" for method in methods), "bound"], lines


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


def replays(document: Any) -> Table:
    """Errors under each rule about copies, of plans that others measured."""
    columns = ["measurements", "use", "plans", "copies occupy", "median error", "lowest"]
    columns += ["highest", "split or not: right", "wrong", "close"]
    return columns, [
        [
            row["title"],
            row["use"],
            str(row["plans"]),
            f"{rule} (chosen)" if rule == document["rule"] else rule,
            f"{found['median']:.1%}",
            f"{found['low']:+.1%}",
            f"{found['high']:+.1%}",
            *(str(found["decisions"][verdict]) for verdict in ("right", "wrong", "close")),
        ]
        for row in document["rows"]
        for rule, found in row["rules"].items()
    ]


def groups_of_replays(document: Any) -> Table:
    """Errors under the chosen rule, by model, CPU threads and kind of plan."""
    columns = ["measurements", "group", "plans", "median error", "lowest", "highest"]
    return columns, [
        [
            row["title"],
            f"{label} {value}",
            str(found["plans"]),
            f"{found['median']:.1%}",
            f"{found['low']:+.1%}",
            f"{found['high']:+.1%}",
        ]
        for row in document["rows"]
        if row["use"] != "other data of the first"
        for label, groups in row["groups"].items()
        for value, found in groups.items()
    ]


def replays_held_out(document: Any) -> Table:
    """Errors of each model under the rule that the other models choose."""
    columns = ["model", "copies occupy, by the others", "plans", "median error", "lowest"]
    rows = [[row["model"], row["rule"], *_errors(row["errors"])] for row in document["held_out"]]
    together = [error for row in document["held_out"] for error in row["errors"]]
    return [*columns, "highest"], [*rows, ["all", "", *_errors(together)]]


def _errors(errors: list[float]) -> list[str]:
    """Number, median of the amounts, lowest and highest."""
    middle = statistics.median(map(abs, errors))
    return [str(len(errors)), f"{middle:.1%}", f"{min(errors):+.1%}", f"{max(errors):+.1%}"]


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


def shares_of_zero_shot(document: Any) -> Table:
    """How often `zero-shot` comes close to local search."""
    from scipy.stats import wilcoxon

    columns = ["compared", "problems", "within 10 %", "faster", "equal", "slower"]
    columns += ["median ratio", "largest ratio", "p"]
    lines = []
    for named, mine, other in (
        ("`zero-shot`, `local-search`", "value", "local_search"),
        ("policy alone, earliest finish alone", "greedy", "earliest"),
    ):
        ratios = [row[mine] / row[other] for row in document["rows"]]
        shares = [sum(found) for found in zip(*(_order(ratio) for ratio in ratios), strict=True)]
        p = wilcoxon([math.log(ratio) for ratio in ratios]).pvalue
        lines.append(
            [
                named,
                str(len(ratios)),
                str(sum(ratio <= 1.1 for ratio in ratios)),
                *(str(count) for count in shares),
                f"{statistics.median(ratios):.3f}",
                f"{max(ratios):.3f}",
                f"{p:.2g}",
            ]
        )
    return columns, lines


def _order(ratio: float) -> tuple[bool, bool, bool]:
    """Below, equal to and above 1."""
    is_equal = abs(ratio - 1.0) < 1e-9
    return ratio < 1.0 and not is_equal, is_equal, ratio > 1.0 and not is_equal


def toys(document: Any) -> Table:
    """Grouper and placer on two toys, a line for each setting."""
    columns = ["settings", "runs", "learned", "median share", "ladders: found"]
    columns += ["median evaluations"]
    lines = []
    for placer in sorted(dict.fromkeys(row["placer"] for row in document["rows"])):
        rows = [row for row in document["rows"] if row["placer"] == placer]
        found = [row["found"] for row in rows if row["found"]]
        lines.append([
            f"`{placer}`",
            str(len(rows)),
            str(sum(row["share"] > 0.95 for row in rows)),
            f"{statistics.median(row['share'] for row in rows):.2f}",
            str(len(found)),
            f"{statistics.median(found):,.0f}" if found else "-",
        ])  # fmt: skip
    return columns, lines


def untrained(document: Any) -> Table:
    """The first policy of Placeto, before any update."""
    columns = ["problem", "aggregation", "groups", "median entropy", "largest logit"]
    return columns, [
        [
            row["problem"],
            f"`{row['aggregation']}`",
            str(row["groups"]),
            f"{statistics.median(row['entropies']):.3f}",
            f"{row['largest_logit']:.2f}",
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


def auto_with_workers(document: Any) -> Table:
    """Values of `auto` in one process and with workers, and their ratio, by limit of seconds."""
    values: dict[tuple[str, float], dict[int, Any]] = {}
    for row in document["rows"]:
        values.setdefault((row["problem"], row["seconds"]), {})[row["workers"]] = row
    lines: list[list[str]] = []
    for limit in sorted({seconds for _, seconds in values}):
        ratios = []
        told = f"{limit:g}" if limit else "no limit"
        for (problem, seconds), rows in values.items():
            if seconds != limit or len(rows) < 2:
                continue
            alone, spread = rows[0], rows[max(rows)]
            ratios.append(spread["value"] / alone["value"])
            lines.append(
                [
                    problem,
                    told,
                    f"{alone['value'] * 1e3:.4g} ms ({alone['status']})",
                    f"{spread['value'] * 1e3:.4g} ms ({spread['status']})",
                    f"{ratios[-1]:.4f}",
                ]
            )
        lines.append(["median", told, "", "", f"{statistics.median(ratios):.4f}"])
        lines.append(["largest", told, "", "", f"{max(ratios):.4f}"])
    return ["problem", "seconds", "one process", "two workers", "ratio"], lines


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


def feature_shares(document: Any) -> Table:
    """Problems whose best value each feature changes."""
    shares = {model: part["shares"] for model, part in document["changes"].items()}
    names = sorted({name for part in shares.values() for name in part})
    return ["feature", *shares], [
        [name, *(f"{part[name]:.1%}" if name in part else "-" for part in shares.values())]
        for name in names
    ]


def simulator(document: Any) -> Table:
    """Values, verdicts and peaks of the simulator against the plain references."""
    columns = ["execution model", "problems", "placements", "feasible", "differences"]
    return columns, [
        [
            model,
            *(f"{row[name]:,}" for name in ("problems", "placements", "feasible")),
            str(len(row["faults"])),
        ]
        for model, row in document["simulator"].items()
    ]


def one_pool(document: Any) -> Table:
    """Memory of a process whose cores share a pool."""
    columns = ["runtime", "ops of each core", "one copy of the weights", "limit of the pool"]
    columns += ["predicted", "after loading", "after five runs", "peak while loading"]
    sizes = ("weights", "limit", "predicted", "loaded", "ran", "compiling")
    return columns, [
        [
            row["runtime"],
            ", ".join(f"{count} on {name}" for name, count in row["ops"].items()),
            *(format_bytes(row[name]) for name in sizes),
        ]
        for row in document["rows"]
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


def training_loops(document: Any) -> Table:
    """Samples per second of training loops, and who is fastest on two cores."""
    names = {"plain": "PyTorch's loop", "split": "the split plan", "ddp": "DDP"}
    columns = [
        "model",
        "PyTorch, one core",
        "plan, one core",
        "plan minus PyTorch (processor time)",
    ]
    columns += ["PyTorch, two cores", "split plan", "DDP", "fastest on two cores", "load", "growth"]

    def rate(milliseconds: float) -> str:
        return f"{8e3 / milliseconds:.0f}/s"

    return columns, [
        [
            row["model"],
            rate(row["plain"]),
            rate(row["unsplit"]),
            f"{row['unsplit_above_cpu']:+.2f} ms",
            rate(row["plain_two"]),
            f"{rate(row['split'])} in {row['segments']} segments",
            rate(row["ddp"]),
            f"{names[row['winner']]}, in {row['wins']:.0%} of rounds",
            f"{row['load']:.0f}",
            f"{row['growth'] / 2**20:+.1f} MiB in {row['calls']:,} steps",
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


def language_models(document: Any) -> Table:
    """Placements that the engine ran: places, tokens, buffers, and predicted over measured."""
    columns = ["model", "placement", "layers on cpu, rpc:0, rpc:1", "places", "tokens equal"]
    columns += ["buffers, estimated / printed", "prefill, predicted / measured", "decode"]
    lines = []
    for row in document["rows"]:
        plan, memory = row["contenders"]["plan"], row["memory"].values()
        ratios = [of["buffers"] / of["printed_buffers"] for of in memory if of["printed_buffers"]]
        tokens = [each["equal"] for each in row["equal_tokens"]]
        lines.append([
            row["model"],
            row["key"].split()[-1],
            " ".join(str(row["attention_on"].count(name)) for name in ("cpu", "rpc:0", "rpc:1")),
            "equal" if not row["place_faults"] else f"{len(row['place_faults'])} differ",
            f"{sum(tokens)} of {sum(each['compared'] for each in row['equal_tokens'])}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            *(f"{plan[of]['predicted'] / plan[of]['median']:.2f}" for of in ("prefill", "decode")),
        ])  # fmt: skip
    return columns, lines


def decoders(document: Any) -> Table:
    """Decoders in splits under memory limits: units, tokens, and errors of predictions."""
    columns = ["decoder", "runtime", "processor", "units", "large products", "placements"]
    columns += ["tokens equal PyTorch's", "the unsplit plan's", "segments", "measured", "unsplit"]
    columns += ["median error", "largest", "at a steady speed", "of the ratio"]
    of_decoder: dict[tuple[str, ...], list[Any]] = {}
    for row in document["rows"]:
        name = f"{row['model']}, {row['layers']} layers of width {row['width']}"
        family, model, processor, *_ = (*str(row["machine"]).split("; "), "", "", "")
        processor = f"{processor} ({family}, {model})"
        of_decoder.setdefault((name, row["runtime"], processor), []).append(row)
    lines = []
    for own, rows in of_decoder.items():
        errors = [abs(row["predicted"] / row["measured"] - 1.0) for row in rows]
        of_ratio = [
            abs(row["predicted"] / row["measured"] * row["unsplit"] / row["predicted_unsplit"] - 1)
            for row in rows
        ]
        before = [row.get("unsplit_before") for row in rows]
        steady = [
            abs(row["predicted"] / row["measured"] * row["unsplit"] / then - 1)
            for row, then in zip(rows, before, strict=True)
            if then is not None
        ]
        segments = [row["segments"] for row in rows]
        unsplit = [row["unsplit"] for row in rows]
        lines.append([
            *own,
            str(rows[0]["units"]),
            str(rows[0]["products"]),
            str(len(rows)),
            str(sum(row["equal"] for row in rows)),
            _counted([row.get("as_unsplit") for row in rows]),
            f"{min(segments)} to {max(segments)}",
            format_duration(statistics.median(row["measured"] for row in rows)),
            f"{format_duration(min(unsplit))} to {format_duration(max(unsplit))}",
            f"{statistics.median(errors):.1%}",
            f"{max(errors):.1%}",
            f"{statistics.median(steady):.1%}" if steady else "-",
            f"{statistics.median(of_ratio):.1%}",
        ])  # fmt: skip
    return columns, lines


def _counted(values: list[bool | None]) -> str:
    """How many are true; a dash if none is known."""
    known = [value for value in values if value is not None]
    return str(sum(known)) if known else "-"


def distilp(document: Any) -> Table:
    """Inputs of DistilP: seconds of a token in its answers and in ours."""
    columns = ["input", "layers", "DistilP, one round", "layers of each machine", "ours", "bound"]
    columns += ["layers of each machine", "of these in memory", "search", "DistilP's best, rounds"]
    lines = []
    for row in document["rows"]:
        counts = [
            " ".join(map(str, row[name])) for name in ("their_layers", "our_layers", "resident")
        ]
        lines.append(
            [
                row["name"],
                str(row["layers"]),
                f"{row['one_round']:.4f} s",
                counts[0],
                f"{row['value']:.4f} s",
                f"{row['lower_bound']:.4f} s ({row['status']})",
                *counts[1:],
                format_duration(row["search_seconds"]),
                f"{row['best']:.4f} s, {row['best_rounds']}",
            ]
        )
    return columns, lines


def language_errors(document: Any) -> Table:
    """Median errors over the placements of each model."""
    columns = ["model", "placements", "places equal", "tokens equal in all prompts"]
    for phase in ("prefill", "decode"):
        columns += [f"{phase}, median error", "rounds differ by"]
    lines = []
    for name in dict.fromkeys(row["model"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["model"] == name]
        shown = []
        for phase in ("prefill", "decode"):
            plans = [row["contenders"]["plan"][phase] for row in rows]
            errors = [abs(of["predicted"] / of["median"] - 1.0) for of in plans]
            spread = [max(of["seconds"]) / min(of["seconds"]) - 1.0 for of in plans]
            shown += [f"{statistics.median(errors):.0%}", f"{statistics.median(spread):.0%}"]
        lines.append([
            name,
            str(len(rows)),
            str(sum(not row["place_faults"] for row in rows)),
            str(sum(all(x["equal"] == x["compared"] for x in row["equal_tokens"]) for row in rows)),
            *shown,
        ])  # fmt: skip
    return columns, lines


def language_contenders(document: Any) -> Table:
    """Plans within limits beside simpler ways, in seconds of the request."""
    columns = ["model", "contender", "prefill", "decode", "together", "predicted / measured"]
    lines = []
    for row in document["rows"]:
        if len(row["contenders"]) < 2:
            continue
        for name, phases in row["contenders"].items():
            total = sum(of["median"] for of in phases.values())
            predicted = [of["predicted"] for of in phases.values()]
            ratio = "-" if None in predicted else f"{sum(predicted) / total:.2f}"
            times = [format_duration(of["median"]) for of in phases.values()]
            lines.append([row["model"], name, *times, format_duration(total), ratio])
    return columns, lines


def language_readings(document: Any) -> Table:
    """Configurations that were read: seconds, memory, parameters."""
    columns = ["configuration", "kind", "parameters", "by transformers", "cache of a token, f16"]
    columns += ["seconds", "peak memory"]
    return columns, [
        [
            row["configuration"],
            row["kind"],
            f"{row['parameters']:,}",
            "equal" if row["parameters"] == row["counted"] else f"{row['counted']:,}",
            format_bytes(row["cache_bytes_per_token"]),
            f"{row['seconds']:.1f}",
            format_bytes(row["peak"]),
        ]
        for row in document["readings"]
    ]


def language_plans(document: Any) -> Table:
    """Plans of large models: seconds, memory, proven gap."""
    columns = ["model", "options of `place`", "seconds of the search", "in all", "peak memory"]
    columns += ["request", "proven gap"]
    return columns, [
        [
            row["model"],
            f"`{row['words']}`",
            f"{row['search_seconds']:.1f}",
            f"{row['seconds']:.1f}",
            format_bytes(row["peak"]),
            format_duration(row["value"]),
            _gap(row["value"], row["lower_bound"]),
        ]
        for row in document["plans"]
    ]


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def _gap(value: float, bound: float) -> str:
    return f"{value / bound - 1.0:.1%}" if bound else "-"


def ab_winners(document: Any) -> Table:
    """Winners of published comparisons that rules find."""
    return shown.ab_winners(document["rows"])


def ab_engines(document: Any) -> Table:
    """Errors of predicted speeds, a line for each engine."""
    return shown.ab_engines(document["engines"])


def ab_rows(document: Any) -> Table:
    """Predicted speeds of scored comparisons."""
    columns = [
        "comparison",
        "engine",
        "predicted",
        "winner",
        "error of ratios",
        "best found",
        "limit",
    ]
    return columns, [
        [
            row["id"],
            row["engine"],
            ", ".join(
                f"{key} {rate:.4g}"
                for key, rate in sorted(row["predicted"].items(), key=lambda each: -each[1])
            ),
            ("right" if row["right"] else "wrong") if row["differs"] else "differ too little",
            f"{row['ratio_error']:.2f}",
            *("-" if row[name] is None else f"{row[name]:.4g}" for name in ("optimum", "bound")),
        ]
        for row in document["rows"]
        if not row["reason"]
    ]


def ab_left_out(document: Any) -> Table:
    """Comparisons that the model cannot express."""
    left_out = [[row["id"], row["reason"]] for row in document["rows"] if row["reason"]]
    return ["comparison", "reason"], left_out
