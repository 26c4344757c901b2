"""The answer to one request, read from the events of an SDK session: pure, without the SDK.

The SDK reports the events of Anthropic's stream, so Unbroken's decoder for that wire reads them. Calls of the client's
tools get the client's names, and ids of our own. Other calls (of a tool that does not exist) are answered by the SDK,
which then asks its model again: the client sees one answer, without them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any, Literal

from claude_agent_upstream.conversation import PREFIX, WIRE, Object, may_call
from unbroken.errors import Unavailable
from unbroken_wires.decoding import Decoder
from unbroken_wires.deltas import Delta, Ended, ReasoningDelta, TextDelta, UsageReported
from unbroken_wires.messages import Assistant, Request, Usage

MAX_ROUNDS = 8
"""How often the SDK may answer calls itself in one answer."""

Outcome = Literal["open", "calls", "text", "cut"]
"""What the message so far is: not at its end; at its end, with calls for the client; with text only; ended in another
way (a token limit, a refusal, a call that cannot be read), after which the session cannot be used."""


class Answer:
    def __init__(self, request: Request, tools: Collection[str]) -> None:
        """`tools`: the client's tools, by the CLI's names."""
        self.outcome: Outcome = "open"
        self.calls: dict[str, str] = {}
        """The SDK's ids of the calls, by the ids that the client has."""
        self.hidden = False
        """The session knows more than the client: calls that the SDK answered itself, or reasoning."""
        self.began = False
        """The client has received a part of it."""
        self.message = Assistant()
        self._request = request
        self._tools = tools
        self._decoder: Decoder | None = None
        self._left_out: set[int] = set()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._usage: list[Usage] = []
        self._reported: Usage | None = None
        self._ended: Ended | None = None
        self._stop_reason = ""
        self._rounds = 0
        self._new_paragraph = False
        """The next text comes after calls that the SDK answered itself."""

    def feed(self, event: Object) -> list[Delta]:
        """The deltas of one event."""
        match event.get("type"):
            case "message_start":
                self._start()
            case "content_block_start":
                event = self._open_block(event)
            case "message_delta":
                self._stop_reason = event.get("delta", {}).get("stop_reason") or ""
            case _:
                pass
        if event.get("index") in self._left_out or self._decoder is None:
            return []
        deltas = self._pass_on(self._decoder.feed(_as_sse(event)))
        if event.get("type") == "message_stop":
            deltas += self._stop()
        return deltas

    def break_off(self, reason: str) -> list[Delta]:
        """The end of an answer that the session did not finish."""
        decoder = self._decoder or Decoder(WIRE, request=self._request)
        deltas = self._pass_on(decoder.end(reason, "lost"))
        return [*deltas, self._ended] if self._ended is not None else deltas

    def end(self, left_out: tuple[str, ...] = ()) -> list[Delta]:
        """The last deltas of a finished answer."""
        assert self._ended is not None
        deltas: list[Delta] = []
        if self._usage:
            deltas.append(UsageReported(sum(self._usage[1:], self._usage[0])))
        return [*deltas, Ended(replace(self._ended.verdict, left_out=left_out), self.message)]

    def _start(self) -> None:
        if self._decoder is not None:
            raise Unavailable("the SDK began its answer again", status=502)
        self._decoder = Decoder(WIRE, request=self._request)
        self._left_out.clear()
        self._stop_reason = ""

    def _open_block(self, event: Object) -> Object:
        block: Object = event["content_block"]
        if block["type"] in ("thinking", "redacted_thinking"):
            self.hidden = True
        if block["type"] != "tool_use":
            return event
        if block["name"] not in self._tools:
            self._left_out.add(event["index"])
            self.hidden = True
            return event
        if not may_call(self._request):
            raise Unavailable("the model called a tool, and the request has the tool choice `none`", status=502)
        id = f"toolu_{token_hex(16)}"  # nobody can guess it, so only this client can continue the session
        self.calls[id] = block["id"]
        return {**event, "content_block": {**block, "id": id, "name": block["name"].removeprefix(PREFIX)}}

    def _stop(self) -> list[Delta]:
        assert self._decoder is not None
        deltas = self._pass_on(self._decoder.end())
        ended = self._ended
        assert ended is not None
        assert ended.message is not None
        if self._reported is not None:
            self._usage.append(self._reported)
        message = Assistant("".join(self._text), ended.message.calls, "".join(self._reasoning))
        self.message = message if self._rounds else ended.message
        if self._stop_reason == "tool_use" and self._left_out and not self.calls:
            self._next_round()
        elif not ended.verdict.whole or self._stop_reason not in ("tool_use", "end_turn", "stop_sequence"):
            self.outcome = "cut"
        else:
            self.outcome = "calls" if message.calls else "text"
        return deltas

    def _next_round(self) -> None:
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            raise Unavailable(f"the model called tools that do not exist {self._rounds} times", status=502)
        self._decoder = self._ended = self._reported = None
        self._new_paragraph = bool(self._text)

    def _pass_on(self, deltas: Sequence[Delta]) -> list[Delta]:
        passed: list[Delta] = []
        for delta in deltas:
            match delta:
                case UsageReported(usage):
                    self._reported = usage
                case Ended():
                    self._ended = delta
                case TextDelta(text):
                    if self._new_paragraph:
                        self._new_paragraph = False
                        delta = TextDelta(f"\n\n{text}")
                    self._text.append(delta.text)
                    passed.append(delta)
                case ReasoningDelta(text):
                    self._reasoning.append(text)
                    passed.append(delta)
                case _:
                    passed.append(delta)
        self.began = self.began or bool(passed)
        return passed


def _as_sse(event: dict[str, Any]) -> bytes:
    return f"event: {event.get('type')}\ndata: {json.dumps(event)}\n\n".encode()
