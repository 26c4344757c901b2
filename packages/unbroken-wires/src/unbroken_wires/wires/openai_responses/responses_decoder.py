"""openai-responses, reading responses of OpenAI's servers and of those that imitate them.

Each item is reported once, however it arrives: in deltas, complete at its end, or only inside the last event. The
decoder does not decide whether a call is complete, but it decides whose call it is: Perplexity announces a call that it
runs itself as a complete function call and ends it as a different kind of item. So a call that is announced complete is
held until another event mentions it: a delta or its own end (then the client runs it), or an end of another kind.

The functions at the end read usage, server-side calls and errors in every spelling that servers of this wire use.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from unbroken_wires.deltas import Meaning
from unbroken_wires.messages import Json, ServerCall, Usage
from unbroken_wires.wires.json_access import NAMESPACE, Object, as_dict, as_int, as_text, dicts
from unbroken_wires.wires.jsontext import dump_arguments, exact
from unbroken_wires.wires.openai_responses.responses_items import (
    TOOLS,
    as_input,
    beyond_text_and_calls,
    call_kind,
    charged,
    failure_of,
    part_text,
    payload,
    read_server_call,
    run_by_provider,
    searches_web,
    text_of,
)
from unbroken_wires.wires.wire import Receiver

_REASONS: dict[str, Meaning] = {"max_output_tokens": "length", "content_filter": "refused"}
_TERMINAL = ("completed", "incomplete", "failed", "cancelled")
_ENDS = {f"response.{status}": status for status in _TERMINAL} | {"response.done": "completed"}
# Sent by some servers in place of the proper event, by others after it; then nothing is left to report.
_LATE = ("response.done", "response.error")

# A delta of text: the kind of its item, and the field that numbers its part.
_TEXTS = {
    "response.output_text.delta": ("message", "content_index"),
    "response.refusal.delta": ("message", "content_index"),
    "response.reasoning_summary_text.delta": ("reasoning", "summary_index"),
    "response.reasoning_text.delta": ("reasoning", "content_index"),
}
_INPUTS = {
    "response.function_call_arguments.delta": "function_call",
    "response.custom_tool_call_input.delta": "custom_tool_call",
}
# The end of a part: the same, and the field that holds its complete text.
_PARTS = {
    "response.output_text.done": ("message", "content_index", "text"),
    "response.refusal.done": ("message", "content_index", "refusal"),
    "response.content_part.done": ("", "content_index", "part"),
    "response.reasoning_summary_text.done": ("reasoning", "summary_index", "text"),
    "response.reasoning_summary_part.done": ("reasoning", "summary_index", "part"),
    "response.reasoning_text.done": ("reasoning", "content_index", "text"),
}


MARKS = (b'"response.', b'"object":"response"', b'"object": "response"')
"""One of these is near the beginning of every response."""


def recognises(event: Object) -> bool:
    """Is it an event or a body of this wire?"""
    return as_text(event.get("type")).startswith("response.") or event.get("object") == "response"


class _Item:
    """What is known of an output item. `told` are its parts of which something was reported, `said` the text under each
    numbering of parts; `whole` is the text of a call as an event other than its deltas gave it. `held` is a call that
    was announced complete and not confirmed yet, `replaced` the type of the item that ended in its place."""

    __slots__ = (
        "begun",
        "call_id",
        "closed",
        "done",
        "held",
        "item",
        "key",
        "opened",
        "pieces",
        "replaced",
        "said",
        "told",
        "type",
        "whole",
    )

    def __init__(self, key: int, type: str) -> None:
        self.key = key
        self.type = type
        self.item: Object = {}
        self.call_id = ""
        self.pieces: list[str] = []
        self.whole = ""
        self.told: set[tuple[str, Json]] = set()
        self.said: dict[str, list[str]] = {"content_index": [], "summary_index": []}
        self.held = False
        self.opened = False
        self.begun = False
        """The provider has begun to run it."""
        self.closed = False
        self.done = False
        self.replaced = ""


class ResponsesDecoder:
    """Streamed events and bodies. An item is known by its id, else by its `output_index`: GitHub Copilot sends
    another id with every event of one item, others number every item 0."""

    def __init__(self, receiver: Receiver) -> None:
        self.recognised = False
        self._to = receiver
        self._items: list[_Item] = []
        self._by_id: dict[str, _Item] = {}
        self._by_index: dict[int, _Item] = {}
        self._by_call: dict[str, _Item] = {}
        self._cut = False
        self._ended = False
        self._searches = 0
        self._charged = 0
        """Searches of the web, and other calls that the provider charges for."""

    def feed(self, event: Object, data: bytes) -> None:
        type = event.get("type")
        kind = _INPUTS.get(type)  # pyright: ignore[reportArgumentType] - any value, and any value may be asked for
        if kind is not None:
            item = self._by_id.get(event.get("item_id", "")) or self._find(event, kind)
            delta = event.get("delta")
            if delta:
                if delta.__class__ is not str:
                    raise ValueError("a piece of the arguments is not text")
                item.pieces.append(delta)
                if item.opened:
                    self._to.arguments(item.key, delta)
                elif item.held:
                    self._open(item, item.item, "function")
            return
        place = _TEXTS.get(type)  # pyright: ignore[reportArgumentType] - as above
        if place is not None:
            item = self._by_id.get(event.get("item_id", "")) or self._find(event, place[0])
            delta = event.get("delta")
            if delta and delta.__class__ is str:
                numbering = place[1]
                item.told.add((numbering, event.get(numbering) or 0))
                item.said[numbering].append(delta)
                if place[0] == "message":
                    self._to.text(delta)
                else:
                    self._to.reasoning(delta)
            return
        self._event(as_text(type), event, data)

    def native(self) -> Json:
        """The items as they go back, None when text and calls cover it. Also None when an item has no end: half an
        item is nothing that a provider would take back."""
        mine = [item for item in self._items if item.type and (item.done or not item.replaced)]
        items = [as_input(item.item) for item in mine if item.done]
        return items if len(items) == len(mine) and beyond_text_and_calls(items) else None

    def kept(self) -> object:
        return [
            item.item if item.done else (item.item, item.pieces, item.whole, item.said, *item.told)
            for item in self._items
        ]

    def _event(self, type: str, event: Object, data: bytes) -> None:
        if self._ended and (type in _LATE or type in _ENDS):
            return
        if type == "response.output_item.added":
            self._added(_exact(event, data, as_dict(event.get("item")).get("arguments")))
        elif type == "response.output_item.done":
            event = _exact(event, data, event.get("item"))
            item = as_dict(event.get("item"))
            if item:
                self._done(self._match(item, event.get("output_index"), ends=True), item)
        elif type in _PARTS:
            kind, index, field = _PARTS[type]
            if field == "refusal":
                self._to.refused()
            item = self._find(event, kind)
            if (index, event.get(index) or 0) not in item.told:
                item.told.add((index, event.get(index) or 0))
                self._say(item, index, part_text(event.get(field)))
        elif type == "response.function_call_arguments.done":
            self._arguments_done(self._find(event, "function_call"), _arguments_text(event.get("arguments")))
        elif type == "response.custom_tool_call_input.done":
            self._find(event, "custom_tool_call").whole = as_text(event.get("input"))
        elif type in _ENDS:
            event = _exact(event, data, (as_dict(event.get("response")) or event).get("output"))
            self._response(as_dict(event.get("response")) or event, _ENDS[type])  # Perplexity's has no `response`
        elif type in ("error", "response.error"):
            self._to.error(read_error(event))
        elif not type and (event.get("object") == "response" or isinstance(event.get("output"), list)):
            self._response(_exact(event, data, event.get("output")), "")
        elif not type and isinstance(as_dict(event.get("response")).get("output"), list):  # as some proxies wrap it
            event = _exact(event, data, event.get("response"))
            self._response(as_dict(event.get("response")), "")
        elif not type.startswith("response."):
            error = stray_error(event)
            if not error:
                return
            self._to.error(error)
        self.recognised = True

    # Items

    def _find(self, event: Object, type: str) -> _Item:
        """The item that an event about a part of it belongs to. Made if nothing announced it."""
        self.recognised = True
        id, index = event.get("item_id"), event.get("output_index")
        item = self._by_id.get(id) if isinstance(id, str) else None
        if item is not None:
            return item
        if isinstance(index, int):
            item = self._by_index.get(index)
        elif id is None and self._items:
            item = self._items[-1]
        if item is None or item.done or (type and item.type != type):
            item = self._new(type or "message", id, index)
        return item

    def _new(self, type: str, id: Json, index: Json) -> _Item:
        item = _Item(len(self._items), type)
        self._items.append(item)
        if isinstance(id, str) and id:
            self._by_id[id] = item
        if isinstance(index, int):
            self._by_index[index] = item
        return item

    def _match(self, told: Object, index: Json, ends: bool = False) -> _Item:
        """The item of an added or done event."""
        id, type, call_id = told.get("id"), as_text(told.get("type")), as_text(told.get("call_id"))
        item = self._by_id.get(id) if isinstance(id, str) else None
        if item is not None and call_id and item.call_id not in ("", call_id):
            item = None  # one item id for several calls: the call's own id distinguishes them
        if item is None and isinstance(index, int):
            item = self._by_index.get(index)
            if item is not None and (item.done or (call_id and item.call_id not in ("", call_id))):
                item = None
        elif item is None and id is None:
            item = self._by_call.get(call_id)
        if item is None or item.type != type:
            if ends and item is not None and item.type == "function_call" and run_by_provider(told):
                item.replaced = type
            item = self._new(type, id, index)
        if call_id and not item.call_id:
            item.call_id = call_id
            self._by_call.setdefault(call_id, item)
        return item

    def _added(self, event: Object) -> None:
        told = as_dict(event.get("item"))
        if not told:
            return
        item = self._match(told, event.get("output_index"))
        item.item = item.item or told
        item.whole = item.whole or _arguments_text(told.get("arguments"))
        kind = call_kind(told)
        if item.type in TOOLS and not kind:
            self._open_server_call(item, ServerCall(item.type, as_text(told.get("id")) or None, tool=TOOLS[item.type]))
        # Without an id and a name a call cannot be opened for good: then it waits for its end.
        if kind and item.call_id and (told.get("name") or kind not in ("function", "custom")):
            item.held = kind == "function" and bool(item.whole) and not item.opened
            if not item.held:
                self._open(item, told, kind)

    def _open(self, item: _Item, told: Object, kind: str) -> None:
        if not item.opened:
            item.opened = True
            item.held = False
            name = as_text(told.get("name")) if kind in ("function", "custom") else kind
            if namespace := as_text(told.get("namespace")):
                name = f"{namespace}{NAMESPACE}{name}"
            self._to.open(item.key, item.call_id, name, kind)
            for piece in item.pieces:
                self._to.arguments(item.key, piece)

    def _say(self, item: _Item, numbering: str, text: str) -> None:
        item.said[numbering].append(text)
        if item.type == "reasoning":
            self._to.reasoning(text)
        else:
            self._to.text(text)

    def _say_the_rest(self, item: _Item, numbering: str, parts: Json) -> None:
        """What the complete item has beyond what was reported. Where the two contradict, the report counts."""
        texts = map(part_text, cast("list[Json]", parts)) if isinstance(parts, list) else [as_text(parts)]
        said, whole = "".join(item.said[numbering]), "".join(texts)
        if whole.startswith(said):
            self._say(item, numbering, whole[len(said) :])

    def _arguments_done(self, item: _Item, whole: str) -> None:
        """Two witnesses that agree are the end of a call; else the item's own end, which wins, is waited for."""
        if item.held:
            self._open(item, item.item, "function")
        if item.opened and not item.closed and whole and "".join(item.pieces) == whole:
            item.closed = True
            self._to.close(item.key, whole)
        elif whole:
            item.whole = whole
            item.pieces = [whole]

    def _done(self, item: _Item, told: Object) -> None:
        if item.done:
            return
        item.done = True
        item.item = told
        kind = call_kind(told)
        if kind:
            self._call_done(item, told, kind)
        elif item.type in ("message", "reasoning"):
            if any(part.get("type") == "refusal" for part in dicts(told.get("content"))):
                self._to.refused()
            self._say_the_rest(item, "summary_index", told.get("summary"))
            self._say_the_rest(item, "content_index", told.get("content"))
        elif run_by_provider(told):
            call = read_server_call(item.type, told)
            self._open_server_call(item, replace(call, item=None))
            self._to.server_call(call)
            self._searches += searches_web(told)
            self._charged += charged(told)
            if item.begun:
                self._to.server_call_ended(replace(call, item=None), failure_of(told))

    def _open_server_call(self, item: _Item, call: ServerCall) -> None:
        """Only calls: what a search for tools has found, for instance, is an item of its own, and no call."""
        if item.type in TOOLS and not item.begun:
            item.begun = True
            self._to.server_call_opened(call)

    def _call_done(self, item: _Item, told: Object, kind: str) -> None:
        self._open(item, told, kind)
        if item.closed:
            return
        cut = told.get("status") == "incomplete"
        self._cut = self._cut or cut
        if kind == "function":
            whole = told.get("arguments")
        else:
            whole = told.get("input") if kind == "custom" else payload(told)
            if whole is None:  # a built-in call without its action
                whole = "null"
            if cut:  # neither free text nor an object shows whether it is complete
                if isinstance(whole, str) and not item.pieces:
                    self._to.arguments(item.key, whole)
                return
        item.closed = True
        if isinstance(whole, dict):
            self._to.close(item.key, cast("Object", whole))
        else:
            self._to.close(item.key, _arguments_text(whole) or ("" if cut else item.whole))

    # The response

    def _response(self, response: Object, sign: str) -> None:
        """The last event, or a non-streaming body: reports what was not reported before."""
        output = dicts(response.get("output"))
        if not output and sign == "" and as_text(response.get("status")) not in _TERMINAL:
            return  # queued, in progress: nothing to report yet
        if not self._items:
            self._to.reasoning(as_text(response.get("reasoning")))  # mistral.rs puts it beside the items
        self._last_output(output)
        status = as_text(response.get("status"))
        if status not in _TERMINAL:
            status = sign or status
        # The router of sglang forgets calls in its last output too, but then there is only an empty message.
        instead = next((as_text(item["type"]) for item in output if _speaks(item)), "")
        for item in self._items:
            if item.type in ("function_call", "custom_tool_call") and not item.done and not item.closed:
                if item.held:
                    item.replaced = item.replaced or instead
                self._end_unended(item, status == "completed")
            elif not item.done and run_by_provider(item.item):  # announced, and never spoken of again
                self._done(item, item.item)
        usage = response.get("usage")
        if isinstance(usage, dict) and usage:
            counted = read_usage(cast("Object", usage))
            if self._searches or self._charged:
                counted = replace(counted, web_searches=self._searches, server_calls=self._charged)
            self._to.usage(counted)
        if status in _TERMINAL:
            self._ended = True
            self._finish(status, response)
        elif not status and output:
            self._to.ended()

    def _last_output(self, output: list[Object]) -> None:
        """Each item of the last event is one known before (by its id, its call, or its place among those of its type,
        each of them once) or a new one."""
        known: dict[str, list[_Item]] = {}
        for item in self._items:
            known.setdefault(item.type, []).append(item)
        left = set(self._items)
        seen: dict[str, int] = {}
        for told in output:
            id, type, call_id = told.get("id"), as_text(told.get("type")), as_text(told.get("call_id"))
            place = seen[type] = seen.get(type, 0) + 1
            same = known.get(type, [])[place - 1 : place]
            item = self._by_id.get(id) if isinstance(id, str) else None
            if item not in left:
                item = self._by_call.get(call_id)
            if (item not in left or item.type != type) and same and (not call_id or same[0].call_id in ("", call_id)):
                item = same[0]
            if item is None or item not in left or item.type != type:
                item = self._new(type, id, None)
                item.call_id = call_id
            left.discard(item)
            self._done(item, told)
            if told.get("encrypted_content") and not item.item.get("encrypted_content"):
                item.item = told

    def _end_unended(self, item: _Item, well: bool) -> None:
        """A call without an end of its own in a response that has ended, and that the last event does not know."""
        if item.replaced and not item.opened:
            return
        held = item.held
        self._open(item, item.item, "function" if item.type == "function_call" else "custom")
        if item.replaced:
            self._to.withdraw(item.key)
        elif well and item.type == "function_call" and item.whole and "".join(item.pieces) in ("", item.whole):
            if held:  # an event that was damaged meanwhile could not spoil it: only a good end may complete it
                self._to.arguments(item.key, item.whole)
            else:
                self._to.close(item.key, item.whole)
        else:
            return
        item.closed = True

    def _finish(self, status: str, response: Object) -> None:
        meaning: Meaning = "done"
        if status == "completed":
            meaning = "length" if self._cut else "done"
        elif status == "incomplete":
            reason = as_dict(response.get("incomplete_details")).get("reason")
            meaning = _REASONS.get(as_text(reason), "length")  # of whatever reason: it was cut
        else:
            meaning = "refused"
        if status in ("failed", "cancelled"):
            self._to.error(response.get("error") or {"code": status, "message": f"the response was {status}"})
        self._to.finish(status, meaning)
        self._to.ended(last=True)


