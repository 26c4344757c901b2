"""openai-chat: Chat Completions, the protocol that most servers imitate and each bends in its own way.

The corner that reads responses, streamed and whole. It reads what it finds and tells it; which call a loose piece
belongs to is not decided here.
"""

from __future__ import annotations

from typing import cast

from unbroken.deltas import Meaning
from unbroken.messages import Json, Usage
from unbroken.wires.jsontext import exact
from unbroken.wires.openai_chat.requests import OPAQUE_TEXTS
from unbroken.wires.values import Object, as_dict, as_int, dicts
from unbroken.wires.wire import Receiver

_MEANINGS: dict[str, Meaning] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",  # Mistral
    "content_filter": "refused",
    "sensitive": "refused",  # Zhipu
}
_FAILURES = {
    "error",  # OpenRouter
    "network_error",  # Zhipu
    "insufficient_system_resource",  # DeepSeek
    "abort",  # vLLM, SGLang
}
"""Reasons that are no end of an answer: the server gave up. An error object beside them says more and comes first."""

_FIRST = (0, None, "0")


class ChatDecoder:
    """Streamed chunks (`delta`) and whole bodies (`message`), told apart by their shape. Only the first choice."""

    def __init__(self, receiver: Receiver) -> None:
        self.recognised = False
        self._to = receiver
        self._piece = receiver.piece
        self._opaque_texts: dict[str, list[str]] = {}
        self._details = _Pieces(("index", "type"), ("text", "summary", "data"))
        self._thinking = _Pieces(("type",), ("thinking",))
        self._call_extras: list[Object | None] = []
        self._streamed = False

    def feed(self, event: Object, data: bytes) -> None:
        choices = event.get("choices")
        if not choices or "error" in event:
            self._error(event)
        if choices:
            self.recognised = True
            for choice in choices:
                if choice.__class__ is dict and choice.get("index") in _FIRST:
                    delta = choice.get("delta")
                    if delta:
                        self._streamed = True
                        calls = delta.get("tool_calls")
                        if len(delta) > 1 or not calls:
                            self._message(delta)
                        if calls:
                            self._calls(calls, event, data)
                    elif "message" in choice and not self._streamed:
                        # Perplexity and MiniMax repeat the whole message at the end of a stream.
                        self._whole(choice, event, data)
                    reason = choice.get("finish_reason")
                    if reason:
                        self._finish(reason, choice)
                    break
        usage = event.get("usage")
        if usage:
            self.recognised = True
            self._to.usage(_usage(usage))

    def _finish(self, reason: Json, choice: Object) -> None:
        if reason in _FAILURES:
            self._to.error(choice.get("error") or {"message": f"the provider gave up: {reason}", "code": reason})
        self._to.finish(str(reason), _MEANINGS.get(reason, "done"))

    def _error(self, event: Object) -> None:
        """An error in any of its usual shapes: OpenAI's, the flat one of vLLM and Mistral, FastAPI's, MiniMax's."""
        error = event.get("error")
        status = as_dict(event.get("base_resp"))
        if status.get("status_code"):
            error = error or {"message": status.get("status_msg"), "code": status["status_code"]}
        if not error and not event.get("choices"):
            flat = event.get("object") == "error" or ("message" in event and ("code" in event or "type" in event))
            error = event if flat else event.get("detail")
        if error:
            self.recognised = True
            self._to.error(error)

    def native(self) -> Json:
        value: Object = {name: "".join(texts) for name, texts in self._opaque_texts.items()}
        details, thinking = self._details.whole(), self._thinking.whole()
        if details:
            value["reasoning_details"] = details
        if thinking:
            value["content"] = [{**part, "thinking": [{"type": "text", "text": part["thinking"]}]} for part in thinking]
        if any(self._call_extras):
            value["tool_calls"] = self._call_extras
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
                name = function.get("name")
                if name:
                    self._keep_extra(call)
                self._piece(call.get("index"), call.get("id"), name, arguments)
            elif call.get("type") == "custom" or "custom" in call:
                custom = as_dict(call.get("custom"))
                self._piece(call.get("index"), call.get("id"), custom.get("name"), custom.get("input"), "custom")

    def _exact_arguments(self, event: Object, data: bytes, position: int, arguments: Json) -> Json:
        again = exact(event, data, arguments)
        if again is event:
            return arguments
        choice = again["choices"][0]
        return (choice.get("delta") or choice["message"])["tool_calls"][position]["function"]["arguments"]

    def _keep_extra(self, call: Object) -> None:
        """Gemini behind its OpenAI face puts the thought signature here, always with a whole call in one piece."""
        extra = call.get("extra_content")
        self._call_extras.append({"extra_content": extra} if extra else None)

    def _message(self, message: Object) -> None:
        """Everything but the calls: text, reasoning under its various names, the old single call."""
        content = message.get("content")
        if content:
            if content.__class__ is str:
                self._to.text(content)
            elif isinstance(content, list):
                self._content_parts(cast("list[Json]", content))
        told = False
        for name in OPAQUE_TEXTS:
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
                    self._details.add(cast("Object", detail))
        refusal = message.get("refusal")
        if refusal and isinstance(refusal, str):
            self._to.text(refusal)
        if message.get("images") or message.get("audio"):
            self._to.other()
        legacy = message.get("function_call")
        if isinstance(legacy, dict):
            legacy = cast("Object", legacy)
            # Snowflake sends an empty one beside the real calls: neither a name nor arguments, so no call.
            if legacy.get("name") or legacy.get("arguments"):
                self._piece(0, None, legacy.get("name"), legacy.get("arguments"))

    def _content_parts(self, parts: list[Json]) -> None:
        for part in parts:
            match part:
                case {"type": "text", "text": str(text)}:
                    self._to.text(text)
                case {"type": "thinking", "thinking": thinking}:  # Mistral
                    text = thinking if isinstance(thinking, str) else "".join(_texts(thinking))
                    self._thinking.add({**part, "thinking": text})
                    self._to.reasoning(text)
                case _:
                    pass


