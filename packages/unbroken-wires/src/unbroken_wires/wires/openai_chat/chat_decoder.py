"""openai-chat, reading responses, streamed or as one body.

The decoder reports what it finds to a `Receiver`. It does not decide which call a fragment belongs to: `decoding` does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from orjson import JSONDecodeError, dumps, loads

from unbroken_wires.deltas import Meaning
from unbroken_wires.messages import Json, ServerCall, Usage
from unbroken_wires.wires.content_parts import call_from_text
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_text, dicts
from unbroken_wires.wires.jsontext import exact
from unbroken_wires.wires.openai_chat.chat_messages import ID_RULE, OPAQUE_TEXTS
from unbroken_wires.wires.openai_chat.chat_native import ChatNative
from unbroken_wires.wires.wire import Receiver

_MEANINGS: dict[str, Meaning] = {
    "stop": "done",
    "tool_calls": "done",
    "function_call": "done",
    "tool_use": "done",
    "end_turn": "done",
    "stop_sequence": "done",
    "eos": "done",  # Together
    "eos_token": "done",  # TGI
    "complete": "done",  # Cohere
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "token_limit": "length",
    "model_length": "length",  # Mistral
    "model_context_window_exceeded": "length",  # Zhipu, Claude behind an OpenAI face
    "content_filter": "refused",
    "sensitive": "refused",  # Zhipu
    "safety": "refused",
    "prohibited_content": "refused",
    "recitation": "refused",
    "blocklist": "refused",
    "refusal": "refused",
}
_FAILURES = {
    "error",  # OpenRouter
    "network_error",  # Zhipu
    "insufficient_system_resource",  # DeepSeek
    "abort",  # vLLM, SGLang
    "function_call_filter",  # Gemini behind its OpenAI face: it wrote a call that it could not read itself
    "malformed_function_call",
}
"""Finish reasons that mean the server gave up. An error object beside them has more details and comes first."""

_RUN_BY_PROVIDER = {
    "web_search": "web_search",
    "web_browser": "web_search",
    "retrieval": "file_search",
    "code_interpreter": "code_execution",
    "drawing_tool": "image_generation",
}
_SERVER_TYPES = tuple(_RUN_BY_PROVIDER)
"""Types of calls that MiniMax and Zhipu make and answer themselves."""

_REASONING = tuple(dict.fromkeys((*OPAQUE_TEXTS, "reasoning_text")))


_UNSEEN = object()
_NEVER = b"\x00"
"""No event begins so."""
_PATIENCE = 4
"""Events in a row that are not like the one before; OpenAI pads each with another text."""


MARKS = (b"chat.completion", b'"choices"')
"""Either is near the beginning of every response."""


def recognises(event: Object) -> bool:
    """Is it an event or a body of this wire? Its errors are those without a `status`."""
    if "choices" in event or str(event.get("object")).startswith("chat.completion"):
        return True
    error = as_dict(event.get("error"))
    return bool(error) and "status" not in error


class ChatDecoder:
    """Streamed chunks (`delta`) and non-streaming bodies (`message`), by their shape. Only the first choice."""

    def __init__(self, receiver: Receiver) -> None:
        self.recognised = False
        self._to = receiver
        self._piece = receiver.piece
        self._more = receiver.more
        self._native = ChatNative()
        self._choice: Json = _UNSEEN
        self._server_ids: set[str] = set()
        self._streamed = False
        self._called = False
        self._exact_of: Object = {}
        self._exact: Object = {}
        self._before, self._after = _NEVER, b""
        """What stood around the text of the last event, its quotes included."""
        self._text = slice(0)
        """Where the text stands, between them, with its quotes."""
        self._index: int | None = None
        """Of the call that the text belonged to; None if it was the answer's own."""
        self._unlike = 0
        """How many events in a row were of the usual kind, and not like the one before."""

    def again(self, data: bytes) -> bool:
        """Handles an event that differs from the last one only in its text: only the text is parsed, which saves 1.4 to
        1.8 µs of 6 to 7. For any other event it does nothing and returns False."""
        if not (data.startswith(self._before) and data.endswith(self._after)):
            return False
        try:
            text = loads(data[self._text])
        except JSONDecodeError:  # no text, or half a surrogate pair
            return False
        if self._index is not None:
            if not self._more(self._index, text):
                return False
        elif text:
            self._to.text(text)
        else:
            return False
        self._unlike = 0
        return True

    def _remember(self, data: bytes, key: bytes, text: str, index: int | None) -> None:
        """What stands around the text, if the next event may be the same again. Some servers put something new into
        each event: then it is not worth the trouble."""
        self._unlike += 1
        at = data.find(key) + len(key)
        if data[at : at + 1] == b" ":
            at += 1
        try:
            written = dumps(text)
        except TypeError:  # half a surrogate pair
            written = b""
        end = at + len(written)
        if written and at > len(key) + 1 and data[at:end] == written and data.count(key[:-1]) == 1:
            self._before, self._after, self._index = data[: at + 1], data[end - 1 :], index
            self._text = slice(at, end - len(data))
        else:
            self._before = _NEVER

    def feed(self, event: Object, data: bytes) -> None:
        # Fast path for nearly all events of a stream: some text, or more arguments of an open call, and nothing else.
        # It saves 0.7 µs of 7 for each of them (and `again` 1.4 to 1.8 µs). Everything else takes the long way below.
        try:
            (choice,) = event["choices"]
            delta = choice["delta"]
            if len(delta) == 1 and choice.get("index") == self._choice and not choice.get("finish_reason"):
                if "content" in delta:
                    text = delta["content"]
                    if (
                        text.__class__ is str
                        and self._streamed
                        and text
                        and not (event.get("usage") or "error" in event)
                    ):
                        self._to.text(text)
                        if self._unlike < _PATIENCE:
                            self._remember(data, b'"content":', text, None)
                        return
                elif self._called:
                    (call,) = delta["tool_calls"]
                    function = call["function"]
                    text = function["arguments"]
                    if (
                        len(call) == 2
                        and len(function) == 1
                        and text.__class__ is str
                        and not (event.get("usage") or "error" in event)
                        and self._more(call["index"], text)
                    ):
                        if self._unlike < _PATIENCE:
                            self._remember(data, b'"arguments":', text, call["index"])
                        return
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
        choices = event.get("choices")
        if choices is not None:
            self.recognised = True
        if not choices or "error" in event:
            self._without_choices(event)
        if choices:
            if self._choice is _UNSEEN and len(choices) > 1 and any(c.get("index") == 0 for c in dicts(choices)):
                self._choice = 0
            if choices.__class__ is not list or choices[0].__class__ is not dict:
                raise ValueError("the choices are not a list of objects")
            for choice in choices:
                if choice.__class__ is dict and (choice.get("index") == self._choice or self._is_ours(choice)):
                    delta = choice.get("delta")
                    if delta:
                        calls = delta.get("tool_calls")
                        if len(delta) > 1 or not calls:
                            self._message(delta)
                        if calls:
                            self._calls(calls, event, data)
                    elif "message" in choice and not self._streamed:
                        # Perplexity and MiniMax repeat the complete message at the end of a stream.
                        self._whole(choice, event, data)
                    reason = choice.get("finish_reason")
                    if reason:
                        self._finish(reason, choice, event)
                    if len(choices) > 1 and not self._called:
                        self._calls_beside(choices, choice, event, data)
                    break
        usage = event.get("usage")
        if usage:
            self._to.usage(read_usage(usage))

    def _is_ours(self, choice: Object) -> bool:
        """The first choice is the one that comes first: some servers count from 1, some leave the index out."""
        index = choice.get("index")
        if self._choice is _UNSEEN:
            self._choice = index
        return str(index or 0) == str(self._choice or 0)

    def native(self) -> Json:
        return self._native.value()

    def _without_choices(self, event: Object) -> None:
        """An error in any of its usual shapes, or the end of an answer that has nothing in it."""
        error = event.get("error") or as_dict(event.get("x_groq")).get("error")
        status = as_dict(event.get("base_resp"))
        if status.get("status_code"):  # MiniMax
            error = error or {"message": status.get("status_msg"), "code": status["status_code"]}
        if not error and not event.get("choices"):
            error = _flat_error(event)
            if not error and event.get("object") == "chat.completion":
                self.recognised = True
                self._to.ended()
        if error:
            self.recognised = True
            self._to.error(error)

    def _finish(self, reason: Json, choice: Object, event: Object) -> None:
        if reason == "null":  # iFlytek and DashScope send it in every chunk
            return
        key = str(reason).lower().partition(":")[0].strip()
        if key in _FAILURES:
            self._to.error(choice.get("error") or {"message": f"the provider gave up: {reason}", "code": reason})
        usage = choice.get("usage") or as_dict(event.get("x_groq")).get("usage")  # Kimi, Groq
        if usage and not event.get("usage"):
            self._to.usage(read_usage(usage))
        self._to.finish(str(reason), _MEANINGS.get(key, "other"))

    def _whole(self, choice: Object, event: Object, data: bytes) -> None:
        message = as_dict(choice["message"])
        self._message(message, whole=True)
        calls = message.get("tool_calls")
        if calls:
            self._calls(calls, event, data, whole=True)
        self._to.ended()

    def _calls_beside(self, choices: list[Json], first: Object, event: Object, data: bytes) -> None:
        """GitHub Copilot gives Claude's text in one choice and its calls in the next, both without an index."""
        if "index" in first or first.get("finish_reason") != "tool_calls":
            return
        for choice in dicts(choices):
            said = as_dict(choice.get("message") or choice.get("delta"))
            if choice is not first and "index" not in choice and said.get("tool_calls"):
                self._calls(said["tool_calls"], event, data, whole="message" in choice)
                return

    def _calls(self, calls: Json, event: Object, data: bytes, whole: bool = False) -> None:
        if self._called and calls.__class__ is list and len(calls) == 1 and calls[0].__class__ is dict:
            call = calls[0]
            function = call.get("function")
            if function.__class__ is dict and not function.get("name") and "extra_content" not in call:
                text = function.get("arguments")
                if text.__class__ is str:  # nearly all pieces: a few more characters of a call that is under way
                    self._piece(call.get("index"), call.get("id"), None, text)
                    return
        if calls.__class__ is not list:
            calls = [calls]  # iFlytek sends the one call itself
        self._streamed = self._called = True
        named: set[tuple[Json, Json]] = set()
        for position, call in enumerate(calls):
            if call.__class__ is not dict:
                raise ValueError("a call is not an object")
            function = call.get("function")
            index, id, kind = call.get("index"), call.get("id"), "function"
            if id.__class__ is str and len(id) > ID_RULE.longest:  # vLLM: chatcmpl-tool- and 32 more
                self._native.long_ids = True
            if function.__class__ is not dict:
                if call.get("type") in _SERVER_TYPES:
                    self._server_call(call, {"arguments": call.get(call["type"])})
                    continue
                if function:
                    raise ValueError("the function of a call is not an object")
                kind, function = _other_function(call)
            name, arguments = function.get("name"), function.get("arguments")
            if arguments.__class__ is dict:
                arguments = self._exact_arguments(calls, position, event, data)
            if name or "extra_content" in call:
                if call.get("type") in _SERVER_TYPES:
                    self._server_call(call, function)
                    continue
                if not whole:
                    hash(index)  # raises, as it will be looked up
                self._native.add_call(call, name, whole)
                if whole:
                    self._to.entry(id, name, arguments, kind)
                    continue
                if name and len(calls) > 1 and (index, id) in named:
                    self._to.again(index, id, name, arguments, kind)
                    continue
                named.add((index, id))
            elif index is None and len(calls) > 1 and not id:
                self._to.loose(position, arguments)  # Kimi has been seen to continue several calls so
                continue
            self._piece(index, id, name, arguments, kind)

    def _exact_arguments(self, calls: list[Json], position: int, event: Object, data: bytes) -> Object:
        """Arguments that came as an object, with the numbers as they stood in the bytes."""
        arguments = calls[position]["function"]["arguments"]
        if self._exact_of is not event:
            self._exact_of, self._exact = event, exact(event, data, arguments)
        again = self._exact
        if again is event:  # the next call of the same event may hold a rounded number, though this one does not
            again = self._exact = exact(event, data, arguments)
        if again is not event:
            for choice, same in zip(event["choices"], again["choices"], strict=True):
                for field in ("delta", "message"):
                    if as_dict(as_dict(choice).get(field)).get("tool_calls") is calls:
                        return same[field]["tool_calls"][position]["function"]["arguments"]
        return arguments

    def _server_call(self, call: Object, function: Object) -> None:
        id, name = as_text(call.get("id")), as_text(function.get("name"))
        if id in self._server_ids:
            return  # Zhipu repeats the same call with its output
        if id:
            self._server_ids.add(id)
        arguments = call_from_text(id, name, function.get("arguments"), 0).arguments
        type = str(call["type"])
        made = ServerCall(type, id or None, name or None, arguments, tool=_RUN_BY_PROVIDER.get(type, ""))
        # Whatever comes of it is in the same answer, without a mark of its own.
        self._to.server_call_opened(made)
        self._to.server_call(replace(made, item=call))
        self._to.server_call_ended(made)

    def _message(self, message: Object, whole: bool = False) -> None:
        """Everything but the calls: text, reasoning under its various names, the old single call."""
        if message.get("role") == "tool":
            return  # MiniMax shows the result of its own search
        content = message.get("content")
        if content:
            self._streamed = True
            if content.__class__ is str:
                self._to.text(content)
            elif isinstance(content, list):
                self._content_parts(cast("list[Json]", content))
            else:
                raise ValueError("the content is neither text nor a list of parts")
            if len(message) == 1:
                return
        told = self._reasoning(message)
        for detail in dicts(message.get("reasoning_details")):
            self._native.add_detail(detail, whole)
            if not told:
                self._to.reasoning(as_text(detail.get("text")) or as_text(detail.get("summary")))
        self._native.keep(message)
        refusal = message.get("refusal")
        if refusal and isinstance(refusal, str):
            self._to.text(refusal)
            self._to.refused()
        if message.get("images") or message.get("audio"):
            self._to.other()
        legacy = as_dict(message.get("function_call"))
        # Snowflake sends an empty one beside the real calls: neither a name nor arguments, so no call.
        if legacy.get("name") or legacy.get("arguments"):
            self._piece(0, None, legacy.get("name"), legacy.get("arguments"))

    def _reasoning(self, message: Object) -> bool:
        told = False
        for name in _REASONING:
            text = message.get(name)
            if isinstance(text, str):
                # Kept even when empty: DeepSeek and Kimi refuse a history in which the field is missing.
                self._native.texts.setdefault(name, []).append(text)
                self._streamed = self._streamed or bool(text)
                if text and not told:  # some servers send the same reasoning under two names
                    self._to.reasoning(text)
                    told = True
        return told

    def _content_parts(self, parts: list[Json]) -> None:
        for part in parts:
            match part:
                case {"type": "text", "text": str(text)}:
                    self._to.text(text)
                case {"type": "thinking", "thinking": thinking}:  # Mistral
                    text = thinking if isinstance(thinking, str) else "".join(_texts(thinking))
                    self._native.add_thinking({**part, "thinking": text})
                    self._to.reasoning(text)
                case {"type": "reasoning", "summary": summary}:  # Databricks
                    self._to.reasoning("".join(_texts(summary)))
                case _:
                    pass


