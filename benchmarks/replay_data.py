"""Convert measurements of others to files for `placewright replay`.

    python -m benchmarks.replay_data hope FOLDER PHONE -o phone.json [--without nasnet-mobile]
        [--copies FOLDER2] [--note WORDS]
    python -m benchmarks.replay_data neusight FOLDER GPU[,GPU...] -o gpus.json
    python -m benchmarks.replay_data csv FOLDER -o data.json

`hope` reads a checkout of the repository summerspringwei/DAG-Scheduler at the parent of its commit
2799224e, and copy times in a checkout of commit feb699a, which stored the measured latency. Later
commits overwrote those of the phone redmi by smaller ones, and kept one file as ``….with-copy``.
The repository has no license: keep the converted file to yourself.
`neusight` reads op tables as `benchmarks.op_tables` does, of models that all of the GPUs measured.
Each GPU is a device, and each model has a plan for each GPU alone. An op of the repeated layer
stands for all its repetitions. The tables have no copies between GPUs.
`csv` reads four files of a folder: ``ops.csv`` (op, then a column of seconds for each device; an
empty cell if it cannot run there), ``edges.csv`` (from, to, bytes; rows with one `tensor` share a
copy), ``copies.csv`` (from, to, bytes, seconds) and ``plans.csv`` (plan, op, device, measured; `*`
is every op).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.op_tables import read_layers
from placewright.errors import FileFormatError, PlacewrightError
from placewright.io.scratch import scratch_folder
from placewright.io.written import move_files
from placewright.suites.replay import REPLAY_FORMAT, read_replay

MODELS = ("inception-v3", "inception-v4", "pnasnet-mobile", "pnasnet-large", "nasnet-mobile",
          "nasnet-large")  # fmt: skip
THREADS = (1, 2, 4)
PLANS = {"greedy": ("greedy-placement", "greedy-result-latency"),
         "ilp": ("mDeviceMap", "result-latency")}  # fmt: skip
FLOAT_BYTES = 4


def main() -> None:
    """Convert, and check what was written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("hope", "neusight", "csv"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("device", nargs="?", help="phone of hope, or GPUs of neusight by commas")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--without", default="", help="models, separated by commas")
    parser.add_argument("--copies", type=Path, help="checkout with copy times, if not FOLDER")
    parser.add_argument("--note", default="", help="words for the title, on what was taken")
    wanted = parser.parse_args()
    if wanted.kind != "csv" and wanted.device is None:
        parser.error(f"{wanted.kind} needs a device, such as redmi or Tesla_T4")
    if wanted.kind != "hope" and (wanted.without or wanted.copies):
        parser.error("--without and --copies are for hope alone; leave them out")
    try:
        document = _converted(wanted)
        document["title"] += f", {wanted.note}" if wanted.note else ""
        with scratch_folder(wanted.output.parent, ".replay.") as scratch:
            made = scratch / wanted.output.name
            made.write_text(json.dumps(document))
            read_replay(made)
            move_files({made: wanted.output})
    except (PlacewrightError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def _converted(wanted: argparse.Namespace) -> dict[str, Any]:
    if wanted.kind == "hope":
        return of_hope(wanted.folder, wanted.device, wanted.without.split(","), wanted.copies)
    if wanted.kind == "neusight":
        return of_neusight(wanted.folder, wanted.device.split(","))
    return of_csv(wanted.folder)


def of_hope(
    folder: Path, phone: str, without: list[str], copies_in: Path | None = None
) -> dict[str, Any]:
    """Plans of a phone of HOPE whose measured latency, placement and times are all there.

    Copy times come from the checkout `copies_in`; without it from `folder`, too.

    Raises:
        FileFormatError: no model has all three, or there are no copy times.
    """
    copies: dict[str, list[tuple[float, float]]] = {"cpu": [], "gpu": []}
    cases = []
    for model in MODELS:
        at = folder / "mnn" / "models" / model
        times = at / phone / f"{phone}-{model}-layerwise-latency.csv"
        if model in without or not times.exists():
            continue
        seconds = {name: [float(x) / 1e6 for x in rest[:4]] for name, *rest in _words(times, 5)}
        measured = f"mnn/models/{model}/{phone}/{model}-{phone}-data-trans.csv"
        for shape, to_gpu, to_cpu in _words((copies_in or folder) / measured, 3):
            copies["cpu"].append((_bytes(shape), float(to_gpu) / 1e6))
            copies["gpu"].append((_bytes(shape), float(to_cpu) / 1e6))
        edges = _hope_edges(at / f"{model}-info.txt", seconds)
        for column, threads in enumerate(THREADS):
            plans = _hope_plans(folder, model, phone, column, seconds)
            if not any(isinstance(plan["placement"], dict) for plan in plans):
                continue
            ops = [
                {"name": name, "seconds": {"cpu": each[column], "gpu": each[3]}}
                for name, each in seconds.items()
            ]
            groups = {"model": model, "threads": str(threads)}
            name = f"{model} with CPU threads: {threads}"
            one = {"name": name, "groups": groups, "ops": ops, "edges": edges, "plans": plans}
            cases.append(one)
    if not cases:
        raise FileFormatError(f"'{folder}' has no measured plan of phone '{phone}' with its times")
    if not copies["cpu"]:
        raise FileFormatError(f"'{copies_in or folder}' has no copy times of phone '{phone}'")
    ends = (("cpu", "gpu"), ("gpu", "cpu"))
    return {
        "format": REPLAY_FORMAT,
        "title": f"HOPE, {phone}",
        "source": "https://github.com/summerspringwei/DAG-Scheduler",
        "license": "none",
        "devices": ["cpu", "gpu"],
        "copies": [{"from": a, "to": b, "samples": copies[a]} for a, b in ends],
        "cases": cases,
    }


def _hope_edges(path: Path, known: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One edge for each tensor; tensors are named by their address."""
    rows = [(name, _tensors(reads), _tensors(makes)) for name, reads, makes, *_ in _words(path, 3)]
    rows = [row for row in rows if row[0] in known]
    maker = {address: (name, shape) for name, _, makes in rows for address, shape in makes}
    readers: dict[str, list[str]] = {}
    for name, reads, _ in rows:
        for address, _ in reads:
            if address in maker and maker[address][0] != name:
                readers.setdefault(address, []).append(name)
    return [
        {"from": maker[address][0], "to": names, "bytes": _bytes(maker[address][1])}
        for address, names in readers.items()
    ]


def _hope_plans(
    folder: Path, model: str, phone: str, column: int, known: dict[str, list[float]]
) -> list[dict[str, Any]]:
    """The plans of a model and a number of threads, and each processor alone."""
    plans: list[dict[str, Any]] = []
    for name, (placement, result) in PLANS.items():
        results = folder / "mnn" / "src" / "result_data" / f"{result}-{phone}.txt"
        places = folder / "mnn" / "models" / model / phone
        file = places / f"{placement}-{model}-cpu-{THREADS[column]}.txt"
        rows = {row[0].lower(): row[1:] for row in _words(results, 11)}
        if model not in rows or not file.exists():
            continue
        values = [float(value) / 1e3 for value in rows[model]]
        devices = {op: "gpu" if int(number) else "cpu" for op, number, *_ in _words(file, 2)}
        if set(devices) != set(known):
            continue
        plans.append({"name": name, "placement": devices, "measured": values[3 + column]})
        if len(plans) == 1:
            plans += [
                {"name": "cpu alone", "placement": "cpu", "measured": values[6 + column]},
                {"name": "gpu alone", "placement": "gpu", "measured": values[9]},
            ]
    return plans


def _words(path: Path, least: int) -> Iterator[list[str]]:
    """The rows of a file that have enough words; none without the file."""
    if path.exists():
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) >= least:
                yield words


def _tensors(text: str) -> list[tuple[str, str]]:
    """Address and shape of the tensors in ``shape@address;shape@address;``."""
    parts = [part.split("@") for part in text.split(";") if "@" in part]
    return [(address, shape) for shape, address in parts]


def _bytes(shape: str) -> float:
    return float(FLOAT_BYTES * math.prod(int(extent) for extent in shape.split(",")))


def of_neusight(folder: Path, gpus: Sequence[str]) -> dict[str, Any]:
    """Models that all of the GPUs measured, each GPU alone, from op tables.

    Raises:
        FileFormatError: a table is missing or damaged, the GPUs have no model in common, or ops
            differ between GPUs.
    """
    tables = {gpu: {one.model: one for one in read_layers(folder, gpu)} for gpu in gpus}
    models = set.intersection(*(set(of_gpu) for of_gpu in tables.values()))
    if not models:
        raise FileFormatError(f"no model is measured on all of {', '.join(gpus)}; leave one out")
    cases = []
    for model in sorted(models):
        layers = {gpu: tables[gpu][model] for gpu in gpus}
        first = layers[gpus[0]]
        for gpu, each in layers.items():
            if each.edges != first.edges or list(each.seconds) != list(first.seconds):
                raise FileFormatError(f"'{model}' has other ops on {gpu} than on {gpus[0]}")
        name, mode, sequence, batch = model.rsplit("-", 3)
        groups = {"model": name, "mode": mode, "sequence": sequence, "batch": batch}
        ops = [
            {"name": op, "seconds": {gpu: layers[gpu].seconds[op] for gpu in gpus}}
            for op in first.seconds
        ]
        edges = [{"from": a, "to": to, "bytes": size} for a, to, size in first.edges]
        plans = [
            {"name": f"{gpu} alone", "placement": gpu, "measured": each.whole}
            for gpu, each in layers.items()
        ]
        case = {"name": model, "groups": groups, "ops": ops, "edges": edges, "plans": plans}
        cases.append(case)
    return {
        "format": REPLAY_FORMAT,
        "title": f"NeuSight, {', '.join(gpus)}",
        "source": "https://github.com/sitar-lab/NeuSight, scripts/asplos/label",
        "license": "MIT",
        "devices": list(gpus),
        "copies": [],
        "cases": cases,
    }


def of_csv(folder: Path) -> dict[str, Any]:
    """A case from four tables.

    Raises:
        FileFormatError: a table is missing or empty, lacks a column, or has a word for a number.
    """
    ops = _Table(folder / "ops.csv", "op")
    devices = [name for name in ops.columns if name != "op"]
    edges = _Table(folder / "edges.csv", "from", "to", "bytes")
    tensors: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(edges.rows):
        key = row.get("tensor") or str(number)
        edge: dict[str, Any] = {"from": row["from"], "to": [], "bytes": edges.number(row, "bytes")}
        tensors.setdefault(key, edge)["to"].append(row["to"])
    times = _Table(folder / "copies.csv", "from", "to", "bytes", "seconds")
    copies: dict[tuple[str, str], list[list[float]]] = {}
    for row in times.rows:
        sample = [times.number(row, "bytes"), times.number(row, "seconds")]
        copies.setdefault((row["from"], row["to"]), []).append(sample)
    ran = _Table(folder / "plans.csv", "plan", "op", "device", "measured")
    plans: dict[str, dict[str, Any]] = {}
    for row in ran.rows:
        plan = plans.setdefault(row["plan"], {"name": row["plan"], "placement": {}})
        if row["op"] == "*":
            plan["placement"] = row["device"]
        else:
            plan["placement"][row["op"]] = row["device"]
        if row["measured"]:
            plan["measured"] = ran.number(row, "measured")
    entries = [
        {"name": row["op"], "seconds": {n: ops.number(row, n) if row[n] else None for n in devices}}
        for row in ops.rows
    ]
    name = folder.resolve().name
    return {
        "format": REPLAY_FORMAT,
        "title": name,
        "source": "",
        "license": "",
        "devices": devices,
        "copies": [{"from": a, "to": b, "samples": each} for (a, b), each in copies.items()],
        "cases": [
            {
                "name": name,
                "ops": entries,
                "edges": list(tensors.values()),
                "plans": list(plans.values()),
            }
        ],
    }


class _Table:
    """The rows of a CSV file.

    Raises:
        FileFormatError: there is no such file, or it lacks a column.
    """

    def __init__(self, path: Path, *columns: str) -> None:
        if not path.exists():
            raise FileFormatError(f"'{path}' does not exist; the folder needs four tables")
        with path.open(newline="") as file:
            reader = csv.DictReader(file, restval="")
            self.columns = list(reader.fieldnames or ())
            self.rows = list(reader)
        self._path = path
        for column in columns:
            if column not in self.columns:
                raise FileFormatError(f"'{path}' has no column '{column}'")

    def number(self, row: dict[str, str], column: str) -> float:
        """The number in a cell."""
        try:
            return float(row[column])
        except ValueError:
            raise FileFormatError(
                f"'{self._path}': '{row[column]}' in column '{column}' is no number"
            ) from None


if __name__ == "__main__":
    main()
