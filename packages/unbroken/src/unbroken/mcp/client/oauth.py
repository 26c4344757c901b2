"""Signs in to an MCP server over HTTP with OAuth: the flow is that of the `mcp` package; here are the page that the
browser returns to and the words for errors.

A server names the addresses at which we sign in, so `Addresses` refuses those that it has no business to send us to.
Tokens, codes and secrets appear in no error and no log line. The package logs the errors of its flow with their
tracebacks, in which an unreadable answer is quoted, so these log lines lose them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import re
import socket
import sys
import webbrowser
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError, TokenStorage
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
)
from pydantic import AnyUrl

from unbroken.errors import UserError
from unbroken.mcp.client.target import OAuth
from unbroken.mcp.client.token_storage import StoredTokens, token_storage
from unbroken.tools.threads import call_anywhere

_PATH = "/callback"
_DONE = "<!doctype html><title>Signed in</title><p>You are signed in, and can close this window."
_REFUSED = "<!doctype html><title>Not signed in</title><p>You are not signed in. You can close this window."
_CODE = re.compile(r"[a-z_]{1,40}")
"""An error code of OAuth, as in `invalid_grant`."""


class _NoTraceback(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = record.exc_text = None
        return True


logging.getLogger("mcp.client.auth.oauth2").addFilter(_NoTraceback())


class SignIn:
    """The sign-in of one `MCPServer`. Its tokens outlive the sessions."""

    def __init__(self, url: str, oauth: OAuth) -> None:
        self._oauth = oauth
        addresses = Addresses(url)
        self._loopback = _Loopback(oauth, addresses)
        storage = token_storage(url, oauth.storage)
        if oauth.grant == "client_credentials":
            self.provider: OAuthClientProvider = _ForMachines(url, oauth, storage, addresses)
        else:
            self.provider = _ForPeople(url, oauth, storage, self._loopback, addresses)

    @property
    def waiting(self) -> bool:
        """A person is signing in."""
        return self._loopback.waiting

    def close(self) -> None:
        """Frees the port; the tokens stay."""
        self._loopback.close()


def in_short(error: OAuthFlowError) -> str:
    """The error without what a server sent, except for the code of OAuth in it."""
    text = (str(error).splitlines() or [""])[0]
    head, _, body = text.partition(": ")
    if "{" not in body and len(text) < 300 and "mismatch" not in text:
        return f"signing in failed: {text}"
    try:
        found: Any = json.loads(body)
        code = cast("Mapping[str, Any]", found).get("error", "") if isinstance(found, dict) else ""
    except ValueError:
        code = ""
    known = f": {code}" if isinstance(code, str) and _CODE.fullmatch(code) else ""
    return f"signing in failed: {head}{known}"


class Addresses:
    """Where the sign-in to the server at `url` may go: anywhere, but not from a public server to a machine of our own
    network, not from HTTPS to HTTP, and never to link-local addresses, where clouds keep the keys of a machine."""

    def __init__(self, url: str) -> None:
        self._server = httpx2.URL(url)
        self._is_public: bool | None = None

    async def check(self, url: httpx2.URL) -> None:
        """Raises `OAuthFlowError` for an address to which the server must not send us."""
        server = self._server
        if (url.scheme, url.host, url.port) == (server.scheme, server.host, server.port):
            return
        if url.scheme != "https" and (url.scheme != "http" or server.scheme == "https"):
            raise OAuthFlowError(f"the server names an address that is not HTTPS, at `{_shown(url)}`")
        found = await _addresses(url.host)
        if self._is_public is None:
            self._is_public = all(each.is_global for each in await _addresses(server.host))
        for address in found:
            if address.is_link_local or address.is_multicast or (self._is_public and not address.is_global):
                raise OAuthFlowError(f"the server names an address inside this network, at `{_shown(url)}`")


async def _addresses(host: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Empty if the name is not known here: then a proxy may know it, or the request fails."""
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    found = [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in infos]
    return [getattr(each, "ipv4_mapped", None) or each for each in found]


def _shown(url: httpx2.URL) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in f"{url.scheme}://{url.host}")[:200]


async def _checked_flow(
    flow: AsyncGenerator[httpx2.Request, httpx2.Response], addresses: Addresses
) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
    try:
        request = await anext(flow)
        while True:
            await addresses.check(request.url)
            request = await flow.asend((yield request))
    except StopAsyncIteration:
        return
    finally:
        await flow.aclose()


