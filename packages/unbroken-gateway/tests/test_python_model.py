"""Python models behind the gateway: however they return an answer, nothing is lost; their exceptions are their own
failures."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import aiohttp
import pytest
from gateway_client import Client, run, serving, settings_for

from unbroken.errors import Unavailable, UserError
from unbroken_gateway.settings import UpstreamSettings
from unbroken_gateway.upstreams.upstream import PythonModel
from unbroken_wires.deltas import CallReady, Delta, Ended, TextDelta, Verdict
from unbroken_wires.messages import Assistant, Request, ToolCall, User

CALLS = tuple(
    ToolCall(f"call_{at}", "get_weather", {"city": city}, f'{{"city": "{city}"}}', at)
    for at, city in enumerate(("Oslo", "Lima"))
)
WHOLE = Verdict("whole")


class Told:
    """Yields these deltas."""

    name = "told"

    def __init__(self, *deltas: Delta) -> None:
        self._deltas = deltas

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        for delta in self._deltas:
            yield [delta]


class Raising:
    name = "raising"

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        raise self._error
        yield


async def heard(model: PythonModel) -> list[Delta]:
    return [delta async for deltas in model.stream(Request((User.of("Hello?"),))) for delta in deltas]


BY_DELTAS = (TextDelta("I look. "), *map(CallReady, CALLS), Ended(WHOLE))
AT_THE_END = (Ended(WHOLE, Assistant("I look. ", CALLS)),)


@pytest.mark.parametrize("said", [BY_DELTAS, AT_THE_END], ids=["by deltas", "at the end"])
def test_both_ways_to_return_an_answer_are_equal(said: tuple[Delta, ...]) -> None:
    deltas = run(lambda: heard(PythonModel(Told(*said))))
    assert deltas[:-1] == [TextDelta("I look. "), *map(CallReady, CALLS)]
    ended = deltas[-1]
    assert isinstance(ended, Ended)
    assert ended.message == Assistant("I look. ", CALLS)


def test_text_sent_by_deltas_is_not_repeated_at_the_end() -> None:
    said = (TextDelta("I look. "), CallReady(CALLS[0]), Ended(WHOLE, Assistant("I look. ", CALLS)))
    deltas = run(lambda: heard(PythonModel(Told(*said))))
    assert deltas[:-1] == [TextDelta("I look. "), CallReady(CALLS[0]), CallReady(CALLS[1])]


@pytest.mark.parametrize("error", [ValueError("no"), UserError("the model's own mistake"), SystemError("worse")])
def test_any_exception_is_a_failed_attempt_of_the_model(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Unavailable, match=f"model `raising` failed: {type(error).__name__}"):
        run(lambda: heard(PythonModel(Raising(error))))
    assert str(error) in caplog.text


MODULE = """
from unbroken_wires.deltas import CallReady, Ended, TextDelta
from unbroken_wires.messages import Assistant, ToolCall
from unbroken.models.scripted import ScriptedModel
from unbroken_wires.deltas import Verdict

CALLS = tuple(
    ToolCall(f"call_{at}", "get_weather", {"city": city}, '{"city": "%s"}' % city, at)
    for at, city in enumerate(("Oslo", "Lima"))
)


class Told:
    name = "told"

    def __init__(self, *deltas):
        self.deltas = deltas

    async def stream(self, request):
        if any(type(message).__name__ == "ToolMessage" for message in request.messages):
            yield [Ended(Verdict("whole"), Assistant("Sunny."))]
            return
        for delta in self.deltas:
            yield [delta]


def by_deltas():
    return Told(TextDelta("I look. "), *map(CallReady, CALLS), Ended(Verdict("whole")))


def at_the_end():
    return Told(Ended(Verdict("whole"), Assistant("I look. ", CALLS)))


class Raising:
    name = "raising"

    async def stream(self, request):
        raise ValueError("no luck")
        yield


def raising():
    return Raising()


def spare():
    return ScriptedModel("From the spare.", loop_last=True)
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], UpstreamSettings]:
    name = f"foreign_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return lambda function: UpstreamSettings(function, f"python:{name}:{function}")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("parallel", [None, False], ids=["at once", "one by one"])
@pytest.mark.parametrize("function", ["by_deltas", "at_the_end"])
def test_no_call_of_such_a_model_is_lost(
    models: Callable[[str], UpstreamSettings], function: str, parallel: bool | None, stream: bool
) -> None:
    async def story() -> None:
        async with serving(settings_for(models(function))) as url:
            client = Client(url, "openai-chat", stream, parallel, model=function)
            replies = await client.converse("Oslo and Lima?")
            cities = [arguments["city"] for reply in replies for _, arguments in reply.calls]
            assert cities == ["Oslo", "Lima"]
            assert replies[0].response.text == "I look. "
            assert replies[-1].response.text == "Sunny."
            assert len(replies) == (2 if parallel is None else 3)

    run(story)


def test_after_a_model_raises_its_fallback_is_used(models: Callable[[str], UpstreamSettings]) -> None:
    async def story() -> None:
        alias = UpstreamSettings("m", models("raising").model, fallback=("spare",))
        async with serving(settings_for(alias, models("spare"))) as url:
            reply = await Client(url, "anthropic-messages", parallel=None).ask(User.of("Hello?"))
            assert (reply.status, reply.response.text) == (200, "From the spare.")

    run(story)


def test_a_model_that_raises_is_a_bad_gateway_and_counted(models: Callable[[str], UpstreamSettings]) -> None:
    async def story() -> None:
        async with serving(settings_for(models("raising"))) as url:
            reply = await Client(url, "openai-chat", parallel=None, model="raising").ask(User.of("Hello?"))
            assert reply.status == 502
            assert "no luck" not in reply.data.decode()
            async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
                assert 'unbroken_upstream_errors_total{alias="raising",kind="unavailable"} 1.0' in await answer.text()

    run(story)


def test_calls_made_by_hand_get_numbers_and_names() -> None:
    by_hand = [ToolCall("", "get_weather", {"city": city}, "", 0) for city in ("Oslo", "Lima", "Rome")]
    deltas = run(lambda: heard(PythonModel(Told(*map(CallReady, by_hand), Ended(WHOLE)))))
    ended = deltas[-1]
    assert isinstance(ended, Ended)
    assert ended.message is not None
    assert [(call.id, call.index) for call in ended.message.calls] == [
        ("call_0_0", 0),
        ("call_0_1", 1),
        ("call_0_2", 2),
    ]
    assert [delta.call for delta in deltas[:-1] if isinstance(delta, CallReady)] == list(ended.message.calls)


def test_two_calls_with_one_id_get_separate_ids() -> None:
    twins = (ToolCall("a", "f", {"n": 1}), ToolCall("a", "f", {"n": 2}))
    deltas = run(lambda: heard(PythonModel(Told(Ended(WHOLE, Assistant("", twins))))))
    assert [delta.call.id for delta in deltas if isinstance(delta, CallReady)] == ["a", "call_0_1"]
