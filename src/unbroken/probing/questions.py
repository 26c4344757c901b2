"""The questions, in the order in which they are asked: later ones build on what earlier ones found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from unbroken.probing.asker import Asker
from unbroken.probing.calling import (
    ask_final,
    ask_long,
    ask_no_arguments,
    ask_none,
    ask_one,
    ask_parallel_off,
    ask_required,
    ask_results,
    ask_several,
    ask_streamed,
    ask_strict,
    ask_tools,
    ask_unicode,
)
from unbroken.probing.findings import Finding
from unbroken.probing.talking import ask_limit, ask_stream, ask_system, ask_text, ask_usage


@dataclass(frozen=True, slots=True)
class Question:
    name: str
    title: str
    ask: Callable[[Asker], Awaitable[Finding]]
    tools: bool = True
    """It is skipped if tools do not work at all."""


QUESTIONS = (
    Question("text", "plain text", ask_text, tools=False),
    Question("limit", "token limit", ask_limit, tools=False),
    Question("system", "system message", ask_system, tools=False),
    Question("stream", "streaming", ask_stream, tools=False),
    Question("usage", "usage in the stream", ask_usage, tools=False),
    Question("tools", "a tool call", ask_tools, tools=False),
    Question("required", "choice: any tool", ask_required),
    Question("one", "choice: one tool by name", ask_one),
    Question("none", "choice: none", ask_none),
    Question("several", "several calls at once", ask_several),
    Question("parallel_off", "one call at most", ask_parallel_off),
    Question("stream_tools", "streaming with tools", ask_streamed),
    Question("no_arguments", "a tool without arguments", ask_no_arguments),
    Question("unicode", "unicode arguments", ask_unicode),
    Question("long", "long arguments", ask_long),
    Question("strict", "strict tools", ask_strict),
    Question("results", "results given back", ask_results),
    Question("final", "final request", ask_final),
)
