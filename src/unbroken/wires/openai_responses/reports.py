"""openai-responses, what a response reports besides words and calls: tokens, what the provider ran itself, errors.

Pure reading of one object each, in every spelling that servers of this wire use.
"""

from __future__ import annotations

from unbroken.messages import Json, ServerCall, Usage
from unbroken.wires.parts import call_from_text
from unbroken.wires.values import Object, as_dict, as_int, as_text


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


def read_server_call(type: str, item: Object) -> ServerCall:
    arguments = next((item[key] for key in ("arguments", "action", "input") if key in item), None)
    if isinstance(arguments, str):
        arguments = call_from_text("", "", arguments, 0).arguments
    return ServerCall(
        type=type,
        id=as_text(item.get("id")) or None,
        name=as_text(item.get("name")) or None,
        arguments=as_dict(arguments) or None,
        status=as_text(item.get("status")) or None,
        item=item,
    )


def read_error(event: Object) -> Json:
    """Of an error event: the object inside, or the event's own fields."""
    fields = {key: event[key] for key in ("code", "message", "param") if key in event}
    return event.get("error") or as_dict(event.get("response")).get("error") or fields or event


def stray_error(event: Object) -> Json:
    """An error that is no event: OpenAI's object, the flat one of vLLM, FastAPI's `detail`."""
    flat = event.get("object") == "error" or ("message" in event and ("code" in event or "type" in event))
    return event.get("error") or (event if flat else event.get("detail"))
