"""The admin API: what it does, and that no key, method or path gets more from it than it should."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from gateway_client import IDS, THREE_CALLS, Client, messages_of, run, serving
from typer.testing import CliRunner

from unbroken.errors import UserError
from unbroken_cli.commands import build
from unbroken_gateway.admin.api import BASE, OPERATIONS
from unbroken_gateway.app import Gateway
from unbroken_gateway.config import ServeOptions, read_config
from unbroken_gateway.config.added import FILE_ONLY
from unbroken_gateway.config.reading import TABLES
from unbroken_gateway.keys import GatewayKey, create_key, list_keys, revoke_key
from unbroken_gateway.reloading import ConfigSource
from unbroken_gateway.setting_types import ConnectOptions
from unbroken_gateway.stores import open_store
from unbroken_testing import ScriptedServer
from unbroken_wires.messages import User

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "get", "KEYS")
CONFIG = """[store]
url = "sqlite:store.db"
[keys]
required = true
file = "keys.json"
[admin]
shared = true
[[models]]
model = "demo"
"""
ADMIN = "root-key-of-the-environment-0123456789"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.data)

    @property
    def error(self) -> str:
        return self.body["error"]["message"]


async def call(
    gateway: Gateway,
    method: str,
    path: str,
    secret: str = "",
    body: object = None,
    *,
    kind: str = "application/json",
    query: str = "",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """As the server calls the application: `path` is decoded."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    sent = {"content-type": kind, "authorization": f"Bearer {secret}" if secret else "", **(headers or {})}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items() if value],
        "client": ("127.0.0.1", 5),
    }
    said = await messages_of(gateway, scope, data)
    names = {name.decode().lower(): value.decode() for name, value in said[0]["headers"]}
    return Answer(said[0]["status"], names, b"".join(part.get("body", b"") for part in said[1:]))


@asynccontextmanager
async def administered(folder: Path, text: str = CONFIG) -> AsyncGenerator[Gateway]:
    file = folder / "unbroken.toml"
    file.write_text(text)
    gateway = Gateway(read_config(file), source=ConfigSource(str(file), asdict(ServeOptions())))
    try:
        yield gateway
    finally:
        await gateway.aclose()


def make(folder: Path, name: str, **more: Any) -> str:
    return create_key(folder / "keys.json", GatewayKey(name, **more))


def make_admin(folder: Path, name: str = "ann") -> str:
    return make(folder, name, admin=True, operator=True)


TRICKS = (
    f"{BASE}",
    f"{BASE}/",
    f"{BASE}/keys/",
    f"{BASE}//keys",
    f"{BASE}/Keys",
    f"{BASE}/keys/../config/",
    f"{BASE}/./keys",
    f"{BASE}/keys\x00",
    f"{BASE}/keys\n",
    f"{BASE}/keys;x=1",
    f"{BASE}/keys/bob/rotate/",
    f"{BASE}/keys//rotate",
    f"{BASE}/reload/now",
    f"{BASE}/turns//",
    "/admin/",
    "/admin/v2/keys",
    "/admin/openapi.json/",
    "/admin/v1keys",
)
OUTSIDE = ("//admin/v1/keys", "/Admin/v1/keys", "/ADMIN/V1/KEYS", "/admin", "/./admin/v1/keys", "/x/../admin/v1/keys")
PATHS = (*(BASE + each.path.replace("{name}", "bob") for each in OPERATIONS), "/admin/openapi.json")


def expected(caller: str, method: str, path: str) -> set[int]:
    if path in OUTSIDE:
        return {404}
    if caller in ("nobody", "guess", "expired", "revoked"):
        return {401}
    if caller in ("plain", "limited"):
        return {403}
    asked = "GET" if method == "HEAD" else method
    here = [each for each in OPERATIONS if BASE + each.path.replace("{name}", "bob") == path]
    if path == "/admin/openapi.json":
        return {200} if asked == "GET" else {405}
    if path in TRICKS:
        return {404}
    if asked not in [each.method for each in here]:
        return {405}
    if asked != "GET" and caller == "operator":
        return {403}
    return {200} if asked == "GET" else {200, 201, 404, 409, 422}


