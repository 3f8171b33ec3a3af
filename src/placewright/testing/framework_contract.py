"""The contract of every framework; implementers call `check_framework` in tests of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from placewright.core.graph import ComputationGraph
from placewright.core.problem import OBJECTIVES
from placewright.core.source import ModelSource
from placewright.execution.framework import Find, Framework, ReadOptions, found_path
from placewright.testing.runtime_contract import check_runtime


def check_framework(framework: Framework, path: Path, *, find: Find = found_path) -> None:
    """Check all promises of a declaration and of its runtime, on one model.

    Args:
        framework: to be checked.
        path: of a model that it reads by itself; it needs an output that its inputs change.
        find: tells what a name means.

    Raises:
        AssertionError: the framework breaks the contract; the message says how.
    """
    check_declaration(framework)
    assert path.suffix.lower() in framework.suffixes, f"'{path}' is none of {framework.suffixes}"
    graph, source = framework.read(str(path), find, ReadOptions())
    check_source(framework, source, path)
    assert _same(framework.again(source, find), graph), "read again, it is another graph"
    check_runtime(framework.runtime(find), framework.runnable(source, find), graph)


def check_declaration(framework: Framework) -> None:
    """Check the form of a declaration, and that importing it imports nothing heavy."""
    assert framework.name, "a framework has a name"
    assert framework.library, "the library has a name"
    assert framework.extra, "an extra installs it"
    assert framework.formats, "it knows the ops of one format of sources at least"
    unknown = [objective for objective in framework.objectives if objective not in OBJECTIVES]
    assert not unknown, f"no objectives: {unknown}"
    for suffix in framework.suffixes:
        assert suffix.startswith("."), f"'{suffix}' is no suffix"
        assert suffix == suffix.lower(), f"'{suffix}' is not in small letters"
    heavy = _imported_with(type(framework).__module__)
    assert not heavy, f"importing the declaration imports {', '.join(heavy)}"


def check_source(framework: Framework, source: ModelSource, path: Path) -> None:
    """Check that a source leads back to the framework and to the model."""
    assert source.format in framework.formats, f"'{source.format}' is none of its formats"
    assert source.path == str(path), "the source has the model's path"
    assert source.sha256, "the source has a hash"
    assert source.reader_version, "the source tells the version of the library that read it"
    assert source.signature is not None, "the source tells inputs and outputs"


def _same(read: tuple[ComputationGraph, ModelSource], graph: ComputationGraph) -> bool:
    found, _ = read
    return (found.op_names, found.op_kinds) == (graph.op_names, graph.op_kinds)


def _imported_with(module: str) -> Sequence[str]:
    """Foreign packages that importing a module imports, in a process of its own."""
    own = ["placewright", module.partition(".")[0]]
    code = (
        f"import sys, placewright\nbefore = set(sys.modules)\nimport {module}\n"
        "found = {name.partition('.')[0] for name in sys.modules.keys() - before}\n"
        f"print(*sorted(found - sys.stdlib_module_names - set({own!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()
