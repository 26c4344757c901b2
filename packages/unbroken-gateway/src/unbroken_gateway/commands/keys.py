"""`unbroken keys`: create, list and revoke the keys that clients send to the gateway. A running gateway notices
changes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from unbroken.errors import UserError
from unbroken_cli.exits import print_line
from unbroken_cli.streams import is_terminal
from unbroken_gateway.admin.api_bodies import key_as_json, read_moment, read_seconds
from unbroken_gateway.config import FILE, read_config
from unbroken_gateway.config.opening import refuse_name_of_admin_key
from unbroken_gateway.keys import GatewayKey, add_key, remove_key, replace_secret
from unbroken_gateway.relay.references import read_rule
from unbroken_gateway.settings import GatewaySettings
from unbroken_gateway.spending.allowance import read_allowance
from unbroken_gateway.stored_keys import FileKeys, KeyPlace, StoredKeys
from unbroken_gateway.stores import open_store, store_url
from unbroken_gateway.stores.marked import MarkedStore

app = typer.Typer(help="The keys that clients send to the gateway (`unbroken serve`).", no_args_is_help=True)

_DEFAULT = GatewaySettings(())
T = TypeVar("T")

KeysFile: TypeAlias = Annotated[
    str,
    typer.Option(
        "--file",
        metavar="FILE",
        help="The file that stores the keys.",
        show_default=f"{FILE}'s, or {_DEFAULT.keys_file}",
    ),
]
StoreUrl: TypeAlias = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store that holds the keys instead of a file: a path, redis://…, env:VARIABLE.",
        show_default=f"{FILE}'s, if it says in_store",
    ),
]
Name: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the key's owner; not the key itself.")
]


Aliases: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A model that the key may use; may be repeated.", show_default="all"),
]
PerMinute: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Requests per minute.", show_default="no limit")
]
InFlight: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", help="Requests at the same time, in each worker.", show_default="no limit"),
]
Passes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--pass",
        metavar="'METHOD /v1/PATH'",
        help="A request that the key may pass through to the provider, `none` for no request; may be repeated.",
        show_default="as in [passing]",
    ),
]
Operator: TypeAlias = Annotated[
    bool,
    typer.Option("--operator", help="The key may see the status, the metrics and the durable runs of all keys."),
]
Admin: TypeAlias = Annotated[
    bool, typer.Option("--admin", help="The key may also change the gateway through the admin API.")
]
Tenant: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", help="Whose durable runs the key sees.", show_default="its own name")
]
Expires: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="TIME", help="When it expires: in 90d, 12h, 30m, or on a day, 2027-01-31.", show_default="never"
    ),
]
Team: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", help="The team whose budgets and limits it shares.", show_default="none")
]
Budgets: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="AMOUNT",
        help="What may be spent with it: 20usd/day, 200usd/month, 9usd/total, 500000tokens/day; may be repeated.",
        show_default="no limit",
    ),
]
TokensPerMinute: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Tokens per minute, input and output.", show_default="no limit")
]
Keep: TypeAlias = Annotated[
    str, typer.Option(metavar="TIME", help="How long the old key stays valid: 0, 30m, 24h, 7d.")
]


@app.command("create")
def create_command(
    name: Name,
    alias: Aliases = None,
    requests_per_minute: PerMinute = None,
    in_flight: InFlight = None,
    pass_: Passes = None,
    operator: Operator = False,
    admin: Admin = False,
    tenant: Tenant = "",
    expires: Expires = "",
    team: Team = "",
    budget: Budgets = None,
    tokens_per_minute: TokensPerMinute = None,
    file: KeysFile = "",
    store: StoreUrl = "",
) -> None:
    """Create a key. It is printed only now and stored as a hash: it cannot be shown again."""
    configured = _configured()
    refuse_name_of_admin_key(configured, name)
    served = [upstream.alias for upstream in configured.upstreams]
    for one in alias or ():
        if served and not any(_fits(one, each) for each in served):
            raise UserError(f"--alias {one}: {FILE} has no such model; there are: {', '.join(served)}")
    if pass_ and "none" in pass_ and len(pass_) > 1:
        raise UserError(
            "--pass none: this means that nothing is passed through; leave out either it or the other --pass options"
        )
    key = GatewayKey(
        name,
        tuple(alias or ()),
        requests_per_minute,
        in_flight,
        passes=tuple(read_rule(one) for one in pass_ if one != "none") if pass_ else None,
        operator=operator or admin,
        tenant=tenant,
        expires=read_moment(expires, "--expires") if expires else None,
        team=team,
        budgets=tuple(map(read_allowance, budget or ())),
        tokens_per_minute=tokens_per_minute,
        admin=admin,
    )
    where, secret = _change(file, store, lambda keys, where: add_key(keys, key, time.time(), where))
    typer.echo(secret)
    print_line(f"this is the key of `{name}`; it cannot be shown again, only its hash is in {where}")


@app.command("list")
def list_command(
    file: KeysFile = "",
    store: StoreUrl = "",
    json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
) -> None:
    """List the keys: their owners and permissions, not the keys themselves."""
    where, keys = _at(file, store, lambda place: place.list())
    if json:
        typer.echo(dumps([key_as_json(key) for key in keys], ensure_ascii=False, indent=2))
    elif not keys:
        print_line(f"no keys in {where}; `unbroken keys create NAME` creates one")
    elif not is_terminal(sys.stdout):
        for key in keys:
            typer.echo("\t".join(row(key)))
    else:
        print_keys(map(row, keys))


def print_keys(rows: Iterable[Sequence[str]]) -> None:
    """A table without the columns in which no key differs from a key that was created without options."""
    rows = list(rows)
    kept = [place for place, name in enumerate(HEAD) if any(row[place] != _USUAL.get(name) for row in rows)]
    print_table([HEAD[place] for place in kept], [[row[place] for place in kept] for row in rows])


_USUAL = {
    "models": "all",
    "a minute": "no limit",
    "in flight": "no limit",
    "passes": "as configured",
    "expires": "never",
    "team": "none",
    "budgets": "none",
}
HEAD = ("name", "models", "a minute", "in flight", "created", "passes", "sees", "expires", "team", "budgets")


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Without the columns that are empty in all rows."""
    rows = list(rows)
    kept = [place for place in range(len(head)) if any(row[place] for row in rows)]
    table = Table(*(Column(head[place], overflow="fold") for place in kept), box=None, pad_edge=False)
    for each in rows:
        table.add_row(*(escape(each[place]) for place in kept))
    Console(highlight=False).print(table)


