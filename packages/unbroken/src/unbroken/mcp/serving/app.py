"""Builds the MCP server for agents and tools, and runs it over stdio or HTTP. `served` runs the calls."""

from __future__ import annotations

import hmac
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout
from typing import Any, cast

import mcp_types as types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError

from unbroken.agent import Agent
from unbroken.agent.toolset import ToolSet
from unbroken.asgi import Receive, Response, Scope, Send, read_headers
from unbroken.errors import InvalidTool, UnbrokenError, UserError
from unbroken.mcp.content import own_version
from unbroken.mcp.serving.client_user import Waiting
from unbroken.mcp.serving.served import ServedAgent, ServedTools
from unbroken.tools.schema import NAME
from unbroken.tools.toolbox import Source, Toolbox
from unbroken_wires.validation import checked

LOOPBACK = ["127.0.0.1:*", "localhost:*", "[::1]:*"]


@checked
def asgi_app(
    served: Agent[Any, Any] | Mapping[str, Agent[Any, Any]] | Source,
    *,
    key: str = "",
    path: str = "/mcp",
    name: str = "",
    description: str = "",
    deps: Any = None,
) -> Any:
    """An ASGI application that serves an agent (or several, by name) or tools at `path`, as streamable HTTP. Run it
    with uvicorn, or mount it together with its lifespan.

    - `served`: an `Agent` becomes a tool that takes a prompt. Tools are served as they are: anything that
      `Agent(tools=…)` takes.
    - `key`: clients have to send it as `Authorization: Bearer …`. Without one, only clients that address this machine
      as `localhost` are answered, so that no web page can reach it under another name.
    - `name`, `description`: of the agent's tool. By default the agent's own name, or `ask`.
    - `deps`: what tools find in `CallContext.deps`.
    """
    server = build(served, name=name, description=description, deps=deps)
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=not key,
        allowed_hosts=[] if key else LOOPBACK,
        allowed_origins=[] if key else [f"http://{host}" for host in LOOPBACK],
    )
    app = server.streamable_http_app(streamable_http_path=path, transport_security=security)
    app.add_middleware(_TrimmedHeaders)
    return _with_key(app, key) if key else app


async def serve_stdio(
    served: Agent[Any, Any] | Mapping[str, Agent[Any, Any]] | Source,
    *,
    name: str = "",
    description: str = "",
    deps: Any = None,
) -> None:
    """Serves the client that started this program, over standard input and output, until it closes them. What tools
    print goes to standard error. Arguments as for `asgi_app`."""
    server = build(served, name=name, description=description, deps=deps)
    try:
        async with stdio_server() as (reading, writing):
            with redirect_stdout(sys.stderr):  # Python would write it when the client has its pipe back
                await server.run(reading, writing, server.create_initialization_options())
    except BaseExceptionGroup as group:
        raise cause_in(group) or group from None


def cause_in(error: BaseException) -> UnbrokenError | None:
    """Our own error in what the tasks of a server raised together."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return next((found for each in group.exceptions if (found := cause_in(each)) is not None), None)
    return error if isinstance(error, UnbrokenError) else None


def build(
    served: Agent[Any, Any] | Mapping[str, Agent[Any, Any]] | Source, *, name: str, description: str, deps: Any
) -> Server[Any]:
    waiting = Waiting()
    agents, tools = _sorted_out(served, name, description, deps, waiting)

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        listed = [one.description for one in agents.values()]
        return types.ListToolsResult(tools=[*listed, *(await tools.descriptions() if tools is not None else ())])

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.name in agents:
            return await agents[params.name].call(context, params)
        toolbox = await tools.toolbox() if tools is not None else Toolbox()
        if tools is None or params.name not in toolbox:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool `{params.name}`")
        return await tools.call(context, params, toolbox)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncGenerator[dict[str, Any]]:
        """The servers that agents and tools use are open while this one runs."""
        async with AsyncExitStack() as stack:
            for one in agents.values():
                await stack.enter_async_context(one.agent)
            if tools is not None:
                await stack.enter_async_context(tools.tools.opened())
                if twice := agents.keys() & set((await tools.toolbox()).names):
                    raise InvalidTool(f"an agent and a tool are called `{twice.pop()}`; give the agent another name")
            yield {}

    return Server(
        next(iter(agents)) if len(agents) == 1 and tools is None else "unbroken",
        version=own_version(),
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _sorted_out(
    served: Any, name: str, description: str, deps: Any, waiting: Waiting
) -> tuple[dict[str, ServedAgent], ServedTools | None]:
    """The agents in it, by name, and the tools."""
    named: list[tuple[str, Any]] = []
    sources: list[Any] = []
    if isinstance(served, Mapping):
        named = [(str(key), agent) for key, agent in cast("Mapping[Any, Any]", served).items()]
    else:
        given = list(cast("list[Any]", served)) if isinstance(served, list | tuple) else [served]
        named = [("", each) for each in given if isinstance(each, Agent)]
        sources = [each for each in given if not isinstance(each, Agent)]
    if not named and not sources:
        raise UserError("there is nothing to serve; give an agent, agents by name, or tools")
    if (name or description) and (len(named) != 1 or sources):
        raise UserError("name= and description= are for one agent that is served alone")
    agents: dict[str, ServedAgent] = {}
    for key, agent in named:
        if not isinstance(agent, Agent):
            raise UserError(f"expected agents by name, got {key!r}: {type(agent).__name__}; give tools as a list")
        if (name or key) and not NAME.fullmatch(name or key):
            raise UserError(
                f"`{name or key}` cannot be the name of an MCP tool; use 1 to 64 letters, digits, `_` or `-`"
            )
        one = ServedAgent(cast("Agent[Any, Any]", agent), name or key, description, deps, waiting)
        if one.name in agents:
            raise UserError(f"two agents are called `{one.name}`; give them as a dict by name")
        agents[one.name] = one
    return agents, ServedTools(ToolSet(sources), deps, waiting) if sources else None


class _TrimmedHeaders:
    """White space around the value of a header is not part of it, and uvicorn leaves what follows it: the package would
    say that such a header does not match its body."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        await self._app(scope, receive, send)


def _with_key(app: Any, key: str) -> Any:
    """Answers 401 to requests without the key."""
    expected = f"Bearer {key}".encode()

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = read_headers(scope).get("authorization", "").encode("utf-8", "replace")
            if not hmac.compare_digest(given, expected):
                headers = {"www-authenticate": "Bearer"}
                await Response(send).complete(401, b'{"error":"a key is needed: Authorization: Bearer ..."}', headers)
                return
        await app(scope, receive, send)

    return guard
