"""The workloads of Tarnawski et al. 2020: every method on every workload, resumable.

Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino: "Efficient Algorithms for Device
Placement of DNN Graph Operators", NeurIPS 2020; data of the repository msr-fiddle/dnn-partitioning
(MIT licence).
"""

from __future__ import annotations

import hashlib
import io
import math
import sys
import tarfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from http.client import HTTPException
from pathlib import Path

from placewright.core.placement import Placement
from placewright.core.problem import Problem
from placewright.core.solution import Budget
from placewright.errors import AnswerError, InputError
from placewright.files.results import ResultsFile
from placewright.files.tarnawski import read_workload
from placewright.io.written import write_files
from placewright.placers.bases import pass_interrupt_on
from placewright.placers.pipelines.ideals.program import replicated
from placewright.placers.registry import (
    Placer,
    importable_placers,
    make_placer,
    placer_class,
    solution_by,
)
from placewright.simulation.bounds.lower import balanced_load_bound
from placewright.simulation.evaluator import Evaluator
from placewright.simulation.model import Simulator
from placewright.workers.processes import Processes
from placewright.workers.tasks import Task

COMMIT = "b207b6ad27a1407d321f1e028cea96d7f2c90e3e"
ARCHIVE = f"https://codeload.github.com/msr-fiddle/dnn-partitioning/tar.gz/{COMMIT}"
# SHA-256 over name and content of the 30 JSON files, in the order of their names.
DIGEST = "f0e698fc3f38c1a06401a067502d43d40288500ce971168a3bca7a989444547c"
FORMAT = "placewright.tarnawski/1"
REPLICATED = "replicated"  # the best contiguous split in which accelerators may take turns

_ROUNDING = 1e-9  # a relative gap below it is none
_TIMEOUT_SECONDS = 60.0  # of a download
# Folders of the repository -> our folders; `find_workloads` accepts either.
_FOLDERS = {
    "throughput-inputs": "throughput",
    "latency-inputs": "latency",
    "human-experts": "experts",
}
# Nodes that the authors' PipeDream baseline leaves out of components, by workload (dp.cpp).
_PIPEDREAM_IGNORED = {"gnmt_inference": "2,40,46", "gnmt_training": "2,40,46"}


@dataclass(frozen=True)
class BenchmarkRow:
    """One method on one workload."""

    workload: str  # ``"throughput/LayerGraphs/gnmt_inference"``
    method: str  # registry name, or `REPLICATED`
    value: float | None  # in ms; None without a placement
    bound: float  # the method's own proven lower bound in ms; 0 without one
    # value / best bound that any method proved for the workload - 1; None without both. Of
    # `REPLICATED` against its own bound, since those of the others hold without replicas
    gap: float | None
    status: str  # of the solution, or ``"error"``
    seconds: float  # wall-clock seconds of the search, reading left out
    peak_memory_bytes: int  # of the process that searched; 0 if the system does not tell
    message: str  # of the solution
    key: str = ""  # SHA-256 of the workload's file; "" in files of earlier versions
    budget_seconds: float = 0.0  # of the run; 0 in files of earlier versions
    evaluations: int = 0  # queries used; 0 without any, and in files of earlier versions
    core_seconds: float = 0.0  # processor seconds of the search; likewise

    @property
    def identity(self) -> tuple[str, str, str, float]:
        """Identity of the run; a file is one problem for each objective."""
        return self.workload.partition("/")[0], self.key, self.method, self.budget_seconds


# Workload, its file, method, seconds -> row; None if the method is not defined for the workload.
Run = Callable[[str, Path, str, float], BenchmarkRow | None]


