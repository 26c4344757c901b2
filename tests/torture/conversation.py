"""One client's conversation: its history as the client has it, and the unusual things that it does to it. No I/O here.

`Conversation.body` is what the client would send now; `take` adds an answer; the rest changes the history.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import count
from typing import Any, cast

from gateway_client import SAYS_ONE_CALL, Client

from torture.history import account_mark
from torture.plan import Habits
from unbroken_wires.messages import (
    Assistant,
    Message,
    Request,
    System,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    User,
)

Object = dict[str, Any]

TOOLS = tuple(
    ToolSpec(name, f"The tool {name}.", {"type": "object", "properties": {}}) for name in ("lookup", "pay", "whoami")
)
QUESTION, MORE = "Please pay my bills.", "And the next ones."


@dataclass(frozen=True, slots=True)
class Said:
    text: str


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer, by the number of its request."""

    number: str
    message: Assistant
    edited: bool = False
    id: str = ""
    """Of the response."""


@dataclass(frozen=True, slots=True)
class Results:
    given: tuple[tuple[ToolCall, str], ...]


Entry = Said | Heard | Results


@dataclass(slots=True)
class Conversation:
    name: str
    habits: Habits
    account: str
    key: str
    """A gateway key, which others share; empty for none."""
    entries: list[Entry] = field(default_factory=list[Entry])
    system_version: int = 0
    steps: Iterator[int] = field(default_factory=lambda: count(1))
    """Unique over all its branches, so that no two results are equal."""

    @classmethod
    def begin(cls, name: str, habits: Habits, key: str = "") -> Conversation:
        return cls(name, habits, account_mark(name), key, [Said(QUESTION)])

    def branch(self) -> Conversation:
        return replace(self, entries=list(self.entries))

    # What the client sends

    def client(self, url: str) -> Client:
        habits = self.habits
        parallel = False if habits.serial and habits.wire in SAYS_ONE_CALL else None
        headers = {"User-Agent": "serial client" if habits.serial else "other client"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        return Client(url, habits.wire, habits.stream, parallel, habits.alias, TOOLS, headers)

    def body(self, client: Client) -> Object:
        new = self._new()
        body = client.body(self._messages(new))
        if len(new) < len(self.entries):
            body["previous_response_id"] = cast("Heard", self.entries[-len(new) - 1]).id
        if self.habits.wire == "openai-chat" and self.habits.stream:
            body["stream_options"] = {"include_usage": True}
        return cast("Object", self._with_ids(body))

    def request(self) -> Request:
        """What `body` says, for clients that keep ids."""
        client = self.client("")
        return client.request(self._messages(self._new()))

    def _new(self) -> Sequence[Entry]:
        """What the client sends: everything, or what came after the response that it continues."""
        heard = [at for at, entry in enumerate(self.entries) if isinstance(entry, Heard)]
        return self.entries[heard[-1] + 1 :] if heard and self.habits.chained else self.entries

    def view(self) -> list[list[Any]]:
        """The history for the checker: who wrote what, answers by the number of their request."""
        view: list[list[Any]] = [["system", self.system_version]]
        for entry in self.entries:
            match entry:
                case Said(text):
                    view.append(["user", text])
                case Heard(number, _, edited):
                    view.append(["answer", number, edited])
                case Results(given):
                    view.append(["results", [text for _, text in given]])
        return view

    def _messages(self, entries: Sequence[Entry]) -> list[Message]:
        account = self.account if self.habits.account_in == "system" else "as I told you"
        messages: list[Message] = [System.of(f"You pay bills from account {account}. It is {self.system_version} h.")]
        for entry in entries:
            match entry:
                case Said(text):
                    messages.append(User.of(text))
                case Heard(_, message):
                    messages.append(message if self.habits.keeps_reasoning else Assistant(message.text, message.calls))
                case Results(given):
                    results = [ToolResult(call.id, (Text(text),), name=call.name) for call, text in given]
                    messages.append(ToolMessage(tuple(results)))
        return messages

    def _with_ids(self, body: Any) -> Any:
        match self.habits.ids:
            case "keep":
                return body
            case "drop":
                return _without_ids(body)
            case _:
                ids = {call.id for entry in self.entries if isinstance(entry, Heard) for call in entry.message.calls}
                part = self.habits.ids == "rewrite part"
                return _renamed(
                    body, {id: _own_id(id) for id in ids if id and not (part and _own_id(id)[-1] in "02468ace")}
                )

    # What comes back

    @property
    def last(self) -> Entry:
        return self.entries[-1]

    def take(self, number: str, message: Assistant, id: str) -> None:
        self.entries.append(Heard(number, message, id=id))

    # What the client does next

    def answer_calls(self, error: bool = False) -> None:
        """The results of the calls of the last answer."""
        last = self.entries[-1]
        assert isinstance(last, Heard)
        self.entries.append(Results(tuple((call, self._result(call, error)) for call in last.message.calls)))

    def _result(self, call: ToolCall, error: bool) -> str:
        what = (call.arguments or {}).get("ref", call.name)
        return f"{'Error: ' if error else ''}Result of {what} for {self.account}, number {next(self.steps)}."

    def say(self, text: str) -> None:
        self.entries.append(Said(text))

    def drop_last_answer(self) -> None:
        if isinstance(self.entries[-1], Heard):
            self.entries.pop()

    def go_back(self, dice: random.Random) -> None:
        """Back to an earlier point at which the model was to answer."""
        places = [at for at, entry in enumerate(self.entries) if isinstance(entry, Heard) and at]
        if places:
            del self.entries[dice.choice(places) :]

    def compact(self, dice: random.Random, summary: bool) -> None:
        """A summary, or nothing, instead of the oldest messages."""
        places = [at for at, entry in enumerate(self.entries) if at and not isinstance(entry, Results)]
        if places:
            text = "Summary: some bills are paid." if summary else "And my bills?"
            self.entries[: dice.choice(places)] = [Said(f"{text} ({next(self.steps)})")]

    def edit(self, dice: random.Random) -> None:
        """Changes a result, a call or a text."""
        at = dice.randrange(len(self.entries))
        match self.entries[at]:
            case Results(given) if given:
                call, _ = given[0]
                self.entries[at] = Results(((call, self._result(call, error=True)), *given[1:]))
            case Heard(number, message) if message.calls and dice.random() < 0.5:
                call = replace(message.calls[0], arguments={"edited": next(self.steps)}, raw="")
                edited = replace(message, calls=(call, *message.calls[1:]), native=None)
                self.entries[at] = Heard(number, edited, edited=True)
            case Heard(number, message) if message.text:
                edited = replace(message, text=f"Edited {next(self.steps)}.", native=None)
                self.entries[at] = Heard(number, edited, edited=True)
            case _:
                pass


def _own_id(id: str) -> str:
    return f"own_{blake2b(id.encode(), digest_size=5).hexdigest()}"


def _renamed(value: Any, names: dict[str, str]) -> Any:
    return _mapped(value, lambda text: names.get(text, text))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {name: _mapped(item, change) for name, item in cast("Object", value).items()}
    if isinstance(value, list):
        return [_mapped(item, change) for item in cast("list[Any]", value)]
    return change(value) if isinstance(value, str) else value


def _without_ids(value: Any) -> Any:
    """As clients of Gemini without ids send it."""
    if isinstance(value, list):
        return [_without_ids(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields: Object = {name: _without_ids(item) for name, item in cast("Object", value).items()}
    for name in ("functionCall", "functionResponse"):
        if isinstance(fields.get(name), dict):
            fields[name].pop("id", None)
    return fields
