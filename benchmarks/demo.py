"""Fit a model into two devices that are each too small for it, run it, and lift the limits.

    python -m benchmarks.demo [--readme]

`--readme` also puts what the demo prints into README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from pathlib import Path

from placewright.cli.app import main as placewright

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- demo: begin -->\n", "<!-- demo: end -->"
LIMIT = "80MiB"
PAIR = "zoo:inception_v3/small --runtime torch --devices cpu:0,cpu:1"
STEPS = (
    (
        f"Inception-V3 takes more than {LIMIT}. Each core may use {LIMIT}: neither can hold it.",
        f"place {PAIR} --memory cpu:0={LIMIT} --memory cpu:1={LIMIT} --quick -o build/demo.json "
        "--report build/demo.html",
        r"Split over|peak memory",
    ),
    (
        "The plan runs on both. Outputs, time and memory are compared with the prediction.",
        "run build/demo.json --runs 5",
        r"outputs equal|measured|peak memory",
    ),
    (
        "The same model without limits: is the split still worth it?",
        f"place {PAIR} --quick -o build/free.json",
        r"\b[Ss]plit",
    ),
)


def main() -> None:
    """Run the steps and print the lines that matter."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--readme", action="store_true", help="put the output into README.md")
    wanted = parser.parse_args()
    lines: list[str] = []
    for why, command, pattern in STEPS:
        sys.stdout.write(f"\n# {why}\n$ placewright {command}\n")
        sys.stdout.flush()
        shown = shown_lines(command, pattern)
        sys.stdout.writelines(f"{line}\n" for line in shown)
        lines += [f"# {why}", f"$ placewright {command}", *shown, ""]
    sys.stdout.write("\nThe page build/demo.html shows the plan: timeline, memory, graph.\n")
    if wanted.readme:
        path = ROOT / "README.md"
        block = "```console\n" + "\n".join(lines).rstrip() + "\n```\n"
        path.write_text(with_block(path.read_text(), block))


def shown_lines(command: str, pattern: str) -> list[str]:
    """Run a command with its progress on the terminal; return the lines that match.

    All steps run in this process, which reads the model once and keeps it for the next step.

    Raises:
        SystemExit: the command failed.
    """
    (ROOT / "build").mkdir(exist_ok=True)
    printed = io.StringIO()
    sys.argv = ["placewright", *command.split()]
    try:
        with contextlib.redirect_stdout(printed), contextlib.chdir(ROOT):
            placewright()
    except SystemExit as ended:
        if ended.code:
            sys.stdout.write(printed.getvalue())
            raise
    return [line.rstrip() for line in printed.getvalue().splitlines() if re.search(pattern, line)]


def with_block(page: str, block: str) -> str:
    """Replace the text between the two marks of a page."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{block}{END}{after}"


if __name__ == "__main__":
    main()