def run_tarnawski_benchmark(
    data_folder: Path | str,
    *,
    methods: Sequence[str] | None = None,
    workloads: Sequence[str] | None = None,
    seconds_per_run: float = 60.0,
    results_path: Path | str,
    on_row: Callable[[BenchmarkRow], None] = lambda row: None,
    on_ahead: Callable[[int], None] = lambda number: None,
    run: Run | None = None,
) -> list[BenchmarkRow]:
    """Run methods on workloads, one process per run; store each result in a file.

    A run that the file already holds for the same seconds is not repeated.

    Args:
        data_folder: holds ``throughput``, ``latency`` and ``experts`` (or the repository's names).
        methods: registry names or `REPLICATED`; None is all placers that need no training.
        workloads: parts of workload names; None is all.
        seconds_per_run: budget of each run.
        results_path: JSON file that is read first and written after every run.
        on_ahead: called with the number of new rows, before the first.
        run: runs a method on a workload; None is `run_apart`.

    Returns:
        All requested rows, by workload and method.

    Raises:
        InputError: the folder holds no such workload.
        UnknownNameError: a method is not registered.
        FileFormatError: the results file is damaged or of another format.
    """
    names = list(methods) if methods is not None else [*untrained_methods(), REPLICATED]
    for name in names:
        if name != REPLICATED:
            placer_class(name)
    files = find_workloads(data_folder, workloads)
    store = ResultsFile(
        Path(results_path), FORMAT, BenchmarkRow, lambda row: row.identity, missing=None
    )
    rows = []
    keys = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    asked = {
        (workload, name): (workload.partition("/")[0], keys[workload], name, seconds_per_run)
        for workload in files
        for name in names
    }
    on_ahead(sum(one not in store.rows for one in asked.values()))
    for workload, path in files.items():
        key = keys[workload]
        for name in names:
            known, is_new = store.rows.get(asked[workload, name]), False
            if known is None:
                is_new = True
                known = (run or run_apart)(workload, path, name, seconds_per_run)
                if known is None:
                    continue
                store.add([replace(known, key=key, budget_seconds=seconds_per_run)])
            rows.append(replace(known, workload=workload, key=key, budget_seconds=seconds_per_run))
            if is_new:
                on_row(rows[-1])
    return _with_gaps(rows)


def untrained_methods() -> list[str]:
    """Registry names of the placers that need no training."""
    return [name for name, placer in importable_placers()[0].items() if not placer.needs_training]


def find_workloads(data_folder: Path | str, parts: Sequence[str] | None = None) -> dict[str, Path]:
    """Workload name -> file, throughput first, in the order of the names.

    Raises:
        InputError: the folder holds no workload whose name contains one of `parts`.
    """
    root = Path(data_folder)
    files: dict[str, Path] = {}
    for objective in ("throughput", "latency"):
        folder = _folder(root, objective)
        for path in sorted(folder.glob("*/*.json")):
            name = f"{objective}/{path.parent.name}/{path.stem}"
            if parts is None or any(part in name for part in parts):
                files[name] = path
    if not files:
        wanted = "" if parts is None else f" named like {', '.join(parts)}"
        raise InputError(
            f"'{root}' has no workloads{wanted}; it needs throughput/*/*.json or latency/*/*.json "
            "(placewright bench tarnawski --fetch gets them)"
        )
    return files


def fetch_workloads(destination: Path | str) -> Path:
    """Download the published workloads, check them, and write them to a folder.

    Returns:
        `destination`, with ``throughput``, ``latency`` and ``experts`` in it.

    Raises:
        AnswerError: there is no network, or the download differs from the published data.
        InputError: a folder cannot be made.
    """
    root = Path(destination)
    try:
        with urllib.request.urlopen(ARCHIVE, timeout=_TIMEOUT_SECONDS) as response:
            content = response.read()
    except (OSError, HTTPException) as error:
        raise AnswerError(f"cannot download {ARCHIVE}: {error}") from None
    files = _workload_files(content)
    digest = hashlib.sha256(b"".join(name.encode() + files[name] for name in sorted(files)))
    if digest.hexdigest() != DIGEST:
        raise AnswerError(
            f"{ARCHIVE} holds other workloads than were published (SHA-256 {digest.hexdigest()})"
        )
    for name in sorted(files):
        try:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder of '{root / name}': {error}") from None
    write_files({root / name: files[name] for name in sorted(files)})
    return root


def _workload_files(content: bytes) -> dict[str, bytes]:
    """Our path -> content of the JSON files in an archive of the repository."""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            for member in archive:
                _, *parts = Path(member.name).parts
                if len(parts) < 2 or parts[0] not in _FOLDERS or ".." in parts:
                    continue
                stream = archive.extractfile(member) if member.name.endswith(".json") else None
                if stream is not None:
                    files["/".join([_FOLDERS[parts[0]], *parts[1:]])] = stream.read()
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise AnswerError(f"what was downloaded is no archive: {error}") from None
    return files


def _folder(root: Path, name: str) -> Path:
    """A folder by our name or the repository's."""
    theirs = next(key for key, ours in _FOLDERS.items() if ours == name)
    return root / theirs if (root / theirs).is_dir() else root / name


