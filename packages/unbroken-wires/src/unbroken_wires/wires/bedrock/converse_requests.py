"""bedrock-converse, requests: `encode_request` for what we send, `decode_request` for what a client sends to us.

Model and streaming are part of the URL, not of the body. `encode_request` leaves them out; `decode_request` takes the
model from `modelId`, if the reader of the URL has put it there.

Roles have to alternate, so neighbours of one role become one message: results and what the user says after them stand
together. What this wire cannot carry: the choice `none` (the tools stay, and nothing is said about them), `parallel`,
`seed`, files by their URL, reasoning of another wire, and a system message in the middle, which becomes a user's,
marked as such. Cache points go only to the families that take them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import cast

from unbroken_wires.messages import (
    Assistant,
    CacheMark,
    Choice,
    Json,
    Message,
    Native,
    OneTool,
    Request,
    Sampling,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    User,
)
from unbroken_wires.wires.bedrock.converse_content import (
    ID_RULE,
    NAME,
    blocks_of,
    cache_point,
    decode_parts,
    encode_parts,
    is_claude,
    is_nova,
    is_signed,
    mark_of,
    says_something,
)
from unbroken_wires.wires.bedrock.converse_reasoning import (
    FIELDS,
    decode_effort,
    drop_moved_reasoning,
    set_reasoning,
    spelled,
)
from unbroken_wires.wires.content_parts import (
    call_from_text,
    content_before_answer,
    ids_as_kept,
    outgoing_object,
    own_extra,
    own_native,
    own_tool,
    says_more,
    with_unique_ids,
)
from unbroken_wires.wires.json_access import (
    TOOL_NAME,
    IdRule,
    Object,
    as_dict,
    as_flag,
    as_list,
    as_number,
    as_text,
    called_name,
    dicts,
    fit,
    fit_name,
)
from unbroken_wires.wires.jsontext import dump_arguments

_MAX_MARKS = 4

# Outgoing


def encode_request(request: Request) -> Object:
    marks = is_claude(request.model) or is_nova(request.model)
    system: list[Object] = []
    turns: list[Object] = []
    for message in with_unique_ids(request.messages):
        if isinstance(message, System) and not turns:
            system += encode_parts(message.parts, marks)
            continue
        role, blocks = "assistant" if isinstance(message, Assistant) else "user", _encode_message(message, marks)
        if blocks and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    tools = [block for tool in request.tools for block in _encode_tool(tool, is_claude(request.model))]
    _set_marks(tools, system, turns, request.cache and marks, is_claude(request.model))
    body: Object = {"messages": turns}
    if system:
        body["system"] = system
    extra = own_extra(request, NAME)
    if tools or as_dict(extra.get("toolConfig")).get("tools"):
        choice = None if request.final else _encode_choice(request.choice)
        body["toolConfig"] = {"tools": tools} if choice is None else {"tools": tools, "toolChoice": choice}
    config = _encode_config(request.sampling)
    if config:
        body["inferenceConfig"] = config
    set_reasoning(body, request)
    if request.output is not None and not request.output.tool:
        from unbroken_wires.wires.bedrock.converse_crossing import write_output  # noqa: PLC0415 - start-up time

        write_output(body, request.output)
    body = _with_extra(body, extra, request.final)
    drop_moved_reasoning(body, request)
    return body


def _encode_config(s: Sampling) -> Object:
    config = {
        "maxTokens": s.max_tokens,
        "temperature": None if s.temperature is None else min(s.temperature, 1),  # on other wires it goes to 2
        "topP": s.top_p,
        "stopSequences": list(s.stop) or None,
    }
    return {name: value for name, value in config.items() if value is not None}


def _with_extra(body: Object, extra: Mapping[str, Json], final: bool) -> Object:
    """`extra` last: merged into the objects that hold settings, its tools added to ours, else in place of ours."""
    for key, value in extra.items():
        own, theirs = as_dict(body.get(key)), as_dict(value)
        if key in ("toolConfig", "inferenceConfig", FIELDS) and own and theirs:
            body[key] = {**own, **theirs}
            if key == "toolConfig":
                body[key]["tools"] = [*as_list(own.get("tools")), *as_list(theirs.get("tools"))]
        else:
            body[key] = value
    if final and "toolConfig" in body:
        body["toolConfig"] = {name: value for name, value in body["toolConfig"].items() if name != "toolChoice"}
    return body


def _encode_tool(tool: ToolSpec, marks: bool) -> list[Object]:
    own = own_tool(tool, NAME, TOOL_NAME, "toolSpec")
    if not own:
        spec: Object = {"name": fit_name(tool.name, TOOL_NAME)}
        if tool.description:  # an empty one is refused
            spec["description"] = tool.description
        spec["inputSchema"] = {"json": dict(tool.parameters)}
        if tool.strict is not None:
            spec["strict"] = tool.strict
        own = {"toolSpec": spec}
    return [own, cache_point(tool.cache)] if tool.cache and marks else [own]


def _encode_choice(choice: Choice | None) -> Object | None:
    match choice:
        case OneTool(name):
            return {"tool": {"name": fit_name(name, TOOL_NAME)}}
        case "required":
            return {"any": {}}
        case "auto":
            return {"auto": {}}
        case _:
            return None


def _encode_message(message: Message, marks: bool) -> list[Object]:
    match message:
        case System():
            return [{"text": f"<system>{message.text}</system>"}] if message.text.strip() else []
        case User():
            return encode_parts(message.parts, marks)
        case ToolMessage():
            return [block for result in message.results for block in _encode_result(result, marks)]
        case Assistant():
            blocks = [block for block in _encode_assistant(message) if says_something(block)]
            while blocks and "reasoningContent" in blocks[-1]:
                blocks.pop()  # refused as the last block, for instance when the token limit cut the answer there
            return blocks


def _encode_assistant(message: Assistant) -> list[Object]:
    native = message.native
    if native is None or native.wire != NAME:
        # Reasoning of another wire has no signature that this one would accept: it stays behind.
        return [{"text": message.text}, *map(encode_call, message.calls)]
    return _encode_native(message, native)


def _encode_native(message: Assistant, native: Native) -> list[Object]:
    """The blocks as they came, but for what happened to the calls since: dropped, cut, or given another id."""
    blocks = dicts(native.value)
    said = [as_text(as_dict(block["toolUse"]).get("toolUseId")) for block in blocks if is_call(block)]
    ids = ids_as_kept(said, native.ids)
    calls = {call.id: call for call in message.calls}
    encoded: list[Object] = []
    for block in blocks:
        if is_call(block):
            if (call := calls.pop(next(ids), None)) is not None:
                encoded.append({"toolUse": {**as_dict(block["toolUse"]), **encode_call(call)["toolUse"]}})
        elif is_signed(block):
            encoded.append(block)
    return [*encoded, *map(encode_call, calls.values())]


def encode_call(call: ToolCall, rule: IdRule | None = TOOL_NAME) -> Object:
    arguments = {"input": call.raw} if call.kind == "custom" else outgoing_object(call)
    return {"toolUse": {"toolUseId": fit(call.id, ID_RULE), "name": called_name(call, rule), "input": arguments}}


def _encode_result(result: ToolResult, marks: bool) -> list[Object]:
    content: Json = own_native(result, NAME)
    if content is None:
        # Only its kinds of blocks count here: a cache point comes after the result.
        content = [block for block in encode_parts(result.content, marks=False) if "cachePoint" not in block]
    value: Object = {"toolUseId": fit(result.call_id, ID_RULE)}
    value["content"] = content or [{"text": "Error" if result.error else "(empty)"}]
    if result.error and marks:
        value["status"] = "error"  # the field is known to Claude and Nova alone
    encoded: Object = {"toolResult": value}
    return [encoded, cache_point(result.cache)] if result.cache and marks else [encoded]


def _set_marks(tools: list[Object], system: list[Object], turns: list[Object], automatic: bool, on_tools: bool) -> None:
    """Never more cache points than the API allows: the last ones are kept, because they cover what is before them."""
    places = [tools, system, *(turn["content"] for turn in turns)]
    if automatic:
        early: CacheMark = "1h" if any(mark_of(block) == "1h" for blocks in places for block in blocks) else "5m"
        last: list[Object] = turns[-1]["content"] if turns else []
        wanted: list[tuple[list[Object], CacheMark]] = [(last, "5m"), (system, early)]
        if on_tools:
            wanted.append((tools, early))
        for blocks, mark in wanted:
            if blocks and not mark_of(blocks[-1]):
                blocks.append(cache_point(mark))
        before = content_before_answer(turns)  # where the request before this one ended
        count = sum(bool(mark_of(block)) for blocks in places for block in blocks)
        if early == "5m" and before and not mark_of(before[-1]) and count < _MAX_MARKS:
            before.append(cache_point("5m"))
    excess = sum(bool(mark_of(block)) for blocks in places for block in blocks) - _MAX_MARKS
    for blocks in places:
        for block in [block for block in blocks if mark_of(block)][: max(0, excess)]:
            blocks.remove(block)
            excess -= 1


# Incoming


def is_call(block: Object) -> bool:
    """A call for the client: one of the provider's own tools says so."""
    use = block.get("toolUse")
    return isinstance(use, dict) and cast("Object", use).get("type") in (None, "tool_use")


