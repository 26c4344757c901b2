"""What a client's request asks of an SDK session: pure functions of the request, without the SDK.

The history is written in Anthropic's form, by the encoder that Unbroken uses for Anthropic's API, so ids, names, images
and the order of roles are as the API demands. What a session cannot promise is refused here, before a process starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast
from uuid import uuid4

from unbroken.errors import RequestRefused
from unbroken_wires.messages import Assistant, Message, OneTool, Request, ToolCall, ToolMessage, User
from unbroken_wires.wires import find_wire

WIRE = "anthropic-messages"
PREFIX = "mcp__client__"
"""How the CLI names the tools of the MCP server `client`."""

Object: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One request, in the form that an SDK session takes."""

    system: str
    tools: tuple[Object, ...]
    """`name`, `description` and `input_schema` of each tool."""
    messages: tuple[Object, ...]
    """Neighbours of one role are joined. Calls have the names that the CLI gives to the tools."""
    thinking: Object
    effort: str
    max_tokens: int | None
    settings: str
    """A hash of what a session cannot change after its start."""
    reasoning: str
    """What the request asks for. It holds for a turn: a request that brings results changes nothing."""
    left_out: tuple[str, ...]
    """Settings of the request that the SDK has no option for."""

    @property
    def tool_names(self) -> frozenset[str]:
        """The tools, as the CLI lists them."""
        return frozenset(PREFIX + tool["name"] for tool in self.tools)

    @property
    def results(self) -> dict[str, Object]:
        """The results at the end of the history, by the id of their call."""
        blocks = self.messages[-1]["content"]
        return {block["tool_use_id"]: block for block in blocks if block["type"] == "tool_result"}


def read(request: Request, model: str = "") -> Conversation:
    """`RequestRefused` for what the SDK has no option for and a client must be able to rely on."""
    _refuse(request)
    if not may_call(request) and not any(isinstance(message, ToolMessage) for message in request.messages):
        request = replace(request, tools=())  # a history with calls is refused without tools
    body = _encoded(request.messages, request, model)
    tools = tuple(
        {"name": tool["name"], "description": tool.get("description", ""), "input_schema": tool["input_schema"]}
        for tool in body.get("tools", ())
    )
    system = "\n\n".join(part["text"] for part in _blocks(body.get("system", [])))
    messages = _joined(body["messages"])
    if not messages or messages[-1]["role"] != "user":
        raise RequestRefused("the history has to end with a message of the user or with results", status=400)
    # A turn with calls that began without reasoning cannot continue with it, and a client seldom has signatures.
    before: list[Object] = messages[-2]["content"] if len(messages) > 1 else []
    resumed = any(block["type"] == "tool_use" for block in before) and "thinking" not in before[0]["type"]
    sampling = request.sampling
    return Conversation(
        system,
        tools,
        messages,
        {"type": "disabled"} if resumed else body.get("thinking") or {"type": "disabled"},
        "" if resumed else body.get("output_config", {}).get("effort", ""),
        sampling.max_tokens,
        _hash([system, tools, sampling.max_tokens]),
        request.reasoning or "",
        tuple(name for name in ("temperature", "top_p", "seed") if getattr(sampling, name) is not None),
    )


def may_call(request: Request) -> bool:
    """Whether the client accepts calls in the answer."""
    return request.choice != "none" and not request.final


def _refuse(request: Request) -> None:
    impossible = {
        "a tool choice that forces a call": request.choice == "required" or isinstance(request.choice, OneTool),
        "stop sequences": bool(request.sampling.stop),
        "structured output": request.output is not None and not request.output.tool,
        "tools that the provider runs": bool(request.server_tools),
    }
    for what, wanted in impossible.items():
        if wanted:
            raise RequestRefused(f"the Claude Agent SDK has no option for {what}: leave it out", status=400)


def _encoded(messages: Sequence[Message], request: Request, model: str) -> Object:
    asked = replace(request, messages=tuple(messages), model=model, choice=None, final=False, extra={}, cache=False)
    return cast("Object", _without_marks(find_wire(WIRE).encode_request(asked)))


def _without_marks(value: Any) -> Any:
    """Without cache marks: the CLI sets its own, and a request may have four."""
    if isinstance(value, dict):
        fields = cast("Object", value)
        return {name: _without_marks(part) for name, part in fields.items() if name != "cache_control"}
    if isinstance(value, list):
        return [_without_marks(part) for part in cast("list[Any]", value)]
    return value


def _blocks(content: str | list[Object]) -> list[Object]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _joined(turns: Sequence[Object]) -> tuple[Object, ...]:
    joined: list[Object] = []
    for turn in turns:
        blocks = [
            {**block, "name": PREFIX + block["name"]} if block["type"] == "tool_use" else block
            for block in _blocks(turn["content"])
        ]
        if joined and joined[-1]["role"] == turn["role"]:
            joined[-1]["content"] += blocks
        else:
            joined.append({"role": turn["role"], "content": blocks})
    return tuple(joined)


# Which session a request continues. What a client sends back is compared with what it was sent: an edited history is
# another conversation.


@dataclass(frozen=True, slots=True)
class Returned:
    """The last message has the results of the calls in the one before."""

    history: str
    """A hash of what was before those calls."""
    said: Assistant


@dataclass(frozen=True, slots=True)
class Continued:
    """The last message is a new one of the user, after an answer without calls."""

    history: str
    said: Assistant


def continued(request: Request) -> Returned | Continued | None:
    """How the request continues an earlier one; None if it begins a conversation."""
    match request.messages:
        case [*before, Assistant(calls=calls) as said, ToolMessage()] if calls:
            return Returned(history_key(before), said)
        case [*before, Assistant(calls=()) as said, User()]:
            return Continued(history_key(before), said)
        case _:
            return None


def history_key(messages: Sequence[Message]) -> str:
    """A hash of the history, the same for the same content."""
    return _hash(_joined(_encoded(messages, Request(()), "").get("messages", [])))


def idle_key(conversation: Conversation, history: str, text: str) -> str:
    """A hash of everything that was said in a conversation. Sessions with the same are interchangeable."""
    return _hash([conversation.settings, conversation.reasoning, history, text.strip()])


def latest_calls(request: Request) -> Sequence[ToolCall]:
    """The calls in the last message that has any."""
    made = (message.calls for message in reversed(request.messages) if isinstance(message, Assistant) and message.calls)
    return next(made, ())


def says_the_same(said: Assistant, given: Assistant) -> bool:
    """Whether the client returned the answer that it was given. Some clients leave out the text beside calls."""
    same = [(call.id, call.name, call.arguments) for call in said.calls] == [
        (call.id, call.name, call.arguments) for call in given.calls
    ]
    return same and said.text.strip() in ("", given.text.strip())


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else str(value)


# A session that is gone is rebuilt: the history becomes a transcript, which the CLI resumes.


def transcript(messages: Sequence[Object], session: str, folder: str) -> str:
    """The lines of a transcript file of the CLI."""
    lines: list[str] = []
    parent: str | None = None
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            usage = {"input_tokens": 0, "output_tokens": 0}
            shape = {"id": f"msg_{number}", "type": "message", "model": "history", "stop_reason": None, "usage": usage}
            message = {**shape, **message}
        entry: Object = {
            "parentUuid": parent,
            "uuid": (parent := str(uuid4())),
            "type": message["role"],
            "message": message,
            "sessionId": session,
            "cwd": folder,
            "isSidechain": False,
            "userType": "external",
            "timestamp": "2026-01-01T00:00:00.000Z",
            "version": "2.0.0",
        }
        lines.append(json.dumps(entry, default=_plain) + "\n")
    return "".join(lines)