def test_every_key_with_every_method_and_path_gets_what_it_may_and_no_more(tmp_path: Path) -> None:
    secrets = {
        "nobody": "",
        "guess": "ub-" + "x" * 43,
        "plain": make(tmp_path, "plain"),
        "limited": make(tmp_path, "limited", aliases=("demo",), requests_per_minute=1),
        "operator": make(tmp_path, "operator", operator=True),
        "expired": create_key(tmp_path / "keys.json", GatewayKey("old", admin=True, expires=2.0), now=lambda: 1.0),
        "revoked": make(tmp_path, "gone", admin=True, operator=True),
        "admin": make_admin(tmp_path),
    }
    revoke_key(tmp_path / "keys.json", "gone")
    before = list_keys(tmp_path / "keys.json")

    async def work() -> int:
        tried = 0
        async with administered(tmp_path) as gateway:
            order = [*(name for name in secrets if name != "admin"), "admin"]  # it changes something
            for caller, method, path in product(order, METHODS, dict.fromkeys((*PATHS, *TRICKS, *OUTSIDE))):
                answer = await call(gateway, method, path, secrets[caller], {} if method != "GET" else None)
                case = (caller, method, path, answer.status, answer.data[:200])
                assert answer.status in expected(caller, method, path), case
                tried += 1
                if answer.status >= 400:
                    assert answer.error, case
                    assert not any(secret in answer.data.decode() for secret in secrets.values() if secret), case
                assert not {name for name in answer.headers if name.startswith("access-control")}, case
                if caller != "admin":
                    assert list_keys(tmp_path / "keys.json") == before, case
            return tried

    assert run(work) > 2500


ENCODED = (
    "/admin/v1/keys%2f",
    "/admin/v1/keys/%2e%2e/config%2f",
    "/admin/v1/keys/../keys",
    "/admin/v1%2fkeys",
    "/admin%2fv1%2fkeys",
    "/admin/v1/%2e/keys",
    "/admin/v1/keys%00",
    "/admin/v1/keys%0d%0aX:1",
    "/admin/v1/keys%5cbob",
    "/admin/v1/keys%252f",
    "/v1/../admin/v1/keys",
    "/v1/models/../../admin/v1/keys",
    "/healthz/../admin/v1/keys",
    "http://x/admin/v1/keys",
    "/%61dmin/v1/keys",
)


def test_over_real_http_no_trick_in_the_path_gets_past_the_key(tmp_path: Path) -> None:
    secrets = ["", make(tmp_path, "plain")]

    async def work() -> None:
        async with administered(tmp_path) as gateway, serving(gateway.settings, gateway=gateway) as url:
            host, port = url.removeprefix("http://").split(":")
            for secret, method, path in product(secrets, ("GET", "POST", "DELETE", "HEAD"), ENCODED):
                head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
                head += "X-Original-URL: /healthz\r\nX-HTTP-Method-Override: GET\r\n"
                head += "Content-Length: 0\r\nConnection: close\r\n\r\n"
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(head.encode())
                answer = await reader.read()
                writer.close()
                assert answer.split(b" ")[1][:1] == b"4", (secret, method, path, answer[:300])
                assert b'"keys"' not in answer

    run(work)


def test_web_pages_that_may_use_the_models_may_not_use_the_admin_api(tmp_path: Path) -> None:
    secret = make_admin(tmp_path)
    page = {"origin": "https://app.example.com", "access-control-request-method": "POST"}

    async def work() -> None:
        async with administered(tmp_path, '[server]\ncors_origins = ["*"]\n' + CONFIG) as gateway:
            models = await call(gateway, "GET", "/v1/models", secret, headers=page)
            assert "access-control-allow-origin" in models.headers
            for method, path in product(("OPTIONS", "GET", "POST"), PATHS):
                answer = await call(gateway, method, path, secret, {}, headers=page)
                assert not {name for name in answer.headers if name.startswith("access-control")}, (method, path)
                assert method != "OPTIONS" or answer.status == 405

    run(work)


