"""Store of measured costs: an SQLite file in the user's cache folder.

A row holds the samples of a unit on a device. Its key holds the model, the units that were measured
together, the unit's signature, the device's fingerprint (hardware and options) and the runtime's
version: if any of them changes, the unit is measured again. Rows are committed during a
measurement, so that an interrupted run resumes. SQLite's locks make the store safe for several
processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from placewright.errors import InputError
from placewright.io.scratch import folder_instead, tell_lost_cache

T = TypeVar("T")
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
_NOT_WRITABLE = (
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
)


def default_store_path() -> Path:
    """``costs.sqlite`` in the user's cache folder for placewright."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("placewright")) / "costs.sqlite"


class CostStore:
    """Samples and facts by key.

    Args:
        path: of the file; None is `default_store_path`. Its folder is made.
        is_fresh: earlier rows are measured again and replaced.

    Raises:
        InputError: the file cannot be opened, or is no SQLite file.
    """

    def __init__(self, path: Path | str | None = None, *, is_fresh: bool = False) -> None:
        self.path = default_store_path() if path is None else Path(path)
        self._is_default = path is None
        self._is_fresh = is_fresh
        self._written: set[str] = set()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._use_copy(error.strerror or str(error), error)
        self._use(lambda connection: connection.executescript(_SCHEMA))

    def samples(self, keys: Sequence[str]) -> dict[str, tuple[list[float], bool]]:
        """Key -> (seconds of each run, whether measuring is complete), for known keys."""
        asked = [key for key in dict.fromkeys(keys) if not self._is_fresh or key in self._written]
        return self._use(lambda connection: self._known(connection, asked))

    def _known(
        self, connection: sqlite3.Connection, keys: Sequence[str]
    ) -> dict[str, tuple[list[float], bool]]:
        known: dict[str, tuple[list[float], bool]] = {}
        for key in keys:
            row = connection.execute(
                "SELECT seconds, complete FROM samples WHERE key = ?", (key,)
            ).fetchone()
            if self._is_fresh:  # earlier complete rows stay until new ones are complete
                again = connection.execute(
                    "SELECT seconds, 0 FROM unfinished WHERE key = ?", (key,)
                ).fetchone()
                row = again or row
            if row is not None:
                try:
                    known[key] = (json.loads(row[0]), bool(row[1]))
                except ValueError:
                    raise sqlite3.DatabaseError("it holds damaged samples") from None
        return known

    def put_samples(
        self, rows: Mapping[str, Sequence[float]], *, complete: bool, is_final: bool = False
    ) -> None:
        """Write all samples of some keys in one transaction.

        Incomplete samples do not replace complete ones, unless a fresh store gets its final ones.

        Args:
            rows: key -> seconds of each run.
            complete: nothing more will be measured, now or later.
            is_final: this process measures no more; a later one may add to incomplete samples.
        """
        replaces = complete or (is_final and self._is_fresh)
        self._use(lambda connection: self._put(connection, rows, complete, replaces))
        self._written.update(rows)

    def _put(
        self,
        connection: sqlite3.Connection,
        rows: Mapping[str, Sequence[float]],
        complete: bool,
        replaces: bool,
    ) -> None:
        connection.execute("BEGIN IMMEDIATE")  # nobody writes between what is read and written
        for key, row in rows.items():
            text = json.dumps(list(row))
            if key not in self._written:
                connection.execute("DELETE FROM unfinished WHERE key = ?", (key,))
            held = connection.execute(
                "SELECT complete FROM samples WHERE key = ?", (key,)
            ).fetchone()
            if held is not None and held[0] and not replaces:
                connection.execute("INSERT OR REPLACE INTO unfinished VALUES (?, ?)", (key, text))
                continue
            connection.execute(
                "INSERT OR REPLACE INTO samples VALUES (?, ?, ?)", (key, text, int(complete))
            )
            connection.execute("DELETE FROM unfinished WHERE key = ?", (key,))

    def fact(self, key: str) -> str | None:
        """The text stored under `key`, if there is one."""
        if self._is_fresh and key not in self._written:
            return None
        select = "SELECT value FROM facts WHERE key = ?"
        row = self._use(lambda connection: connection.execute(select, (key,)).fetchone())
        return None if row is None else str(row[0])

    def put_fact(self, key: str, value: str) -> None:
        """Store a text under `key`."""
        self._written.add(key)
        insert = "INSERT OR REPLACE INTO facts VALUES (?, ?)"
        self._use(lambda connection: connection.execute(insert, (key, value)))

    def change_fact(self, key: str, change: Callable[[str | None], str]) -> str:
        """Replace the text stored under `key`; no other process changes it meanwhile.

        Args:
            change: gives the new text, from the stored one, or from None.

        Returns:
            The new text.
        """

        self._written.add(key)

        def changed(connection: sqlite3.Connection) -> str:
            connection.execute("BEGIN IMMEDIATE")
            select = "SELECT value FROM facts WHERE key = ?"
            row = connection.execute(select, (key,)).fetchone()
            text = change(None if row is None else str(row[0]))
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, text))
            return text

        return self._use(changed)

    def remove_fact(self, key: str) -> None:
        """Remove the text stored under `key`, if there is one."""
        delete = "DELETE FROM facts WHERE key = ?"
        self._use(lambda connection: connection.execute(delete, (key,)))

    def _use(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Do something in one transaction; if the file cannot be written, in a copy of it.

        Raises:
            InputError: the file cannot be read or written, or is no SQLite file.
        """
        try:
            try:
                return self._transaction(action)
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _NOT_WRITABLE:
                    raise
                self._use_copy(str(error), error)
            return self._transaction(action)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _transaction(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Do something with a new connection, since any thread or process may use the store."""
        connection = sqlite3.connect(self.path, timeout=_WAIT_SECONDS)
        with contextlib.closing(connection), connection:
            return action(connection)

    def _use_copy(self, reason: str, error: Exception) -> None:
        """Use a copy of the readable rows from now on, which is deleted with the process.

        Raises:
            InputError: the user named the file, or there is no room for a copy.
        """
        if not self._is_default:
            raise self._unusable(error) from error
        tell_lost_cache(self.path.parent, reason)
        try:
            copy = folder_instead() / self.path.name
            if copy == self.path:
                raise self._unusable(error) from error
            if not copy.exists() and self.path.exists():
                part = copy.with_name(f"{copy.name}.{os.getpid()}.{threading.get_ident()}")
                try:
                    shutil.copyfile(self.path, part)
                    os.replace(part, copy)
                finally:
                    part.unlink(missing_ok=True)
        except OSError:
            raise self._unusable(error) from error
        self.path = copy

    def _unusable(self, error: Exception) -> InputError:
        return InputError(
            f"cost store '{self.path}' cannot be used: {error}; remove it or name another"
        )
