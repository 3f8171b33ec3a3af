"""When each results file last changed, and after which commit; pages of results show both.

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

NAME = "stored.json"


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
    """A commit that stays: one of a branch has another name once the branch is rebased."""
    git = ["git", "-C", str(folder)]
    base = subprocess.run([*git, "merge-base", "HEAD", "main"], capture_output=True, text=True)
    commit = base.stdout.strip() or "HEAD"
    short = [*git, "rev-parse", "--short=8", commit]
    return subprocess.run(short, check=True, capture_output=True, text=True).stdout.strip()
