"""`mode="prompt"`: tools for a model without tool calls. The tools are described in the prompt, and the model calls one
by writing `=>#name: {json}`.

`TextCalls` wraps a model, so the agent's loop does not need to know about it: requests are converted to text, and the
call is read from the text of the response. Whatever the model writes after its call is ignored, because it would be an
invented result.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from unbroken.models.model import Model, closing
from unbroken_wires.decoding.arguments import Scanner, parse_arguments
from unbroken_wires.deltas import (
    CallArguments,
    CallOpened,
    CallReady,
    CallSpoiled,
    Delta,
    Ended,
    PartialResponse,
    Restarted,
    TextDelta,
    Verdict,
)
from unbroken_wires.messages import (
    Assistant,
    Json,
    Message,
    OneTool,
    Request,
    System,
    ToolCall,
    ToolMessage,
    ToolSpec,
    User,
)

MARK = "=>#"
_OPENING = re.compile(r"=>#[ \t]*([\w./-]+)[ \t]*([:：])")
_ALONE = re.compile(r"=>#[ \t]*([\w./-]+)[ \t]*([:：]?)[ \t]*$")
"""The name of a tool and nothing else: a call without arguments."""
_UP_TO_A_BRACE = re.compile(r"[^}]*}|[^}]+")
LONGEST_NAME = 200
IGNORED = 2000
"""Characters after the call that are still read, so that the model can finish and report its usage."""

HOW_TO_CALL = """\
You can use these tools, one call at a time:
{tools}