def decode_request(body: Object) -> Request:
    """What has no field of ours (guardrails, other fields of a model, the provider's own tools) stays in `extra`."""
    known = ("messages", "system", "inferenceConfig", "toolConfig", FIELDS, "modelId", "model", "stream")
    extra = {key: value for key, value in body.items() if key not in known}
    model = as_text(body.get("modelId")) or as_text(body.get("model"))
    config = dict(as_dict(body.get("inferenceConfig")))
    sampling = Sampling(
        max_tokens=as_number(config.pop("maxTokens", None)),
        temperature=as_number(config.pop("temperature", None)),
        top_p=as_number(config.pop("topP", None)),
        stop=tuple(stop for stop in as_list(config.pop("stopSequences", None)) if isinstance(stop, str)),
    )
    fields = dict(as_dict(body.get(FIELDS)))
    effort = decode_effort(fields)
    if effort is not None:
        for name, value in spelled(effort, model).items():
            if fields.get(name) == value:
                del fields[name]
    tools, tool_config = _decode_tools(as_dict(body.get("toolConfig")))
    choice = _decode_choice(tool_config.pop("toolChoice", None))
    extra |= {
        name: value
        for name, value in (("inferenceConfig", config), ("toolConfig", tool_config), (FIELDS, fields))
        if value
    }
    system = tuple(part for part in decode_parts(blocks_of(body.get("system"))) if isinstance(part, Text))
    messages = tuple(_decode_messages(body.get("messages")))
    return Request(
        messages=(*((System(system),) if system else ()), *messages),
        tools=tools,
        choice=choice,
        stream=body.get("stream") is not False,
        reasoning=effort,
        sampling=sampling,
        extra=extra,
        wire=NAME,
        model=model,
    )


