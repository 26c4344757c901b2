"""openai-responses, the request corners: `encode_request` and `decode_request`.

A history is a flat list of items here. What a model said goes back item for item (`Assistant.native`), because a
reasoning item counts only beside the call or message it led to; everything else is written from our own fields.
No server state is relied on unless `extra` asks for it. The response corners are in `decoder` and `encoder`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from unbroken.errors import StreamError
from unbroken.messages import (
    Assistant,
    Choice,
    Effort,
    Json,
    Media,
    Message,
    Native,
    OneTool,
    Part,
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
from unbroken.wires.ids import RESPONSES, fit
from unbroken.wires.jsontext import dump_arguments, loads
from unbroken.wires.openai_responses.items import (
    NAME,
    PAYLOADS,
    as_input,
    call_kind,
    parts_of,
    payload,
    says_more,
    text_of,
)
from unbroken.wires.parts import call_from_text, data_url, from_data_url, outgoing_arguments, own_extra, with_extra
from unbroken.wires.values import Object, as_dict, as_number, as_text, dicts

_RESULTS = {
    "function_call_output",
    "custom_tool_call_output",
    "apply_patch_call_output",
    "shell_call_output",
    "local_shell_call_output",
    "computer_call_output",
    "tool_search_output",
}
_STATE = {"store", "include", "previous_response_id", "conversation"}
_ONE_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)


# Requests, outgoing


def encode_request(request: Request) -> Object:
    """`stop` and `seed` do not exist on this wire and are left out.

    With a reasoning effort the request is stateless: nothing is stored and reasoning comes encrypted, so that native
    items carry it back by themselves. Without one neither is sent, because models that do not reason refuse it; then
    the provider's default decides. Any of `store`, `include`, `previous_response_id`, `conversation` in `extra` turns
    this off. `reasoning` in `extra` is merged key by key, so that a summary can be asked for beside the effort.
    """
    system, messages = _instructions(request.messages)
    body: Object = {"model": request.model}
    if system:
        body["instructions"] = system
    if request.tools:
        body["tools"] = [_encode_tool(tool) for tool in request.tools]
        if request.choice is not None:
            body["tool_choice"] = _encode_choice(request.choice)
        if request.parallel is not None:
            body["parallel_tool_calls"] = request.parallel
    if request.stream:
        body["stream"] = True
    s = request.sampling
    for key, value in (("max_output_tokens", s.max_tokens), ("temperature", s.temperature), ("top_p", s.top_p)):
        if value is not None:
            body[key] = value
    effort: Object = {} if request.reasoning is None else {"effort": request.reasoning}
    extra = own_extra(request, NAME)
    effort |= as_dict(extra.get("reasoning"))
    if effort.get("effort") not in (None, "none") and not _STATE & extra.keys():
        body |= {"store": False, "include": ["reasoning.encrypted_content"]}
    body = with_extra(body, extra)
    if effort:
        body["reasoning"] = effort
    if request.final and body.get("tools"):
        body["tool_choice"] = "none"
    body.setdefault("input", _encode_messages(messages, stateless=body.get("store") is False))
    return body


def _instructions(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    match messages:
        case [System(parts=(Text(text=text),)), System(), *_]:
            return "", messages
        case [System(parts=(Text(text=text),)), *rest]:
            return text, rest if text else messages
        case _:
            return "", messages


def _encode_tool(tool: ToolSpec) -> Object:
    # Left out, `strict` means true here and the schema is rewritten (optional fields become required): say false.
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": bool(tool.strict),
    }


def _encode_choice(choice: Choice) -> Json:
    return {"type": "function", "name": choice.name} if isinstance(choice, OneTool) else choice


def _encode_messages(messages: Iterable[Message], stateless: bool) -> list[Object]:
    items: list[Object] = []
    calls: dict[str, ToolCall] = {}
    for message in messages:
        match message:
            case System():
                items.append({"type": "message", "role": "system", "content": _encode_parts(message.parts)})
            case User():
                items.append({"type": "message", "role": "user", "content": _encode_parts(message.parts)})
            case Assistant():
                calls.update((call.id, call) for call in message.calls)
                items.extend(_encode_assistant(message, stateless))
            case ToolMessage():
                for result in message.results:
                    items.extend(_encode_result(result, calls.get(result.call_id)))
    return items


def _encode_parts(parts: Sequence[Part]) -> Json:
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].text:
        return parts[0].text
    return [_encode_part(part) for part in parts]


def _encode_part(part: Part) -> Object:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if not part.mime or part.mime.startswith("image/"):
        return {"type": "input_image", "image_url": data_url(part), "detail": "auto"}
    if part.url:
        return {"type": "input_file", "file_url": part.url}
    kind, _, form = part.mime.partition("/")
    if kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": form}}
    return {"type": "input_file", "filename": f"file.{form}", "file_data": data_url(part)}


def _encode_assistant(message: Assistant, stateless: bool) -> list[Object]:
    native = message.native
    if native is None or native.wire != NAME:
        items = [_encode_text(message.text)] if message.text else []
        return items + [encode_call(call) for call in message.calls]
    calls = {call.id: call for call in message.calls}
    items: list[Object] = []
    referenced = False
    given = _with_text(dicts(native.value), message.text)
    for item, id in zip(given, _our_ids(given, native.ids), strict=True):
        if id is not None:
            call = calls.pop(id, None)
            if call is None:
                continue
            item = {**item, "call_id": fit(id, RESPONSES)}
            if call.kind == "function":
                item["arguments"] = outgoing_arguments(call)
        elif (
            stateless and item.get("type") == "reasoning" and not (item.get("encrypted_content") or item.get("content"))
        ):
            referenced = True  # only a reference to what was never stored: "item not found"
            continue
        items.append(item)
    items += [encode_call(call) for call in calls.values()]
    while items and items[-1].get("type") == "reasoning":
        items.pop()  # refused without the item it led to
    if referenced:  # an id would ask for the reasoning that it once stood beside
        items = [{key: value for key, value in item.items() if key != "id"} for item in items]
    return items


def _our_ids(items: Sequence[Object], ids: Sequence[str]) -> list[str | None]:
    """For each item our id of its call, None if it is none: the provider's own, else (one was minted) by order."""
    left = dict.fromkeys(ids)
    found: list[str | None] = []
    for item in items:
        id = as_text(item.get("call_id")) if call_kind(item) else None
        found.append(id if id in left else None)
        left.pop(id or "", None)
    minted = iter(left)
    return [next(minted, "") if id is None and call_kind(item) else id for id, item in zip(found, items, strict=True)]