class _Pieces:
    """Objects that come in pieces: those that agree in `place` are one, their `texts` grow, the rest is kept.

    OpenRouter sends `reasoning_details` so, Mistral its thinking. An object without its place stands for itself.
    """

    def __init__(self, place: tuple[str, ...], texts: tuple[str, ...]) -> None:
        self._place = place
        self._texts = texts
        self._known: dict[tuple[Json, ...], tuple[Object, dict[str, list[str]]]] = {}

    def add(self, piece: Object) -> None:
        place = tuple(piece.get(key) for key in self._place)
        if None in place:
            place = (*place, len(self._known))
        fields, grown = self._known.setdefault(place, ({}, {}))
        for key, value in piece.items():
            if key in self._texts and isinstance(value, str):
                grown.setdefault(key, []).append(value)
                fields.setdefault(key, "")
            elif value is not None or key not in fields:
                fields[key] = value

    def whole(self) -> list[Object]:
        return [
            {**fields, **{key: "".join(texts) for key, texts in grown.items()}}
            for fields, grown in self._known.values()
        ]


def _texts(thinking: Json) -> list[str]:
    return [text for part in dicts(thinking) if isinstance(text := part.get("text"), str)]


def _usage(usage: Json) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    raw = cast("Object", usage)
    prompt, completion = as_dict(raw.get("prompt_tokens_details")), as_dict(raw.get("completion_tokens_details"))
    return Usage(
        input_tokens=as_int(raw.get("prompt_tokens")),
        output_tokens=as_int(raw.get("completion_tokens")),
        cached_tokens=as_int(prompt.get("cached_tokens") or raw.get("prompt_cache_hit_tokens")),
        reasoning_tokens=as_int(completion.get("reasoning_tokens")),
        raw=raw,
    )
