"""What the page requests from its server: itself, the list of recordings, the picture of one, a search in their
contents, and a request as code. Pure: a path in, an answer out, so that any server can send it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from unbroken.errors import UserError
from unbroken_viewer.listing import SEARCHED_AT_ONCE, Listing
from unbroken_viewer.page import PAGE_HEADERS, served_page
from unbroken_viewer.picture import picture_json
from unbroken_viewer.request_code import replay_commands, request_code
from unbroken_viewer.searching import search

DATA_HEADERS = {**PAGE_HEADERS, "content-security-policy": "default-src 'none'; frame-ancestors 'none'"}
HTML = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=lambda: DATA_HEADERS)


def answer(listing: Listing, path: str, query: Mapping[str, str], known: str = "") -> Answer:
    """`path` is the part of the URL after that of the page, percent-encoded. `known` is the `If-None-Match` of the
    request: a page that shows a run in progress requests its picture again and again, and gets it only if the recording
    has grown."""
    try:
        match [unquote(part) for part in path.split("/")]:
            case [""]:
                return Answer(200, served_page(), HTML, PAGE_HEADERS)
            case ["runs"]:
                return Answer(200, picture_json(listing.rows(SEARCHED_AT_ONCE)))
            case ["runs", name]:
                version = f'"{listing.version(name)}"'
                if known == version:
                    return Answer(304, b"")
                return Answer(200, picture_json(listing.draw(name)), headers={**DATA_HEADERS, "etag": version})
            case ["runs", name, "requests", number, ("curl" | "python") as language] if _is_number(number):
                return Answer(200, picture_json({"text": request_code(listing.read(name), int(number), language)}))
            case ["runs", name, "requests", number, "replay"] if _is_number(number):
                commands = replay_commands(listing.read(name), int(number), listing.place(name))
                return Answer(200, picture_json({"text": commands}))
            case ["search"]:
                return Answer(200, picture_json(search(listing, query.get("text", ""))))
            case _:
                return refusal(404, "Not Found: there is / for the page, /runs and /search for its data")
    except UserError as error:
        return refusal(404, str(error))


def refusal(status: int, words: str) -> Answer:
    return Answer(status, picture_json({"error": words}))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 6
