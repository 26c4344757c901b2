"""anthropic-messages, the content of a message in both directions: text, images, documents, cache marks, thinking.

For thinking: a reasoning effort as a token budget and back, and when the API would refuse it. What a client of this
wire asked for exactly travels in `extra`; the effort is for everyone else. Roles, calls and requests are in
`messages_requests`.
"""

from __future__ import annotations

import base64
from dataclasses import replace

from unbroken_wires.errors import CannotEncode
from unbroken_wires.messages import CacheMark, Effort, Json, Media, Native, Part, Request, Text
from unbroken_wires.wires.claude_models import BUDGETS, SINCE_4_6, adaptive_effort, effort_of
from unbroken_wires.wires.content_parts import (
    FOREIGN,
    cache_control,
    cache_mark,
    from_data_url,
    is_foreign,
    own_native,
    says_more,
    text_file,
)
from unbroken_wires.wires.json_access import Object, as_dict, as_int, as_text, dicts
from unbroken_wires.wires.jsontext import dump_arguments

NAME = "anthropic-messages"

_PDF = "application/pdf"
_SOURCE = {"type", "media_type", "data", "url"}


def encode_part(part: Part) -> Object:
    if isinstance(part, Text):
        return mark({"type": "text", "text": part.text}, part.cache)
    if own := as_dict(own_native(part, NAME)):
        return {**own}
    if is_foreign(part):
        return mark({"type": "text", "text": FOREIGN}, part.cache)
    return _encode_media(part)


def _encode_media(media: Media) -> Object:
    mime, data, url = media.mime, media.data, media.url
    if url.startswith("data:"):
        inner = from_data_url(url)
        mime, data, url = inner.mime, inner.data, inner.url
    image = mime.startswith("image/") or (not mime and not url.partition("?")[0].endswith(".pdf"))
    if url:
        source = {"type": "url", "url": url}
    elif image or mime == _PDF:
        source = {"type": "base64", "media_type": mime, "data": data}
    else:
        source = {"type": "text", "media_type": "text/plain", "data": _plain_text(mime, data)}
    block: Object = {"type": "image" if image else "document", "source": source}
    if media.name and not image:
        block["title"] = media.name
    return mark(block, media.cache)


def _plain_text(mime: str, data: str) -> str:
    if not mime.startswith("text/"):
        raise CannotEncode(
            f"sending a file of type {mime} failed: {NAME} carries images, PDF and text; convert it to one"
        )
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError as error:
        raise CannotEncode(f"sending a file of type {mime} failed: its data is not text in base64 ({error})") from None


def mark(block: Object, cache: CacheMark) -> Object:
    if cache:
        block["cache_control"] = cache_control(cache)
    return block


def decode_part(block: Object) -> Part:
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text, cache_mark(block))
        case {"type": "image" | "document", "source": dict()} if (media := _decode_media(block)) is not None:
            return replace(media, native=Native(NAME, block)) if _is_more_than(media, block) else media
        case {"type": "search_result", "content": content} if text := _texts(content):
            name = "\n".join(filter(None, (as_text(block.get("title")), as_text(block.get("source")))))
            return replace(text_file(text, name, Native(NAME, block)), cache=cache_mark(block))
        case {"type": "document", "source": {"type": "content", "content": content}} if text := _texts(content):
            return replace(text_file(text, as_text(block.get("title")), Native(NAME, block)), cache=cache_mark(block))
        case _:
            # What only this wire has: a file by its id, tool_reference, kinds to come.
            return Media(native=Native(NAME, block))


def _texts(content: Json) -> str:
    """The text of blocks that are all text; empty if there are others."""
    blocks = blocks_of(content)
    return "\n".join(as_text(block.get("text")) for block in blocks) if all("text" in block for block in blocks) else ""


def _is_more_than(media: Media, block: Object) -> bool:
    """Does a client's block have anything that the media does not (citations, context)?"""
    try:
        ours = _encode_media(media)
    except CannotEncode:
        return True
    return not block["source"].keys() <= _SOURCE or says_more({**block, "source": None}, ours)


def _decode_media(block: Object) -> Media | None:
    name, cache = as_text(block.get("title")), cache_mark(block)
    match block["source"]:
        case {"type": "base64", "media_type": str(mime), "data": str(data)} if mime and data:
            return Media(mime=mime, data=data, cache=cache, name=name)
        case {"type": "text", "data": str(text)} if text:
            data = base64.b64encode(text.encode("utf-8", "replace")).decode()
            return Media(mime="text/plain", data=data, cache=cache, name=name)
        case {"type": "url", "url": str(url)} if url:
            return Media(mime=_PDF if block["type"] == "document" else "", url=url, cache=cache, name=name)
        case _:
            return None


