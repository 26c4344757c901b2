"""`unbroken serve`: the gateway, from a file, from options, or with the demo model by default.

`gateway.config` decides what is served; this module prints it and starts the server. uvicorn and other packages that
only a server needs are an optional extra, and are imported when they are needed.
"""

from __future__ import annotations

import logging
import sys
import tomllib
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from unbroken.errors import UnbrokenError, UserError, needs_extra
from unbroken.logs import chosen_level, set_up_logs
from unbroken_cli.exits import MISUSED, STOPPED, print_line
from unbroken_cli.options import ADMIN_KEY, ApiKeyEnv, BaseUrl, LogLevelName, WireName
from unbroken_cli.streams import is_terminal
from unbroken_gateway.commands.serve_summary import summary, warnings
from unbroken_gateway.config import FILE, ServeOptions, read_config, settings_from_options
from unbroken_gateway.config.opening import IN_A_FILE, Opened
from unbroken_gateway.reloading import ConfigSource
from unbroken_gateway.settings import HOST, PORT, GatewaySettings

if TYPE_CHECKING:
    from unbroken_gateway.from_litellm import Translation

log = logging.getLogger("unbroken.gateway")

_EXTRA = ("uvicorn", "httptools", "uvloop", "prometheus_client")

_AS_OPTIONS = {"pass api_key=…": "name a variable with --api-key-env", "pass base_url=…": "give --base-url"}
"""The advice in an error message, and what does the same here."""


UpstreamName: TypeAlias = Annotated[
    str, typer.Option(metavar="PROVIDER:MODEL", help="The model to serve, as in openai:gpt-5; no file is read.")
]
Alias: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", help="The model name that clients use.", show_default="the model's own name")
]
ConfigFile: TypeAlias = Annotated[
    str, typer.Option(metavar="FILE", help="The configuration file.", show_default=f"{FILE}, if it is here")
]
FromLitellm: TypeAlias = Annotated[
    str, typer.Option(metavar="FILE", help="Serve a configuration of LiteLLM's proxy, as far as it can be translated.")
]
Write: TypeAlias = Annotated[
    str, typer.Option(metavar="FILE", help="With --from-litellm: write the translation there, - prints it, and exit.")
]
Host: TypeAlias = Annotated[str, typer.Option(metavar="HOST", help="Where to listen.", show_default=HOST)]
Port: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="The port; 0 takes any free one.", show_default=str(PORT))
]
StorePlace: TypeAlias = Annotated[
    str, typer.Option(metavar="PATH|URL", help="Where turns are stored: a file, redis://…, memory:, env:VARIABLE.")
]
Serial: TypeAlias = Annotated[bool, typer.Option("--serial", help="One call at a time for every client.")]
AllCalls: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--all-calls/--no-all-calls",
        help="Where clients get one call at a time: may models return all at once?",
        show_default="yes, unless the client asks for one",
    ),
]
HoldTimeout: TypeAlias = Annotated[
    str, typer.Option(metavar="S", help="How long to wait for the result of a released call.", show_default="1h")
]
Keys: TypeAlias = Annotated[
    str, typer.Option(metavar="on|off", help="Require a key from clients (`unbroken keys`).", show_default="off")
]
KeysFile: TypeAlias = Annotated[
    str, typer.Option(metavar="FILE", help="The file with the keys.", show_default=GatewaySettings(()).keys_file)
]
OpenToAll: TypeAlias = Annotated[
    bool,
    typer.Option("--open-to-all", help="Allow listening on other addresses than this machine's own without keys."),
]
Record: TypeAlias = Annotated[
    str, typer.Option(metavar="DIR", help="Record requests to models and their answers, one file for each request.")
]
Workers: TypeAlias = Annotated[int | None, typer.Option(metavar="N", help="Processes.", show_default="1")]
AccessLog: TypeAlias = Annotated[bool, typer.Option("--access-log", help="Log a line for each request.")]
Check: TypeAlias = Annotated[
    bool, typer.Option("--check", help="Print what would be served, or all mistakes, and exit.")
]
Against: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="URL|FILE",
        help=f"With --check: what would change for the gateway there (key in {ADMIN_KEY}), or compared with that file.",
    ),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Log and print JSON objects, one a line, and nothing else.")
]


