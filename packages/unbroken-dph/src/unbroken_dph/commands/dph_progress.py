"""Shows a DPH program while it runs: as lines on a terminal, as lines on standard error with only the value on standard
output, or every event as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import PurePath
from typing import IO, Protocol

from rich.console import Console
from rich.markup import escape

from unbroken.events import (
    CallFinished,
    CallProgress,
    CallsIgnored,
    CallStarted,
    LimitReached,
    RequestRetried,
    TextFinished,
)
from unbroken_cli.progress_line import current
from unbroken_cli.terminal_text import clean, counted, in_brackets, one_line, retrying, seconds, tokens_used, visible
from unbroken_dph import (
    BlockFinished,
    BlockRun,
    BlockStarted,
    InBlock,
    InvalidProgram,
    ProgramEvent,
    ProgramFailed,
    ProgramResult,
    program_event_to_json,
)
from unbroken_dph.values import Answer, in_text
from unbroken_wires.messages import Json, Usage


class Show(Protocol):
    def show(self, event: ProgramEvent) -> None: ...

    def finish(self, result: ProgramResult) -> None:
        """The program ran to its end."""
        ...

    def refuse(self, error: InvalidProgram) -> None:
        """The program has mistakes and was not started."""
        ...

    def fail(self, error: ProgramFailed) -> None:
        """It stopped."""
        ...

    def interrupt(self, variables: dict[str, Json]) -> None:
        """Somebody interrupted it."""
        ...

    def close(self) -> None:
        """Leaves the terminal so that others can print."""
        ...


class _NoMessages:
    """For screens without JSON: the command itself prints these messages, on standard error."""

    def refuse(self, error: InvalidProgram) -> None:
        pass

    def fail(self, error: ProgramFailed) -> None:
        pass

    def interrupt(self, variables: dict[str, Json]) -> None:
        pass


class PlainShow(_NoMessages):
    def __init__(self, out: IO[str], err: IO[str]) -> None:
        self._out, self._err = out, err

    def show(self, event: ProgramEvent) -> None:
        if (line := _line(event)) is not None:
            mark, text = line
            err = current(self._err)
            err.write(f"{_called(event.block)}: {mark} {text}".rstrip() + "\n")
            err.flush()

    def finish(self, result: ProgramResult) -> None:
        if (text := _printed(result.value)) is not None:
            # Unescaped: the reader of a pipe expects the data as it is. Only half a surrogate pair cannot be written.
            self._out.write(text.encode("utf-8", "replace").decode() + "\n")
            self._out.flush()
        self._err.write(f"{closing(result)}\n")

    def close(self) -> None:
        self._err.flush()


class TerminalShow(_NoMessages):
    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def show(self, event: ProgramEvent) -> None:
        if (line := _line(event)) is None:
            return
        mark, text = line
        colour = _COLOURS.get(mark, "default")
        name = escape(_called(event.block))
        indent = "" if not isinstance(event, InBlock) else "  "
        self._console.print(
            f"{indent}[dim]{name}[/dim] [{colour}]{escape(mark)}[/{colour}] {escape(text)}",
            overflow="ellipsis",
            no_wrap=True,
        )

    def finish(self, result: ProgramResult) -> None:
        if (text := _printed(result.value)) is not None:
            self._console.print()
            self._console.print(escape(clean(text)))
        self._console.print(f"[dim]{closing(result)}[/dim]")

    def close(self) -> None:
        pass


class JsonShow:
    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def show(self, event: ProgramEvent) -> None:
        self._write(program_event_to_json(event))

    def finish(self, result: ProgramResult) -> None:
        self._write(
            {
                "type": "ProgramFinished",
                "value": result.value,
                "variables": result.variables,
                "usage": result.usage.to_json(),
                "requests": result.requests,
                "seconds": result.seconds,
                "failed_blocks": [asdict(block) for block in result.failed_blocks],
            }
        )

    def refuse(self, error: InvalidProgram) -> None:
        self._write({"type": "InvalidProgram", "problems": [problem.to_json() for problem in error.problems]})

    def fail(self, error: ProgramFailed) -> None:
        place = error.place
        self._write(
            {
                "type": "ProgramFailed",
                "message": error.message,
                "file": place.file,
                "line": place.line,
                "column": place.column,
                "variables": error.variables,
                "usage": error.usage.to_json(),
                "requests": error.requests,
            }
        )

    def interrupt(self, variables: dict[str, Json]) -> None:
        self._write({"type": "ProgramInterrupted", "variables": variables})

    def close(self) -> None:
        self._out.flush()

    def _write(self, message: dict[str, Json]) -> None:
        # Half a surrogate pair, which a cut-off answer may contain, cannot be written: it becomes an escape.
        text = json.dumps(message, ensure_ascii=False, default=str)
        self._out.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
        self._out.flush()


_COLOURS = {"started": "cyan", "done": "green", "failed": "red", "call": "blue", "gave": "green", "retry": "yellow"}


def closing(result: ProgramResult) -> str:
    how = "tool failure" if result.failed_blocks else "done"
    return f"{how} · {spent(result.requests, result.usage)} · {seconds(result.seconds)}"


def spent(requests: int, usage: Usage) -> str:
    about = "about " if usage.estimated else ""
    tokens = f"{about}{tokens_used(usage.input_tokens, usage.output_tokens)}"
    return f"{counted(requests, 'request')} · {tokens}"


def _called(block: BlockRun) -> str:
    what = f"@{block.called}" if block.called else f"/{block.kind}/"
    return f"{PurePath(block.file).name}:{block.line} {what} {block.name}"


def _line(event: ProgramEvent) -> tuple[str, str] | None:
    match event:
        case BlockStarted(block=block):
            return None if block.kind == "call" else ("started", "")  # a call has its own line
        case BlockFinished(block=block, error=error) if error:
            return "failed", one_line(error)
        case BlockFinished(block=block, value=value, seconds=took, stop_reason=reason):
            how = f" ({reason.replace('_', ' ')})" if reason not in ("", "answered") else ""
            return None if block.kind == "call" else ("done", f"{seconds(took)}{how}: {one_line(in_text(value))}")
        case InBlock(event=CallStarted() as call):
            return "call", f"{visible(call.name)}{in_brackets(call.arguments, 200)}"
        case InBlock(event=CallFinished() as call):
            shared = call.duplicate_of or call.outcome == "cached"
            mark = "failed" if call.error else "shared" if shared else "result"
            return mark, f"{visible(call.name)} {seconds(call.seconds)}: {one_line(call.text)}"
        case InBlock(event=CallProgress() as progress):
            return "progress", f"{visible(progress.name)}: {one_line(progress.message)}"
        case InBlock(event=RequestRetried() as retry):
            return "retry", retrying(retry)
        case InBlock(event=CallsIgnored() as ignored):
            return "ignored", visible(", ".join(ignored.names))
        case InBlock(event=LimitReached() as limit) if event.block.kind != "judge":  # a judge always has one round
            return "limit", f"{limit.kind} ({limit.limit:g})"
        case InBlock(event=TextFinished(text=text, final=False)):
            return "thought", one_line(text)
        case _:
            return None


def _printed(value: Json) -> str | None:
    """The value for a person: a string as it is, anything else as JSON over several lines."""
    if value is None:
        return None
    if isinstance(value, str | Answer):
        return in_text(value)
    return json.dumps(value, ensure_ascii=False, indent=2)
