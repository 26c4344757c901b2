"""anthropic-messages: what the Messages API refuses. It reads neighbouring messages of one role as one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from unbroken_wires.wires.anthropic.messages_bound import BoundThinking
from unbroken_wires.wires.event_shapes import Event, Events, EventShapes, ForTests, PartOfCall, TooLong
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_text, dicts
from unbroken_wires.wires.jsontext import dumps
from unbroken_wires.wires.strict import (
    FLAG,
    LIST,
    MESSAGES,
    NUMBER,
    OBJECT,
    SAMPLING,
    TEXT,
    TEXT_OR_LIST,
    Chain,
    Fields,
    check_model,
    check_names,
    check_types,
)

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ID = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MARKS = 4
_IN_RESULTS = {"text", "image", "document", "search_result", "tool_reference"}

_FIELDS: Fields = {
    "model": TEXT,
    "messages": LIST,
    "system": TEXT_OR_LIST,
    "tools": LIST,
    "tool_choice": OBJECT,
    "stream": FLAG,
    "thinking": OBJECT,
    "max_tokens": NUMBER,
    "stop_sequences": LIST,
    **SAMPLING,
}


def check_shape(body: Object) -> list[str]:
    return check_types(body, _FIELDS, {"messages": MESSAGES, "tools": {}}, "messages")


def check_request(body: Object) -> list[str]:
    problems = check_model(body)
    if as_int(body.get("max_tokens")) < 1:
        problems.append("max_tokens: a positive number is required")
    problems += _check_tools(body)
    problems += _check_blocks("system", dicts(body.get("system")), {"text"})
    messages = dicts(body.get("messages"))
    if messages[0].get("role") != "user":
        problems.append("messages[0]: the first message must be the user's")
    chain = Chain(problems, unique=True)
    for n, message in enumerate(messages):
        where = f"messages[{n}]"
        if message.get("role") == "system":
            problems += _check_system(where, message, messages[n - 1], messages[n + 1 : n + 2])
        problems += _check_message(where, message, bool(dicts(body.get("tools"))))
        blocks = dicts(message.get("content"))
        for block in blocks:
            if block.get("type") == "tool_result":
                chain.result(where, as_text(block.get("tool_use_id")))
        chain.other(where)
        chain.calls(where, [as_text(block.get("id")) for block in blocks if block.get("type") == "tool_use"])
    chain.other("the end")
    last = messages[-1]
    if last.get("role") == "assistant" and as_text(last.get("content")) != as_text(last.get("content")).rstrip():
        problems.append("the last message of the assistant ends in white space")
    if dumps(body).count(b'"cache_control":') > _MARKS:
        problems.append(f"cache_control: more than {_MARKS} marks")
    return problems


def _check_system(where: str, message: Object, before: Object, after: list[Object]) -> list[str]:
    """Text alone, after the user, and before nobody but the assistant."""
    problems = [f"{where}: system text has to follow the user"] if before.get("role") != "user" else []
    if after and after[0].get("role") != "assistant":
        problems.append(f"{where}: after system text only the assistant may speak")
    blocks = dicts(message.get("content"))
    return problems + [f"{where}: only text" for block in blocks if block.get("type") != "text"]


def _check_tools(body: Object) -> list[str]:
    # Those of an MCP server have no name of their own.
    tools = [tool for tool in dicts(body.get("tools")) if tool.get("type") != "mcp_toolset"]
    names = [as_text(tool.get("name")) for tool in tools]
    choice = as_dict(body.get("tool_choice"))
    problems = check_names("tools", names, _NAME)
    if choice and not names:
        problems.append("tool_choice: there are no tools")
    elif (chosen := choice.get("name")) and chosen not in names:
        problems.append(f"tool_choice: there is no tool {chosen!r}")
    if choice.get("type") in ("any", "tool") and as_dict(body.get("thinking")).get("type") == "enabled":
        problems.append("tool_choice: a call cannot be forced while thinking is enabled")
    return problems


def _check_message(where: str, message: Object, tools: bool) -> list[str]:
    problems: list[str] = []
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):  # newer models take system text between the messages
        problems.append(f"{where}: there is no role {role!r}")
    if isinstance(content, str):
        return problems if content.strip() else [*problems, f"{where}: the text is empty"]
    blocks = dicts(content)
    if not blocks:
        return [*problems, f"{where}: no content"]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    if (results or calls) and not tools:
        problems.append(f"{where}: calls or results in a request without tools")
    if (calls and role == "user") or (results and role == "assistant"):
        problems.append(f"{where}: calls belong to the assistant and results to the user")
    if blocks[: len(results)] != results:
        problems.append(f"{where}: results must stand before everything else")
    for block in results:
        problems += _check_blocks(where, dicts(block.get("content")), _IN_RESULTS)
    for block in calls:
        problems += _check_call(where, block)
    if role == "assistant" and blocks[-1].get("type") in ("thinking", "redacted_thinking"):
        problems.append(f"{where}: thinking cannot be the last block")
    return problems + _check_blocks(where, blocks)


def _check_call(where: str, block: Object) -> list[str]:
    problems = check_names(where, [as_text(block.get("name"))], _NAME)
    if not _ID.fullmatch(as_text(block.get("id"))):
        problems.append(f"{where}: the id {block.get('id')!r} has characters that are not allowed")
    if not isinstance(block.get("input"), dict):
        problems.append(f"{where}: the input of a call is not an object")
    return problems


def _check_blocks(where: str, blocks: list[Object], types: set[str] | None = None) -> list[str]:
    problems: list[str] = []
    texts = [as_text(block.get("text")) for block in blocks if block.get("type") == "text"]
    if "" in texts or (texts and not any(map(str.strip, texts))):  # a blank one is accepted beside another
        problems.append(f"{where}: a text block is empty")
    for block in blocks:
        type = block.get("type")
        if types is not None and type not in types:
            problems.append(f"{where}: a block of type {type!r} is not allowed here")
        if type == "thinking" and not block.get("signature"):
            problems.append(f"{where}: thinking without its signature")
    return problems


# anthropic-messages, its events as faults change them: blocks with an `index`, each with its start and stop.


class MessagesEvents(EventShapes):
    named = True
    text_arguments = ("streamed",)
    done_reason = "end_turn"
    interleaves = True
    too_long: ClassVar[Mapping[str, TooLong]] = {
        "anthropic": TooLong(400, "prompt is too long: 214315 tokens > 200000 maximum"),
        "anthropic_with_output": TooLong(
            400,
            "input length and `max_tokens` exceed context limit: 195012 + 8192 > 200000, decrease input length or "
            "`max_tokens` and try again",
        ),
        "anthropic_413": TooLong(413, "Request exceeds the maximum size"),
    }

    def arguments_in(self, event: Event) -> Iterator[tuple[Object, str]]:
        fields = as_dict(event)
        for block in (as_dict(fields.get("content_block")), *dicts(fields.get("content"))):
            if block.get("type") == "tool_use":
                yield block, "input"

    def text_in(self, event: Event) -> tuple[Object, str] | None:
        delta = as_dict(as_dict(event).get("delta"))
        keys = ("text", "thinking", "partial_json")
        return next(((delta, key) for key in keys if isinstance(delta.get(key), str)), None)

    def is_finish(self, event: Event) -> bool:
        return as_dict(event).get("type") == "message_delta"

    def is_after_finish(self, event: Event) -> bool:
        return as_dict(event).get("type") == "message_stop"

    def set_finish(self, event: Event, reason: str | None) -> None:
        fields = as_dict(event)
        for holder in (fields, as_dict(fields.get("delta"))):
            if holder.get("stop_reason"):
                holder["stop_reason"] = reason

    def provider_run(self, events: Events, stream: bool) -> Events:
        query = {"query": "weather"}
        call: Object = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": query}
        found: Object = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
        for event in events:
            fields = as_dict(event)
            if fields.get("type") == "message":
                fields["content"] = [call, found, *fields["content"]]
            if "index" in fields:
                fields["index"] += 2
            yield event
            if fields.get("type") == "message_start":
                for index, block in enumerate((call, found)):
                    yield {"type": "content_block_start", "index": index, "content_block": block}
                    yield {"type": "content_block_stop", "index": index}

    def part_of_call(self, event: Event) -> PartOfCall:
        fields = as_dict(event)
        if as_dict(fields.get("content_block")).get("type") == "tool_use":
            return "first"
        is_input = as_dict(fields.get("delta")).get("type") == "input_json_delta"
        return "later" if is_input or fields.get("type") == "content_block_stop" else ""

    def object_arguments(self, events: Events) -> Events:
        """In the start of the block."""
        held: list[Object] = []
        for event in events:
            if self.part_of_call(event) and as_dict(event).get("type") != "content_block_stop":
                held.append(as_dict(event))
                continue
            if held:
                start, *deltas = held
                held = []
                text = "".join(delta["delta"]["partial_json"] for delta in deltas)
                start["content_block"]["input"] = json.loads(text or "{}")
                yield start
            yield event


FOR_TESTS = ForTests(check_shape, check_request, MessagesEvents(), BoundThinking)
