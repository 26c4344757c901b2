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

from unbroken_gateway.admin.stats import (
    LONGEST,
    MOST_CALLS,
    Counts,
    DeploymentStatus,
    Recent,
    RecentRequest,
    Stats,
    UpstreamStatus,
)
from unbroken_gateway.admin.status_page import GatewayStatus, StoreStatus, status_json, status_page, view
from unbroken_gateway.http.client_names import client_name
from unbroken_gateway.turns.pending import HeldTurn

NOW = 1_800_000_000.0
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def request(**more: object) -> RecentRequest:
    given: dict[str, object] = {"client_wire": "gemini", "alias": "fast", "status": 200, "seconds": 2.31, **more}
    return RecentRequest(NOW - 3, **given)  # pyright: ignore[reportArgumentType] - named by the tests


def status(*recent: RecentRequest, **more: object) -> GatewayStatus:
    given: dict[str, object] = {"store": StoreStatus("sqlite", 1822, 5_300_000), "counts": Counts(1204), **more}
    upstream = UpstreamStatus("fast", "openai:gpt-5", "openai-responses", True, ("slow",), 1204, 3, "503", NOW - 512)
    return GatewayStatus("0.1.0", NOW, NOW - 3720, (upstream,), recent=recent, **given)  # pyright: ignore[reportArgumentType] - named by the tests


def words(shown: GatewayStatus) -> list[str]:
    """All text of the page, in order."""
    seen = view(shown)
    cells = [fact.value for fact in seen.facts] + [cell for table in seen.tables for row in table.rows for cell in row]
    return [seen.headline, *(text for cell in cells for text in (cell.text, cell.note) if text)]


def test_the_page_shows_the_state_of_the_gateway() -> None:
    held = HeldTurn("ab12cd34", "fast", 2, NOW - 34, "ci", "Codex 0.50.0", NOW + 90, "search", ("read", "read"))
    said = words(status(in_flight=2, held=(held,), counts=Counts(1198, 5, 1)))
    for words_said in (
        "version 0.1.0, up 1 h 2 min",
        "1,204",
        "2 in flight",
        "the oldest for 34 s",
        "1,198",
        "5 refused, 1 failed",
        "34 s",
        "ab12cd34",
        "Codex 0.50.0",
        "2 calls wait",
        "read × 2",
        "search",
        "for another 1 min 30 s",
        "1,822 entries, 5.1 MB",
        "openai:gpt-5",
        "falls back to slow",
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
                calls=("read_file", "search", "read_file"),
                handed="1/3",
                repairs=("dropped",),
                restarts=("cut",),
                error="broke",
                input_tokens=1820,
                output_tokens=96,
                id="82facee73dad7759",
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
        "82facee73dad7759",
        "2.3 s",
        "first after 420 ms",
        "1,820 in",
        "96 out",
        "read_file × 2, search",
        "call 1 of 3",
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
    tame, wild = (
        status(
            request(alias=given, calls=(given,), error=given, client=given, recording=given),
            held=(HeldTurn("ab12cd34", given, 1, NOW, given, given, NOW, given, (given,)),),
        )
        for given in ("tame", HOSTILE)
    )
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
    assert all(link.startswith("data:") or link in ("./", "status.json", "metrics", "openapi.json") for link in links)
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
        "at",
        "client_wire",
        "alias",
        "status",
        "seconds",
        "key",
        "upstream_wire",
        "streamed",
        "first_token",
        "calls",
        "handed",
        "repairs",
        "restarts",
        "guardrails",
        "error",
        "input_tokens",
        "output_tokens",
        "upstream",
        "recording",
        "client",
        "cost",
        "is_estimated",
        "id",
    }


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"user-agent": "claude-cli/2.1.4 (external, cli)", "x-app": "cli"}, "Claude Code 2.1.4"),
        ({"user-agent": "codex_cli_rs/0.50.0 (Linux 6.1; x86_64) xterm"}, "Codex 0.50.0"),
        ({"user-agent": "codex_exec/0.50.0"}, "Codex 0.50.0"),
        ({"user-agent": "", "originator": "codex_vscode"}, "Codex"),
        ({"user-agent": "GeminiCLI/v0.9.0/gemini-3-pro (linux; x64)"}, "Gemini CLI 0.9.0"),
        ({"user-agent": "opencode/1.2.3 ai-sdk/openai/2.0"}, "opencode 1.2.3"),
        ({"user-agent": "OpenAI/Python 2.1.0"}, "openai (Python) 2.1.0"),
        ({"user-agent": "AsyncOpenAI/Python 2.1.0"}, "openai (Python) 2.1.0"),
        ({"user-agent": "Anthropic/JS 0.70.0"}, "anthropic (JavaScript) 0.70.0"),
        ({"user-agent": "google-genai-sdk/1.50.0 gl-python/3.12"}, "google-genai 1.50.0"),
        ({"user-agent": "ai/5.0.1 ai-sdk/openai-compatible/1.0.2 runtime/node.js/v22"}, "AI SDK 1.0.2"),
        ({"user-agent": "OpenAI/JS 5.1.0", "x-title": "My editor"}, "My editor"),
        ({"user-agent": "curl/8.5.0"}, "curl 8.5.0"),
        ({"user-agent": "Mozilla/5.0 (X11) Chrome/140"}, "a browser"),
        ({"user-agent": "someprogram/3 (a comment)"}, "someprogram/3"),
        ({"user-agent": "bad\x1b[2J\u202ename\u2066"}, "bad?[2J?name?"),
        ({"user-agent": "x" * 10_000}, "x" * 59 + "…"),
        ({}, ""),
    ],
)
def test_a_client_is_named_by_its_headers(headers: dict[str, str], name: str) -> None:
    assert client_name(headers) == name