def test_a_gateway_without_keys_has_no_admin_api_unless_a_variable_holds_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = '[store]\nurl = "memory:"\n[[models]]\nmodel = "demo"\n'

    async def work() -> None:
        async with administered(tmp_path, plain) as gateway:
            for path in PATHS:
                answer = await call(gateway, "GET", path, "anything")
                assert answer.status == 404
                assert "the admin API is off, because this gateway has no keys" in answer.error
        monkeypatch.setenv("ROOT_KEY", ADMIN)
        async with administered(tmp_path, '[admin]\nkey_env = "ROOT_KEY"\n' + plain) as gateway:
            assert (await call(gateway, "GET", f"{BASE}/version", ADMIN)).status == 200
            for wrong in ("", "x", ADMIN[:-1], ADMIN + "x", "ub-é"):
                assert (await call(gateway, "GET", f"{BASE}/version", wrong)).status == 401
            assert (await call(gateway, "GET", f"{BASE}/version", query=f"key={ADMIN}")).status == 401
        monkeypatch.setenv("ROOT_KEY", "short")
        with pytest.raises(Exception, match="has fewer than 24 characters"):
            ConfigSource(str(tmp_path / "unbroken.toml"), asdict(ServeOptions())).read({})

    run(work)


def test_bodies_are_bounded_and_have_to_be_json_objects_of_known_fields(tmp_path: Path) -> None:
    secret = make_admin(tmp_path)

    async def work() -> None:
        async with administered(tmp_path) as gateway:
            path = f"{BASE}/keys"
            wrong: list[tuple[object, int, str]] = [
                (b"x" * 70_000, 413, "65,536 bytes"),
                (b"{", 400, "not JSON"),
                (b"[]", 400, "not a JSON object"),
                (b'{"name": NaN}', 400, "not JSON"),
                (b"[" * 30_000, 400, "not JSON"),
                ({}, 422, "`name`: field required"),
                ({"name": "bob", "alias": ["demo"]}, 422, "`alias`: unknown field, did you mean `aliases`?"),
                (
                    {"name": "bob", "x": 1},
                    422,
                    "`x`: unknown field; there are: aliases, ",
                ),
                ({"name": "bob", "in_flight": "4"}, 422, "`in_flight`: input should be a valid integer"),
                ({"name": "bob", "in_flight": True}, 422, "`in_flight`"),
                ({"name": "bob", "requests_per_minute": 0}, 422, "greater than or equal to 1"),
                ({"name": "b b"}, 422, "a key's name has letters, digits"),
                ({"name": "bob", "aliases": ["gpt"]}, 422, "there is no model `gpt`; there are: demo"),
                ({"name": "bob", "budgets": ["much"]}, 422, "cannot be read"),
                ({"name": "bob", "pass": ["everything"]}, 422, ""),
                ({"name": "bob", "expires": "soon"}, 422, "give a time like 30m, 24h or 7d"),
                ({"name": "bob", "expires": 5}, 422, "would have expired already"),
                ({"name": "bob", "expires": 1e308}, 422, "would expire after the year 9999"),
            ]
            for body, status, words in wrong:
                answer = await call(gateway, "POST", path, secret, body)
                assert (answer.status, words in answer.error) == (status, True), (body, answer)
            answer = await call(gateway, "POST", path, secret, {"name": "bob"}, kind="text/plain")
            assert answer.status == 415
            answer = await call(gateway, "POST", path, secret, b"", headers={"content-length": "9999999"})
            assert answer.status == 413
            assert [key.name for key in list_keys(tmp_path / "keys.json")] == ["ann"]

    run(work)