def _decode_tools(config: Object) -> tuple[tuple[ToolSpec, ...], Object]:
    """Functions, and the configuration without them: the provider's own tools stay in it."""
    tools: list[ToolSpec] = []
    others: list[Object] = []
    for tool in dicts(config.get("tools")):
        spec = as_dict(tool.get("toolSpec"))
        if mark := mark_of(tool):
            if tools:
                tools[-1] = replace(tools[-1], cache=mark)
        elif spec:
            tools.append(_decode_tool(tool, spec))
        else:
            others.append(tool)
    rest = {name: value for name, value in config.items() if name != "tools"}
    return tuple(tools), {**rest, "tools": others} if others else rest


def _decode_tool(tool: Object, spec: Object) -> ToolSpec:
    made = ToolSpec(
        name=as_text(spec.get("name")),
        description=as_text(spec.get("description")),
        parameters=as_dict(as_dict(spec.get("inputSchema")).get("json")),
        strict=as_flag(spec.get("strict")),
    )
    (ours,) = _encode_tool(made, marks=False)
    return replace(made, native=Native(NAME, tool)) if says_more(tool, ours) else made


def _decode_choice(choice: Json) -> Choice | None:
    match choice:
        case {"auto": _}:
            return "auto"
        case {"any": _}:
            return "required"
        case {"tool": {"name": str(name)}}:
            return OneTool(name)
        case _:
            return None


