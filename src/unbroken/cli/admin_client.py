"""Requests to the admin API of a running gateway, for `unbroken admin` and `unbroken serve --check --against`."""

from __future__ import annotations

import json
import os
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from unbroken.cli.options import ADMIN_KEY
from unbroken.errors import Unavailable, Unreachable, UserError

URL = "http://127.0.0.1:8400"
_SECONDS = 30.0


class _NoRedirects(HTTPRedirectHandler):
    """The key must not be sent to another server."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


def ask(url: str, method: str, path: str, body: object = None) -> Any:
    """The answer of the gateway at this address. Raises `UserError` if it refuses, and `Unreachable` or `Unavailable`
    if it does not answer or fails."""
    base = url.rstrip("/")
    if urlsplit(base).scheme not in ("http", "https") or not urlsplit(base).netloc:
        raise UserError(f"--url {url}: give the gateway's address, like {URL}")
    key = os.environ.get(ADMIN_KEY, "").strip()
    if not key:
        raise UserError(
            f"the key is missing: put an admin key into the variable {ADMIN_KEY} (`unbroken keys create --admin`)"
        )
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
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
            "check the address, and that it runs"
        ) from None
    except ValueError:
        raise UserError(f"{base} is not a gateway with an admin API: its answer is not JSON") from None


def _words(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"status {error.code}"
