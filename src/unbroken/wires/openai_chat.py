"""openai-chat: Chat Completions, the protocol that most servers imitate and each bends in its own way.

The four corners: `ChatDecoder` and `ChatEncoder` for responses, `encode_request` and `decode_request` for requests.
Reads what it finds and tells it; which call a loose piece belongs to is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from unbroken.deltas import CallReady, Delta, Ended, Meaning, ReasoningDelta, TextDelta, UsageReported
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
    Usage,
    User,
)
from unbroken.wires.ids import CHAT, fit
from unbroken.wires.jsontext import dumps, exact
from unbroken.wires.parts import call_from_text, data_url, from_data_url, outgoing_arguments
from unbroken.wires.wire import Receiver, Wire

Object = dict[str, Any]

_MEANINGS: dict[str, Meaning] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",  # Mistral
    "content_filter": "refused",
    "sensitive": "refused",  # Zhipu
}

# What has to travel back and has no field of ours: DeepSeek and Kimi, OpenRouter, Gemini behind an OpenAI face.
_OPAQUE_TEXTS = ("reasoning_content", "reasoning")


class ChatDecoder:
    """Streamed chunks (`delta`) and whole bodies (`message`), told apart by their shape. Only the first choice."""

    def __init__(self, receiver: Receiver) -> None:
        self.recognised = False
        self._to = receiver
        self._piece = receiver.piece
        self._opaque_texts: dict[str, list[str]] = {}
        self._details: list[Object] = []
        self._detail_by_place: dict[tuple[Json, Json], Object] = {}
        self._content: list[Json] = []
        self._call_extras: dict[int, Object] = {}
        self._calls_seen = 0
        self._legacy = False

    def feed(self, event: Object, data: bytes) -> None:
        choices = event.get("choices")
        if choices:
            self.recognised = True
            for choice in choices:
                if choice.__class__ is dict and not choice.get("index"):
                    delta = choice.get("delta")
                    if delta:
                        calls = delta.get("tool_calls")
                        if calls:
                            self._calls(calls, event, data)
                        if len(delta) > 1 or not calls:
                            self._message(delta)
                    elif "message" in choice:
                        self._whole(choice, event, data)
                    reason = choice.get("finish_reason")
                    if reason:
                        self._to.finish(str(reason), _MEANINGS.get(reason, "done"))
        usage = event.get("usage")
        if usage:
            self.recognised = True
            self._to.usage(_usage(usage))
        if "error" in event and event["error"]:
            self.recognised = True
            self._to.error(event["error"])

    def native(self) -> Json:
        value: Object = {name: "".join(texts) for name, texts in self._opaque_texts.items()}
        if self._details:
            value["reasoning_details"] = self._details
        if self._content:
            value["content"] = self._content
        if self._call_extras:
            value["tool_calls"] = [self._call_extras.get(n) for n in range(self._calls_seen)]
        return value or None

    def _whole(self, choice: Object, event: Object, data: bytes) -> None:
        message = choice["message"]
        if isinstance(message, dict):
            message = cast("Object", message)
            self._message(message)
            calls = message.get("tool_calls")
            if calls:
                self._calls(calls, event, data)
        self._to.ended()

    def _calls(self, calls: Json, event: Object, data: bytes) -> None:
        if calls.__class__ is not list:
            return
        for position, call in enumerate(calls):
            if call.__class__ is not dict:
                continue
            function = call.get("function")
            if function.__class__ is dict:
                arguments = function.get("arguments")
                if arguments.__class__ is dict:
                    arguments = self._exact_arguments(event, data, position, arguments)
                self._piece(call.get("index"), call.get("id"), function.get("name"), arguments)
            elif call.get("type") == "custom" or "custom" in call:
                custom = call.get("custom") or {}
                self._piece(call.get("index"), call.get("id"), custom.get("name"), custom.get("input"), "custom")
            if len(call) > 4 or "extra_content" in call:
                self._keep_call_extras(call)

    def _exact_arguments(self, event: Object, data: bytes, position: int, arguments: Json) -> Json:
        again = exact(event, data, arguments)
        if again is event:
            return arguments
        choice = again["choices"][0]
        return (choice.get("delta") or choice["message"])["tool_calls"][position]["function"]["arguments"]

    def _keep_call_extras(self, call: Object) -> None:
        index = call.get("index")
        place = index if isinstance(index, int) else self._calls_seen
        self._calls_seen = max(self._calls_seen, place + 1)
        if "extra_content" in call:  # Gemini's thought signature behind its OpenAI face
            self._call_extras[place] = {"extra_content": call["extra_content"]}

    def _message(self, message: Object) -> None:
        """Everything but the calls: text, reasoning under its various names, the old single call."""
        content = message.get("content")
        if content:
            if content.__class__ is str:
                self._to.text(content)
            elif isinstance(content, list):
                self._content_parts(cast("list[Json]", content))
        told = False
        for name in _OPAQUE_TEXTS:
            text = message.get(name)
            if text and isinstance(text, str):
                self._opaque_texts.setdefault(name, []).append(text)
                if not told:  # some servers send the same reasoning under both names
                    self._to.reasoning(text)
                    told = True
        details = message.get("reasoning_details")
        if isinstance(details, list):
            for detail in cast("list[Json]", details):
                if isinstance(detail, dict):
                    self._detail(cast("Object", detail))
        refusal = message.get("refusal")
        if refusal and isinstance(refusal, str):
            self._to.text(refusal)
        legacy = message.get("function_call")
        if isinstance(legacy, dict):
            legacy = cast("Object", legacy)
            # Snowflake sends an empty one beside the real calls.
            if legacy.get("name") or (legacy.get("arguments") and self._legacy):
                self._legacy = True
                self._piece(0, None, legacy.get("name"), legacy.get("arguments"))
            elif legacy.get("arguments"):
                self._legacy = True
                self._piece(0, None, None, legacy.get("arguments"))

    def _content_parts(self, parts: list[Json]) -> None:
        for part in parts:
            match part:
                case {"type": "text", "text": str(text)}:
                    self._to.text(text)
                case {"type": "thinking", "thinking": thinking}:  # Mistral
                    self._content.append(part)
                    if isinstance(thinking, str):
                        self._to.reasoning(thinking)
                    elif isinstance(thinking, list):
                        for piece in cast("list[Json]", thinking):
                            if isinstance(piece, dict):
                                self._to.reasoning(str(cast("Object", piece).get("text") or ""))
                case _:
                    pass

    def _detail(self, detail: Object) -> None:
        """OpenRouter: pieces of one reasoning block share index and type; texts grow, the rest is kept."""
        place = (detail.get("index"), detail.get("type"))
        known = self._detail_by_place.get(place)
        if known is None or detail.get("index") is None:
            self._detail_by_place[place] = known = dict(detail)
            self._details.append(known)
            return
        for key, value in detail.items():
            if key in ("text", "summary", "data") and isinstance(value, str) and isinstance(known.get(key), str):
                known[key] += value
            elif value is not None:
                known[key] = value


def _usage(usage: Json) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    raw = cast("Object", usage)
    prompt, completion = _dict(raw.get("prompt_tokens_details")), _dict(raw.get("completion_tokens_details"))
    return Usage(
        input_tokens=_int(raw.get("prompt_tokens")),
        output_tokens=_int(raw.get("completion_tokens")),
        cached_tokens=_int(prompt.get("cached_tokens") or raw.get("prompt_cache_hit_tokens")),
        reasoning_tokens=_int(completion.get("reasoning_tokens")),
        raw=raw,
    )


def _dict(value: Json) -> Object:
    return cast("Object", value) if isinstance(value, dict) else {}


def _int(value: Json) -> int:
    return int(value) if isinstance(value, int | float) else 0


# Requests, outgoing


def encode_request(request: Request) -> Object:
    body: Object = {"model": request.model, "messages": _encode_messages(request.messages)}
    if request.tools:
        body["tools"] = [_encode_tool(tool) for tool in request.tools]
        choice = "none" if request.final else request.choice
        if choice is not None:
            body["tool_choice"] = _encode_choice(choice)
        if request.parallel is not None:
            body["parallel_tool_calls"] = request.parallel
    if request.stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    if request.reasoning is not None:
        body["reasoning_effort"] = request.reasoning
    s = request.sampling
    for key, value in (("max_tokens", s.max_tokens), ("temperature", s.temperature), ("top_p", s.top_p)):
        if value is not None:
            body[key] = value
    if s.stop:
        body["stop"] = list(s.stop)
    if s.seed is not None:
        body["seed"] = s.seed
    return {**body, **request.extra}


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
    calls = [_encode_call(call) for call in message.calls]
    native = message.native
    if native is not None and native.wire == WIRE.name:
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


def _encode_call(call: ToolCall) -> Object:
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
        encoded.append(
            {"role": "tool", "tool_call_id": fit(result.call_id, CHAT), "content": _encode_parts(texts)}
        )
    if images:
        encoded.append({"role": "user", "content": images})
    return encoded


# Requests, incoming


def decode_request(body: Object) -> Request:
    known = {"model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options"}
    known |= {"reasoning_effort", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed"}
    stop = body.get("stop")
    return Request(
        messages=tuple(_decode_messages(body.get("messages") or [])),
        tools=tuple(_decode_tool(tool) for tool in body.get("tools") or [] if tool.get("type") == "function"),
        choice=_decode_choice(body.get("tool_choice")),
        parallel=body.get("parallel_tool_calls"),
        stream=bool(body.get("stream")),
        reasoning=cast("Effort | None", body.get("reasoning_effort")),
        sampling=Sampling(
            max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
            temperature=body.get("temperature"),
            top_p=body.get("top_p"),
            stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
            seed=body.get("seed"),
        ),
        extra={key: value for key, value in body.items() if key not in known},
        model=body.get("model") or "",
    )


def _decode_tool(tool: Object) -> ToolSpec:
    function = _dict(tool.get("function"))
    return ToolSpec(
        name=function.get("name") or "",
        description=function.get("description") or "",
        parameters=function.get("parameters") or {"type": "object", "properties": {}},
        strict=function.get("strict"),
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
            id = message.get("tool_call_id") or f"call_{rounds - 1}_0"
            results.append(ToolResult(id, _decode_parts(message.get("content")), name=message.get("name") or ""))
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
    for part in content or ():
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
    raw_calls: list[Object] = list(message.get("tool_calls") or [])
    if message.get("function_call"):
        raw_calls.append({"id": f"call_{rounds}_0", "function": message["function_call"]})
    for index, call in enumerate(raw_calls):
        id = call.get("id") or f"call_{rounds}_{index}"
        custom = call.get("custom")
        if isinstance(custom, dict) and call.get("type") == "custom":
            custom = cast("Object", custom)
            raw = str(custom.get("input") or "")
            calls.append(ToolCall(id, str(custom.get("name") or ""), None, raw, index, False, "custom"))
        else:
            function = _dict(call.get("function"))
            calls.append(call_from_text(id, function.get("name") or "", function.get("arguments"), index))
        extras.append({"extra_content": call["extra_content"]} if "extra_content" in call else None)
    value: Object = {key: message[key] for key in (*_OPAQUE_TEXTS, "reasoning_details") if message.get(key)}
    content = message.get("content")
    if isinstance(content, list):
        thinking = [part for part in cast("list[Object]", content) if part.get("type") == "thinking"]
        if thinking:
            value["content"] = thinking
    if any(extras):
        value["tool_calls"] = extras
    return Assistant(
        text="".join(part.text for part in _decode_parts(content) if isinstance(part, Text)),
        calls=tuple(calls),
        reasoning=next((message[key] for key in _OPAQUE_TEXTS if isinstance(message.get(key), str)), ""),
        native=Native(WIRE.name, value, tuple(call.id for call in calls)) if value else None,
    )


# Responses, outgoing


class ChatEncoder:
    """A call is written whole, when it is ready: a client never sees half of one."""

    def __init__(self, model: str = "", id: str = "chatcmpl-0", created: int = 0) -> None:
        self._head: Object = {"id": id, "created": created, "model": model}
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[Object] = []
        self._usage: Usage | None = None
        self._finish = ""

    def feed(self, delta: Delta) -> bytes:
        match delta:
            case TextDelta(text):
                self._text.append(text)
                return self._chunk({"content": text})
            case ReasoningDelta(text):
                self._reasoning.append(text)
                return self._chunk({"reasoning_content": text})
            case CallReady(call):
                encoded = _encode_call(call)
                self._calls.append(encoded)
                return self._chunk({"tool_calls": [{"index": len(self._calls) - 1, **encoded}]})
            case UsageReported(usage):
                self._usage = usage
                return b""
            case Ended(verdict):
                self._finish = _finish(verdict.meaning, bool(self._calls))
                last = self._chunk({}, self._finish)
                if self._usage is not None:
                    last += self._event({"choices": [], "usage": _encode_usage(self._usage)})
                return last + b"data: [DONE]\n\n"
            case _:
                return b""

    def body(self) -> bytes:
        message: Object = {"role": "assistant", "content": "".join(self._text) or None}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        body: Object = {**self._head, "object": "chat.completion"}
        body["choices"] = [{"index": 0, "message": message, "finish_reason": self._finish or "stop"}]
        if self._usage is not None:
            body["usage"] = _encode_usage(self._usage)
        return dumps(body)

    def _chunk(self, delta: Object, finish: str | None = None) -> bytes:
        return self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _event(self, event: Object) -> bytes:
        return b"data: " + dumps({**self._head, "object": "chat.completion.chunk", **event}) + b"\n\n"


def _finish(meaning: Meaning, calls: bool) -> str:
    if meaning == "length":
        return "length"
    if meaning == "refused":
        return "content_filter"
    return "tool_calls" if calls else "stop"


def _encode_usage(usage: Usage) -> Object:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


WIRE = Wire("openai-chat", ChatDecoder, ChatEncoder, encode_request, decode_request)
