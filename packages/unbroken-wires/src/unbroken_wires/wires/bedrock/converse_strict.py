"""bedrock-converse: what Converse refuses, with Claude behind it, which is the strictest of its families."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from unbroken_wires.wires.event_shapes import Event, Events, EventShapes, ForTests, PartOfCall, TooLong, dumps
from unbroken_wires.wires.framing import EVENT_STREAM
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text, dicts
from unbroken_wires.wires.strict import LIST, OBJECT, TEXT, Chain, Fields, check_names, check_types

_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
_POINTS = 4
_CHOICES = ("auto", "any", "tool")
_IN_RESULTS = {"text", "json", "image", "document", "video", "searchResult"}
_FIELDS: Fields = {
    "messages": LIST,
    "system": LIST,
    "toolConfig": OBJECT,
    "inferenceConfig": OBJECT,
    "additionalModelRequestFields": OBJECT,
}
_MESSAGES: Fields = {"role": TEXT, "content": LIST}


def check_shape(body: Object) -> list[str]:
    problems = check_types(body, _FIELDS, {"messages": _MESSAGES, "system": {}})
    problems += check_types(as_dict(body.get("toolConfig")), {"tools": LIST}, {"tools": {}})
    if problems:
        return problems
    return [] if body.get("messages") else ["messages: none"]


def check_request(body: Object) -> list[str]:
    problems = _check_tools(body)
    tools = bool(as_dict(body.get("toolConfig")).get("tools"))
    problems += _check_blocks("system", dicts(body.get("system")), {"text", "guardContent", "cachePoint"})
    messages = dicts(body.get("messages"))
    if messages[0].get("role") != "user":
        problems.append("messages[0]: a conversation must start with a user message")
    chain = Chain(problems, unique=True)
    for n, message in enumerate(messages):
        where, blocks = f"messages[{n}]", dicts(message.get("content"))
        if n and message.get("role") == messages[n - 1].get("role"):
            problems.append(f"{where}: roles must alternate between user and assistant")
        problems += _check_message(where, message, blocks, tools)
        for result in _inside(blocks, "toolResult") if message.get("role") == "user" else ():
            chain.result(where, as_text(result.get("toolUseId")))
        chain.other(where)
        calls = [use for use in _inside(blocks, "toolUse") if use.get("type") in (None, "tool_use")]
        chain.calls(where, [as_text(use.get("toolUseId")) for use in calls])
    chain.other("the end")
    if dumps(body).count(b'"cachePoint":') > _POINTS:
        problems.append(f"cachePoint: more than {_POINTS}")
    return problems


def _inside(blocks: list[Object], field: str) -> list[Object]:
    return [as_dict(block[field]) for block in blocks if field in block]


def _check_tools(body: Object) -> list[str]:
    config = as_dict(body.get("toolConfig"))
    tools = dicts(config.get("tools"))
    specs = _inside(tools, "toolSpec")
    problems = check_names("toolConfig", [as_text(spec.get("name")) for spec in specs])
    if "toolConfig" in body and not tools:
        problems.append("toolConfig.tools: an empty list")
    problems += ["toolConfig: an empty description" for spec in specs if spec.get("description") == ""]
    problems += [
        "toolConfig: a tool without inputSchema.json"
        for spec in specs
        if not isinstance(as_dict(spec.get("inputSchema")).get("json"), dict)
    ]
    choice = as_dict(config.get("toolChoice"))
    problems += [f"toolChoice: there is no {kind!r}" for kind in choice if kind not in _CHOICES]
    chosen = as_dict(choice.get("tool")).get("name")
    if chosen and chosen not in [spec.get("name") for spec in specs]:
        problems.append(f"toolChoice: there is no tool {chosen!r}")
    thinking = as_dict(as_dict(body.get("additionalModelRequestFields")).get("thinking"))
    if ("any" in choice or "tool" in choice) and thinking.get("type") == "enabled":
        problems.append("toolChoice: a call cannot be forced while thinking is enabled")
    return problems


def _check_message(where: str, message: Object, blocks: list[Object], tools: bool) -> list[str]:
    role = message.get("role")
    problems = [] if role in ("user", "assistant") else [f"{where}: there is no role {role!r}"]
    if not blocks:
        return [*problems, f"{where}: no content"]
    results, uses = _inside(blocks, "toolResult"), _inside(blocks, "toolUse")
    server = {as_text(use.get("toolUseId")) for use in uses if use.get("type") not in (None, "tool_use")}
    if (results or uses) and not tools:
        problems.append(f"{where}: toolConfig is required for toolUse and toolResult")
    own = [result for result in results if result.get("toolUseId") not in server]
    if (uses and role == "user") or (own and role == "assistant"):
        problems.append(f"{where}: calls belong to the assistant and results to the user")
    if role == "user" and any(
        "toolResult" not in block for block in blocks[: len(results)] if "cachePoint" not in block
    ):
        problems.append(f"{where}: results must stand before everything else")
    for result in results:
        problems += _check_blocks(where, dicts(result.get("content")), _IN_RESULTS)
        if not as_list(result.get("content")):
            problems.append(f"{where}: a result without content")
    for use in uses:
        problems += check_names(where, [as_text(use.get("name"))])
        if not _ID.fullmatch(as_text(use.get("toolUseId"))):
            problems.append(f"{where}: the id {use.get('toolUseId')!r} has characters that are not allowed")
        if not isinstance(use.get("input"), dict):
            problems.append(f"{where}: the input of a call is not an object")
    if role == "assistant" and "reasoningContent" in blocks[-1]:
        problems.append(f"{where}: reasoning cannot be the last block")
    kinds = {kind for block in blocks for kind in block}
    if "document" in kinds and "text" not in kinds:
        problems.append(f"{where}: a document without a text beside it")
    return problems + _check_blocks(where, blocks)


def _check_blocks(where: str, blocks: list[Object], kinds: set[str] | None = None) -> list[str]:
    problems: list[str] = []
    for block in blocks:
        if len(block) != 1:
            problems.append(f"{where}: a block has to have one field")
        if kinds is not None and not block.keys() <= kinds:
            problems.append(f"{where}: a block of {', '.join(block)} is not allowed here")
        if "text" in block and not as_text(block["text"]).strip():
            problems.append(f"{where}: a text is blank")
        reasoning = as_dict(block.get("reasoningContent"))
        text = as_dict(reasoning.get("reasoningText"))
        if text and not text.get("signature"):
            problems.append(f"{where}: reasoning without its signature")
    return problems


# bedrock-converse, its events as faults change them: one field each, blocks with a `contentBlockIndex`.


class ConverseEvents(EventShapes):
    text_arguments = ("streamed",)
    done_reason = "end_turn"
    interleaves = True
    index = "contentBlockIndex"
    too_long: ClassVar[Mapping[str, TooLong]] = {
        "bedrock": TooLong(400, "Input is too long for requested model."),
        "bedrock_claude": TooLong(
            400, "The model returned the following errors: prompt is too long: 214315 tokens > 200000 maximum"
        ),
    }

    def numbered(self, event: Event) -> list[Object]:
        return [as_dict(inner) for inner in as_dict(event).values() if isinstance(inner, dict)]

    def arguments_in(self, event: Event) -> Iterator[tuple[Object, str]]:
        for use in (_start(event), *_inside(_content(event), "toolUse")):
            if "input" in use:
                yield use, "input"

    def text_in(self, event: Event) -> tuple[Object, str] | None:
        delta = _delta(event)
        holders = ((delta, "text"), (as_dict(delta.get("toolUse")), "input"))
        reasoning = as_dict(delta.get("reasoningContent"))
        return next((one for one in (*holders, (reasoning, "text")) if isinstance(one[0].get(one[1]), str)), None)

    def is_finish(self, event: Event) -> bool:
        return "messageStop" in as_dict(event)

    def is_after_finish(self, event: Event) -> bool:
        return "metadata" in as_dict(event)

    def set_finish(self, event: Event, reason: str | None) -> None:
        for holder in (as_dict(event), as_dict(as_dict(event).get("messageStop"))):
            if holder.get("stopReason"):
                holder["stopReason"] = reason

    def provider_run(self, events: Events, stream: bool) -> Events:
        use: Object = {"toolUseId": "tooluse_srv", "name": "nova_grounding", "type": "server_tool_use"}
        result: Object = {"toolUseId": "tooluse_srv", "status": "success", "type": "nova_grounding_result"}
        query: Object = {"query": "weather"}
        for event in events:
            fields = as_dict(event)
            if "output" in fields:
                content = fields["output"]["message"]["content"]
                found = {"toolResult": {**result, "content": [{"text": "sunny"}]}}
                fields["output"]["message"]["content"] = [{"toolUse": {**use, "input": query}}, found, *content]
            for inner in self.numbered(event):
                if self.index in inner:
                    inner[self.index] += 2
            yield event
            if "messageStart" in fields:
                yield {"contentBlockStart": {"start": {"toolUse": use}, self.index: 0}}
                text = '{"query": "weather"}'
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": text}}, self.index: 0}}
                yield {"contentBlockStop": {self.index: 0}}
                yield {"contentBlockStart": {"start": {"toolResult": result}, self.index: 1}}
                yield {"contentBlockDelta": {"delta": {"toolResult": [{"text": "sunny"}]}, self.index: 1}}
                yield {"contentBlockStop": {self.index: 1}}

    def part_of_call(self, event: Event) -> PartOfCall:
        if _start(event):
            return "first"
        return "later" if "toolUse" in _delta(event) or "contentBlockStop" in as_dict(event) else ""

    def object_arguments(self, events: Events) -> Events:
        """In one delta."""
        held: list[Object] = []
        for event in events:
            if "toolUse" in _delta(event):
                held.append(as_dict(event))
                continue
            if held:
                first, *more = held
                held = []
                text = "".join(_delta(one)["toolUse"]["input"] for one in (first, *more))
                _delta(first)["toolUse"]["input"] = json.loads(text or "{}")
                yield first
            yield event

    def error_event(self, error: Object, message: str) -> bytes:
        return EVENT_STREAM.write(dumps({"modelStreamErrorException": {"message": message}}))


def _start(event: Event) -> Object:
    return as_dict(as_dict(as_dict(as_dict(event).get("contentBlockStart")).get("start")).get("toolUse"))


def _delta(event: Event) -> Object:
    return as_dict(as_dict(as_dict(event).get("contentBlockDelta")).get("delta"))


def _content(event: Event) -> list[Object]:
    return dicts(as_dict(as_dict(as_dict(event).get("output")).get("message")).get("content"))


FOR_TESTS = ForTests(check_shape, check_request, ConverseEvents())
