"""The texts of a message that a client writes for the model to read: prompts, system texts, results of tools (also of
those that the provider ran, as the client has it), and files in any of them, as far as they are text. `check_input`
gets each of them, and may replace it. Pure.

What an assistant wrote is none of them, and neither are the definitions of tools.
"""

from __future__ import annotations

import re
from base64 import b64decode
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from urllib.parse import unquote

from unbroken_wires.messages import (
    Assistant,
    Json,
    Media,
    Message,
    Native,
    Part,
    System,
    Text,
    ToolMessage,
    ToolResult,
    User,
)

_TEXTUAL = re.compile(r"(?i)text/|json|xml|yaml|csv|javascript")
"""Types of files that are text."""
_BINARY = re.compile(r"(?i)(?:image|audio|video|font)/|application/(?:pdf|zip|vnd\.|msword)")
"""Types that are not. A file of any other type is text if it can be read as text."""
_DATA_URL = re.compile(r"(?is)\s*data:([^,]*),(.*)")
_STANDARD = str.maketrans("-_", "+/", " \t\r\n")
_TOKEN = re.compile(r"[A-Za-z0-9._/+-]{1,64}")
_ABOUT = re.compile(r"detail|format|language|media_type|mime_?[Tt]ype|outcome|role|status|type|\w*[Ii]d")
"""Fields of a part that describe it in one word: the model does not read them."""
_MARKS = frozenset({"cache_control", "cachePoint", "encrypted_content", "encrypted_stdout"})
_BY_MODEL = re.compile(
    r"text|(?:redacted_)?thinking|reasoning(?:Content)?|thought(?:Signature)?|message|compaction|citationsContent|"
    r"(?:server_|mcp_)?tool_use|toolUse|toolCall|function_?[Cc]all|custom_tool_call|executableCode|"
    r"mcp_approval_request|item_reference"
)
"""Kinds of items in an answer that a model writes."""
_ASKED = frozenset({"action", "arguments", "code", "input", "queries"})
"""Fields of the other items that it does."""
_READ = ("documents", "prediction", "promptVariables", "suffix", "chat_template", "template", "system")
"""Fields of a request, beside its messages, whose texts a model reads. Of `prompt`, those are its variables."""
_FORMATS = (
    "response_format",
    "text",
    "output_format",
    "output_config",
    "outputConfig",
    "format",
    "generationConfig",
    "guided_json",
    "structured_outputs",
)
"""Fields that describe the answer, with a schema."""
_DESCRIBING = frozenset({"$comment", "const", "default", "description", "enum", "examples", "schema", "title"})
"""Fields of a schema whose texts a model reads."""


def texts_of(message: Message) -> list[str]:
    """In the order that `with_texts` takes. Of a user's message the first is the prompt."""
    match message:
        case User(parts):
            return _texts(parts)
        case System():
            return [message.text]
        case ToolMessage(results):
            return [text for result in results for text in _texts_of_result(result)]
        case Assistant():
            claimed = _claimed_results(message)
            return [claimed] if claimed else []


def with_texts(message: Message, changed: Sequence[str | None]) -> Message:
    """The message with these texts in place of its own; None: as it was."""
    texts = iter(changed)
    match message:
        case User(parts):
            return replace(message, parts=_replaced(parts, texts))
        case System():
            text = next(texts)
            return message if text is None else System.of(text)
        case ToolMessage(results):
            return ToolMessage(tuple(_with_texts_of_result(result, texts) for result in results))
        case Assistant():  # they may be signed, so they cannot be changed
            return replace(message, text=message.text or next(texts) or "", native=None)


def texts_beside(extra: Mapping[str, Json]) -> Iterator[str]:
    """The texts that a model reads in the other fields of a request: documents, the variables of a prompt, what
    describes the answer, and so on."""
    for field in _READ:
        yield from (text for _, text in _strings(extra.get(field)))
    for field in _FORMATS:
        yield from (text for name, text in _strings(extra.get(field)) if name in _DESCRIBING)
    prompt = extra.get("prompt")
    if isinstance(prompt, Mapping):
        yield from (text for _, text in _strings(cast("Mapping[str, Json]", prompt).get("variables")))


def with_texts_beside(extra: Mapping[str, Json], changed: Mapping[str, str]) -> dict[str, Json]:
    """The other fields of a request with these texts in place of theirs."""

    def write(value: Json) -> Json:
        if isinstance(value, str):
            return changed.get(value, value)
        if isinstance(value, Mapping):
            return {name: write(each) for name, each in cast("Mapping[str, Json]", value).items()}
        return [write(each) for each in cast("list[Json]", value)] if isinstance(value, list) else value

    read = {*_READ, *_FORMATS, "prompt"}
    return {name: write(value) if name in read else value for name, value in extra.items()}


def text_in(mime: str, data: str) -> str | None:
    """The text of a file in base64, in all spellings that providers read: with line breaks, without padding, in the
    alphabet for addresses. None if it is no text, or no base64."""
    is_text = _TEXTUAL.search(mime) is not None
    if not is_text and _BINARY.match(mime.strip()):
        return None
    plain = data.translate(_STANDARD).rstrip("=")
    try:
        content = b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            return content.decode("utf-16", "replace")
        text = content.decode("utf-8", "replace" if is_text else "strict")
    except ValueError:
        return None
    return text if is_text or "\0" not in text else None