def test_no_key_gets_the_name_under_which_the_log_shows_the_admin_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOT_KEY", ADMIN)
    monkeypatch.chdir(tmp_path)
    words = "is the name of the admin key of this gateway: choose another name"

    async def work() -> None:
        async with administered(tmp_path, CONFIG.replace("[admin]", '[admin]\nkey_env = "ROOT_KEY"')) as gateway:
            for name in ("ROOT_KEY", "root_key"):
                refused = await call(gateway, "POST", f"{BASE}/keys", ADMIN, {"name": name})
                assert (refused.status, words in refused.error) == (422, True)
            assert (await call(gateway, "GET", f"{BASE}/keys", ADMIN)).body["keys"] == []

    run(work)
    with pytest.raises(UserError, match=words):
        CliRunner().invoke(build("keys"), ["keys", "create", "ROOT_KEY"], catch_exceptions=False)


@pytest.mark.parametrize("in_store", [False, True], ids=["file", "store"])
def test_a_key_is_created_changed_rotated_and_revoked(
    tmp_path: Path, in_store: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ROOT_KEY", ADMIN)
    config = CONFIG.replace("[admin]", 'in_store = true\n[admin]\nkey_env = "ROOT_KEY"')
    config = config if in_store else config.replace("in_store = true\n", "")

    async def work() -> list[str]:
        async with administered(tmp_path, config) as gateway:
            bob = {"name": "bob", "aliases": ["demo"], "in_flight": 4, "pass": [], "budgets": ["20usd/day"]}
            made = await call(gateway, "POST", f"{BASE}/keys", ADMIN, bob)
            assert made.status == 201
            assert made.headers["cache-control"] == "no-store"
            secret = made.body["secret"]
            assert made.body["key"].items() >= {**bob, "operator": False, "admin": False}.items()
            assert (await call(gateway, "GET", "/v1/models", secret)).status == 200
            assert "this key is for the admin API alone" in (await call(gateway, "GET", "/v1/models", ADMIN)).error
            again = await call(gateway, "POST", f"{BASE}/keys", ADMIN, bob)
            assert (again.status, "there is a key `bob`" in again.error) == (409, True)
            changed = await call(gateway, "PATCH", f"{BASE}/keys/bob", ADMIN, {"in_flight": None, "admin": True})
            assert changed.body["key"].items() >= {"in_flight": None, "operator": True, "aliases": ["demo"]}.items()
            assert (await call(gateway, "GET", f"{BASE}/keys", secret)).status == 200
            new = await call(gateway, "POST", f"{BASE}/keys/bob/rotate", secret, {"keep": "0"})
            assert new.status == 200
            assert (await call(gateway, "GET", "/v1/models", secret)).status == 401
            assert (await call(gateway, "GET", "/v1/models", new.body["secret"])).status == 200
            listed = await call(gateway, "GET", f"{BASE}/keys", ADMIN)
            assert [key["name"] for key in listed.body["keys"]] == ["bob"]
            assert (await call(gateway, "DELETE", f"{BASE}/keys/bob", ADMIN)).body == {"revoked": "bob"}
            assert (await call(gateway, "GET", "/v1/models", new.body["secret"])).status == 401
            assert (await call(gateway, "DELETE", f"{BASE}/keys/bob", ADMIN)).status == 404
            shown = [listed.data, changed.data, (await call(gateway, "GET", f"{BASE}/config", ADMIN)).data]
            assert not [
                data for data in shown if secret.encode() in data or b"sha256" in data or ADMIN.encode() in data
            ]
            return [secret, new.body["secret"], ADMIN]

    with caplog.at_level(logging.DEBUG):
        secrets = run(work)
    assert "admin_change key=ROOT_KEY POST /admin/v1/keys" in caplog.text
    assert not [secret for secret in secrets if secret in caplog.text]


def test_a_model_is_added_for_all_gateways_changed_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    secret = make_admin(tmp_path)

    async def work() -> None:
        async with administered(tmp_path, "[server]\nlook_every = 0.02\n" + CONFIG) as gateway:
            second = Gateway(
                gateway.settings, source=ConfigSource(str(tmp_path / "unbroken.toml"), asdict(ServeOptions()))
            )
            async with serving(gateway.settings, gateway=second):
                path = f"{BASE}/aliases"
                body = {"alias": "acme/fast", "model": "openai:gpt-5-mini", "fallback": ["demo"]}
                made = await call(gateway, "POST", path, secret, body)
                assert made.status == 201, made
                assert made.body["changes"] == ["model `acme/fast` (openai:gpt-5-mini): added"]
                assert (await call(gateway, "POST", path, secret, body)).status == 409
                await has(second, ["demo", "acme/fast"])
                put = await call(gateway, "PUT", f"{path}/acme/fast", secret, {"model": "openai:gpt-5", "serial": True})
                assert put.body["changes"] == [
                    "model `acme/fast`: model: openai:gpt-5-mini -> openai:gpt-5; fallback: demo -> none; "
                    "serial: false -> true"
                ]
                listed = (await call(gateway, "GET", path, secret)).body["models"]
                assert [(each["alias"], each["from"]) for each in listed] == [
                    ("demo", "the file"),
                    ("acme/fast", "the admin API"),
                ]
                assert (await call(gateway, "PUT", f"{path}/demo", secret, {"model": "demo"})).status == 409
                assert (await call(gateway, "DELETE", f"{path}/nothing", secret)).status == 404
                removed = await call(gateway, "DELETE", f"{path}/acme/fast", secret)
                assert removed.body["changes"] == ["model `acme/fast`: removed"]
                await has(second, ["demo"])

    async def has(gateway: Gateway, aliases: list[str]) -> None:
        async with asyncio.timeout(10):
            while [*gateway.upstreams] != aliases:
                await asyncio.sleep(0.01)

    run(work)


def test_what_is_added_is_checked_like_the_file_and_cannot_touch_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, evil = tmp_path / "ran", tmp_path / "evil_code.py"
    evil.write_text(f"import pathlib\npathlib.Path({str(ran)!r}).touch()\ndef on_request(request, info): pass\n")
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2-hunter2")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    secret = make_admin(tmp_path)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"model": "openai:gpt-5"}, "`alias` is missing"),
        ({"alias": "x", "model": "gpt-5"}, "alias `x` of the admin API: `model` has to be PROVIDER:MODEL"),
        ({"alias": "x", "model": "openai:gpt-5", "serail": True}, "unknown key `serail`, did you mean `serial`?"),
        ({"alias": "x", "model": "openai:gpt-5", "fallback": ["nothing"]}, "names `nothing`, which is neither"),
        ({"alias": "x y", "model": "openai:gpt-5"}, "has to be a name without spaces"),
        ({"alias": "x", "model": "python:os:getcwd"}, "`model` names Python code"),
        ({"alias": "x", "model": " python:os:getcwd"}, "`model` names Python code"),
        ({"alias": "x", "model": "python:evil_code:on_request"}, "`model` names Python code"),
        ({"alias": "x", "model": "openai:gpt-5", "hooks": str(evil)}, "`hooks` names a file or code"),
        ({"alias": "x", "model": "openai:gpt-5", "fallback": "python:os:getcwd"}, "`fallback` names Python code"),
        ({"alias": "x", "model": "openai:gpt-5", "guardrails": [{"use": " python:os:x"}]}, "`use` names Python code"),
        ({"alias": "x", "model": "openai:gpt-5", "api_key_file": "/etc/passwd"}, "`api_key_file` names a file"),
        ({"alias": "x", "model": "openai:gpt-5", "raw_log": "/tmp/x"}, "`raw_log` names a file"),
        ({"alias": "x", "model": "openai:gpt-5", "hooks": "/tmp/x.py"}, "`hooks` names a file or code"),
        ({"alias": "x", "model": "openai:gpt-5", "fallback": ["python:os:getcwd"]}, "`fallback` names Python code"),
        ({"alias": "x", "model": "openai:gpt-5", "guardrails": [{"use": "python:os:x"}]}, "`use` names Python code"),
        (
            {"alias": "x", "model": "openai:gpt-5", "guardrails": [{"use": "check_input", "check": "os:system"}]},
            "`check` names a file or code",
        ),
        (
            {"alias": "x", "model": "openai:gpt-5", "api_key_env": "DATABASE_PASSWORD"},
            "only be a variable of a provider",
        ),
        (
            {
                "alias": "x",
                "model": "openai:gpt-5",
                "deployments": [{"name": "a", "api_key_env": "DATABASE_PASSWORD"}, {"name": "b", "raw_log": "/tmp/x"}],
            },
            "only be a variable of a provider",
        ),
    ]

    async def work() -> None:
        async with administered(tmp_path) as gateway:
            for body, words in wrong:
                answer = await call(gateway, "POST", f"{BASE}/aliases", secret, body)
                assert (answer.status, words in answer.error) == (422, True), (body, answer)
                assert "hunter2" not in answer.error
                assert not ran.exists(), body
            assert [*gateway.upstreams] == ["demo"]
            assert await gateway.store.record("config") is None
        async with administered(tmp_path, CONFIG.replace("shared = true", "")) as gateway:
            body = {"alias": "x", "model": "openai:gpt-5"}
            answer = await call(gateway, "POST", f"{BASE}/aliases", secret, body)
            assert (answer.status, "write `shared = true` below [admin]" in answer.error) == (409, True)
        # Somebody who can write to the store gets no further.
        store = open_store(f"sqlite:{tmp_path}/store.db")
        await store.replace_record("config", b'{"models": {"evil": {"model": "python:os:getcwd"}}}', 0)
        await store.aclose()
        async with administered(tmp_path) as gateway, serving(gateway.settings, gateway=gateway):
            assert [*gateway.upstreams] == ["demo"]
            version = (await call(gateway, "GET", f"{BASE}/version", secret)).body
            assert "`model` names Python code" in version["last_reload"]["problem"]

    run(work)


