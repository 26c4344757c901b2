"""The gateway: a server between any client and any model that releases one tool call at a time where a client needs it.

A request passes `http` (server, key, route), then `relay` (answered by a model, with `turns` for held calls) or
`passthrough` (forwarded to a provider as it is). `upstreams` are the models, `stores` keep turns, `config` reads
settings, `admin` has the status pages. Names are loaded on first use: the command line reads settings without starting
a server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unbroken.errors import needs_extra

if TYPE_CHECKING:
    from unbroken_gateway.app import Gateway
    from unbroken_gateway.config import read_config
    from unbroken_gateway.http.uvicorn_server import running, serve
    from unbroken_gateway.keys import GatewayKey, create_key
    from unbroken_gateway.settings import ClientProfile, GatewaySettings, UpstreamSettings

_HOMES = {
    "Gateway": "unbroken_gateway.app",
    "read_config": "unbroken_gateway.config",
    "running": "unbroken_gateway.http.uvicorn_server",
    "serve": "unbroken_gateway.http.uvicorn_server",
    "GatewayKey": "unbroken_gateway.keys",
    "create_key": "unbroken_gateway.keys",
    "ClientProfile": "unbroken_gateway.settings",
    "GatewaySettings": "unbroken_gateway.settings",
    "UpstreamSettings": "unbroken_gateway.settings",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unbroken_gateway' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("unbroken"):
            raise
        raise needs_extra("the gateway", error.name or "a package", "gateway") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "ClientProfile",
    "Gateway",
    "GatewayKey",
    "GatewaySettings",
    "UpstreamSettings",
    "create_key",
    "read_config",
    "running",
    "serve",
]
