"""Commands and Python of the site run as they are written, page by page, in a new folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import toys
from support.comparisons import SPLIT, comparison
from support.gguf_files import MADE, write_gguf
from support.llama_cpp import NO_ENGINE, cache_of_kernels, engine_gguf, has_engine
from support.small_configs import SMALL

from placewright.core.solution import Budget
from placewright.isolation.confined import lacks_call_filter, lacks_file_rules

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# A page with commands -> files that a reader of it has already.
PAGES = {
    "start/first-placement.md": (),
    "start/questions.md": ("model.onnx",),
    "tutorials/serve-on-unequal-devices.md": (),
    "tutorials/fit-into-memory.md": (),
    "tutorials/compare-your-placer.md": (),
    "tutorials/language-model.md": ("qwen3-235b.gguf", "llama-70b.gguf"),
    "how-to/limits.md": ("model.onnx",),
    "how-to/pins.md": ("model.onnx", "plan.json"),
    "how-to/serve.md": ("model.onnx", "plan.json"),
    "how-to/streams.md": ("model.onnx",),
    "how-to/untrusted-models.md": ("model.onnx", "plan.json"),
    "how-to/python.md": ("model.onnx",),
    "how-to/training.md": (),
    "how-to/decode.md": (),
    "how-to/costs-without-hardware.md": ("model.onnx",),
    "how-to/published-comparisons.md": ("comparisons.json",),
    "how-to/energy-and-price.md": ("model.onnx",),
    "how-to/modes.md": ("model.onnx",),
    "how-to/export.md": ("model.onnx", "model.gguf", "config.json"),
    "how-to/run-language-models.md": (),
    "how-to/report.md": ("model.onnx", "plan.json", "other.json"),
    "how-to/train-a-policy.md": ("model.onnx",),
    "how-to/workers-and-ray.md": ("model.onnx",),
}
FILE = re.compile(r"[Ww]rite this file as `([^`]+)`")
BLOCK = re.compile(r"```(console|python|yaml)\n(.*?)```", re.S)
QUICK = ("--quick", "--budget", "1s")  # for commands that the page leaves at their defaults
ZOO = re.compile(r"\b(zoo:\w+)(?= |$)")  # a model at its full size, which a test makes smaller


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write_model(path: Path) -> None:
    """A small network with the names of ops that the pages use."""
    import onnx
    from onnx import TensorProto, helper

    nodes = [helper.make_node("MatMul", ["x", "w0"], ["h0"], name="embedding")]
    last = "h0"
    for name in ("layers.0.attention", "layers.0.feed", "layers.1.attention", "layers.1.feed"):
        nodes += [
            helper.make_node("MatMul", [last, "w0"], [f"{name}.sum"], name=name),
            helper.make_node("Relu", [f"{name}.sum"], [f"{name}.out"], name=f"{name}.relu"),
        ]
        last = f"{name}.out"
    shape = [64, 64]
    weight = helper.make_tensor("w0", TensorProto.FLOAT, shape, [0.01] * 64 * 64)
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)],
        [weight],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def write_language_model(path: Path) -> None:
    """A small model with as many layers as the pages name."""
    kind = MADE["experts" if "qwen" in path.name else "dense"]
    numbers = {**kind.numbers, "context_length": 65536}
    made = replace(kind, layers=kind.layers[:1] * 24, numbers=numbers)
    write_gguf(path, made, np.random.default_rng(0), vocabulary=512)


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, env=environment, check=False
    )


def run_command(line: str, folder: Path) -> None:
    """One line after ``$``; ``# exit code N`` behind it says how it ends."""
    wanted = re.search(r"# exit code (\d+)", line)
    words = shlex.split(ZOO.sub(r"\1/tiny", line), comments=True)
    if words[1] == "place" and not {"--budget", "--quick", "--total"} & set(words):
        words += QUICK
    result = run(words, folder)
    told = f"{line}\n{result.stdout}{result.stderr}"
    assert result.returncode == (int(wanted[1]) if wanted else 0), told


