"""One session of the Claude Agent SDK: a process of its CLI whose only tools are the client's.

The tools are an MCP server in this process. A call of one waits for the client's result, which `give` brings; the CLI
sends the id of each call along, so that a result can reach no other call. The session belongs to one task from its
start to the end of its process, so that no cancelled request can leave a process behind.
"""

# pyright: basic, reportMissingImports=false
# claude-agent-sdk is not in the environment in which the types are checked.

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import mcp.types as mcp
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ClaudeSDKError,
    ResultMessage,
    StreamEvent,
    SystemMessage,
    project_key_for_directory,
)
from mcp.server.lowlevel import Server

from claude_agent_upstream.conversation import PREFIX, Conversation, Object, transcript
from unbroken.errors import (
    ContextTooLong,
    ModelNotFound,
    ProviderError,
    RateLimited,
    RequestRefused,
    TimedOut,
    Unauthorized,
    Unavailable,
)

log = logging.getLogger("claude_agent_upstream")

STOPS_WITHIN = 5.0
"""How long the CLI may take to give up what it does, before it is ended without being asked."""

MAX_RESULT = 400_000
"""Characters of a result. The CLI writes a longer one to a file, and the model gets the beginning."""

ENVIRONMENT = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_COMPACT": "1",  # the client decides what is in its history
    "ENABLE_TOOL_SEARCH": "false",  # all tools are offered, however many there are
    "CLAUDE_CODE_MAX_MCP_DESCRIPTION_LENGTH": "1000000",  # otherwise 4,096 characters, the rest is cut off
    "MAX_MCP_OUTPUT_TOKENS": "100000000",  # otherwise 25,000 tokens of a result
    "MCP_TOOL_TIMEOUT": "2000000000",  # milliseconds; the session has its own limit
    "CLAUDE_CODE_MAX_RETRIES": "0",  # the gateway retries, and it knows what the client has received
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
}
"""What the CLI would otherwise do by itself to a client's conversation."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The SDK's turn is over."""


