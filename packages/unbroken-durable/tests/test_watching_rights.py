"""Who may see and answer durable runs over HTTP, and what hostile clients get."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import postgres_server
import pytest
from watched_runs import ask, journal_url, read_events, serving, until, working

from unbroken_durable import Journal, open_journal, web
from unbroken_gateway import GatewayKey, GatewaySettings, create_key, running
from unbroken_gateway.keys import KeyRing
from unbroken_gateway.stores import StoreUnavailable

Session = aiohttp.ClientSession
WAYS = (("GET", ""), ("GET", "/events"), ("GET", "/ui"), ("GET", "/ag-ui"), ("POST", "/answers"), ("POST", "/cancel"))
ALLOW = {"refund-0": {"decision": "allow"}}


class Tenants:
    """Keys of two tenants and an operator."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys.json"
        made = {
            "acme": GatewayKey("ann", tenant="acme"),
            "other": GatewayKey("other"),
            "operator": GatewayKey("op", operator=True),
        }
        self.keys = {name: create_key(self.file, key) for name, key in made.items()}

    def bearer(self, name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[name]}"}


def with_tenants(folder: Path, act: Callable[[Session, str, Journal, Tenants], Awaitable[None]]) -> None:
    async def main() -> None:
        tenants = Tenants(folder)
        with serving(folder, KeyRing(tenants.file)) as url:
            async with working(folder) as journal, Session() as session:
                await act(session, url, journal, tenants)

    asyncio.run(main())


def test_tenants_never_see_each_other(tmp_path: Path) -> None:
    async def act(session: Session, url: str, journal: Journal, tenants: Tenants) -> None:
        acme, other, operator = map(tenants.bearer, ("acme", "other", "operator"))
        new = {"agent": "support", "prompt": "refund", "run_id": "secret"}
        status, body = await ask(session, "POST", f"{url}/runs", new, **acme)
        assert (status, body["tenant"]) == (201, "acme")
        run = f"{url}/runs/secret"

        async def waits() -> bool:
            return (await ask(session, "GET", run, **acme))[1]["state"] == "waiting"

        await until(waits)
        for method, what in WAYS:
            body = ALLOW if what == "/answers" else None
            refused = await ask(session, method, f"{run}{what}", body, **other)
            unknown = await ask(session, method, f"{url}/runs/absent{what}", body, **other)
            assert refused[0] == 404
            assert json.dumps(refused).replace("secret", "absent") == json.dumps(unknown)
            assert (await ask(session, method, f"{run}{what}", body))[0] == 401
        assert (await ask(session, "GET", f"{url}/runs", **other))[1]["runs"] == []
        assert (await ask(session, "GET", f"{url}/runs?tenant=acme", **other))[0] == 403
        assert (await ask(session, "POST", f"{url}/runs", {**new, "tenant": "acme", "run_id": "x"}, **other))[0] == 403
        assert (await ask(session, "POST", f"{url}/runs", new, **other))[0] == 409  # ids are unique in a journal
        assert (await ask(session, "GET", run, **acme))[1]["state"] == "waiting"  # nothing of this had an effect

        status, body = await ask(session, "GET", f"{url}/runs", **operator)
        assert [(row["run_id"], row["tenant"]) for row in body["runs"]] == [("secret", "acme")]
        assert "number" not in body["runs"][0]
        assert (await ask(session, "POST", f"{run}/answers", ALLOW, **operator))[0] == 200
        status, body = await ask(session, "POST", f"{url}/runs", {**new, "tenant": "zed", "run_id": "z"}, **operator)
        assert (status, body["tenant"]) == (201, "zed")

    with_tenants(tmp_path, act)


