"""Language models that are read and planned without their weights: seconds, memory, proven gap.

    python -m benchmarks.language_plans [--results docs/results/language-plans.json]

Each configuration is read by a command of its own, whose seconds and peak memory count its imports.
Its parameters stand beside those that `transformers` itself counts. Two large models are then
planned on devices that hold neither alone, also by commands of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.command import Results, run, write_results
from placewright.execution.processor import processor_text
from placewright.files.plan_file import read_plan

PUBLISHED = Path(__file__).parents[1] / "tests" / "data" / "language"
SMALL = {  # of a published dense model with tied embeddings
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
    "tie_word_embeddings": True,
}  # fmt: skip
# Name -> configuration; of those with a type alone the library's own sizes.
CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "qwen2, 0.5 billion": SMALL,
    "gemma2": {"model_type": "gemma2"},
    "gemma3_text": {"model_type": "gemma3_text"},
    "mixtral": {"model_type": "mixtral"},
    "jamba": {"model_type": "jamba"},
    "llama-3.3-70b": json.loads((PUBLISHED / "llama-3.3-70b.json").read_text()),
    "qwen3_next": {"model_type": "qwen3_next"},
    "gpt_oss": {"model_type": "gpt_oss"},
    "qwen3-235b-a22b": json.loads((PUBLISHED / "qwen3-235b-a22b.json").read_text()),
    "deepseek_v3": {"model_type": "deepseek_v3"},
}
KINDS = {
    "qwen2, 0.5 billion": "dense, tied", "gemma2": "windows, tied", "gemma3_text": "windows, tied",
    "mixtral": "experts", "jamba": "hybrid, experts", "llama-3.3-70b": "dense",
    "qwen3_next": "hybrid, experts", "gpt_oss": "windows, experts", "qwen3-235b-a22b": "experts",
    "deepseek_v3": "latent attention, experts",
}  # fmt: skip
REQUEST = ("--weights", "q4_k_m", "--prompt", "2000", "--generate", "300")
PLANS: Mapping[str, tuple[str, Sequence[str]]] = {
    "70 billion, three cards": (
        "llama-3.3-70b",
        (
            *("--devices", "rtx-4090,rtx-4070-ti-super,rtx-3060,cpu"),
            *("--context", "8k", "--kv", "q8_0"),
        ),
    ),
    "235 billion, one card": (
        "qwen3-235b-a22b",
        ("--devices", "rtx-4090,cpu", "--memory", "cpu=192GiB", "--context", "32k"),
    ),
}
PROGRAM = ("-m", "placewright")
COUNTED = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.from_pretrained(sys.argv[1])
with torch.device("meta"):
    print(AutoModelForCausalLM.from_config(config).num_parameters())
"""


class Ended(NamedTuple):
    """A command that ended well."""

    output: str
    seconds: float  # of the clock, imports among them
    peak: int  # bytes of memory


def ended(*words: str) -> Ended:
    """Run Python in a process of its own."""
    began = time.perf_counter()
    child = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, list(words), output)
    return Ended(output, time.perf_counter() - began, used.ru_maxrss * 1024)


def in_own_folder(make: Callable[[str, Path], dict[str, Any]], name: str) -> dict[str, Any]:
    """A row that is made in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return make(name, Path(folder))


def reading(name: str, folder: Path) -> dict[str, Any]:
    """A configuration that is read, and the library's own count of its parameters."""
    (folder / "config.json").write_text(json.dumps(CONFIGURATIONS[name]))
    done = ended(*PROGRAM, "graph", f"hf:{folder}", "--weights", "q4_k_m", "--json")
    facts = json.loads(done.output)["facts"]
    counted = int(ended("-c", COUNTED, str(folder)).output)
    return {
        "configuration": name,
        "kind": KINDS[name],
        "seconds": done.seconds,
        "peak": done.peak,
        "parameters": facts["parameters"],
        "counted": counted,
        "cache_bytes_per_token": facts["cache_bytes_per_token_f16"],
        "state_bytes": facts["state_bytes"],
    }


def planning(name: str, folder: Path) -> dict[str, Any]:
    """A plan, with the seconds of the whole command and those of the search."""
    model, words = PLANS[name]
    (folder / "config.json").write_text(json.dumps(CONFIGURATIONS[model]))
    file = folder / "plan.json"
    done = ended(*PROGRAM, "place", f"hf:{folder}", *REQUEST, *words, "--quiet", "-o", str(file))
    plan = read_plan(file)
    return {
        "plan": name,
        "model": model,
        "words": " ".join([*REQUEST, *words]),
        "seconds": done.seconds,
        "search_seconds": plan.placer.seconds,
        "peak": done.peak,
        "value": plan.value,
        "lower_bound": plan.lower_bound,
        "status": plan.status,
    }


def main(results: Results = Path("docs/results/language-plans.json")) -> None:
    """Read and plan, and write the rows."""
    document = {
        "machine": processor_text(),
        "version": f"{version('placewright')}, transformers {version('transformers')}",
        "date": datetime.now(UTC).date().isoformat(),
        "readings": [in_own_folder(reading, name) for name in CONFIGURATIONS],
        "plans": [in_own_folder(planning, name) for name in PLANS],
    }
    write_results(results, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    run(main)
