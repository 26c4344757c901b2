"""A provider that breaks: a `ScriptedServer` that breaks some or all of its responses.

`faults` defines as data what can break; this module decides which response breaks, and repeats an answer that was not
received. What a client does with it is up to the client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from math import inf
from typing import Any, TypeAlias, cast

from aiohttp import web

from unbroken.errors import UserError
from unbroken.models.scripted import Answer, Call, Line, Say, Script, Step, Uses, play_bytes
from unbroken_testing.damage import ResponseFormat, apply_event_fault
from unbroken_testing.faults import Fault, find_fault
from unbroken_testing.rewrites import changed
from unbroken_testing.scenario import Reply, Sent, answers_in
from unbroken_testing.server import ScriptedServer, in_thread
from unbroken_wires.messages import Json, Request, ToolMessage, ToolSpec, User
from unbroken_wires.wires import DEFAULT_WIRE
from unbroken_wires.wires.json_access import Object, as_dict, as_list

Plan: TypeAlias = Callable[[int, Request], "Fault | str | None"]
"""From the number of a request (from 0) and the request: the fault of its response."""
Differ: TypeAlias = Callable[[Sequence[Step]], Sequence[Step]]


class FaultyServer(ScriptedServer):
    """`async with FaultyServer("Hello.", fault="reset") as server:` breaks the first response and answers the second.

    `fault` is a name, a `Fault` or several of them, each for `times` responses (None: for all); `on` are the numbers of
    the requests that may break, from 0. `plan` decides instead, request by request. `after` is the byte at which it
    happens. A fault that does not fit a request (its wire, streamed or not) is skipped. A client may choose a fault
    itself: by the model `fault:NAME`, or the path `/fault/NAME/v1/…`; then the first `times` responses of each run
    break.

    An answer that was broken is not used up: a retry gets it again, with `differs` as a different text with other ids
    (or as a function of its steps returns it). `broken` lists which requests had which fault. Scripts with several
    answers are for one conversation at a time; a function of the request, or `scripts`, serve many.
    """

    prefixes = ("", "/fault/{fault}")

    def __init__(
        self,
        *answers: Line,
        fault: str | Fault | Sequence[str | Fault] | None = None,
        times: int | None = 1,
        on: Collection[int] | None = None,
        plan: Plan | None = None,
        after: int | None = None,
        differs: bool | Differ = False,
        **options: Any,
    ) -> None:
        super().__init__(*answers, **options)
        _check_options(times, on, after)
        self.broken: dict[int, str] = {}
        one = isinstance(fault, str) or not isinstance(fault, Iterable | None)
        given = [fault] if one else fault or ()
        self._faults = [find_fault(each).at(after=after) for each in cast("Sequence[str | Fault]", given)]
        self._times = inf if times is None else times
        self._left = [self._times for _ in self._faults]
        self._on = on
        self._plan = plan
        self._differs = differs
        self._runs: dict[tuple[str, str], int] = {}
        """How often the fault has happened to each run that chose it."""

    def base_url(self, wire: str = DEFAULT_WIRE, fault: str = "") -> str:
        """With a `fault`: the address for a client whose responses shall have it."""
        url = super().base_url(wire)
        return url.replace(self.url, f"{self.url}/fault/{fault}", 1) if fault else url

    def _script_of(self, lines: Sequence[Line], loop_last: bool) -> Script:
        super()._script_of(lines, loop_last)
        return _RepeatingScript(lines, loop_last)

    def _reply(self, sent: Sent, request: Request, http: web.Request) -> Reply:
        named = _named_by(http, request)
        run = (named, _run_of(request))
        fault = self._chosen(sent, named, run) if named else self._due(sent, request)
        if fault is not None and (reply := fault.in_place(sent.wire)) is not None:
            self._spend(fault, sent, run)
            return reply
        script = cast("_RepeatingScript", self._script_for(request))
        steps = self._steps(sent, request)
        if script.again and self._differs:
            steps = list(self._differs(steps) if callable(self._differs) else _otherwise(steps, sent.number))
        if fault is not None and fault.rewrite is not None:
            said, steps = steps, fault.rewrite(steps)
            if steps == said and fault.change_events is None and fault.damage is None:
                fault = None  # this answer contains nothing that the fault could break
        sent.steps = tuple(steps)
        if fault is None:
            if not any(isinstance(step, Call) for step in steps):
                self._runs.pop(run, None)
            stream = request.stream
            return self._framed(play_bytes(steps, sent.wire, request, self._chunk_delay), stream, sent, http)
        self._spend(fault, sent, run)
        if fault.damages or fault.keeps_answer:
            script.repeat_for(inf if fault.keeps_answer else answers_in(request))
        return self._broken(fault, steps, sent, request, http)

    def _broken(self, fault: Fault, steps: list[Step], sent: Sent, request: Request, http: web.Request) -> Reply:
        if fault.form in ("body", "stream"):
            request = replace(request, stream=fault.form == "stream")
        chunks = play_bytes(steps, sent.wire, request, self._chunk_delay)
        if fault.change_events is not None:
            chunks = apply_event_fault(chunks, fault.change_events, ResponseFormat(sent.wire, request.stream))
        reply = self._framed(chunks, request.stream, sent, http, array=fault.form == "array")
        if fault.damage is not None:
            reply.chunks = fault.damage(reply.chunks, fault.after, fault.seconds)
        return reply

    def _due(self, sent: Sent, request: Request) -> Fault | None:
        """The fault of this response, if the server's plan decides."""
        if self._plan is not None:
            planned = self._plan(sent.number, request)
            return None if planned is None else _if_it_fits(find_fault(planned), sent)
        if self._on is not None and sent.number not in self._on:
            return None
        due = (fault for fault, left in zip(self._faults, self._left, strict=True) if left > 0)
        return next((fault for fault in due if _if_it_fits(fault, sent)), None)

    def _chosen(self, sent: Sent, named: str, run: tuple[str, str]) -> Fault | None:
        fault = _if_it_fits(find_fault(named), sent)
        if fault is None or fault.longest is not None or self._runs.get(run, 0) < self._times:
            return fault
        return None

    def _spend(self, fault: Fault, sent: Sent, run: tuple[str, str]) -> None:
        sent.fault = self.broken[sent.number] = fault.name
        if run[0]:
            if len(self._runs) > 10_000:  # from clients that never returned
                self._runs.clear()
            self._runs[run] = self._runs.get(run, 0) + 1
        elif self._plan is None and fault.longest is None:
            self._left[next(at for at, each in enumerate(self._faults) if each is fault and self._left[at] > 0)] -= 1


