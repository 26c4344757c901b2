"""What a user may say to an agent: text, images, several of them; and an image from wherever it is."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from unbroken.errors import UserError
from unbroken.messages import Media, Part, Text, User
from unbroken.validation import checked

Prompt: TypeAlias = str | Part | User | Sequence[str | Part]


SHOWN = ("image/", "audio/", "video/", "application/pdf")
OTHER_TYPE = "give it with mime='image/png'"


@checked
def Image(source: str | Path | bytes, mime: str = "") -> Media:
    """An image for a prompt: a file's path, an http(s) or data URL, or bytes with their `mime` type."""
    if isinstance(source, bytes):
        if not mime:
            raise UserError("Image(bytes) needs its mime type: Image(data, mime='image/png')")
        return Media(mime=mime, data=base64.b64encode(source).decode())
    text = str(source)
    if text.startswith(("http://", "https://", "data:")):
        return Media(mime=mime, url=text)
    path = Path(source)
    if path.is_dir():
        raise UserError(f"Image({text!r}) cannot be read: it is a folder; name a file in it")
    kind = mime or mimetypes.guess_type(path.name)[0]
    if not kind:
        raise UserError(f"Image({text!r}): the type cannot be told from the name; {OTHER_TYPE}")
    if not mime and not kind.startswith(SHOWN):
        raise UserError(f"Image({text!r}): {kind} is nothing to look at; {OTHER_TYPE}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"Image({text!r}) cannot be read: {error.strerror or error}") from error
    return Media(mime=kind, data=base64.b64encode(data).decode(), name=path.name)


def to_user(prompt: Prompt) -> User:
    if isinstance(prompt, User):
        return prompt
    if isinstance(prompt, str) and prompt:
        return User((Text(prompt),))
    parts = list(prompt) if isinstance(prompt, Sequence) and not isinstance(prompt, str) else [prompt]
    for part in parts:
        if not isinstance(part, str | Part):  # pyright: ignore[reportUnnecessaryIsInstance] - it is a caller's value
            kind = type(part).__name__
            raise UserError(f"a prompt is text, images, or a list of them; this one holds a {kind}")
    if not any(part if isinstance(part, str) else True for part in parts):
        raise UserError("the prompt is empty; say what the agent should do")
    return User.of(*parts)