def test_every_setting_of_a_model_was_judged_for_the_admin_api() -> None:
    """A new setting that names a file or code belongs into `FILE_ONLY`; the others are listed here."""
    harmless = {
        "alias",
        "model",
        "base_url",
        "api_key_env",
        "wire",
        "fallback",
        "serial",
        "all_calls",
        "recover",
        "deployments",
        "choose",
        "sticky",
        "cooldown",
        "probe",
        "name",
        "weight",
        "priority",
        "guardrails",
        "price",
        "hook_timeout",
        "use",
        "pattern",
        "by",
        "arguments",
        "veto",
        "message",
        "tools",
        "retries",
        *(set(ConnectOptions.__annotations__) - {"raw_log"}),
    }
    keys = {key for table in ("models", "models.deployments", "models.guardrails") for key in TABLES[table]}
    assert keys - harmless == set(FILE_ONLY)


def test_teams_and_budgets_are_added_changed_and_removed(tmp_path: Path) -> None:
    secret = make_admin(tmp_path)

    async def work() -> None:
        async with administered(tmp_path) as gateway:
            team = await call(gateway, "POST", f"{BASE}/teams", secret, {"name": "red", "requests_per_minute": 9})
            assert (team.status, team.body["changes"]) == (201, ["team `red`: added"])
            body = {"name": "red a day", "team": "red", "amount": "20usd/day"}
            assert (await call(gateway, "POST", f"{BASE}/budgets", secret, body)).status == 201
            assert [each.name for each in gateway.settings.budgets] == ["red a day"]
            body = {"team": "red", "amount": "30usd/day"}
            put = await call(gateway, "PUT", f"{BASE}/budgets/red a day", secret, body)
            assert put.body["changes"] == ["budget `red a day`: amount: 20usd/day -> 30usd/day"]
            wrong = await call(gateway, "PUT", f"{BASE}/budgets/red a day", secret, {"amount": "much"})
            assert (wrong.status, "budget `red a day` of the admin API" in wrong.error) == (422, True)
            listed = await call(gateway, "GET", f"{BASE}/budgets", secret)
            assert [(each["name"], each["from"]) for each in listed.body["budgets"]] == [("red a day", "the admin API")]
            assert (await call(gateway, "DELETE", f"{BASE}/budgets/red a day", secret)).status == 200
            assert (await call(gateway, "DELETE", f"{BASE}/teams/red", secret)).status == 200
            assert (gateway.settings.budgets, gateway.settings.teams) == ((), ())

    run(work)


