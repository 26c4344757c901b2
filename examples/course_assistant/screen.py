"""Shows a question and its answer: on a terminal as it happens, in a pipe the answer on standard output and the steps
on standard error, or as one line of JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.markup import escape

from course_assistant.assistant import Answered
from course_assistant.quoting import hits, numbers
from course_assistant.sources import cite
from unbroken import CallFinished, CallStarted, Event, RequestSent, TextAdded, TextReplaced
from unbroken.events import RequestRetried

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SUBTITLE = re.compile(r":.*?(?= - Lesson \d+$|$)")
NO_MORE_CALLS = "no more tool calls: the model has to answer"
NO_ANSWER = "the model gave no answer, though it was asked three times"


class Screen(Protocol):
    def ask(self, question: str) -> None: ...

    def show(self, step: Event | Answered) -> None: ...

    def close(self) -> None:
        """Called at the end, whatever happened, so that nothing is left half drawn."""
        ...


def find_screen(as_json: bool) -> Screen:
    if as_json:
        return JsonScreen()
    return TerminalScreen() if sys.stdout.isatty() else PlainScreen()


def clean(text: str) -> str:
    """Removes characters that move a terminal's cursor or change the writing direction."""
    return _CONTROL.sub("", text)


def call_in_words(name: str, arguments: Mapping[str, Any] | None) -> str:
    inside = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in (arguments or {}).items())
    return clean(f"{name}({inside})")


def outcome_in_words(call: CallFinished) -> str:
    lines = call.text.splitlines() or [""]
    if call.error or len(lines) == 1:
        return clean(lines[0])
    short = dict.fromkeys(_SUBTITLE.sub("", hit.place) for hit in hits(call.text))
    return clean(", ".join(short) or lines[0])


def numbers_in_words(answered: Answered) -> str:
    result, usage = answered.result, answered.result.usage
    about = "about " if usage.estimated else ""
    cost = "cost unknown" if result.cost is None else f"${result.cost:.4f}"
    return (
        f"{_count(result.rounds, 'round')}, {_count(result.requests, 'request')}, {_count(len(result.calls), 'call')}, "
        f"{about}{usage.input_tokens:,} + {usage.output_tokens:,} tokens, {cost}, {result.seconds:.2f} s"
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


class TerminalScreen:
    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._text = ""
        self._live: Live | None = None
        self._found: dict[int, int] = {}
        """The numbers of the hits, which the text may cite."""

    def ask(self, question: str) -> None:
        self._found.clear()
        self._console.print(f"\n[bold]{escape(clean(question))}[/]")

    def show(self, step: Event | Answered) -> None:
        match step:
            case RequestSent():
                self.close()
                if step.final:
                    self._console.print(f"  [dim]{NO_MORE_CALLS}[/]")
            case TextAdded():
                self._say(self._text + step.text)
            case TextReplaced():
                self._say(step.text)
            case RequestRetried():
                self.close()
                self._console.print(f"  [yellow]retried[/] {escape(clean(step.reason))}")
            case CallStarted():
                self.close()
                call = escape(call_in_words(step.name, step.arguments))
                self._console.print(f"  [cyan]round {step.turn + 1}[/]  {call}")
            case CallFinished():
                self._found |= {number: number for number in numbers(step.text)}
                mark = "[red]failed[/] " if step.error else "[dim]->[/] "
                words = escape(outcome_in_words(step))
                self._console.print(f"           {mark}[dim]{step.seconds:.2f} s[/] {words}")
            case Answered():
                self.close()
                if not step.text:
                    self._console.print(f"  [dim]{NO_ANSWER}[/]")
                for number, source in enumerate(step.sources, 1):
                    line = f"  [dim]\\[{number}] {escape(clean(source.title))}[/]  {escape(clean(source.file))}"
                    self._console.print(line, soft_wrap=True)
                self._console.print(f"  [dim]{numbers_in_words(step)}[/]")
            case _:
                pass

    def _say(self, text: str) -> None:
        self._text = text
        if self._live is None:
            self._console.print()
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="visible")
            self._live.start()
        self._live.update(Markdown(clean(cite(text, self._found)[0])), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._console.print()
        self._live, self._text = None, ""


class PlainScreen:
    """The text is printed when it is complete, so that a retry that replaces a broken answer prints nothing twice."""

    def ask(self, question: str) -> None:
        self._step(f"question: {clean(question)}")

    def show(self, step: Event | Answered) -> None:
        match step:
            case RequestSent(final=True):
                self._step(f"  {NO_MORE_CALLS}")
            case RequestRetried():
                self._step(f"  retried: {clean(step.reason)}")
            case CallStarted():
                self._step(f"  round {step.turn + 1}: {call_in_words(step.name, step.arguments)}")
            case CallFinished():
                mark = "failed " if step.error else "-> "
                self._step(f"    {mark}{step.seconds:.2f} s {outcome_in_words(step)}")
            case Answered():
                if not step.text:
                    self._step(f"  {NO_ANSWER}")
                lines = [cite(step.text, {source.number: source for source in step.sources})[0]]
                if step.sources:
                    listed = enumerate(step.sources, 1)
                    lines += [
                        "",
                        "Sources:",
                        *(f"[{number}] {source.title}: {source.file}" for number, source in listed),
                    ]
                sys.stdout.write(clean("\n".join(lines)) + "\n")
                sys.stdout.flush()
                self._step(f"  {numbers_in_words(step)}")
            case _:
                pass

    def _step(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def close(self) -> None:
        pass


class JsonScreen:
    def __init__(self) -> None:
        self._question = ""

    def ask(self, question: str) -> None:
        self._question = question

    def show(self, step: Event | Answered) -> None:
        if isinstance(step, Answered):
            sys.stdout.write(json.dumps(to_json(self._question, step), ensure_ascii=False) + "\n")
            sys.stdout.flush()

    def close(self) -> None:
        pass


def to_json(question: str, answered: Answered) -> dict[str, Any]:
    result, usage = answered.result, answered.result.usage
    return {
        "question": question,
        "answer": answered.text,
        "sources": [
            {"number": source.number, "title": source.title, "file": source.file} for source in answered.sources
        ],
        "stop_reason": result.stop_reason,
        "rounds": result.rounds,
        "requests": result.requests,
        "calls": [
            {"name": call.name, "arguments": call.arguments, "round": call.turn + 1, "error": call.error}
            for call in result.calls
        ],
        "tokens": {"input": usage.input_tokens, "output": usage.output_tokens, "estimated": usage.estimated},
        "cost": None if result.cost is None else round(result.cost, 6),
        "seconds": round(result.seconds, 3),
    }
