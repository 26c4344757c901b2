"""Who asks: one request to the bare model, and everything that came back as one `Reply`, errors included.

It keeps the quirks that were found so far, so that each question is asked as the row will ask, and what earlier answers
showed (`Known`), so that a question can build on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace

from unbroken.deltas import Ended, TextDelta, UsageReported
from unbroken.errors import ProviderError, RateLimited, StreamError, TimedOut, UnbrokenError, UserError
from unbroken.messages import (
    Assistant,
    Choice,
    Json,
    Message,
    OneTool,
    Request,
    Sampling,
    ToolCall,
    ToolSpec,
    Usage,
    User,
)
from unbroken.models.http import HTTPModel
from unbroken.models.quirks import Quirks
from unbroken.verdicts import Verdict

TOKENS = 400
"""What an answer may take where little is asked for: some models think before they say one word."""
MORE = 2000
"""So many, once, if those were not enough."""
WAITS = 3
LONGEST_WAIT = 20.0


class TooSlow(Exception):
    """The answer was not done in time, which says nothing about what was asked."""

    def __init__(self, error: TimedOut) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Reply:
    text: str = ""
    pieces: int = 0
    """In how many the text came."""
    message: Assistant | None = None
    usage: Usage | None = None
    verdict: Verdict | None = None
    error: UnbrokenError | None = None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.message.calls if self.message else ()

    @property
    def cut(self) -> bool:
        """The model met its token limit."""
        return self.verdict is not None and self.verdict.meaning == "length"

    @property
    def problem(self) -> str:
        """Why this is no whole answer, in words; empty if it is one. A model that was cut short is no fault of it."""
        if self.error is not None:
            return str(self.error)
        if self.verdict is None:
            return "the answer has no end"
        if self.cut or self.verdict.kind in ("whole", "empty"):
            return next((f"call of `{call.name}`: {call.problem}" for call in self.calls if call.problem), "")
        return f"{self.verdict.kind}: {self.verdict.reason}"


@dataclass(slots=True)
class Known:
    """What the answers so far have shown."""

    streamed: Reply | None = None
    called: Reply | None = None
    """The first answer with a call."""
    forces: Choice | None = None
    """The choice that makes it call; with `OneTool` the name is filled in."""
    several: int = 0
    """Calls in one answer that was not streamed."""


@dataclass(slots=True)
class Asker:
    model: HTTPModel
    quirks: Quirks = field(init=False)
    known: Known = field(default_factory=Known)
    temperature: float | None = 0.0
    """The same answer each time, where it may be asked for."""
    requests: int = 0

    def __post_init__(self) -> None:
        self.quirks = self.model.endpoint.quirks

    @property
    def wire(self) -> str:
        return self.model.wire

    async def ask(
        self,
        asked: str | tuple[Message, ...],
        *tools: ToolSpec,
        choice: Choice | None = None,
        parallel: bool | None = None,
        final: bool = False,
        stream: bool = False,
        tokens: int = TOKENS,
        quirks: Quirks | None = None,
        extra: Mapping[str, Json] | None = None,
    ) -> Reply:
        """One answer. If nothing came of it because its tokens were used up, it is asked once more with more of them;
        `tokens` 0 sets no limit."""
        request = Request(
            (User.of(asked),) if isinstance(asked, str) else asked,
            tools,
            choice,
            parallel,
            final,
            stream=stream,
            extra=extra or {},
        )
        model = copy(self.model)
        model.endpoint = replace(model.endpoint, quirks=quirks or self.quirks)
        limit = Sampling(max_tokens=tokens or None, temperature=self.temperature)
        reply = await self._ask(model, replace(request, sampling=limit))
        nothing = not reply.text and not any(call.complete for call in reply.calls)
        if 0 < tokens < MORE and reply.cut and nothing:
            limit = replace(limit, max_tokens=MORE)
            more = await self._ask(model, replace(request, sampling=limit))
            return reply if more.error else more
        return reply

    async def ask_for_call(self, asked: str, *tools: ToolSpec, stream: bool = False, tokens: int = TOKENS) -> Reply:
        """An answer with a call in it: forced where that works, then only asked for."""
        reply = Reply()
        for choice in self._forcing(tools[0].name):
            reply = await self.ask(asked, *tools, choice=choice, stream=stream, tokens=tokens)
            if reply.calls or reply.problem:
                break
        return reply

    def _forcing(self, name: str) -> list[Choice | None]:
        forces = self.known.forces
        if forces is None:
            return [None]
        return [OneTool(name) if isinstance(forces, OneTool) else forces, None]

    async def _ask(self, model: HTTPModel, request: Request) -> Reply:
        for wait in range(WAITS):
            reply = await self._ask_once(model, request)
            if not isinstance(reply.error, RateLimited) or wait == WAITS - 1:
                return reply
            after = reply.error.retry_after
            await asyncio.sleep(min(LONGEST_WAIT, 2.0**wait if after is None else after))
        raise AssertionError("the last try was returned")

    async def _ask_once(self, model: HTTPModel, request: Request) -> Reply:
        self.requests += 1
        texts: list[str] = []
        usage: Usage | None = None
        ended: Ended | None = None
        error: UnbrokenError | None = None
        try:
            async for delta in model.stream(request):
                match delta:
                    case TextDelta(text):
                        texts.append(text)
                    case UsageReported():
                        usage = delta.usage
                    case Ended():
                        ended = delta
                    case _:
                        pass
        except (ProviderError, StreamError, UserError) as raised:
            error = raised
        message, verdict = (ended.message, ended.verdict) if ended else (None, None)
        if isinstance(error, TimedOut) and error.total:
            raise TooSlow(error)
        if verdict is not None and verdict.kind == "late":
            raise TooSlow(TimedOut(verdict.reason))
        return Reply("".join(texts), len(texts), message, usage, verdict, error)
