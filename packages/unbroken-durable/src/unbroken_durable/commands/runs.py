"""`unbroken runs`: start, list, show, answer, cancel, retry, drive and export the durable runs of a journal."""

from __future__ import annotations

import asyncio
import json as json_text
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast, get_args

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text as RichText

from unbroken.agent import Agent
from unbroken.errors import UserError
from unbroken.events import Event, RunFinished, Sink
from unbroken.tools.approval import Allow, Deny, Edit
from unbroken_cli import options
from unbroken_cli.approval_prompt import approval_text, call_of
from unbroken_cli.exits import ANSWERED, FAILED, INTERRUPTED, WAITING, code_of_result, print_line
from unbroken_cli.run import read_prompt
from unbroken_cli.session import logged, open_screen, read_limits
from unbroken_cli.streams import is_terminal
from unbroken_cli.terminal_text import clean, clean_line, one_line
from unbroken_durable import Journal, Outcome, RunRow, drive
from unbroken_durable.commands.journals import (
    REFUSED,
    AgentsName,
    JournalUrl,
    check_keys,
    ending_durable,
    in_journal,
    load_agents,
)
from unbroken_durable.records import StartOptions, State
from unbroken_wires.messages import Text, ToolResult

app = typer.Typer(help="Durable runs, which a journal holds. See also `unbroken worker`.", no_args_is_help=True)


RunId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The run; `unbroken runs list` lists them.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]

EXIT_CODES = (
    "Exit codes: 0 done; 1 the state of the run does not allow it (it has ended, the call was answered before, or "
    "another driver has the run); 2 wrong use, or there is no such run; 3 the database cannot be reached."
)
DRIVE_CODES = (
    "Exit codes: 0 answered; 1 another driver has the run, or it was cancelled; 2 wrong use, or there is no such run; "
    "3 the run failed, or the database cannot be reached; 4 a limit, a loop, failing tools or a check ended the "
    "run; 5 calls are waiting for an answer; 130 interrupted."
)


@app.command("start")
def start_command(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The name of the agent.")],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The task; - reads standard input.")],
    journal: JournalUrl = "",
    id: Annotated[
        str, typer.Option("--id", metavar="ID", help="Its id: the same id starts nothing twice.", show_default="random")
    ] = "",
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Whose run it is.")] = "",
    answer_within: Annotated[
        float | None, typer.Option(metavar="S", help="Deny calls that nobody has answered after this many seconds.")
    ] = None,
    rounds: options.Rounds = None,
    calls: options.Calls = None,
    seconds: options.Seconds = None,
) -> None:
    with ending_durable():
        asked = read_prompt(prompt, [])
        given: StartOptions = {"run_id": id or None, "tenant": tenant, "answer_within": answer_within}
        if (rounds, calls, seconds) != (None, None, None):
            given["limits"] = read_limits(rounds, calls, seconds)

        async def work(opened: Journal) -> str:
            return await opened.start(agent, asked, **given)

        typer.echo(in_journal(journal, work, create=True))


start_command.__doc__ = f"""Add a run to the journal and print its id. A worker drives it, or `unbroken runs drive`.

    With a limit, the limits of the agent do not apply to this run.

    {EXIT_CODES}
    """


@app.command("list")
def list_command(
    journal: JournalUrl = "",
    state: Annotated[str, typer.Option(metavar="STATE", help=f"One of {', '.join(get_args(State))}.")] = "",
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this tenant.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only runs of this agent.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="The latest ones; 0 lists all.")] = 100,
    json: AsJson = False,
) -> None:
    """List runs, the latest first. In a pipe the columns are separated by tabs."""
    with ending_durable():
        if state and state not in get_args(State):
            raise UserError(f"--state {state}: there is no such state; there are: {', '.join(get_args(State))}")

        async def work(opened: Journal) -> list[RunRow]:
            wanted = cast("State", state) if state else None
            return await opened.runs(state=wanted, tenant=tenant, agent=agent, limit=limit + 1 if limit else None)

        rows = in_journal(journal, work)
    shown = rows[:limit] if limit else rows
    if json:
        typer.echo(json_text.dumps([asdict(row) for row in shown], ensure_ascii=False, indent=2))
    elif is_terminal(sys.stdout):
        _print_table(shown)
    else:
        for row in shown:
            typer.echo("\t".join(map(clean_line, _columns(row, "%Y-%m-%dT%H:%M:%S"))))
    if not rows:
        print_line("there is no such run")
    elif len(rows) > len(shown):
        print_line(f"only the latest {limit} are listed; --limit 0 lists all")