def test_the_page_shows_who_asked_and_links_its_recording() -> None:
    shown = status(request(client="Claude Code 2.1.4", key="ci", recording="a b/<c>.jsonl"))
    row = words(shown)
    at = row.index("Claude Code 2.1.4")
    assert row[at + 1] == "ci, gemini, not streamed"
    assert '<a href="recordings/#a%20b%2F%3Cc%3E.jsonl">show recording</a>' in status_page(shown)[0].decode()


def test_half_and_almost_all_times_are_shown_with_a_picture() -> None:
    times = tuple(number / 10 for number in range(1, 101))
    upstream = UpstreamStatus("fast", "openai:gpt-5", "openai-chat", requests=100, times=times)
    shown = GatewayStatus("0.1.0", NOW, NOW, (upstream,), counts=Counts(100))
    said = words(shown)
    assert said[said.index("p50 5.1 s") + 1] == "p95 9.6 s"
    page = status_page(shown)[0].decode()
    assert page.partition("<main>")[2].partition("</main>")[0].count("<rect ") == 40
    assert 'aria-label="the last 40 took 6.1 s to 10.0 s"' in page


def test_the_counts_agree_with_the_list() -> None:
    clock = [NOW]
    stats = Stats((), 60.0, lambda: clock[0])
    for code, whose in ((200, "a"), (200, "b"), (404, "a"), (499, "b"), (502, "a"), (401, "")):
        stats.begin()
        stats.end(request(status=code), scope=whose)
    for counts, listed in (
        (stats.counted(), stats.recent.latest()),
        (stats.counted("a"), stats.recent.latest("a")),
        (stats.counted("b"), stats.recent.latest("b")),
    ):
        assert counts.all == len(listed)
        assert counts.answered == sum(each.status < 400 for each in listed)
        assert counts.failed == sum(each.status >= 500 for each in listed)
    assert stats.counted("nobody").all == 0
    said = view(GatewayStatus("0.1.0", NOW, NOW, (), counts=stats.counted(), recent=stats.recent.latest()[:4]))
    assert said.tables[-1].note == "the last 4 of 6"
    assert said.tables[0].note == "6 more requests reached none of these"


def test_a_held_turn_is_listed_for_its_own_key_until_it_is_released_or_expires() -> None:
    clock = [NOW]
    stats = Stats((), 60.0, lambda: clock[0])
    stats.pending.hold("turn:11111111", 2, "fast", "a", "ann", "Codex")
    clock[0] += 30
    stats.pending.hold("turn:22222222", 1, "fast", "b", "bob", "")
    stats.pending.hold("turn:11111111", 1, "fast", "a", "ann", "Codex")
    assert [(turn.session, turn.waiting, clock[0] - turn.since) for turn in stats.pending.listed()] == [
        ("11111111", 1, 30.0),
        ("22222222", 1, 0.0),
    ]
    assert [turn.key for turn in stats.pending.listed("b")] == ["bob"]
    stats.pending.release("turn:22222222")
    assert stats.pending.listed("b") == ()
    clock[0] += 61
    assert stats.pending.listed() == ()


def test_a_model_with_deployments_lists_them_as_such_and_names_the_request_that_failed() -> None:
    deployments = tuple(
        DeploymentStatus(name, model, 1, 1, 0, 2, 1, None, 0, "")
        for name, model in (("east", "openai:gpt-5"), ("west", "azure:gpt-5"))
    )
    upstream = UpstreamStatus(
        "fast",
        "openai:gpt-5",
        "openai-chat",
        fallback=("slow",),
        last_error="503",
        last_error_at=NOW - 9,
        deployments=deployments,
        last_error_id="82facee73dad7759",
    )
    models = view(GatewayStatus("0.1.0", NOW, NOW - 60, (upstream,))).tables[0].rows[0]
    assert (models[0].text, models[0].note) == ("fast", "falls back to slow")
    assert (models[1].text, models[1].note) == ("openai:gpt-5, azure:gpt-5", "2 deployments")
    assert models[-1].note == "9 s ago, request 82facee73dad7759"
