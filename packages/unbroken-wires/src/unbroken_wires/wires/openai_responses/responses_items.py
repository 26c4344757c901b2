"""openai-responses, its items and their content parts: which items are calls that a client runs, what may be sent back.

Used for requests and for responses. Nothing here decides whether a call is complete. A part is kept as its client sent
it (`Media.native`) where our fields do not cover it: a file by its id, the `detail` of an image, an unknown kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from unbroken_wires.messages import Json, Media, Native, Part, ServerCall, Text
from unbroken_wires.wires.content_parts import (
    FOREIGN,
    audio_format,
    audio_mime,
    call_from_text,
    data_url,
    file_name,
    foreign_text,
    from_data_url,
    image_detail,
    is_foreign,
    is_passage,
    mime_of,
    own_native,
    says_more,
)
from unbroken_wires.wires.json_access import Object, as_dict, as_text, dicts

NAME = "openai-responses"

# What has to be run stands under its own key in each of the built-in calls that the client runs.
PAYLOADS = {
    "apply_patch_call": "operation",
    "shell_call": "action",
    "local_shell_call": "action",
    "computer_call": "action",
    "tool_search_call": "arguments",
}
# xAI runs these itself and reports them as custom calls.
_XAI_SEARCHES = ("x_user_search", "x_keyword_search", "x_semantic_search", "x_thread_fetch")

_STRIPPED = ("reasoning", "message", "function_call", "custom_tool_call")


def call_kind(item: Object) -> str:
    """The kind of a call that the client has to run; empty for every other item."""
    match item.get("type"):
        case "function_call":
            return "function"
        case "custom_tool_call":
            # xAI runs its own searches so and gives them ids of their own; a client's tool may bear the same name.
            id = as_text(item.get("call_id"))
            own = id.startswith("xs_") or (item.get("name") in _XAI_SEARCHES and not id.startswith("call_"))
            return "" if own else "custom"
        case "tool_search_call":
            return "tool_search_call" if item.get("execution") == "client" else ""
        case "shell_call":
            return "" if as_dict(item.get("environment")).get("type") == "container_reference" else "shell_call"
        case "apply_patch_call" | "local_shell_call" | "computer_call" as kind:
            return kind
        case _:
            return ""


def run_by_provider(item: Object) -> bool:
    """A tool that the provider ran itself, or what came of it: everything that is neither speech nor a client's call.
    By exclusion, because each provider has kinds of its own: `search_results`, `program`, `openrouter:web_search`."""
    type = as_text(item.get("type"))
    speech = type in ("", "message", "reasoning") or type.endswith("compaction")
    return not speech and not call_kind(item)


def payload(item: Object) -> Json:
    """The arguments of a built-in call: an object, where the provider keeps to its own rules."""
    value = item.get(PAYLOADS.get(item["type"], ""))
    if value is None and isinstance(item.get("actions"), list):  # computer_call of later models: several at once
        return {"actions": item["actions"]}
    return value


def as_input(item: Object) -> Object:
    """An output item as the API takes it back: `status` is refused there on some kinds, and null on some fields."""
    if item.get("type", "message") not in _STRIPPED:
        return item
    return {key: value for key, value in item.items() if key != "status" and value is not None}


def beyond_text_and_calls(items: Sequence[Object]) -> bool:
    """Do the items have anything beyond text and calls? Ids of a plain message and of plain calls do not count:
    they only pair items with a reasoning item, and without a stored response the API refuses some of them."""
    calls = messages = 0
    for item in items:
        match item:
            case {"type": "function_call", "arguments": str(), **rest}:
                calls += 1
                plain = not rest.keys() - {"id", "call_id", "name"}
            case {"role": "assistant", "content": content, **rest}:
                messages += 1
                plain = not calls and messages == 1 and not rest.keys() - {"id", "type"} and _plain_content(content)
            case _:
                plain = False
        if not plain:
            return True
    return False


def _plain_content(content: Json) -> bool:
    match content:
        case str():
            return True
        case [{"type": "output_text", "text": str(), **rest}]:
            return not any(rest.values())
        case _:
            return False


def encode_parts(parts: Sequence[Part]) -> Json:
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].text:
        return parts[0].text
    return [encode_part(part) for part in parts]


def encode_part(part: Part) -> Object:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    own = own_native(part, NAME)
    if isinstance(own, dict):
        return cast("Object", own)
    if is_foreign(part):
        return {"type": "input_text", "text": FOREIGN}
    if not part.mime or part.mime.startswith("image/"):
        return {"type": "input_image", "image_url": data_url(part), "detail": image_detail(part) or "auto"}
    if part.url:
        return {"type": "input_file", "file_url": part.url}
    if is_passage(part):
        return {"type": "input_text", "text": foreign_text(part)}
    if part.mime.startswith("audio/"):
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": audio_format(part.mime)}}
    return {"type": "input_file", "filename": file_name(part), "file_data": data_url(part)}


def decode_parts(content: Json) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return tuple(_decode_part(part) for part in dicts(content))


def _decode_part(part: Object) -> Part:
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return Text(text)
        case {"type": "refusal", "refusal": str(text)}:
            return Text(text)
        case _:
            pass
    media = _decode_media(part)
    if media is None:
        return Media(native=Native(NAME, part))
    return replace(media, native=Native(NAME, part)) if says_more(part, encode_part(media)) else media


def _decode_media(part: Object) -> Media | None:
    match part:
        case {"type": "input_file", "file_data": str(data)} if data and not data.startswith("data:"):
            return _named(Media(mime=mime_of(as_text(part.get("filename"))), data=data), part)
        case {"type": "input_image", "image_url": str(url)} if url:
            return from_data_url(url)
        case {"type": "input_file", "file_data": str(url)} if url:
            return _named(from_data_url(url), part)
        case {"type": "input_file", "file_url": str(url)} if url:
            return _named(Media(mime=mime_of(url), url=url), part)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(form)}} if data:
            return Media(mime=audio_mime(form), data=data)
        case _:
            return None


def _named(media: Media, part: Object) -> Media:
    name = as_text(part.get("filename"))
    return media if name == file_name(media) else replace(media, name=name)


def text_of(item: Object) -> str:
    """The text of a message item, refusals included."""
    return "".join(part.text for part in decode_parts(item.get("content")) if isinstance(part, Text))


def part_text(part: Json) -> str:
    """Of a part of content, or of the text itself."""
    fields = as_dict(part)
    return as_text(part) or as_text(fields.get("text")) or as_text(fields.get("refusal"))


TOOLS = {
    "web_search_call": "web_search",
    "file_search_call": "file_search",
    "code_interpreter_call": "code_execution",
    "image_generation_call": "image_generation",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcp",
    "tool_search_call": "tool_search",
}
"""What the tools do that OpenAI runs, by the types of their calls."""


def charged(item: Object) -> bool:
    """Does it cost something of its own, other than a search of the web?"""
    return item.get("type") in ("file_search_call", "code_interpreter_call", "image_generation_call")


def searches_web(item: Object) -> bool:
    """Opening a page that was found, and looking into it, are calls as well, and free."""
    return item.get("type") == "web_search_call" and as_dict(item.get("action")).get("type", "search") == "search"


def failure_of(item: Object) -> str:
    """Why a call of a tool that the provider ran has failed; empty if it has not."""
    error = item.get("error")
    if error:
        return as_text(error) or as_text(as_dict(error).get("message")) or "failed"
    return as_text(item.get("status")) if item.get("status") in ("failed", "incomplete") else ""


def read_server_call(type: str, item: Object) -> ServerCall:
    arguments = next((item[key] for key in ("arguments", "action", "input") if key in item), None)
    if type == "code_interpreter_call":
        arguments = {"code": item.get("code")}
    elif type == "file_search_call":
        arguments = {"queries": item.get("queries")}
    if isinstance(arguments, str):
        arguments = call_from_text("", "", arguments, 0).arguments
    return ServerCall(
        type=type,
        id=as_text(item.get("id")) or None,
        name=as_text(item.get("name")) or None,
        arguments=as_dict(arguments) or None,
        status=as_text(item.get("status")) or None,
        item=item,
        tool=TOOLS.get(type, ""),
    )
