"""Guard of a large change: what the commands answer stays what it was.

Each case places a model on described devices with a fixed seed and number of evaluations, simulates
the plan and compares placers on the problem that `place` wrote. `answers/` holds what the commands
printed when it was recorded with ``PLACEWRIGHT_RECORD_ANSWERS=1``. Measured fields, texts and paths
are left out. `run` is not among the commands: a plan runs only on the machine where it was
measured.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from cli.runner import InProcess

ANSWERS = Path(__file__).parent / "answers"
GOLDEN = Path(__file__).parent.parent / "golden"
RECORDS = bool(os.environ.get("PLACEWRIGHT_RECORD_ANSWERS"))

# name: model, options of `place`, placers of `compare`
CASES: dict[str, tuple[str, list[str], str]] = {
    "inception-openvino-2gpu": (
        "zoo:inception_v3/tiny",
        ["--devices", "catalogue:2gpu", "--placer", "local-search"],
        "heft,m-etf,expert,random,local-search",
    ),
    "bert-onnxruntime-cpu-gpu": (
        "zoo:bert_base/tiny",
        ["--devices", "catalogue:cpu+gpu", "--runtime", "onnxruntime", "--placer", "cem"],
        "peft,cpop,m-topo,even-split,cem",
    ),
    "gpt2-torch-4gpu": (
        "zoo:gpt2/tiny",
        ["--devices", "catalogue:4gpu", "--runtime", "torch", "--placer", "problem-space"],
        "m-sct,single,round-robin,problem-space",
    ),
    "inception-openvino-4gpu": (
        "zoo:inception_v3/tiny",
        ["--devices", "catalogue:4gpu", "--placer", "multilevel"],
        "multilevel,heft,greedy",
    ),
    "workload-throughput-auto": (
        str(GOLDEN / "small_workload.json"),
        ["--objective", "throughput", "--placer", "auto"],
        "auto,pipedream",
    ),
    "bert-throughput-openvino-2gpu": (
        "zoo:bert_base/tiny",
        ["--devices", "catalogue:2gpu", "--objective", "throughput", "--placer", "ideal-dp"],
        "pipedream,ideal-dp,dpl,local-search",
    ),
    "gnmt-throughput-onnxruntime-4gpu": (
        "zoo:gnmt/tiny",
        ["--devices", "catalogue:4gpu", "--objective", "throughput", "--runtime", "onnxruntime",
         "--samples-in-flight", "pipeline", "--placer", "local-search"],
        "pipedream,local-search,cem",
    ),
    "moe-throughput-torch-cpu-gpu": (
        "zoo:moe/tiny",
        ["--devices", "catalogue:cpu+gpu", "--objective", "throughput", "--runtime", "torch",
         "--placer", "dpl"],
        "dpl,single,local-search",
    ),
    "rnnlm-training-torch-2gpu": (
        "zoo:rnnlm/tiny",
        ["--devices", "catalogue:2gpu", "--objective", "training", "--placer", "local-search"],
        "expert,heft,local-search",
    ),
    "rnnlm-training-placeto-model": (
        "zoo:rnnlm/tiny",
        ["--devices", "catalogue:2gpu", "--objective", "training",
         "--execution-model", "placeto", "--placer", "local-search"],
        "single,local-search",
    ),
    "tarnawski-latency": (
        str(GOLDEN / "small_workload.json"),
        ["--objective", "latency", "--placer", "latency-ip"],
        "greedy,latency-ip,local-search",
    ),
    "tarnawski-training-throughput": (
        str(GOLDEN / "small_training.json"),
        ["--objective", "throughput", "--placer", "maxload-ip"],
        "ideal-dp,maxload-ip,local-search",
    ),
}  # fmt: skip

_LEFT_OUT = frozenset(
    {"seconds", "core_seconds", "path", "sha256", "measured", "version", "source", "text",
     "machine", "host", "verdict", "message", "report", "warnings", "problem_path", "stop"}
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_commands_answer_as_before(
    name: str,
    tmp_path: Path,
    cli: InProcess,
) -> None:
    """`place`, `simulate` and `compare` of described devices."""
    model, options, placers = CASES[name]
    budget = ("--evaluations", "200")
    asked = (*options, *budget, "--seed", "3", "-o", "plan.json")
    made = ("plan.problem.json", "--placers", placers, *budget, "--seeds", "2")
    answers = {
        "place": _printed(cli, tmp_path, "place", model, *asked),
        "plan": json.loads((tmp_path / "plan.json").read_text()),
        "simulate": _printed(cli, tmp_path, "simulate", "plan.json"),
        "compare": _printed(cli, tmp_path, "compare", *made),
    }
    _agree(name, answers)


def _printed(cli: InProcess, folder: Path, *words: str) -> Any:
    result = cli(*words, "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def _agree(name: str, answers: dict[str, Any]) -> None:
    kept = _kept(answers)
    file = ANSWERS / f"{name}.json"
    if RECORDS:
        ANSWERS.mkdir(exist_ok=True)
        file.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")
    different = list(_differences(json.loads(file.read_text()), kept, ""))
    assert not different, "\n".join(different[:20])


def _kept(value: Any) -> Any:
    """A document without what is measured or said in words."""
    if isinstance(value, dict):
        kept = {key: _kept(inner) for key, inner in value.items() if key not in _LEFT_OUT}
        if "history" in kept:  # evaluations, seconds, value, bound
            kept["history"] = [[row[0], *row[2:]] for row in kept["history"]]
        return kept
    if isinstance(value, list):
        return [_kept(inner) for inner in value]
    return value


def _differences(before: Any, after: Any, at: str) -> Any:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from _differences(before.get(key), after.get(key), f"{at}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (first, second) in enumerate(zip(before, after, strict=True)):
            yield from _differences(first, second, f"{at}[{index}]")
    elif isinstance(before, float) and isinstance(after, (int, float)):
        if not math.isclose(before, after, rel_tol=1e-9, abs_tol=1e-15):
            yield f"{at}: {before!r} before, {after!r} now"
    elif before != after:
        yield f"{at}: {before!r} before, {after!r} now"
