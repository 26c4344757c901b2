"""Chats on disk: one SQLite file, one row for each chat, so that they outlive the server.

A row is found by a digest of the chat's id, which only the browser has: the ids cannot be read from the file. It is
readable by its owner only.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import time
from pathlib import Path

from unbroken import UserError

LOG = logging.getLogger("course_assistant.web")
MOST_CHATS = 500
"""The chats that were unused for longest are removed."""
_TABLE = "CREATE TABLE IF NOT EXISTS chats (digest TEXT PRIMARY KEY, used REAL NOT NULL, body BLOB NOT NULL)"
_SAVE = "INSERT OR REPLACE INTO chats VALUES (?, ?, ?)"
_TRIM = "DELETE FROM chats WHERE digest NOT IN (SELECT digest FROM chats ORDER BY used DESC LIMIT ?)"


def default_folder() -> Path:
    """Where the applications of this user keep their data."""
    data = os.environ.get("XDG_DATA_HOME", "").strip()
    return Path(data or os.path.expanduser("~/.local/share")) / "unbroken" / "course_assistant"


class ChatStore:
    """`path` is the file, which is created. A chat that cannot be saved is logged once, and lives until the server
    ends."""

    def __init__(self, path: Path, most: int = MOST_CHATS) -> None:
        self._most = most
        self._failed = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._database = sqlite3.connect(path, timeout=5.0, isolation_level=None)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UserError(
                f"chats cannot be kept in {path}: {why}; name another folder with --data, or - for memory only"
            ) from None

    def save(self, id: str, body: bytes) -> None:
        try:
            self._database.execute(_SAVE, (_digest(id), time.time(), body))
            self._database.execute(_TRIM, (self._most,))
        except sqlite3.Error as error:
            if not self._failed:
                LOG.warning("chats are not saved any more, they end with the server: %s", error)
            self._failed = True

    def load(self, id: str) -> bytes | None:
        try:
            row = self._database.execute("SELECT body FROM chats WHERE digest = ?", (_digest(id),)).fetchone()
        except sqlite3.Error as error:
            LOG.warning("a chat cannot be loaded: %s", error)
            return None
        return None if row is None else row[0]

    def forget(self, id: str) -> bool:
        try:
            return self._database.execute("DELETE FROM chats WHERE digest = ?", (_digest(id),)).rowcount > 0
        except sqlite3.Error as error:
            LOG.warning("a chat cannot be deleted from the disk: %s", error)
            return False

    def close(self) -> None:
        self._database.close()


def _digest(id: str) -> str:
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()
