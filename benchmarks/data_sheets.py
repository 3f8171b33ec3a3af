"""Fits the efficiencies of data sheets to public op tables, and judges them on other GPUs.

    python -m benchmarks.data_sheets --data FOLDER --results docs/results/data-sheets.json

An op takes (seconds at the peaks) / (efficiency of its class at that size) + launch. An efficiency
is the median over the GPUs of a family of each GPU's median over ops of one class and size. The
launch is the one with the least median error over whole models. Intervals hold nine of ten ops, or
whole models, of each GPU of the family by a fit to the others. The constants that it prints stand
in ``catalogue.yaml``.

Tables whose whole forward pass contradicts their ops by more than a quarter are not fitted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.command import Results, run, write_results
from benchmarks.op_tables import OpTable, read_tables
from placewright.core.arrays import FloatArray
from placewright.core.cluster import Cluster, Device
from placewright.errors import FileFormatError
from placewright.profiling.catalogue import Fit, catalogue_cluster
from placewright.profiling.roofline import (
    FITTED_CLASSES,
    MATMUL,
    NARROW,
    TRAFFIC_CLASSES,
    VECTOR,
    at_peak,
    roofline_costs,
)

FORMAT = "placewright.data-sheets/1"
SOURCE = (
    "op tables of NeuSight (ASPLOS 2025), github.com/sitar-lab/NeuSight at 6945927d, MIT licence"
)
FAMILIES: Mapping[str, tuple[str, ...]] = {  # GPUs whose ops are fitted together
    "nvidia": ("Tesla_V100-PCIE-32GB", "Tesla_P100-PCIE-16GB", "NVIDIA_A100-PCIE-40GB"),
    "nvidia-75w": ("Tesla_P4", "Tesla_T4"),  # boards without a plug of their own
    "amd-instinct": ("AMD_Instinct_MI100", "AMD_Instinct_MI210"),
}
JUDGED: Mapping[str, tuple[str, ...]] = {"nvidia": ("NVIDIA_A100_80GB_PCIe",)}
OTHER_VENDOR = {"nvidia": "amd-instinct", "nvidia-75w": "amd-instinct", "amd-instinct": "nvidia"}
BINS = (10e-6, 30e-6, 120e-6, 1e-3, math.inf)  # seconds at the peaks; below, launches decide
SIZES = (15e-6, 60e-6, 350e-6, 3e-3)  # between these
LAUNCHES = (2e-6, 3e-6, 4e-6, 5e-6, 7e-6, 10e-6, 15e-6)  # no kernel of any GPU takes less
_TAIL = 0.05  # on each side of an interval
_NO_KERNEL = 1.5  # an op that is so much faster than the peaks ran no kernel
_FEWEST = 4  # ops of a class and size that say something
_DIGITS = 3
_INSTEAD = {**dict.fromkeys(TRAFFIC_CLASSES, VECTOR), NARROW: MATMUL}  # of a class without ops


@dataclass(frozen=True)
class Ratios:
    """Measured over predicted seconds of forward ops, and the class of each."""

    of_ops: FloatArray
    classes: tuple[str, ...]


def device_of(table: OpTable) -> Device:
    """The catalogue's device of a table's GPU."""
    return catalogue_cluster([table.gpu.replace("_", " ")]).devices[0]


def whole_seconds(table: OpTable, fitted: bool | Fit) -> float:
    """Predicted seconds of a whole model: its ops, each as often as it runs."""
    costs = roofline_costs(table.graph, Cluster((device_of(table),)), fitted=fitted)
    return float(costs.seconds[:, 0] @ table.repeats)


def fitted(name: str, tables: Sequence[OpTable]) -> Fit:
    """Fit efficiencies and launch to tables of a family; without intervals.

    Raises:
        FileFormatError: they have too few products, or too few other ops.
    """
    trusted = [table for table in tables if not table.is_doubtful]
    found: dict[tuple[str, int], list[float]] = {}
    counts: dict[tuple[str, int], int] = {}
    for gpu in dict.fromkeys(table.gpu for table in trusted):
        for key, shares in _shares([t for t in trusted if t.gpu == gpu]).items():
            found.setdefault(key, []).append(float(np.median(shares)))
            counts[key] = counts.get(key, 0) + len(shares)
    found = {key: medians for key, medians in found.items() if counts[key] >= _FEWEST}
    efficiency: dict[str, tuple[float, ...]] = {}
    for each in FITTED_CLASSES:
        medians = [found.get((each, size)) for size in range(len(SIZES))]
        if not any(medians) and _INSTEAD.get(each) not in efficiency:
            raise FileFormatError(f"tables of {name} have no {_FEWEST} ops of class '{each}'")
        efficiency[each] = _row(medians) if any(medians) else efficiency[_INSTEAD[each]]
    without = Fit(name, "f32", BINS[0], SIZES, efficiency, {}, (0.0, math.inf), 0.0, SOURCE)
    return _with_launch(without, trusted)


def _shares(tables: Iterable[OpTable]) -> dict[tuple[str, int], list[float]]:
    """Class and size -> shares of the peaks that ops of one GPU reached."""
    found: dict[tuple[str, int], list[float]] = {}
    for table in tables:
        peak = at_peak(table.graph, device_of(table))
        for seconds, name, measured in zip(
            peak.seconds.tolist(), peak.classes, table.measured.tolist(), strict=True
        ):
            size = int(np.searchsorted(BINS, seconds)) - 1
            if math.isnan(measured) or size < 0 or seconds > _NO_KERNEL * measured:
                continue
            found.setdefault((name, size), []).append(seconds / measured)
    return found


def _row(medians: Sequence[list[float] | None]) -> tuple[float, ...]:
    """Efficiencies at all sizes; a size without ops has that of the next one that has."""
    known = {at: float(np.median(each)) for at, each in enumerate(medians) if each}
    return tuple(
        round(min(1.0, known[min(known, key=lambda other: (abs(other - at), other))]), _DIGITS)
        for at in range(len(medians))
    )


def _with_launch(fit: Fit, tables: Sequence[OpTable]) -> Fit:
    def error(launch: float) -> float:
        tried = replace(fit, launch_seconds=launch)
        return float(np.median([abs(math.log(whole_seconds(t, tried) / t.whole)) for t in tables]))

    return replace(fit, launch_seconds=min(LAUNCHES, key=lambda launch: (error(launch), launch)))


def ratios(table: OpTable, fit: Fit) -> Ratios:
    """Compare the measured forward ops of a table with their predictions."""
    device = device_of(table)
    peak = at_peak(table.graph, device)
    seconds = roofline_costs(table.graph, Cluster((device,)), fitted=fit).seconds[:, 0]
    known = ~np.isnan(table.measured) & (peak.seconds >= BINS[0])
    known &= peak.seconds <= _NO_KERNEL * table.measured
    at = np.flatnonzero(known)
    return Ratios(
        table.measured[at] / (seconds[at] - fit.launch_seconds),
        tuple(peak.classes[op] for op in at.tolist()),
    )


def with_intervals(fit: Fit, tables: Sequence[OpTable]) -> Fit:
    """Add intervals: each GPU of the family by a fit to the others."""
    found: dict[str, dict[str, list[float]]] = {}  # class -> GPU -> ratios
    models: dict[str, list[float]] = {}
    for table, other in left_out(fit.name, tables):
        models.setdefault(table.gpu, []).append(table.whole / whole_seconds(table, other))
        each = ratios(table, other)
        for name, ratio in zip(each.classes, each.of_ops.tolist(), strict=True):
            found.setdefault(name, {}).setdefault(table.gpu, []).append(ratio)
    interval = {name: _interval(found[name].values()) for name in FITTED_CLASSES}
    return replace(fit, interval=interval, model_interval=_interval(models.values()))


def left_out(name: str, tables: Sequence[OpTable]) -> list[tuple[OpTable, Fit]]:
    """Each trusted table with a fit to the GPUs of its family but its own."""
    trusted = [table for table in tables if not table.is_doubtful]
    fits = {
        gpu: fitted(name, [table for table in trusted if table.gpu != gpu])
        for gpu in dict.fromkeys(table.gpu for table in trusted)
    }
    return [(table, fits[table.gpu]) for table in trusted]


def _interval(of_gpus: Iterable[Sequence[float]]) -> tuple[float, float]:
    """Nine of ten values of every GPU are inside, and so is the prediction itself."""
    ends = [np.quantile(values, [_TAIL, 1.0 - _TAIL]) for values in of_gpus]
    low, high = min(float(end[0]) for end in ends), max(float(end[1]) for end in ends)
    return round(min(1.0, low), _DIGITS), round(max(1.0, high), _DIGITS)


def model_rows(
    fits: Mapping[str, Fit], tables: Mapping[str, Sequence[OpTable]]
) -> list[dict[str, Any]]:
    """Predicted over measured seconds of every whole model, in several ways."""
    rows = []
    for name, fit in fits.items():
        others = {id(table): other for table, other in left_out(name, tables[name])}
        foreign = fits[OTHER_VENDOR[name]]
        for table in (*tables[name], *tables.get(f"{name} judged", ())):
            other = others.get(id(table))
            judged = table.gpu not in FAMILIES[name]
            rows.append(
                {
                    "family": name,
                    "gpu": table.gpu,
                    "model": table.model,
                    "judged": judged,
                    "doubtful": table.is_doubtful,
                    "assumed": _ratio(table, False),
                    "fitted": _ratio(table, fit),
                    "left_out": None if other is None else _ratio(table, other),
                    "other_vendor": _ratio(table, foreign),
                }
            )
    return rows


def _ratio(table: OpTable, used: bool | Fit) -> float:
    return round(whole_seconds(table, used) / table.whole, 4)


def coverage_rows(
    fits: Mapping[str, Fit], tables: Mapping[str, Sequence[OpTable]]
) -> list[dict[str, Any]]:
    """How many ops of judged GPUs lie inside the intervals, by class."""
    rows = []
    for name, fit in fits.items():
        each = [ratios(table, fit) for table in tables.get(f"{name} judged", ())]
        for one in FITTED_CLASSES:
            found = [
                ratio
                for part in each
                for kind, ratio in zip(part.classes, part.of_ops.tolist(), strict=True)
                if kind == one
            ]
            if found:
                low, high = fit.interval[one]
                inside = sum(low <= ratio <= high for ratio in found)
                rows.append({"family": name, "class": one, "ops": len(found), "inside": inside})
    return rows


def fit_row(fit: Fit, gpus: Sequence[str], tables: Sequence[OpTable]) -> dict[str, Any]:
    """The constants of a fit, as they stand in the catalogue, and what an op takes alone."""
    return {
        "family": fit.name,
        "gpus": list(gpus),
        "precision": fit.precision,
        "launch_us": round(fit.launch_seconds * 1e6, 3),
        "alone_us": round(float(np.median([table.alone for table in tables])) * 1e6, 1),
        "least_us": round(fit.least_seconds * 1e6, 3),
        "sizes_us": [round(size * 1e6, 3) for size in fit.sizes],
        "efficiency": {name: list(row) for name, row in fit.efficiency.items()},
        "interval": {name: list(row) for name, row in fit.interval.items()},
        "model_interval": list(fit.model_interval),
    }


def all_fits(tables: Mapping[str, Sequence[OpTable]]) -> dict[str, Fit]:
    """Fit every family, with intervals."""
    return {name: with_intervals(fitted(name, tables[name]), tables[name]) for name in FAMILIES}


def tables_of(data: Path) -> dict[str, Sequence[OpTable]]:
    """Tables of each family; those that judge it are under ``"NAME judged"``."""
    found: dict[str, Sequence[OpTable]] = {
        name: read_tables(data, gpus) for name, gpus in FAMILIES.items()
    }
    return found | {f"{name} judged": read_tables(data, gpus) for name, gpus in JUDGED.items()}


def data_sheets(
    data: Annotated[Path, typer.Option(help="Folder of the tables, one folder for each GPU.")],
    results: Results = Path("docs/results/data-sheets.json"),
) -> None:
    """Fit, judge, print the constants for the catalogue, and write the results."""
    tables = tables_of(data)
    fits = all_fits(tables)
    document = {
        "format": FORMAT,
        "source": SOURCE,
        "fits": [fit_row(fit, FAMILIES[name], tables[name]) for name, fit in fits.items()],
        "models": model_rows(fits, tables),
        "coverage": coverage_rows(fits, tables),
    }
    for row in document["fits"]:
        typer.echo(json.dumps(row))
    write_results(results, _text(document))


def _text(document: Mapping[str, Any]) -> str:
    """JSON with a row on each line."""
    parts = []
    for key, value in document.items():
        if isinstance(value, list):
            rows = ",\n".join(json.dumps(row) for row in value)
            parts.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    run(data_sheets)
