"""The page: `page.html` as it is served, or as one file that holds what it shows and needs nothing else.

Nothing runs on it that is not in `page.html`: its policy names the one script and the one style by their hashes. What
is shown is data within it, escaped so that no text of a recording can end the element that it stands in.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from unbroken.errors import UserError
from unbroken.viewer.listing import Row, Shelf
from unbroken.viewer.picture import picture_json

_PAGE = Path(__file__).with_name("page.html").read_text("utf-8")
MOST = 48 * 1024 * 1024
"""Bytes of pictures that one file holds: a browser should still open it at once."""


def _hash(tag: str) -> str:
    """Of the one inline element of this kind, as a browser takes it."""
    inner = _PAGE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{b64encode(sha256(inner.encode()).digest()).decode()}'"


_POLICY = (
    f"default-src 'none'; script-src {_hash('script')}; style-src {_hash('style')}; img-src data:; "
    "connect-src {connect}; base-uri 'none'; form-action 'none'"
)
PAGE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": _POLICY.format(connect="'self'") + "; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def served_page() -> bytes:
    """It asks for its data where it came from."""
    return _PAGE.encode()


def whole_page(shelf: Shelf, most: int = MOST) -> tuple[bytes, list[str]]:
    """One file with all that is on the shelf, and what is not in it, in words. Of runs for which there is no room the
    row in the list is there."""
    rows = shelf.rows()
    pictures: list[bytes] = []
    left_out: list[str] = []
    room = most
    for row in rows:
        if row.problem:
            continue
        drawn = _draw(shelf, row)
        if isinstance(drawn, str):
            left_out.append(drawn)
        elif len(drawn) <= room or not pictures:
            room -= len(drawn)
            pictures.append(picture_json(row.name) + b":" + drawn)
        else:
            left_out.append(f"{row.name} is only listed: the file would be too large; name it alone")
    data = b'{"runs":%b,"pictures":{%b}}' % (picture_json(rows), b",".join(pictures))
    policy = _POLICY.format(connect="'none'")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    top, _, rest = _PAGE.partition("<!--policy-->")
    middle, _, bottom = rest.partition("null<!--data-->")
    return b"".join((top.encode(), policy.encode(), middle.encode(), _harmless(data), bottom.encode())), left_out


def _draw(shelf: Shelf, row: Row) -> bytes | str:
    try:
        return picture_json(shelf.draw(row.name))
    except UserError as error:
        return str(error)


def _harmless(data: bytes) -> bytes:
    """JSON within a script element: nothing may stand there that ends it, nor a line end that old scripts took for one.
    All of these stand only within texts."""
    for character, escaped in ((b"<", b"\\u003c"), ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029")):
        data = data.replace(character, escaped)
    return data