def run_apart(workload: str, path: Path, method: str, seconds: float) -> BenchmarkRow | None:
    """Run in a separate process, so that the peak memory is that of the run.

    A process that the system ends, as when no memory is left, gives a row with the error.
    """
    start = time.perf_counter()
    arguments = (workload, str(path), method, seconds)
    with Processes(1, threads=None) as workers:
        (done,) = workers.run([Task(run_one, arguments, tries=1, may_be_lost=True, alone=True)])
    if done.lost:
        took = time.perf_counter() - start
        return BenchmarkRow(workload, method, None, 0.0, None, "error", took, 0, done.lost)
    row: BenchmarkRow | None = done.result
    return row


def run_one(workload: str, path: str, method: str, seconds: float) -> BenchmarkRow | None:
    """Run a method on a workload in this process; None if the method is not defined for it."""
    is_throughput = workload.startswith("throughput")
    problem = read_workload(path, objective="throughput" if is_throughput else "latency")
    if method == REPLICATED:
        return _replicated_row(workload, problem, seconds) if is_throughput else None
    settings = _settings(method, Path(path))
    if settings is None:
        return None
    placer = make_placer(method, settings)
    if placer.why_not(problem) is not None:
        return None
    return _row(workload, placer, problem, seconds)


def _row(workload: str, placer: Placer, problem: Problem, seconds: float) -> BenchmarkRow:
    start = time.perf_counter()
    evaluator = Evaluator(problem, Budget(seconds=seconds))
    try:
        solution = pass_interrupt_on(solution_by(placer, problem, evaluator, 0))
        value = solution.value if math.isfinite(solution.value) else None
        bound, status, message = solution.lower_bound, str(solution.status), solution.message
    except (InputError, AnswerError) as error:
        value, bound, status, message = None, 0.0, "error", str(error)
    bound = bound if math.isfinite(bound) else 0.0
    row = _measured_row(workload, placer.name, value, bound, status, start, message)
    return replace(row, evaluations=evaluator.evaluations, core_seconds=evaluator.core_seconds)


def _replicated_row(workload: str, problem: Problem, seconds: float) -> BenchmarkRow:
    """The best contiguous split with replicas; training workloads lack the exchanged bytes."""
    start = time.perf_counter()
    value, bound, status = None, 0.0, "error"
    try:
        result = replicated(problem, lambda: seconds - (time.perf_counter() - start))
        message, status = result.message, "unknown"
        if result.device_of is not None:
            value = Simulator(result.problem).value(Placement.of(result.device_of))
            # A stage on r devices puts a fraction 1 / r of it on each, as balanced load allows.
            bound, status = balanced_load_bound(problem), "feasible"
            message = f"{' '.join(result.problem.cluster.device_names)}: {message}"
    except InputError as error:
        message = str(error)
    return _measured_row(workload, REPLICATED, value, bound, status, start, message)


def _measured_row(
    workload: str,
    method: str,
    value: float | None,
    bound: float,
    status: str,
    start: float,
    message: str,
) -> BenchmarkRow:
    """A row with the result, the seconds since `start` and the memory of this process."""
    seconds = time.perf_counter() - start
    return BenchmarkRow(
        workload, method, value, bound, None, status, seconds, peak_memory(), message
    )


def _settings(method: str, path: Path) -> dict[str, str] | None:
    """Hyperparameters of a method on a workload; None if it lacks the data for them."""
    if method == "pipedream" and path.stem in _PIPEDREAM_IGNORED:
        return {"ignored": _PIPEDREAM_IGNORED[path.stem]}
    if method == "expert":
        if path.parent.name != "LayerGraphs":
            return None
        folder = _folder(path.parents[2], "experts")
        for stem in (path.stem, path.stem.replace("training", "inference")):
            file = folder / f"{stem}_expert.json"
            if file.exists():
                return {"file": str(file)}
        return None
    return {}


def peak_memory() -> int:
    """Largest resident set of this process so far, in bytes; 0 if the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)


def _with_gaps(rows: list[BenchmarkRow]) -> list[BenchmarkRow]:
    """Every row's gap against the best bound that any method proved for the workload.

    A negative gap is shown as it is, as it says that a bound is false.
    """
    best: dict[str, float] = {}
    for row in rows:
        best[row.workload] = max(best.get(row.workload, 0.0), row.bound)
    result: list[BenchmarkRow] = []
    for row in rows:
        bound = row.bound if row.method == REPLICATED else best[row.workload]
        gap = None if row.value is None or bound <= 0 else row.value / bound - 1.0
        if gap is not None and abs(gap) < _ROUNDING:
            gap = 0.0
        result.append(BenchmarkRow(**{**asdict(row), "gap": gap}))
    return result