class _ForPeople(OAuthClientProvider):
    """The authorization code with PKCE, and a redirect to a port of this machine."""

    def __init__(
        self, url: str, oauth: OAuth, storage: TokenStorage, loopback: _Loopback, addresses: Addresses
    ) -> None:
        self._addresses = addresses
        self._oauth = oauth
        self._loopback = loopback
        method = "client_secret_basic" if oauth.client_secret else "none"
        metadata = OAuthClientMetadata(
            client_name="unbroken",
            redirect_uris=[AnyUrl(f"http://127.0.0.1{_PATH}")],
            token_endpoint_auth_method=method,
            scope=oauth.scope or None,
        )
        document = oauth.client_metadata_url or None
        super().__init__(url, metadata, storage, loopback.show, loopback.wait, client_metadata_url=document)

    def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        return _checked_flow(super().async_auth_flow(request), self._addresses)

    async def _initialize(self) -> None:
        """The redirect address is part of what was registered: it keeps its port, if that is free."""
        await super()._initialize()
        context, oauth = self.context, self._oauth
        if isinstance(context.storage, StoredTokens):
            context.storage.restore(context)
        known = context.client_info.redirect_uris if context.client_info is not None else None
        port = next((one.port for one in known or () if one.port), None)
        if not self._loopback.reserve(oauth.port or port or 0):
            context.client_info = None  # its port is taken, so it has to be registered again
            self._loopback.reserve(0)
        address = AnyUrl(f"http://127.0.0.1:{self._loopback.port}{_PATH}")
        context.client_metadata.redirect_uris = [address]
        if oauth.client_id:
            context.client_info = OAuthClientInformationFull(
                client_id=oauth.client_id,
                client_secret=oauth.client_secret or None,
                redirect_uris=[address],
                token_endpoint_auth_method=context.client_metadata.token_endpoint_auth_method,
                issuer=oauth.issuer or None,
            )


class _ForMachines(ClientCredentialsOAuthProvider):
    def __init__(self, url: str, oauth: OAuth, storage: TokenStorage, addresses: Addresses) -> None:
        self._addresses = addresses
        super().__init__(
            url, storage, oauth.client_id, oauth.client_secret, scope=oauth.scope or None, issuer=oauth.issuer
        )

    def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        return _checked_flow(super().async_auth_flow(request), self._addresses)

    async def _initialize(self) -> None:
        await super()._initialize()
        if isinstance(self.context.storage, StoredTokens):
            self.context.storage.restore(self.context)


class _Loopback:
    """The port of this machine to which the browser returns. It is reserved at once, because its number is registered,
    and listens only while somebody signs in."""

    def __init__(self, oauth: OAuth, addresses: Addresses) -> None:
        self._oauth = oauth
        self._addresses = addresses
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._result: asyncio.Future[AuthorizationCodeResult] | None = None
        self._state = ""
        self.port = 0
        self.waiting = False

    def reserve(self, port: int) -> bool:
        """Whether it could be had."""
        if self._socket is not None:
            return port in (0, self.port)
        reserved = socket.socket()
        try:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, os.name != "nt")
            reserved.bind(("127.0.0.1", port))
        except OSError as error:
            reserved.close()
            if self._oauth.port:
                raise UserError(f"OAuth(port={port}): the port is not free ({error.strerror or error})") from error
            return False
        self._socket, self.port = reserved, reserved.getsockname()[1]
        return True

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def show(self, url: str) -> None:
        """Starts to listen and shows the page on which the user signs in."""
        await self._addresses.check(httpx2.URL(url))
        self._state = parse_qs(urlsplit(url).query).get("state", [""])[0]
        self._result = asyncio.get_running_loop().create_future()
        port = self.port
        if self._socket is None and not self.reserve(port):
            raise OAuthFlowError(f"port {port} of this machine, to which the browser returns, is taken")
        self._server = await asyncio.start_server(self._answer, sock=self._socket)
        self._socket = None
        self.waiting = True
        try:
            if self._oauth.show is not None:
                await call_anywhere(self._oauth.show, url)
            else:
                sys.stderr.write(f"To sign in, open: {url}\n")
                await asyncio.to_thread(webbrowser.open, url)
        except BaseException:
            self._stop()
            raise

    async def wait(self) -> AuthorizationCodeResult:
        assert self._result is not None
        try:
            async with asyncio.timeout(self._oauth.timeout):
                return await self._result
        except TimeoutError:
            raise OAuthFlowError(f"nobody signed in within {self._oauth.timeout:g} s") from None
        finally:
            self._stop()

    def _stop(self) -> None:
        self.waiting = False
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request of the browser. One without the right state is not from the page that we showed."""
        try:
            line = (await reader.readline()).decode("latin-1").split(" ")
            while (await reader.readline()).strip():
                pass
            target = urlsplit(line[1] if len(line) > 1 else "")
            given = {name: values[0] for name, values in parse_qs(target.query).items()}
            ours = line[0] == "GET" and target.path == _PATH and bool(given.get("state"))
            if not ours or given["state"] != self._state or self._result is None or self._result.done():
                await _send(writer, "404 Not Found", "not found")
                return
            if code := given.get("code"):
                await _send(writer, "200 OK", _DONE)
                self._result.set_result(AuthorizationCodeResult(code=code, state=given["state"], iss=given.get("iss")))
            else:
                await _send(writer, "200 OK", _REFUSED)
                error = given.get("error", "")
                said = error if _CODE.fullmatch(error) else "no code"
                self._result.set_exception(OAuthFlowError(f"the authorization server answered `{said}`"))
        except (OSError, ValueError):
            pass  # the browser went away, or it was none
        finally:
            writer.close()


async def _send(writer: asyncio.StreamWriter, status: str, page: str) -> None:
    body = page.encode()
    kind = "text/html; charset=utf-8"
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
