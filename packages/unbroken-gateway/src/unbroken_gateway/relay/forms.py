"""Bodies of `multipart/form-data`, parsed strictly and written again: the provider gets what was checked here, not what
another parser might find in the client's bytes. Pure."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from unbroken.errors import InvalidRequest

MOST_PARTS = 1000

_BOUNDARY = re.compile(r'multipart/form-data\s*;\s*boundary=(?:"([^"\r\n]{1,70})"|([^\s;,"]{1,70}))\s*', re.IGNORECASE)
_DISPOSITION = re.compile(
    r'form-data\s*;\s*name="([^"\\\r\n]{1,200})"'
    r"(?:\s*;\s*(filename=\"[^\"\\\r\n]*\"))?(?:\s*;\s*(filename\*=[A-Za-z0-9'!#$&+.^_`|~%-]+))?\s*",
    re.IGNORECASE,
)
_CONTENT_TYPE = re.compile(r"[\x20-\x7e]{1,200}")


@dataclass(frozen=True, slots=True)
class FormPart:
    name: str
    data: bytes
    file: str = ""
    """The filename parameter as written; empty for a plain field."""
    content_type: str = ""


def read_form(content_type: str, data: bytes) -> tuple[FormPart, ...]:
    """Raises `InvalidRequest` for anything but plain fields and files."""
    found = _BOUNDARY.fullmatch(content_type)
    if found is None:
        raise InvalidRequest("the body's Content-Type has to be `multipart/form-data; boundary=…`")
    mark = b"--" + (found[1] or found[2]).encode("latin-1", "replace")
    pieces = (b"\r\n" + data).split(b"\r\n" + mark)
    if len(pieces) < 2 or pieces[0] or pieces[-1] not in (b"--", b"--\r\n"):
        raise InvalidRequest("the body is not a complete multipart form with the boundary of its Content-Type")
    if len(pieces) - 2 > MOST_PARTS:
        raise InvalidRequest(f"the form has more than {MOST_PARTS} parts")
    return tuple(map(_read_part, pieces[1:-1]))


def _read_part(piece: bytes) -> FormPart:
    head, blank, data = piece.partition(b"\r\n\r\n")
    if not blank or not head.startswith(b"\r\n"):
        raise InvalidRequest("a part of the form has no complete head")
    headers: dict[str, str] = {}
    for line in head[2:].split(b"\r\n"):
        name, colon, value = line.decode("utf-8", "replace").partition(":")
        if not colon or name.lower() in headers:
            raise InvalidRequest("a part of the form has a head that cannot be read")
        headers[name.lower()] = value.strip()
    found = _DISPOSITION.fullmatch(headers.get("content-disposition", ""))
    if found is None or "content-transfer-encoding" in headers:
        raise InvalidRequest('a part of the form is not described as `form-data; name="…"`, with or without a filename')
    content_type = headers.get("content-type", "")
    if content_type and not _CONTENT_TYPE.fullmatch(content_type):
        raise InvalidRequest("a part of the form has a Content-Type that cannot be read")
    return FormPart(found[1], data, "; ".join(filter(None, (found[2], found[3]))), content_type)


def write_form(parts: tuple[FormPart, ...]) -> tuple[str, bytes]:
    """The Content-Type and the body. The boundary is new and random, so no part can contain it."""
    boundary = f"unbroken-{secrets.token_hex(16)}"
    out: list[bytes] = []
    for part in parts:
        file = f"; {part.file}" if part.file else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{part.name}"{file}\r\n'
        if part.content_type:
            head += f"Content-Type: {part.content_type}\r\n"
        out += (head.encode(), b"\r\n", part.data, b"\r\n")
    out.append(f"--{boundary}--\r\n".encode())
    return f"multipart/form-data; boundary={boundary}", b"".join(out)
