"""The commands `devices`, with its catalogue, `graph`, `profile` and `placers`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placewright.cli import options as opt
from placewright.cli.command import command, plain_command
from placewright.cli.output import (
    print_json,
    print_line,
    print_lines,
    print_note,
    print_table,
    progress,
)
from placewright.errors import FieldError, InputError
from placewright.session.request import PROFILED, READ, Request

if TYPE_CHECKING:
    from placewright.core.cluster import Cluster, Device
    from placewright.profiling.catalogue import CatalogueDevice, CatalogueLink, Listing
    from placewright.report.time_left import Report, Steps
    from placewright.session.problems import OpListing

_RATES = ("f32", "f16", "bf16", "i8")
DEVICE_COLUMNS = ("device", "memory", "bandwidth", *_RATES, "made as")
LINK_COLUMNS = ("link", "bandwidth", "latency")
CLUSTER_COLUMNS = ("cluster", "devices")
HOW_TO_NAME = (
    "A language model takes --devices rtx-4090,cpu, other models take "
    "--devices catalogue:gpu-rtx-4090,cpu-desktop or a cluster as --devices catalogue:4gpu.",
    "f32, f16, bf16 and i8 are peaks of dense products in TFLOPS, or TOPS for integers.",
)


def print_catalogue(pattern: str, as_json: bool) -> None:
    """Print the entries of the catalogue that match a pattern.

    Raises:
        UnknownNameError: there is none; the message has near names.
    """
    from placewright.profiling.catalogue import listing

    found = listing(pattern)
    if as_json:
        print_json(_data(found))
        return
    tables = (
        (DEVICE_COLUMNS, [device_row(device) for device in found.devices]),
        (LINK_COLUMNS, [link_row(link) for link in found.links]),
        (CLUSTER_COLUMNS, [cluster_row(name, found.clusters[name]) for name in found.clusters]),
    )
    for columns, rows in tables:
        if rows:
            _print_aligned([list(columns), *rows])
            print_line("")
    print_lines(HOW_TO_NAME)


def device_row(device: CatalogueDevice) -> list[str]:
    """The cells of `DEVICE_COLUMNS`."""
    from placewright.core.quantities import format_bytes

    rates = [f"{device.peak[name] / 1e12:.4g}" if name in device.peak else "-" for name in _RATES]
    memory = format_bytes(device.memory_bytes).replace(".00", "")
    return [device.name, memory, f"{device.bandwidth / 1e9:g} GB/s", *rates, device.description]


def link_row(link: CatalogueLink) -> list[str]:
    """The cells of `LINK_COLUMNS`."""
    from placewright.core.quantities import format_duration

    return [link.name, f"{link.bandwidth / 1e9:.4g} GB/s", format_duration(link.latency_seconds)]


def cluster_row(name: str, devices: tuple[str, ...]) -> list[str]:
    """The cells of `CLUSTER_COLUMNS`; equal devices are counted."""
    counts = Counter(devices)
    texts = [one if count == 1 else f"{count} x {one}" for one, count in counts.items()]
    return [name, ", ".join(texts)]


def _data(found: Listing) -> dict[str, Any]:
    return {
        "devices": [
            {
                "name": device.name,
                "description": device.description,
                "kind": device.kind,
                "memory_bytes": device.memory_bytes,
                "bytes_per_second": device.bandwidth,
                "operations_per_second": dict(device.peak),
                "fitted": None if device.fit is None else device.fit.name,
                "source": device.source,
            }
            for device in found.devices
        ],
        "links": [
            {
                "name": link.name,
                "bytes_per_second": link.bandwidth,
                "latency_seconds": link.latency_seconds,
                "source": link.source,
            }
            for link in found.links
        ],
        "clusters": {name: list(devices) for name, devices in found.clusters.items()},
    }


def _print_aligned(rows: list[list[str]], first: Callable[[str, int], str] = str.ljust) -> None:
    """Print a table whose names are never cut, so that users can copy them.

    Args:
        first: aligns the first column; the last one is printed as it is, others to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for head, *middle, last in rows:
        cells = [cell.rjust(width) for cell, width in zip(middle, widths[1:], strict=False)]
        print_line("  ".join([first(head, widths[0]), *cells, last]))


