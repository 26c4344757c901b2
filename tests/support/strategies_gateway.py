"""Random conversations of a client with a gateway, and their expected outcome.

A `Talk` is a client with every bad habit: it answers, retries, reorders, drops, edits, compacts, goes back, branches,
is late, and meets another replica or a restarted gateway. Next to it is a reference: it derives the expected next
answer from the client's own history and from the model's answers, without any code of the gateway. `Talk.act` compares
the two, and checks each history that reaches the model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from gateway_client import RETRY, SAYS_ONE_CALL, WEATHER, Client, Clock, Inside, Reply
from hypothesis import strategies as st

from unbroken_gateway.turns.serial import SPOKEN
from unbroken_testing import Call, Say, Step, Think, check_request
from unbroken_wires.messages import Assistant, Json, Message, Request, Text, ToolCall, ToolMessage, ToolResult, User
from unbroken_wires.wires import WIRES, find_wire

Object = dict[str, Any]

ODD = {
    "openai-chat": ":.+",
    "openai-responses": "." + "x" * 30,
    "anthropic-messages": "q7Zp2mX91a" * 9,
    "gemini": "/" * 150,
    "ollama": "/" * 60,
    "cohere-v2": ":.+",
    "bedrock-converse": "q7Zp2mX91a" * 3,
}
"""Suffixes of ids that one wire accepts and others refuse."""
HOLD = 100.0
"""Seconds that a call is waited for."""

# Random choices


@dataclass(frozen=True, slots=True)
class Habits:
    client: str
    upstream: str
    stream: bool
    serial: bool
    ids: str
    """How the model writes ids: `telling`, `odd` (other wires refuse them), `counted` (from 0 in each answer)."""
    rewrites_ids: bool
    strips_text: bool
    alike: bool
    """All turns of the model begin with the same call."""
    retries: bool
    """The same request again gets the same held answer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An answer of the model."""

    calls: int
    words: bool
    thinks: bool
    twins: bool
    """All its calls are the same."""


ACTIONS = (
    *["answer"] * 8,
    "again",
    "interrupt",
    "beside",
    "belated",
    "late",
    "several",
    "drop",
    "edit_call",
    "edit_words",
    "edit_result",
    "compact",
    "back",
    "branch",
    "switch",
    "restart",
    "replica",
)
Action = tuple[str, int]

ACTIONS_DRAWN = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 999)), min_size=12, max_size=40)
PLANS = st.lists(
    st.builds(
        Plan,
        st.sampled_from([0, 1, 2, 3, 3, 4, 5]),
        st.booleans(),
        st.booleans(),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=8,
)


@st.composite
def habits(draw: st.DrawFn) -> Habits:
    ids = draw(st.sampled_from(["telling", "telling", "odd", "counted"]))
    rewrites = draw(st.sampled_from([False, False, True]))
    drawn = Habits(
        draw(st.sampled_from(list(WIRES))),
        draw(st.sampled_from(list(WIRES))),
        draw(st.booleans()),
        draw(st.sampled_from([True, True, True, False])),
        ids,
        rewrites,
        draw(st.sampled_from([False, False, True])),
        draw(st.booleans()),
        draw(st.booleans()),
    )
    # Histories that are equal except for their ids can only be distinguished by unique ids.
    return drawn if ids != "counted" and not rewrites else replace(drawn, alike=False)


# The model's answers, and what the client has of them


@dataclass(slots=True)
class Said:
    """A turn of the model."""

    number: int
    calls: list[Object]
    """Their arguments."""
    text: str
    signed: bool
    """It has reasoning that its own wire requires, and that no other wire can express."""
    held: bool = False
    before: tuple[Any, ...] = ()
    """The client's complete history when it got the first part of the turn, and that part."""
    until: float = 0.0
    closed: bool = False
    unsure: bool = False
    """It was changed while it was waited for: the reference does not define whether its rest was reported as "not
    run"."""
    ids: dict[int, str] = field(default_factory=dict[int, str])
    """Those that the client was given."""


