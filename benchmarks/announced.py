"""The seconds that commands announce, beside those that they take."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from platformdirs import user_cache_path

from benchmarks.command import run
from placewright.cli import options as opt
from placewright.cli.output import print_json, print_line, print_note, print_table
from placewright.session.parsing import parse_names

_SIZE = r"(\d+) (s|min|h)"
_ANNOUNCED = re.compile(rf": about (?:{_SIZE} to )?{_SIZE} (in all|without [^(]*)")
_LEFT = re.compile(rf"about {_SIZE} left")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
MODEL = "{model}"
FIRST = (  # with an empty store, for the first model
    ("devices", "--devices", "cores"),
    ("profile", MODEL, "--devices", "cores"),
)
OF_EACH = (  # commands for each model
    ("place", MODEL, "--devices", "cores", "--quick", "--remeasure"),
    ("place", MODEL, "--devices", "cores", "--budget", "10s", "--remeasure"),
)
LAST = (  # for the first model
    ("place", MODEL, "--devices", "cores", "--budget", "10s"),
    ("place", MODEL, "--devices", "cores", "--objective", "throughput", "--budget", "10s"),
    ("compare", MODEL, "--devices", "cores", "--placers", "heft,local-search,random", "--budget",
     "2s", "--seeds", "3"),
)  # fmt: skip
MODELS = "zoo:resnet50,zoo:inception_v3,zoo:bert_base,zoo:gpt2,zoo:nasnet_a"
_OFF = 1.3  # announced over taken, at most, or the other way round


@dataclass(frozen=True)
class Announced:
    """One command.

    Attributes:
        command: its words.
        low, high: announced seconds of the whole; None if it announced none.
        unknown: the steps whose seconds nobody knew, in its words.
        taken: seconds from its first progress to its end.
        left_ratios: time left as told over time left in truth, of each line that told it with more
            than two seconds to come.
    """

    command: str
    low: float | None
    high: float | None
    unknown: str
    taken: float
    left_ratios: tuple[float, ...]

    @property
    def ratio(self) -> float | None:
        """Announced over taken: 1 within the announced range, else by the nearer end."""
        if self.low is None or self.high is None:
            return None
        return min(max(1.0, self.low / self.taken), max(self.high / self.taken, 1e-9))


def announced(
    models: Annotated[str, typer.Option(help="Models of the commands, by commas.")] = MODELS,
    only: Annotated[str, typer.Option(help="A word of the commands to run.")] = "",
    minutes: Annotated[float, typer.Option(help="No command begins later.")] = 10.0,
    as_json: opt.Json = False,
) -> None:
    """Run commands with an empty store, one after the other, and compare times.

    Each model is placed quickly, and with a check. All other commands are for the first model.
    Kernels are those of your cache folder.
    """
    rows: list[Announced] = []
    began, names = time.monotonic(), parse_names(models)
    commands = [_with(words, names[0]) for words in FIRST]
    commands += [_with(words, name) for name in names for words in OF_EACH]
    commands += [_with(words, names[0]) for words in LAST]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "cache" / "placewright").mkdir(parents=True)
        for kept in ("kernels", "models"):
            ours = user_cache_path("placewright") / kept
            ours.mkdir(parents=True, exist_ok=True)
            (home / "cache" / "placewright" / kept).symlink_to(ours)
        for command in commands:
            if time.monotonic() - began > 60.0 * minutes:
                print_note(f"left out, for {minutes:g} min are over: {' '.join(command)}")
            elif not only or only in command:
                rows.append(_timed(command, home))
                print_note(f"{rows[-1].command}: announced {_range(rows[-1])} s, took "
                           f"{rows[-1].taken:.0f} s")  # fmt: skip
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    cells = [
        [
            row.command,
            _range(row),
            f"{row.taken:.0f}",
            "-" if row.ratio is None else f"{row.ratio:.2f}",
            f"{statistics.median(row.left_ratios):.2f}" if row.left_ratios else "-",
            row.unknown or "-",
        ]
        for row in rows
    ]
    columns = ["command", "announced (s)", "taken (s)", "ratio", "time left, median", "without"]
    print_table("Announced and taken", columns, cells)
    print_line("ratio: announced over taken; 1 if the time taken is within the announced range.")
    ratios = [row.ratio for row in rows if row.ratio is not None]
    near = sum(1.0 / _OFF <= ratio <= _OFF for ratio in ratios)
    print_line(f"{near} of {len(rows)} commands took what they announced, within {_OFF - 1:.0%}")


def _with(words: Sequence[str], model: str) -> list[str]:
    """A command with the name of a model."""
    return [word.replace(MODEL, model) for word in words]


def _range(row: Announced) -> str:
    return "-" if row.high is None else f"{row.low:.0f} to {row.high:.0f}"


def _timed(command: Sequence[str], home: Path) -> Announced:
    """Run a command; its lines of progress come every second instead of every minute."""
    program = (
        "import placewright.cli.output as output; output._SECONDS_BETWEEN_LINES = 1.0; "
        "from placewright.cli import main; main()"
    )
    lines: list[tuple[float, str]] = []
    process = subprocess.Popen(
        [sys.executable, "-c", program, *command],
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, XDG_CACHE_HOME=str(home / "cache"), PYTHONPATH=str(Path.cwd())),
    )
    began = time.monotonic()
    stream = process.stderr
    assert stream is not None
    reader = threading.Thread(
        target=lambda: lines.extend((time.monotonic() - began, line) for line in stream)
    )
    reader.start()
    process.wait()
    reader.join()
    taken = time.monotonic() - began
    found = next((m for _, line in lines if (m := _ANNOUNCED.search(line))), None)
    low = high = None
    if found is not None:
        high = _of(found[3], found[4])
        low = high if found[1] is None else _of(found[1], found[2])
    told = [(at, m) for at, line in lines if (m := _LEFT.search(line)) and taken - at > 2.0]
    return Announced(
        " ".join(command),
        low,
        high,
        found[5].removeprefix("without ").strip() if found and found[5] != "in all" else "",
        taken,
        tuple(_of(m[1], m[2]) / (taken - at) for at, m in told),
    )


def _of(number: str, unit: str) -> float:
    return float(number) * _SECONDS[unit]


if __name__ == "__main__":
    run(announced)
