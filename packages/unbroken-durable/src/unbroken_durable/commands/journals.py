"""What the commands for durable runs share: the journal and the agents that options name, and exit codes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any, TypeAlias, TypeVar, cast

import typer

from unbroken.agent import Agent
from unbroken.agent.named_objects import find_object
from unbroken.errors import MissingKey, UnbrokenError, UserError
from unbroken.models.http import HTTPModel
from unbroken_cli.exits import INTERRUPTED, print_line
from unbroken_cli.options import shown_place
from unbroken_cli.progress_line import progress
from unbroken_durable import AlreadyAnswered, Busy, Journal, JournalUnavailable, Superseded, open_journal
from unbroken_durable.database_urls import refuse_missing
from unbroken_durable.deaths import DEATHS

T = TypeVar("T")

REFUSED = 1
"""The state of the run does not allow it."""
UNREACHABLE = 3

JournalUrl: TypeAlias = Annotated[
    str,
    typer.Option(
        "--journal", envvar="UNBROKEN_JOURNAL", metavar="URL", help="For example sqlite:///runs.db, postgresql://…"
    ),
]
AgentsName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--agents",
        metavar="MODULE:NAME",
        help="Where the agents are: app:agents, or app.py:agents; a dict by name, an Agent, or a function that "
        "returns one of them.",
    ),
]


@contextmanager
def ending_durable() -> Generator[None]:
    """Turns an error or an interrupt into a line and an exit code."""
    try:
        yield
    except (AlreadyAnswered, Busy, Superseded) as error:
        print_line(_as_options(str(error)))
        raise typer.Exit(REFUSED) from None
    except JournalUnavailable as error:
        print_line(str(error))
        raise typer.Exit(UNREACHABLE) from None
    except UnbrokenError as error:
        print_line(_as_options(str(error)))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        print_line("interrupted")
        raise typer.Exit(INTERRUPTED) from None


_OPTIONS = {
    "Allow(), Deny() or Edit({…})": "--allow, --deny or --edit",
    "the result of the call, or Deny()": "--result or --deny",
    "use take_over=True": "give --take-over",
    "give another run_id": "give another --id",
    "journal.start(run_id=…)": "--id",
    "journal.start(tenant=…)": "--tenant",
    "journal.start(answer_within=…)": "--answer-within",
}
"""The advice in an error message, and the option that does the same."""


def _as_options(message: str) -> str:
    for spelled, option in _OPTIONS.items():
        message = message.replace(spelled, option)
    return message


def in_journal(
    url: str,
    work: Callable[[Journal], Awaitable[T]],
    *,
    create: bool = False,
    prints: bool = False,
    deaths: int = DEATHS,
) -> T:
    """Runs `work` with the opened journal. Without `create`, an SQLite file has to be there. If `work` prints, it shows
    its progress itself."""
    if not url:
        raise UserError("no journal was given; use --journal, as in sqlite:///runs.db, or set UNBROKEN_JOURNAL")
    if not create:
        refuse_missing(url)

    async def run() -> T:
        with progress(f"opening {shown_place(url)}") if prints else nullcontext():
            opened = await open_journal(url, deaths=deaths)
        async with opened as journal:
            return await work(journal)

    with nullcontext() if prints else progress(f"asking {shown_place(url)}"):
        return asyncio.run(run())


def load_agents(given: str) -> Mapping[str, Agent[Any, Any]]:
    """The agents that `app:agents` or `folder/app.py:agents` names, by their names."""
    if not given:
        raise UserError("no agents were given; use --agents MODULE:NAME, as in app:agents")
    found: Any = find_object(given, "--agents", "app:agents")
    name = given.rpartition(":")[2]
    if callable(found) and not isinstance(found, Agent | Mapping):
        try:
            found = found()
        except Exception as error:
            raise UserError(f"--agents {given}: `{name}()` failed: {type(error).__name__}: {error}") from error
    if isinstance(found, Agent):
        agent = cast("Agent[Any, Any]", found)
        return {agent.name: agent}
    if not isinstance(found, Mapping) or not found:
        kind = _kind(cast("object", found))
        raise UserError(f"--agents {given}: expected a dict of agents by name, or an Agent, got {kind}")
    agents = cast("Mapping[Any, Any]", found)
    for key, agent in agents.items():
        if not isinstance(key, str) or not isinstance(agent, Agent):
            raise UserError(f"--agents {given}: expected agents by name, got {key!r}: {_kind(agent)}")
    return cast("Mapping[str, Agent[Any, Any]]", agents)


async def check_keys(agents: Mapping[str, Agent[Any, Any]]) -> None:
    """Raises `MissingKey` if the model of an agent finds no key: otherwise each run would fail at its first request."""
    for name, agent in agents.items():
        model: object = getattr(agent.model, "model", agent.model)
        if isinstance(model, HTTPModel):
            try:
                await model.headers()
            except MissingKey as error:
                raise MissingKey(f"agent `{name}`: {error}") from None


def _kind(value: object) -> str:
    return "an empty dict" if value == {} else type(value).__name__
