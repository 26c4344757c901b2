"""openai-chat: the two corners of requests. `encode_request` writes ours as the API wants it, `decode_request` reads a
client's; the corners of responses are in `decoder` and `encoder`.

What this wire cannot carry: cache marks, the error flag of a result (its text says it), images inside a result (they
follow in a user message), reasoning of another wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast, get_args

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
from unbroken.wires.ids import CHAT, fit
from unbroken.wires.parts import call_from_text, data_url, from_data_url, outgoing_arguments, own_extra, with_extra
from unbroken.wires.values import Object, as_dict, as_flag, as_list, as_number, as_text, dicts

NAME = "openai-chat"
OPAQUE_TEXTS = ("reasoning_content", "reasoning")
"""What has to travel back and has no field of ours: DeepSeek and Kimi, OpenRouter."""


def encode_request(request: Request) -> Object:
    body: Object = {"model": request.model, "messages": _encode_messages(request.messages)}
    if request.tools:
        body["tools"] = [_encode_tool(tool) for tool in request.tools]
        if request.choice is not None:
            body["tool_choice"] = _encode_choice(request.choice)
        if request.parallel is not None:
            body["parallel_tool_calls"] = request.parallel
    if request.stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    if request.reasoning is not None:
        body["reasoning_effort"] = request.reasoning
    s = request.sampling
    extra = own_extra(request, NAME)
    if s.max_tokens is not None and "max_completion_tokens" not in extra:
        body["max_tokens"] = s.max_tokens
    for key, value in (("temperature", s.temperature), ("top_p", s.top_p)):
        if value is not None:
            body[key] = value
    if s.stop:
        body["stop"] = list(s.stop)
    if s.seed is not None:
        body["seed"] = s.seed
    body = with_extra(body, extra)
    if request.final and body.get("tools"):
        body["tool_choice"] = "none"
    return body


def _encode_tool(tool: ToolSpec) -> Object:
    function: Object = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _encode_choice(choice: Choice) -> Json:
    if isinstance(choice, OneTool):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def _encode_messages(messages: Iterable[Message]) -> list[Object]:
    encoded: list[Object] = []
    for message in messages:
        match message:
            case System():
                encoded.append({"role": "system", "content": _encode_parts(message.parts)})
            case User():
                encoded.append({"role": "user", "content": _encode_parts(message.parts)})
            case Assistant():
                encoded.append(_encode_assistant(message))
            case ToolMessage():
                encoded.extend(_encode_results(message))
    return encoded


def _encode_parts(parts: Iterable[Part]) -> Json:
    parts = tuple(parts)
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].text:
        return parts[0].text
    return [_encode_part(part) for part in parts]


def _encode_part(part: Part) -> Object:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if part.data and part.mime.startswith("audio/"):
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.mime.removeprefix("audio/")}}
    if part.data and not part.mime.startswith("image/"):
        return {"type": "file", "file": {"file_data": data_url(part)}}
    return {"type": "image_url", "image_url": {"url": data_url(part)}}


def _encode_assistant(message: Assistant) -> Object:
    encoded: Object = {"role": "assistant", "content": message.text or ("" if not message.calls else None)}
    calls = [encode_call(call) for call in message.calls]
    native = message.native
    if native is not None and native.wire == NAME:
        value = dict(cast("Object", native.value))
        extras = cast("list[Object | None]", value.pop("tool_calls", []))
        by_id = {id: extra for id, extra in zip(native.ids, extras, strict=False) if extra}
        for call, ours in zip(calls, message.calls, strict=True):
            call.update(by_id.get(ours.id, {}))
        thinking = value.pop("content", None)
        if thinking:
            encoded["content"] = [*thinking, {"type": "text", "text": message.text}] if message.text else thinking
        encoded.update(value)
    if calls:
        encoded["tool_calls"] = calls
    return encoded


def encode_call(call: ToolCall) -> Object:
    if call.kind == "custom":
        return {"id": fit(call.id, CHAT), "type": "custom", "custom": {"name": call.name, "input": call.raw}}
    function = {"name": call.name, "arguments": outgoing_arguments(call)}
    return {"id": fit(call.id, CHAT), "type": "function", "function": function}


def _encode_results(message: ToolMessage) -> list[Object]:
    """One message a result. This wire has no images in results: they follow in a user message, named by their call."""
    encoded: list[Object] = []
    images: list[Object] = []
    for result in message.results:
        texts = tuple(part for part in result.content if isinstance(part, Text))
        media = [part for part in result.content if isinstance(part, Media)]
        if media:
            label = f"[{len(media)} image(s) of this result follow in the next user message]"
            texts = (*texts, Text(label))
            images.append({"type": "text", "text": f"Images of the result of {fit(result.call_id, CHAT)}:"})
            images.extend(_encode_part(part) for part in media)
        content = _encode_parts(texts) or ("Error" if result.error else "")  # only the text can say it here
        encoded.append({"role": "tool", "tool_call_id": fit(result.call_id, CHAT), "content": content})
    if images:
        encoded.append({"role": "user", "content": images})
    return encoded


_SAMPLING = frozenset({"max_tokens", "temperature", "top_p", "stop", "seed"})
_TOOLS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
_KNOWN = _SAMPLING | _TOOLS | {"model", "messages", "stream", "stream_options", "reasoning_effort"}


def decode_request(body: Object) -> Request:
    """What has no field of ours (tools that are not functions, a choice of several, `max_completion_tokens`) stays in
    `extra`, so that nothing is lost between two ends of this wire."""
    extra = {key: value for key, value in body.items() if key not in _KNOWN}
    tools = dicts(body.get("tools"))
    functions = [tool for tool in tools if tool.get("type") == "function"]
    if len(functions) < len(tools):
        extra["tools"] = [tool for tool in tools if tool.get("type") != "function"]
    choice, effort = _decode_choice(body.get("tool_choice")), body.get("reasoning_effort")
    if choice is None and body.get("tool_choice") is not None:
        extra["tool_choice"] = body["tool_choice"]
    if effort is not None and effort not in get_args(Effort):
        extra["reasoning_effort"], effort = effort, None
    stop = body.get("stop")
    return Request(
        messages=tuple(_decode_messages(dicts(body.get("messages")))),
        tools=tuple(_decode_tool(tool) for tool in functions),
        choice=choice,
        parallel=as_flag(body.get("parallel_tool_calls")),
        stream=bool(body.get("stream")),
        reasoning=effort,
        sampling=Sampling(
            max_tokens=as_number(body.get("max_completion_tokens") or body.get("max_tokens")),
            temperature=as_number(body.get("temperature")),
            top_p=as_number(body.get("top_p")),
            stop=(stop,) if isinstance(stop, str) else tuple(as_text(item) for item in as_list(stop)),
            seed=as_number(body.get("seed")),
        ),
        extra=extra,
        wire=NAME,
        model=as_text(body.get("model")),
    )


def _decode_tool(tool: Object) -> ToolSpec:
    function = as_dict(tool.get("function"))
    return ToolSpec(
        name=as_text(function.get("name")),
        description=as_text(function.get("description")),
        parameters=as_dict(function.get("parameters")) or {"type": "object", "properties": {}},
        strict=as_flag(function.get("strict")),
    )


def _decode_choice(choice: Json) -> Choice | None:
    match choice:
        case "auto" | "none" | "required":
            return choice
        case {"function": {"name": str(name)}}:
            return OneTool(name)
        case _:
            return None


def _decode_messages(messages: list[Object]) -> Iterable[Message]:
    results: list[ToolResult] = []
    rounds = 0
    for message in messages:
        role = message.get("role")
        if role in ("tool", "function"):
            id = as_text(message.get("tool_call_id")) or f"call_{rounds - 1}_0"
            results.append(ToolResult(id, _decode_parts(message.get("content")), name=as_text(message.get("name"))))
            continue
        if results:
            yield ToolMessage(tuple(results))
            results.clear()
        if role in ("system", "developer"):
            yield System(tuple(part for part in _decode_parts(message.get("content")) if isinstance(part, Text)))
        elif role == "assistant":
            assistant = _decode_assistant(message, rounds)
            rounds += bool(assistant.calls)
            yield assistant
        else:
            yield User(_decode_parts(message.get("content")))
    if results:
        yield ToolMessage(tuple(results))


def _decode_parts(content: Json) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    parts: list[Part] = []
    for part in as_list(content):
        match part:
            case {"type": "text" | "input_text" | "refusal", **rest}:
                parts.append(Text(str(rest.get("text") or rest.get("refusal") or "")))
            case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "image_url", "image_url": str(url)}:
                parts.append(from_data_url(url))
            case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(format)}}:
                parts.append(Media(mime=f"audio/{format}", data=data))
            case {"type": "file", "file": {"file_data": str(url)}}:
                parts.append(from_data_url(url))
            case _:
                pass
    return tuple(parts)


def _decode_assistant(message: Object, rounds: int) -> Assistant:
    calls: list[ToolCall] = []
    extras: list[Object | None] = []
    raw_calls = dicts(message.get("tool_calls"))
    if as_dict(message.get("function_call")):
        raw_calls.append({"id": f"call_{rounds}_0", "function": message["function_call"]})
    for index, call in enumerate(raw_calls):
        id = as_text(call.get("id")) or f"call_{rounds}_{index}"
        custom = call.get("custom")
        if isinstance(custom, dict) and call.get("type") == "custom":
            custom = cast("Object", custom)
            raw = str(custom.get("input") or "")
            calls.append(ToolCall(id, str(custom.get("name") or ""), None, raw, index, False, "custom"))
        else:
            function = as_dict(call.get("function"))
            calls.append(call_from_text(id, as_text(function.get("name")), function.get("arguments"), index))
        extras.append({"extra_content": call["extra_content"]} if "extra_content" in call else None)
    value: Object = {key: message[key] for key in (*OPAQUE_TEXTS, "reasoning_details") if message.get(key)}
    content = message.get("content")
    if isinstance(content, list):
        thinking = [part for part in dicts(cast("Json", content)) if part.get("type") == "thinking"]
        if thinking:
            value["content"] = thinking
    if any(extras):
        value["tool_calls"] = extras
    return Assistant(
        text="".join(part.text for part in _decode_parts(content) if isinstance(part, Text)),
        calls=tuple(calls),
        reasoning=next((message[key] for key in OPAQUE_TEXTS if isinstance(message.get(key), str)), ""),
        native=Native(NAME, value, tuple(call.id for call in calls)) if value else None,
    )
