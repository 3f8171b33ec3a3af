"""Measured costs that outlive a process: an SQLite file in the user's cache folder.

A row is the samples of one unit on one device: its key holds the model, the unit's signature, the
device's fingerprint (hardware and options) and the runtime's version, so that a change of any of
them measures again. Rows are committed while measuring goes on, so that an interrupted run resumes.
SQLite's own locks make it safe for several processes.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from placewright.errors import InputError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (
    key TEXT PRIMARY KEY, seconds TEXT NOT NULL, complete INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unfinished (
    key TEXT PRIMARY KEY, seconds TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_WAIT_SECONDS = 30.0


def default_store_path() -> Path:
    """``costs.sqlite`` in the user's cache folder for placewright."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("placewright")) / "costs.sqlite"


class CostStore:
    """Samples and facts by key.

    Args:
        path: of the file; None is `default_store_path`. Its folder is made.
        is_fresh: what the file held before is measured again and replaced.

    Raises:
        InputError: the file cannot be opened, or is no SQLite file.
    """

    def __init__(self, path: Path | str | None = None, *, is_fresh: bool = False) -> None:
        self.path = default_store_path() if path is None else Path(path)
        self._is_fresh = is_fresh
        self._written: set[str] = set()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cost store '{self.path}' cannot be used: {error}; remove it or name another"
            ) from error
        with self._connection() as connection:
            connection.executescript(_SCHEMA)

    def samples(self, keys: Sequence[str]) -> dict[str, tuple[list[float], bool]]:
        """Key -> (seconds of each run, whether measuring is complete), of those that are there."""
        found: dict[str, tuple[list[float], bool]] = {}
        with self._connection() as connection:
            for key in dict.fromkeys(keys):
                if self._is_fresh and key not in self._written:
                    continue
                row = connection.execute(
                    "SELECT seconds, complete FROM samples WHERE key = ?", (key,)
                ).fetchone()
                if self._is_fresh:  # complete ones of before stay until there are others
                    again = connection.execute(
                        "SELECT seconds, 0 FROM unfinished WHERE key = ?", (key,)
                    ).fetchone()
                    row = again or row
                if row is not None:
                    found[key] = (json.loads(row[0]), bool(row[1]))
        return found

    def put_samples(self, rows: Mapping[str, Sequence[float]], *, complete: bool) -> None:
        """Write all samples of some keys in one transaction; incomplete ones replace none that are.

        Args:
            rows: key -> seconds of each run.
            complete: nothing more will be measured.
        """
        with self._connection() as connection:
            for key, row in rows.items():
                text = json.dumps(list(row))
                if key not in self._written:
                    connection.execute("DELETE FROM unfinished WHERE key = ?", (key,))
                held = connection.execute(
                    "SELECT complete FROM samples WHERE key = ?", (key,)
                ).fetchone()
                if held is not None and held[0] and not complete:
                    connection.execute(
                        "INSERT OR REPLACE INTO unfinished VALUES (?, ?)", (key, text)
                    )
                    continue
                connection.execute(
                    "INSERT OR REPLACE INTO samples VALUES (?, ?, ?)", (key, text, int(complete))
                )
                connection.execute("DELETE FROM unfinished WHERE key = ?", (key,))
        self._written.update(rows)

    def fact(self, key: str) -> str | None:
        """A text that was kept under `key`, None without."""
        if self._is_fresh and key not in self._written:
            return None
        with self._connection() as connection:
            row = connection.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put_fact(self, key: str, value: str) -> None:
        """Keep a text under `key`."""
        self._written.add(key)
        with self._connection() as connection:
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, value))

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own per use: a store may be used from any thread or process.

        Raises:
            InputError: the file cannot be read or written, or is no SQLite file.
        """
        try:
            connection = sqlite3.connect(self.path, timeout=_WAIT_SECONDS)
            try:
                with connection:
                    yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise InputError(
                f"cost store '{self.path}' cannot be used: {error}; remove it or name another"
            ) from error
