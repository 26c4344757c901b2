"""`unbroken admin` and `unbroken serve --check --against`, against a gateway that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from terminals import Terminal
from typer.testing import CliRunner, Result

from unbroken import UserError
from unbroken_cli.commands import build
from unbroken_gateway.app import Gateway
from unbroken_gateway.commands.admin_client import find_gateway
from unbroken_gateway.config import ServeOptions, read_config
from unbroken_gateway.http.uvicorn_server import running
from unbroken_gateway.keys import GatewayKey, create_key
from unbroken_gateway.reloading import ConfigSource

CONFIG = """[server]
port = 0
[store]
url = "store.db"
[keys]
required = true
file = "keys.json"
[admin]
shared = true
[[models]]
model = "demo"
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "unbroken.toml").write_text(CONFIG)
    (folder / "admin").write_text(create_key(folder / "keys.json", GatewayKey("ann", admin=True, operator=True)))
    (folder / "operator").write_text(create_key(folder / "keys.json", GatewayKey("ops", operator=True)))
    source = ConfigSource(str(folder / "unbroken.toml"), asdict(ServeOptions()))
    with running(read_config(folder / "unbroken.toml"), app=partial(Gateway, source=source)) as url:
        yield url, folder


@pytest.fixture
def admin(gateway: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> Any:
    url, folder = gateway
    monkeypatch.setenv("UNBROKEN_ADMIN_KEY", (folder / "admin").read_text())
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(build("admin"), ["admin", *arguments, "--url", url])

    return invoke


def test_keys_are_created_listed_changed_rotated_and_revoked(admin: Any) -> None:
    made = admin("keys", "create", "bob", "--alias", "demo", "--in-flight", "4", "--pass", "none")
    assert (made.exit_code, made.stdout.startswith("ub-")) == (0, True)
    assert "this is the key of `bob`; it cannot be shown again" in made.stderr
    again = admin("keys", "create", "bob")
    assert (again.exit_code, "refused: there is a key `bob`" in again.stderr) == (2, True)
    assert admin("keys", "change", "bob", "--set", "in_flight=none", "--set", "team=red").exit_code == 0
    row = next(line for line in admin("keys", "list").stdout.splitlines() if line.startswith("bob")).split("\t")
    assert [row[1], row[3], row[5], row[8]] == ["demo", "no limit", "nothing", "red"]
    new = admin("keys", "rotate", "bob", "--keep", "0", "--json")
    assert json.loads(new.stdout)["secret"] != made.stdout.strip()
    assert admin("keys", "revoke", "bob").stdout == "the key of `bob` was revoked\n"
    assert admin("keys", "revoke", "bob").exit_code == 2
    assert admin("keys", "change", "bob").exit_code == 2
    assert "write it as KEY=VALUE" in admin("keys", "change", "ann", "--set", "x").stderr


def test_models_are_added_and_removed_and_mistakes_are_those_of_the_file(admin: Any) -> None:
    added = admin(
        "aliases", "add", "acme/fast", "openai:gpt-5-mini", "--set", "serial=true", "--set", 'fallback=["demo"]'
    )
    assert added.stdout.splitlines() == [
        "alias `acme/fast` was added",
        "model `acme/fast` (openai:gpt-5-mini): added",
    ]
    listed = admin("aliases", "list").stdout.splitlines()
    assert listed[1].split("\t") == ["acme/fast", "openai:gpt-5-mini", "the admin API", "fallback=demo serial=true"]
    wrong = admin("aliases", "change", "acme/fast", "openai:gpt-5", "--set", "serail=true")
    assert (wrong.exit_code, "unknown key `serail`, did you mean `serial`?" in wrong.stderr) == (2, True)
    assert admin("aliases", "remove", "demo").exit_code == 2
    assert admin("aliases", "remove", "acme/fast").exit_code == 0


def test_the_rest_is_shown_and_the_configuration_reloaded(admin: Any, gateway: tuple[str, Path]) -> None:
    assert admin("version").stdout.startswith("unbroken 0.")
    assert admin("turns", "list").stderr == "unbroken: no turn is held\n"
    assert json.loads(admin("requests", "--json").stdout)["requests"] == []
    assert admin("turns", "drop", "abcdefgh").exit_code == 2
    file = gateway[1] / "unbroken.toml"
    file.write_text(CONFIG + "serial = true\n")
    assert admin("reload").stdout.splitlines() == ["reloaded", "model `demo`: serial: false -> true"]
    file.write_text(CONFIG)
    assert admin("reload").exit_code == 0


def test_a_check_shows_what_would_change_for_the_gateway_or_compared_with_a_file(
    admin: Any, gateway: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = gateway
    new = folder / "new.toml"
    new.write_text(CONFIG.replace("port = 0", "port = 8401") + '[[models]]\nmodel = "demo"\nalias = "more"\n')
    admin("aliases", "add", "kept", "openai:gpt-5")  # the file does not have it, and does not remove it

    def check(*arguments: str) -> Result:
        return CliRunner().invoke(build("serve"), ["serve", "--config", str(new), "--check", *arguments])

    changes = ["server.port: 0 -> 8401 (needs a restart)", "model `more` (demo): added"]
    for against in (url, str(folder / "unbroken.toml")):
        done = check("--against", against)
        assert done.exit_code == 0
        assert [line[19:] for line in done.stdout.splitlines() if line.startswith("would change")] == changes
        assert "a reload leaves what needs a restart as it is" in done.stderr
    assert "nothing compared with" in check("--against", str(new)).stdout
    assert admin("aliases", "remove", "kept").exit_code == 0
    without = CliRunner().invoke(build("serve"), ["serve", "--config", str(new), "--against", url])
    assert (without.exit_code, "--against goes with --check" in without.stderr) == (2, True)


def test_errors_have_exit_codes_and_never_show_the_key(admin: Any, gateway: tuple[str, Path], monkeypatch: Any) -> None:
    def away(*arguments: str) -> Result:
        return CliRunner().invoke(build("admin"), ["admin", *arguments])

    gone = away("reload", "--url", "http://127.0.0.1:1")
    assert (gone.exit_code, "does not answer" in gone.stderr) == (3, True)
    assert away("reload", "--url", "nonsense").exit_code == 2
    monkeypatch.setenv("UNBROKEN_ADMIN_KEY", (gateway[1] / "operator").read_text())
    refused = admin("reload")
    assert (refused.exit_code, "needs an admin key" in refused.stderr) == (2, True)
    assert admin("keys", "list").exit_code == 0
    monkeypatch.setenv("UNBROKEN_ADMIN_KEY", "ub-wrong-secret")
    wrong = admin("version")
    assert (wrong.exit_code, "ub-wrong-secret" in wrong.output) == (2, False)
    monkeypatch.delenv("UNBROKEN_ADMIN_KEY")
    assert "the key is missing" in admin("version").stderr


def test_a_request_is_found_by_the_id_of_its_response(admin: Any, gateway: tuple[str, Path]) -> None:
    url, folder = gateway
    ids: list[str] = []
    for model in ("demo", "none"):
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hi"}]}).encode()
        headers = {"Authorization": f"Bearer {(folder / 'admin').read_text()}"}
        try:
            with urlopen(Request(f"{url}/v1/chat/completions", body, headers)) as answer:
                ids.append(answer.headers["x-unbroken-request-id"])
        except HTTPError as error:
            with error:
                ids.append(error.headers["x-unbroken-request-id"])
    listed = [line.split("\t") for line in admin("requests").stdout.splitlines()]
    assert [row[1] for row in listed[:2]] == ids[::-1]
    one = admin("requests", ids[1]).stdout.splitlines()
    assert "status         404" in one
    assert f"id             {ids[1]}" in one
    assert json.loads(admin("requests", ids[0], "--json").stdout)["alias"] == "demo"
    missing = admin("requests", "0123456789abcdef")
    assert (missing.exit_code, "has the id `0123456789abcdef`" in missing.stderr) == (2, True)
    with Terminal("admin", "requests", "--url", url, columns=80) as terminal:
        assert terminal.end() == 0
    shown = terminal.plain.splitlines()
    assert shown[0].split()[:3] == ["when", "id", "key"]
    assert any(line.startswith(f"  {ids[1]}: there is no model 'none' here") for line in shown)
    assert all(len(line) <= 80 for line in shown)


def test_the_address_and_the_key_come_from_the_configuration(
    gateway: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = gateway
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNBROKEN_ADMIN_KEY", raising=False)
    monkeypatch.setenv("OUR_ADMIN", (folder / "admin").read_text())
    described = f'[server]\nhost = "0.0.0.0"\nport = {url.rpartition(":")[2]}\n[admin]\nkey_env = "OUR_ADMIN"\n'

    def version(*arguments: str) -> Result:
        return CliRunner().invoke(build("admin"), ["admin", "version", *arguments])

    Path("other.toml").write_text(described)
    assert version("--config", "other.toml").stdout.startswith("unbroken 0.")
    Path("unbroken.toml").write_text(described + "[[models]]\nmodle = 1\n")  # a mistake that does not matter here
    assert version().stdout.startswith("unbroken 0.")
    elsewhere = version("--url", url)  # the key of the file is not sent to an address that the file does not have
    assert (elsewhere.exit_code, "into the variable UNBROKEN_ADMIN_KEY (" in elsewhere.stderr) == (2, True)
    monkeypatch.delenv("OUR_ADMIN")
    assert "UNBROKEN_ADMIN_KEY or OUR_ADMIN" in version().stderr
    for text, words in (("[server", "is not TOML"), ("[server]\nport = 0", "does not say where the gateway listens")):
        Path("unbroken.toml").write_text(text)
        wrong = version()
        assert (wrong.exit_code, words in wrong.stderr) == (2, True)
    assert "cannot be read" in version("--config", "none.toml").stderr


def test_a_configuration_that_was_only_found_has_no_key_sent_to_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have come with a folder from somebody else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNBROKEN_ADMIN_KEY", "ub-secret")
    (tmp_path / "unbroken.toml").write_text('[server]\nhost = "gateway.invalid"\n')
    with pytest.raises(
        UserError, match=r"gateway\.invalid, which may be another machine: give --config unbroken\.toml"
    ):
        find_gateway("")
    assert find_gateway("", "unbroken.toml").url == "http://gateway.invalid:8400"
