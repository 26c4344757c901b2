"""Resources and prompts of an MCP server in one session, and what changes there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeAlias, TypeVar

import mcp_types as types
from mcp.client import Client, IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from unbroken.tools.mcp_content import (
    IN_PROMPTS,
    read_contents,
    read_messages,
    read_prompt,
    read_resource,
    read_template,
)
from unbroken.tools.mcp_items import PromptTemplate, Resource
from unbroken.tools.results import ToolFailed
from unbroken_wires.messages import Json, Message, Part

PageT = TypeVar("PageT", bound=types.PaginatedResult)
Ask: TypeAlias = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Waits for a request and puts its failure into words."""

PAGES = 1000
"""Maximum pages of a list: a server may always name a next page."""


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


def described(found: Resource) -> dict[str, Json]:
    """A resource for a model, without what is empty."""
    fields: dict[str, Json] = {"uri": found.uri, "name": found.name, "description": found.description}
    fields |= {"mime": found.mime, "template": found.template}
    return {name: value for name, value in fields.items() if value}