class _Output:
    """Lines for people, or a JSON object in each."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        if as_json:
            set_up_logs(as_json=True)

    def line(self, what: str, value: str) -> None:
        object = {"what": what, "value": value}
        typer.echo(dumps(object, ensure_ascii=False) if self.as_json else f"{what:<18} {value}")

    def note(self, words: str, level: int = logging.WARNING) -> None:
        """On standard error."""
        if self.as_json:
            log.log(level, "%s", words)
        else:
            print_line(words)


def serve_command(
    upstream: UpstreamName = "",
    alias: Alias = "",
    base_url: BaseUrl = "",
    api_key_env: ApiKeyEnv = "",
    wire: WireName = "",
    config: ConfigFile = "",
    from_litellm: FromLitellm = "",
    write: Write = "",
    host: Host = "",
    port: Port = None,
    store: StorePlace = "",
    serial: Serial = False,
    all_calls: AllCalls = None,
    hold_timeout: HoldTimeout = "",
    keys: Keys = "",
    keys_file: KeysFile = "",
    open_to_all: OpenToAll = False,
    record: Record = "",
    workers: Workers = None,
    access_log: AccessLog = False,
    check: Check = False,
    against: Against = "",
    json: AsJson = False,
    log_level: LogLevelName = "",
) -> None:
    """Serve models to any client of OpenAI, Anthropic, Gemini, Ollama, Cohere or Bedrock, each in its own format.

    A client that takes one call at a time gets one at a time, whatever the model does. With no option and no file, a
    demo model is served that needs no key. Ctrl-C lets streams end, then stops; a second one stops at once.

    Exit codes: 0 stopped, or --check found nothing wrong; 2 the options or the file are wrong, or the port is taken; 3
    it could not start; 4 with --check or --write, a part of the LiteLLM file is not translated.
    """
    has_json_logs = not (check or upstream or from_litellm) and _has_json_logs(config or FILE)
    output = _Output(json or has_json_logs)
    with _reporting(output, _AS_OPTIONS if upstream else IN_A_FILE):
        said = ServeOptions(
            upstream=upstream,
            alias=alias,
            base_url=base_url,
            api_key_env=api_key_env,
            wire=wire,
            host=host,
            port=port,
            workers=workers,
            open_to_all=open_to_all,
            access_log=access_log,
            store=store,
            hold_timeout=hold_timeout,
            serial=serial,
            all_calls=all_calls,
            keys=_switch(keys),
            keys_file=keys_file,
            record=record,
        )
        translated = _translated(from_litellm, write, config or upstream, output)
        if translated is not None and write:
            raise typer.Exit(_write(translated, write, output))
        if against and not check:
            raise UserError("--against goes with --check, which is missing")
        _serve(said, translated or _file(config, upstream, output), check, output, log_level, against)
        if translated is not None and check and not translated.is_complete:
            raise typer.Exit(STOPPED)


def _serve(
    said: ServeOptions, source: str | Translation, check: bool, output: _Output, log_level: str, against: str
) -> None:
    """`source` is the file to read, empty if there is none."""
    chosen = chosen_level(log_level, None)
    opened = Opened()
    with ExitStack() as starting:
        if is_terminal(sys.stderr):
            from unbroken_cli.progress_line import progress  # noqa: PLC0415 - start-up time

            starting.enter_context(progress("starting the gateway"))
        if isinstance(source, str):
            file = source
            settings = read_config(file, said, opened) if file else settings_from_options(said, opened)
        else:
            file = source.file
            settings = source.settings(said, opened)
        with missing_extra():
            from unbroken_gateway.app import Gateway  # noqa: PLC0415 - an optional extra
            from unbroken_gateway.http.uvicorn_server import serve  # noqa: PLC0415 - an optional extra

        def show(at: str) -> None:
            starting.close()
            _show(settings, opened, file, at, output)

        if check:
            show("")
            if against:
                _compare(settings, against, said, output)
        else:
            again = ConfigSource(file, asdict(said), is_litellm=not isinstance(source, str))
            logs = partial(set_up_logs, output.as_json, chosen or settings.log_level)
            serve(settings, show, app=Gateway, logs=logs, source=again)


def _compare(settings: GatewaySettings, against: str, said: ServeOptions, output: _Output) -> None:
    """Prints what would change for a running gateway, or compared with another file."""
    from unbroken_gateway.commands.admin_client import ask, find_gateway  # noqa: PLC0415 - start-up time
    from unbroken_gateway.config.changes import describe, find_changes  # noqa: PLC0415 - start-up time

    is_running = against.startswith(("http://", "https://"))
    old = ask(find_gateway(against), "GET", "/config") if is_running else describe(read_config(against, said))
    changes = find_changes(old, describe(settings))
    for change in changes:
        output.line("would change", str(change))
    if not changes:
        output.line("would change", f"nothing compared with {against}")
    elif any(change.restart for change in changes):
        output.note("a reload leaves what needs a restart as it is; everything else takes effect at once")


def _translated(file: str, write: str, others: str, output: _Output) -> Translation | None:
    """The configuration of LiteLLM's proxy, if one is named. What is not translated is printed."""
    if not file:
        if write:
            raise UserError("--write goes with --from-litellm FILE, which is missing")
        return None
    if others:
        raise UserError("--from-litellm names its models: leave out --config and --upstream")
    from unbroken_gateway.from_litellm import read_litellm  # noqa: PLC0415 - start-up time

    translated = read_litellm(file)
    for found in translated.findings:
        output.note(str(found))
    return translated


