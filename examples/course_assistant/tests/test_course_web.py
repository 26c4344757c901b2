"""The web part over real HTTP: the events of a question, what is refused, and that no run continues unread."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from course_web import Client, Held, read, served, texts
from yarl import URL

from course_assistant.assistant import LONGEST_QUESTION
from course_assistant.web.server import create_app, serving
from unbroken import RetryingModel, ScriptedModel, UserError
from unbroken.errors import Unavailable
from unbroken_testing import Break, Call, Fail, Say

SEARCH = Call("search_course_content", query="prompt caching", course_name="MCP")


def test_the_steps_of_a_question_are_reported_as_they_happen(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel([Say("Let me look. "), SEARCH], Say("It is paid for once [5].", chunks=2))
        async with served(model, tmp_path) as client:
            told = await client.ask("What is prompt caching?")

        kinds = [one["event"] for one in told]
        assert [kind for before, kind in zip([None, *kinds], kinds, strict=False) if kind != before] == [
            "session",
            "asked",
            "run_started",
            "request_sent",
            "text_added",
            "call_written",
            "call_started",
            "text_finished",
            "call_finished",
            "round_finished",
            "request_sent",
            "text_added",
            "text_finished",
            "answered",
        ]
        started, finished, answered = (
            told[kinds.index(kind)] for kind in ("call_started", "call_finished", "answered")
        )
        assert (started["name"], started["arguments"]) == (
            "search_course_content",
            {"query": "prompt caching", "course_name": "MCP"},
        )
        assert "paid for once" in finished["text"]
        assert not finished["error"]
        assert texts(told) == "Let me look. It is paid for once [5]."
        assert answered["text"] == "It is paid for once [5]."
        lesson = {"title": "MCP: Build Tool Servers - Lesson 2", "link": "/lessons/5", "file": "courses/mcp.txt:10"}
        assert answered["sources"] == finished["sources"] == [{"number": 5, **lesson}]
        assert (answered["stop_reason"], answered["rounds"], answered["requests"], answered["calls"]) == (
            "answered",
            1,
            2,
            1,
        )
        assert answered["usage"]["input_tokens"] > 0
        assert answered["seconds"] > 0

    asyncio.run(main())


def test_a_call_is_reported_before_it_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        model = Held(ScriptedModel(SEARCH, "Found."), at=1)
        async with (
            served(model, tmp_path) as client,
            client.http.post(f"{client.address}api/ask", json={"question": "MCP?"}) as response,
        ):
            heard = ""
            while "call_finished" not in heard:
                heard += (await response.content.readuntil(b"\n\n")).decode()
            assert "answered" not in heard
            model.free.set()
            assert '"event":"answered"' in (await response.text())

    asyncio.run(main())


def test_an_answer_that_broke_off_is_replaced_by_the_different_text_of_the_retry(tmp_path: Path) -> None:
    async def main() -> None:
        model = RetryingModel(ScriptedModel([Say("MCP is a kind of"), Break()], "It is a protocol."))
        async with served(model, tmp_path) as client:
            told = await client.ask("What is MCP?")

        kinds = [one["event"] for one in told]
        assert kinds.index("request_retried") < kinds.index("text_replaced")
        assert told[kinds.index("text_replaced")]["text"] == told[-1]["text"] == "It is a protocol."

    asyncio.run(main())


def test_a_model_that_fails_is_reported_in_one_event_and_the_session_continues(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(Fail(Unavailable("the provider is busy: try later", status=503)), "Here I am.")
        async with served(model, tmp_path) as client:
            failed = await client.ask("Hello?")
            assert (failed[-1]["error"], failed[-1]["message"]) == ("Unavailable", "the provider is busy: try later")
            assert [one["event"] for one in failed].count("failed") == 1
            again = await client.ask("Hello?", failed[0]["id"])
            assert again[-1]["text"] == "Here I am."
            assert again[0]["id"] == failed[0]["id"]

    asyncio.run(main())


def test_a_server_that_stops_reports_it_to_waiting_clients(tmp_path: Path) -> None:
    async def main() -> None:
        model = Held(ScriptedModel("Never said."), at=0)
        async with AsyncExitStack() as stack, ClientSession() as http:
            client = await stack.enter_async_context(served(model, tmp_path))
            async with http.post(f"{client.address}api/ask", json={"question": "MCP?"}) as response:
                await model.reached.wait()
                await stack.aclose()
                told = read(await response.text())
        assert [one["event"] for one in told] == ["session", "asked", "run_started", "request_sent", "failed"]
        assert "The server was stopped" in told[-1]["message"]
        assert model.left.is_set()

    asyncio.run(main())


BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("POST", {"data": b"What is MCP?"}, 400, "the request is not JSON"),
    ("POST", {"data": b""}, 400, "the request is not JSON"),
    ("POST", {"data": b"[" * 50_000}, 400, "the request is not JSON"),
    ("POST", {"data": b'{"question": "\\ud800"}'}, 400, "the request is not JSON"),
    ("POST", {"json": ["What is MCP?"]}, 400, "not an object"),
    ("POST", {"json": {}}, 400, "has no string in `question`"),
    ("POST", {"json": {"question": 7}}, 400, "has no string in `question`"),
    ("POST", {"json": {"question": " \n"}}, 400, "the question is empty"),
    ("POST", {"json": {"question": "x" * (LONGEST_QUESTION + 1)}}, 400, "4,001 characters and 4,000 are allowed"),
    ("POST", {"json": {"question": "x" * 1_000_000}}, 413, "larger than 64 KB"),
    ("POST", {"json": {"question": "x", "session_id": "nobody's"}}, 404, "leave out session_id"),
    ("POST", {"json": {"question": "x", "session_id": [1]}}, 404, "leave out session_id"),
    ("GET", {}, 405, "GET /api/ask does not exist: use / (the page)"),
]


def test_bad_requests_are_refused_with_a_hint(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(ScriptedModel(), tmp_path) as client:
            for method, options, status, words in BAD:
                refused = await client.refused(method, "api/ask", **options)
                assert refused[0] == status, refused
                assert words in refused[1]
            assert (await client.refused("GET", "api/nothing"))[0] == 404
            assert len(client.assistant.sessions) == 0

    asyncio.run(main())


def test_other_sites_are_refused_and_the_own_page_is_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(ScriptedModel("Hello."), tmp_path) as client:
            own = client.address.rstrip("/")
            for headers in (
                {"Origin": "https://evil.example"},
                {"Origin": "null"},
                {"Origin": own.replace("127.0.0.1", "localhost")},
                {"Sec-Fetch-Site": "cross-site"},
                {"Host": "evil.example"},
                {"Host": "[broken"},
                {"Host": "a@127.0.0.1"},
            ):
                status, _ = await client.refused("POST", "api/ask", json={"question": "x"}, headers=headers)
                assert status == 403, headers
            async with client.http.post(
                f"{own}/api/ask", json={"question": "x"}, headers={"Origin": own, "Sec-Fetch-Site": "same-origin"}
            ) as response:
                assert "Hello." in await response.text()

    asyncio.run(main())


def test_courses_and_the_note_are_listed_and_a_session_can_be_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(ScriptedModel("Hello."), tmp_path, note="Full-text search is used.") as client:
            async with client.http.get(f"{client.address}api/courses") as response:
                listed = await response.json()
            assert listed["note"] == "Full-text search is used."
            assert [course["title"] for course in listed["courses"]] == ["Computer Use", "MCP: Build Tool Servers"]
            assert listed["courses"][1]["lessons"][1] == {"number": 2, "title": "Prompt Caching", "page": "/lessons/5"}
            assert {name: len(examples) for name, examples in listed["examples"].items()} == {"en": 7, "zh": 7}
            assert (listed["examples"]["en"][0]["question"], listed["model"]) == ("What is MCP?", "scripted:demo")
            await _forget(client, (await client.ask("Hello?"))[0]["id"])

    asyncio.run(main())


async def _forget(client: Client, session: str) -> None:
    async with client.http.delete(f"{client.address}api/sessions/{session}") as response:
        assert response.status == 204
    assert (await client.refused("DELETE", f"api/sessions/{session}"))[0] == 404
    told = await client.refused("POST", "api/ask", json={"question": "x", "session_id": session})
    assert told[0] == 404


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(ScriptedModel(), tmp_path) as client, client.http.get(client.address) as response:
            page = await response.text()
            policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "innerHTML" not in page
        assert set(re.findall(r"""(?:src|href)=["']([a-z]+:)""", page)) == {"data:"}
        assert page.count("<script") == page.count("<style") == 1

    asyncio.run(main())


