"""Requests to the admin API of a running gateway, for `unbroken admin` and `unbroken serve --check --against`: where
the gateway is, and which key it gets."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from unbroken.errors import Unavailable, Unreachable, UserError
from unbroken_cli.options import ADMIN_KEY
from unbroken_gateway.config import FILE
from unbroken_gateway.setting_types import is_loopback
from unbroken_gateway.settings import EVERYWHERE, HOST, PORT

URL = f"http://{HOST}:{PORT}"
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway with an admin API, and its key."""

    url: str
    key: str = field(repr=False)


def find_gateway(url: str, config: str = "") -> RunningGateway:
    """The gateway at this address, or the one that a configuration file describes: `config`, else `unbroken.toml` if it
    is in the working directory. The key is in `UNBROKEN_ADMIN_KEY`, or in the variable that the file names. A file that
    was only found there may be somebody else's: it cannot have a key sent to another machine."""
    file = config or (FILE if not url and Path(FILE).is_file() else "")
    document = _read(file) if file else {}
    base = (url or _address(document, file, named=bool(config))).rstrip("/")
    if urlsplit(base).scheme not in ("http", "https") or not urlsplit(base).netloc:
        raise UserError(f"--url {url}: give the gateway's address, like {URL}")
    named = _table(document, "admin").get("key_env")
    variables = [ADMIN_KEY, *([named] if isinstance(named, str) and named else [])]
    key = next((value for name in variables if (value := os.environ.get(name, "").strip())), "")
    if not key:
        raise UserError(
            f"the key is missing: put an admin key into the variable {' or '.join(variables)} "
            "(`unbroken keys create NAME --admin` creates one)"
        )
    return RunningGateway(base, key)


def _read(file: str) -> dict[str, Any]:
    """Mistakes in the rest of the file do not matter here: a gateway that runs may need to be asked about them."""
    try:
        return tomllib.loads(Path(file).read_text("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not TOML: {error}; give the gateway's address with --url") from None


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table: object = document.get(name)
    return cast("Mapping[str, Any]", table) if isinstance(table, dict) else {}


def _address(document: Mapping[str, Any], file: str, *, named: bool) -> str:
    server = _table(document, "server")
    host, port = server.get("host", HOST), server.get("port", PORT)
    if not isinstance(host, str) or not host or type(port) is not int or not 0 < port < 65536:
        raise UserError(f"{file} does not say where the gateway listens (host and port in [server]): give --url")
    near = EVERYWHERE.get(host, host)
    if not (named or is_loopback(near)):
        raise UserError(f"{file} has the address {near}, which may be another machine: give --config {file}, or --url")
    return f"http://[{near}]:{port}" if ":" in near else f"http://{near}:{port}"


class _NoRedirects(HTTPRedirectHandler):
    """The key must not be sent to another server."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def ask(gateway: RunningGateway, method: str, path: str, body: object = None) -> Any:
    """The answer of this gateway. Raises `UserError` if it refuses, and `Unreachable` or `Unavailable`
    if it does not answer or fails."""
    base = gateway.url
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {gateway.key}", "Content-Type": "application/json"}
    request = Request(f"{base}/admin/v1{quote(path)}", data, headers, method=method)
    try:
        with build_opener(_NoRedirects).open(request, timeout=_SECONDS) as answer:
            return json.loads(answer.read())
    except HTTPError as error:
        words = _words(error)
        if error.code >= 500:
            raise Unavailable(f"the gateway at {base} failed: {words}", status=error.code) from None
        raise UserError(f"the gateway at {base} refused: {words}") from None
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise Unreachable(
            f"the gateway at {base} does not answer: {getattr(reason, 'strerror', None) or reason}; "
            "check the address (--url), and that it runs"
        ) from None
    except ValueError:
        raise UserError(f"{base} is not a gateway with an admin API: its answer is not JSON") from None


def _words(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"status {error.code}"
