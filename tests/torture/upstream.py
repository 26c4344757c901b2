"""The model of the torture test: a scripted provider of all four wires in a separate process.

Its answer depends on the request alone: how many calls, whether it thinks, the ids by the name of the model. Private
parts (the later calls, reasoning, signatures) carry the account of the conversation and the mark of the answer; the
first calls and most texts are the same for everybody. Each answer reports its number as its input tokens, so that the
checker knows which one a client got.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from pathlib import Path
from typing import Any, cast

from aiohttp import web
from child_processes import Tell

from torture.history import ACCOUNT, History, turn_mark
from unbroken.models.scripted import Step, play_bytes
from unbroken_testing import Call, Pause, Say, ScriptedServer, Think, Uses, check_request
from unbroken_testing.scenario import Chunks, Reply, Sent
from unbroken_wires.messages import Assistant, Request

Object = dict[str, Any]

ID_STYLES = ("counted", "short", "uuid", "anthropic", "none")
"""How a model spells the ids of its calls; the name of the model ends with one of these."""
FIRST_NUMBER = 1000
"""Of an answer: larger than any number of tokens that the gateway would make up."""
OUTPUT = 7
"""The output tokens of each answer."""
LOOK = ("lookup", {"what": "bills"})
"""The call that most conversations begin with."""


class Model(ScriptedServer):
    def __init__(self, seed: str, history: History) -> None:
        super().__init__(strict=True)
        self._seed = seed
        self._history = history
        self._first = FIRST_NUMBER

    def _check(self, wire: str, request: Request, body: Object) -> None:
        if problems := check_request(wire, body):
            self._history.write("refused", wire=wire, body=body, problems=problems)
        super()._check(wire, request, body)

    def _reply(self, sent: Sent, request: Request, http: web.Request) -> Reply:
        body = self.bodies[sent.number]
        number = self._first + sent.number
        accounts = ACCOUNT.findall(json.dumps(body))
        account = accounts[0] if accounts else ""
        mark = turn_mark(self._seed, number)
        steps = speak(request, account, mark, number, self._seed)
        calls = [step for step in steps if isinstance(step, Call)]
        self._history.write(
            "turn",
            number=number,
            mark=mark,
            account=account,
            wire=sent.wire,
            body=body,
            text="".join(step.text for step in steps if isinstance(step, Say)),
            calls=[[call.name, json.loads(call.raw)] for call in calls],
        )
        chunks = signed(play_bytes(self._paced(steps), sent.wire, request), mark)
        # What was kept for tests to look at is in the history now.
        self.bodies[sent.number] = {}
        self.requests[sent.number] = Request(())
        return self._framed(chunks, request.stream, sent, http)

    def _paced(self, steps: list[Step]) -> list[Step]:
        return steps


def speak(request: Request, account: str, mark: str, number: int, seed: str) -> list[Step]:
    """An answer to this request."""
    said = sum(isinstance(message, Assistant) for message in request.messages)
    dice = random.Random(f"{seed}/{account}/{said}")  # the same form each time, whatever is asked
    steps: list[Step] = [Pause(random.Random(number).choice([0.0, 0.0, 0.02, 0.1]))]
    if dice.random() < 0.6:
        steps.append(Think(f"Private thought {mark} about {account}."))
    count = dice.choice([1, 2, 3, 3, 3, 4]) if said < 4 or dice.random() < 0.6 else 0
    if not count:
        return [*steps, Say(f"All is paid for {account or 'you'}."), Uses(number, OUTPUT)]
    text = dice.choice(["Let me look.", "Let me look.", "", f"Looking, {mark}."])
    steps += [Say(text)] if text else []
    style = request.model.rpartition("-")[2]
    shared = dice.choice([1, 1, 2])
    for at in range(count):
        name, arguments = _call(account, mark, at, shared)
        steps.append(Call(name, arguments, id=_id(style, at)))
    return [*steps, Uses(number, OUTPUT)]


def _call(account: str, mark: str, at: int, shared: int) -> tuple[str, Object]:
    if not account:
        return ("whoami", {}) if at == 0 else ("pay", {"from_account": "unknown", "ref": f"{mark}.{at}"})
    return LOOK if at < shared else ("pay", {"from_account": account, "ref": f"{mark}.{at}"})


def _id(style: str, at: int) -> str:
    match style:
        case "counted":
            return f"call_{at}"
        case "short":
            return f"call_{uuid.uuid4().hex[:8]}"
        case "uuid":
            return str(uuid.uuid4())
        case "anthropic":
            return f"toolu_01{uuid.uuid4().hex[:22]}"
        case _:
            return ""


def signed(chunks: Chunks, mark: str) -> Chunks:
    """The same bytes with what a provider signs or encrypts: the mark stands for it, and in every id of the answer."""
    for pause, data in chunks:
        events = data.split(b"\n\n")
        yield pause, b"\n\n".join(_signed_event(event, mark) for event in events)


def _signed_event(event: bytes, mark: str) -> bytes:
    head, found, text = event.rpartition(b"data: ") if b"data: " in event else (b"", b"", event)
    try:
        value = json.loads(text)
    except ValueError:
        return event
    return head + found + json.dumps(_sign(value, mark)).encode()


def _sign(value: Any, mark: str) -> Any:
    if isinstance(value, list):
        return [_sign(item, mark) for item in cast("list[Any]", value)]
    if isinstance(value, str):
        return f"{value.partition('scripted-')[0]}{mark}{value[-2:]}" if "scripted-" in value else value
    if not isinstance(value, dict):
        return value
    fields: Object = {name: _sign(item, mark) for name, item in cast("Object", value).items()}
    if fields.get("type") == "reasoning":
        fields["encrypted_content"] = mark
    if "functionCall" in fields:
        fields["thoughtSignature"] = mark
    if fields.get("signature"):
        fields["signature"] = mark
    return fields


def run(tell: Tell, seed: str, path: str) -> None:
    """Reports its address, and serves until it is killed."""
    asyncio.run(_serve(tell, seed, path))


async def _serve(tell: Tell, seed: str, path: str) -> None:
    async with Model(seed, History(Path(path))) as server:
        tell(server.url)
        await asyncio.get_running_loop().create_future()
