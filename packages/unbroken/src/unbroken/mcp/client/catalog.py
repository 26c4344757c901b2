"""What an MCP server offers in one session: its tools as ours, its resources and prompts, and what changes there."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Protocol, TypeAlias, TypeVar

import mcp_types as types
from mcp.client import Client, IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from unbroken.mcp.client.target import PromptTemplate, Resource, Target
from unbroken.mcp.client.tasks import TASKS
from unbroken.mcp.content import (
    IN_PROMPTS,
    IN_RESULTS,
    read_contents,
    read_messages,
    read_prompt,
    read_resource,
    read_template,
)
from unbroken.tools.context import CallContext
from unbroken.tools.results import ToolFailed
from unbroken.tools.schema import NAME, Signature
from unbroken.tools.tool import Tool
from unbroken_wires.messages import Json, Message, Part, ToolSpec

PageT = TypeVar("PageT", bound=types.PaginatedResult)
Ask: TypeAlias = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Waits for a request and puts its failure into words."""

CONTEXT = "unbroken context"
"""The name of the parameter that takes the context, which no tool of a server can have."""

PAGES = 1000
"""Maximum pages of a list: a server may always name a next page."""


FIRST_CHANGES, SHORT_PAUSE, LONG_PAUSE = 10, 0.1, 10.0
"""How often in a row a list is fetched at once when it changes, and the seconds between later requests."""
QUIET = 1.0
"""Seconds without a change after which the next one is fetched at once again; at least."""


async def all_pages(fetch: Callable[[str | None], Awaitable[PageT]]) -> list[PageT]:
    pages: list[PageT] = []
    cursor: str | None = None
    for _ in range(PAGES):
        pages.append(page := await fetch(cursor))
        cursor = page.next_cursor
        if not cursor:
            break
    return pages


class Changes:
    """Passes on what the server reports as changed. None is the end of the session."""

    def __init__(self) -> None:
        self.watchers: set[_Unseen] = set()

    def hear(self, message: IncomingMessage) -> None:
        match message:
            case types.ToolListChangedNotification():
                self._notify("tools")
            case types.ResourceListChangedNotification():
                self._notify("resources")
            case types.PromptListChangedNotification():
                self._notify("prompts")
            case types.ResourceUpdatedNotification(params=params):
                self._notify(params.uri)
            case _:
                pass

    def end(self) -> None:
        self._notify(None)

    def _notify(self, change: str | None) -> None:
        for watcher in self.watchers:
            watcher.add(change)


