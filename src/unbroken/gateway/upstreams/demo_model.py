"""The model that answers if no other is configured: a script to try any client with.

If it is offered tools, it makes three calls in one answer, even if the request allows one at most: real models do that
too, so it shows what the gateway does about it. With the results it answers in text. It has no memory: the request
decides everything. No network, no key, no language model.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from hashlib import sha256
from json import dumps

from unbroken.decoding import Decoder
from unbroken.deltas import Delta
from unbroken.gateway.upstreams.demo_arguments import demo_arguments
from unbroken.messages import Assistant, Media, Message, OneTool, Request, ToolMessage, ToolResult, ToolSpec, User
from unbroken.models.script import Call, Say, Step, Uses
from unbroken.models.scripted import play_bytes
from unbroken.wires import DEFAULT_WIRE

NAME = "demo"
CALLS = 3
CHUNK_DELAY = 0.02
"""Seconds between two words, so that a person sees a stream."""
WHO = "I am the demo model of the Unbroken gateway: a script, and no language model."

_WIRE = DEFAULT_WIRE
_QUOTED = 160
_CHARACTERS_A_TOKEN = 4
_RISKY = re.compile(
    "agent|apply|bash|book|buy|cancel|click|commit|computer|create|delete|deploy|drop|edit|exec|execute|install|kill|"
    "mail|make|modify|move|navigate|order|patch|pay|post|powershell|publish|push|put|python|remove|rename|replace|reset|"
    "restart|run|save|send|set|shell|spawn|start|stop|submit|task|terminal|transfer|uninstall|update|upload|write"
)
"""Words in the names of tools that do something: what is made up should only look around."""


class DemoModel:
    """For any number of requests at once; `chunk_delay` are the seconds between two pieces."""

    def __init__(self, chunk_delay: float = CHUNK_DELAY) -> None:
        self._chunk_delay = chunk_delay

    @property
    def name(self) -> str:
        return NAME

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        request = replace(request, model=request.model or NAME)
        decoder = Decoder(_WIRE, None, request)
        for pause, data in play_bytes(demo(request), _WIRE, request, self._chunk_delay):
            await asyncio.sleep(pause)
            if deltas := decoder.feed(data):
                yield deltas
        yield decoder.end()


def demo(request: Request) -> list[Step]:
    """What the demo model answers."""
    asked, since = _since_the_user(request.messages)
    results = [result for message in since if isinstance(message, ToolMessage) for result in message.results]
    calls = [] if results or request.final or request.choice == "none" else _calls(request)
    if calls:
        text = f"Let me try {'your tool' if len(calls) == 1 else 'your tools'}. "
    elif results:
        told = "; ".join(_told(result, _names(since)) for result in results)
        text = f"I have all the results: {told}. {WHO}"
    else:
        said = f'You said "{_short(asked)}". ' if asked else ""
        text = f"{said}{WHO} Offer me tools, and I call three times at once."
    return [Say(text), *calls, _usage(request, text, calls)]


def _since_the_user(messages: tuple[Message, ...]) -> tuple[str, tuple[Message, ...]]:
    """What the user said last, and what came after it."""
    for at in range(len(messages) - 1, -1, -1):
        if isinstance(message := messages[at], User):
            media = any(isinstance(part, Media) for part in message.parts)
            return message.text or ("(a picture or a file)" if media else ""), messages[at + 1 :]
    return "", messages


def _calls(request: Request) -> list[Call]:
    tools = [tool for tool in request.tools if tool.name]
    if isinstance(request.choice, OneTool):
        tools = [tool for tool in tools if tool.name == request.choice.name]
    harmless = [] if isinstance(request.choice, OneTool) else [tool for tool in tools if not _is_risky(tool)]
    wanted = dict.fromkeys(
        (tool.name, dumps(demo_arguments(tool.parameters, variant), ensure_ascii=False))
        for variant in range(CALLS if harmless else 1)
        for tool in harmless or tools[:1]
    )
    # Two conversations must not have the same ids, and the same one asked again must.
    origin = sha256(repr((request.messages, request.tools)).encode("utf-8", "replace")).hexdigest()[:20]
    return [Call(name, raw, id=f"call_{origin}_{at}") for at, (name, raw) in enumerate(wanted) if at < CALLS]


def _is_risky(tool: ToolSpec) -> bool:
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", tool.name)
    return any(_RISKY.fullmatch(word.lower()) for word in words)


def _names(messages: tuple[Message, ...]) -> dict[str, str]:
    return {call.id: call.name for message in messages if isinstance(message, Assistant) for call in message.calls}


def _told(result: ToolResult, names: dict[str, str]) -> str:
    name = names.get(result.call_id) or result.name or "a tool"
    if not result.text.strip():
        return f"{name} {'failed without a word' if result.error else 'gave nothing'}"
    return f"{name} {'failed with' if result.error else 'gave'} {dumps(_short(result.text), ensure_ascii=False)}"


def _short(text: str) -> str:
    line = " ".join(text[: 8 * _QUOTED].split())
    return line if len(line) <= _QUOTED else f"{line[: _QUOTED - 1]}…"


def _usage(request: Request, text: str, calls: list[Call]) -> Uses:
    """About what a model would report."""
    came = sum(len(_text_of(message)) for message in request.messages)
    went = len(text) + sum(len(call.name) + len(call.raw) for call in calls)
    return Uses(came // _CHARACTERS_A_TOKEN + 1, went // _CHARACTERS_A_TOKEN + 1)


def _text_of(message: Message) -> str:
    return "".join(result.text for result in message.results) if isinstance(message, ToolMessage) else message.text
