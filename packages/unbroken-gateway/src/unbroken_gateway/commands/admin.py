"""`unbroken admin`: administers a running gateway through its admin API. `unbroken keys` does the same with keys that
this machine can read: a file, or the store."""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from json import dumps
from typing import Annotated, Any, TypeAlias, cast

import typer

from unbroken.errors import UnbrokenError, UserError
from unbroken_cli.exits import FAILED, MISUSED, print_line
from unbroken_cli.options import ADMIN_KEY
from unbroken_cli.streams import is_terminal
from unbroken_cli.terminal_text import clean_line, counted
from unbroken_gateway.admin.api_bodies import key_from_json
from unbroken_gateway.commands import keys as offline
from unbroken_gateway.commands.admin_client import URL, ask, find_gateway
from unbroken_gateway.config import FILE
from unbroken_gateway.config.added import NAME_OF, ONE_OF
from unbroken_gateway.config.reading import TABLES
from unbroken_gateway.settings import BudgetSettings, TeamSettings, UpstreamSettings
from unbroken_gateway.stores.marked import Decision

app = typer.Typer(
    help=f"Administer a running gateway through its admin API. The key is in the variable {ADMIN_KEY}, or in the one "
    f"that {FILE} names.",
    no_args_is_help=True,
)
keys = typer.Typer(help="The keys of a running gateway.", no_args_is_help=True)
turns = typer.Typer(help="The turns whose calls are held.", no_args_is_help=True)

Url: TypeAlias = Annotated[
    str, typer.Option(metavar="URL", help="The address of the gateway.", show_default=f"{FILE}'s, or {URL}")
]
Config: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="The gateway's configuration, for its address and the variable with the admin key.",
        show_default=f"{FILE}, if it is here",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="The answer of the gateway as JSON.")]
Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="Its name.")]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help='A key of the table, as in the file: serial=true, fallback=["b"].'),
]


@contextmanager
def _ending() -> Generator[None]:
    """Errors as a line and an exit code: 2 it was refused, 3 the gateway did not answer."""
    try:
        yield
    except UnbrokenError as error:
        print_line(str(error))
        raise typer.Exit(MISUSED if isinstance(error, UserError) else FAILED) from None


def _ask(at: tuple[str, str], method: str, path: str, body: object = None) -> Any:
    """`at`: the options --url and --config."""
    with _ending():
        return ask(find_gateway(*at), method, path, body)


def _show(answer: Any, json: bool, words: str) -> None:
    typer.echo(dumps(answer, ensure_ascii=False, indent=2) if json else words)
    for change in () if json else answer.get("changes", ()):
        typer.echo(clean_line(change))
    if not json and answer.get("needs_restart"):
        print_line(f"these settings need a restart: {', '.join(answer['needs_restart'])}")


def _rows(
    answer: Any,
    json: bool,
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    empty: str,
    show: Callable[[Sequence[str], Sequence[Sequence[str]]], None] = offline.print_table,
) -> None:
    """A table on a terminal, lines with tabs in a pipe."""
    texts = [[clean_line("" if cell is None else str(cell)) for cell in row] for row in rows]
    if json:
        typer.echo(dumps(answer, ensure_ascii=False, indent=2))
    elif not texts:
        print_line(empty)
    elif not is_terminal(sys.stdout):
        for row in texts:
            typer.echo("\t".join(row))
    else:
        show(head, texts)


@app.command("version")
def version_command(url: Url = "", config: Config = "", json: AsJson = False) -> None:
    """Show the version of the gateway, and its last reload."""
    answer = _ask((url, config), "GET", "/version")
    last = answer["last_reload"]
    reloaded = "" if last is None else ", not reloaded: " + last["problem"] if last["problem"] else ", reloaded"
    _show(answer, json, clean_line(f"unbroken {answer['version']}, {counted(answer['workers'], 'worker')}{reloaded}"))


@app.command("reload")
def reload_command(url: Url = "", config: Config = "", json: AsJson = False) -> None:
    """Make the gateway read its configuration again, and show what has changed."""
    answer = _ask((url, config), "POST", "/reload", {})
    _show(answer, json, "reloaded" if answer["changes"] else "reloaded, nothing has changed")


@app.command("requests")
def requests_command(
    id: Annotated[
        str,
        typer.Argument(metavar="[ID]", help="Show only the request with this id, from the header of its response."),
    ] = "",
    url: Url = "",
    config: Config = "",
    json: AsJson = False,
) -> None:
    """List the last hundred requests of the process that answers, the newest first."""
    answer = _ask((url, config), "GET", "/requests")
    if not id:
        _rows(answer, json, _REQUEST, map(_request, answer["requests"]), "there were no requests yet", _print_requests)
        return
    found = next((one for one in answer["requests"] if one["id"] == id), None)
    if found is None:
        print_line(f"none of the last {counted(len(answer['requests']), 'request')} of this process has the id `{id}`")
        raise typer.Exit(MISUSED)
    _show(found, json, "\n".join(_facts(found)))