def _arguments_text(arguments: Json) -> str:
    """Some servers send the object itself; what JSON cannot express (NaN) becomes a text that will be refused."""
    if isinstance(arguments, str) or arguments is None:
        return as_text(arguments)
    return dump_arguments(arguments) or "NaN"


def _speaks(item: Object) -> bool:
    """Does an item of the last output show that the answer went on without the client?"""
    return run_by_provider(item) or (item.get("type") == "message" and bool(text_of(item)))


def _exact(event: Object, data: bytes, value: Json) -> Object:
    again = exact(event, data, value)
    return again if again.__class__ is dict else event  # one of several events in a list has no bytes of its own


def read_usage(raw: Object) -> Usage:
    """OpenAI's names first; sglang keeps those of openai-chat, Perplexity counts its cache with Anthropic's."""
    into = as_dict(raw.get("input_tokens_details")) or as_dict(raw.get("prompt_tokens_details"))
    out = as_dict(raw.get("output_tokens_details")) or as_dict(raw.get("completion_tokens_details"))
    return Usage(
        input_tokens=_count(raw, "input_tokens", "prompt_tokens"),
        output_tokens=_count(raw, "output_tokens", "completion_tokens"),
        cached_tokens=_count({**raw, **into}, "cached_tokens", "cache_read_input_tokens"),
        cache_write_tokens=_count({**raw, **into}, "cache_write_tokens", "cache_creation_input_tokens"),
        reasoning_tokens=_count({**raw, **out}, "reasoning_tokens"),
        raw=raw,
    )


def _count(counts: Object, *names: str) -> int:
    return next((as_int(counts[name]) for name in names if counts.get(name) is not None), 0)


def read_error(event: Object) -> Json:
    """Of an error event: the object inside, or the event's own fields."""
    fields = {key: event[key] for key in ("code", "message", "param") if key in event}
    return event.get("error") or as_dict(event.get("response")).get("error") or fields or event


def stray_error(event: Object) -> Json:
    """An error that is not an event: OpenAI's object, the flat one of vLLM, FastAPI's `detail`."""
    flat = event.get("object") == "error" or ("message" in event and ("code" in event or "type" in event))
    return event.get("error") or (event if flat else event.get("detail"))