def _other_function(call: Object) -> tuple[str, Object]:
    """A call without `function`: a custom one, or one whose fields are one level too high."""
    if call.get("type") == "custom" or "custom" in call:
        custom = as_dict(call.get("custom"))
        return "custom", {"name": custom.get("name"), "arguments": custom.get("input")}
    return "function", call


def _flat_error(event: Object) -> Json:
    """The errors of vLLM and Mistral, of FastAPI, Baidu and Cloudflare."""
    if event.get("object") == "error" or event.get("error_msg"):
        return event
    message, code = event.get("message"), event.get("code")
    if isinstance(message, str) and message and code not in (0, "0", 200) and "usage" not in event:
        return event
    return event.get("detail") or event.get("errors")


def _texts(parts: Json) -> list[str]:
    return [text for part in dicts(parts) if isinstance(text := part.get("text"), str)]


def read_usage(usage: Json) -> Usage:
    raw = as_dict(usage)
    prompt, completion = as_dict(raw.get("prompt_tokens_details")), as_dict(raw.get("completion_tokens_details"))
    reading, writing = as_int(raw.get("prompt_tokens")), as_int(raw.get("completion_tokens"))
    thinking = as_int(completion.get("reasoning_tokens"))
    if thinking and reading + writing + thinking == as_int(raw.get("total_tokens")):
        writing += thinking  # xAI counts reasoning beside the completion, all others inside
    cached = prompt.get("cached_tokens") or raw.get("prompt_cache_hit_tokens") or raw.get("cached_tokens")
    searches = as_dict(raw.get("server_tool_use")).get("web_search_requests") or raw.get("num_search_queries")
    return Usage(
        input_tokens=reading,
        output_tokens=writing,
        cached_tokens=as_int(cached),
        cache_write_tokens=as_int(prompt.get("cache_write_tokens")),
        reasoning_tokens=thinking,
        raw=raw,
        web_searches=as_int(searches) if searches else 0,  # OpenRouter, and Perplexity
    )
