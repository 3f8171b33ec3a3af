"""Seconds and memory until a command refuses harmful files and edited plans.

    python -m benchmarks.refusals [-o FILE] [--code FOLDER]

Each case of `tests/cli/nasty_files.py` and `tests/cli/edited_plans.py` is a command in its own
process, with compiled kernels. Time and memory are counted after the import of libraries. The
program exits with 1 if a case takes more than 5 s or 1 GiB, or is not refused with exit code 1 or 2
and one line of at most 300 characters. `--code` takes Placewright from another folder, such as the
`src` of an earlier commit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SECONDS, KIBIBYTES, LINE = 5.0, 1 << 20, 300
PATIENCE_SECONDS = 60.0  # a net: what has not ended by then hangs
MOST_BYTES = 16 << 30  # of address space, so that an earlier version cannot take the machine
MEASURED = """
import json, resource, runpy, sys, time
import numpy, yaml, pydantic, onnx, torch, openvino, onnxruntime
import placewright.simulation.evaluator
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
code = 70
try:
    runpy.run_module("placewright", run_name="__main__")
except SystemExit as ended:
    code = ended.code
seconds = time.perf_counter() - began
more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used
with open(3, "w") as measured:
    json.dump({"code": code, "seconds": seconds, "kibibytes": more}, measured)
"""


def cases() -> dict[str, Callable[[Path], list[object]]]:
    """Make the files of each case in a folder; the words of its command."""
    sys.path.insert(0, str(ROOT / "tests"))
    from cli.edited_plans import CHANGES, EARLIER
    from cli.nasty_files import NASTY
    from cli.stranger_files import STRANGERS

    def edited(name: str) -> Callable[[Path], list[object]]:
        of, change, _ = CHANGES[name]

        def make(folder: Path) -> list[object]:
            for file in EARLIER.iterdir():
                shutil.copy(file, folder)
            document = json.loads((folder / f"{of}.json").read_text())
            change(document)
            (folder / "edited.json").write_text(json.dumps(document))
            return ["run", "edited.json"]

        return make

    files = {name: make for name, (make, _) in {**NASTY, **STRANGERS}.items()}
    return {**files, **{f"a plan with {name}": edited(name) for name in CHANGES}}


def refused(
    name: str, make: Callable[[Path], list[object]], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Run a case and return its row."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))

    with tempfile.TemporaryDirectory() as scratch:
        folder, measured = Path(scratch) / "case", Path(scratch) / "measured"
        folder.mkdir()
        words = [str(word) for word in make(folder)]
        script = Path(scratch) / "script.py"
        script.write_text(MEASURED)
        line = f'exec "$@" 3>"{measured}"'
        try:
            done = subprocess.run(
                ["sh", "-c", line, "sh", sys.executable, str(script), *words],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                env=environment,
                preexec_fn=limit,
                timeout=PATIENCE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return {"case": name, "code": None, "seconds": PATIENCE_SECONDS, "kibibytes": 0}
        lines = done.stderr.splitlines()
        row = {"case": name, "code": done.returncode, "lines": len(lines)}
        if measured.exists():
            row |= json.loads(measured.read_text())
        return row | {"letters": max(map(len, lines), default=0)}


def is_good(row: dict[str, Any]) -> bool:
    return (
        row["code"] in (1, 2)
        and row["lines"] == 1
        and row["letters"] <= LINE
        and row.get("seconds", PATIENCE_SECONDS) <= SECONDS
        and row["kibibytes"] <= KIBIBYTES
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="What it takes to refuse.")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--code", type=Path, default=ROOT / "src")
    chosen = parser.parse_args(arguments)
    environment = {**os.environ, "PYTHONPATH": str(chosen.code.resolve())}
    rows: list[dict[str, Any]] = []
    for name, make in cases().items():
        rows.append(refused(name, make, environment))
        if not is_good(rows[-1]):
            sys.stdout.write(f"{rows[-1]}\n")
    found = {
        "format": "placewright.refusals/1",
        "cases": len(rows),
        "refused": sum(map(is_good, rows)),
        "most_seconds": max(row.get("seconds", 0.0) for row in rows),
        "most_mebibytes": max(row.get("kibibytes", 0) for row in rows) / 1024,
        "rows": rows,
    }
    if chosen.output:
        chosen.output.write_text(json.dumps(found, indent=1) + "\n")
    shown = {name: value for name, value in found.items() if name != "rows"}
    sys.stdout.write(json.dumps(shown) + "\n")
    return 0 if found["cases"] == found["refused"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