def run_page(text: str, folder: Path) -> None:
    """All blocks in turn; a block of a file is written, other YAML is left alone.

    The Python of a page is one program, with the names of its earlier blocks.
    """
    names: dict[str, object] = {"__name__": "page"}
    for block in BLOCK.finditer(text):
        kind, body = block.groups()
        before = text[: block.start()].rstrip().rsplit("\n\n", 1)[-1]
        named = FILE.search(before)
        if named is not None:
            (folder / named[1]).write_text(body)
        elif kind == "console":
            for line in body.replace("\\\n", " ").splitlines():
                if line.startswith("$ placewright"):
                    run_command(line[2:], folder)
        elif kind == "python":
            exec(compile(body, "page", "exec"), names)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_it_is_written(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    if "model.onnx" in PAGES[page]:
        write_model(folder / "model.onnx")
    for name in PAGES[page]:
        if name.endswith(".gguf"):
            write_language_model(folder / name)
    if "config.json" in PAGES[page]:
        (folder / "config.json").write_text(json.dumps(SMALL["dense"]))
    if "comparisons.json" in PAGES[page]:
        (folder / "comparisons.json").write_text(json.dumps([comparison(SPLIT)]))
    if "plan.json" in PAGES[page]:
        run_command("placewright place model.onnx --devices cpu:0,cpu:1 --placer single", folder)
    if "other.json" in PAGES[page]:
        moved = "--pin 'layers.*=cpu:1' -o other.json"
        run_command(f"placewright place model.onnx --devices cpu:0,cpu:1 {moved}", folder)
    if page == "how-to/untrusted-models.md":
        why_not = lacks_file_rules() or lacks_call_filter()
        if why_not is not None:
            pytest.skip(why_not)
    if page == "how-to/run-language-models.md":
        if not has_engine():
            pytest.skip(NO_ENGINE)
        engine_gguf(folder / "model.gguf", 6, has_experts=False, has_tokens=True)
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache_of_kernels(folder)))
    run_page((DOCS / page).read_text(), folder)


def test_pages_with_commands_are_tried() -> None:
    """Each page of Start, Tutorials and How-to that shows a command or Python."""
    for part in ("start", "tutorials", "how-to"):
        for path in sorted((DOCS / part).glob("*.md")):
            text = path.read_text()
            shown = re.search(r"^\$ placewright |^```python", text, re.M) is not None
            assert (f"{part}/{path.name}" in PAGES) is shown, path.name
            assert not re.search(r"^```\w*\nplacewright ", text, re.M), f"{path.name}: no prompt"


def test_the_environment_of_the_page_of_policies_pays_the_fall_of_the_value() -> None:
    from gymnasium.utils.env_checker import check_env

    text = (DOCS / "how-to" / "train-a-policy.md").read_text()
    names: dict[str, Any] = {}
    exec(compile(re.findall(r"```python\n(.*?)```", text, re.S)[0], "page", "exec"), names)
    problem = toys.two_cluster_problem(2)
    check_env(names["PlacementEnv"](problem), skip_render_check=True)
    environment = names["PlacementEnv"](problem, Budget(evaluations=100))
    environment.reset(seed=3)
    first, total, is_done = environment.value, 0.0, False
    while not is_done:
        _, reward, is_done, _, _ = environment.step(0)
        total += reward
    assert total == pytest.approx(first - environment.value)
    assert environment.evaluator.best_value <= min(first, environment.value)
    assert environment.evaluator.evaluations == problem.colocation.n_groups + 1


def test_messages_of_the_page_of_errors_exist() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    rows = re.findall(r"^\| `(.+?)` \|", (DOCS / "reference" / "errors.md").read_text(), re.M)
    assert len(rows) > 10
    for message in rows:
        for part in re.split(r"'?\b[A-Z]{4,}\b'?|[()]", message):
            assert part.strip() in source, message