def print_indented(text: str) -> None:
    """Folded at words; further lines are indented."""
    Console(highlight=False).print(Padding(Text(text), (0, 0, 0, 2)))


@app.command("rotate")
def rotate_command(
    name: Name,
    keep: Keep = "24h",
    file: KeysFile = "",
    store: StoreUrl = "",
) -> None:
    """Make a new key in place of one, with the same limits. The old one stays valid for a while, so that clients can
    be changed one by one."""
    seconds = read_seconds(keep, "--keep")
    _, secret = _change(file, store, lambda keys, where: replace_secret(keys, name, seconds, time.time(), where))
    typer.echo(secret)
    print_line(f"this is the new key of `{name}`; it cannot be shown again. The old one is valid for {keep} more")


@app.command("revoke")
def revoke_command(name: Name, file: KeysFile = "", store: StoreUrl = "") -> None:
    """Revoke a key. A running gateway refuses it within a second or two."""
    _change(file, store, lambda keys, where: remove_key(keys, name, where))
    typer.echo(f"the key of `{name}` was revoked")


def _change(file: str, store: str, work: Callable[[dict[str, GatewayKey], str], T]) -> tuple[str, T]:
    """Changes the keys; returns where they are, and the result."""
    return _at(file, store, lambda place: place.change(lambda keys: work(keys, place.where)))


def _at(file: str, store: str, work: Callable[[KeyPlace], Awaitable[T]]) -> tuple[str, T]:
    """Does something with the keys in this file or store, or where the configuration says."""
    if file and store:
        raise UserError("--file and --store cannot be used together: keys are in one of them")
    if not file and not store:
        configured = _configured()
        file, store = ("", configured.store) if configured.keys_in_store else (configured.keys_file, "")

    async def main() -> tuple[str, T]:
        if file:
            return file, await work(FileKeys(file))
        opened = MarkedStore(open_store(store_url(store)))
        try:
            return StoredKeys.where, await work(StoredKeys(opened))
        finally:
            await opened.aclose()

    return asyncio.run(main())


def _configured() -> GatewaySettings:
    return read_config(FILE) if Path(FILE).is_file() else _DEFAULT


def _fits(alias: str, served: str) -> bool:
    before, star, after = served.partition("*")
    return alias == served or bool(star and alias.startswith(before) and alias.endswith(after))


def row(key: GatewayKey) -> tuple[str, ...]:
    created = _shown(key.created)
    passes = "as configured" if key.passes is None else ", ".join(map(str, key.passes)) or "nothing"
    return (
        key.name,
        ", ".join(key.aliases) or "all",
        _per_minute(key),
        _limit(key.in_flight),
        created,
        passes,
        "everything, may change it"
        if key.admin
        else "everything"
        if key.operator
        else f"its own requests{f', runs of {key.tenant}' if key.tenant else ''}",
        "never" if key.expires is None else f"{_shown(key.expires)}{'' if key.is_valid(time.time()) else ' (expired)'}",
        key.team or "none",
        ", ".join(map(str, key.budgets)) or "none",
    )


def _per_minute(key: GatewayKey) -> str:
    if key.tokens_per_minute is None:
        return _limit(key.requests_per_minute)
    requests = "" if key.requests_per_minute is None else f"{key.requests_per_minute:,}, "
    return f"{requests}{key.tokens_per_minute:,} tokens"


def _shown(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _limit(limit: int | None) -> str:
    return "no limit" if limit is None else f"{limit:,}"
