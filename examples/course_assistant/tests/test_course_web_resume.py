"""A browser that reloads, loses its connection or closes the page in the middle of an answer: nothing is lost or sent
twice, and nobody reads the chat of another."""

from __future__ import annotations

import asyncio
import stat
from contextlib import closing
from pathlib import Path

import pytest
from course_web import Client, Held, Told, read, served, texts

from course_assistant.web.chat_store import ChatStore
from unbroken import Request, RetryingModel, ScriptedModel, User, UserError
from unbroken.errors import Unavailable
from unbroken_testing import Call, Fail, Say, Think

SEARCH = Call("search_course_content", query="prompt caching", course_name="MCP")
LONG = " ".join(f"word{number}" for number in range(200))


async def rest(client: Client, session: str, after: int = 0, *, as_header: bool = False) -> list[Told]:
    headers = {"Last-Event-ID": str(after)} if as_header else {}
    query = "" if as_header else f"?after={after}"
    async with client.http.get(f"{client.address}api/sessions/{session}/events{query}", headers=headers) as response:
        return read(await response.text())


async def leave_at(client: Client, question: str, kind: str) -> list[Told]:
    """Asks, and closes the connection after an event of this kind."""
    heard = b""
    async with client.http.post(f"{client.address}api/ask", json={"question": question}) as response:
        while f'"event":"{kind}"'.encode() not in heard:
            heard += await response.content.readuntil(b"\n\n")
    return read(heard.decode())


def test_an_answer_continues_without_a_reader_and_is_read_from_any_event_on(tmp_path: Path) -> None:
    async def main() -> None:
        model = Held(ScriptedModel(SEARCH, Say(LONG, chunks=50)), at=1)
        async with served(model, tmp_path) as client:
            first = await leave_at(client, "MCP?", "call_finished")
            session = first[0]["id"]
            reading = [
                asyncio.create_task(rest(client, session, first[-1]["number_of_event"], as_header=n > 0))
                for n in (0, 1)
            ]
            await model.reached.wait()
            model.free.set()
            numbers: list[int] = []
            for later in await asyncio.gather(*reading):
                numbers = [one["number_of_event"] for one in [*first, *later] if "number_of_event" in one]
                assert numbers == list(range(1, numbers[-1] + 1))
                assert texts(later) == later[-1]["text"] == LONG
            again = await rest(client, session)  # F5 after the end: the pieces of text are joined
            assert [one["event"] for one in again].count("text_added") == 1
            assert (texts(again), again[1]["question"]) == (LONG, "MCP?")
            async with client.http.get(
                f"{client.address}api/sessions/{session}/events?after={numbers[-1]}"
            ) as response:
                assert response.status == 204

    asyncio.run(main())


def test_a_number_inside_of_a_joined_text_gives_the_turn_again_from_its_beginning(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(ScriptedModel("One.", Say(LONG, chunks=50), "Three."), tmp_path) as client:
            session = (await client.ask("1?"))[0]["id"]
            second = await client.ask("2?", session)
            await client.ask("3?", session)
            middle = [one["number_of_event"] for one in second if one["event"] == "text_added"][20]
            told = await rest(client, session, middle)
            assert [one["number"] for one in told if one["event"] == "asked"] == [1, 2]
            assert texts(told) == f"{LONG}Three."
            assert len(await rest(client, session, 10**14)) == 0

    asyncio.run(main())


def test_an_answer_that_nobody_watches_is_stopped_after_a_while(tmp_path: Path) -> None:
    async def main() -> None:
        model = Held(ScriptedModel("Never read.", "I am free."), at=0)
        async with served(model, tmp_path, unwatched=0.05) as client:
            session = (await leave_at(client, "MCP?", "request_sent"))[0]["id"]
            await asyncio.wait_for(model.left.wait(), 10)
            assert (await client.ask("And now?", session))[-1]["text"] == "I am free."
            assert [one["event"] for one in await rest(client, session)].count("stopped") == 1

    asyncio.run(main())


def test_stop_ends_the_answer_and_the_question_that_waits_behind_it(tmp_path: Path) -> None:
    async def main() -> None:
        model = Held(ScriptedModel("Never read.", "I am free."), at=0)
        async with served(model, tmp_path) as client:
            session = (await leave_at(client, "1?", "request_sent"))[0]["id"]
            waiting = asyncio.create_task(client.ask("2?", session))
            while not client.assistant.sessions.find(session) or not model.reached.is_set():
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)
            async with client.http.post(f"{client.address}api/sessions/{session}/stop") as response:
                assert response.status == 204
            assert [one["event"] for one in await waiting] == ["session", "stopped"]
            assert model.left.is_set()
            assert (await client.ask("3?", session))[-1]["text"] == "I am free."

    asyncio.run(main())


def questions(request: Request) -> str:
    return " | ".join(message.text for message in request.messages if isinstance(message, User))


