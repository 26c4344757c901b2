"""The texts of a message that a client writes for the model to read: prompts, system texts, results of tools, and text
files in any of them. `check_input` gets each of them, and may replace it. Pure.

What an assistant wrote is none of them, and neither are the definitions of tools.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from unbroken.messages import Media, Message, Part, System, Text, ToolMessage, User
from unbroken.wires.values import as_dict, as_text

TEXTUAL = re.compile(r"(?i)text/|json|xml|yaml|csv|javascript")
"""Types of files that are text."""


def texts_of(message: Message) -> list[str]:
    """In the order that `with_texts` takes. Of a user's message the first is the prompt."""
    match message:
        case User(parts):
            return _texts(parts)
        case System():
            return [message.text]
        case ToolMessage(results):
            return [text for result in results for text in _texts(result.content)]
        case _:
            return []


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
            content = [_replaced(result.content, texts) for result in results]
            pairs = zip(results, content, strict=True)
            kept = (each if each.content == new else replace(each, content=new, native=None) for each, new in pairs)
            return ToolMessage(tuple(kept))
        case _:
            return message


def _texts(parts: Sequence[Part]) -> list[str]:
    return ["".join([part.text for part in parts if isinstance(part, Text)]), *map(_file_text, _files(parts))]


def _replaced(parts: tuple[Part, ...], texts: Iterator[str | None]) -> tuple[Part, ...]:
    text, found = next(texts), list(parts)
    for at, part in enumerate(found):
        if _is_text_file(part) and (instead := next(texts)) is not None:
            found[at] = Text(instead)
    if text is None:
        return tuple(found)
    unread = [new for old, new in zip(parts, found, strict=True) if not isinstance(old, Text)]
    return Text(text), *unread


def _files(parts: Sequence[Part]) -> list[Media]:
    return cast("list[Media]", [part for part in parts if _is_text_file(part)])


def _is_text_file(part: Part) -> bool:
    return isinstance(part, Media) and bool(part.data) and TEXTUAL.search(part.mime) is not None


def _file_text(file: Media) -> str:
    """With its name and what else the model reads of it."""
    try:
        content = b64decode(file.data, validate=True).decode("utf-8", "replace")
    except ValueError:
        content = file.data
    context = as_text(as_dict(file.native.value).get("context")) if file.native is not None else ""
    return "\n".join(filter(None, (file.name, context, content)))
