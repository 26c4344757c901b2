"""MCP in both directions, with the extra `mcp`: `client` uses the tools of a server, `serving` makes agents and tools a
server."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unbroken.mcp.client.target import OAuth, PromptTemplate, Resource

if TYPE_CHECKING:
    from unbroken.mcp.serving.app import asgi_app, serve_stdio


def __getattr__(name: str) -> Any:
    """What needs the extra is imported at first use."""
    if name not in ("asgi_app", "serve_stdio"):
        raise AttributeError(f"module 'unbroken.mcp' has no attribute {name!r}")
    return getattr(importlib.import_module("unbroken.mcp.serving.app"), name)


__all__ = ["OAuth", "PromptTemplate", "Resource", "asgi_app", "serve_stdio"]
