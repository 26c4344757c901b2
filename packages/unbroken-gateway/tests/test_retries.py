"""A retry gets the answer of the first attempt; a request that only looks the same gets a new answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from gateway_client import QUESTION, RETRY, THREE_CALLS, Client, Inside, Reply, run, stage

from unbroken.models.scripted import ScriptedModel
from unbroken_gateway.http.routes import read_attempt
from unbroken_gateway.settings import ClientProfile
from unbroken_gateway.stores import open_store
from unbroken_testing import Call, Fail, Pause, Say, Step
from unbroken_wires.messages import Request, User

SERIAL = (ClientProfile("serial", user_agent="serial"),)


class Sampling:
    """A model with a different answer each time, and a client in serial mode."""

    def __init__(self, *, pause: float = 0.0, calls: int = 2, fails: int = 0) -> None:
        self._pause, self._calls, self._fails = pause, calls, fails
        self.model = ScriptedModel(self._speak, loop_last=True)
        self.gateway = Inside({"m": self.model}, open_store("memory:"), clients=SERIAL)

    def _speak(self, request: Request) -> list[str | Step]:
        number = len(self.model.requests)
        if number <= self._fails:
            return [Pause(self._pause), Fail(RuntimeError("it broke"))]
        calls = [Call("roll", {"die": f"{number}.{at}"}) for at in range(self._calls)]
        return [Pause(self._pause), Say(f"Sample {number}."), *calls]

    async def ask(self, mark: Mapping[str, str], *, stream: bool = False, said: str = "Roll.") -> Reply:
        client = Client(self.gateway, "openai-chat", stream, parallel=None, headers={"User-Agent": "serial", **mark})
        return await client.post(client.body([User.of(said)]))


def texts(replies: Sequence[Reply]) -> list[str]:
    return [reply.response.text for reply in replies]


def test_a_regeneration_gets_a_new_sample() -> None:
    async def story() -> None:
        dice = Sampling()
        replies = [await dice.ask({}) for _ in range(3)]
        assert texts(replies) == ["Sample 1.", "Sample 2.", "Sample 3."]
        assert len({reply.ids[0] for reply in replies}) == 3

    run(story)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("mark", [RETRY, {"idempotency-key": "k1"}, {"X-Idempotency-Key": "k1"}], ids=str)
def test_a_retry_gets_the_answer_of_the_first_attempt(mark: Mapping[str, str], stream: bool) -> None:
    async def story() -> None:
        dice = Sampling()
        first = await dice.ask({} if mark is RETRY else mark, stream=stream)
        again = await dice.ask(mark, stream=stream)
        assert (texts([again]), again.calls, again.ids) == (texts([first]), first.calls, first.ids)
        assert again.headers["x-unbroken-turn"] == "handed 1/2"
        assert len(dice.model.requests) == 1

    run(story)


def test_a_retry_of_one_of_several_samples_is_a_new_sample() -> None:
    """Three samples with the same bytes, and the SDK retries one of them: it is unknown which."""

    async def story() -> None:
        dice = Sampling()
        first = {"x-stainless-retry-count": "0"}
        assert texts([await dice.ask(first)]) == texts([await dice.ask(RETRY)]) == ["Sample 1."]
        assert texts([await dice.ask(first), await dice.ask(RETRY)]) == ["Sample 2.", "Sample 3."]

    run(story)


@pytest.mark.parametrize("calls", [0, 1])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_idempotency_key_repeats_an_answer_without_held_calls(stream: bool, calls: int) -> None:
    async def story() -> None:
        dice = Sampling(calls=calls)
        first, again = [await dice.ask({"idempotency-key": "k1"}, stream=stream) for _ in range(2)]
        assert (texts([again]), again.calls, again.ids) == (texts([first]), first.calls, first.ids)
        assert len(dice.model.requests) == 1
        assert (await dice.ask({"idempotency-key": "k1"}, said="Something else.")).status == 422

    run(story)


def test_an_idempotency_key_that_is_in_flight_with_another_body_is_refused() -> None:
    async def story() -> None:
        dice = Sampling(pause=0.01)
        mark = {"idempotency-key": "k1"}
        replies = await asyncio.gather(*(dice.ask(mark, said=said) for said in ("Roll.", "Roll.", "Something else.")))
        assert [reply.status for reply in replies] == [200, 200, 422]
        assert len(dice.model.requests) == 1

    run(story)


def test_two_idempotency_keys_are_two_requests() -> None:
    async def story() -> None:
        dice = Sampling()
        replies = await asyncio.gather(*(dice.ask({"idempotency-key": key}) for key in ("a", "b", "a")))
        assert sorted(texts(replies)) in (
            ["Sample 1.", "Sample 1.", "Sample 2."],
            ["Sample 1.", "Sample 2.", "Sample 2."],
        )
        assert replies[0].ids == replies[2].ids != replies[1].ids

    run(story)


def test_an_idempotency_key_with_another_body_is_refused() -> None:
    async def story() -> None:
        dice = Sampling()
        await dice.ask({"idempotency-key": "k1"})
        reply = await dice.ask({"idempotency-key": "k1"}, said="Something else.")
        assert reply.status == 422
        assert "a different body" in reply.body["error"]["message"]

    run(story)


@pytest.mark.parametrize("calls", [0, 1, 2])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_parallel_attempts_of_one_client_ask_the_model_once(stream: bool, calls: int) -> None:
    async def story() -> None:
        dice = Sampling(pause=0.01, calls=calls)
        replies = await asyncio.gather(*(dice.ask({}, stream=stream) for _ in range(3)))
        assert texts(replies) == ["Sample 1."] * 3
        assert len({tuple(reply.ids) for reply in replies}) == 1
        assert len(dice.model.requests) == 1

    run(story)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_parallel_first_attempts_of_an_sdk_are_separate_samples(stream: bool) -> None:
    async def story() -> None:
        dice = Sampling(pause=0.01)
        first = {"x-stainless-retry-count": "0"}
        replies = await asyncio.gather(*(dice.ask(first, stream=stream) for _ in range(4)))
        assert sorted(texts(replies)) == [f"Sample {number}." for number in range(1, 5)]
        assert len({reply.ids[0] for reply in replies}) == 4
        keyed = await asyncio.gather(*(dice.ask({**first, "idempotency-key": "k1"}, stream=stream) for _ in range(4)))
        assert texts(keyed) == ["Sample 5."] * 4

    run(story)


@pytest.mark.parametrize("firsts", [1, 2])
def test_a_retry_waits_for_its_first_attempt_if_there_is_only_one(firsts: int) -> None:
    async def story() -> None:
        dice = Sampling(pause=0.01)
        marks = [*({"x-stainless-retry-count": "0"} for _ in range(firsts)), RETRY]
        *_, again = texts(await asyncio.gather(*map(dice.ask, marks)))
        assert again == ("Sample 1." if firsts == 1 else "Sample 3.")
        assert len(dice.model.requests) == (1 if firsts == 1 else 3)

    run(story)


def test_two_clients_with_the_same_request_at_the_same_time_get_separate_answers() -> None:
    async def story() -> None:
        dice = Sampling(pause=0.01)
        replies = await asyncio.gather(*(dice.ask({"User-Agent": f"serial {name}"}) for name in "ab"))
        assert sorted(texts(replies)) == ["Sample 1.", "Sample 2."]

    run(story)


def test_a_second_attempt_asks_the_model_if_the_first_fails() -> None:
    async def story() -> None:
        dice = Sampling(pause=0.01, fails=1)
        replies = await asyncio.gather(*(dice.ask({}) for _ in range(3)))
        assert sorted(reply.status for reply in replies) == [200, 200, 500]
        assert len(dice.model.requests) == 2

    run(story)


def test_a_retry_is_told_again_that_calls_of_an_earlier_turn_are_lost() -> None:
    async def story() -> None:
        async with stage("openai-chat", THREE_CALLS, THREE_CALLS, serial=True, hold_timeout=50.0) as on:
            client = on.client("openai-chat")
            await client.ask(User.of(QUESTION))
            on.clock.time += 51
            for reply in (await client.answer_calls(), await client.again()):
                assert reply.headers["x-unbroken-turn"] == "lost; expired; 2 calls, handed 1/3"

    run(story)


@pytest.mark.parametrize(
    ("headers", "retry"),
    [
        ({}, False),
        ({"x-stainless-retry-count": "0"}, False),
        ({"x-stainless-retry-count": "1"}, True),
        ({"x-stainless-retry-count": " 2 "}, True),
        ({"x-stainless-retry-count": ""}, False),
        ({"x-stainless-retry-count": "00"}, False),
        ({"x-stainless-retry-count": "-1"}, False),
        ({"x-stainless-retry-count": "abc"}, False),
    ],
)
def test_the_first_attempt_of_an_sdk_is_not_a_retry(headers: dict[str, str], retry: bool) -> None:
    assert read_attempt(headers, "127.0.0.1").retry is retry
