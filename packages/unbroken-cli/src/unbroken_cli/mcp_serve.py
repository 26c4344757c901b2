"""`unbroken mcp serve app:agent`: an agent or tools as an MCP server. `unbroken.mcp` does the work; this module reads
the options."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout
from importlib.util import find_spec
from typing import Annotated, Any, cast

import typer

from unbroken.agent import Agent
from unbroken.agent.named_objects import find_object
from unbroken.errors import InvalidTool, UnbrokenError, UserError, needs_extra
from unbroken.logs import chosen_level, set_up_logs
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox, ToolServer
from unbroken_cli.exits import FAILED, INTERRUPTED, MISUSED, print_line
from unbroken_cli.options import LogLevelName
from unbroken_cli.progress_line import progress

app = typer.Typer(no_args_is_help=True)

_LOCAL = ("127.0.0.1", "localhost", "::1")


class _NotStarted(UnbrokenError):
    """What is served could not be opened."""


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction] - typer calls it
    """Serve agents and tools to programs that speak the Model Context Protocol."""


@app.command()
def serve(
    served: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME|FILE",
            help="An agent, agents by name, or tools: app:agent, app.py:tools; or a Python file with @tool functions.",
            show_default=False,
        ),
    ],
    http: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Serve over HTTP at /mcp; port 0 takes any free one.", show_default="stdio"
        ),
    ] = "",
    key_env: Annotated[
        str, typer.Option(metavar="VARIABLE", help="Over HTTP: the variable with the key that clients have to send.")
    ] = "",
    open_to_all: Annotated[
        bool,
        typer.Option("--open-to-all", help="Allow listening on other addresses than this machine's own without a key."),
    ] = False,
    name: Annotated[str, typer.Option(metavar="NAME", help="The name of the agent's tool.")] = "",
    description: Annotated[str, typer.Option(metavar="TEXT", help="What the agent does, for the client's model.")] = "",
    log_level: LogLevelName = "",
) -> None:
    """Serve an agent or tools as an MCP server, over standard input and output or over HTTP.

    An agent becomes a tool that takes a prompt. A client that cancels its call cancels the run. If a call needs an
    approval, the user of the client is asked. Over standard input and output it ends when the client closes them; what
    tools print goes to standard error.

    Exit codes: 0 stopped; 2 wrong use, or the port is taken; 3 it could not start; 130 interrupted.
    """
    set_up_logs(False, chosen_level(log_level, "warning") or "warning")
    try:
        with_key = _key(key_env)
        host, port = _address(http) if http else ("", 0)
        if http and host not in _LOCAL and not (with_key or open_to_all):
            raise UserError(f"--http {http}: other machines can reach it; give --key-env VARIABLE, or --open-to-all")
        with redirect_stdout(sys.stderr), progress(f"loading {served}"):  # standard output is for the client
            found = _find(served)
        try:
            if http:
                _serve_http(found, host, port, with_key, name, description)
            else:
                _serve_stdio(found, name, description)
        except UserError as error:
            raise UserError(f"mcp serve {served}: {error}") from None
    except _NotStarted as error:
        print_line(f"the server could not start: {error}")
        raise typer.Exit(FAILED) from None
    except UnbrokenError as error:
        print_line(str(error))
        raise typer.Exit(MISUSED if isinstance(error, UserError) else FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _serve_stdio(found: Any, name: str, description: str) -> None:
    from unbroken.mcp import serve_stdio  # noqa: PLC0415 - an optional extra

    try:
        asyncio.run(serve_stdio(found, name=name, description=description))
    except InvalidTool as error:  # a server that it uses, or two of the same name
        raise _NotStarted(str(error)) from None


def _serve_http(found: Any, host: str, port: int, key: str, name: str, description: str) -> None:
    import uvicorn  # noqa: PLC0415 - an optional extra

    from unbroken.mcp.serving.app import asgi_app, cause_in  # noqa: PLC0415 - an optional extra

    application = asgi_app(found, key=key, name=name, description=description)
    reasons: list[BaseException] = []

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        try:
            await application(scope, receive, send)
        except Exception as error:
            if scope["type"] == "lifespan":  # uvicorn ends without a reason
                reasons.append(cause_in(error) or error)
            raise

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            starting.close()
            place = f"[{host}]" if ":" in host else host
            typer.echo(f"listens on http://{place}:{listening.getsockname()[1]}/mcp")

    config = uvicorn.Config(watched, log_level="critical", lifespan="on", timeout_graceful_shutdown=3)
    try:
        listening = _listen(host, port)
    except OSError as error:
        raise UserError(f"--http {host}:{port}: {error.strerror or error}") from None
    with listening, ExitStack() as starting:
        starting.enter_context(progress("starting the server"))
        try:
            Server(config).run([listening])
        except SystemExit:
            raise _NotStarted(str(reasons[0]) if reasons else "no reason is known") from None


def _find(given: str) -> Any:
    _check_extra()
    if ":" not in given and given.endswith(".py"):
        return Toolbox.from_file(given)
    found: Any = find_object(given, "mcp serve", "app:agent")
    if isinstance(found, Agent | Mapping | Tool | Toolbox | ToolServer | list | tuple):
        return cast("Any", found)
    try:
        return Toolbox(found)
    except InvalidTool as error:
        kind = type(found).__name__
        wanted = "an agent, a dict of agents by name, or tools"
        raise UserError(f"mcp serve {given}: it has the type `{kind}`, and must be {wanted}: {error}") from None


def _check_extra() -> None:
    if find_spec("mcp") is None:
        raise needs_extra("an MCP server", "the package mcp", "mcp")


def _key(variable: str) -> str:
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(f"--key-env {variable}: the variable is not set, or empty")
    return key


def _address(given: str) -> tuple[str, int]:
    host, _, port = given.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise UserError(f"--http {given}: give HOST:PORT, as in 127.0.0.1:8000")
    return host.strip("[]") or "127.0.0.1", int(port)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)
