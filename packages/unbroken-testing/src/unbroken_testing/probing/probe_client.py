"""Sends one request to the model without retries of its own, and returns everything that came back as one `Reply`,
errors included. Also what the outcome of a test is, and what is asked.

`ProbeClient` keeps the quirks found so far, so that each request is sent as the printed profile will send it, and what
earlier replies showed (`Known`), so that later tests can build on it. A temporary failure (a lost connection, a 503, an
HTML page) is retried; if it persists, `RequestFailing` is raised, so that no test mistakes it for a refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from unbroken.errors import (
    ContextTooLong,
    ProviderError,
    RateLimited,
    RequestRefused,
    StreamError,
    TimedOut,
    Unavailable,
    UnbrokenError,
    Unreachable,
    UserError,
)
from unbroken.models.http import HTTPModel
from unbroken.models.quirks import Quirks
from unbroken_wires.deltas import Ended, PartialResponse, UsageReported, Verdict
from unbroken_wires.messages import (
    Assistant,
    Choice,
    Json,
    Message,
    OneTool,
    Request,
    Sampling,
    ToolCall,
    ToolMessage,
    ToolResult,
    ToolSpec,
    Usage,
    User,
)

# The outcome of a test: one of four judgements, a text, and the quirks that handle a difference

Judgement: TypeAlias = Literal["works", "differs", "broken", "unclear"]
"""`differs`: the endpoint differs from the wire, and Unbroken handles it, perhaps with a quirk in the profile.
`unclear`: the model did not cooperate, which shows nothing about its server."""


@dataclass(frozen=True, slots=True)
class Finding:
    judgement: Judgement
    words: str = ""
    quirks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of `Quirks` that the profile needs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A test that was run, and its finding."""

    name: str
    title: str
    finding: Finding
    requests: int = 0
    seconds: float = 0.0


def works(words: str = "") -> Finding:
    return Finding("works", words)


def differs(words: str, **quirks: Any) -> Finding:
    return Finding("differs", words, quirks)


def broken(words: str) -> Finding:
    return Finding("broken", words)


def unclear(words: str) -> Finding:
    return Finding("unclear", words)


# The requests: prompts, tools and a history, small enough for any model.


PONG = "Reply with one word: pong"
COUNT = "Write the numbers from 1 to 100, separated by spaces, and nothing else."
WEATHER = "What is the weather in Paris? Call the tool get_weather."
HELLO = "Say hello."
SEVERAL = (
    "What is the weather in Paris, Berlin and Madrid? Call get_weather three times in this one reply, "
    "once for each city, before anything else."
)
PING = "Call the tool ping now."

WORDS = "Grüße, 日本語, 中文, 🎉👩‍💻"
LONG = " ".join(f"item-{number:04}" for number in range(1, 411))
"""4 KB."""


def _spec(name: str, description: str, *parameters: str, strict: bool | None = None) -> ToolSpec:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"} for parameter in parameters},
        "required": list(parameters),
        "additionalProperties": False,
    }
    return ToolSpec(name, description, schema, strict)


GET_WEATHER = _spec("get_weather", "The weather of a city.", "city")
GET_TIME = _spec("get_time", "The time of day in a city.", "city")
STRICT_WEATHER = _spec("get_weather", "The weather of a city.", "city", strict=True)
PING_TOOL = ToolSpec("ping", "Checks that tools work. Takes no arguments.")
ECHO = _spec("echo", "Prints a text.", "text")


def echo(text: str) -> str:
    return f"Call the tool echo with exactly this text, without changing a character:\n{text}"


CODE = "7342"


def answered(message: Assistant) -> tuple[Message, ...]:
    """A history in which the calls of this message have results."""
    results = tuple(ToolResult.of(call, f"21 degrees, report number {CODE}") for call in message.calls)
    question = "What is the weather? End your answer with the report number."
    return User.of(question), message, ToolMessage(results)