def serve_faulty(*answers: Line, **options: Any) -> AbstractContextManager[FaultyServer]:
    """The same server for synchronous code: it runs in a separate thread. Options: `FaultyServer`."""
    return in_thread(FaultyServer(*answers, **options))


def _check_options(times: object, on: object, after: object) -> None:
    """Refuses options with which nothing would break, because a test with such a server tests nothing."""
    if times is not None and not _is_count(times, 1):
        raise UserError(f"FaultyServer(times={times!r}): give a whole number above 0, or None for all responses")
    numbers = cast("Collection[object]", on) if isinstance(on, Collection) else None
    if on is not None and (numbers is None or not all(_is_count(number, 0) for number in numbers)):
        raise UserError(f"FaultyServer(on={on!r}): give the numbers of requests, as in on=(0, 2)")
    if after is not None and not _is_count(after, 0):
        raise UserError(f"FaultyServer(after={after!r}): give a number of bytes")


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class _RepeatingScript(Script):
    """A script that repeats an answer that was not received."""

    def __init__(self, lines: Sequence[Line], loop_last: bool = False) -> None:
        super().__init__(lines, loop_last)
        self.again = False
        """The last answer was a repetition."""
        self._repeat_up_to: float | None = None

    def repeat_for(self, answers: float) -> None:
        """Repeats the last answer for clients with at most this many answers in their history: a client that took it
        for complete has one more."""
        self._repeat_up_to = answers

    def answer(self, request: Request, who: str) -> list[Step]:
        self.again = self._repeat_up_to is not None and answers_in(request) <= self._repeat_up_to
        self._repeat_up_to = None
        if self.again:
            self._given -= 1
        return super().answer(request, who)