def test_again_replaces_the_last_answer_and_its_part_of_the_history(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel(*[questions] * 4, Fail(Unavailable("busy", status=503)), "Fine.")
        async with served(model, tmp_path) as client:
            session = (await client.ask("1?"))[0]["id"]
            await client.ask("2?", session)
            again = await repeat(client, session)
            assert (again[-1]["text"], again[1]["number"]) == ("1? | 2?", 1)
            assert (await client.ask("3?", session))[-1]["text"] == "1? | 2? | 3?"
            assert (await client.ask("4?", session))[-1]["event"] == "failed"
            assert (await repeat(client, session))[-1]["text"] == "Fine."  # a failed one too
            whole = await rest(client, session)
            assert [one["question"] for one in whole if one["event"] == "asked"] == ["1?", "2?", "3?", "4?"]
            assert [one["event"] for one in whole].count("answered") == 4
            status, said = await client.refused("POST", "api/ask", json={"again": True, "session_id": "x"})
            assert (status, "leave out session_id" in said) == (404, True)

    asyncio.run(main())


async def repeat(client: Client, session: str) -> list[Told]:
    async with client.http.post(f"{client.address}api/ask", json={"again": True, "session_id": session}) as response:
        assert response.status == 200
        return read(await response.text())


def test_again_is_refused_while_an_answer_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        model = Held(ScriptedModel("Fine."), at=0)
        async with served(model, tmp_path) as client:
            session = (await leave_at(client, "1?", "request_sent"))[0]["id"]
            status, said = await client.refused("POST", "api/ask", json={"again": True, "session_id": session})
            assert (status, said.startswith("there is no answer to repeat")) == (409, True)
            model.free.set()
            assert (await rest(client, session))[-1]["text"] == "Fine."

    asyncio.run(main())


def test_a_session_is_read_only_with_its_id_and_is_gone_when_it_is_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(ScriptedModel("Secret.", loop_last=True), tmp_path) as client:
            told = await client.ask("1?")
            session = told[0]["id"]
            assert len(session) >= 32
            for guess in ("", session[:-1], session.swapcase(), "0", "*", f"{session}%00"):
                for method, path in (("GET", f"api/sessions/{guess}/events"), ("POST", f"api/sessions/{guess}/stop")):
                    assert (await client.refused(method, path))[0] == 404
            for path in ("api/sessions", "api/sessions/"):
                assert (await client.refused("GET", path))[0] == 404
            async with client.http.delete(f"{client.address}api/sessions/{session}") as response:
                assert response.status == 204
            assert (await client.refused("GET", f"api/sessions/{session}/events"))[0] == 404

    asyncio.run(main())


def test_chats_outlive_the_server_with_their_history_and_only_for_those_who_have_the_id(tmp_path: Path) -> None:
    file = tmp_path / "data" / "chats.db"

    async def main() -> None:
        with closing(ChatStore(file)) as store:
            async with served(ScriptedModel(SEARCH, "Caching. [1]"), tmp_path, store=store) as client:
                session = (await client.ask("1?"))[0]["id"]
                before = await rest(client, session)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert session.encode() not in b"".join(one.read_bytes() for one in file.parent.iterdir())
        with closing(ChatStore(file)) as store:
            async with served(ScriptedModel(*[questions] * 3), tmp_path, store=store) as client:
                assert (await client.refused("GET", f"api/sessions/{session[:-1]}/events"))[0] == 404
                assert await rest(client, session) == before
                assert (await client.ask("2?", session))[-1]["text"] == "1? | 2?"
                assert (await repeat(client, session))[-1]["text"] == "1? | 2?"
                async with client.http.delete(f"{client.address}api/sessions/{session}") as response:
                    assert response.status == 204
                other = (await client.ask("3?"))[0]["id"]
        with closing(ChatStore(file)) as store:
            async with served(ScriptedModel(), tmp_path, store=store) as client:
                assert (await client.refused("GET", f"api/sessions/{session}/events"))[0] == 404
                assert texts(await rest(client, other)) == "3?"

    asyncio.run(main())


def test_an_answer_whose_server_died_has_failed_and_can_be_repeated(tmp_path: Path) -> None:
    file = tmp_path / "chats.db"

    async def main() -> None:
        model = Held(ScriptedModel("Never."), at=0)
        with closing(ChatStore(file)) as store:
            async with served(model, tmp_path, store=store) as client:
                session = (await leave_at(client, "1?", "request_sent"))[0]["id"]
                died = store.load(session)  # what is on disk in the middle of the answer
                assert died is not None
        with closing(ChatStore(file)) as store:
            store.save(session, died)
            async with served(ScriptedModel("Fine."), tmp_path, store=store) as client:
                told = await rest(client, session)
                assert [one["event"] for one in told] == ["session", "asked", "failed"]
                assert (await repeat(client, session))[-1]["text"] == "Fine."
        with closing(ChatStore(file)) as store:
            store.save(session, b'{"log": 7}')
            async with served(ScriptedModel(), tmp_path, store=store) as client:
                assert (await client.refused("GET", f"api/sessions/{session}/events"))[0] == 404

    asyncio.run(main())


def test_only_the_latest_chats_are_kept_and_a_bad_file_is_named(tmp_path: Path) -> None:
    with closing(ChatStore(tmp_path / "chats.db", most=2)) as store:
        for id in "abc":
            store.save(id, id.encode())
        assert [store.load(id) for id in "abc"] == [None, b"b", b"c"]
    (tmp_path / "bad.db").write_text("no database, but long enough to be one" * 100)
    with pytest.raises(UserError, match=r"chats cannot be kept in .*bad\.db: file is not a database; name another"):
        ChatStore(tmp_path / "bad.db")


def test_reasoning_unknown_tools_and_the_model_are_reported(tmp_path: Path) -> None:
    async def main() -> None:
        model = ScriptedModel([Think("Hm. "), Call("fly", {"to": "moon"})], "No.", name="scripted:thinker")
        async with served(RetryingModel(model), tmp_path) as client:
            told = await client.ask("Fly?")
        by_kind = {one["event"]: one for one in told}
        assert by_kind["reasoning_added"]["text"] == "Hm. "
        assert by_kind["run_started"]["model"] == "scripted:thinker"
        assert (by_kind["call_written"]["name"], by_kind["call_written"]["arguments"]) == ("fly", {"to": "moon"})
        assert by_kind["call_finished"]["error"]
        assert "call_started" not in by_kind

    asyncio.run(main())
