"""Rebuilds an agent from a recording: enough to replay the run without its code, or to resume it with a model and
tools.

Recorded tools cannot run. Their declarations (effect, time-out) apply; which calls did not fit, and which needed
approval, is read from the recording. The functions that computed keys are gone, so calls of such tools may start
earlier than they did. If you have the code, `agent.replay` of the real agent is better.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Self, TypeVar, cast

from unbroken.agent.agent import Agent
from unbroken.agent.handoffs import Handoff
from unbroken.agent.limits import limits_of
from unbroken.agent.options import Instructions, Trim, read_header
from unbroken.agent.output import ANSWER, DOES_NOT_FIT, Output, why_invalid, why_of
from unbroken.agent.resuming import reading
from unbroken.errors import AnswerInvalid, ChainBroken, ProviderError, UserError
from unbroken.events import (
    AgentChanged,
    ApprovalAsked,
    CallFinished,
    Compacted,
    Event,
    RunFailed,
    RunFinished,
    TextFinished,
)
from unbroken.middleware import Middleware, NextRequest, RunStart
from unbroken.models.model import Model
from unbroken.tools.approval import NOBODY_APPROVES, Allow, Approval, OnApproval
from unbroken.tools.caller import fingerprint
from unbroken.tools.schema import ArgumentsDoNotFit, Signature
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Source
from unbroken.trajectory.lines import Line
from unbroken.trajectory.recording import RecordedRequest, Recording
from unbroken_wires.deltas import Delta
from unbroken_wires.messages import Assistant, Json, Message, Request, System, ToolCall, ToolSpec, User
from unbroken_wires.server_tools import server_tool_from_json
from unbroken_wires.transcript import Transcript, from_json
from unbroken_wires.wires.json_access import as_dict

T = TypeVar("T")

_DO_NOT_FIT = "Error: the arguments of `{name}` do not fit: "


class _AbsentModel:
    """A model that is never asked: the recording has its answers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        raise UserError(f"model `{self.name}` is not available: the recording has only its answers")


def agent_of(
    recording: Recording,
    tools: Sequence[Source] | None = None,
    model: Model | None = None,
    on_approval: OnApproval | None = None,
) -> Agent:
    """The agent that replays the run; with a model, the one that resumes it. `tools`: the real tools, if available."""
    if "schedule" not in recording.settings:
        what = "could be replayed" if model is None else "could be resumed"
        raise UserError(f"{recording.path} has no agent that {what}: it was made by a gateway, or by a test")
    if model is not None and not recording.requests:
        raise UserError(f"{recording.path} ends before the first request: there is nothing to resume, run it again")
    with reading(recording):
        if model is None and _had_approver(recording):
            on_approval = _allow
        return Agent(
            model or _AbsentModel(recording.model),
            _tools(recording) if tools is None else tools,
            _system(recording),
            name=recording.agent_name,
            limits=limits_of(recording),
            handoffs=_handoffs(recording) if model is None else (),
            on_approval=on_approval,
            guidance=False,
            trim=_trim(recording) if model is None else None,
            middleware=[asides] if model is None and (asides := _Asides(recording)).needed else [],
            **read_header(recording.settings),
        )


def _handoffs(recording: Recording) -> list[Handoff]:
    """The hand-offs of the first agent, and behind them the agents that took over."""
    changes = [event for event in recording.events if isinstance(event, AgentChanged)]
    offered: dict[int, list[Line]] = {}
    for line in recording.of("tools"):
        offered[line["turn"]] = [tool for tool in line["tools"] if tool.get("role") == "handoff"]
    nobody = Agent(_AbsentModel(recording.model), name="nobody")
    following: list[Handoff] = []
    for place in range(len(changes), -1, -1):
        turn = changes[place - 1].turn + 1 if place else 0
        then = changes[place] if place < len(changes) else None
        agent = nobody
        if then is not None:
            agent = Agent(
                _AbsentModel(then.model),
                _tools(recording),
                _system(recording),
                name=then.agent,
                output=_output(recording, as_dict(then.settings.get("output"))),
                guidance=False,
                handoffs=following,
                **read_header(then.settings),
            )
        following = [
            Handoff(agent if then is not None and saved["name"] == then.tool else nobody, _stub(saved, {}, set()))
            for saved in _at(offered, turn)
        ]
    return following


def _system(recording: Recording) -> Instructions:
    """The instructions; if they were not the same in all requests, those of each turn."""
    sent = {request.turn: _system_of(request) for request in recording.requests}
    if len(set(sent.values())) <= 1:
        return next(iter(sent.values()), "")
    return lambda context: sent[max((turn for turn in sent if turn <= context.turn), default=min(sent))]


def _system_of(request: RecordedRequest) -> str:
    first = from_json(list(request.messages[:1]))
    return first[0].text if first and isinstance(first[0], System) else ""


