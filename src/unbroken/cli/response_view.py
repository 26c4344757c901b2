"""How a decoded response looks: on a terminal, in a pipe, as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any, cast

import typer
from rich.console import Console
from rich.markup import escape as markup_escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text as RichText

from unbroken.cli.terminal_text import clean, escape, tokens_used
from unbroken.decoding import Response
from unbroken.deltas import (
    CallOpened,
    CallReady,
    CallSpoiled,
    CallWithdrawn,
    Delta,
    ReasoningDelta,
    ServerCallSeen,
    TextDelta,
)
from unbroken.messages import Json, ToolCall

SHOWN = 400
"""Characters of a long text that a terminal shows."""


class Live:
    """Prints what happens while the bytes arrive: the text as it comes, each call when its last byte has come."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._mid_line = False

    def show(self, delta: Delta, position: int) -> None:
        match delta:
            case TextDelta(text):
                self._print(escape(text), end="")
            case ReasoningDelta(text):
                self._print(f"[dim]{escape(text)}[/]", end="")
            case CallOpened(_, name, _):
                self._line(f"[cyan]…[/] [dim]byte {position:>6,}[/]  {escape(name)} begins")
            case CallReady(call):
                self._line(f"[green]✔[/] [dim]byte {position:>6,}[/]  {_call(call)}")
            case CallSpoiled(call):
                self._line(
                    f"[red]✘[/] [dim]byte {position:>6,}[/]  {escape(call.name)} will not run: {escape(call.problem)}"
                )
            case CallWithdrawn(index):
                self._line(
                    f"[yellow]↺[/] [dim]byte {position:>6,}[/]  call {index} is withdrawn: it is no call of its own"
                )
            case ServerCallSeen(seen):
                self._line(f"[dim]⚙ byte {position:>6,}  run by the provider: {escape(seen.name or seen.type)}[/]")
            case _:
                pass

    def close(self, response: Response) -> None:
        self._line(_closing(response, pretty=True))

    def _print(self, text: str, end: str) -> None:
        self._console.print(text, end=end, soft_wrap=True)
        self._mid_line = not text.endswith("\n")

    def _line(self, text: str) -> None:
        if self._mid_line:
            self._console.print()
        self._console.print(text, soft_wrap=True)
        self._mid_line = False


def show_pretty(console: Console, response: Response, wire: str, file: str) -> None:
    console.print(f"[bold]{escape(file)}[/]  [dim]{wire}[/]")
    show_contents(console, response)


def show_contents(console: Console, response: Response) -> None:
    if response.reasoning:
        console.print(
            Panel(RichText(_short(response.reasoning)), title="reasoning", border_style="dim", title_align="left")
        )
    if response.text:
        console.print(Panel(RichText(_short(response.text)), title="text", title_align="left"))
    if response.calls:
        table = Table(show_edge=False, pad_edge=False, header_style="bold")
        for column in ("", "call", "arguments", "id"):
            table.add_column(column, overflow="fold")
        for call in response.calls:
            good = not call.problem
            mark = RichText("✔", "green") if good else RichText("✘", "red")
            shown = _short(call.raw or "{}")
            arguments = RichText(shown) if good else RichText(f"{clean(call.problem)}\n{shown}", "red")
            table.add_row(mark, RichText(clean(call.name)), arguments, RichText(clean(call.id), "dim"))
        console.print(table)
    for call in response.server_calls:
        console.print(f"[dim]run by the provider:[/] {escape(call.name or call.type)}")
    console.print(_closing(response, pretty=True))


def show_plain(response: Response, *heading: str) -> None:
    lines = [*heading]
    if response.reasoning:
        lines.append(f"reasoning: {response.reasoning}")
    if response.text:
        lines.append(f"text: {response.text}")
    for call in response.calls:
        state = f"NOT COMPLETE ({call.problem})" if call.problem else "complete"
        lines.append(f"call: {call.name} {call.raw or '{}'} id={call.id} {state}")
    lines += [f"server call: {call.name or call.type}" for call in response.server_calls]
    for line in lines:
        typer.echo(clean(line))
    typer.echo(_closing(response, pretty=False))


def as_json(response: Response, wire: str, about: dict[str, Json] | None = None) -> str:
    """With `about`, which comes first, all of it is one line."""
    calls: list[dict[str, Any]] = [asdict(call) for call in response.calls]
    value: dict[str, Any] = {
        **(about or {}),
        "wire": wire,
        "complete": response.complete,
        "verdict": {**asdict(response.verdict), "whole": response.verdict.whole},
        "text": response.text,
        "reasoning": response.reasoning,
        "calls": calls,
        "server_calls": [asdict(call) for call in response.server_calls],
        "finish": response.finish,
        "usage": None if response.usage is None else {**asdict(response.usage), "raw": dict(response.usage.raw)},
        "error": response.error,
    }
    text = json.dumps(_sayable(value), ensure_ascii=False, indent=None if about else 2, allow_nan=False)
    return text.encode("utf-8", "replace").decode()


def _sayable(value: Json) -> Json:
    """NaN and Infinity, which a provider's own numbers may be, are null in JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _sayable(item) for key, item in cast("dict[str, Json]", value).items()}
    if isinstance(value, list | tuple):
        return [_sayable(item) for item in cast("list[Json]", value)]
    return value


def _call(call: ToolCall) -> str:
    return f"[bold]{escape(call.name)}[/] {markup_escape(_short(call.raw or '{}'))}"


def _short(text: str) -> str:
    text = clean(text)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text):,} characters)"


def _closing(response: Response, pretty: bool) -> str:
    said = [f"finish: {response.finish}"] if response.finish is not None else []
    if response.usage:
        said.append(tokens_used(response.usage.input_tokens, response.usage.output_tokens))
    finish = ", ".join(said) or "no finish reason"
    verdict = response.verdict
    if verdict.whole:
        return f"[green]whole[/]  [dim]{escape(finish)}[/]" if pretty else clean(f"whole; {finish}")
    if pretty:
        return f"[bold red]broken: {verdict.kind}[/]  {escape(verdict.reason)}  [dim]{escape(finish)}[/]"
    return clean(f"broken: {verdict.kind}: {verdict.reason}; {finish}")