class Changed:
    """The server has reported that its tools have changed. One that always does is heard less and less often."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._often = 0
        self._pause = SHORT_PAUSE

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        try:
            async with asyncio.timeout(max(2 * self._pause, QUIET)):
                await self._event.wait()
        except TimeoutError:
            self._often, self._pause = 0, SHORT_PAUSE  # it was quiet for a while
            await self._event.wait()
        self._often += 1
        if self._often > FIRST_CHANGES:
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONG_PAUSE)
        self._event.clear()


class _Unseen:
    """What has changed and was not read yet, each change once."""

    def __init__(self) -> None:
        self._changes: dict[str | None, None] = {}
        self._some = asyncio.Event()

    def add(self, change: str | None) -> None:
        self._changes[change] = None
        self._some.set()

    async def get(self) -> str | None:
        await self._some.wait()
        first = next(iter(self._changes))
        del self._changes[first]
        if not self._changes:
            self._some.clear()
        return first


class Catalog:
    """Lists are fetched whenever they are asked for, so they are never stale."""

    def __init__(self, client: Client, ask: Ask, changes: Changes) -> None:
        self._client = client
        self._ask = ask
        self._changes = changes

    async def resources(self) -> tuple[Resource, ...]:
        """The resources, then the templates of resources."""
        client = self._client
        if client.server_capabilities.resources is None:
            return ()
        listing = all_pages(lambda cursor: client.list_resources(cursor=cursor, cache_mode="refresh"))
        pages: list[types.ListResourcesResult] = await self._ask(listing)
        found = [read_resource(one) for page in pages for one in page.resources]
        try:
            more = await all_pages(lambda cursor: client.list_resource_templates(cursor=cursor, cache_mode="refresh"))
        except MCPError:
            return tuple(found)  # not every server has templates
        return (*found, *(read_template(one) for page in more for one in page.resource_templates))

    async def read(self, uri: str, kept: tuple[str, ...] = IN_PROMPTS) -> tuple[Part, ...]:
        result: types.ReadResourceResult = await self._ask(self._client.read_resource(uri, cache_mode="refresh"))
        return read_contents(result.contents, kept)

    async def prompts(self) -> tuple[PromptTemplate, ...]:
        client = self._client
        if client.server_capabilities.prompts is None:
            return ()
        listing = all_pages(lambda cursor: client.list_prompts(cursor=cursor, cache_mode="refresh"))
        pages: list[types.ListPromptsResult] = await self._ask(listing)
        return tuple(read_prompt(one) for page in pages for one in page.prompts)

    async def prompt(self, name: str, arguments: dict[str, str]) -> tuple[Message, ...]:
        result: types.GetPromptResult = await self._ask(self._client.get_prompt(name, arguments))
        return read_messages(result.messages)

    async def watch(self, uris: tuple[str, ...]) -> AsyncGenerator[str]:
        """What changes: `tools`, `resources`, `prompts`, or the address of one of these resources."""
        changes = _Unseen()
        self._changes.watchers.add(changes)
        try:
            async with AsyncExitStack() as stack:
                if uris and self._client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                    subscription = self._client.listen(resource_subscriptions=uris)
                    await self._ask(stack.enter_async_context(subscription))
                elif uris:
                    await self._subscribe(uris)
                    stack.push_async_callback(self._unsubscribe, uris)
                while (change := await changes.get()) is not None:
                    yield change
        finally:
            self._changes.watchers.discard(changes)

    async def _subscribe(self, uris: tuple[str, ...]) -> None:
        """At an older server. The package warns that its own method for this is deprecated."""
        for uri in uris:
            request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
            await self._ask(self._client.session.send_request(request, types.EmptyResult))

    async def _unsubscribe(self, uris: tuple[str, ...]) -> None:
        for uri in uris:
            request = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri))
            with suppress(ToolFailed):
                await self._ask(self._client.session.send_request(request, types.EmptyResult))


class RunsCalls(Protocol):
    """A session, as far as a tool needs it."""

    catalog: Catalog

    @property
    def label(self) -> str: ...

    async def call(
        self, name: str, arguments: dict[str, Json], context: CallContext[Any], *, as_task: bool
    ) -> tuple[Part, ...]:
        """Raises `NotTaken` if another session has to be used."""
        ...


class NotTaken(Exception):
    """The server certainly did not run the call, because it no longer knows the session."""


class _RemoteTool:
    """The function of a tool that a server has. It outlives the session: `alive` returns the one to use now."""

    def __init__(self, name: str, origin: str, alive: Callable[[], Awaitable[RunsCalls]], *, as_task: bool) -> None:
        self.origin = origin
        self._name = name
        self._alive = alive
        self._as_task = as_task

    async def __call__(self, /, **arguments: Any) -> tuple[Part, ...]:
        context: CallContext[Any] = arguments.pop(CONTEXT, None) or CallContext()
        session = await self._alive()
        try:
            return await session.call(self._name, arguments, context, as_task=self._as_task)
        except NotTaken:
            pass
        try:
            return await (await self._alive()).call(self._name, arguments, context, as_task=self._as_task)
        except NotTaken as error:
            raise ToolFailed(f"{session.label} loses its session at once; nothing was run") from error


async def list_tools(
    client: Client, target: Target, label: str, alive: Callable[[], Awaitable[RunsCalls]]
) -> tuple[Tool, ...]:
    """The tools that the server offers now, and those that read its resources. Their calls go to the session that
    `alive` returns."""
    names: set[str] = set()
    listed: list[Tool] = []
    capabilities = client.server_capabilities
    if capabilities.tools is not None:
        pages = await all_pages(lambda cursor: client.list_tools(cursor=cursor, cache_mode="refresh"))
        for found in (one for page in pages for one in page.tools):
            name = _free_name(f"{target.prefix}{found.name}", names)
            asked = target.tasks and _is_task(found, capabilities)
            offered = target.tasks and TASKS in (capabilities.extensions or {})
            origin = f"{label}, tool `{printable(found.name)}`"
            function = _RemoteTool(found.name, origin, alive, as_task=asked)
            listed.append(_tool(found, name, function, target, may_be_task=asked or offered))
    if target.resources and capabilities.resources is not None:
        listed += _resource_tools(target, label, names, alive)
    return tuple(listed)


def _tool(found: types.Tool, name: str, function: _RemoteTool, target: Target, *, may_be_task: bool) -> Tool:
    parameters: dict[str, Json] = {"type": "object", "properties": {}, **found.input_schema}
    description = found.description or found.title or ""
    reads = found.annotations is not None and found.annotations.read_only_hint is True
    policy = None if reads else target.after_crash
    return Tool(
        ToolSpec(name, description, parameters),
        function,
        Signature(name, description, parameters, dict, CONTEXT, is_async=True),
        effect="read" if reads else "write",
        timeout=target.timeout,
        after_crash=policy,
        role="task" if may_be_task and policy != "wait" else "",
    )


def _resource_tools(
    target: Target, label: str, names: set[str], alive: Callable[[], Awaitable[RunsCalls]]
) -> list[Tool]:
    """Let the model list and read resources."""

    async def list_resources() -> list[dict[str, Json]]:
        return [_described(one) for one in await (await alive()).catalog.resources()]

    async def read_one(uri: str) -> tuple[Part, ...]:
        return await (await alive()).catalog.read(uri, IN_RESULTS)

    made: list[Tool] = []
    for wanted, description, properties, function in (
        ("list_resources", f"List what can be read at {label}.", {}, list_resources),
        ("read_resource", f"Read a resource of {label}.", {"uri": {"type": "string"}}, read_one),
    ):
        name = _free_name(f"{target.prefix}{wanted}", names)
        parameters: dict[str, Json] = {"type": "object", "properties": properties, "required": [*properties]}
        made.append(
            Tool(
                ToolSpec(name, description, parameters),
                function,
                Signature(name, description, parameters, dict, is_async=True),
                effect="read",
                timeout=target.timeout,
            )
        )
    return made


def _described(found: Resource) -> dict[str, Json]:
    """A resource for a model, without what is empty."""
    fields: dict[str, Json] = {
        "uri": found.uri,
        "name": found.name,
        "description": found.description,
        "mime": found.mime,
        "template": found.template,
    }
    return {name: value for name, value in fields.items() if value}


def _is_task(found: types.Tool, capabilities: types.ServerCapabilities) -> bool:
    """Does a server of 2025-11-25 run calls of this tool as tasks, if the client asks for it?"""
    requests = capabilities.tasks.requests if capabilities.tasks is not None else None
    if requests is None or requests.tools is None or requests.tools.call is None or found.execution is None:
        return False
    return found.execution.task_support in ("optional", "required")


def _free_name(wanted: str, taken: set[str]) -> str:
    """A name that every provider accepts, and takes it; a server's may have dots, slashes or any length."""
    plain = wanted if NAME.fullmatch(wanted) else re.sub(r"[^a-zA-Z0-9_-]", "_", wanted)[:64] or "tool"
    numbered = (f"{plain[: 63 - len(str(number))]}_{number}" for number in itertools.count(2))
    name = next(name for name in itertools.chain([plain], numbered) if name not in taken)
    taken.add(name)
    return name


def printable(text: str) -> str:
    """A name that a server gave, without the characters that control a terminal."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:200])
