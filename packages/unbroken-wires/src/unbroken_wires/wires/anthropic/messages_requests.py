"""anthropic-messages, requests: `encode_request` for what we send, `decode_request` for what a client sends to us.

Follows the rules by which the API refuses a request (no empty text, no thinking without its signature, four cache marks
at most), so that no caller has to know them. It does not repair a broken chain of calls: `transcript` does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from unbroken_wires.messages import (
    Assistant,
    CacheMark,
    Choice,
    Json,
    Managed,
    Message,
    Native,
    OneTool,
    Request,
    Sampling,
    System,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    User,
)
from unbroken_wires.wires.anthropic.messages_binding import drop_moved_thinking
from unbroken_wires.wires.anthropic.messages_content import (
    NAME,
    THINKING,
    blocks_of,
    decode_effort,
    decode_part,
    decode_texts,
    encode_part,
    encode_thinking,
    is_signed,
    mark,
    says_all,
)
from unbroken_wires.wires.anthropic.messages_turns import (
    CONTAINER,
    container_of,
    set_container,
    spans_turns,
    without_halves,
)
from unbroken_wires.wires.claude_models import LATER_SYSTEM, output_limit
from unbroken_wires.wires.content_parts import (
    cache_mark,
    call_from_text,
    content_before_answer,
    ids_as_kept,
    outgoing_object,
    own_extra,
    own_tool,
    says_more,
    with_extra,
    with_unique_ids,
)
from unbroken_wires.wires.json_access import (
    IdRule,
    Object,
    as_dict,
    as_int,
    as_list,
    as_number,
    as_text,
    called_name,
    dicts,
    fit,
    fit_name,
)

ID_RULE = IdRule(128, "[A-Za-z0-9_-]")
NAME_RULE = ID_RULE
_MAX_TOKENS = 8192  # the API demands a limit; this is for models that are not known
_MAX_MARKS = 4
FEWEST_TO_COMPACT = 50_000
"""Tokens: the API refuses a lower threshold."""


# Outgoing


def encode_request(request: Request) -> Object:
    system: list[Object] = []
    turns: list[Object] = []
    halves = False
    container = ""
    for message in with_unique_ids(request.messages):
        if isinstance(message, System) and not turns:
            system += [encode_part(part) for part in message.parts]
            continue
        if isinstance(message, System) and request.model in LATER_SYSTEM and _is_placed(message, turns):
            continue
        # An empty message is left out: the API refuses it, a made-up word would be put into someone's
        # mouth, and two neighbours of one role are joined by the API.
        if blocks := _encode_message(message):
            if turns[-1:] and turns[-1]["role"] == "system" and not isinstance(message, Assistant):
                turns[-1] = {"role": "user", "content": _as_user(turns[-1]["content"])}
            turns.append({"role": "assistant" if isinstance(message, Assistant) else "user", "content": blocks})
            if isinstance(message, Assistant) and message.native is not None and message.native.wire == NAME:
                container = container_of(message.native, container)
                halves = halves or spans_turns(message.native)
    if halves:
        turns = without_halves(turns)
    system = _sayable(system)
    tools = [_encode_tool(tool) for tool in request.tools]
    _set_marks(tools, system, turns, request.cache)
    body: Object = {"model": request.model, "max_tokens": 0, "messages": turns}
    for turn in turns:
        if turn["role"] == "user":
            turn["content"] = _short(turn["content"])
    if system:
        body["system"] = _short(system)
    extra = own_extra(request, NAME)
    if tools:
        body["tools"] = tools
    if (tools or extra.get("tools")) and (choice := _encode_choice(request)):
        body["tool_choice"] = choice
    _set_sampling(body, request)
    if request.stream:
        body["stream"] = True
    if request.managed is not None:
        body["context_management"] = {"edits": _edits(request.managed)}
    if request.output is not None and not request.output.tool:
        from unbroken_wires.wires.anthropic.messages_crossing import write_output  # noqa: PLC0415 - start-up time

        write_output(body, request.output)
    config = as_dict(body.get("output_config"))
    body = with_extra(body, extra)
    if config and "output_config" in extra:
        body["output_config"] = {**config, **as_dict(extra["output_config"])}
    if request.final and body.get("tools"):
        body["tool_choice"] = {"type": "none"}
    if container:
        set_container(body, container, ours=not request.wire)
    drop_moved_thinking(body, request)
    return body


def _is_placed(message: System, turns: list[Object]) -> bool:
    """Adds system text where the API takes it: behind the user, and before nobody but the assistant."""
    blocks = _sayable([encode_part(part) for part in message.parts])
    if not blocks or turns[-1]["role"] == "assistant":
        return False
    if turns[-1]["role"] == "system":
        turns[-1]["content"] += blocks
    else:
        turns.append({"role": "system", "content": blocks})
    return True


def _as_user(system: list[Object]) -> list[Object]:
    return [{**block, "text": f"<system>{block['text']}</system>"} for block in system]


def _edits(managed: Managed) -> list[Object]:
    edits: list[Object] = []
    if managed.clear_at is not None:
        edit: Object = {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": managed.clear_at}}
        edit["keep"] = {"type": "tool_uses", "value": managed.keep_results}
        if managed.never_clear:
            edit["exclude_tools"] = [fit_name(name, NAME_RULE) for name in managed.never_clear]
        edits.append(edit)
    if managed.compact_at is not None:
        trigger = {"type": "input_tokens", "value": max(managed.compact_at, FEWEST_TO_COMPACT)}
        compact: Object = {"type": "compact_20260112", "trigger": trigger}
        edits.append(compact | ({"instructions": managed.instructions} if managed.instructions else {}))
    return edits


def _set_sampling(body: Object, request: Request) -> None:
    extra = own_extra(request, NAME)
    exactly = "thinking" in extra  # as it was said on this wire, which a budget of ours could only come near to
    thinking = as_dict(extra["thinking"]) if exactly else encode_thinking(body, request.reasoning, request.model)
    budget = as_int(thinking.get("budget_tokens"))
    s = request.sampling
    if thinking:
        body["thinking"] = thinking
    limit = s.max_tokens if s.max_tokens is not None else output_limit(request.model) or _MAX_TOKENS
    # Someone who said both exactly may mean it: with interleaved thinking the budget may exceed the limit.
    grows = limit <= budget and not (exactly and s.max_tokens is not None)
    body["max_tokens"] = budget + limit if grows else limit
    if s.stop:
        body["stop_sequences"] = list(s.stop)
    # While it thinks, the API takes no temperature but 1 and no top_p below 0.95. On other wires temperatures go to 2.
    thinks = thinking.get("type") in ("enabled", "adaptive")
    if s.temperature is not None and (not thinks or s.temperature >= 1):
        body["temperature"] = min(s.temperature, 1)
    if s.top_p is not None and (not thinks or s.top_p >= 0.95):
        body["top_p"] = s.top_p


def _encode_tool(tool: ToolSpec) -> Object:
    if own := own_tool(tool, NAME, NAME_RULE):
        return {**own}
    encoded: Object = {"name": fit_name(tool.name, NAME_RULE)}
    if tool.description:
        encoded["description"] = tool.description
    encoded["input_schema"] = dict(tool.parameters)
    if tool.strict is not None:
        encoded["strict"] = tool.strict
    return mark(encoded, tool.cache)


def _encode_choice(request: Request) -> Object | None:
    choice = "none" if request.final else request.choice
    match choice:
        case None if request.parallel is None:
            return None
        case OneTool(name):
            encoded: Object = {"type": "tool", "name": fit_name(name, NAME_RULE)}
        case "required":
            encoded = {"type": "any"}
        case "none":
            return {"type": "none"}  # has no other field
        case _:
            encoded = {"type": "auto"}
    if request.parallel is not None:
        encoded["disable_parallel_tool_use"] = not request.parallel
    return encoded


def _short(blocks: list[Object]) -> Json:
    """One text without any mark is written as the text itself."""
    match blocks:
        case [{"type": "text", "text": str(text)}] if len(blocks[0]) == 2:
            return text
        case _:
            return blocks


def _encode_message(message: Message) -> list[Object]:
    match message:
        case System():
            # Where the model takes system text only before the messages, what comes later keeps its place, marked so.
            return _as_user([{"type": "text", "text": message.text}]) if message.text.strip() else []
        case User():
            return _sayable([encode_part(part) for part in message.parts])
        case ToolMessage():
            return [_encode_result(result) for result in message.results]
        case Assistant():
            blocks = _sayable(_encode_assistant(message))
            while blocks and blocks[-1].get("type") in THINKING:
                blocks.pop()  # refused as the last block, for instance when the token limit cut the answer there
            return blocks


def _sayable(blocks: list[Object]) -> list[Object]:
    """Without the texts that the API refuses: an empty one anywhere, a blank one where there is no other text."""
    texts = [block.get("text") for block in blocks if block.get("type") == "text"]
    blank_too = not any(isinstance(text, str) and text.strip() for text in texts)
    return [
        block for block in blocks if block.get("type") != "text" or not (blank_too or block.get("text") in ("", None))
    ]


def _encode_assistant(message: Assistant) -> list[Object]:
    native = message.native
    if native is not None and native.wire == NAME:
        return _encode_native(message, native)
    # Reasoning of another wire has no signature that this one would accept: it stays behind.
    return [{"type": "text", "text": message.text}, *map(encode_call, message.calls)]


def _encode_native(message: Assistant, native: Native) -> list[Object]:
    """The blocks as they came, but for what happened to the calls since: dropped, cut, or given another id."""
    blocks = dicts(native.value)
    ids = ids_as_kept([as_text(block.get("id")) for block in blocks if block.get("type") == "tool_use"], native.ids)
    calls = {call.id: call for call in message.calls}
    encoded: list[Object] = []
    for block in blocks:
        if block.get("type") == "tool_use":
            if (call := calls.pop(next(ids), None)) is not None:
                encoded.append({**block, **encode_call(call)})
        elif is_signed(block) and block.get("type") != CONTAINER:
            encoded.append({**block})
    return [*encoded, *map(encode_call, calls.values())]


def encode_call(call: ToolCall, rule: IdRule | None = NAME_RULE) -> Object:
    arguments = {"input": call.raw} if call.kind == "custom" else outgoing_object(call)
    return {"type": "tool_use", "id": fit(call.id, ID_RULE), "name": called_name(call, rule), "input": arguments}


def _encode_result(result: ToolResult) -> Object:
    block: Object = {"type": "tool_result", "tool_use_id": fit(result.call_id, ID_RULE)}
    if content := _sayable([encode_part(part) for part in result.content]):
        block["content"] = _short(content)
    if result.error:
        block["is_error"] = True
    return mark(block, result.cache)


def _set_marks(tools: list[Object], system: list[Object], turns: list[Object], automatic: bool) -> None:
    """Never more marks than the API allows: the last ones are kept, because they cover what is before them."""
    blocks = [*tools, *system]
    for turn in turns:
        for block in turn["content"]:
            if block.get("type") == "tool_result":
                blocks += dicts(block.get("content"))
            blocks.append(block)
    marked = [block for block in blocks if block.get("cache_control")]
    for block in marked[:-_MAX_MARKS]:
        del block["cache_control"]
    if not automatic:
        return
    turns = [turn for turn in turns if turn["role"] != "system"]
    room = _MAX_MARKS - len(marked)
    # A mark for an hour must not follow one for five minutes.
    early: CacheMark = "1h" if any(cache_mark(block) == "1h" for block in marked) else "5m"
    last: list[Object] = turns[-1]["content"] if turns else []
    places: list[tuple[list[Object], CacheMark]] = [(last, "5m"), (system, early), (tools, early)]
    if early == "5m":
        # Where the request before this one ended: the API looks for what it has in its cache at the marks, and only at
        # the last 20 blocks before each, fewer than a round with many calls has.
        places.append((content_before_answer(turns), "5m"))
    for place, cache in places:
        if place and room > 0 and not place[-1].get("cache_control"):
            mark(place[-1], cache)
            room -= 1


# Incoming

_SAMPLING = frozenset({"max_tokens", "temperature", "top_p", "stop_sequences"})
_KNOWN = _SAMPLING | {"model", "messages", "system", "tools", "tool_choice", "stream", "thinking"}


def decode_request(body: Object) -> Request:
    system = decode_texts(body.get("system"))
    choice = as_dict(body.get("tool_choice"))
    alone = choice.get("disable_parallel_tool_use")
    effort = decode_effort(body)
    extra = {key: value for key, value in body.items() if key not in _KNOWN}
    tools = dicts(body.get("tools"))
    # A tool without a schema is one that the provider runs: no tool of ours, on no other wire.
    if run_by_provider := [tool for tool in tools if "input_schema" not in tool]:
        extra["tools"] = run_by_provider
    if body.get("thinking") and not says_all(effort, body):
        extra["thinking"] = body["thinking"]
    return Request(
        messages=((System(system),) if system else ()) + tuple(_decode_messages(body.get("messages"))),
        tools=tuple(_decode_tool(tool) for tool in tools if "input_schema" in tool),
        choice=_decode_choice(choice),
        parallel=None if alone is None else not alone,
        stream=bool(body.get("stream")),
        reasoning=effort,
        sampling=Sampling(
            max_tokens=as_number(body.get("max_tokens")),
            temperature=as_number(body.get("temperature")),
            top_p=as_number(body.get("top_p")),
            stop=tuple(stop for stop in as_list(body.get("stop_sequences")) if isinstance(stop, str)),
        ),
        extra=extra,
        wire=NAME,
        model=as_text(body.get("model")),
    )


def _decode_tool(tool: Object) -> ToolSpec:
    strict = tool.get("strict")
    spec = ToolSpec(
        name=as_text(tool.get("name")),
        description=as_text(tool.get("description")),
        parameters=as_dict(tool.get("input_schema")),
        strict=strict if isinstance(strict, bool) else None,
        cache=cache_mark(tool),
    )
    return replace(spec, native=Native(NAME, tool)) if says_more(tool, _encode_tool(spec)) else spec


def _decode_choice(choice: Object) -> Choice | None:
    match choice:
        case {"type": "auto" | "none" as kind}:
            return kind
        case {"type": "any"}:
            return "required"
        case {"type": "tool", "name": str(name)}:
            return OneTool(name)
        case _:
            return None


def _joined(messages: list[Object]) -> list[Object]:
    """Neighbouring messages of the assistant are one to the API; some clients keep one for each block."""
    joined: list[Object] = []
    for message in messages:
        last = joined[-1] if joined else {}
        if message.get("role") == "assistant" and last.get("role") == "assistant":
            joined[-1] = {**last, "content": [*blocks_of(last.get("content")), *blocks_of(message.get("content"))]}
        else:
            joined.append(message)
    return joined


def _decode_messages(messages: Json) -> Iterable[Message]:
    results: list[ToolResult] = []  # of several messages: some clients send one message a result
    names: dict[str, str] = {}
    nameless: Iterator[str] = iter(())  # calls that came without an id: results without one answer them in order
    rounds = 0
    for message in _joined(dicts(messages)):
        blocks = blocks_of(message.get("content"))
        role = message.get("role")
        found = [] if role == "assistant" else [block for block in blocks if block.get("type") == "tool_result"]
        results += [_decode_result(block, names, nameless) for block in found]
        if found and len(found) == len(blocks):
            continue
        if results:
            yield ToolMessage(tuple(results))
            results.clear()
        if role == "assistant":
            assistant = _decode_assistant(blocks, rounds)
            rounds += bool(assistant.calls)
            names.update({call.id: call.name for call in assistant.calls})
            if assistant.calls:
                given = {as_text(block.get("id")) for block in blocks}
                nameless = iter([call.id for call in assistant.calls if call.id not in given])
            yield assistant
            continue
        rest = [block for block in blocks if block.get("type") != "tool_result"]
        yield System(decode_texts(rest)) if role == "system" else User(tuple(map(decode_part, rest)))
    if results:
        yield ToolMessage(tuple(results))


def _decode_assistant(blocks: list[Object], rounds: int) -> Assistant:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "thinking", "thinking": str(text)}:
                thoughts.append(text)
            case {"type": "tool_use"}:
                id = as_text(block.get("id")) or f"call_{rounds}_{len(calls)}"
                calls.append(call_from_text(id, as_text(block.get("name")), block.get("input"), len(calls)))
            case _:
                pass
    native = None if plain(blocks) else Native(NAME, blocks, tuple(call.id for call in calls))
    return Assistant("".join(texts), tuple(calls), "".join(thoughts), native)


def plain(blocks: Iterable[Object]) -> bool:
    """Do our own fields cover it: at most one text, then calls, and nothing in them that we have no field for?"""
    for position, block in enumerate(blocks):
        if block.get("type") == "text":
            known = block.keys() == {"type", "text"} and position == 0
        else:
            known = block.get("type") == "tool_use" and block.keys() == {"type", "id", "name", "input"}
        if not known:
            return False
    return True


def _decode_result(block: Object, names: dict[str, str], nameless: Iterator[str]) -> ToolResult:
    id = as_text(block.get("tool_use_id")) or next(nameless, "")
    return ToolResult(
        id,
        tuple(map(decode_part, blocks_of(block.get("content")))),
        error=bool(block.get("is_error")),
        name=names.get(id, ""),
        cache=cache_mark(block),
    )
