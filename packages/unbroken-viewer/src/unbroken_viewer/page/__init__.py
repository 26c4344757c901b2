"""The page of the viewer: one HTML document with one style and one script, put together from the files beside this one.
It is served as it is, or written as one file that holds what it shows and needs nothing else.

Nothing runs on it that is not in these files: its policy allows only that script and that style, by their hashes. The
data is embedded and escaped, so that no text of a recording can end its element.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from unbroken.errors import UserError
from unbroken_viewer.listing import Listing, Row
from unbroken_viewer.picture import picture_json

_SCRIPTS = (
    "elements",
    "data",
    "list",
    "runs",
    "summary",
    "waterfall",
    "details",
    "messages",
    "events",
    "comparison",
    "page",
)
"""The parts of the script, in their order."""


def _together() -> str:
    folder = Path(__file__).parent
    page = (folder / "page.html").read_text("utf-8")
    script = "\n".join((folder / f"{name}.js").read_text("utf-8") for name in _SCRIPTS)
    return page.replace("/*page.css*/", (folder / "page.css").read_text("utf-8")).replace("/*scripts*/", script)


_PAGE = _together()
MOST = 48 * 1024 * 1024
"""Bytes of pictures that one file holds: a browser should still open it at once."""


PALETTE = _PAGE.partition("<style>\n")[2].partition("\n}\n")[0] + "\n}"
"""The colours of the page, light and dark, as style rules: other pages use the same."""


def inline_hash(page: str, tag: str) -> str:
    """Of the one inline element of this kind in a page, as a browser takes it."""
    inner = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{b64encode(sha256(inner.encode()).digest()).decode()}'"


_POLICY = (
    f"default-src 'none'; script-src {inline_hash(_PAGE, 'script')}; style-src {inline_hash(_PAGE, 'style')}; "
    "img-src data:; "
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
    """The page; it loads its data from the same server."""
    return _PAGE.encode()


def whole_page(shelf: Listing, most: int = MOST) -> tuple[bytes, list[str]]:
    """One file with all recordings, and a list of what was left out. Runs that do not fit are only in the list."""
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


def _draw(shelf: Listing, row: Row) -> bytes | str:
    try:
        return picture_json(shelf.draw(row.name))
    except UserError as error:
        return str(error)


def _harmless(data: bytes) -> bytes:
    """Escapes JSON for a script element: nothing may end the element, nor be a line end for old scripts. All of these
    occur only inside strings."""
    for character, escaped in ((b"<", b"\\u003c"), ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029")):
        data = data.replace(character, escaped)
    return data