@dataclass(eq=False)
class Session:
    conversation: Conversation
    model: str
    environment: Mapping[str, str]
    cli_path: str | None
    on_gone: Callable[[Session], None]
    """Called once, when its process has ended."""
    closing: bool = False
    _heard: asyncio.Queue[Object | Finished | ProviderError] = field(default_factory=asyncio.Queue)
    _results: dict[str, asyncio.Future[mcp.CallToolResult]] = field(default_factory=dict)
    _called: set[str] = field(default_factory=set)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _busy: bool = True
    """The SDK has a turn to finish."""
    _client: ClaudeSDKClient | None = None
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._live(), name="claude agent session")

    def close(self) -> None:
        """Ends the process; `on_gone` is called when it has ended. May be called again."""
        self.closing = True
        self._stop.set()

    async def next(self, within: float) -> Object | Finished:
        """The next event of the answer. `ProviderError` if there will be none, or none in time."""
        try:
            heard = await asyncio.wait_for(self._heard.get(), within)
        except TimeoutError:
            raise TimedOut(f"the Claude Agent SDK reported nothing for {within:g} s") from None
        if isinstance(heard, ProviderError):
            raise heard
        return heard

    def give(self, results: Mapping[str, mcp.CallToolResult]) -> None:
        """The results of the calls that it waits for, by the SDK's ids."""
        for id, result in results.items():
            self._result(id).set_result(result)

    async def say(self, content: list[Object]) -> bool:
        """Sends the user's next message to an idle session; False if the session is gone."""
        if self.closing or self._client is None:
            return False
        self._busy = True
        try:
            await self._client.query(_one(content))
        except ClaudeSDKError:
            return False
        return True

    def _result(self, id: str) -> asyncio.Future[mcp.CallToolResult]:
        return self._results.setdefault(id, asyncio.get_running_loop().create_future())

    async def _live(self) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="claude-agent-", ignore_cleanup_errors=True) as folder:
                self._client = ClaudeSDKClient(self._options(Path(folder)))
                try:
                    await self._until_stopped(self._talk(self._client))
                finally:
                    self.closing = True
                    await self._end(self._client)
        except Exception as error:  # noqa: BLE001 - the system may fail in any way
            self._fail(error)
        finally:
            self.closing = True
            self.on_gone(self)

    async def _until_stopped(self, talk: Coroutine[Any, Any, None]) -> None:
        talking, stopping = asyncio.ensure_future(talk), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({talking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (talking, stopping):
                task.cancel()
        with suppress(asyncio.CancelledError):
            await talking

    async def _talk(self, client: ClaudeSDKClient) -> None:
        try:
            await self._hear(client)
        except Exception as error:  # noqa: BLE001 - the SDK and its CLI may fail in any way
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._busy = False
        self.closing = True
        if not isinstance(error, ProviderError):
            log.warning("a session of the Claude Agent SDK failed: %s: %s", type(error).__name__, error)
            words = f"the session of the Claude Agent SDK failed: {type(error).__name__}"
            error = Unavailable(words, status=502)
        self._heard.put_nowait(error)

    async def _hear(self, client: ClaudeSDKClient) -> None:
        await client.connect()
        first = _first_message(self.conversation)
        if first:
            await client.query(_one(first))
        async for message in client.receive_messages():
            match message:
                case StreamEvent(parent_tool_use_id=None):
                    self._heard.put_nowait(message.event)
                case SystemMessage(subtype="init"):
                    self._check(message.data)
                case ResultMessage(is_error=True):
                    raise _failure(message)
                case ResultMessage():
                    self._busy = False
                    self._heard.put_nowait(Finished())
                case _:
                    pass
        raise Unavailable("the process of the Claude Agent SDK has ended", status=502)

    async def _end(self, client: ClaudeSDKClient) -> None:
        # Without the interrupt the CLI reports its open calls as failed and sends another request.
        if self._busy:
            with suppress(Exception):
                await asyncio.wait_for(client.interrupt(), STOPS_WITHIN)
        await client.disconnect()

    def _check(self, init: Mapping[str, Any]) -> None:
        """The CLI lists what its model may call: exactly the client's tools, or the session ends."""
        offered = frozenset(init.get("tools", ()))
        if offered != self.conversation.tool_names:
            more, fewer = offered - self.conversation.tool_names, self.conversation.tool_names - offered
            log.error("the CLI offers other tools than the client's: too many %s, missing %s", set(more), set(fewer))
            raise Unavailable("the Claude Agent SDK does not offer exactly the tools of the request", status=502)

    def _options(self, folder: Path) -> ClaudeAgentOptions:
        work, config, temporary = folder / "work", folder / "config", folder / "tmp"
        work.mkdir()
        temporary.mkdir()
        conversation, environment = self.conversation, {**ENVIRONMENT, **self.environment}
        environment |= {"CLAUDE_CONFIG_DIR": str(config), "TMPDIR": str(temporary)}
        if conversation.max_tokens is not None:
            environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(conversation.max_tokens)
        (folder / "system").write_text(conversation.system, "utf-8")  # not on the command line, which others can see
        resumed = None
        if past := _past(conversation):
            resumed = str(uuid4())
            sessions = config / "projects" / project_key_for_directory(str(work))
            sessions.mkdir(parents=True)
            (sessions / f"{resumed}.jsonl").write_text(transcript(past, resumed, str(work)), "utf-8")
            if len(past) == len(conversation.messages):
                environment["CLAUDE_CODE_RESUME_INTERRUPTED_TURN"] = "1"
        return ClaudeAgentOptions(
            model=self.model or None,
            system_prompt={"type": "file", "path": str(folder / "system")} if conversation.system else None,
            mcp_servers={"client": {"type": "sdk", "name": "client", "instance": self._server()}},
            # None of the CLI's own tools, of the machine's settings, hooks, plugins, skills, MCP servers, files.
            tools=[],
            allowed_tools=[PREFIX.removesuffix("__")] if conversation.tools else [],
            permission_mode="dontAsk",
            strict_mcp_config=True,
            setting_sources=[],
            settings='{"disableAllHooks": true}',
            skills=[],
            verbatim_prompts=True,
            extra_args={"bare": None, "no-session-persistence": None},
            include_partial_messages=True,
            thinking=conversation.thinking,  # type: ignore[arg-type]
            effort=conversation.effort or None,  # type: ignore[arg-type]
            resume=resumed,
            cwd=work,
            env=environment,
            cli_path=self.cli_path,
            max_buffer_size=64 << 20,
            stderr=lambda line: log.debug("the CLI: %s", line),
        )

    def _server(self) -> Server[Any]:
        tools = [mcp.Tool.model_validate(tool) for tool in map(_as_mcp, self.conversation.tools)]

        async def list_tools(context: Any, params: Any) -> mcp.ListToolsResult:
            return mcp.ListToolsResult(tools=tools)

        async def call_tool(context: Any, params: mcp.CallToolRequestParams) -> mcp.CallToolResult:
            id = (params.meta or {}).get("claudecode/toolUseId")
            if not isinstance(id, str) or id in self._called:
                log.error("the CLI called `%s` without an id of its own", params.name)
                self.close()  # whose result it would get is unknown
                return await asyncio.Future[mcp.CallToolResult]()
            self._called.add(id)
            return await self._result(id)

        return Server("client", on_list_tools=list_tools, on_call_tool=call_tool)


def _as_mcp(tool: Object) -> Object:
    return {
        "name": tool["name"],
        "description": tool["description"],
        "inputSchema": tool["input_schema"],
        "_meta": {"anthropic/maxResultSizeChars": 500_000},  # the most that the CLI accepts
    }


def _past(conversation: Conversation) -> tuple[Object, ...]:
    """What is resumed: everything before the user's last message, or all of it if that brings results, since the CLI
    takes results from no other source than its tools and its transcript."""
    return conversation.messages if conversation.results else conversation.messages[:-1]


def _first_message(conversation: Conversation) -> list[Object]:
    return [] if conversation.results else conversation.messages[-1]["content"]


async def _one(content: list[Object]) -> AsyncIterator[Object]:
    yield {"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None}


def as_results(blocks: Mapping[str, Object]) -> dict[str, mcp.CallToolResult] | None:
    """Results in the form of MCP; None if one contains something that has none there (a document, the URL of an
    image), or more text than the CLI passes on in one piece."""
    results: dict[str, mcp.CallToolResult] = {}
    for id, block in blocks.items():
        content = block.get("content") or []
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        given: list[mcp.ContentBlock] = []
        for part in parts:
            match part:
                case {"type": "text", "text": text}:
                    given.append(mcp.TextContent(type="text", text=text))
                case {"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}}:
                    given.append(mcp.ImageContent(type="image", data=data, mime_type=mime))
                case _:
                    return None
        if sum(len(part.text) for part in given if isinstance(part, mcp.TextContent)) > MAX_RESULT:
            return None
        results[id] = mcp.CallToolResult(content=given, is_error=bool(block.get("is_error")))
    return results


_KINDS: dict[int, type[ProviderError]] = {
    400: RequestRefused,
    401: Unauthorized,
    403: Unauthorized,
    404: ModelNotFound,
    413: RequestRefused,
    429: RateLimited,
}


def _failure(result: ResultMessage) -> ProviderError:
    words = result.result or "; ".join(result.errors or ()) or result.subtype
    if result.terminal_reason == "prompt_too_long":
        return ContextTooLong(f"the Claude Agent SDK reports: {words}", status=400)
    status = result.api_error_status or 502
    return _KINDS.get(status, Unavailable)(f"the Claude Agent SDK reports: {words}", status=status)