_REQUEST = ("when", "id", "key", "client", "model", "status", "seconds", "tokens", "calls", "error")


def _print_requests(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Errors are long, so they follow the table, with the id of their request."""
    short = [(row[0].partition(" ")[2], *row[1:-1]) for row in rows]
    offline.print_table(head[:-1], short)
    for row in rows:
        if row[-1]:
            offline.print_indented(f"{row[1]}: {row[-1]}")


def _facts(one: Mapping[str, Any]) -> Iterator[str]:
    for name, value in one.items():
        if value not in (None, "", [], False, 0):
            text = _when(value) if name == "at" else _text(value)
            yield f"{name.replace('_', ' '):<14} {clean_line(text)}"


def _text(value: object) -> str:
    """As a person would write it: lists with commas, tables with dots."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ",".join(map(_text, cast("list[object]", value)))
    if isinstance(value, dict):
        table = cast("dict[str, object]", value)
        named = table.get("name") or table.get("use")
        return str(named) if named else ",".join(f"{key}:{_text(each)}" for key, each in table.items())
    return str(value)


def _request(one: Mapping[str, Any]) -> Sequence[object]:
    tokens = f"{one['input_tokens']}+{one['output_tokens']}"
    calls = ", ".join(one["calls"])
    client = one["client"] or one["client_wire"]
    return (
        _when(one["at"]),
        one["id"],
        one["key"],
        client,
        one["alias"],
        one["status"],
        f"{one['seconds']:.3f}",
        tokens,
        calls,
        one["error"],
    )


@app.command("store")
def store_command(
    decision: Annotated[
        Decision,
        typer.Argument(help="Write back what the gateway knows, or continue with the store as it is."),
    ],
    url: Url = "",
    config: Config = "",
    json: AsJson = False,
) -> None:
    """Decide what becomes of a store that came back empty."""
    answer = _ask((url, config), "POST", "/store", {"decision": decision})
    _show(answer, json, "what the store has now is in force")


@turns.command("list")
def list_turns_command(url: Url = "", config: Config = "", json: AsJson = False) -> None:
    """List the turns whose calls are held, in the process that answers."""
    answer = _ask((url, config), "GET", "/turns")
    rows = (
        (
            one["session"],
            one["alias"],
            one["key"],
            one["client"],
            one["waiting"],
            _when(one["since"]),
            _when(one["expires"]),
        )
        for one in answer["turns"]
    )
    head = ("turn", "model", "key", "client", "calls", "since", "expires")
    _rows(answer, json, head, rows, "no turn is held")


@turns.command("drop")
def drop_turn_command(name: Name, url: Url = "", config: Config = "", json: AsJson = False) -> None:
    """Give up a held turn: its calls are not released, and the model is asked instead."""
    _show(_ask((url, config), "DELETE", f"/turns/{name}"), json, f"turn `{name}` was dropped")


@keys.command("list")
def list_keys_command(url: Url = "", config: Config = "", json: AsJson = False) -> None:
    """List the keys: their owners and permissions, not the keys themselves."""
    answer = _ask((url, config), "GET", "/keys")
    rows = (offline.row(key_from_json(key)) for key in answer["keys"])
    _rows(answer, json, offline.HEAD, rows, "there are no keys", lambda _, texts: offline.print_keys(texts))


@keys.command("create")
def create_key_command(
    name: offline.Name,
    alias: offline.Aliases = None,
    requests_per_minute: offline.PerMinute = None,
    in_flight: offline.InFlight = None,
    pass_: offline.Passes = None,
    operator: offline.Operator = False,
    admin: offline.Admin = False,
    tenant: offline.Tenant = "",
    expires: offline.Expires = "",
    team: offline.Team = "",
    budget: offline.Budgets = None,
    tokens_per_minute: offline.TokensPerMinute = None,
    url: Url = "",
    config: Config = "",
    json: AsJson = False,
) -> None:
    """Create a key. It is printed only now: it cannot be shown again."""
    body = {
        "name": name,
        "aliases": alias,
        "requests_per_minute": requests_per_minute,
        "in_flight": in_flight,
        "pass": [rule for rule in pass_ if rule != "none"] if pass_ else None,
        "operator": operator,
        "admin": admin,
        "tenant": tenant,
        "expires": expires,
        "team": team,
        "budgets": budget,
        "tokens_per_minute": tokens_per_minute,
    }
    given = {
        field: value for field, value in body.items() if value not in (None, "", False) or (field == "pass" and pass_)
    }
    _show_secret(
        _ask((url, config), "POST", "/keys", given), json, f"this is the key of `{name}`; it cannot be shown again"
    )


@keys.command("change")
def change_key_command(
    name: offline.Name,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help='What to change: in_flight=4, aliases=["a"], team=none.'),
    ] = None,
    url: Url = "",
    config: Config = "",
    json: AsJson = False,
) -> None:
    """Change what a key may do. The key itself stays; `none` removes a limit."""
    with _ending():
        body = {field: None if value == "none" else value for field, value in _values(set_).items()}
    if not body:
        print_line("nothing to change: give --set FIELD=VALUE")
        raise typer.Exit(MISUSED)
    _show(_ask((url, config), "PATCH", f"/keys/{name}", body), json, f"the key of `{name}` was changed")