@dataclass(frozen=True, slots=True)
class Words:
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """An answer as the client has it: of which turn, and which of its calls."""

    said: int
    positions: tuple[int, ...]
    calls: tuple[ToolCall, ...]
    marks: tuple[str, ...]
    """For each call a unique mark: ids may repeat."""
    text: str
    edited: bool = False


@dataclass(frozen=True, slots=True)
class Results:
    """`told`: the mark of each call, and a unique result text. `words` are next to them."""

    told: tuple[tuple[str, str], ...]
    words: str = ""


Entry = Words | Part | Results
History = list[Entry]


class Upstream(Protocol):
    """Where the model's requests are kept: a `ScriptedModel` or a `ScriptedServer`."""

    bodies: list[Object]


class Talk:
    """`gateways` are replicas with the same store, `reopen` restarts one of them."""

    def __init__(self, habits: Habits, plans: Sequence[Plan], clock: Clock) -> None:
        self.habits = habits
        self.upstream: Upstream
        self.gateways: list[str | Inside] = []
        self.reopen: Callable[[int], Awaitable[str | Inside]]
        self._plans = plans
        self._clock = clock
        self._said: list[Said] = []
        self._branches: list[History] = [[]]
        self._at = 0
        self._replica = 0
        self._counter = 0
        self._ids: dict[str, str] = {}
        """As they came, by the marks of the calls."""
        self._answered: dict[bytes, Said] = {}
        """Requests that were answered with a held turn, byte for byte."""

    # The model

    def speak(self, request: Request) -> list[str | Step]:
        number = len(self._said)
        plan = self._plans[number % len(self._plans)]
        name = "" if self.habits.alike else f"{number}."
        calls: list[Object] = [{"city": f"{name}{0 if plan.twins else at}"} for at in range(plan.calls)]
        if self.habits.alike and plan.calls > 1 and not plan.twins:
            calls[1] = {"city": f"other {number}"}
        text = f"Words {number}." if plan.words or not calls else ""
        signed = plan.thinks and self.habits.upstream == "anthropic-messages"
        self._said.append(Said(number, calls, text, signed))
        thought: list[str | Step] = [Think(f"Thought {number}.")] if plan.thinks else []
        said: list[str | Step] = [Say(text)] if text else []
        return [
            *thought,
            *said,
            *(Call("get_weather", call, id=self._spelled(number, at)) for at, call in enumerate(calls)),
        ]

    def _spelled(self, number: int, at: int) -> str:
        match self.habits.ids:
            case "telling":
                return f"call_{number}Xk{at}q7Zp2mX91aKd"
            case "odd":
                return f"call_{number}Xk{at}q7Zp2mX91aKd{ODD[self.habits.upstream]}"
            case _:
                return f"call_{at}"

    # The client

    @property
    def _history(self) -> History:
        return self._branches[self._at]

    @_history.setter
    def _history(self, history: History) -> None:
        self._branches[self._at] = history

    def _token(self) -> str:
        self._counter += 1
        return f"#{self._counter}#"

    def _messages(self, history: History) -> list[Message]:
        names: dict[str, str] = {}
        messages: list[Message] = []

        for entry in history:
            match entry:
                case Words(text):
                    messages.append(User.of(text))
                case Part():
                    for mark, call in zip(entry.marks, entry.calls, strict=True):
                        names[mark] = f"own{len(names)}" if self.habits.rewrites_ids else call.id
                    calls = [replace(call, id=names[mark]) for mark, call in zip(entry.marks, entry.calls, strict=True)]
                    messages.append(Assistant(self._sent_text(entry), tuple(calls)))
                case Results():
                    told = [
                        ToolResult(names.get(mark, mark), (Text(text),), name="get_weather")
                        for mark, text in entry.told
                    ]
                    messages.append(ToolMessage(tuple(told)))
                    if entry.words:
                        messages.append(User.of(entry.words))
        return messages

    def _sent_text(self, part: Part) -> str:
        return "" if self.habits.strips_text and part.calls else part.text

    def _signature(self, history: History) -> tuple[Any, ...]:
        """All of its content, without ids."""
        said: list[Any] = []
        for entry in history:
            match entry:
                case Words(text):
                    said.append(text)
                case Part():
                    said.append((self._sent_text(entry), [call.arguments for call in entry.calls]))
                case Results():
                    said += [("result", text) for _, text in entry.told]
                    said += [entry.words] if entry.words else []
        return tuple(said)

    # The reference

    def _run(self, history: History, at: int) -> range:
        """The positions of the consecutive parts of the turn that the part at `at` belongs to."""
        said = _part(history, at).said
        start = at
        for before in range(at - 1, -1, -1):
            entry = history[before]
            if isinstance(entry, Part):
                if entry.said != said:
                    break
                start = before
        return range(start, at + 1)

    def _is_found(self, history: History, run: range) -> bool:
        """Whether the gateway can recognise this turn."""
        first = _part(history, run.start)
        said = self._said[first.said]
        if any(isinstance(entry, Part) and entry.said == said.number and entry.edited for entry in history):
            return False
        if self._tells:
            return True
        return self._signature(history[: run.start + 1]) == said.before

    @property
    def _tells(self) -> bool:
        """Whether a turn is recognised by the ids of its calls. In serial mode the gateway assigns such ids."""
        return (self.habits.ids != "counted" or self.habits.serial) and not self.habits.rewrites_ids

    def _present(self, history: History, run: range) -> list[int]:
        parts = [history[at] for at in run]
        return sorted(at for part in parts if isinstance(part, Part) for at in part.positions)

    def _expected(self, history: History) -> tuple[Said, int] | None:
        """The held call that comes next; None if the model is asked."""
        last = max((at for at, entry in enumerate(history) if isinstance(entry, Part)), default=-1)
        end = history[-1]
        if last < 0 or not isinstance(end, Results):
            return None
        spoken = end.words or any(isinstance(entry, Words) for entry in history[last:])
        if spoken and self._words_interrupt:
            return None
        run = self._run(history, last)
        said = self._said[_part(history, last).said]
        if not said.held or not self._is_found(history, run) or self._clock() > said.until:
            return None
        given = {mark for entry in history[run.start :] if isinstance(entry, Results) for mark, _ in entry.told}
        present = self._present(history, run)
        marks = [mark for at in run if isinstance(part := history[at], Part) for mark in part.marks]
        if not given.issuperset(marks) or present[-1] + 1 == len(said.calls):
            return None
        return said, present[-1] + 1

    @property
    def _words_interrupt(self) -> bool:
        """A separate message; other wires have them in the message of the result."""
        return self.habits.client not in ("anthropic-messages", "gemini", "bedrock-converse")

    # One request

    async def _send(self) -> None:
        history = self._history
        while history and isinstance(history[-1], Part):
            del history[-1]
        if not history:
            history.append(Words(f"Question {self._token()}"))
        client = self._client()
        body = client.body(self._messages(history))
        if not self._words_interrupt:
            body = in_one_message(body)
        data = repr(body).encode()
        expected = self._expected(history)
        repeated = self._answered_before(data) if expected is None else None
        asked = len(self.upstream.bodies)
        reply = await client.post(body, **(RETRY if data in self._answered else {}))
        assert reply.status == 200, reply.data
        assert reply.response.verdict.whole, reply.response.verdict
        if expected is None:
            self._close_interrupted(history)
        if expected is not None or repeated is not None:
            said, position = expected or (repeated or self._said[-1], 0)
            assert len(self.upstream.bodies) == asked, "the model was asked for a call that is held"
            self._take_held(reply, said, position)
        else:
            assert len(self.upstream.bodies) == asked + 1, f"handed out: {reply.calls}"
            self._check_asked(history, self.upstream.bodies[-1])
            self._take_answer(reply, data)

    def _answered_before(self, data: bytes) -> Said | None:
        """The turn with which this exact request was answered, if its calls are still waited for."""
        said = self._answered.get(data) if self.habits.retries else None
        return said if said is not None and self._clock() <= said.until else None

    def _client(self) -> Client:
        serial = self.habits.serial
        parallel = False if serial and self.habits.client in SAYS_ONE_CALL else None
        headers = {"User-Agent": "serial" if serial else "parallel"}
        gateway = self.gateways[self._replica % len(self.gateways)]
        return Client(gateway, self.habits.client, self.habits.stream, parallel, tools=(WEATHER,), headers=headers)

    def _take_held(self, reply: Reply, said: Said, position: int) -> None:
        (call,) = reply.response.calls
        assert call.arguments == said.calls[position]
        assert reply.response.text == (said.text if position == 0 else "")
        assert reply.headers["x-unbroken-turn"].endswith(f"handed {position + 1}/{len(said.calls)}")
        said.until = self._clock() + HOLD
        self._take(said, (position,), reply)

    def _take_answer(self, reply: Reply, data: bytes) -> None:
        said = self._said[-1]
        said.held = self.habits.serial and len(said.calls) > 1
        given = said.calls[:1] if self.habits.serial else said.calls
        assert [call.arguments for call in reply.response.calls] == given
        assert reply.response.text == said.text
        if said.held:
            said.until = self._clock() + HOLD
            self._answered[data] = said
        said.before = (*self._signature(self._history), (said.text, given))
        self._take(said, tuple(range(len(given))), reply)

    def _take(self, said: Said, positions: tuple[int, ...], reply: Reply) -> None:
        for at, call in zip(positions, reply.response.calls, strict=True):
            assert said.ids.setdefault(at, call.id) == call.id, "a call has another id than before"
        marks = tuple(self._token() for _ in positions)
        self._ids |= zip(marks, reply.ids, strict=True)
        self._history.append(Part(said.number, positions, reply.response.calls, marks, reply.response.text))

    def _close_interrupted(self, history: History) -> None:
        for entry in history:
            if isinstance(entry, Part) and entry.edited:
                self._said[entry.said].unsure = True
        for run, said in self._turns(history):
            if said.held and self._present(history, run)[-1] + 1 < len(said.calls) and self._clock() <= said.until:
                said.closed = True

    def _turns(self, history: History) -> list[tuple[range, Said]]:
        """The turns that the gateway can recognise."""
        runs: list[range] = []
        at = len(history) - 1
        while at >= 0:
            if isinstance(history[at], Part):
                runs.insert(0, self._run(history, at))
                at = runs[0].start
            at -= 1
        return [(run, self._said[_part(history, run.start).said]) for run in runs if self._is_found(history, run)]

    # What reached the model

    def _check_asked(self, history: History, body: Object) -> None:
        wire = self.habits.upstream
        assert check_request(wire, body) == []
        messages = find_wire(wire).decode_request(body).messages
        pairs = _pairs(messages)
        told = [pair for turn in pairs for pair in turn]
        # No text is lost, and it keeps its order. Some wires have one text in a message, with a line for each.
        words = [text for entry in history for text in _words(entry)]
        users = [message for message in messages if isinstance(message, User)]
        sent = [
            line for user in users for part in user.parts if isinstance(part, Text) for line in part.text.split("\n")
        ]
        assert sent == words
        # No result is lost, and each is next to its own call.
        parts = [entry for entry in history if isinstance(entry, Part)]
        calls = {mark: call for part in parts for mark, call in zip(part.marks, part.calls, strict=True)}
        for mark, text in self._sent_results(history):
            assert [pair for pair in told if pair[1] == text] == [(calls[mark].arguments, text)], (text, pairs)
        # A recognised turn is one message, with its calls in the model's order.
        for run, said in self._turns(history):
            expected = self._present(history, run)
            if said.unsure and self._clock() > said.until:
                continue
            if said.held and (said.closed or self._clock() <= said.until):
                expected += range(expected[-1] + 1, len(said.calls))
            if not expected:
                continue
            rest = expected[len(self._present(history, run)) :]
            results = dict.fromkeys(rest, SPOKEN) | self._results_of(history, run)
            wanted = [(said.calls[at], results.get(at)) for at in expected]
            assert any(_fits(turn, wanted) for turn in pairs), (wanted, pairs)
            if said.signed and len(wanted) == len(said.calls) and self._text_of(history, run) in ("", said.text):
                assert f"Thought {said.number}." in repr(body), "what the model signed was not put back"

    def _text_of(self, history: History, run: range) -> str:
        return "".join(self._sent_text(part) for at in run if isinstance(part := history[at], Part))

    def _results_of(self, history: History, run: range) -> dict[int, str]:
        places = {
            mark: at
            for part in (history[at] for at in run)
            if isinstance(part, Part)
            for mark, at in zip(part.marks, part.positions, strict=True)
        }
        return {places[mark]: text for mark, text in self._sent_results(history) if mark in places}

    def _sent_results(self, history: History) -> list[tuple[str, str]]:
        """The results whose calls come before them."""
        marks: set[str] = set()
        sent: list[tuple[str, str]] = []
        for entry in history:
            if isinstance(entry, Part):
                marks.update(entry.marks)
            elif isinstance(entry, Results):
                sent += [(mark, text) for mark, text in entry.told if mark in marks]
        return sent

    # What the client may do

    async def act(self, action: Action) -> None:
        kind, choice = action
        history = self._history
        last = history[-1] if history else None
        match kind:
            case "answer":
                self._go_on()
            case "again":
                pass
            case "interrupt":
                history.append(Words(f"Stop {self._token()}"))
            case "beside":
                self._go_on(words=f"Hurry {self._token()}")
            case "belated":
                if isinstance(last, Part) and last.calls:
                    self._go_on()
                    history.insert(-1, Words(f"Wait {self._token()}"))
            case "late":
                self._clock.time += HOLD + 1
                self._go_on()
            case "several":
                self._merge_last_turn()
            case "drop":
                self._change_results(choice, lambda told: None)
            case "edit_result":
                self._change_results(choice, lambda told: (told[0], self._token()))
            case "edit_call" | "edit_words":
                self._edit(choice, kind == "edit_call")
            case "compact":
                if history:
                    history[: choice % len(history)] = [Words(f"Summary {self._token()}")]
                self._go_on()
            case "back":
                self._history = history[: choice % len(history) + 1] if history else []
            case "branch":
                self._branches.append(list(history))
                self._at = len(self._branches) - 1
                self._go_on()
            case "switch":
                self._at = choice % len(self._branches)
                self._go_on()
            case "replica":
                self._replica += 1
                self._go_on()
            case _:
                replica = self._replica % len(self.gateways)
                self.gateways[replica] = await self.reopen(replica)
                self._go_on()
        if kind == "interrupt" and isinstance(last, Words):
            del history[-1]
        await self._send()

    def _go_on(self, words: str = "") -> None:
        history = self._history
        last = history[-1] if history else None
        if isinstance(last, Part) and last.calls:
            history.append(Results(tuple((mark, self._token()) for mark in last.marks), words))
        elif isinstance(last, Part):
            history.append(Words(f"And {self._token()}"))

    def _merge_last_turn(self) -> None:
        """Everything that was released of the last turn as one message, its results after it from the last to the
        first."""
        self._go_on()
        history = self._history
        last = max((at for at, entry in enumerate(history) if isinstance(entry, Part)), default=-1)
        if last < 0:
            return
        run = self._run(history, last)
        parts = [part for at in run if isinstance(part := history[at], Part)]
        told = [pair for entry in history[run.start :] if isinstance(entry, Results) for pair in entry.told]
        words = [entry.words for entry in history[run.start :] if isinstance(entry, Results) and entry.words]
        merged = Part(
            parts[0].said,
            tuple(at for part in parts for at in part.positions),
            tuple(call for part in parts for call in part.calls),
            tuple(mark for part in parts for mark in part.marks),
            parts[0].text,
            any(part.edited for part in parts),
        )
        rest = [entry for entry in history[last + 1 :] if isinstance(entry, Words)]
        results = [Results(tuple(reversed(told)), " ".join(words))] if told else []
        self._history = [*history[: run.start], merged, *results, *rest]

    def _change_results(self, choice: int, change: Callable[[tuple[str, str]], tuple[str, str] | None]) -> None:
        self._go_on()
        history = self._history
        places = [at for at, entry in enumerate(history) if isinstance(entry, Results)]
        if not places:
            return
        at = places[choice % len(places)]
        entry = history[at]
        assert isinstance(entry, Results)
        which = choice % len(entry.told)
        changed = change(entry.told[which])
        told = (*entry.told[:which], *([changed] if changed else []), *entry.told[which + 1 :])
        if told and changed is None and self.habits.client == "gemini" and self.habits.ids == "counted":
            return  # generated ids are not sent on this wire: it would be unknown which of the results is left
        if told:
            history[at] = replace(entry, told=told)
        elif self._may_vanish(history, at):
            del history[at]

    def _may_vanish(self, history: History, at: int) -> bool:
        """Without results in between, two answers become one message, except on openai-chat."""
        if at + 1 == len(history) or not at or (isinstance(gone := history[at], Results) and gone.words):
            return False
        before, after = history[at - 1], history[at + 1]
        if self.habits.client == "openai-chat" or not (isinstance(before, Part) and isinstance(after, Part)):
            return True
        return before.said == after.said and self._tells

    def _edit(self, choice: int, call: bool) -> None:
        history = self._history
        places = [at for at, entry in enumerate(history) if isinstance(entry, Part) and entry.calls]
        if places:
            at = places[choice % len(places)]
            part = _part(history, at)
            if call:
                which = choice % len(part.calls)
                edited = {"city": f"edited {self._token()}"}
                calls = list(part.calls)
                calls[which] = replace(calls[which], arguments=edited, raw="")
                history[at] = replace(part, calls=tuple(calls), edited=True)
            elif part.text:
                history[at] = replace(part, text=f"Edited {self._token()}")
        self._go_on()