def _with_text(items: list[Object], text: str) -> list[Object]:
    """The items as they were, unless the text was changed since (a call was recovered from it): then one message."""
    if "".join(text_of(item) for item in items if item.get("role") == "assistant") == text:
        return items
    changed = [_encode_text(text)] if text else []
    place = next((n for n, item in enumerate(items) if item.get("role") == "assistant"), 0)
    items = [item for item in items if item.get("role") != "assistant"]
    return [*items[:place], *changed, *items[place:]]


def _encode_text(text: str) -> Object:
    part: Object = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part]}


def encode_call(call: ToolCall) -> Object:
    id = fit(call.id, RESPONSES)
    if call.kind == "custom":
        return {"type": "custom_tool_call", "call_id": id, "name": call.name, "input": call.raw}
    if call.kind not in PAYLOADS:
        return {"type": "function_call", "call_id": id, "name": call.name, "arguments": outgoing_arguments(call)}
    item: Object = {"type": call.kind, "call_id": id, PAYLOADS[call.kind]: call.arguments or {}, "status": "completed"}
    if call.kind == "tool_search_call":
        item["execution"] = "client"
    return item


def _encode_result(result: ToolResult, call: ToolCall | None) -> list[Object]:
    id, text = fit(result.call_id, RESPONSES), result.text
    head: Object = {"type": "function_call_output", "call_id": id}
    match call.kind if call is not None else "function":
        case "custom":
            return [{**head, "type": "custom_tool_call_output", "output": _encode_parts(result.content)}]
        case "apply_patch_call" as kind:
            status = "failed" if result.error else "completed"
            return [{**head, "type": f"{kind}_output", "status": status, "output": text}]
        case "shell_call" as kind:
            stdout, stderr, code = ("", text, 1) if result.error else (text, "", 0)
            output: Object = {"stdout": stdout, "stderr": stderr, "outcome": {"type": "exit", "exit_code": code}}
            longest = as_dict(call.arguments if call else None).get("max_output_length")
            limit = {"max_output_length": longest} if isinstance(longest, int) else {}
            return [{**head, "type": f"{kind}_output", "output": [output], **limit}]
        case "local_shell_call" as kind:  # the documentation says id, later versions of the official package call_id
            return [{**head, "type": f"{kind}_output", "id": id, "output": text}]
        case "computer_call" as kind:  # takes a screenshot and nothing else; the words follow
            shot = next((data_url(part) for part in result.content if isinstance(part, Media)), _ONE_PIXEL)
            items: list[Object] = [
                {**head, "type": f"{kind}_output", "output": {"type": "computer_screenshot", "image_url": shot}}
            ]
            return items + ([{"type": "message", "role": "user", "content": text}] if text else [])
        case "tool_search_call":
            rest = {"execution": "client", "status": "completed", "tools": _tools_in(text)}
            return [{**head, "type": "tool_search_output", **rest}]
        case _:
            return [{**head, "output": _encode_parts(result.content)}]