def _columns(row: RunRow, form: str) -> tuple[str, ...]:
    waits = ", ".join(f"{call['name']} {call['id']}" for call in row.pending) if row.state == "waiting" else row.error
    updated = time.strftime(form, time.localtime(row.updated))
    return row.run_id, row.state, row.agent, row.tenant, updated, one_line(row.question), one_line(waits)


_COLOURS = {"answered": "green", "waiting": "yellow", "failed": "red", "running": "blue", "cancelled": "dim"}


def _print_table(rows: Sequence[RunRow]) -> None:
    names = ("run", "state", "agent", "tenant", "changed", "question", "waits for / error")
    table = Table(*names, box=None, pad_edge=False)
    for column in table.columns[:5]:
        column.no_wrap = True
    for row in rows:
        cells = [RichText(cell) for cell in map(clean_line, _columns(row, "%Y-%m-%d %H:%M"))]
        cells[1].stylize(_COLOURS.get(row.state, ""))
        table.add_row(*cells)
    if rows:
        Console(highlight=False).print(table)


@app.command("show")
def show_command(id: RunId, journal: JournalUrl = "", json: AsJson = False) -> None:
    """Show one run: its state, the calls that it waits for, its answer or its error."""
    with ending_durable():

        async def work(opened: Journal) -> tuple[RunRow, str]:
            row = await opened.run(id)
            return row, await _answer_of(opened, row)

        row, text = in_journal(journal, work)
    if json:
        typer.echo(json_text.dumps({**asdict(row), "text": text}, ensure_ascii=False, indent=2))
        return
    form = "%Y-%m-%d %H:%M:%S"
    lines = {
        "run": row.run_id,
        "agent": row.agent,
        "tenant": row.tenant,
        "state": row.state,
        "question": row.question,
        "created": time.strftime(form, time.localtime(row.created)),
        "changed": time.strftime(form, time.localtime(row.updated)),
        "drives": f"{row.drives}, superseded {row.supersessions}" if row.supersessions else str(row.drives),
        "died": f"{row.deaths} of its drivers, {row.fruitless} in a row" if row.deaths else "",
        "error": row.error,
        "expires": "" if row.expires is None else time.strftime(form, time.localtime(row.expires)),
    }
    for name, value in lines.items():
        if value:
            typer.echo(f"{name:<9} {clean_line(value)}")
    for call in row.pending if row.state == "waiting" else ():
        _show_call(row, call)
    if text:
        typer.echo(f"\n{clean(text)}")


async def _answer_of(journal: Journal, row: RunRow) -> str:
    if row.state != "answered":
        return ""
    ending = (await journal.recording(row.run_id)).ending
    return ending.text if isinstance(ending, RunFinished) else ""


def _show_call(row: RunRow, call: Mapping[str, Any]) -> None:
    """All of the call, because somebody decides about it, and the command that does."""
    typer.echo("")
    for line in approval_text(call_of(call)):
        typer.echo(line)
    typer.echo(f"answer with: {_way_out(row, call)}")


def _way_out(row: RunRow, call: Mapping[str, Any]) -> str:
    ways = "--result TEXT|--deny REASON" if call.get("needs") == "result" else "--allow|--deny REASON|--edit JSON"
    return f"unbroken runs answer {clean_line(row.run_id)} {clean_line(str(call['id']))} {ways}"


@app.command("answer")
def answer_command(
    id: RunId,
    call: Annotated[str, typer.Argument(metavar="CALL", help="The id of the call; `unbroken runs show ID` shows it.")],
    journal: JournalUrl = "",
    allow: Annotated[bool, typer.Option("--allow", help="It runs.")] = False,
    deny: Annotated[
        str | None, typer.Option(metavar="REASON", help="It does not run, and the model reads why.")
    ] = None,
    edit: Annotated[str | None, typer.Option(metavar="JSON", help="It runs with these arguments.")] = None,
    result: Annotated[str | None, typer.Option(metavar="TEXT", help="The result of a call that ran elsewhere.")] = None,
) -> None:
    with ending_durable():
        given = _answer(call, allow, deny, edit, result)
        in_journal(journal, lambda opened: opened.answer(id, {call: given}))
    typer.echo(f"call `{clean_line(call)}` of run `{clean_line(id)}` is answered; the run is ready")


answer_command.__doc__ = f"""Answer a call that a run waits for. The first answer counts.

    {EXIT_CODES}
    """


def _answer(call: str, allow: bool, deny: str | None, edit: str | None, result: str | None) -> object:
    answers: list[object] = [Allow()] if allow else []
    if deny is not None:
        answers.append(Deny(deny))
    if edit is not None:
        answers.append(Edit(_arguments(edit)))
    if result is not None:
        answers.append(ToolResult(call, (Text(result),)))
    if len(answers) != 1:
        raise UserError("give one of --allow, --deny REASON, --edit JSON and --result TEXT")
    return answers[0]


