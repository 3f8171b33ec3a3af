"""Makefile, hooks, workflow and `.ci/run` run the same commands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
JOBS: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())[
    "jobs"
]


def recipe(target: str) -> list[str]:
    """The commands of a target, as a shell in the root of the repository runs them."""
    rule = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert rule is not None, f"the Makefile has no target '{target}'"
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in rule[1].splitlines()]


def made_targets(commands: list[str]) -> list[str]:
    """The targets of commands that all begin with ``make``."""
    words = [command.split() for command in commands]
    assert all(first == "make" for first, *_ in words), commands
    return [target for _, target, *_ in words]


def workflow_targets() -> list[str]:
    steps = [step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step]
    return made_targets(steps)


def ci_targets() -> list[str]:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    return made_targets([line for line in lines if line.startswith("make ")])


def test_hooks_run_the_commands_of_make_check() -> None:
    assert re.search(r"^check: lint docs\b", MAKEFILE, re.MULTILINE)
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    hooks = repository["hooks"]
    assert [hook["entry"] for hook in hooks] == [*recipe("lint"), *recipe("docs")]
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in hooks)


def test_the_workflow_runs_all_targets_of_the_local_run() -> None:
    assert ci_targets() == ["check", "site", "base", "engine", "test"]
    assert set(ci_targets()) <= set(workflow_targets())


@pytest.mark.parametrize("target", [*workflow_targets(), *ci_targets()])
def test_every_target_is_in_the_makefile(target: str) -> None:
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)


@pytest.mark.parametrize("job", ["check", "base"])
def test_the_workflow_runs_on_every_version_that_the_package_names(job: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    named = [f"3.{text.removeprefix(prefix)}" for text in project["classifiers"] if prefix in text]
    assert JOBS[job]["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"


def test_base_dependencies_have_lowest_versions() -> None:
    """`scripts/base_install.sh lowest` reads them from the text."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert all(re.match(r"[\w-]+>=[\d.]+", text) for text in project["dependencies"])