To call a tool, write this on a line of its own and stop there:
=>#tool_name: {{"argument": "value"}}
The arguments are one JSON object. The result comes in the next message. When you need no tool, just answer."""
MUST_CALL = "In your next reply you must call {what}."
NO_MORE = "No tool can be called any more. Answer now, with what you have."


class TextCalls:
    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def name(self) -> str:
        return self._model.name

    def __getattr__(self, name: str) -> Any:
        """Everything else is delegated to the model, including its secrets, which a recorder has to know."""
        return getattr(self._model, name)

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        before = sum(isinstance(message, Assistant) and bool(message.calls) for message in request.messages)
        names = frozenset(tool.name for tool in request.tools)
        return self._stream(as_text(request), f"call_{before}_0", names)

    async def _stream(self, request: Request, id: str, names: frozenset[str]) -> AsyncIterator[Sequence[Delta]]:
        reader = _Reader(id, names)
        async with closing(self._model.stream(request)) as batches:
            async for deltas in batches:
                if read := [each for delta in deltas for each in reader.take(delta)]:
                    yield read
                if reader.ended:
                    return
                if reader.ignored > IGNORED:
                    break
        yield [Ended(Verdict("whole", finish="tool_calls"), reader.message())]


class _Reader:
    """Finds the one call in a text that arrives in pieces. Text is held back only if it may be the beginning of a
    call."""

    def __init__(self, id: str, names: frozenset[str]) -> None:
        self.call: ToolCall | None = None
        """Set when the call is complete, or can no longer become complete."""
        self.ignored = 0
        """Characters that came after the call."""
        self.ended = False
        self._response = PartialResponse()
        self._id = id
        self._names = names
        self._held = ""
        self._at_line_start = True
        self._name = ""
        """The name of the call that is being written."""
        self._raw: list[str] = []
        self._scanner = Scanner()

    def message(self) -> Assistant:
        """Everything received so far."""
        return self._response.message

    def take(self, delta: Delta) -> list[Delta]:
        """The deltas to yield instead of this one."""
        out = self._read(delta)
        for each in out:
            self._response.feed(each)
        if isinstance(delta, Ended):
            self.ended = True
            # The native message of the wire does not match the new deltas, so the message is built from them.
            out.append(Ended(delta.verdict, self.message()))
        return out

    def _read(self, delta: Delta) -> list[Delta]:
        match delta:
            case TextDelta():
                return self._feed(delta.text)
            case CallReady(call) | CallSpoiled(call):  # the model does have tool calls
                if self.call is not None:
                    return []
                self.call = call
            case Restarted():
                self.__init__(self._id, self._names)
            case Ended():
                return self._end(delta.verdict.whole)
            case _:
                pass
        return [delta]

    def _feed(self, text: str) -> list[Delta]:
        if self.call is not None:
            self.ignored += len(text)
            return []
        if self._name:
            return self._arguments(text)
        out: list[Delta] = []
        text, self._held = self._held + text, ""
        while text:
            at = text.find(MARK)
            if at < 0:
                keep = next((size for size in (2, 1) if text.endswith(MARK[:size])), 0)
                self._add_text(out, text[: len(text) - keep])
                self._held = text[len(text) - keep :]
                break
            self._add_text(out, text[:at])
            text = text[at:]
            found = _OPENING.match(text)
            if found is None:  # its name may not be complete yet
                line, newline, _ = text.partition("\n")
                if not newline and len(line) < LONGEST_NAME:
                    self._held = text
                    break
                found = _ALONE.match(line)
            if found is not None and self._is_call(found):
                return [*out, *self._open(found, text)]
            self._add_text(out, text[: len(MARK)])
            text = text[len(MARK) :]
        return out

    def _end(self, complete: bool) -> list[Delta]:
        """The text has ended. A call that is incomplete is reported as such; it never runs."""
        if self.call is not None:
            return []
        out: list[Delta] = []
        held, self._held = self._held, ""
        if held:
            found = _ALONE.match(held)
            if found is not None and self._is_call(found):
                out += self._open(found, held)
            else:
                self._add_text(out, held)
        if self._name and self.call is None and complete:
            raw = "".join(self._raw).strip()
            # No text at all is a call without arguments; incomplete arguments are not a call.
            parsed = parse_arguments(raw or "{}")
            self._finish(out, parsed.arguments, parsed.problem)
        return out

    def _is_call(self, found: re.Match[str]) -> bool:
        """In the middle of a line it is a call only if it names a tool."""
        return found[1] in self._names or (self._at_line_start and bool(found[2]))

    def _add_text(self, out: list[Delta], text: str) -> None:
        if text:
            out.append(TextDelta(text))
            last = text.rpartition("\n")[2]
            self._at_line_start = not last.strip() and (self._at_line_start or "\n" in text)

    def _open(self, found: re.Match[str], text: str) -> list[Delta]:
        self._name = found[1]
        out: list[Delta] = [CallOpened(0, self._name, self._id)]
        if not found[2]:
            self._finish(out, {}, "")
            self.ignored += len(text) - found.end()
            return out
        return [*out, *self._arguments(text[found.end() :])]

    def _arguments(self, text: str) -> list[Delta]:
        """Reads up to the brace that closes the object; the rest is ignored."""
        out: list[Delta] = []
        scanner, read = self._scanner, 0
        for piece in _UP_TO_A_BRACE.findall(text):
            self._raw.append(piece)
            read += len(piece)
            out.append(CallArguments(0, piece))
            closed = scanner.feed(piece)
            # If it wrote something else than an object, the error quotes that line.
            ended = scanner.foreign and "\n" in "".join(self._raw).lstrip()
            if closed or scanner.spoiled or scanner.too_deep or ended:
                parsed = parse_arguments("".join(self._raw).strip())
                self._finish(out, parsed.arguments, parsed.problem)
                self.ignored += len(text) - read
                break
        return out

    def _finish(self, out: list[Delta], arguments: dict[str, Json] | None, problem: str) -> None:
        raw = "".join(self._raw).strip()
        self.call = ToolCall(self._id, self._name, arguments, raw, complete=arguments is not None, problem=problem)
        out.append(CallReady(self.call) if self.call.complete else CallSpoiled(self.call))


def as_text(request: Request) -> Request:
    """The same request as plain text, for a model without tool calls."""
    messages: list[Message] = []
    for message in request.messages:
        match message:
            case Assistant(text=text, calls=calls) if calls:
                lines = [text.rstrip()] if text.strip() else []
                messages.append(Assistant("\n".join([*lines, *map(_written, calls)])))
            case ToolMessage(results=results):
                messages.append(User.of("\n\n".join(f"Result of {one.name}:\n{one.text}" for one in results)))
            case _:
                messages.append(message)
    how = _how_to_call(request)
    if how:
        first = messages[0] if messages and isinstance(messages[0], System) else None
        messages[: 1 if first else 0] = [System.of(f"{first.text}\n\n{how}" if first else how)]
    return replace(request, messages=tuple(messages), tools=(), choice=None, parallel=None, final=False)


def _how_to_call(request: Request) -> str:
    if not request.tools:
        return ""
    if request.final or request.choice == "none":
        return NO_MORE
    how = HOW_TO_CALL.format(tools=_described(request.tools))
    if request.choice == "required":
        return f"{how}\n{MUST_CALL.format(what='a tool')}"
    return f"{how}\n{MUST_CALL.format(what=request.choice.name)}" if isinstance(request.choice, OneTool) else how


def _written(call: ToolCall) -> str:
    arguments = call.raw if call.arguments is None else json.dumps(call.arguments, ensure_ascii=False)
    return f"{MARK}{call.name}: {arguments}"


def _described(tools: tuple[ToolSpec, ...]) -> str:
    return "\n".join(
        f"- {tool.name}: {tool.description or 'no description'}\n  arguments: "
        f"{json.dumps(dict(tool.parameters), ensure_ascii=False)}"
        for tool in tools
    )