TWO_CALLS = Assistant(
    "Let me look.",
    tuple(
        ToolCall(f"call_0_{index}", "get_weather", {"city": city}, f'{{"city": "{city}"}}', index)
        for index, city in enumerate(("Paris", "Berlin"))
    ),
)
"""Calls in the form that Unbroken uses for a history that did not come from this provider."""


# The client

TOKENS = 400
"""The token limit for short answers: some models reason before the first word."""
MORE = 2000
"""The token limit of one more attempt, if that was not enough."""
WAITS = (0.25, 1.0)
"""Seconds before the second and the third attempt after a temporary failure."""
LONGEST_WAIT = 20.0
STEADY = 3
"""After this many successful plain requests in a row, another failure is not a coincidence."""
BAD_CONNECTION = 2
"""After this many tests that needed a retry, no failure is blamed on the feature."""

_TEMPORARY = (RateLimited, Unavailable, Unreachable, TimedOut, StreamError)


class TooSlow(Exception):
    """The response was not finished in time, which does not show whether the feature works."""

    def __init__(self, error: TimedOut) -> None:
        super().__init__(str(error))
        self.error = error


class RequestFailing(Exception):
    """No complete response, even after retries, and no refusal: this alone does not show whether the feature works."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.problem)
        self.reply = reply
        self.advice = ""
        """What else the user can do, if it is the feature that fails."""


@dataclass(frozen=True, slots=True)
class Reply:
    text: str = ""
    pieces: int = 0
    """In how many pieces the text arrived."""
    message: Assistant | None = None
    usage: Usage | None = None
    verdict: Verdict | None = None
    error: UnbrokenError | None = None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.message.calls if self.message else ()

    @property
    def cut(self) -> bool:
        """The model reached its token limit."""
        return self.verdict is not None and self.verdict.meaning == "length"

    @property
    def problem(self) -> str:
        """Why this is not a complete response; empty if it is one. A response that the token limit cut off is not a
        problem."""
        if self.error is not None:
            return str(self.error)
        if self.verdict is None:
            return "the response has no end"
        if self.cut or self.verdict.kind in ("whole", "empty"):
            return next((f"call of `{call.name}`: {call.problem}" for call in self.calls if call.problem), "")
        return f"{self.verdict.kind}: {self.verdict.reason}"

    @property
    def refused(self) -> bool:
        """Whether the server read the request and refused it: only this shows something about the feature."""
        error = self.error
        return isinstance(error, RequestRefused) and not self.too_long and 400 <= error.status < 500

    @property
    def too_long(self) -> bool:
        return isinstance(self.error, ContextTooLong) or (self.verdict is not None and self.verdict.kind == "too_long")

    @property
    def is_temporary(self) -> bool:
        """Whether a retry may help."""
        if self.error is not None:
            return isinstance(self.error, _TEMPORARY)
        return self.verdict is None or (not self.cut and not self.verdict.whole and self.verdict.retryable)


@dataclass(slots=True)
class Known:
    """What the replies so far have shown."""

    streamed: Reply | None = None
    called: Reply | None = None
    """The first reply with a call."""
    forces: Choice | None = None
    """The tool choice that makes the model call; in a `OneTool` the name is filled in later."""
    several: int = 0
    """The number of calls in one non-streaming reply."""


@dataclass(slots=True)
class ProbeClient:
    model: HTTPModel
    quirks: Quirks = field(init=False)
    known: Known = field(default_factory=Known)
    temperature: float | None = 0.0
    """Zero, so that the answer is always the same; None if the model refuses the field."""
    waits: tuple[float, ...] = WAITS
    requests: int = 0
    failures: int = 0
    """Requests that failed temporarily."""
    recovered: int = 0
    """Requests that succeeded after a retry."""

    def __post_init__(self) -> None:
        self.quirks = self.model.endpoint.quirks

    @property
    def wire(self) -> str:
        return self.model.wire

    async def ask(
        self,
        prompt: str | tuple[Message, ...],
        *tools: ToolSpec,
        choice: Choice | None = None,
        parallel: bool | None = None,
        final: bool = False,
        stream: bool = False,
        tokens: int = TOKENS,
        quirks: Quirks | None = None,
        extra: Mapping[str, Json] | None = None,
    ) -> Reply:
        """Sends one request. If the reply is empty because its tokens were used up, the request is sent again with a
        higher limit; `tokens` 0 sets no limit. A reply with a problem is a refusal; other problems raise
        `RequestFailing`."""
        request = Request(
            (User.of(prompt),) if isinstance(prompt, str) else prompt,
            tools,
            choice,
            parallel,
            final,
            stream=stream,
            extra=extra or {},
        )
        model = self._with(quirks or self.quirks)
        limit = Sampling(max_tokens=tokens or None, temperature=self.temperature)
        reply = await self._ask(model, replace(request, sampling=limit))
        nothing = not reply.text and not any(call.complete for call in reply.calls)
        if 0 < tokens < MORE and reply.cut and nothing:
            limit = replace(limit, max_tokens=MORE)
            more = await self._ask(model, replace(request, sampling=limit))
            reply = reply if more.error else more
        if reply.problem and not reply.refused:
            raise RequestFailing(reply)
        return reply

    async def is_steady(self, stream: bool = False) -> bool:
        """Whether the simplest request always succeeds, and few other tests needed a retry."""
        return self.recovered < BAD_CONNECTION and await self.answers(STEADY, stream)

    async def answers(self, times: int = 1, stream: bool = False) -> bool:
        """Whether the simplest request succeeds this many times, each at the first attempt."""
        sampling = Sampling(temperature=self.temperature)
        request, model = Request((User.of(PONG),), sampling=sampling, stream=stream), self._with(self.quirks)
        try:
            return not any([(await self._ask_once(model, request)).problem for _ in range(times)])
        except TooSlow:
            return False

    async def ask_for_call(self, prompt: str, *tools: ToolSpec, stream: bool = False, tokens: int = TOKENS) -> Reply:
        """Requests a call: forced by the tool choice if that works, otherwise by the prompt."""
        reply = Reply()
        for choice in self._forcing(tools[0].name):
            reply = await self.ask(prompt, *tools, choice=choice, stream=stream, tokens=tokens)
            if reply.calls or reply.problem:
                break
        return reply

    def _forcing(self, name: str) -> list[Choice | None]:
        forces = self.known.forces
        if forces is None:
            return [None]
        return [OneTool(name) if isinstance(forces, OneTool) else forces, None]

    def _with(self, quirks: Quirks) -> HTTPModel:
        return self.model.with_quirks(quirks)

    async def _ask(self, model: HTTPModel, request: Request) -> Reply:
        reply = await self._ask_once(model, request)
        for wait in self.waits:
            if not reply.is_temporary:
                break
            self.failures += 1
            after = reply.error.retry_after if isinstance(reply.error, ProviderError) else None
            await asyncio.sleep(wait if after is None else min(LONGEST_WAIT, after))
            # A rate limit, or an empty answer of the model, does not mean a bad connection.
            blamed = bool(reply.problem) and not isinstance(reply.error, RateLimited)
            reply = await self._ask_once(model, request)
            self.recovered += blamed and not reply.problem
        return reply

    async def _ask_once(self, model: HTTPModel, request: Request) -> Reply:
        self.requests += 1
        response = PartialResponse()
        usage: Usage | None = None
        ended: Ended | None = None
        error: UnbrokenError | None = None
        try:
            async for deltas in model.stream(request):
                for delta in deltas:
                    response.feed(delta)
                    if isinstance(delta, UsageReported):
                        usage = delta.usage
                    elif isinstance(delta, Ended):
                        ended = delta
        except (ProviderError, StreamError, UserError) as raised:
            error = raised
        message, verdict = (ended.message, ended.verdict) if ended else (None, None)
        if isinstance(error, TimedOut):
            raise TooSlow(error)
        if verdict is not None and verdict.kind == "late":
            error = TimedOut(verdict.reason)
            error.total = True
            raise TooSlow(error)
        return Reply("".join(response.text), len(response.text), message, usage, verdict, error)
