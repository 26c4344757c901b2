"""Clients: each holds one conversation after another through the gateways until its time is over. They fill a process
of the torture test, or the simulation (`simulation`), where time is virtual and a request is a call.

A client retries like SDKs: if there was no answer, or one that means "later", it sends the request again, byte for
byte. Everything that it sends and gets goes into its history.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from child_processes import Tell
from gateway_client import Client
from gateway_readers import read

from torture.conversation import MORE, Conversation, Heard
from torture.history import History
from torture.plan import Habits, draw_habits
from unbroken.errors import UnbrokenError
from unbroken_wires.decoding import Decoder
from unbroken_wires.decoding.decoder import Response
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.jsontext import dumps

PATIENCE = 45.0
"""Seconds for one request; no fault lasts nearly as long."""
LEFT = "left"
"""The problem of a request whose client did not wait for the answer."""
STAYING = 14.0
"""The most seconds that such a client waits."""
TRIES = 8
"""Of one request after the last fault is healed, before its client gives up."""
LATER = (408, 409, 425, 429, 500, 502, 503, 504, 529)
"""What SDKs retry."""
RETRIED = {"x-stainless-retry-count": "1"}
STEPS = 14
"""The most requests of one conversation, retries not counted."""


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """What a process of clients does."""

    name: str
    seed: str
    gateways: list[str]
    keys: list[str]
    seconds: float
    """From its start, after which nothing new begins; infinite: when there is a file `until`."""
    crowd: int
    """Conversations at a time."""
    history: str
    hold_timeout: float
    steps: int = STEPS
    alias: str = ""
    """The only model; empty: each conversation draws one."""
    until: str = ""
    patience: float = PATIENCE
    leaving: float = 0.0
    """The part of the requests whose client closes the connection before it has the answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, all of it; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class NoAnswer(Exception):
    """The connection was refused or broke off; or `timeout`."""


Post = Callable[[Conversation, int, Client, bytes, Mapping[str, str]], Awaitable[Answer]]
"""Sends a body to the gateway with this number, with these additional headers. Raises `NoAnswer`."""


class Writes(Protocol):
    def write(self, op: str, **fields: Any) -> None: ...


class Crowd:
    def __init__(self, plan: ClientPlan, post: Post, history: Writes, now: Callable[[], float] = time.time) -> None:
        self.until = now() + plan.seconds
        self.now = now
        self._plan = plan
        self._post = post
        self._history = history
        self._conversations = 0
        self._requests = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.crowd):
                group.create_task(self._talk())

    async def _talk(self) -> None:
        while self.now() < self.until:
            await self.hold_conversation()

    async def hold_conversation(self) -> None:
        """One more, from its first request to its end."""
        self._conversations += 1
        name = f"{self._plan.name}.{self._conversations}"
        dice = random.Random(f"{self._plan.seed}/{name}")
        habits = draw_habits(dice)
        if self._plan.alias:
            habits = replace(habits, alias=self._plan.alias)
        key = dice.choice(self._plan.keys) if self._plan.keys else ""
        conversation = Conversation.begin(name, habits, key)
        self._history.write("start", conversation=name, account=conversation.account, habits=habits.to_json())
        ending = await _Talk(self, conversation, dice, self._plan).run()
        self._history.write("end", conversation=name, ending=ending)

    async def ask(self, conversation: Conversation, kind: str, gateway: int, marks: Mapping[str, str]) -> Outcome:
        """One HTTP request."""
        self._requests += 1
        number = f"{self._plan.name}.{self._requests}"
        client = conversation.client(self._plan.gateways[gateway])
        body = conversation.body(client)
        data = dumps(body)
        self._history.write(
            "invoke",
            conversation=conversation.name,
            request=number,
            kind=kind,
            gateway=gateway,
            marks=marks,
            view=conversation.view(),
            body=data.decode(),
        )
        try:
            http = await self._post(conversation, gateway, client, data, marks)
        except NoAnswer as error:
            self._history.write("info", conversation=conversation.name, request=number, problem=str(error))
            return Outcome(number, 0)
        raw = http.data
        seen = {
            name: value
            for name, value in http.headers.items()
            if name.startswith("x-unbroken") or name == "retry-after"
        }
        told: dict[str, Any] = {"conversation": conversation.name, "request": number, "headers": seen}
        if http.status != 200:
            self._history.write("fail", **told, status=http.status, data=raw.decode("utf-8", "replace"))
            return Outcome(number, http.status)
        response = _decoded(conversation, body, raw)
        if response is None or not response.verdict.whole:
            problem = "cannot be read" if response is None else response.verdict.reason
            self._history.write("info", **told, problem=problem, data=raw.decode("utf-8", "replace"))
            return Outcome(number, 0)
        self._history.write("ok", **told, **_heard(conversation.habits, response, raw))
        return Outcome(number, 200, response, _first_id(raw))