def test_a_key_comes_in_a_header_or_in_the_cookie_of_a_session_and_never_in_the_address(tmp_path: Path) -> None:
    async def act(session: Session, url: str, journal: Journal, tenants: Tenants) -> None:
        key = tenants.keys["acme"]
        for address, headers in (
            (f"{url}/runs?key={key}", {}),
            (f"{url}/runs", {"authorization": "Bearer ub-wrong"}),
            (f"{url}/runs", {"authorization": f"Basic {key}"}),
            (f"{url}/runs", {"cookie": "unbroken_key=ub-wrong"}),
        ):
            assert (await ask(session, "GET", address, **headers))[0] == 401
        assert (await ask(session, "GET", f"{url}/runs", **{"x-api-key": key}))[0] == 200
        assert (await ask(session, "POST", f"{url}/session"))[0] == 401
        async with session.post(f"{url}/session", headers=tenants.bearer("acme")) as answer:
            assert answer.status == 204
            cookie = answer.headers["set-cookie"]
        assert cookie.endswith("; Path=/runs; HttpOnly; SameSite=Strict")
        sent = {"cookie": f"a=b; {cookie.partition(';')[0]}; c=d"}
        for headers, status in (
            ({}, 200),
            ({"sec-fetch-site": "same-origin"}, 200),
            ({"origin": url}, 200),
            ({"sec-fetch-site": "same-site"}, 401),  # another port of this machine
            ({"sec-fetch-site": "cross-site"}, 401),
            ({"origin": "http://127.0.0.1:1"}, 401),
            ({"origin": "null"}, 401),
        ):
            assert (await ask(session, "GET", f"{url}/runs", **sent, **headers))[0] == status, headers
        async with session.post(f"{url}/session", headers={**sent}) as answer:
            assert answer.status == 401  # a cookie makes no cookie
        async with session.delete(f"{url}/session") as answer:
            assert "Max-Age=0" in answer.headers["set-cookie"]

    with_tenants(tmp_path, act)


def test_keys_of_the_gateway_are_those_of_its_runs(tmp_path: Path) -> None:
    async def main() -> None:
        tenants = Tenants(tmp_path)
        settings = GatewaySettings(
            (), port=0, store="memory:", keys=True, keys_file=str(tenants.file), journal=journal_url(tmp_path)
        )
        with running(settings) as url:
            async with Session() as session:
                assert (await ask(session, "GET", f"{url}/runs"))[0] == 401
                new = {"agent": "support", "prompt": "look", "run_id": "r"}
                assert (await ask(session, "POST", f"{url}/runs", new, **tenants.bearer("acme")))[0] == 201
                assert (await ask(session, "GET", f"{url}/runs/r", **tenants.bearer("other")))[0] == 404

    asyncio.run(main())


def test_without_keys_only_this_machine_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        with serving(tmp_path) as url:
            async with Session() as session:
                assert (await ask(session, "GET", f"{url}/runs"))[0] == 200
                for headers in (
                    {"host": "evil.example"},
                    {"origin": "https://evil.example"},
                    {"sec-fetch-site": "cross-site"},
                    {"x-forwarded-for": "203.0.113.9"},
                    {"forwarded": "for=203.0.113.9"},
                ):
                    for path in ("/runs", "/"):
                        async with session.get(f"{url}{path}", headers=headers) as answer:
                            assert answer.status == 403, headers
        with serving(tmp_path, open_to_all=True) as url:
            async with Session() as session:
                assert (await ask(session, "GET", f"{url}/runs", host="runs.example"))[0] == 200

    asyncio.run(main())


BAD_RUNS: list[tuple[Any, str]] = [
    (b"", "is not JSON"),
    (b"{", "is not JSON"),
    (b"[]", "not a JSON object"),
    (b"\xff\xfe", "is not JSON"),
    (b"[" * 100_000, "nested deeper"),
    ({}, "`prompt` is"),
    ({"prompt": "x"}, "`agent` is missing"),
    ({"prompt": " ", "agent": "a"}, "`prompt` is"),
    ({"prompt": ["x"], "agent": "a"}, "`prompt` is"),
    ({"prompt": "x", "agent": 5}, "`agent` is a text"),
    ({"prompt": "x", "agent": "a\0"}, "`agent` is a text"),
    ({"prompt": "x", "agent": "a", "run_id": ""}, "`run_id` is a text"),
    ({"prompt": "x", "agent": "a", "run_id": "r\n"}, "`run_id` is a text"),
    ({"prompt": "x", "agent": "a", "run_id": "r\ud800"}, "`run_id` is a text"),
    ({"prompt": "x", "agent": "a", "run_id": "é" * 251}, "`run_id` is a text"),
    ({"prompt": "x", "agent": "a", "tenant": {}}, "`tenant` is a text"),
    ({"prompt": "x", "agent": "a", "answer_within": -1}, "`answer_within`"),
    ({"prompt": "x", "agent": "a", "answer_within": True}, "`answer_within`"),
    (b'{"prompt": "x", "agent": "a", "answer_within": 1e999}', "`answer_within`"),
    (b'{"prompt": "x", "agent": "a", "answer_within": NaN}', "`answer_within`"),
    ({"prompt": "x", "agent": "a", "run_id": "."}, "`run_id` cannot be `.`"),
    ({"prompt": "x", "agent": "a", "run_id": ".."}, "`run_id` cannot be `..`"),
    (b'{"prompt": "x", "agent": "a", "answer_within": 1e12}', "at most 10,000,000,000"),
    (b'{"prompt": "x", "agent": "a", "answer_within": 1%b}' % (b"0" * 400), "at most 10,000,000,000"),
    ({"prompt": "x", "agent": "a", "limits": {}}, "there is no field 'limits'"),
    ({"prompt": "x", "agent": "nobody"}, "there is no agent `nobody`"),
]
BAD_ANSWERS: list[Any] = [
    {},
    [],
    {"refund-0": "allow"},
    {"refund-0": {"decision": "wait"}},
    {"refund-0": {"decision": "allow", "reason": "x"}},
    {"refund-0": {"decision": "deny", "reason": 5}},
    {"refund-0": {"decision": "edit", "arguments": []}},
    {"refund-0": {"decision": "edit"}},
    {"refund-0": {"decision": "allow", "result": 1}},
    {"another": {"decision": "allow"}},
    {"refund-0": {"decision": "allow"}, "another": {"decision": "allow"}},
]