@keys.command("rotate")
def rotate_key_command(
    name: offline.Name, keep: offline.Keep = "24h", url: Url = "", config: Config = "", json: AsJson = False
) -> None:
    """Make a new key in place of one, with the same limits."""
    answer = _ask((url, config), "POST", f"/keys/{name}/rotate", {"keep": keep})
    _show_secret(
        answer, json, f"this is the new key of `{name}`; it cannot be shown again. The old one is valid for {keep} more"
    )


@keys.command("revoke")
def revoke_key_command(name: offline.Name, url: Url = "", config: Config = "", json: AsJson = False) -> None:
    """Revoke a key."""
    _show(_ask((url, config), "DELETE", f"/keys/{name}"), json, f"the key of `{name}` was revoked")


def _show_secret(answer: Any, json: bool, words: str) -> None:
    typer.echo(dumps(answer, ensure_ascii=False, indent=2) if json else answer["secret"])
    if not json:
        print_line(words)


def _tables(array: str) -> typer.Typer:
    """The commands for one array of tables: models, teams, budgets."""
    one, path = ONE_OF[array], f"/{'aliases' if array == 'models' else array}"
    group = typer.Typer(help=f"The {array} of a running gateway.", no_args_is_help=True)

    @group.command("list", help=f"List the {array}: of the file, and those that were added here.")
    def list_command(url: Url = "", config: Config = "", json: AsJson = False) -> None:
        answer = _ask((url, config), "GET", path)
        rows = [(row[NAME_OF[array]], row.get("model", ""), row["from"], _details(row, array)) for row in answer[array]]
        _rows(answer, json, (one, "model", "from", "settings"), rows, f"there are no {array}")

    @group.command("remove", help=f"Remove one that was added here, not one of the file: {one} NAME.")
    def remove_command(name: Name, url: Url = "", config: Config = "", json: AsJson = False) -> None:
        _show(_ask((url, config), "DELETE", f"{path}/{name}"), json, f"{one} `{name}` was removed")

    def send(method: str, name: str, table: Mapping[str, Any], url: str, config: str, json: bool) -> None:
        at, done = (path, "added") if method == "POST" else (f"{path}/{name}", "changed")
        body = {**table, NAME_OF[array]: name}
        _show(_ask((url, config), method, at, body), json, f"{one} `{name}` was {done}")

    for method, word in (("POST", "add"), ("PUT", "change")):
        words = f"{word.capitalize()} {one} NAME for all gateways that share the store."
        group.command(word, help=words)((_with_model if array == "models" else _with_settings)(send, method))
    return group


Send: TypeAlias = Callable[[str, str, Mapping[str, Any], str, str, bool], None]


def _with_model(send: Send, method: str) -> Callable[..., None]:
    def command(
        name: Name,
        model: Annotated[str, typer.Argument(metavar="PROVIDER:MODEL", help="The model that answers.")],
        set_: Settings = None,
        url: Url = "",
        config: Config = "",
        json: AsJson = False,
    ) -> None:
        with _ending():
            table = {"model": model, **_values(set_)}
        send(method, name, table, url, config, json)

    return command


def _with_settings(send: Send, method: str) -> Callable[..., None]:
    def command(name: Name, set_: Settings = None, url: Url = "", config: Config = "", json: AsJson = False) -> None:
        with _ending():
            table = _values(set_)
        send(method, name, table, url, config, json)

    return command


def _values(given: list[str] | None) -> dict[str, Any]:
    """`KEY=VALUE`, where the value is TOML, or a text without quotes."""
    values: dict[str, Any] = {}
    for one in given or ():
        key, equals, text = one.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set {one}: write it as KEY=VALUE")
        try:
            values[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except ValueError:
            values[key.strip()] = text.strip()
    return values


_DEFAULTS: Mapping[str, Any] = {
    "models": UpstreamSettings("", ""),
    "teams": TeamSettings(""),
    "budgets": BudgetSettings("", cast("Any", None)),
}


def _details(row: Mapping[str, Any], array: str) -> str:
    """What differs from the defaults."""
    usual: dict[str, Any] = asdict(_DEFAULTS[array])
    left = (NAME_OF[array], "model", "from", "options")
    named = {key: ",".join(value) if key == "deployments" else value for key, value in row.items() if key not in left}
    parts = [f"{key}={_text(value)}" for key, value in named.items() if value and value != usual.get(key)]
    return " ".join(parts)


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else ""


app.add_typer(keys, name="keys")
for _array in NAME_OF:
    if _array in TABLES:
        app.add_typer(_tables(_array), name="aliases" if _array == "models" else _array)
app.add_typer(turns, name="turns")