_MANY_FLOPS = 1e10  # of an op, from which a list has them by the billion


@command("devices", "cluster", "runtime", "ray", model=None)
def devices(
    request: Request,
    catalogue: Annotated[
        str | None,
        typer.Option(
            "--catalogue",
            help="List devices of data sheets [that match PATTERN], and measure nothing.",
        ),
    ] = None,
    output: opt.Output = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Show and measure the devices and links of this machine.

    Also shows what splitting a model costs, and the devices of each runtime. -o writes the
    cluster file. --cluster completes a file, for example one with modes. With --ray, show the
    devices of all hosts of a Ray cluster. With --catalogue, list the names of real devices that
    --devices takes without having them.
    """
    if catalogue is not None:
        _refuse_beside_catalogue(request, output)
        print_catalogue(catalogue.replace("*", " "), as_json)
        return
    from placewright.files.cluster_file import cluster_data, write_cluster
    from placewright.frameworks.runtimes import default_runtime_name
    from placewright.report.time_left import Steps
    from placewright.session.devices import devices_by_runtime

    with progress("devices", hidden=quiet or as_json) as report:
        steps = Steps(report)
        # Other runtimes take seconds to import: before the rest is announced.
        available, missing = ({}, {}) if request.ray is not None else devices_by_runtime()
        cluster, costs = _measured_devices(request, report, steps)
    if output is not None:
        write_cluster(output, cluster)
        print_note(f"wrote {output}")
    if request.ray is not None:
        if as_json:
            print_json({"cluster": cluster_data(cluster)})
        else:
            _print_cluster(cluster, "Devices of the hosts")
        return
    chosen = request.runtime or default_runtime_name()
    others = [name for name in available[chosen] if name not in cluster.device_index]
    if as_json:
        print_json(
            {
                "runtime": chosen,
                "cluster": cluster_data(cluster),
                "with_split_costs": None if costs is None else cluster_data(costs),
                "also_available": others,
                "runtimes": {name: list(names) for name, names in available.items()},
                "not_installed": missing,
            }
        )
        return
    _print_cluster(cluster, f"Devices of {chosen}")
    if costs is not None:
        _print_split_costs(costs)
    if others:
        print_line(f"Also available with --devices: {', '.join(others)}")
    for name, names in available.items():
        if name != chosen:
            print_line(f"With --runtime {name}: {', '.join(names)}")
    for name, reason in missing.items():
        print_line(f"Not available: --runtime {name}; {reason}")


def _refuse_beside_catalogue(request: Request, output: Path | None) -> None:
    """Refuse options that a list of names would ignore.

    Raises:
        InputError: one was given.
    """
    if output is not None:
        raise InputError("--catalogue lists names and writes no cluster file; leave out -o")
    if (option := opt.first_given(opt.given_fields(request))) is not None:
        raise InputError(
            f"--catalogue lists devices of data sheets, whatever this machine has; leave out "
            f"{option}"
        )


def _measured_devices(
    request: Request, report: Report, steps: Steps
) -> tuple[Cluster, Cluster | None]:
    """The cluster, and the cluster with the costs of splitting if they were measured."""
    from placewright.frameworks.runtimes import default_runtime_name
    from placewright.session.devices import cluster_for, split_costs
    from placewright.session.hosts import discover_on_hosts
    from placewright.session.models import runtime_named

    steps.tell("", "measuring links")
    if request.ray is not None:
        if request.cluster is not None:
            raise FieldError("cluster", "names devices of this machine; with `ray`, take `devices`")
        cluster = discover_on_hosts(
            request.devices, request.ray, runtime=request.runtime, report=report
        )
        return cluster, None
    cluster = cluster_for(request.devices, request.cluster, request.runtime)
    runtime = runtime_named(request.runtime or default_runtime_name())
    return cluster, split_costs(cluster, runtime, steps)


def _print_split_costs(cluster: Cluster) -> None:
    from placewright.core.quantities import format_duration

    rows = [
        [
            device.name,
            format_duration(device.dispatch_seconds),
            format_duration(device.cut_seconds + device.layout_seconds),
            format_duration(2**20 * (device.cut_seconds_per_byte + device.layout_seconds_per_byte)),
        ]
        for device in cluster.devices
    ]
    columns = ["device", "segment", "tensor that is cut", "each MiB of it"]
    print_table("What splitting costs", columns, rows)
    for domain, factors in cluster.contention.items():
        if len(factors) > 1:
            print_line(f"All devices of memory '{domain}' at once: {factors[-1]:.2f} times as slow")
    rules = {
        link.occupies
        for link in cluster.links
        if cluster.host not in (link.source, link.destination)
    }
    print_line(_copies_text(rules))


def _copies_text(rules: set[str | None]) -> str:
    """Whom copies between devices occupy, by the rules of their links."""
    known = sorted(rule for rule in rules if rule is not None)
    if not known:
        return "Copies between devices occupy nobody: no other rule predicts splits clearly better"
    whom = " or ".join(f"the {rule}" if rule in ("receiver", "sender") else rule for rule in known)
    return f"Copies between devices occupy {whom}"


def _in_pool(device: Device) -> str:
    """The memory of a device of a pool: its own limit, if it has one, and the pools."""
    from placewright.core.pools import pools_text
    from placewright.core.quantities import format_bytes

    own = "" if math.isinf(device.memory_bytes) else f"{format_bytes(device.memory_bytes)} "
    of = "of " if isinstance(device.pool, str) else ""
    return f"{own}{of}{pools_text(device.pool)}"


def _print_cluster(cluster: Cluster, title: str) -> None:
    from placewright.core.quantities import format_bytes, format_duration

    rows = [
        [
            device.name,
            device.kind,
            format_bytes(device.memory_bytes) if device.pool is None else _in_pool(device),
            str(device.streams),
            ", ".join(f"{key}={value}" for key, value in sorted(device.options.items())) or "-",
        ]
        for device in cluster.devices
    ]
    print_table(title, ["device", "kind", "memory", "streams", "options"], rows)
    for name, size in cluster.pools.items():
        members = [device.name for device in cluster.devices if name in device.pool_shares]
        once = ", and hold a weight that they share once" if cluster.shares_weights else ""
        print_line(
            f"Memory pool '{name}', {format_bytes(size)}: {', '.join(members)} share it{once}"
        )
    for processor, users in cluster.shared_processors.items():
        members = [cluster.device_names[device] for device in users]
        print_line(f"Processor '{processor}': {', '.join(members)} never compute at once")
    if cluster.links:
        links = [
            [
                f"{link.source} -> {link.destination}",
                format_duration(link.latency_seconds),
                "no limit" if math.isinf(link.bandwidth) else f"{format_bytes(link.bandwidth)}/s",
            ]
            for link in cluster.links
        ]
        print_table("Links", ["link", "latency", "bandwidth"], links)


@command(*READ, isolates=True)
def graph(
    request: Request,
    fold_constants: Annotated[
        bool,
        typer.Option(
            help="Count constants as weights of their consumers; --no-... keeps the raw graph."
        ),
    ] = True,
    ops: Annotated[
        str | None,
        typer.Option(
            "--ops",
            help="List the ops [that match PATTERN], with the measured seconds of their units.",
        ),
    ] = None,
    output: opt.Output = None,
    as_json: opt.Json = False,
) -> None:
    """Show the graph of MODEL: ops, edges, flops, bytes, kinds.

    -o saves the graph. --ops lists its ops by name. The slowest ops come first if a problem, a
    plan or an earlier measurement of the model has their seconds.
    """
    from placewright.core.graph import PHASE_NAMES
    from placewright.core.grouping import largest_unit
    from placewright.core.quantities import format_bytes, plain_number
    from placewright.files.graph_file import write_graph
    from placewright.report.plan_text import loss_lines
    from placewright.session.models import ModelOfRequest
    from placewright.session.problems import listed_ops

    model = request.name
    loaded = ModelOfRequest(request, fold_constants=fold_constants).read
    read = loaded.graph
    if output is not None:
        write_graph(output, read, loaded.source)
        print_note(f"wrote {output}")
    if ops is not None:
        _print_ops(listed_ops(loaded, ops), model, as_json)
        return
    largest = None if loaded.units is None else largest_unit(read, loaded.units)
    summary: dict[str, Any] = {
        "model": model,
        "ops": read.n_ops,
        "edges": read.n_edges,
        "tensors": read.n_tensors,
        "units": loaded.n_units,
        "largest_unit": None if largest is None else vars(largest),
        "flops": float(read.op_flops.sum()),
        "weight_bytes": float(read.weight_bytes.sum()),
        "tensor_bytes": float(read.tensor_bytes.sum()),
        "phases": {name: int((read.op_phases == at).sum()) for at, name in enumerate(PHASE_NAMES)},
        "kinds": dict(Counter(read.op_kinds).most_common()),
    }
    if loaded.facts:
        summary["facts"] = dict(loaded.facts)
    if as_json:
        print_json(summary)
        return
    print_line(f"{model}: {read.n_ops} ops, {read.n_edges} edges, {loaded.n_units} units")
    if largest is not None:
        print_line(largest.text)
    if read.op_phases.any():
        print_line(", ".join(f"{count} {name}" for name, count in summary["phases"].items()))
    print_lines((*loaded.lines, *loss_lines(loaded.source)))
    size, unit = _scale_of(summary["flops"])
    print_line(
        f"{plain_number(summary['flops'] / size)} {unit}, "
        f"{format_bytes(summary['weight_bytes'])} of weights, "
        f"{format_bytes(summary['tensor_bytes'])} of tensors"
    )
    print_table("Kinds", ["kind", "ops"], [[kind, str(n)] for kind, n in summary["kinds"].items()])


def _scale_of(flops: float, many: float = 1e9) -> tuple[float, str]:
    """Size and name of a unit for a number of flops, billions from `many` on."""
    return (1e9, "GFLOP") if flops >= many else (1e6, "MFLOP")


def _print_ops(listing: OpListing, model: str, as_json: bool) -> None:
    from placewright.core.quantities import format_bytes, plain_number, value_text

    if as_json:
        print_json({"model": model, **listing.data()})
        return
    size, unit = _scale_of(max((op.flops for op in listing.ops), default=0.0), _MANY_FLOPS)
    title = ["unit", unit, "weights", "outputs", "kind", *listing.devices, "op"]
    rows = [
        [
            "-" if op.unit is None else str(op.unit),
            plain_number(op.flops / size),
            format_bytes(op.weight_bytes) if op.weight_bytes else "-",
            " ".join("x".join(map(str, shape)) or "1" for shape in op.shapes),
            op.kind,
            *("cannot" if s is None else value_text(s, listing.time_unit)
              for s in op.seconds.values()),
            op.name,
        ]
        for op in listing.ops
    ]  # fmt: skip
    _print_aligned([title, *rows], str.rjust)
    if listing.devices:
        print_line("Times are those of an op's whole unit; the slowest units come first.")
    else:
        print_line("No times are known: `placewright profile` measures them.")


# Fields that decide the formats of a language model, which an engine measures on its own devices.
_OF_ENGINE = ("weights", "kv", "prompt", "generate", "context", "micro_batch", "sequences")


@command(*PROFILED, "ray", isolates=True)
def profile(
    request: Request,
    engine: opt.EngineName = None,
    engine_folder: opt.EngineFolder = None,
    servers: opt.EngineServers = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", help="Give the engine and each of its servers N threads."),
    ] = None,
    output: opt.Output = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Measure the op times of MODEL on each device.

    -o saves the problem. With --ray, measure the devices of all hosts of a Ray cluster, each on
    its host. With --engine, measure the engine's devices with the formats of a language model; the
    result is kept for `place`, and -o saves its cluster file.
    """
    of_engine = {"--engine-folder": engine_folder, "--servers": servers, "--threads": threads}
    if opt.engine_asked(engine, of_engine, opt.given_fields(request, besides=_OF_ENGINE)):
        _profile_engine(request, engine_folder, (servers, threads), output, (as_json, quiet))
        return
    from placewright.core.quantities import value_text
    from placewright.files.problem_file import write_problem
    from placewright.session.hosts import profile_on_hosts
    from placewright.session.session import Session

    model = request.name
    with progress("profile", hidden=quiet or as_json) as report:
        if request.ray is not None:
            on_hosts = profile_on_hosts(request, report)
            problem, left_out = on_hosts.problem, on_hosts.left_out
        else:
            session = Session(request, report)
            problem, left_out = session.profile(), session.left_out
    if output is not None:
        write_problem(output, problem)
        print_note(f"wrote {output}")
    names = problem.cluster.device_names
    totals = problem.costs.seconds.sum(axis=0).tolist()
    if as_json:
        print_json(
            {
                "model": model,
                "ops": problem.graph.n_ops,
                "units": problem.n_units,
                "cost_source": problem.costs.source,
                "unit": problem.time_unit,
                "whole_model": dict(zip(names, totals, strict=True)),
                "left_out": list(left_out),
            }
        )
        return
    print_line(f"{model}: {problem.graph.n_ops} ops in {problem.n_units} units")
    rows = [
        [name, value_text(total, problem.time_unit)]
        for name, total in zip(names, totals, strict=True)
    ]
    print_table("Sum of all units", ["device", "time"], rows)
    print_lines(f"left out: {clause}" for clause in left_out)


def _profile_engine(
    request: Request,
    folder: Path | None,
    asked: tuple[str | None, int | None],
    output: Path | None,
    shown: tuple[bool, bool],
) -> None:
    from placewright.execution.engine.programs import engine_at
    from placewright.files.cluster_file import cluster_data, write_cluster
    from placewright.report.language_text import rate_rows
    from placewright.session.language.engine_profile import formats_of_model, profile_engine
    from placewright.session.models import ModelOfRequest

    formats = formats_of_model(ModelOfRequest(request).read, request)
    addresses = opt.addresses_of(asked[0])
    with progress("profile", hidden=any(shown)) as report:
        cluster = profile_engine(
            formats, engine_at(folder), servers=addresses, threads=asked[1], report=report
        )
    if output is not None:
        write_cluster(output, cluster)
        print_note(f"wrote {output}")
    if shown[0]:
        print_json({"cluster": cluster_data(cluster)})
        return
    _print_cluster(cluster, "Devices of the engine")
    print_table("Rates", *rate_rows(cluster))
    print_line("`placewright place` of a language model takes these devices by default")


@plain_command
def placers(as_json: opt.Json = False) -> None:
    """List all placers with their papers and objectives.

    Also shows which placers learn while they search, and which take a trained policy.
    """
    from placewright.placers.registry import (
        importable_placers,
        placers_that_learn,
        placers_that_take_a_policy,
    )

    learning, trained = placers_that_learn(), placers_that_take_a_policy()
    classes, broken = importable_placers()
    for reason in broken.values():
        print_note(reason)
    rows: list[dict[str, Any]] = []
    for name, placer in classes.items():
        first_line = (placer.__doc__ or "").strip().splitlines()[0]
        rows.append(
            {
                "name": name,
                "paper": placer.paper,
                "objectives": list(placer.objectives),
                "needs_training": placer.needs_training,
                "learns_while_searching": name in learning,
                "takes_policy": name in trained,
                "summary": first_line,
            }
        )
    if as_json:
        print_json(rows)
        return
    table = [
        [
            str(row["name"]),
            ", ".join(str(objective) for objective in row["objectives"]),
            "yes" if row["learns_while_searching"] else "no",
            "needs one" if row["needs_training"] else "yes" if row["takes_policy"] else "no",
            str(row["paper"]),
        ]
        for row in rows
    ]
    print_table(
        "Placers",
        ["name", "objectives", "learns while it searches", "takes a policy", "paper"],
        table,
    )