@dataclass(frozen=True, slots=True)
class Outcome:
    number: str
    status: int
    """0: no answer, or one that broke off."""
    response: Response | None = None
    id: str = ""
    """Of the response, for clients that continue from it."""


def _decoded(conversation: Conversation, body: dict[str, Any], raw: bytes) -> Response | None:
    wire, ids = conversation.habits.wire, conversation.habits.ids
    # A client that keeps ids knows what it has sent without reading its own body, which takes long.
    asked = conversation.request() if ids == "keep" else find_wire(wire).decode_request(body)
    decoder = Decoder(wire, None, asked)
    try:
        decoder.feed(raw)
    except UnbrokenError:
        return None
    return decoder.response()


def _first_id(raw: bytes) -> str:
    found = re.search(rb'"id"\s*:\s*"([^"]+)"', raw)
    return found[1].decode() if found else ""


def _heard(habits: Habits, response: Response, raw: bytes) -> dict[str, Any]:
    malformed = ""
    try:
        read(habits.wire, raw, habits.stream)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        malformed = f"{type(error).__name__}: {error}"
    return {
        "text": response.text,
        "calls": [[call.name, call.arguments] for call in response.calls],
        "ids": [call.id for call in response.calls],
        "answer": response.usage.input_tokens if response.usage is not None else 0,
        "malformed": malformed,
        "data": raw.decode("utf-8", "replace"),
    }


