"""`unbroken probe --base-url … --model …`: tests a live endpoint (what works, what differs, what is broken) and prints
its provider profile.

On a terminal each test is shown when it starts. In a pipe the complete output is TOML: the findings are comments, so
you can append it to your file of provider profiles unchanged.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from dataclasses import asdict, replace
from json import dumps
from typing import Annotated, Protocol, cast

import typer
from rich.console import Console
from rich.text import Text

from unbroken.errors import TimedOut, UnbrokenError, UserError
from unbroken.models.connect import connect
from unbroken.models.http import HTTPModel
from unbroken.models.provider_files import ProfileTable, write_profile
from unbroken.models.providers import find_provider
from unbroken_cli import options
from unbroken_cli.exits import ANSWERED, INTERRUPTED, MISUSED, print_error, print_line
from unbroken_cli.progress_line import progress
from unbroken_cli.streams import is_terminal
from unbroken_cli.terminal_text import counted, one_line, seconds
from unbroken_testing.probing import Answer, Judgement, Report, probe
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.rules import rules_for

BROKEN = 1

_MARKS: dict[Judgement, tuple[str, str]] = {
    "works": ("✔", "green"),
    "differs": ("≈", "yellow"),
    "broken": ("✘", "red"),
    "unclear": ("?", "blue"),
}
_LONGEST = 300
_TIMES = re.compile(r"\b(?:total|first_byte|idle|connect_timeout)=(?=\d)")
"""The names that `connect` has for the times that --timeout sets."""


def probe_command(
    model: Annotated[str, typer.Option("--model", "-m", help="The model, as the server names it.")],
    base_url: Annotated[str, typer.Option(metavar="URL", help="The address; by default the provider's own.")] = "",
    provider: Annotated[
        str, typer.Option(help="The profile to start from; compatible is any OpenAI-compatible server.")
    ] = "compatible",
    wire: options.WireName = "",
    api_key_env: options.ApiKeyEnv = "",
    timeout: Annotated[float, typer.Option(metavar="S", help="Time limit for one answer, in seconds.")] = 120.0,
    rules: Annotated[
        bool, typer.Option("--rules", help="Send nothing: list what is known that this model refuses.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Send a live endpoint eighteen small test requests, and print the provider profile with which Unbroken handles it.

    Exit codes: 0 everything works, or differs and is handled (with the printed profile); 1 something is broken; 2 it
    could not be tested: a wrong key, an unknown model, no server; 130 interrupted.
    """
    if rules:
        _list_rules(provider, model.strip(), wire, json)
        return
    screen: _Screen = _Json() if json else _Live() if is_terminal(sys.stdout) else _Plain()
    try:
        asked = _connect(provider, model, base_url, wire, api_key_env, timeout)
        screen.head(asked)
        with progress("testing") as line:
            report = asyncio.run(
                probe(
                    asked,
                    on_start=lambda question: setattr(line, "words", question.title),
                    on_answer=lambda answer: screen.on_answer(_in_options(answer)),
                )
            )
        report = replace(report, answers=tuple(map(_in_options, report.answers)))
        screen.end(report, report.profile(base_url, api_key_env))
    except TimedOut as error:
        longer = f"; if the server is only slow, give it longer than --timeout {timeout:g}"
        words = _TIMES.sub("", str(error)).removesuffix("; a slow model needs a larger first_byte")
        print_error(TimedOut(words + longer), options.Setup())
        raise typer.Exit(MISUSED) from None
    except UnbrokenError as error:
        print_error(error, options.Setup(api_key_env=api_key_env))
        raise typer.Exit(MISUSED) from None
    except KeyboardInterrupt:
        print_line("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(BROKEN if report.judgement == "broken" else ANSWERED)


def _list_rules(provider: str, model: str, wire: str, json: bool) -> None:
    try:
        profile = find_provider(provider)
        spoken = find_wire(wire or profile.wire)
    except UserError as error:
        print_error(error, options.Setup())
        raise typer.Exit(MISUSED) from None
    known = rules_for(spoken.rules(), profile.name, model)
    if json:
        rows = [{"name": rule.name, "says": rule.says, "status": rule.status, "source": rule.source} for rule in known]
        typer.echo(dumps({"model": f"{profile.name}:{model}", "wire": spoken.name, "rules": rows}, ensure_ascii=False))
        return
    rules = counted(len(known), "rule")
    typer.echo(f"{rules} for {profile.name}:{model} on {spoken.name}; requests are written to obey them")
    for rule in known:
        typer.echo(f"- {rule.says} ({rule.source})")


def _connect(provider: str, model: str, base_url: str, wire: str, api_key_env: str, timeout: float) -> HTTPModel:
    """The model without retries, which would hide the faults that the probe looks for."""
    if not timeout > 0:  # NaN is not
        raise UserError(f"--timeout {timeout:g}: give seconds above 0")
    key = os.environ.get(api_key_env, "").strip() if api_key_env else None
    if key == "":
        raise UserError(f"--api-key-env {api_key_env}: that variable is not set; export it, or name another")
    connected = connect(
        f"{provider}:{model.strip()}",
        base_url=base_url or None,
        api_key=key,
        wire=wire or None,
        connect_timeout=min(10.0, timeout),
        first_byte=timeout,
        idle=min(30.0, timeout),  # a stream that stalls is a fault; one that is only long is not
        total=timeout,
    )
    return connected.model


def _in_options(answer: Answer) -> Answer:
    return replace(answer, finding=replace(answer.finding, words=_TIMES.sub("", answer.finding.words)))


class _Screen(Protocol):
    def head(self, model: HTTPModel) -> None: ...
    def on_answer(self, answer: Answer) -> None: ...
    def end(self, report: Report, table: ProfileTable) -> None: ...


def _asked(model: HTTPModel) -> str:
    return f"{model.name} on {model.wire}"


def _closing(report: Report) -> str:
    count = {kind: sum(answer.finding.judgement == kind for answer in report.answers) for kind in _MARKS}
    counts = ", ".join(f"{kind}: {number}" for kind, number in count.items() if number)
    requests = sum(answer.requests for answer in report.answers)
    took = seconds(sum(answer.seconds for answer in report.answers))
    return f"{counts} · {requests} requests, {took}"


def _advice(report: Report, table: ProfileTable) -> str:
    what = "the profile that handles it" if table.quirks else "no quirks are needed; this profile gives it a name"
    model = f"{table.name}:{report.model.partition(':')[2]}"
    return f"{what}, for ~/.config/unbroken/providers.toml; the model is then {one_line(model)}"


class _Plain:
    def head(self, model: HTTPModel) -> None:
        self._line(_asked(model))

    def on_answer(self, answer: Answer) -> None:
        words = f": {one_line(answer.finding.words, _LONGEST)}" if answer.finding.words else ""
        self._line(f"{answer.finding.judgement:<8}{answer.title}{words}")

    def end(self, report: Report, table: ProfileTable) -> None:
        self._line(_closing(report))
        self._line(_advice(report, table))
        typer.echo(f"\n{write_profile(table)}", nl=False)

    def _line(self, text: str) -> None:
        typer.echo(f"# {text}")
        sys.stdout.flush()


class _Live:
    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def head(self, model: HTTPModel) -> None:
        self._console.print(Text(_asked(model), "bold"))

    def on_answer(self, answer: Answer) -> None:
        mark, colour = _MARKS[answer.finding.judgement]
        line = Text.assemble((f"{mark} {answer.finding.judgement:<8}", colour), answer.title)
        if answer.finding.words:
            line.append(f"  {one_line(answer.finding.words, _LONGEST)}", "dim")
        self._console.print(line)

    def end(self, report: Report, table: ProfileTable) -> None:
        self._console.print(Text(_closing(report), "bold"))
        self._console.print(Text(f"\n{_advice(report, table)}:\n", "dim"))
        self._console.print(Text(write_profile(table)), end="", soft_wrap=True)


class _Json:
    def head(self, model: HTTPModel) -> None:
        pass

    def on_answer(self, answer: Answer) -> None:
        pass

    def end(self, report: Report, table: ProfileTable) -> None:
        value = {
            "model": report.model,
            "address": report.address,
            "wire": report.wire,
            "judgement": report.judgement,
            "answers": [asdict(answer) for answer in report.answers],
            "profile": write_profile(table),
            "name": table.name,
        }
        typer.echo(dumps(value, ensure_ascii=False, default=_plain))


def _plain(value: object) -> object:
    return sorted(cast("frozenset[str]", value)) if isinstance(value, frozenset) else str(value)
