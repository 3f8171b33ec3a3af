"""Origin of results files, as pages of results show it: command, date, commit, machine.

    python -m benchmarks.result_pages

Files whose content has changed get the present date, and the newest commit of `main` that is part
of the present state. A file may also have older rows, which were measured before.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

NAME = "stored.json"
UNKNOWN = "not recorded"  # a machine
GOLDEN = "tests/golden/workloads.py"  # values that golden tests compare, also shown on a page
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Stored:
    """A results file as it was stored.

    Attributes:
        sha256: of its content.
        commit: last commit before it changed.
        date: on which it changed.
    """

    sha256: str
    commit: str
    date: str

    @property
    def text(self) -> str:
        """Date and commit in words."""
        return f"last changed on {self.date} after commit `{self.commit}`"


def stored_rows(folder: Path) -> dict[str, Stored]:
    """Name of a file of rows -> how it was stored."""
    return {
        name: Stored(**entry) for name, entry in json.loads((folder / NAME).read_text()).items()
    }


def note_changes(folder: Path) -> None:
    """Give files that are new or have changed the present commit and date."""
    before = stored_rows(folder) if (folder / NAME).exists() else {}
    now: dict[str, Stored] = {}
    for name, path in row_files(folder).items():
        content, entry = hash_of(path), before.get(name)
        if entry is None or entry.sha256 != content:
            entry = Stored(content, _commit(folder), date.today().isoformat())
        now[name] = entry
    text = json.dumps({name: asdict(entry) for name, entry in now.items()}, indent=1)
    (folder / NAME).write_text(text + "\n")


def row_files(folder: Path) -> dict[str, Path]:
    """Name and path of each file that tables are made from."""
    files = {path.name: path for path in sorted(folder.glob("*.json")) if path.name != NAME}
    return {**files, GOLDEN: _ROOT / GOLDEN}


def hash_of(path: Path) -> str:
    """SHA-256 of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _commit(folder: Path) -> str:
    """A commit that stays: one of a branch has another name once the branch is rebased."""
    git = ["git", "-C", str(folder)]
    base = subprocess.run([*git, "merge-base", "HEAD", "main"], capture_output=True, text=True)
    commit = base.stdout.strip() or "HEAD"
    short = [*git, "rev-parse", "--short=8", commit]
    return subprocess.run(short, check=True, capture_output=True, text=True).stdout.strip()


def origin(command: str, file: str, stored: Stored, document: Any) -> list[str]:
    """Paragraphs on the rows of a table: their command, file, date, commit and machine.

    Args:
        command: that wrote the rows.
        file: name of the results file beside the page.
        document: content of the file, which may name machines, versions and dates.
    """
    return [
        f"Command: `{command}`. Rows: [{file}]({file}), {stored.text}.",
        *provenance(document),
    ]


def _short(fingerprint: str) -> str:
    """The name in a device's fingerprint; without one the part that names a processor."""
    parts = [part.strip() for part in fingerprint.split(";")]
    names = [part.removeprefix("name ") for part in parts if part.startswith("name ")]
    return (names or [part for part in parts if not part.isdigit()])[0]


def _processor(key: str) -> str:
    """A machine in words; rows hold the facts of `processor_text` without their names."""
    facts = [part.strip() for part in key.split(";")]
    if len(facts) != 6:
        return key
    family, model, name, stepping, _, cores = facts
    return f"{name} (family {family}, model {model}, stepping {stepping}), {cores}"


def provenance(document: Any) -> list[str]:
    """Machines, versions and dates; a machine that no row names is said to be unknown."""
    rows = [document, *document.get("rows", [])]
    if isinstance(record := document.get("machine"), dict):
        rows += [{"machine": _short(text)} for text in record["devices"].values()]
        rows += [{"version": f"PyTorch {record['versions']['torch']}"}]
        rows += [{"date": document["recorded"]}]
    known = [
        dict.fromkeys(str(row[key]) for row in rows if row.get(key) and isinstance(row[key], str))
        for key in ("machine", "version", "date")
    ]
    known[0] = dict.fromkeys(map(_processor, known[0])) or {UNKNOWN: None}
    names = ("Machine", "Version", "Date")
    shown = [
        f"{name}: {', '.join(values)}." for name, values in zip(names, known, strict=True) if values
    ]
    return [" ".join(shown)]