def test_lessons_are_shown_by_number_and_by_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(ScriptedModel(), tmp_path) as client:
            async with client.http.get(f"{client.address}api/lessons/5") as response:
                lesson = await response.json()
            assert (lesson["title"], lesson["heading"], lesson["lesson"]) == (
                "MCP: Build Tool Servers",
                "Prompt Caching",
                2,
            )
            assert lesson["text"].startswith("Prompt caching keeps the tool definitions")
            assert (lesson["file"], lesson["link"]) == ("courses/mcp.txt:10", "https://example.com/mcp/2")
            for said in ("0", "6", "-1", "x", "9" * 5000, "..%2Fmcp.txt", "%2Fetc%2Fpasswd", "%D9%A3", "5%00"):
                url = URL(f"{client.address}api/lessons/{said}", encoded=True)
                async with client.http.get(url) as response:
                    assert response.status == 404, said
                    assert "root:" not in await response.text()

    asyncio.run(main())


def test_a_port_in_use_and_a_foreign_host_are_refused_with_a_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(ScriptedModel(), tmp_path) as client:
            port = int(client.address.rstrip("/").rpartition(":")[2])
            for host, number, words in (
                ("127.0.0.1", port, f"port {port} failed: Address already in use; choose another"),
                ("127.0.0.1", 70_000, "port 70000 failed: the highest port is 65535"),
                ("0.0.0.0", 0, "for this machine only; use 127.0.0.1"),
            ):
                with pytest.raises(UserError, match=re.escape(words)):
                    await serving(create_app(client.assistant), host, number).__aenter__()

    asyncio.run(main())