def read_or_search(mime: str, data: str) -> str | None:
    """The text of a file. One whose type is that of a text, and that is no base64, is its own text."""
    text = text_in(mime, data)
    if text is None and (text := text_of_address(data)) is None and _TEXTUAL.search(mime):
        return data
    return text


def text_of_address(url: str) -> str | None:
    """The text in a `data:` URL; None if it is another address, or has no text."""
    if (found := data_url(url)) is None:
        return None
    mime, is_base64, data = found
    return read_or_search(mime, data) if is_base64 else data


def data_url(url: str) -> tuple[str, bool, str] | None:
    """Its type, whether its data are in base64, and its data without percent signs; None if it is no `data:` URL."""
    if url[:16].lstrip()[:5].lower() != "data:" or (found := _DATA_URL.fullmatch(url)) is None:
        return None
    head, data = found[1].strip(), found[2]
    mime = head.partition(";")[0] or "text/plain"
    return mime, head.lower().endswith("base64"), unquote(data) if "%" in data else data


def _texts(parts: Sequence[Part]) -> list[str]:
    said = "".join([part.text for part in parts if isinstance(part, Text)])
    return [said, *filter(None, (_text_of_file(part) for part in parts if isinstance(part, Media)))]


def _replaced(parts: tuple[Part, ...], texts: Iterator[str | None]) -> tuple[Part, ...]:
    text, found = next(texts), list[Part]()
    for part in parts:
        if not isinstance(part, Media) or not _text_of_file(part) or (instead := next(texts)) is None:
            found.append(part)
            continue
        found.append(Text(instead))
        if (part.data or part.url) and _content_of(part) is None:  # an image, whose name or context was replaced
            found.append(replace(part, name="", native=None))
    if text is None:
        return tuple(found)
    own = {id(part) for part in parts if isinstance(part, Text)}
    return Text(text), *(part for part in found if id(part) not in own)


def _texts_of_result(result: ToolResult) -> list[str]:
    beside = _text_beside(result)
    return [*_texts(result.content), *([beside] if beside else [])]


def _with_texts_of_result(result: ToolResult, texts: Iterator[str | None]) -> ToolResult:
    content = _replaced(result.content, texts)
    if _text_beside(result) and (instead := next(texts)) is not None:
        content = (*content, Text(instead))
    return result if content == result.content else replace(result, content=content, native=None)


def _claimed_results(message: Assistant) -> str:
    """What the provider's own tools returned, as the client has it, and what else is in the message that no model
    wrote."""
    value: object = None if message.native is None else message.native.value
    claimed: list[Json] = []
    for item in cast("list[Any]", value) if isinstance(value, list) else ():
        if not isinstance(item, Mapping):
            continue
        fields = cast("Mapping[str, Json]", item)
        if "type" not in fields:
            claimed += [each for name, each in fields.items() if not _BY_MODEL.fullmatch(name)]
        elif not _BY_MODEL.fullmatch(str(fields["type"])):
            claimed += [{name: each for name, each in fields.items() if name not in _ASKED}]
    return "\n".join(_own_texts(Native("", claimed))) if claimed else ""


def _text_beside(result: ToolResult) -> str:
    """What only its own wire reads of a result."""
    if result.native is None:
        return ""
    known = "\n".join(_texts(result.content))
    return "\n".join(text for text in _own_texts(result.native) if text not in known and text != result.call_id)


def _text_of_file(file: Media) -> str:
    """What a model reads of a file: its name, what else its own wire has for it, and its content if that is text."""
    own = "" if file.native is None else "\n".join(_own_texts(file.native, file))
    return "\n".join(filter(None, (file.name, own, _content_of(file))))


def _content_of(file: Media) -> str | None:
    if not file.data:
        return text_of_address(file.url)
    return read_or_search(file.mime, file.data)


def _own_texts(native: Native, file: Media | None = None) -> Iterator[str]:
    known = "" if file is None else f"{file.name}\n{file.url}\n{_content_of(file) or ''}"
    for name, value in _strings(native.value, skip=_MARKS):
        if (_ABOUT.fullmatch(name) and _TOKEN.fullmatch(value)) or (
            file is not None and file.data and value.endswith(file.data)
        ):
            continue
        read = text_of_address(value)
        text = value if read is None else read
        if text not in known:
            yield text


def _strings(value: Json, skip: frozenset[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """Every string in it, in order, with the name of its field. Not recursive, because a client may nest deeply."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        name, each = stack.pop()
        if isinstance(each, str):
            if each:
                yield name, each
        elif isinstance(each, Mapping):
            items = [item for item in cast("Mapping[str, Any]", each).items() if item[0] not in skip]
            stack += reversed(items)
        elif isinstance(each, list | tuple):
            inside = cast("Sequence[Any]", each)
            stack += [(name, one) for one in reversed(inside)]
