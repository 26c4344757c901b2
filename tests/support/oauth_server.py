"""An authorization server and an MCP server behind it, for the tests of signing in. They accept only what the
specifications allow: PKCE with S256, the exact redirect address that was registered, the resource that the MCP server
names, each code and refresh token once, and each token only at its own resource."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

SECRET = "machine-secret-0123456789"


class Wrong(Exception):
    """An error of OAuth: its code and the rule that was broken."""

    def __init__(self, code: str, rule: str, status: int = 400) -> None:
        super().__init__(f"{code}: {rule}")
        self.code = code
        self.rule = rule
        self.status = status


@dataclass
class AuthorizationServer:
    """`issued` are all the tokens, codes and secrets that exist: they may appear nowhere else."""

    issuer: str = ""
    resource: str = ""
    denies: bool = False
    """The user says no."""
    breaks_tokens: bool = False
    """Its answers to token requests cannot be read."""
    lies: dict[str, Any] = field(default_factory=dict[str, Any])
    """What it or the MCP server says about them in place of the truth."""
    moved_to: str = ""
    """Where the MCP server sends all calls, if anywhere."""
    clients: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    documents: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Client ID metadata documents, by address: it reads them there, if there are any."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    access: dict[str, str] = field(default_factory=dict[str, str])
    """Valid access tokens, and the resource of each."""
    refresh: dict[str, str] = field(default_factory=dict[str, str])
    issued: list[str] = field(default_factory=list[str])
    grants: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])

    def app(self) -> ASGIApp:
        return Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", self._metadata),
                Route("/register", self._register, methods=["POST"]),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    async def _metadata(self, request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.lies.get("issuer", self.issuer),
                "authorization_endpoint": self.lies.get("authorization_endpoint", f"{self.issuer}/authorize"),
                "token_endpoint": self.lies.get("token_endpoint", f"{self.issuer}/token"),
                "registration_endpoint": f"{self.issuer}/register",
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
                "authorization_response_iss_parameter_supported": True,
                "client_id_metadata_document_supported": bool(self.documents),
            }
        )

    async def _register(self, request: Request) -> Response:
        asked = await request.json()
        redirects: list[str] = asked.get("redirect_uris") or []
        if not redirects or any(urlsplit(one).hostname != "127.0.0.1" or not urlsplit(one).port for one in redirects):
            return self._refuse(Wrong("invalid_redirect_uri", f"not a port of this machine: {redirects}"))
        client = {**asked, "client_id": f"client-{len(self.clients)}"}
        self.clients[client["client_id"]] = client
        return JSONResponse(client, 201)

    async def _authorize(self, request: Request) -> Response:
        """The page on which the user says yes, at once."""
        try:
            asked = dict(request.query_params)
            client = self._client(asked)
            if not any(_is_same_redirect(asked.get("redirect_uri", ""), one) for one in client["redirect_uris"]):
                raise Wrong("invalid_request", "another redirect_uri than the registered one")
            if asked.get("code_challenge_method") != "S256" or len(asked.get("code_challenge", "")) != 43:
                raise Wrong("invalid_request", "no PKCE")
            if asked.get("resource") != self.resource:
                raise Wrong("invalid_target", f"another resource: {asked.get('resource')}")
            if len(asked.get("state", "")) < 16:
                raise Wrong("invalid_request", "no state")
        except Wrong as error:
            return self._refuse(error)
        said = {"state": asked["state"], "iss": self.lies.get("iss", self.issuer)}
        if self.denies:
            return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({**said, 'error': 'access_denied'})}", 302)
        code = self._new("code")
        self.codes[code] = asked
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({**said, 'code': code})}", 302)

    async def _token(self, request: Request) -> Response:
        asked = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        try:
            grant = asked.get("grant_type", "")
            client = self._client(asked, request.headers.get("authorization", ""))
            match grant:
                case "authorization_code":
                    self._check_code(asked)
                case "refresh_token":
                    if self.refresh.pop(asked.get("refresh_token", ""), None) != client["client_id"]:
                        raise Wrong("invalid_grant", "unknown refresh_token")
                case "client_credentials":
                    if client.get("secret") is None:
                        raise Wrong("unauthorized_client", "client_credentials without a secret")
                case _:
                    raise Wrong("unsupported_grant_type", grant)
            if asked.get("resource") != self.resource:
                raise Wrong("invalid_target", f"another resource: {asked.get('resource')}")
        except Wrong as error:
            return self._refuse(error)
        self.grants.append(grant)
        token = self._new("access")
        self.access[token] = self.resource
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": 3600}
        if grant != "client_credentials":
            answer["refresh_token"] = self._new("refresh")
            self.refresh[answer["refresh_token"]] = client["client_id"]
        return JSONResponse({**answer, "token_type": 7} if self.breaks_tokens else answer)

    def _check_code(self, asked: Mapping[str, str]) -> None:
        given = self.codes.pop(asked.get("code", ""), None)
        if given is None:
            raise Wrong("invalid_grant", "unknown code, or used twice")
        if (asked.get("client_id"), asked.get("redirect_uri")) != (given["client_id"], given["redirect_uri"]):
            raise Wrong("invalid_grant", "the code belongs to another client or redirect_uri")
        digest = hashlib.sha256(asked.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).decode().rstrip("=") != given["code_challenge"]:
            raise Wrong("invalid_grant", "the code_verifier does not fit")

    def _client(self, asked: Mapping[str, str], authorization: str = "") -> dict[str, Any]:
        name, secret = asked.get("client_id", ""), ""
        if authorization.startswith("Basic "):
            name, _, secret = base64.b64decode(authorization[6:]).decode().partition(":")
        client = self.clients.get(name) or self.documents.get(name)
        if client is None or client.get("client_id", name) != name:
            raise Wrong("invalid_client", f"unknown client `{name}`", 401)
        if authorization and not secrets.compare_digest(secret, client.get("secret", "")):
            raise Wrong("invalid_client", "a wrong secret", 401)
        return client

    def _refuse(self, error: Wrong) -> Response:
        self.refused.append(str(error))
        return JSONResponse({"error": error.code, "error_description": error.rule}, error.status)

    def _new(self, kind: str) -> str:
        self.issued.append(token := f"{kind}-{secrets.token_urlsafe(24)}")
        return token


def _is_same_redirect(asked: str, registered: str) -> bool:
    """The port of a program on this machine may differ from a registration without one."""
    one, other = urlsplit(asked), urlsplit(registered)
    return asked == registered or (
        (one.scheme, one.hostname, one.path) == (other.scheme, "127.0.0.1", other.path) and other.port is None
    )


def protected(server: AuthorizationServer) -> ASGIApp:
    """An MCP server that only tokens for it open."""
    notes = MCPServer("notes", log_level="CRITICAL")

    @notes.tool()
    def add_note(text: str) -> str:
        """Keep a note."""
        return f"kept: {text}"

    app = notes.streamable_http_app()

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        path = urlsplit(server.resource).path
        if scope["path"] == f"/.well-known/oauth-protected-resource{path}":
            named = server.lies.get("authorization_servers", [server.issuer])
            about = {"resource": server.resource, "authorization_servers": named}
            await JSONResponse(about)(scope, receive, send)
            return
        if server.moved_to:
            await RedirectResponse(server.moved_to, 307)(scope, receive, send)
            return
        given = Request(scope).headers.get("authorization", "").removeprefix("Bearer ")
        if server.access.get(given) != server.resource:
            origin = server.resource.removesuffix(path)
            where = f'Bearer resource_metadata="{origin}/.well-known/oauth-protected-resource{path}"'
            await Response(status_code=401, headers={"www-authenticate": where})(scope, receive, send)
            return
        await app(scope, receive, send)

    return guard