def test_hostile_requests_get_a_sentence_and_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with serving(tmp_path, agents=("support", "a"), max_body=300_000) as url:
            async with working(tmp_path) as journal, Session() as session:
                for body, words in BAD_RUNS:
                    status, answer = await ask(session, "POST", f"{url}/runs", body)
                    assert status == 400, body
                    assert words in answer["error"]["message"], body
                status, answer = await ask(session, "POST", f"{url}/runs", b" " * 300_001)
                assert status == 413
                assert await journal.runs() == []

                await journal.start("support", "refund", run_id="r")
                run = f"{url}/runs/r"

                async def waits() -> bool:
                    return (await ask(session, "GET", run))[1]["state"] == "waiting"

                await until(waits)
                for body in BAD_ANSWERS:
                    assert (await ask(session, "POST", f"{run}/answers", body))[0] == 400, body
                assert (await ask(session, "POST", f"{run}/cancel", {"reason": 5}))[0] == 400
                for query in ("state=nothing", "limit=0", "limit=1001", "limit=x", "limit=1e3", "limit=" + "9" * 400):
                    assert (await ask(session, "GET", f"{url}/runs?{query}"))[0] == 400, query
                for path in ("/runs/%00", "/runs/%ff%fe", "/runs/..%2f..%2fetc", "/runs/r/x", "/x", "/runs/r/events/1"):
                    assert (await ask(session, "GET", f"{url}{path}"))[0] == 404, path
                for method, path in (
                    ("PUT", "/runs"),
                    ("DELETE", "/runs/r"),
                    ("POST", "/runs/r/events"),
                    ("POST", "/"),
                ):
                    async with session.request(method, f"{url}{path}") as answer:
                        assert answer.status == 405
                        assert answer.headers["allow"]
                assert (await journal.run("r")).state == "waiting"

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert [record.message for record in caplog.records] == []  # nothing was unexpected


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_prompts_with_any_character_are_stored(tmp_path: Path, kind: str) -> None:
    place = journal_url(tmp_path) if kind == "sqlite" else postgres_server.empty_url()
    prompts = ["nul \0 and half \ud800 of a pair", "\u202e\u2028</script>", "' OR 1=1; --", "{}" * 50]

    async def main() -> None:
        with serving(tmp_path, url=place) as url:
            async with working(tmp_path, place), Session() as session:
                for number, prompt in enumerate(prompts):
                    new = {"agent": "support", "prompt": prompt, "run_id": f"'{number}\"<b>"}
                    status, body = await ask(session, "POST", f"{url}/runs", new)
                    assert status == 201, body

                async def ended() -> bool:
                    _, body = await ask(session, "GET", f"{url}/runs?state=answered")
                    return len(body["runs"]) == len(prompts)

                await until(ended)
                events = await read_events(session, f"{url}/runs/'0%22%3Cb%3E/events")
                assert events[-1].event == "run_finished"
                for cut in range(len(events) + 1):
                    again = await read_events(session, f"{url}/runs/'0%22%3Cb%3E/events", str(cut))
                    assert events[:cut] + again == events
                for path in ("%00", "%ED%A0%80", "\u202e"):
                    assert (await ask(session, "GET", f"{url}/runs/{path}"))[0] == 404
                status, body = await ask(session, "POST", f"{url}/runs", {"agent": "a", "prompt": "x", "run_id": "c"})
                status, body = await ask(session, "POST", f"{url}/runs/c/cancel", {"reason": "nul \0 half \ud800"})
                assert (status, body["error"]) == (200, "nul \ufffd half \ufffd")

    asyncio.run(main())