def _part(history: History, at: int) -> Part:
    part = history[at]
    assert isinstance(part, Part)
    return part


def _words(entry: Entry) -> list[str]:
    if isinstance(entry, Part):
        return []
    return [entry.text] if isinstance(entry, Words) else [entry.words] if entry.words else []


def _pairs(messages: Sequence[Message]) -> list[list[tuple[Json, str]]]:
    """For each message with calls: their arguments, each with the text of its result."""
    found: list[list[tuple[Json, str]]] = []
    for at, message in enumerate(messages):
        if isinstance(message, Assistant) and message.calls:
            after = messages[at + 1]
            assert isinstance(after, ToolMessage)
            assert [result.call_id for result in after.results] == [call.id for call in message.calls]
            texts = [result.text for result in after.results]
            found.append([(call.arguments, text) for call, text in zip(message.calls, texts, strict=True)])
    return found


def _fits(turn: Sequence[tuple[Json, str]], wanted: Sequence[tuple[Json, str | None]]) -> bool:
    """A result that the client lost is reported as lost, in any wording."""
    return len(turn) == len(wanted) and all(
        told[0] == want[0] and want[1] in (None, told[1]) for told, want in zip(turn, wanted, strict=True)
    )


def in_one_message(body: Object) -> Object:
    """Consecutive messages of one side are one message, as the wires of Anthropic, Gemini and Bedrock require."""
    field, parts = ("messages", "content") if "messages" in body else ("contents", "parts")
    together: list[Object] = []
    for message in body[field]:
        if together and message["role"] == together[-1]["role"]:
            together[-1] = {**together[-1], parts: [*_listed(together[-1][parts]), *_listed(message[parts])]}
        else:
            together.append(message)
    return body | {field: together}


def _listed(content: Any) -> list[Any]:
    return cast("list[Any]", content) if isinstance(content, list) else [{"type": "text", "text": content}]
