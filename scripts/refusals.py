"""What it takes to refuse: seconds and memory of every nasty file and every edited plan.

    python scripts/refusals.py [-o FILE]

Each case of `tests/cli/nasty_files.py` and `tests/cli/test_edited_plans.py` is a command in a
process of its own, with kernels compiled. Counted is what it takes after the libraries that it may
need were imported. Exits with 1 where a case is not refused with exit code 2 or 1 and one line of
at most 300 characters, takes more than 5 s, or more than 1 GiB.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SECONDS, KIBIBYTES, LINE = 5.0, 1 << 20, 300
PATIENCE_SECONDS = 600.0  # a net: what has not ended by then hangs
MEASURED = """
import json, resource, sys, time
import numpy, yaml, pydantic, onnx, torch, openvino, onnxruntime
import placewright.simulation.evaluator, placewright.session.session
from placewright.cli.app import main
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
code = 70
try:
    main()
except SystemExit as ended:
    code = ended.code
seconds = time.perf_counter() - began
more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used
with open(3, "w") as measured:
    json.dump({"code": code, "seconds": seconds, "kibibytes": more}, measured)
"""


def cases() -> dict[str, Callable[[Path], list[object]]]:
    """Makes the files in a folder and gives the words of the command."""
    sys.path.insert(0, str(ROOT / "tests"))
    from cli.nasty_files import NASTY
    from cli.test_edited_plans import CHANGES, EARLIER

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

    files = {name: make for name, (make, _) in NASTY.items()}
    return {**files, **{f"a plan with {name}": edited(name) for name in CHANGES}}


def refused(name: str, make: Callable[[Path], list[object]]) -> dict[str, Any]:
    """The row of one case."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, measured = Path(scratch) / "case", Path(scratch) / "measured"
        folder.mkdir()
        words = [str(word) for word in make(folder)]
        script = Path(scratch) / "script.py"
        script.write_text(MEASURED)
        line = f'exec "$@" 3>"{measured}"'
        done = subprocess.run(
            ["sh", "-c", line, "sh", sys.executable, str(script), *words],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
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
        and row["seconds"] <= SECONDS
        and row["kibibytes"] <= KIBIBYTES
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="What it takes to refuse.")
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args(arguments)
    rows = []
    for name, make in cases().items():
        rows.append(refused(name, make))
        if not is_good(rows[-1]):
            sys.stdout.write(f"{rows[-1]}\n")
    found = {
        "format": "placewright.refusals/1",
        "cases": len(rows),
        "refused": sum(map(is_good, rows)),
        "most_seconds": max(row["seconds"] for row in rows),
        "most_mebibytes": max(row["kibibytes"] for row in rows) / 1024,
        "rows": rows,
    }
    if chosen.output:
        chosen.output.write_text(json.dumps(found, indent=1) + "\n")
    shown = {name: value for name, value in found.items() if name != "rows"}
    sys.stdout.write(json.dumps(shown) + "\n")
    return 0 if found["cases"] == found["refused"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