def _trim(recording: Recording) -> Trim | None:
    """The part of the history that each request sent, if it was not all of it."""
    sent: list[tuple[Message, ...] | None] = []
    known: list[Line] | None = None
    for state, request, history in _requests(recording):
        if state.get("aside"):
            continue  # `_Asides` repeats it
        messages = [message for message in request.messages if message.get("role") != "system"]
        if state.get("nudge"):
            messages = messages[:-1]
        sent.append(from_json(messages) if history is not known and messages != history else None)
        known = history
    if not any(sent):
        return None
    coming = iter(sent)

    def choose(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return next(coming, None) or messages

    return choose


@dataclass(frozen=True, slots=True)
class _Aside:
    """A request that was made beside the rounds of the run, and what came of it."""

    turn: int
    messages: tuple[Message, ...]
    """Without the instructions."""
    final: bool
    added: tuple[Message, ...]
    """What was added to the history."""
    events: list[Compacted]


class _Asides(Middleware):
    """In place of middleware that asked a model beside the rounds of the recorded run: makes the same requests."""

    def __init__(self, recording: Recording) -> None:
        self._asides = list(_asides(recording))
        self._caches = bool(recording.settings.get("cache"))
        self._last = -1
        self._run: RunStart | None = None

    @property
    def needed(self) -> bool:
        return bool(self._asides)

    def start(self, run: RunStart) -> Self:
        started = copy(self)
        started._asides, started._run = [*self._asides], run
        return started

    async def before_request(self, request: NextRequest) -> None:
        assert self._run is not None
        turn = self._run.context().turn
        while self._asides and self._asides[0].turn == turn + (turn == self._last):
            aside = self._asides.pop(0)
            other = _AbsentModel("another") if aside.final and self._caches else None
            with suppress(ProviderError, ChainBroken):  # as recorded
                await request.ask(aside.messages, other)
            turn = self._last = aside.turn
            for event in aside.events:
                own = [getattr(event, field.name) for field in fields(event)[_OF_EVENTS:]]
                self._run.emit(type(event), *own)
            for message in aside.added:
                if isinstance(message, User):
                    request.add(message)


def _requests(recording: Recording) -> Iterator[tuple[Line, RecordedRequest, list[Line] | None]]:
    """Each request with the state of the run, and its history as far as it was recorded by then."""
    history: list[Line] | None = None
    requests = iter(recording.requests)
    for line in recording.lines:
        if line["line"] == "history":
            history = [*(history or ())[: line["keep"]], *line["messages"]]
        elif line["line"] == "request":
            yield as_dict(line.get("state")), next(requests), history


def _asides(recording: Recording) -> Iterator[_Aside]:
    made = [*_requests(recording)]
    for place, (state, request, history) in enumerate(made):
        if not state.get("aside"):
            continue
        _, _, following = made[min(place + 1, len(made) - 1)]
        is_system = bool(request.messages) and request.messages[0].get("role") == "system"
        yield _Aside(
            request.turn,
            from_json(list(request.messages[1:] if is_system else request.messages)),
            bool(request.fields.get("final")),
            from_json((following or [])[len(history or ()) :]),
            [event for event in recording.events if isinstance(event, Compacted) and event.turn == request.turn],
        )


_OF_EVENTS = len(fields(Event))


def output_of(recording: Recording) -> Output[Any] | None:
    with reading(recording):
        return _output(recording, as_dict(recording.settings.get("output")))


def _output(recording: Recording, saved: Line) -> Output[Any] | None:
    if not saved:
        return None
    refused, texts, answer = _refused(recording), _refused_texts(recording), _answer(recording)

    def why_not(given: dict[str, Json]) -> str | None:
        return refused.get(_mark(ANSWER, given))

    def read_text(text: str) -> Json:
        if (why := texts.get(text)) is not None:
            raise ArgumentsDoNotFit(why)
        return text if saved.get("text") and _is_plain(answer, saved["schema"]) else answer

    return Output.of_schema(saved["schema"], why_not, read_text, saved.get("via", "auto"), saved.get("text", False))


def _is_plain(answer: Json, schema: Mapping[str, Any]) -> bool:
    """The run may answer in plain text, and has: a number is one only if the schema has a type for it."""
    choices = schema.get("properties", {}).get("value", {}).get("anyOf", ())
    scalars = {each.get("type") for each in choices} & {"integer", "number", "boolean"}
    return not isinstance(answer, dict | list) and not (scalars and isinstance(answer, int | float))


def _answer(recording: Recording) -> Json:
    """The value that the run ended with: an answer that did fit."""
    ending = recording.ending
    if isinstance(ending, RunFinished):
        with suppress(ValueError):  # it has ended without an answer
            return json.loads(ending.text)
    return None


def _allow(call: ToolCall) -> Approval:
    return Allow()  # the recording has the real decision


def _had_approver(recording: Recording) -> bool:
    """Whether the run had an approver: the recording has decisions, or a question without one."""
    if any(recording.of("approval")):
        return True
    ends = {event.call: event for event in recording.events if isinstance(event, CallFinished)}
    asked = [ends.get(event.call) for event in recording.events if isinstance(event, ApprovalAsked)]
    return any(end is not None and NOBODY_APPROVES not in end.text for end in asked)


def _tools(recording: Recording) -> list[Source] | Callable[[int, Transcript], Iterable[Source]]:
    refused, asked = _refused(recording), _asked(recording)
    sets: dict[int, list[Source]] = {
        line["turn"]: [_stub(tool, refused, asked) for tool in line["tools"] if _is_own(tool)]
        for line in recording.of("tools")
    }
    by_provider = _server_tools(recording)
    if len(sets) <= 1 and len(by_provider) <= 1:
        return [tool for tools in (*sets.values(), *by_provider.values()) for tool in tools]

    def choose(turn: int, transcript: Transcript) -> Iterable[Source]:
        return [*_at(sets, turn), *_at(by_provider, turn)]

    return choose


def _is_own(tool: Line) -> bool:
    """The others are added by the run: the one that takes a typed answer, and hand-offs."""
    return tool["name"] != ANSWER and tool.get("role") != "handoff"


def _at(sets: Mapping[int, list[T]], turn: int) -> list[T]:
    """Those of the turn, or of the last one before it that has any."""
    return sets[max((known for known in sets if known <= turn), default=min(sets))] if sets else []


def _server_tools(recording: Recording) -> dict[int, list[Source]]:
    """The tools that the provider ran, by the turn from which on they were offered."""
    found: dict[int, list[Source]] = {}
    last: list[Line] = []
    for request in recording.requests:
        saved = cast("list[Line]", request.fields.get("server_tools", []))
        if saved != last:
            found[request.turn], last = [server_tool_from_json(each) for each in saved], saved
    return found


def _stub(saved: Line, refused: dict[str, str], asked: set[str]) -> Tool:
    name: str = saved["name"]

    def bind(arguments: dict[str, Any]) -> dict[str, Any]:
        why = refused.get(_mark(name, arguments))
        if why is not None:
            raise ArgumentsDoNotFit(why)
        return dict(arguments)

    def approve(arguments: dict[str, Any]) -> bool:
        return _mark(name, arguments) in asked

    async def run(**arguments: Any) -> str:
        raise UserError(f"tool `{name}` is not available: the recording has only its results")

    spec = ToolSpec(name, saved.get("description", ""), saved["parameters"], saved.get("strict"))
    signature = Signature(name, spec.description, spec.parameters, bind, is_async=True)
    return Tool(
        spec,
        None if saved.get("client") else run,
        signature,
        key=(lambda arguments: _mark(name, arguments)) if saved.get("key") else None,
        approve=approve if saved.get("approve") == "sometimes" else bool(saved.get("approve")),
        after_crash="wait" if saved.get("after_crash") == "wait" else None,
        **{each: saved[each] for each in _DECLARED if each in saved},
    )


_DECLARED = ("effect", "timeout", "overlap", "dedupe", "retries", "repeat", "role", "background")
"""What a tool declares, as far as it is recorded as it is."""


def _mark(name: str, arguments: dict[str, Any]) -> str:
    return fingerprint(ToolCall("", name, arguments))


def _refused(recording: Recording) -> dict[str, str]:
    """Calls whose arguments did not fit, and why."""
    made = {
        call.get("call"): call
        for line in recording.of("event")
        if line.get("event") == "tool_calls_detected"
        for call in line.get("calls", ())
    }
    found: dict[str, str] = {}
    for line in recording.of("event"):
        call = made.get(line.get("call")) if line.get("event") == "call_finished" else None
        words = _DO_NOT_FIT.format(name=line.get("name"))
        if call is not None and call["arguments"] is not None and line.get("text", "").startswith(words):
            found[_mark(call["name"], call["arguments"])] = line["text"].removeprefix(words)
    return found


def _refused_texts(recording: Recording) -> dict[str, str]:
    """Structured answers that were written as text and did not fit, and why."""
    found: dict[str, str] = {}
    sent = from_json(list(recording.requests[-1].messages)) if recording.requests else ()
    for answer, asked in pairwise(sent):
        if isinstance(answer, Assistant) and isinstance(asked, User) and asked.text.startswith(DOES_NOT_FIT):
            found[answer.text] = why_of(asked.text)
    ending = recording.ending
    if isinstance(ending, RunFailed) and ending.error == AnswerInvalid.__name__:
        texts = [event.text for event in recording.events if isinstance(event, TextFinished)]
        found |= dict.fromkeys(texts[-1:], why_invalid(ending.message))
    return found


def _asked(recording: Recording) -> set[str]:
    return {
        _mark(line["name"], line["arguments"])
        for line in recording.of("event")
        if line.get("event") == "approval_asked"
    }