class _Talk:
    """One conversation, and what its client does from answer to answer."""

    def __init__(self, crowd: Crowd, conversation: Conversation, dice: random.Random, plan: ClientPlan) -> None:
        self._crowd = crowd
        self._talk = conversation
        self._dice = dice
        self._hold_timeout = plan.hold_timeout
        self._steps = plan.steps
        self._gateway = dice.randrange(len(plan.gateways))
        self._gateways = len(plan.gateways)
        self._branches: list[Conversation] = []

    async def run(self) -> str:
        """How it ended."""
        kind = "answer"
        for _ in range(self._steps):
            if not await self._send(kind):
                return "gave up"
            kind = await self._next()
            if not kind:
                return "finished"
        return "finished"

    async def _send(self, kind: str) -> bool:
        """Retries included."""
        talk, habits = self._talk, self._talk.habits
        key = {"idempotency-key": f"{self._dice.getrandbits(64):x}"} if habits.retry == "key" else {}
        tries = 0
        for number in count():
            again = {"x-stainless-retry-count": str(number)} if habits.retry == "header" else {}
            asking = self._crowd.ask(talk, kind if not number else "retry", self._next_gateway(), key | again)
            if kind == "twice" and not number:  # the first is abandoned too early: both are in flight
                outcome, _ = await asyncio.gather(self._crowd.ask(talk, "retry", self._gateway, key | RETRIED), asking)
            else:
                outcome = await asking
            if outcome.response is not None:
                talk.take(outcome.number, outcome.response.message, outcome.id)
                return True
            if outcome.status and outcome.status not in LATER:
                return False
            tries += self._crowd.now() > self._crowd.until
            if tries > TRIES:
                return False
            await asyncio.sleep(min(0.1 * 2**number, 2.0))
        raise AssertionError

    def _next_gateway(self) -> int:
        match self._talk.habits.gateways:
            case "alternate":
                self._gateway = (self._gateway + 1) % self._gateways
            case "any":
                self._gateway = self._dice.randrange(self._gateways)
            case "one":
                pass
        return self._gateway

    async def _next(self) -> str:
        """Changes the history to what is sent next; empty if there is nothing more to send."""
        talk, dice = self._talk, self._dice
        last = talk.last
        assert isinstance(last, Heard)
        if self._crowd.now() > self._crowd.until and not last.message.calls:
            return ""
        acts = CHAINED if talk.habits.chained else WILD
        act = dice.choice(acts) if talk.habits.wild and self._crowd.now() < self._crowd.until else "answer"
        return await self._act(act, last)

    async def _act(self, act: str, last: Heard) -> str:
        talk, dice = self._talk, self._dice
        match act:
            case "regenerate" | "retry" | "twice":
                talk.drop_last_answer()
                return act
            case "branch":
                self._branches.append(talk.branch())
            case "switch" if self._branches:
                self._branches.append(talk.branch())
                self._talk = self._branches.pop(dice.randrange(len(self._branches)))
                return await self._act("answer", _last_answer(self._talk))
            case "back":
                talk.go_back(dice)
                if not isinstance(talk.last, Heard):
                    return act
            case "interrupt":
                talk.say("Wait, stop.")
                return act
            case "late" if self._hold_timeout < 60:
                await asyncio.sleep(self._hold_timeout + 0.3)
            case "system":
                talk.system_version += 1
            case _:
                pass
        if last.message.calls:
            talk.answer_calls(error=act == "error")
        else:
            talk.say(MORE)
        if act == "edit":
            talk.edit(dice)
        elif act in ("compact", "trim"):
            talk.compact(dice, act == "compact")
        return act


WILD = (
    *["answer"] * 12,
    "regenerate",
    "retry",
    "twice",
    "branch",
    "switch",
    "back",
    "interrupt",
    "late",
    "late",
    "system",
    "error",
    "edit",
    "compact",
    "trim",
)


CHAINED = (*["answer"] * 8, "regenerate", "retry", "twice", "branch", "switch", "back", "late", "system", "error")
"""What a client that sends only what is new can do."""


def _last_answer(talk: Conversation) -> Heard:
    last = talk.last
    assert isinstance(last, Heard)
    return last


def run(tell: Tell, plan: ClientPlan) -> None:
    """Reports when it begins."""
    asyncio.run(_hold_conversations(tell, plan))


async def _hold_conversations(tell: Tell, plan: ClientPlan) -> None:
    timeout = aiohttp.ClientTimeout(total=plan.patience)
    dice = random.Random(f"{plan.seed}/{plan.name}/leaving")
    connector = aiohttp.TCPConnector(limit=0)  # aiohttp's own limit is 100, and the others wait
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def post(
            conversation: Conversation, gateway: int, client: Client, data: bytes, marks: Mapping[str, str]
        ) -> Answer:
            path, query = client.path()
            headers = {**client.headers, **marks}
            stays = dice.uniform(0.0, STAYING) if dice.random() < plan.leaving else None
            asking = session.post(f"{client.url}{path}?{query}", data=data, headers=headers)
            try:
                async with asyncio.timeout(stays), asking as http:
                    raw = await http.read()
            except TimeoutError:
                raise NoAnswer("timeout" if stays is None else LEFT) from None
            except (aiohttp.ClientError, OSError) as error:
                raise NoAnswer(f"{type(error).__name__}: {error}") from None
            return Answer(http.status, {name.lower(): value for name, value in http.headers.items()}, raw)

        tell("begun")
        crowd = Crowd(plan, post, History(Path(plan.history)))
        async with asyncio.TaskGroup() as group:
            group.create_task(crowd.run())
            while plan.until and crowd.until == inf:
                await asyncio.sleep(0.2)
                crowd.until = crowd.now() if Path(plan.until).exists() else inf
