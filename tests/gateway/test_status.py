"""The status page: what it shows, that text of others is never markup, and that it contains no content."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from dataclasses import fields
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser

import pytest

from unbroken.gateway.admin.stats import LONGEST, MOST_CALLS, Recent, RecentRequest
from unbroken.gateway.admin.status_page import (
    GatewayStatus,
    StoreStatus,
    UpstreamStatus,
    status_json,
    status_page,
    view,
)

NOW = 1_800_000_000.0
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def request(**more: object) -> RecentRequest:
    given: dict[str, object] = {"client_wire": "gemini", "alias": "fast", "status": 200, "seconds": 2.31, **more}
    return RecentRequest(NOW - 3, **given)  # pyright: ignore[reportArgumentType] - named by the tests


def status(*recent: RecentRequest, **more: object) -> GatewayStatus:
    given: dict[str, object] = {"store": StoreStatus("sqlite", 1822, 5_300_000), **more}
    upstream = UpstreamStatus("fast", "openai:gpt-5", "openai-responses", True, ("slow",), 1204, 3, "503", NOW - 512)
    return GatewayStatus("0.1.0", NOW, NOW - 3720, (upstream,), recent=recent, **given)  # pyright: ignore[reportArgumentType] - named by the tests


def words(shown: GatewayStatus) -> list[str]:
    """All text of the page, in order."""
    seen = view(shown)
    cells = [fact.value for fact in seen.facts] + [cell for table in seen.tables for row in table.rows for cell in row]
    return [seen.headline, *(text for cell in cells for text in (cell.text, cell.note) if text)]


def test_the_page_shows_the_state_of_the_gateway() -> None:
    said = words(status(in_flight=2, held_turns=1, held_since=NOW - 34))
    for words_said in (
        "version 0.1.0, up 1 h 2 min",
        "1,204",
        "2 in flight",
        "the oldest for 34 s",
        "1,822 entries, 5.1 MB",
        "openai:gpt-5",
        "then slow",
        "one at a time",
        "503",
        "8 min ago",
    ):
        assert words_said in said


def test_the_page_shows_how_a_request_went() -> None:
    row = words(
        status(
            request(
                key="ci",
                upstream_wire="openai-chat",
                streamed=True,
                first_token=0.42,
                calls=("read_file", "search"),
                handed="1/3",
                repairs=("dropped",),
                restarts=("cut",),
                error="broke",
                input_tokens=1820,
                output_tokens=96,
            )
        )
    )
    at = row.index("3 s ago")
    assert row[at:] == [
        "3 s ago",
        "07:59:57 UTC",
        "ci",
        "gemini, streamed",
        "fast",
        "openai-chat",
        "200",
        "2.3 s",
        "first after 420 ms",
        "1,820 in",
        "96 out",
        "read_file, search",
        "1/3 handed out",
        "dropped, retried: cut",
        "broke",
    ]


def test_a_failing_store_and_several_workers_are_shown() -> None:
    said = words(status(store=StoreStatus("redis", problem="no connection"), workers=4))
    assert "no connection" in said
    assert "one of 4 workers" in said[0]


def test_the_page_shows_everything_without_scripts_too() -> None:
    shown = status(request(calls=("search",)), request(status=502, error="it broke"))
    page = status_page(shown)[0].decode()
    main = unescape(re.sub(r"<[^>]+>", "\n", page.partition("<main>")[2].partition("</main>")[0]))
    lines = [line for line in main.split("\n") if line]
    for said in words(shown):
        assert said in lines


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag, *(f"@{name}" for name, _ in attrs)]


def elements(page: bytes) -> list[str]:
    parser = Elements()
    parser.feed(page.decode())
    return parser.found


def test_text_of_others_stays_text() -> None:
    tame = status(request(alias="tame", calls=("tame",), error="tame"))
    wild = status(request(alias=HOSTILE, calls=(HOSTILE,), error=HOSTILE))
    assert elements(status_page(wild)[0]) == elements(status_page(tame)[0])
    data = status_page(wild)[0].decode().partition('id="first">')[2].partition("</script>")[0]
    assert HOSTILE in json.dumps(json.loads(data), ensure_ascii=False).replace('\\"', '"')


def test_half_a_surrogate_pair_breaks_neither_page_nor_data() -> None:
    shown = status(request(alias="half \ud83d"))
    assert b"half" in status_page(shown)[0]
    assert json.loads(status_json(shown))["status"]["recent"][0]["alias"].startswith("half")


def test_the_data_contains_the_numbers_of_the_page() -> None:
    data = json.loads(status_json(status(request(handed="2/3"))))
    assert data["status"]["upstreams"][0]["requests"] == 1204
    assert data["status"]["recent"][0]["handed"] == "2/3"
    assert [table["title"] for table in data["view"]["tables"]] == ["Models", "Recent requests"]


def test_with_keys_the_page_only_asks_for_one() -> None:
    page, _ = status_page(None)
    assert b"Recent requests" not in page
    assert b'type="password"' in page


@pytest.mark.parametrize("tag", ["script", "style"])
def test_only_content_of_the_page_may_run_or_draw(tag: str) -> None:
    page, headers = status_page(status())
    inner = page.partition(f"<{tag}>".encode())[2].partition(f"</{tag}>".encode())[0]
    digest = b64encode(sha256(inner).digest()).decode()
    assert inner
    assert f"{tag}-src 'sha256-{digest}'" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = status_page(status())[0].decode()
    links = re.findall(r"(?:href|src)=\"([^\"]+)\"", page)
    assert all(link.startswith("data:") or link in ("status.json", "metrics", "openapi.json") for link in links)
    assert "@import" not in page
    assert "url(" not in page


def test_the_newest_requests_are_kept() -> None:
    recent = Recent(kept=3)
    for number in range(5):
        recent.add(request(status=200 + number))
    assert [each.status for each in recent.latest()] == [204, 203, 202]


def test_names_chosen_by_others_are_shortened() -> None:
    recent = Recent()
    recent.add(request(alias="a" * 10_000, error="e" * 10_000, calls=("c" * 10_000,) * 100))
    kept = recent.latest()[0]
    assert len(kept.alias) == len(kept.error) == len(kept.calls[0]) == LONGEST
    assert len(kept.calls) == MOST_CALLS


def test_content_is_never_stored() -> None:
    assert {field.name for field in fields(RecentRequest)} == {
        *("at", "client_wire", "alias", "status", "seconds", "key", "upstream_wire", "streamed", "first_token"),
        *("calls", "handed", "repairs", "restarts", "error", "input_tokens", "output_tokens"),
        "recording",
    }