def _arguments(text: str) -> dict[str, Any]:
    try:
        value: Any = json_text.loads(text)
    except ValueError as error:
        raise UserError(f"--edit {text}: the arguments are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"--edit {text}: the arguments must be a JSON object, such as {{}}")
    return cast("dict[str, Any]", value)


@app.command("cancel")
def cancel_command(
    id: RunId,
    journal: JournalUrl = "",
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is in the recording.")] = "",
) -> None:
    with ending_durable():

        async def work(opened: Journal) -> RunRow:
            row = await opened.run(id)
            if row.state in ("answered", "cancelled"):
                print_line(f"run `{id}` cannot be cancelled: it has ended ({row.state})")
                raise typer.Exit(REFUSED)
            return await (opened.cancel(id, reason) if reason else opened.cancel(id))

        in_journal(journal, work)
    typer.echo(f"run `{clean_line(id)}` is cancelled")


cancel_command.__doc__ = f"""End a run, wherever it is driven: its driver stops, and running calls are cancelled.

    {EXIT_CODES}
    """


@app.command("retry")
def retry_command(id: RunId, journal: JournalUrl = "") -> None:
    with ending_durable():

        async def work(opened: Journal) -> None:
            row = await opened.run(id)
            if row.state != "failed":
                print_line(f"run `{id}` cannot be retried: it is {row.state}, and only failed runs can")
                raise typer.Exit(REFUSED)
            await opened.retry(id)

        in_journal(journal, work)
    typer.echo(f"run `{clean_line(id)}` is ready")


retry_command.__doc__ = f"""Start a run again that has failed, also if its drivers died: workers drive it.

    {EXIT_CODES}
    """


@app.command("export")
def export_command(
    id: RunId,
    file: Annotated[str, typer.Argument(metavar="FILE|DIR", help="Where to write the recording; - prints it.")],
    journal: JournalUrl = "",
) -> None:
    with ending_durable():
        if file == "-":
            data = in_journal(journal, lambda opened: opened.recorded_bytes(id))
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
        else:
            typer.echo(in_journal(journal, lambda opened: _export(opened, id, file)))


export_command.__doc__ = f"""Write the recording of a run to a file.

    {EXIT_CODES}
    """


async def _export(journal: Journal, id: str, file: str) -> Path:
    try:
        return await journal.export(id, file)
    except OSError as error:
        raise UserError(f"writing {file} failed: {error.strerror or error}; name another file") from None


@app.command("drive")
@options.takes(*options.OUTPUT)
def drive_command(
    id: RunId,
    setup: options.Setup,
    journal: JournalUrl = "",
    agents: AgentsName = "",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the run from a driver that may be alive.")
    ] = False,
) -> None:
    with ending_durable(), logged(setup):
        found = load_agents(agents)
        screen, _, live = open_screen(setup, can_ask=False)
        seen: list[str] = []

        def show(event: Event) -> None:
            seen[:] = [event.run]
            screen.show(event)

        async def work(opened: Journal) -> tuple[Outcome, RunRow]:
            await check_keys(found)
            return await _drive(found, opened, id, take_over, show), await opened.run(id)

        try:
            with nullcontext() if live else redirect_stdout(sys.stderr):
                outcome, row = in_journal(journal, work, prints=True)
        finally:
            screen.close()
        if outcome.result is not None and outcome.state == "answered" and not seen and not setup.json:
            typer.echo(clean(outcome.result.text))
        for call in row.pending if outcome.state == "waiting" else ():
            print_line(f"run `{id}` waits for {call['name']}: {_way_out(row, call)}")
        if outcome.state in ("failed", "cancelled"):
            print_line(outcome.error)
    raise typer.Exit(_code(outcome))


drive_command.__doc__ = f"""Carry a run as far as it goes, and show what happens. Ctrl-C lets running calls finish.

    {DRIVE_CODES}
    """


async def _drive(
    agents: Mapping[str, Agent[Any, Any]], journal: Journal, id: str, take_over: bool, show: Sink
) -> Outcome:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(drive(agents, journal, id, take_over=take_over, sinks=[show], stop=stop))

    def interrupt() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        await asyncio.wait([task])
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    if task.cancelled():
        raise KeyboardInterrupt
    return task.result()


def _code(outcome: Outcome) -> int:
    if outcome.state == "answered" and outcome.result is not None:
        return code_of_result(outcome.result)
    codes = {"answered": ANSWERED, "waiting": WAITING, "failed": FAILED, "cancelled": REFUSED}
    return codes.get(outcome.state, INTERRUPTED)
