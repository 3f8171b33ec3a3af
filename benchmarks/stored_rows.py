"""When each results file was stored, and after which commit; pages of results show both.

    python -m benchmarks.result_pages

The list changes for a file whose content has changed: its rows then belong to the present commit.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

NAME = "stored.json"


@dataclass(frozen=True)
class Stored:
    """A results file as it was stored.

    Attributes:
        sha256: of its content.
        commit: last commit before it was stored.
        date: on which it was stored.
    """

    sha256: str
    commit: str
    date: str

    @property
    def text(self) -> str:
        """Date and commit in words."""
        return f"stored on {self.date} after commit `{self.commit}`"


def stored_rows(folder: Path) -> dict[str, Stored]:
    """Name of a results file -> how it was stored."""
    return {
        name: Stored(**entry) for name, entry in json.loads((folder / NAME).read_text()).items()
    }


def note_changes(folder: Path) -> None:
    """Give files that are new or have changed the present commit and date."""
    before = stored_rows(folder) if (folder / NAME).exists() else {}
    now: dict[str, Stored] = {}
    for path in sorted(folder.glob("*.json")):
        if path.name == NAME:
            continue
        content, entry = hash_of(path), before.get(path.name)
        if entry is None or entry.sha256 != content:
            entry = Stored(content, _commit(folder), date.today().isoformat())
        now[path.name] = entry
    text = json.dumps({name: asdict(entry) for name, entry in now.items()}, indent=1)
    (folder / NAME).write_text(text + "\n")


def hash_of(path: Path) -> str:
    """SHA-256 of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _commit(folder: Path) -> str:
    command = ["git", "-C", str(folder), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