def _named_by(http: web.Request, request: Request) -> str:
    """The fault that the client chose, by its address or by its model."""
    return http.match_info.get("fault") or (
        request.model.removeprefix("fault:") if request.model.startswith("fault:") else ""
    )


def _if_it_fits(fault: Fault, sent: Sent) -> Fault | None:
    fits = fault.fits(sent.wire, sent.stream) and (fault.longest is None or sent.size > fault.longest)
    return fault if fits else None


def _run_of(request: Request) -> str:
    """A run is identified by everything up to the last user message."""
    last = max((at for at, message in enumerate(request.messages) if isinstance(message, User)), default=-1)
    return repr(request.messages[: last + 1])


def _otherwise(steps: Sequence[Step], number: int) -> list[Step]:
    said: list[Step] = []
    for at, step in enumerate(steps):
        match step:
            case Say():
                said.append(replace(step, text=f"In other words: {step.text}"))
            case Call():
                said.append(changed(step, id=f"other_{number}_{at}"))
            case _:
                said.append(step)
    return said


TOOLS = (
    ToolSpec(
        "get_weather",
        "The weather in a city.",
        {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    ),
    ToolSpec("now", "What time it is.", {"type": "object", "properties": {}}),
)
"""What `story` calls, if these tools are offered."""

ASKED = "What is the weather like in Oslo and in Lima, and what time is it?"
ANNOUNCED = "Let me look that up 🙂 for you. "
ANSWERED = "Rain 🌧 in Oslo, sunshine in Lima, and it is noon."


def story(request: Request) -> Answer:
    """The default script, for any client: it announces something and calls tools, two at once if possible; with their
    results it answers. It keeps no state between requests."""
    names = [tool.name for tool in request.tools]
    answered = any(isinstance(message, ToolMessage) for message in request.messages[-1:])
    if not names or request.final or request.choice == "none" or answered:
        return [Say(ANSWERED), Uses(120, 12)]
    known = [tool.name for tool in TOOLS if tool.name in names]
    weather = next((tool for tool in request.tools if tool.name == "get_weather"), None)
    if known and (weather is None or set(_example_arguments(weather)) <= {"city", "days"}):
        cities = (("Oslo 🌧", 3), ("Lima", 5)) if weather is not None else ()
        takes = as_dict(weather.parameters.get("properties")) if weather is not None else {}
        # A tool of the same name may be a different one: it gets arguments that it takes.
        given = [{"city": city, "days": days} for city, days in cities]
        calls = [Call("get_weather", {key: each[key] for key in each if key in takes}) for each in given]
        calls += [Call("now")] if "now" in known else []
    else:
        calls = [Call(tool.name, _example_arguments(tool)) for tool in request.tools[:2]]
    return [Say(ANNOUNCED), *(calls[:1] if request.parallel is False else calls), Uses(80, 40)]


def _example_arguments(tool: ToolSpec) -> Object:
    """Arguments that fit the schema, as far as it is simple."""
    properties = as_dict(tool.parameters.get("properties"))
    return {name: _value(as_dict(properties.get(name))) for name in as_list(tool.parameters.get("required"))}


def _value(schema: Object) -> Json:
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if options := as_list(schema.get("enum")):
        return options[0]
    types: dict[Any, Json] = {"integer": 3, "number": 0.5, "boolean": True, "array": [], "object": {}, "null": None}
    return types.get(schema.get("type"), "Oslo 🙂")