def _decode_messages(messages: Json) -> Iterator[Message]:
    results: list[ToolResult] = []  # of several messages: some clients send one message a result
    names: dict[str, str] = {}
    nameless: Iterator[str] = iter(())  # calls that came without an id: results without one answer them in order
    rounds = 0
    for message in _joined(dicts(messages)):
        blocks = blocks_of(message.get("content"))
        if message.get("role") != "assistant":
            found, said = _split_results(blocks, names, nameless)
            results += found
            if found and not said:
                continue
            blocks = said
        if results:
            yield ToolMessage(tuple(results))
            results.clear()
        if message.get("role") == "assistant":
            assistant = _decode_assistant(blocks, rounds)
            rounds += bool(assistant.calls)
            names.update({call.id: call.name for call in assistant.calls})
            if assistant.calls:
                given = {as_text(as_dict(block.get("toolUse")).get("toolUseId")) for block in blocks}
                nameless = iter([call.id for call in assistant.calls if call.id not in given])
            yield assistant
        else:
            yield User(decode_parts(blocks))
    if results:
        yield ToolMessage(tuple(results))


def _joined(messages: list[Object]) -> Iterable[Object]:
    """Neighbouring messages of the assistant are one; some clients keep one for each block."""
    joined: list[Object] = []
    for message in messages:
        last = joined[-1] if joined else {}
        if message.get("role") == "assistant" and last.get("role") == "assistant":
            joined[-1] = {**last, "content": [*blocks_of(last.get("content")), *blocks_of(message.get("content"))]}
        else:
            joined.append(message)
    return joined


def _split_results(
    blocks: list[Object], names: Mapping[str, str], nameless: Iterator[str]
) -> tuple[list[ToolResult], list[Object]]:
    results: list[ToolResult] = []
    said: list[Object] = []
    for block in blocks:
        if "toolResult" in block:
            results.append(_decode_result(as_dict(block["toolResult"]), names, nameless))
        elif (mark := mark_of(block)) and results and not said:
            results[-1] = replace(results[-1], cache=mark)
        else:
            said.append(block)
    return results, said


def _decode_result(result: Object, names: Mapping[str, str], nameless: Iterator[str]) -> ToolResult:
    id, content = as_text(result.get("toolUseId")) or next(nameless, ""), blocks_of(result.get("content"))
    own = any("json" in block for block in content)
    texts = [{"text": dump_arguments(block["json"]) or ""} if "json" in block else block for block in content]
    return ToolResult(
        id,
        decode_parts(texts),
        error=result.get("status") == "error",
        name=names.get(id, ""),
        native=Native(NAME, content) if own else None,
    )


def _decode_assistant(blocks: list[Object], rounds: int) -> Assistant:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block in blocks:
        if is_call(block):
            use = as_dict(block["toolUse"])
            id = as_text(use.get("toolUseId")) or f"call_{rounds}_{len(calls)}"
            calls.append(call_from_text(id, as_text(use.get("name")), use.get("input"), len(calls)))
        else:
            texts.append(text_of(block))
            thoughts.append(as_text(as_dict(as_dict(block.get("reasoningContent")).get("reasoningText")).get("text")))
    native = None if plain(blocks) else Native(NAME, blocks, tuple(call.id for call in calls))
    return Assistant("".join(texts), tuple(calls), "".join(thoughts), native)


def text_of(block: Object) -> str:
    """The text of a block of text, with or without citations."""
    cited = dicts(as_dict(block.get("citationsContent")).get("content"))
    return as_text(block.get("text")) or "".join(as_text(part.get("text")) for part in cited)


_CALL = frozenset({"toolUseId", "name", "input", "type"})


def plain(blocks: Iterable[Object]) -> bool:
    """Do our own fields cover it: at most one text, then calls, and nothing in them that we have no field for?"""
    for position, block in enumerate(blocks):
        if "text" in block:
            known = len(block) == 1 and position == 0
        else:
            known = len(block) == 1 and is_call(block) and as_dict(block["toolUse"]).keys() <= _CALL
        if not known:
            return False
    return True
