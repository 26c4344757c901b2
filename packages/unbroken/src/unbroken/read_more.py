"""`ReadMore`: a long result of a tool is sent in part, and the model can read the rest with `read_more`.

The history, and so a recording, has the complete results: only requests have parts. So the rest survives a resume and
the next turn of a conversation, and `read_more` can read nothing but the results of its own conversation. A result is
shortened the first time that it is sent, and in the same way each time, so that a request begins like the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any, Self

from unbroken.errors import UserError
from unbroken.middleware import Middleware, NextRequest, RunStart
from unbroken.tools.caller import Caller, failure
from unbroken.tools.context import CallContext
from unbroken.tools.tool import Tool, tool
from unbroken_wires.messages import Message, ToolCall, ToolMessage, ToolResult
from unbroken_wires.transcript.shorten import before_cluster, without_middle
from unbroken_wires.validation import checked

SHOWN = 10_000
LEAST = 200
"""Characters. Less is no part of a result that a model could judge it by."""


@checked
class ReadMore(Middleware):
    """Sends at most `shown` characters of each tool result: its beginning and its end. Give its tool to the agent too,
    with which the model reads the rest, `shown` characters at a time:

    ```python
    more = ReadMore()
    agent = Agent(model, [read_log, more.tool], middleware=[more], policy=Policy(result_limit=1_000_000))
    ```

    `Policy(result_limit=…)` says how much of a result is kept at all.
    """

    mutates = False
    edits_answers = False

    def __init__(self, shown: int = SHOWN) -> None:
        if shown < LEAST:
            raise UserError(f"ReadMore(shown={shown}): expected a number of characters from {LEAST}")
        self.shown = shown
        self.tool: Tool = _read_more
        self._history: Callable[[], tuple[Message, ...]] = tuple
        self._sent: dict[int, tuple[ToolMessage, ToolMessage]] = {}
        """By the id of a message: the message, and what is sent in its place. The same object each time, so that
        nothing is encoded or recorded twice."""

    def start(self, run: RunStart) -> Self:
        """One for this run, whose tools have to include this one's."""
        names = run.known_tools()
        if names is not None and self.tool.name not in names:
            raise UserError("the middleware ReadMore needs its tool: give it to the agent, tools=[…, more.tool]")
        started = copy(self)
        started._history, started._sent = run.history, {}
        return started

    async def before_request(self, request: NextRequest) -> None:
        """Shortens long results."""
        messages = request.messages
        request.messages = tuple(self._shortened(each) if isinstance(each, ToolMessage) else each for each in messages)

    async def call_tool(self, call: ToolCall, context: CallContext[Any], call_next: Caller) -> ToolResult:
        """Answers the calls of `read_more`."""
        if call.name != self.tool.name:
            return await call_next(call, context)
        return self._read(call, **self.tool.bind(call))

    def _shortened(self, message: ToolMessage) -> ToolMessage:
        known = self._sent.get(id(message))
        if known is None or known[0] is not message:
            results = tuple(self._shorten(result) for result in message.results)
            known = self._sent[id(message)] = message, message if results == message.results else ToolMessage(results)
        return known[1]

    def _shorten(self, result: ToolResult) -> ToolResult:
        text = result.text
        if len(text) <= self.shown:
            return result
        head = before_cluster(text, self.shown - self.shown // 2)
        call = f"{self.tool.name}(result={result.call_id!r}, start={head})"
        parts = without_middle(result.content, self.shown, f"left out here: {call} reads on")
        return replace(result, content=parts, native=None)

    def _read(self, call: ToolCall, result: str, start: int = 0) -> ToolResult:
        found = [
            each.text
            for message in self._history()
            if isinstance(message, ToolMessage)
            for each in message.results
            if each.call_id == result
        ]
        if not found:
            return failure(call, f"this conversation has no result `{result}`; the note in a shortened result names it")
        if len(found) > 1:  # only in a history from elsewhere: a run makes ids unique
            return failure(call, f"this conversation has {len(found)} results `{result}`; call the tool again")
        [text] = found
        if not 0 <= start < len(text):
            return failure(call, f"`start` is {start}, and the result `{result}` has {len(text):,} characters")
        room = self.shown - 100  # for the line about what follows
        end = len(text) if len(text) - start <= room else max(before_cluster(text, start + room), start + 1)
        follows = f", then start={end}" if end < len(text) else ", the end"
        return ToolResult.of(call, f"[characters {start} to {end} of {len(text)}{follows}]\n{text[start:end]}")


@tool(name="read_more", effect="read")
async def _read_more(result: str, start: int = 0) -> str:
    """Read the part of a long tool result that was left out. A note in the result says how to call this.

    Args:
        result: The id of the result, as in the note.
        start: The number of the character to begin with, as in the note.
    """
    raise UserError("`read_more` is answered by its `ReadMore`: give that to the agent too, as middleware=[…]")