def _tools_in(text: str) -> list[Object]:
    try:
        return dicts(loads(text.encode("utf-8", "replace")))
    except StreamError:
        return []


# Requests, incoming


def decode_request(body: Object) -> Request:
    """A tool that is not a function (web search, a custom tool) has no field of ours: it stays in `extra`, so that
    nothing is lost between two ends of this wire."""
    known = {"model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "stream", "reasoning"}
    known |= {"max_output_tokens", "temperature", "top_p"}
    extra: Object = {key: value for key, value in body.items() if key not in known}
    tools = dicts(body.get("tools"))
    if others := [tool for tool in tools if tool.get("type") != "function"]:
        extra["tools"] = others
    choice = _decode_choice(body.get("tool_choice"))
    if choice is None and body.get("tool_choice") is not None:
        extra["tool_choice"] = body["tool_choice"]
    reasoning = dict(as_dict(body.get("reasoning")))
    effort = reasoning.pop("effort", None) if reasoning.get("effort") in get_args(Effort) else None
    if reasoning:
        extra["reasoning"] = reasoning
    instructions = as_text(body.get("instructions"))
    parallel, tokens = body.get("parallel_tool_calls"), body.get("max_output_tokens")
    return Request(
        messages=((System.of(instructions),) if instructions else ()) + tuple(_decode_messages(body.get("input"))),
        tools=tuple(_decode_tool(tool) for tool in tools if tool.get("type") == "function"),
        choice=choice,
        parallel=parallel if isinstance(parallel, bool) else None,
        stream=bool(body.get("stream")),
        reasoning=effort,
        sampling=Sampling(
            max_tokens=tokens if isinstance(tokens, int) else None,
            temperature=as_number(body.get("temperature")),
            top_p=as_number(body.get("top_p")),
        ),
        extra=extra,
        wire=NAME,
        model=as_text(body.get("model")),
    )


def _decode_tool(tool: Object) -> ToolSpec:
    strict = tool.get("strict")
    return ToolSpec(
        name=as_text(tool.get("name")),
        description=as_text(tool.get("description")),
        parameters=as_dict(tool.get("parameters")) or {"type": "object", "properties": {}},
        strict=strict if isinstance(strict, bool) else None,
    )


def _decode_choice(choice: Json) -> Choice | None:
    match choice:
        case "auto" | "none" | "required":
            return choice
        case {"type": "function", "name": str(name)}:
            return OneTool(name)
        case _:
            return None


def _decode_messages(input: Json) -> Iterable[Message]:
    """Neighbours of one side form one message. What is neither a role nor a result stands with what the model said."""
    if isinstance(input, str):
        yield User.of(input)
        return
    said: list[Object] = []
    results: list[ToolResult] = []
    hosted: set[str] = set()
    rounds = 0
    for item in dicts(input):
        role = item.get("role")
        result = as_text(item.get("type")) in _RESULTS and not _run_by_the_server(item, hosted)
        if said and (result or role in ("user", "system", "developer")):
            assistant = _decode_assistant(said, rounds)
            rounds += bool(assistant.calls)
            yield assistant
            said = []
        if results and not result:
            yield ToolMessage(tuple(results))
            results = []
        if result:
            results.append(_decode_result(item, f"call_{rounds - 1}_{len(results)}"))
        elif role in ("system", "developer"):
            yield System(tuple(part for part in parts_of(item.get("content")) if isinstance(part, Text)))
        elif role == "user":
            yield User(parts_of(item.get("content")))
        else:
            said.append(item)
            if item.get("type") == "shell_call" and not call_kind(item):
                hosted.add(as_text(item.get("call_id")))
    if said:
        yield _decode_assistant(said, rounds)
    if results:
        yield ToolMessage(tuple(results))


def _run_by_the_server(item: Object, hosted: set[str]) -> bool:
    if item.get("type") == "tool_search_output":
        return item.get("execution") != "client"
    return as_text(item.get("call_id")) in hosted


def _decode_assistant(said: list[Object], rounds: int) -> Assistant:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for item in said:
        kind = call_kind(item)
        if kind:
            id = as_text(item.get("call_id")) or f"call_{rounds}_{len(calls)}"
            calls.append(_decode_call(item, kind, id, len(calls)))
        elif item.get("role") == "assistant":
            texts.append(text_of(item))
        elif item.get("type") == "reasoning":
            parts = dicts(item.get("summary")) + dicts(item.get("content"))
            reasoning += [as_text(part.get("text")) for part in parts]
    items = [as_input(item) for item in said]
    native = Native(NAME, items, tuple(call.id for call in calls)) if says_more(items) else None
    return Assistant("".join(texts), tuple(calls), "".join(reasoning), native)


def _decode_call(item: Object, kind: str, id: str, index: int) -> ToolCall:
    name = as_text(item.get("name"))
    if kind == "function":
        return call_from_text(id, name, item.get("arguments"), index)
    if kind == "custom":
        return ToolCall(id, name, None, as_text(item.get("input")), index, complete=False, kind=kind)
    arguments = as_dict(payload(item))
    return ToolCall(id, kind, arguments, dump_arguments(arguments) or "", index, kind=kind)


def _decode_result(item: Object, otherwise: str) -> ToolResult:
    id = as_text(item.get("call_id")) or as_text(item.get("id")) or otherwise
    output = item.get("output")
    match item.get("type"):
        case "shell_call_output":
            pieces = dicts(output)
            text = "".join(as_text(piece.get("stdout")) + as_text(piece.get("stderr")) for piece in pieces)
            failed = any(as_dict(piece.get("outcome")).get("exit_code") != 0 for piece in pieces)
            return ToolResult(id, (Text(text),) if text else (), error=failed)
        case "computer_call_output":
            return ToolResult(id, (from_data_url(as_text(as_dict(output).get("image_url"))),))
        case "tool_search_output":
            return ToolResult(id, (Text(dump_arguments(item.get("tools")) or "[]"),))
        case _:
            return ToolResult(id, parts_of(output), error=item.get("status") == "failed")
