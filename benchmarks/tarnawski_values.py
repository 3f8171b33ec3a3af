"""Values of the page of pipelines: the tables of given splits that golden tests compare."""

from __future__ import annotations

import runpy
from pathlib import Path

from benchmarks.stored_rows import GOLDEN, row_files, stored_rows
from placewright.report.tables import markdown_table

_COMMAND = "pytest -m '' tests/golden/test_tarnawski.py"
_PUBLISHED_MEMORY = "over memory"
_MORE_ACCELERATORS = "6 accelerators of 5"


def tarnawski_values(folder: Path) -> dict[str, str]:
    """Value of each name in the template."""
    golden = runpy.run_path(str(row_files(folder)[GOLDEN]))
    given, latency, experts = (
        golden["GIVEN_THROUGHPUT"], golden["LATENCY"], golden["EXPERT_LATENCY"]
    )  # fmt: skip
    loads = sum(1 + (expert is not None) for _, _, expert in given.values())
    return {
        "origin": f"Command: `{_COMMAND}`. Values: `{GOLDEN}`, {stored_rows(folder)[GOLDEN].text}. "
        "A test compares them on every machine.",
        "loads": str(loads),
        "latencies": str(2 * len(latency) + len(experts)),
        "throughput": "\n".join(
            markdown_table(
                ["workload", "one accelerator", "expert"],
                [
                    [
                        f"`throughput/{name}`",
                        f"{single:.2f}{'' if fits else f' ({_PUBLISHED_MEMORY})'}",
                        "–" if expert is None else f"{expert:.2f}",
                    ]
                    for name, (single, fits, expert) in given.items()
                ],
            )
        ),
        "latency": "\n".join(
            markdown_table(
                ["workload", "all on CPUs", "greedy", "expert"],
                [
                    [f"`latency/{name}`", f"{cpus:.2f}", f"{greedy:.2f}", _expert(name, experts)]
                    for name, (cpus, greedy, _) in latency.items()
                ],
            )
        ),
    }


def _expert(name: str, experts: dict[str, float]) -> str:
    """The expert's value with the limit that it breaks."""
    if name not in experts:
        return "–"
    broken = _MORE_ACCELERATORS if "bert24" in name else _PUBLISHED_MEMORY
    return f"{experts[name]:.2f} ({broken})"
