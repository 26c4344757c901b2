"""MCP servers as tools, against real servers: one of the `mcp` package (over pipes and HTTP) and one by hand."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")

import uvicorn
from mcp_server import PIXEL, build

from unbroken.clock import RealClock
from unbroken.errors import InvalidTool, UserError
from unbroken.events import CallProgress
from unbroken.messages import Media, Text, ToolCall, ToolResult
from unbroken.tools.calling import ResultCache, ToolCaller
from unbroken.tools.context import CallContext
from unbroken.tools.mcp import MCPServer
from unbroken.tools.toolbox import Toolbox

PROGRAM = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]
