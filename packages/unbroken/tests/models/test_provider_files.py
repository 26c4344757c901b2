"""The user's provider profiles: read from TOML, checked with one-line errors, preferred to the built-in ones, and
written so that they can be read again."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path

import pytest
from terminals import invoke

from unbroken.errors import UnknownProvider, UserError
from unbroken.models.connect import connect
from unbroken.models.provider_files import FIELDS, KEY_HEADER_NAMES, QUIRKS, ProfileTable, read_profiles, write_profile
from unbroken.models.providers import Provider, find_provider
from unbroken.models.quirks import Quirks
from unbroken_wires.messages import OneTool, Request, ToolSpec, User
from unbroken_wires.wires.json_access import IdRule

TOOLS = (ToolSpec("search", "finds"),)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "providers.toml"
    monkeypatch.setenv("UNBROKEN_PROVIDERS", str(path))
    return path


def refused(path: Path, text: str) -> str:
    path.write_text(text, "utf-8")
    with pytest.raises(UserError) as caught:
        find_provider("openai")
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


def test_a_user_profile_works_like_a_built_in_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(
        """
        [providers.mine]
        base_url = "http://127.0.0.1:9000/v1"
        keys = ["MY_KEY"]

        [providers.mine.quirks]
        stream_with_tools = false
        choices = ["auto", "required"]
        rename = { max_tokens = "max_completion_tokens" }
        """
    )
    monkeypatch.setenv("MY_KEY", "sk-of-mine")
    model = connect("mine:qwen3:4b", max_tokens=5).model
    assert (model.name, model.wire) == ("mine:qwen3:4b", "openai-chat")
    assert str(model.endpoint.stream_url) == "http://127.0.0.1:9000/v1/chat/completions"
    assert model.endpoint.key_variable == "MY_KEY"
    request = Request((User.of("Hi"),), tools=TOOLS, choice=OneTool("search"))
    body = json.loads(model.write(request)[1])
    assert "stream" not in body
    assert (body["tool_choice"], body["max_completion_tokens"]) == ("required", 5)


def test_a_profile_starts_from_the_one_that_like_names(file: Path) -> None:
    file.write_text(
        '[providers.near]\nlike = "qwen"\nbase_url = "https://models.example/v1"\n'
        '[providers.nearer]\nlike = "near"\n[providers.nearer.quirks]\nstrict = false\n'
    )
    near, nearer = find_provider("near"), find_provider("nearer")
    assert near.quirks == find_provider("qwen").quirks
    assert (near.title, near.aliases, near.base_url_variables) == ("near", (), ())
    assert nearer.base_url == "https://models.example/v1"
    assert nearer.quirks.asks_for_several
    assert not nearer.quirks.strict
    assert find_provider("dashscope").name == "qwen"


def test_a_profile_with_a_known_name_changes_that_provider_and_its_aliases(file: Path) -> None:
    file.write_text("[providers.moonshot.quirks]\nstream_with_tools = false\n")
    profile = find_provider("kimi")
    assert profile.base_url == "https://api.moonshot.ai/v1"
    assert not profile.quirks.stream_with_tools
    assert profile.quirks.choices == {"auto", "none"}


def test_a_profile_like_openai_with_a_base_url_uses_the_wire_that_connect_would_use(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://elsewhere.example/v1")
    file.write_text(
        '[providers.a]\nlike = "openai"\nbase_url = "http://127.0.0.1:1/v1"\n'
        '[providers.b]\nlike = "deepseek"\nwire = "anthropic-messages"\nneeds_key = false\n'
    )
    assert str(connect("a:m").model.endpoint.stream_url) == "http://127.0.0.1:1/v1/chat/completions"
    assert str(connect("b:m").model.endpoint.stream_url) == "https://api.deepseek.com/anthropic/v1/messages"


def test_the_file_is_read_again_only_when_it_changed(file: Path) -> None:
    file.write_text('[providers.mine]\nbase_url = "http://127.0.0.1:1"\n')
    first = find_provider("mine")
    assert find_provider("mine") is first
    file.write_text('[providers.mine]\nbase_url = "http://127.0.0.1:22"\n')
    assert find_provider("mine").base_url == "http://127.0.0.1:22"
    file.write_text("")
    with pytest.raises(UnknownProvider):
        find_provider("mine")


def test_the_file_in_the_users_configuration_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNBROKEN_PROVIDERS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(UnknownProvider):
        find_provider("mine")
    (tmp_path / "unbroken").mkdir()
    (tmp_path / "unbroken" / "providers.toml").write_text("[providers.mine]\n")
    assert find_provider("mine").wire == "openai-chat"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config").symlink_to(tmp_path)
    assert find_provider("mine").name == "mine"
    monkeypatch.setenv("UNBROKEN_PROVIDERS", "")
    with pytest.raises(UnknownProvider):
        find_provider("mine")


def test_a_file_that_the_variable_names_must_exist(file: Path) -> None:
    with pytest.raises(UserError, match="there is no such file; correct UNBROKEN_PROVIDERS, or unset it"):
        find_provider("openai")


def test_user_profiles_are_among_the_suggestions(file: Path) -> None:
    file.write_text("[providers.my-server]\n")
    with pytest.raises(UnknownProvider, match=r"did you mean `my-server`\? There are: my-server, openai, "):
        find_provider("my-servr")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[providers.x", " is not TOML: "),
        ("[provider.x]", ": [provider] is not a table of this file; write provider profiles as [providers.NAME]"),
        ("providers = 3", ": `providers` has to be a table"),
        ("[providers]\nx = 3", ": [providers.x] has to be a table"),
        ('[providers."a b"]', ": [providers.a b] has a name that does not work in NAME:MODEL"),
        (
            "[providers.x]\nbaseurl = 3",
            ": [providers.x] has no key `baseurl`: did you mean `base_url`? There are: like, ",
        ),
        ("[providers.x]\nstrict = true", ": [providers.x] has no key `strict`: it belongs in [providers.x.quirks]"),
        ("[providers.x]\nbase_url = 3", ": [providers.x]: `base_url` has to be a string without line breaks"),
        ('[providers.x]\nbase_url = "ftp://a"', ": [providers.x]: `base_url` has to be a web address"),
        ('[providers.x]\nwire = "openai"', "`wire` has to be a wire: did you mean `openai-chat`? There are: "),
        ('[providers.x]\nkeys = "A"', '`keys` has to be a list of variables, like ["…"]'),
        ('[providers.x]\nlike = "opnai"', "`like` names no provider profile before it: did you mean `openai`?"),
        ('[providers.x]\nelsewhere = "nobody"', "`elsewhere` names no provider profile"),
        ("[providers.x]\nport = true", "`port` has to be a whole number from 1 to 65535"),
        (
            '[providers.x]\npath = "/{engine}"',
            "`path` has to be a path in which only {model} and {method} are filled in",
        ),
        ('[providers.x]\nkey_header = "Bearer"', "`key_header` has to be a way to send a key: did you mean `bearer`?"),
        ("[providers.x]\nquirks = 1", ": [providers.x.quirks] has to be a table"),
        (
            "[providers.x.quirks]\nstream_with_tool = false",
            "no key `stream_with_tool`: did you mean `stream_with_tools`?",
        ),
        ("[providers.x.quirks]\nstrict = 0", ": [providers.x.quirks]: `strict` has to be true or false"),
        ('[providers.x.quirks]\nchoices = ["any"]', "`choices` has to be a list of choices: there are: auto, none, "),
        ("[providers.x.quirks]\nadd = { day = 2026-01-01 }", "`add` has a value that JSON does not have, like a date"),
        ("[providers.x.quirks]\nreasoning = { much = {} }", "`reasoning` has to be a table of efforts: "),
        ("[providers.x.quirks]\ncall_ids = { shortest = 3 }", "`call_ids` needs `longest`, which is not below"),
        ('[providers.x.quirks]\ncall_ids = { longest = 3, allowed = "[" }', "is not a regular expression"),
    ],
)
def test_a_mistake_in_the_file_is_reported_in_one_line(file: Path, text: str, message: str) -> None:
    assert message in refused(file, text)


@pytest.mark.parametrize("command", [["run", "Hi."], ["probe"]])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('base_ulr = "x"', "did you mean `base_url`? There are: like, "),
        ("base_url = 3", "`base_url` has to be a string"),
    ],
)
def test_the_command_line_names_the_keys_of_the_file_unchanged(
    file: Path, line: str, message: str, command: list[str]
) -> None:
    file.write_text(f"[providers.mine]\n{line}\n")
    provider = ["--provider", "mine", "--model", "m"] if command == ["probe"] else ["--model", "mine:m"]
    done = invoke(*command, *provider)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "--base-url" not in done.stderr


def test_a_missing_address_is_still_requested_by_its_option(file: Path) -> None:
    file.write_text("[providers.mine]\n")
    assert "give --base-url" in invoke("run", "Hi.", "--model", "mine:m").stderr


@pytest.mark.parametrize("line", ['api_key = "sk-secret-1"', 'keys = ["sk-secret-1"]', 'base_url = "sk-secret-1 x"'])
def test_a_key_in_the_file_is_in_no_error(file: Path, line: str) -> None:
    message = refused(file, f"[providers.x]\n{line}\n")
    assert "sk-secret" not in message


def test_bytes_that_are_not_text_are_reported(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        find_provider("openai")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_reported(file: Path) -> None:
    file.write_text("")
    file.chmod(0)
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        find_provider("openai")


def test_a_folder_instead_of_the_file_is_reported(file: Path) -> None:
    file.mkdir()
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        find_provider("openai")


def test_every_field_of_a_profile_can_be_set_in_the_file() -> None:
    assert set(FIELDS) == {field.name for field in fields(Provider)} - {"name", "quirks"}
    assert set(QUIRKS) == {field.name for field in fields(Quirks)}
    assert KEY_HEADER_NAMES == ("bearer", "x-api-key", "x-goog-api-key", "api-key")


def test_a_written_profile_can_be_read_again(file: Path) -> None:
    profile = ProfileTable(
        "mine-1.0",
        "ollama",
        {
            "title": 'A "server" \x7f of 世界 🎉 \\ mine',
            "base_url": "http://[::1]:80/v1",
            "keys": ("A", "B"),
            "several_calls": True,
            "other_wires": {"openai-responses": "http://127.0.0.1:1"},
            "port": 80,
        },
        {
            "rename": {"max_tokens": "max_completion_tokens", "a.b": "c d"},
            "drop": frozenset({"seed", "stream_options"}),
            "add": {"deep": {"list": [1, 2.5, False, {"x": "y"}], "empty": {}}},
            "reasoning": {"*": {"think": True}},
            "choices": frozenset[str](),
            "call_ids": IdRule(9, "[A-Za-z0-9]", 9),
            "strict": False,
        },
    )
    text = write_profile(profile)
    file.write_text(text.replace("\\u007f", ""), "utf-8")
    title = 'A "server"  of 世界 🎉 \\ mine'
    assert read_profiles(file) == (
        ProfileTable(profile.name, profile.like, {**profile.fields, "title": title}, profile.quirks),
    )
    assert "\\u007f" in text