def _write(translated: Translation, target: str, output: _Output) -> int:
    """Writes `unbroken.toml`, after a check that it can be read. Returns the exit code."""
    text = translated.toml()
    translated.check()
    if target == "-":
        typer.echo(text, nl=False)
    else:
        try:
            with Path(target).open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise UserError(f"--write {target}: it exists already; name another file, or remove it") from None
        except OSError as error:
            raise UserError(f"--write {target}: it cannot be written: {error.strerror or error}") from None
        output.note(f"{target} is written; check it with `unbroken serve --config {target} --check`", logging.INFO)
    return 0 if translated.is_complete else STOPPED


def _file(config: str, upstream: str, output: _Output) -> str:
    """The file to read; empty if there is none."""
    if config and upstream:
        raise UserError("--config and --upstream cannot be used together: the file names its models")
    if not config and Path(FILE).is_file():
        if not upstream:
            return FILE
        output.note(f"{FILE} is not read, because --upstream names the model")
    return config


def _switch(given: str) -> bool | None:
    if given not in ("", "on", "off"):
        raise UserError(f"--keys {given}: give on or off")
    return given == "on" if given else None


@contextmanager
def _reporting(output: _Output, words: dict[str, str]) -> Generator[None]:
    """Prints all mistakes, one line each."""
    try:
        yield
    except UnbrokenError as error:
        for line in str(error).splitlines():
            for spelled, here in words.items():
                line = line.replace(spelled, here)
            output.note(line, logging.ERROR)
        raise typer.Exit(MISUSED) from None


@contextmanager
def missing_extra(what: str = "the gateway") -> Generator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise needs_extra(what, error.name or "a package", "gateway") from None


def _show(settings: GatewaySettings, opened: Opened, file: str, at: str, output: _Output) -> None:
    """Prints what is served, and how clients reach it; `at` is the address, empty with --check. A gateway that has
    started, and logs JSON, has logged the line `started` instead."""
    if not (output.as_json and at):
        for what, value in summary(settings, opened, file, at):
            output.line(what, value)
        if at:
            typer.echo("Ctrl-C stops it")
    for warning in warnings(settings, opened):
        output.note(warning)


def _has_json_logs(file: str) -> bool:
    """Whether the file says `json = true` below [log]. Reading it reports what is wrong with it."""
    try:
        return tomllib.loads(Path(file).read_text("utf-8-sig"))["log"]["json"] is True
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