def test_a_journal_that_cannot_be_reached_is_503_without_its_address(tmp_path: Path) -> None:
    tenants = Tenants(tmp_path)

    def make(settings: GatewaySettings) -> web.RunsApp:
        return web.runs_app("postgresql://user:pass@127.0.0.1:1/runs", keys=KeyRing(tenants.file))

    async def main() -> None:
        with running(GatewaySettings((), port=0), app=make) as url:
            async with Session() as session, session.get(f"{url}/runs", headers=tenants.bearer("acme")) as answer:
                assert (answer.status, answer.headers["retry-after"]) == (503, "5")
                message = (await answer.json())["error"]["message"]
                assert message == "the journal cannot be reached now; nothing is lost, try again"

    asyncio.run(main())


def test_the_page_runs_only_its_own_script(tmp_path: Path) -> None:
    async def main() -> None:
        async with await open_journal(journal_url(tmp_path)):
            pass
        with serving(tmp_path) as url:
            async with Session() as session, session.get(f"{url}/") as answer:
                policy = answer.headers["content-security-policy"]
                page = await answer.text()
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in policy
        assert "http:" not in page.replace("http://www.w3.org/2000/svg", "")
        assert "innerHTML" not in page

    asyncio.run(main())


def test_the_limits_of_a_key_count_for_runs_too(tmp_path: Path) -> None:
    async def main() -> None:
        keys = tmp_path / "keys.json"
        slow = {"authorization": f"Bearer {create_key(keys, GatewayKey('slow', requests_per_minute=2))}"}
        one = {"authorization": f"Bearer {create_key(keys, GatewayKey('one', in_flight=1))}"}
        settings = GatewaySettings(
            (), port=0, store="memory:", keys=True, keys_file=str(keys), journal=journal_url(tmp_path)
        )
        with running(settings) as url:
            async with Session() as session:
                for expected in (200, 200, 429):
                    async with session.get(f"{url}/runs", headers=slow) as answer:
                        assert answer.status == expected
                assert 0 < int(answer.headers["retry-after"]) <= 60
                new = {"agent": "support", "prompt": "look", "run_id": "r"}
                assert (await ask(session, "POST", f"{url}/runs", new, **one))[0] == 201
                async with session.get(f"{url}/runs/r/events", headers=one) as stream:
                    assert stream.status == 200
                    assert (await ask(session, "GET", f"{url}/runs", **one))[0] == 429

                async def is_free() -> bool:
                    return (await ask(session, "GET", f"{url}/runs", **one))[0] == 200

                await until(is_free)

    asyncio.run(main())


def test_no_more_may_watch_than_the_app_allows(tmp_path: Path) -> None:
    async def main() -> None:
        with serving(tmp_path, max_streams=1) as url:
            async with Session() as session:
                new = {"agent": "support", "prompt": "look", "run_id": "r"}
                assert (await ask(session, "POST", f"{url}/runs", new))[0] == 201
                async with session.get(f"{url}/runs/r/events"):
                    async with session.get(f"{url}/runs/r/events") as second:
                        assert (second.status, second.headers["retry-after"]) == (503, "5")
                    assert (await ask(session, "GET", f"{url}/runs/r"))[0] == 200

                async def is_free() -> bool:
                    async with session.get(f"{url}/runs/r/events") as again:
                        return again.status == 200

                await until(is_free)

    asyncio.run(main())


class _Broken:
    """Keys in a store that cannot be read."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def find(self, secret: str) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (StoreUnavailable("the gateway keys in the store are damaged"), "keys in the store are damaged"),
        (RuntimeError("ub-secret is strange"), "RuntimeError"),
    ],
)
def test_keys_that_cannot_be_read_are_a_503_and_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception, logged: str
) -> None:
    async def main() -> None:
        with serving(tmp_path, _Broken(error)) as url:
            async with Session() as session:
                for method, path in (("GET", "/runs"), ("POST", "/session"), ("GET", "/runs/x/events")):
                    asked = session.request(method, f"{url}{path}", headers={"authorization": "Bearer ub-secret"})
                    async with asked as answer:
                        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
                        words = (await answer.json())["error"]["message"]
                        assert words.startswith("keys cannot be checked now")
        (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert logged in record.getMessage()
        assert record.exc_info is None
        assert "ub-secret" not in caplog.text

    asyncio.run(main())
