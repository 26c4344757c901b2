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
    from unbroken.gateway.app import Gateway
    from unbroken.gateway.config import read_config
    from unbroken.gateway.http.uvicorn_server import running, serve
    from unbroken.gateway.keys import GatewayKey, create_key
    from unbroken.gateway.settings import ClientProfile, GatewaySettings, UpstreamSettings

_HOMES = {
    "Gateway": "unbroken.gateway.app",
    "read_config": "unbroken.gateway.config",
    "running": "unbroken.gateway.http.uvicorn_server",
    "serve": "unbroken.gateway.http.uvicorn_server",
    "GatewayKey": "unbroken.gateway.keys",
    "create_key": "unbroken.gateway.keys",
    "ClientProfile": "unbroken.gateway.settings",
    "GatewaySettings": "unbroken.gateway.settings",
    "UpstreamSettings": "unbroken.gateway.settings",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unbroken.gateway' has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "unbroken":
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