def decode_texts(content: Json) -> tuple[Text, ...]:
    """System text. A block of another kind becomes its JSON text, so that it is not lost."""
    texts: list[Text] = []
    for block in blocks_of(content):
        part = decode_part(block)
        texts.append(part if isinstance(part, Text) else Text(dump_arguments(block) or "", cache_mark(block)))
    return tuple(texts)


def blocks_of(content: Json) -> list[Object]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return dicts(content)


THINKING = ("thinking", "redacted_thinking")
"""The kinds of blocks that hold it."""

UNSIGNED = "unbroken-not-signed"
"""The signature of thinking that a model of another wire did: clients drop, or retell, what has none."""


def is_signed(block: Object) -> bool:
    """Can this block go back to the provider? Thinking without a signature, or with only ours, cannot."""
    return block.get("type") != "thinking" or block.get("signature") not in (None, "", UNSIGNED)


def is_all_signed(native: Json) -> bool:
    return all(map(is_signed, dicts(native)))


def encode_thinking(body: Object, effort: Effort | None, model: str = "") -> Object:
    """The setting for a body that has its messages and its choice; empty if there is none to send. Models that decide
    themselves how much to think get an effort, others a budget."""
    # Two requests are refused with thinking, and the choice and the history are the harder facts: one that forces a
    # call, and one that continues a turn which began without thinking (or whose thinking another wire cannot give
    # back).
    forced = as_dict(body.get("tool_choice")).get("type") in ("any", "tool")
    if effort not in (None, "none") and forced:
        return {}
    if effort not in (None, "none") and model in SINCE_4_6:
        body["output_config"] = {"effort": adaptive_effort(effort, model)}
        return {"type": "adaptive"}
    if effort not in (None, "none") and _began_without(body["messages"]):
        return {}
    return _spelled(effort)


def _began_without(messages: list[Object]) -> bool:
    """Calls and results in turn are one turn of the assistant: only its first message has to begin with thinking, and
    without interleaved thinking only that one does."""
    first: Object | None = None
    for message in reversed(messages):
        blocks = dicts(message.get("content"))
        if message.get("role") == "assistant":
            first = message
        elif not blocks or any(block.get("type") != "tool_result" for block in blocks):
            break
    if first is None:
        return False
    blocks = dicts(first.get("content"))
    return not blocks or blocks[0].get("type") not in THINKING


def decode_effort(body: Object) -> Effort | None:
    """The nearest effort, for other wires."""
    match body.get("thinking"):
        case {"type": "disabled"}:
            return "none"
        case {"type": "enabled", "budget_tokens": int(budget)}:
            return min(BUDGETS, key=lambda effort: abs(BUDGETS[effort] - budget))
        case {"type": "adaptive"}:
            # The API's own default is high.
            return effort_of(as_dict(body.get("output_config")).get("effort"))
        case _:
            return None


def says_all(effort: Effort | None, body: Object) -> bool:
    """Would the effort be spelled exactly as this body spells its thinking?"""
    spelled = _spelled(effort)
    limit: Json = body.get("max_tokens")
    # With interleaved thinking a budget may exceed the limit, which we would raise.
    return body.get("thinking") == spelled and (limit is None or as_int(limit) > spelled.get("budget_tokens", 0))


def _spelled(effort: Effort | None) -> Object:
    if effort is None:
        return {}
    if effort == "none":
        return {"type": "disabled"}
    return {"type": "enabled", "budget_tokens": BUDGETS.get(effort, BUDGETS["high"])}


# Thinking that is gone


def turn_thinking_off(body: Object, request: Request) -> tuple[Object, str]:
    """Anthropic refuses thinking in a turn that did not begin with thinking, unless the model decides itself how much
    it thinks (adaptive)."""
    if request.reasoning not in (None, "none") and "thinking" not in body and _calls_are_open(body):
        return body, "thinking is off"  # the wire's encoder has done it
    if as_dict(body.get("thinking")).get("type") != "enabled" or not _began_without(dicts(body.get("messages"))):
        return body, ""
    return {name: value for name, value in body.items() if name != "thinking"}, "thinking is off"


def _calls_are_open(body: Object) -> bool:
    messages = dicts(body.get("messages"))
    last = dicts(messages[-1].get("content")) if messages else []
    return any(block.get("type") == "tool_result" for block in last)
