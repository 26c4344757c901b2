"""Signing in to MCP servers over HTTP, with a strict authorization server on another port."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import stat
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")

import httpx2
from in_loop import in_loop
from mcp.client.auth import OAuthFlowError
from oauth_server import SECRET, AuthorizationServer, protected
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from web_server import serve

from unbroken import Agent, Recorder, UserError
from unbroken.errors import InvalidTool
from unbroken.mcp import OAuth
from unbroken.mcp.client.oauth import Addresses
from unbroken.mcp.client.server import MCPServer
from unbroken_testing import Call, ScriptedModel


def browse(url: str) -> None:
    """A browser with a user who says yes: it follows the redirect back to us."""
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(url, timeout=10).read()


@contextlib.asynccontextmanager
async def guarded() -> AsyncGenerator[AuthorizationServer]:
    server = AuthorizationServer()
    async with serve(server.app()) as first, serve(protected(server)) as second:
        server.issuer = f"http://127.0.0.1:{first}"
        server.resource = f"http://127.0.0.1:{second}/mcp"
        yield server


async def add_note(server: MCPServer, text: str = "tea", **options: Any) -> str:
    agent = Agent(ScriptedModel([Call("add_note", text=text)], "Done."), tools=[server], **options)
    return (await agent.run("Go.")).calls[0].result.text


@in_loop
async def test_a_person_signs_in_once_and_the_server_can_be_used() -> None:
    async with guarded() as oauth:
        shown: list[str] = []
        server = MCPServer(url=oauth.resource, auth=OAuth(show=lambda url: (shown.append(url), browse(url))))
        for _ in range(2):  # the tokens outlive the session
            assert await add_note(server) == "kept: tea"
    assert oauth.refused == []
    assert oauth.grants == ["authorization_code"]
    assert len(shown) == 1
    assert "code_challenge_method=S256" in shown[0]


@in_loop
async def test_a_metadata_document_takes_the_place_of_a_registration() -> None:
    address = "https://unbroken.example/client.json"
    async with guarded() as oauth:
        oauth.documents[address] = {"client_id": address, "redirect_uris": ["http://127.0.0.1/callback"]}
        auth = OAuth(show=browse, client_metadata_url=address)
        assert await add_note(MCPServer(url=oauth.resource, auth=auth)) == "kept: tea"
    assert (oauth.refused, oauth.clients) == ([], {})


@in_loop
async def test_a_client_with_a_metadata_document_registers_itself_where_those_are_not_known() -> None:
    async with guarded() as oauth:
        auth = OAuth(show=browse, client_metadata_url="https://unbroken.example/client.json")
        assert await add_note(MCPServer(url=oauth.resource, auth=auth)) == "kept: tea"
    assert (oauth.refused, len(oauth.clients)) == ([], 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"client_metadata_url": "http://a.example/client.json"}, "its address starts with https:// and has a path"),
        ({"client_metadata_url": "https://a.example"}, "its address starts with https:// and has a path"),
        ({"client_metadata_url": "https://a.example/c", "client_id": "x"}, "takes the place of client_id"),
    ],
)
def test_an_address_of_a_document_that_cannot_work_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        OAuth(**options)


@in_loop
async def test_tokens_are_kept_in_a_file_of_the_owner_and_refreshed_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "tokens.json"
    async with guarded() as oauth:
        await add_note(MCPServer(url=oauth.resource, auth=OAuth(show=browse, storage=file)))
        kept = json.loads(file.read_text())
        kept[oauth.resource]["expires_at"] = 1.0  # long ago
        file.write_text(json.dumps(kept))
        oauth.access.clear()
        for _ in range(2):
            again = MCPServer(url=oauth.resource, auth=OAuth(show=not_again, storage=str(file)))
            assert await add_note(again) == "kept: tea"
        assert oauth.grants == ["authorization_code", "refresh_token"]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert [*json.loads(file.read_text())] == [oauth.resource]
    assert oauth.refused == []


def not_again(url: str) -> None:
    raise AssertionError("the user was asked again")


@in_loop
async def test_a_storage_of_your_own_keeps_the_tokens() -> None:
    class Keys:
        tokens: Any = None
        client: Any = None

        async def get_tokens(self) -> Any:
            return self.tokens

        async def set_tokens(self, tokens: Any) -> None:
            self.tokens = tokens

        async def get_client_info(self) -> Any:
            return self.client

        async def set_client_info(self, client_info: Any) -> None:
            self.client = client_info

    keys = Keys()
    async with guarded() as oauth:
        await add_note(MCPServer(url=oauth.resource, auth=OAuth(show=browse, storage=keys)))
        assert keys.tokens.access_token in oauth.issued
        assert await add_note(MCPServer(url=oauth.resource, auth=OAuth(show=not_again, storage=keys))) == "kept: tea"


@in_loop
async def test_a_program_signs_in_with_its_own_credentials() -> None:
    async with guarded() as oauth:
        oauth.clients["machine"] = {"client_id": "machine", "secret": SECRET, "redirect_uris": []}
        auth = OAuth(grant="client_credentials", client_id="machine", client_secret=SECRET, issuer=oauth.issuer)
        server = MCPServer(url=oauth.resource, auth=auth)
        assert await add_note(server) == "kept: tea"
        oauth.access.clear()  # a token that is no longer valid is replaced
        assert await add_note(server) == "kept: tea"
        assert oauth.grants == ["client_credentials"] * 2
        assert SECRET not in repr(server) + repr(auth)


@in_loop
async def test_a_client_that_is_registered_already_does_not_register_again() -> None:
    async with guarded() as oauth:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        oauth.clients["mine"] = {"client_id": "mine", "redirect_uris": [f"http://127.0.0.1:{port}/callback"]}
        server = MCPServer(url=oauth.resource, auth=OAuth(client_id="mine", port=port, show=browse))
        assert await add_note(server) == "kept: tea"
        assert [*oauth.clients] == ["mine"]


@in_loop
async def test_errors_name_the_reason_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded() as oauth:
        oauth.denies = True
        with pytest.raises(InvalidTool, match="signing in failed: the authorization server answered `access_denied`"):
            await MCPServer(url=oauth.resource, auth=OAuth(show=browse)).open()
        oauth.denies, oauth.breaks_tokens = False, True
        with pytest.raises(InvalidTool) as unreadable:
            await MCPServer(url=oauth.resource, auth=OAuth(show=browse)).open()
        oauth.breaks_tokens = False
        with pytest.raises(InvalidTool, match=r"nobody signed in within 0\.1 s"):
            await MCPServer(url=oauth.resource, auth=OAuth(show=lambda url: None, timeout=0.1)).open()
        wrong = OAuth(grant="client_credentials", client_id="machine", client_secret="x" * 20, issuer=oauth.issuer)
        oauth.clients["machine"] = {"client_id": "machine", "secret": SECRET, "redirect_uris": []}
        with pytest.raises(InvalidTool, match=r"Token exchange failed \(401\): invalid_client"):
            await MCPServer(url=oauth.resource, auth=wrong).open()
        other = OAuth(grant="client_credentials", client_id="m", client_secret=SECRET, issuer="https://other.example")
        with pytest.raises(InvalidTool, match="signing in failed"):
            await MCPServer(url=oauth.resource, auth=other).open()
        assert not [secret for secret in (*oauth.issued, SECRET) if secret in caplog.text + str(unreadable.value)]
    assert not any(SECRET in line for line in oauth.refused)


@in_loop
async def test_tokens_are_in_no_recording_and_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded() as oauth:
        server = MCPServer(url=oauth.resource, auth=OAuth(show=browse))
        assert await add_note(server, record=Recorder(tmp_path)) == "kept: tea"
        written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
        assert "kept: tea" in written
        assert len(oauth.issued) == 3  # a code and two tokens
        assert not [secret for secret in oauth.issued if secret in written + caplog.text]


@in_loop
async def test_a_stranger_cannot_finish_the_sign_in() -> None:
    statuses: list[int] = []

    def attacked(url: str) -> None:
        back = url.partition("redirect_uri=")[2].partition("&")[0]
        address = urllib.parse.unquote(back)
        for query in ("?code=evil&state=guess", "?code=evil", ""):
            try:
                urllib.request.urlopen(f"{address}{query}", timeout=10).read()
            except urllib.error.HTTPError as error:
                statuses.append(error.code)
        browse(url)

    async with guarded() as oauth:
        assert await add_note(MCPServer(url=oauth.resource, auth=OAuth(show=attacked))) == "kept: tea"
    assert statuses == [404, 404, 404]
    assert oauth.refused == []


@in_loop
async def test_the_authorization_server_of_these_tests_is_strict() -> None:
    async with guarded() as oauth:

        def tampered(url: str) -> None:
            browse(url.replace(url.partition("code_challenge=")[2][:43], "x" * 43))

        with pytest.raises(InvalidTool, match="invalid_grant"):
            await MCPServer(url=oauth.resource, auth=OAuth(show=tampered)).open()
        for gap in ("&resource=", "&redirect_uri="):
            late = OAuth(show=lambda url, gap=gap: browse(url.replace(gap, "&other=")), timeout=0.2)
            with pytest.raises(InvalidTool, match="nobody signed in"):
                await MCPServer(url=oauth.resource, auth=late).open()
    assert [line.partition(":")[0] for line in oauth.refused] == ["invalid_grant", "invalid_target", "invalid_request"]


def test_wrong_settings_are_refused_at_once() -> None:
    with pytest.raises(UserError, match="needs client_id, client_secret and issuer"):
        OAuth(grant="client_credentials", client_id="x")
    with pytest.raises(UserError, match="needs the client_id"):
        OAuth(client_secret="x")
    with pytest.raises(UserError, match="is for a server at a url"):
        MCPServer("program", auth=OAuth())


@in_loop
async def test_a_page_that_cannot_be_shown_leaves_no_port_open() -> None:
    shown: list[str] = []

    def show(url: str) -> None:
        shown.append(url)
        raise LookupError("there is no screen")

    async with guarded() as oauth:
        with pytest.raises(Exception, match=r"MCP server|screen"):
            await MCPServer(url=oauth.resource, auth=OAuth(show=show)).open()
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(shown[0]).query)
        back = urllib.parse.urlsplit(query["redirect_uri"][0])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", back.port or 0), timeout=5)


@pytest.mark.parametrize(
    ("server", "named", "words"),
    [
        ("https://93.184.216.34/mcp", "https://10.0.0.7/token", "inside this network"),
        ("https://93.184.216.34/mcp", "https://127.0.0.1/token", "inside this network"),
        ("https://93.184.216.34/mcp", "https://[::1]/token", "inside this network"),
        ("https://93.184.216.34/mcp", "https://[::ffff:192.168.1.1]/token", "inside this network"),
        ("https://93.184.216.34/mcp", "https://2130706433/token", "inside this network"),  # 127.0.0.1 as one number
        ("https://93.184.216.34/mcp", "http://93.184.216.34/token", "not HTTPS"),
        ("http://127.0.0.1:8000/mcp", "http://169.254.169.254/latest/meta-data", "inside this network"),
        ("http://127.0.0.1:8000/mcp", "file:///etc/passwd", "not HTTPS"),
        ("https://93.184.216.34/mcp", "https://93.184.216.35/token", ""),
        ("https://10.0.0.7/mcp", "https://10.0.0.8/token", ""),
        ("http://127.0.0.1:8000/mcp", "http://127.0.0.1:9000/token", ""),
    ],
)
@in_loop
async def test_a_server_cannot_send_the_sign_in_into_our_own_network(server: str, named: str, words: str) -> None:
    checked = Addresses(server).check(httpx2.URL(named))
    if not words:
        await checked
        return
    with pytest.raises(OAuthFlowError, match=words):
        await checked


@in_loop
async def test_an_authorization_server_that_lies_about_itself_gets_no_code() -> None:
    async with guarded() as oauth:
        shown: list[str] = []
        for field, value in (
            ("issuer", "https://other.example"),
            ("iss", "https://other.example"),
            ("authorization_servers", ["http://169.254.169.254"]),
            ("authorization_endpoint", "http://169.254.169.254/authorize"),
            ("token_endpoint", "http://169.254.169.254/token"),
        ):
            oauth.lies = {field: value}
            auth = OAuth(show=lambda url: (shown.append(url), browse(url)), timeout=5)
            with pytest.raises(InvalidTool, match="signing in failed"):
                await MCPServer(url=oauth.resource, auth=auth).open()
        assert oauth.grants == []
    assert not [url for url in shown if "169.254" in urllib.parse.urlsplit(url).netloc]


@in_loop
async def test_a_redirect_to_another_host_takes_no_token_with_it() -> None:
    got: list[dict[str, str]] = []

    async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            got.append(dict(Request(scope).headers))
            await Response(status_code=204)(scope, receive, send)
            return
        for done in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{done}.complete"})

    async with guarded() as oauth, serve(elsewhere) as port:
        server = MCPServer(url=oauth.resource, auth=OAuth(show=browse))
        await server.open()
        oauth.moved_to = f"http://127.0.0.1:{port}/mcp"
        assert (await add_note(server)).startswith("Error: MCP server `notes`")
        oauth.moved_to = ""
        await server.aclose()
    assert got == []
