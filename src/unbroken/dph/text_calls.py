"""`mode="prompt"`: tools for a model that has no tool calls of its own. They are described in words, and the model
calls one by writing `=>#name: {json}` on a line of its own.

`TextCalls` is a model around a model, so the agent's loop needs to know nothing of it: requests are put into words on
the way there, and the one call is read from the text on the way back. Whatever a model writes after its call is not
heard: it would be an invented result.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace

from unbroken.decoding.arguments import parse_arguments
from unbroken.decoding.scanner import Scanner
from unbroken.deltas import (
    CallArguments,
    CallOpened,
    CallReady,
    CallSpoiled,
    Delta,
    Ended,
    Restarted,
    TextDelta,
)
from unbroken.messages import Assistant, Message, Request, System, ToolCall, ToolMessage, ToolSpec, User
from unbroken.models.model import Model, closing
from unbroken.verdicts import Verdict

MARK = "=>#"
_OPENING = re.compile(r"=>#[ \t]*([\w.:/-]+)[ \t]*:")

HOW_TO_CALL = """\
You can use these tools, one call at a time:
{tools}

To call a tool, write this on a line of its own and stop there:
=>#tool_name: {{"argument": "value"}}
The arguments are one JSON object. The result comes in the next message. When you need no tool, just answer."""
NO_MORE = "No tool can be called any more. Answer now, with what you have."


class TextCalls:
    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        before = sum(isinstance(message, Assistant) and bool(message.calls) for message in request.messages)
        return self._listen(in_words(request), f"call_{before}_0")

    async def _listen(self, request: Request, id: str) -> AsyncIterator[Delta]:
        reader = _Reader(id)
        async with closing(self._model.stream(request)) as deltas:
            async for delta in deltas:
                match delta:
                    case TextDelta():
                        for said in reader.feed(delta.text):
                            yield said
                        if reader.call is not None:
                            break
                    case Restarted():
                        reader = _Reader(id)
                        yield delta
                    case Ended():
                        for said in reader.end(delta.verdict.whole):
                            yield said
                        # The message is what the deltas said, and no longer what the wire of the model said.
                        yield Ended(delta.verdict)
                        return
                    case _:
                        yield delta
        yield Ended(Verdict("whole", finish="tool_calls"))


class _Reader:
    """Finds the one call in a text that comes in pieces. Text is held back only where it may begin a call."""

    def __init__(self, id: str) -> None:
        self.call: ToolCall | None = None
        self._id = id
        self._held = ""
        self._at_line_start = True
        self._opened = False
        self._name = ""
        self._raw = ""
        self._scanner = Scanner()

    def feed(self, text: str) -> list[Delta]:
        if self._opened:
            return self._arguments(text)
        out: list[Delta] = []
        text, self._held = self._held + text, ""
        while text:
            if self._at_line_start:
                stripped = text.lstrip(" \t")
                if MARK.startswith(stripped[: len(MARK)]) and len(stripped) < len(MARK):
                    self._held = text
                    return out
                if stripped.startswith(MARK):
                    return [*out, *self._open(text, stripped)]
            line, newline, text = text.partition("\n")
            self._at_line_start = bool(newline)
            out.append(TextDelta(line + newline))
        return out

    def end(self, whole: bool) -> list[Delta]:
        """No more comes. A call that is not whole is told as what it is; it never runs."""
        if self._opened:
            self._opened = False
            problem = (
                "the arguments are not complete" if not self._scanner.foreign else "the arguments are no JSON object"
            )
            return [CallSpoiled(self._made(None, problem))] if whole else []
        held, self._held = self._held, ""
        return [TextDelta(held)] if held else []

    def _open(self, text: str, stripped: str) -> list[Delta]:
        found = _OPENING.match(stripped)
        if found is None:
            if "\n" not in stripped and len(stripped) < 200:
                self._held = text  # the name is not whole yet
                return []
            line, newline, rest = text.partition("\n")
            self._at_line_start = bool(newline)
            return [TextDelta(line + newline), *self.feed(rest)]
        self._opened, self._name = True, found[1]
        return [CallOpened(0, self._name, self._id), *self._arguments(stripped[found.end() :])]

    def _arguments(self, text: str) -> list[Delta]:
        """Up to the brace that closes the object; what follows is not heard."""
        out: list[Delta] = []
        for piece in re.findall(r"[^}]*}|[^}]+", text):
            self._raw += piece
            out.append(CallArguments(0, piece))
            if self._scanner.feed(piece) or self._scanner.spoiled or self._scanner.too_deep or self._scanner.foreign:
                if self._scanner.foreign and "\n" not in self._raw.lstrip():
                    continue  # what it wrote in place of an object is quoted to it: wait for the line
                parsed = parse_arguments(self._raw.strip())
                self.call = self._made(parsed.arguments, parsed.problem)
                out.append(CallReady(self.call) if self.call.complete else CallSpoiled(self.call))
                break
        return out

    def _made(self, arguments: dict[str, object] | None, problem: str) -> ToolCall:
        raw = self._raw.strip()
        return ToolCall(self._id, self._name, arguments, raw, complete=arguments is not None, problem=problem)


def in_words(request: Request) -> Request:
    """The same question without anything that only a model with tool calls understands."""
    said: list[Message] = []
    for message in request.messages:
        match message:
            case Assistant(text=text, calls=calls) if calls:
                lines = [text.rstrip()] if text.strip() else []
                said.append(Assistant("\n".join([*lines, *map(_written, calls)])))
            case ToolMessage(results=results):
                said.append(User.of("\n\n".join(f"Result of {one.name}:\n{one.text}" for one in results)))
            case _:
                said.append(message)
    how = "" if not request.tools else NO_MORE if request.final else HOW_TO_CALL.format(tools=_described(request.tools))
    if how:
        first = said[0] if said and isinstance(said[0], System) else None
        said[: 1 if first else 0] = [System.of(f"{first.text}\n\n{how}" if first else how)]
    return replace(
        request, messages=tuple(said), tools=(), choice=None, parallel=None, final=False, verbatim=None, passes=""
    )


def _written(call: ToolCall) -> str:
    arguments = call.raw if call.arguments is None else json.dumps(call.arguments, ensure_ascii=False)
    return f"{MARK}{call.name}: {arguments}"


def _described(tools: tuple[ToolSpec, ...]) -> str:
    return "\n".join(
        f"- {tool.name}: {tool.description or 'no description'}\n  arguments: "
        f"{json.dumps(dict(tool.parameters), ensure_ascii=False)}"
        for tool in tools
    )