def test_the_configuration_is_reloaded_and_a_mistake_is_explained(tmp_path: Path) -> None:
    secret = make_admin(tmp_path)

    async def work() -> None:
        async with administered(tmp_path) as gateway:
            file = tmp_path / "unbroken.toml"
            file.write_text(CONFIG + 'alias = "other"\n')
            done = await call(gateway, "POST", f"{BASE}/reload", secret)
            assert done.body == {
                "changes": ["model `demo`: removed", "model `other` (demo): added"],
                "needs_restart": [],
            }
            file.write_text(CONFIG + "serail = true\n")
            refused = await call(gateway, "POST", f"{BASE}/reload", secret)
            assert refused.status == 422
            assert "the old configuration stays in force" in refused.error
            assert "unknown key `serail`, did you mean `serial`?" in refused.error
            assert [*gateway.upstreams] == ["other"]

    run(work)


def test_a_held_turn_is_listed_and_dropped_and_requests_are_listed(tmp_path: Path) -> None:
    secret = make_admin(tmp_path)

    async def work() -> None:
        async with ScriptedServer(THREE_CALLS, "I could not look at the others.") as upstream:
            model = (
                '\n[[models]]\nmodel = "openai-chat:big"\nalias = "m"\nserial = true\nwire = "openai-chat"\n'
                f'base_url = "{upstream.base_url("openai-chat")}"\n'
            )
            async with (
                administered(tmp_path, CONFIG + model) as gateway,
                serving(gateway.settings, gateway=gateway) as url,
            ):
                client = Client(url, "openai-chat", parallel=None, headers={"authorization": f"Bearer {secret}"})
                first = await client.ask(User.of("The weather in three cities?"))
                assert first.ids == [IDS[0]]
                (turn,) = (await call(gateway, "GET", f"{BASE}/turns", secret)).body["turns"]
                assert turn.items() >= {"alias": "m", "waiting": 2, "key": "ann"}.items()
                dropped = await call(gateway, "DELETE", f"{BASE}/turns/{turn['session']}", secret)
                assert dropped.body == {"dropped": turn["session"]}
                assert (await call(gateway, "GET", f"{BASE}/turns", secret)).body == {"turns": []}
                assert (await call(gateway, "DELETE", f"{BASE}/turns/{turn['session']}", secret)).status == 404
                second = await client.answer_calls()
                assert second.ids == []  # the model was asked instead of releasing the next call
                assert len(upstream.requests) == 2
                requests = (await call(gateway, "GET", f"{BASE}/requests", secret)).body["requests"]
                assert [each["alias"] for each in requests] == ["m", "m"]

    run(work)


def test_the_description_lists_every_operation(tmp_path: Path) -> None:
    secret = make_admin(tmp_path)

    async def work() -> Any:
        async with administered(tmp_path) as gateway:
            return (await call(gateway, "GET", "/admin/openapi.json", secret)).body

    described = run(work)
    listed = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert listed == {(each.method, BASE + each.path) for each in OPERATIONS}
    body = described["paths"]["/admin/v1/keys"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"name", "pass", "budgets", "admin"} <= body["properties"].keys()
