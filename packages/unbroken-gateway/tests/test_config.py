"""`unbroken.toml`: its values become settings, and mistakes are reported all at once, with their lines."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken import UserError, connect
from unbroken.models.connect import Settings
from unbroken_gateway.config import ServeOptions, read_config, settings_from_options
from unbroken_gateway.config.errors import Where, lines_of
from unbroken_gateway.config.reading import PLACES
from unbroken_gateway.setting_types import ConnectOptions
from unbroken_gateway.settings import ClientProfile, GatewaySettings, GuardrailSettings, UpstreamSettings
from unbroken_gateway.stores import store_url

WHOLE = """
[server]
host = "0.0.0.0"
port = 9000
workers = 4
max_body = "64 MiB"
max_headers = 65536
head_timeout = "5s"
body_timeout = "2 min"
write_timeout = 1.5
stop_timeout = "500ms"

[store]
url = "redis://10.0.0.5:6379/0"
ttl = "7d"
max_bytes = "2 GB"
max_entry = "100 kb"

[serial]
hold_timeout = "1h"
retry_window = 30
on_tool_error = "stop"

[repair]
strict = true

[chain]
on_diverge = "error"

[keys]
required = true
file = "/etc/unbroken/keys.json"

[[models]]
model = "openai:gpt-5"
api_key_env = "WORK_KEY"
fallback = ["slow", "ollama:qwen3:4b"]
idle = "never"
attempts = 2
temperature = 0.2
headers = { X-Team = "blue", X-Shard = 7 }

[[models]]
alias = "slow"
model = "anthropic:claude"
base_url = "https://proxy.example/anthropic"
api_key_file = "/run/secrets/anthropic"
wire = "anthropic-messages"
serial = true
recover = true

[models.extra]
metadata = { user_id = "gateway" }

[[models]]
model = "python:my.models:make"

[[clients]]
name = "pi"
user_agent = "pi-coding-agent"

[[clients]]
name = "batch"
key = "nightly"
header = "X-Client: batch"
serial = false
"""


def config(folder: Path, text: str, **options: Any) -> GatewaySettings:
    path = folder / "unbroken.toml"
    path.write_text(text, "utf-8")
    return read_config(path, ServeOptions(**options))


def mistakes(folder: Path, text: str, **options: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        config(folder, text, **options)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def one_mistake(folder: Path, text: str, **options: Any) -> str:
    [mistake] = mistakes(folder, text, **options)
    return mistake


def wrong_options(**options: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        settings_from_options(ServeOptions(**options))
    return str(caught.value).splitlines()


MODELS = '[[models]]\nmodel = "openai:gpt-5"\n'


def test_every_setting_is_read(tmp_path: Path) -> None:
    assert config(tmp_path, WHOLE) == GatewaySettings(
        upstreams=(
            UpstreamSettings(
                "gpt-5",
                "openai:gpt-5",
                api_key_env="WORK_KEY",
                fallback=("slow", "ollama:qwen3:4b"),
                options={
                    "idle": None,
                    "attempts": 2,
                    "temperature": 0.2,
                    "headers": {"X-Team": "blue", "X-Shard": "7"},
                },
            ),
            UpstreamSettings(
                "slow",
                "anthropic:claude",
                base_url="https://proxy.example/anthropic",
                api_key_file="/run/secrets/anthropic",
                wire="anthropic-messages",
                serial=True,
                recover=True,
                options={"extra": {"metadata": {"user_id": "gateway"}}},
            ),
            UpstreamSettings("make", "python:my.models:make"),
        ),
        clients=(
            ClientProfile("pi", user_agent="pi-coding-agent"),
            ClientProfile("batch", key="nightly", header="X-Client: batch", serial=False),
        ),
        host="0.0.0.0",
        port=9000,
        workers=4,
        store="redis://10.0.0.5:6379/0",
        ttl=7 * 86400.0,
        store_bytes=2_000_000_000,
        entry_bytes=100_000,
        hold_timeout=3600.0,
        retry_window=30,
        on_tool_error="stop",
        on_diverge="error",
        strict=True,
        keys=True,
        keys_file="/etc/unbroken/keys.json",
        max_body=64 << 20,
        max_headers=65536,
        head_timeout=5.0,
        body_timeout=120.0,
        write_timeout=1.5,
        stop_timeout=0.5,
    )


def test_missing_settings_have_their_defaults(tmp_path: Path) -> None:
    assert config(tmp_path, MODELS) == GatewaySettings((UpstreamSettings("gpt-5", "openai:gpt-5"),))


def test_every_setting_has_a_key_and_every_option_of_connect_too() -> None:
    assert {*PLACES, "upstreams", "clients", "budgets", "teams"} == {field.name for field in fields(GatewaySettings)}
    assert len(set(PLACES.values())) == len(PLACES)
    own = {"base_url", "api_key", "wire", "fallback", "recover"}
    own.add("max_answer")  # `max_response` is the limit of the gateway
    taken = {name for name, one in signature(connect).parameters.items() if one.kind is one.KEYWORD_ONLY} - own
    assert set(ConnectOptions.__annotations__) == (taken | {field.name for field in fields(Settings)})


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    told = mistakes(
        tmp_path,
        """\
# a comment with [[models]] in it
[server]
port = 80000   # too many
[servr]
[[models]]
model = "openai:gpt-5"
note = '''
[[models]]
seriel = 1
'''

[[models]]
model = "openai:gpt-5-mini"
seriel = true
[serial]
on_tool_error = "contine"
""",
    )
    assert told[0] == "unbroken.toml:3: [server]: `port` has to be a whole number from 0 to 65535"
    assert told[1] == "unbroken.toml:4: unknown table [servr], did you mean [server]?"
    assert told[2].startswith("unbroken.toml:7: [[models]] 1: unknown key `note`; there are: alias, model, ")
    assert told[3] == "unbroken.toml:14: [[models]] 2: unknown key `seriel`, did you mean `serial`?"
    assert told[4] == (
        "unbroken.toml:16: [serial]: `on_tool_error` has to be one of continue, stop; did you mean `continue`?"
    )
    assert len(told) == 5


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('host = "0.0.0.0:80"', "`host` has to be an address or a name only, like 127.0.0.1; the port goes in"),
        ("workers = 0", "`workers` has to be a whole number from 1 to 256"),
        ("port = true", "`port` has to be a whole number from 0 to 65535"),
        ('max_body = "32 XB"', "`max_body` has to be a size from 1024 bytes: a number, or a text like"),
        ("max_body = 10", "`max_body` has to be a size from 1024 bytes"),
        ("head_timeout = inf", "`head_timeout` has to be a time above 0: seconds as a number, or a text like"),
        ("head_timeout = nan", "`head_timeout` has to be a time above 0"),
        (f"head_timeout = {'9' * 400}", "`head_timeout` has to be a time above 0"),
        ('head_timeout = "-1s"', "`head_timeout` has to be a time above 0"),
        ("head_timeout = 2025-06-01", "`head_timeout` has to be a time above 0"),
        ('open_to_all = "yes"', "`open_to_all` has to be true or false"),
    ],
)
def test_an_invalid_value_is_reported_with_the_valid_ones(tmp_path: Path, line: str, told: str) -> None:
    assert one_mistake(tmp_path, f"{MODELS}[server]\n{line}\n").startswith(f"unbroken.toml:4: [server]: {told}")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ('alias = "a"', "2: [[models]] 1: `model` is missing: write it like model ="),
        ('model = "gpt-5"', "3: [[models]] 1: `model` has to be PROVIDER:MODEL like openai:gpt-5, python:"),
        ('model = "opnai:gpt-5"', "3: [[models]] 1: `model` names no model: there is no provider `opnai`: did"),
        ('model = "openai:gpt 5"', "3: [[models]] 1: `model` has a name that clients cannot use: give it"),
        ('model = "python:module"', "3: [[models]] 1: `model` has to be python:module:function, where the function"),
        ('model = "demo"\nbase_url = "http://x"', "4: [[models]] 1: `base_url` has no effect on a model like demo"),
        ('model = "demo"\nalias = "my demo"', "4: [[models]] 1: `alias` has to be a name without spaces"),
        ('model = "openai:a"\nbase_url = "ftp://x"', "4: [[models]] 1: `base_url` has to be a web address, like https"),
        ('model = "openai:a"\nwire = "openai"', "4: [[models]] 1: `wire` has to be one of openai-chat, openai-respon"),
        ('model = "openai:a"\nidle = 0', "4: [[models]] 1: `idle` has to be a time above 0"),
        (
            'model = "openai:a"\nextra = { at = 2025-06-01 }',
            "4: [[models]] 1: `extra` has a value that JSON does not have",
        ),
        ('model = "openai:a"\nfallback = ["fsat"]', "4: [[models]] 1: `fallback` names `fsat`, which is neither"),
        ('model = "openai:a"\nfallback = "a"', "4: [[models]] 1: `fallback` leads back to `a` itself: leave that out"),
        ('model = "openai:a"\napi_key_env = "A"\napi_key_file = "a"', "5: [[models]] 1: it has `api_key_env` and"),
        ('model = "openai:a"\n[[models]]\nmodel = "xai:a"', "4: [[models]] 2: its alias `a` is that of [[models]] 1"),
        ('model = "demo"\n[[clients]]\nname = "pi"', "4: [[clients]] 1: it does not identify a client: give"),
        ('model = "demo"\n[[clients]]\nkey = "ub-12"\nname = "a"', "5: [[clients]] 1: `key` has to be the name of"),
        ('model = "demo"\n[[clients]]\nheader = "a b"\nname = "a"', "5: [[clients]] 1: `header` has to be the name of"),
    ],
)
def test_an_invalid_model_or_client_is_named(tmp_path: Path, lines: str, told: str) -> None:
    mistake = one_mistake(tmp_path, f"# models\n[[models]]\n{lines}\n")
    assert mistake.startswith(f"unbroken.toml:{told}")


def test_every_invalid_path_is_reported_in_its_line(tmp_path: Path) -> None:
    told = mistakes(
        tmp_path, f'{MODELS}[passing]\npaths = [\n  "FETCH /v1/a",\n  "GET /v1/files/*",\n  "GET /v2/b",\n]\n'
    )
    assert [line.partition(" does not name")[0] for line in told] == [
        f"unbroken.toml:{line}: [passing]: `paths` has an entry that cannot be read: `{path}`"
        for line, path in ((5, "FETCH /v1/a"), (7, "GET /v2/b"))
    ]


def test_fallbacks_may_not_go_in_circles(tmp_path: Path) -> None:
    told = mistakes(
        tmp_path,
        """
[[models]]
model = "openai:a"
fallback = ["b"]
[[models]]
model = "openai:b"
fallback = ["c"]
[[models]]
model = "openai:c"
fallback = ["a"]
""",
    )
    assert [line.partition("]] ")[2] for line in told] == [
        f"{n}: `fallback` leads back to `{alias}` itself: leave that out" for n, alias in enumerate("abc", 1)
    ]


@pytest.mark.parametrize(
    "line",
    [
        'api_key = "{}"',
        'apikey = "{}"',
        'token = "{}"',
        'api_key_env = "{}"',
        'base_url = "https://me:{}@host/v1"',
        'base_url = "https://host/v1?key={}"',
        'headers = {{ Authorization = "Bearer {}" }}',
        'headers.x-api-key = "{}"',
        'headers.x-hidden = "{}"',
        'query = {{ key = "{}" }}',
    ],
)
def test_a_key_in_the_file_is_refused_with_a_hint_and_never_quoted(tmp_path: Path, line: str) -> None:
    secret = "sk-live-0123456789abcdef"
    mistake = one_mistake(tmp_path, MODELS + line.format(secret))
    assert mistake.startswith("unbroken.toml:3: [[models]] 1: ")
    assert "variable" in mistake
    assert secret not in mistake
    assert "0123456789" not in mistake


def test_a_key_instead_of_a_variable_name_is_not_quoted_either(tmp_path: Path) -> None:
    told = one_mistake(tmp_path, MODELS + 'api_key_env = "AIzaSyA0123456789abcdefghijk"')
    assert told.endswith("`api_key_env` has to name an environment variable, like OPENAI_API_KEY, which holds the key")


def test_a_misspelled_key_that_sounds_like_a_secret_still_gets_a_suggestion(tmp_path: Path) -> None:
    assert one_mistake(tmp_path, MODELS + 'api_key_evn = "X"').endswith(
        "unknown key `api_key_evn`, did you mean `api_key_env`?"
    )
    assert one_mistake(tmp_path, MODELS + "max_token = 5").endswith("`max_token`, did you mean `max_tokens`?")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "unbroken.toml: no model is named: write [[models]], and below it model ="),
        ("port = 80\n" + MODELS, "unbroken.toml:1: unknown key `port`: it belongs below [server]"),
        ("[models]\nmodel = 'demo'", "unbroken.toml:1: [models]: there may be several of them: write [[models]]"),
        ("models = 3", "unbroken.toml:1: [models]: there may be several of them: write [[models]]"),
        ("models = [3]", "unbroken.toml:1: [[models]] 1: this has to be a table: write [[models]] above its keys"),
        ("[[server]]\nport = 1\n" + MODELS, "unbroken.toml:1: [server]: this has to be a table: write [server] above"),
        (MODELS + "[nothing.at.all]", "unbroken.toml:3: unknown table [nothing]; there are: [server], [store], "),
        ("[server\n", "unbroken.toml:1: this is not TOML: Expected ']' at the end of a table declaration (at line"),
        ("[server]\nhost = here", "unbroken.toml:2: this is not TOML: Invalid value (at line 2, column 8)"),
        ("[server]\nport = 1\nport = 2", "unbroken.toml:3: this is not TOML: Cannot overwrite a value"),
        ("a = " + "[" * 2000, "unbroken.toml is nested too deeply"),
        ('a = "', "unbroken.toml:1: this is not TOML: "),
    ],
)
def test_a_file_of_another_kind_is_reported_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    assert mistakes(tmp_path, text)[0].startswith(told)


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.toml: there is no such file; without one, name a model"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(UserError, match="is a folder: name the file in it"):
        read_config(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'[server]\nhost = "caf\xe9"')
    with pytest.raises(UserError, match=r"latin\.toml is not UTF-8 text"):
        read_config(tmp_path / "latin.toml")


def test_a_byte_order_mark_of_a_windows_editor_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "unbroken.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MODELS.replace("\n", "\r\n").encode() + b"seriel = 1\r\n")
    with pytest.raises(UserError, match=r":3: \[\[models\]\] 1: unknown key `seriel`"):
        read_config(path)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    settings = config(
        tmp_path,
        MODELS + 'api_key_file = "key"\nraw_log = "raw.jsonl"\n[keys]\nfile = "keys.json"\n[store]\nurl = "kept.db"',
    )
    assert settings.upstreams[0].api_key_file == str(tmp_path / "key")
    assert settings.upstreams[0].options["raw_log"] == str(tmp_path / "raw.jsonl")
    assert settings.keys_file == str(tmp_path / "keys.json")
    assert settings.store == f"sqlite:{tmp_path / 'kept.db'}"
    assert config(tmp_path, MODELS, store="kept.db").store == "sqlite:kept.db"


@pytest.mark.parametrize(
    ("given", "store"),
    [
        ("memory", "memory:"),
        ("memory:", "memory:"),
        ("/var/kept.db", "sqlite:/var/kept.db"),
        ("sqlite:/var/kept.db", "sqlite:/var/kept.db"),
        ("sqlite:///var/kept.db", "sqlite:/var/kept.db"),
        ("rediss://cache.example:6380/1", "rediss://cache.example:6380/1"),
        ("redis://reader@cache.example", "redis://reader@cache.example"),
        ("env:STORE_URL", "env:STORE_URL"),
    ],
)
def test_a_store_is_a_path_or_an_address_or_the_variable_that_holds_one(tmp_path: Path, given: str, store: str) -> None:
    assert config(tmp_path, f'{MODELS}[store]\nurl = "{given}"').store == store


def test_the_password_of_a_store_is_in_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = one_mistake(tmp_path, f'{MODELS}[store]\nurl = "redis://:hunter2@cache:6379/0"')
    assert told.endswith("`url` has a password in it: put the complete address into a variable, and write env:VARIABLE")
    with pytest.raises(UserError, match="variable STORE_URL is not set; export it, or name another store"):
        store_url("env:STORE_URL")
    monkeypatch.setenv("STORE_URL", "redis://:hunter2@cache:6379/0")
    assert store_url("env:STORE_URL") == "redis://:hunter2@cache:6379/0"
    assert store_url("memory:") == "memory:"


@pytest.mark.parametrize("url", ["postgres://x/y", "sqlite:", "sqlite::memory:", "redis:", "redis://", "env:a-b", ""])
def test_an_unknown_kind_of_store_is_refused(tmp_path: Path, url: str) -> None:
    assert one_mistake(tmp_path, f'{MODELS}[store]\nurl = "{url}"').startswith("unbroken.toml:4: [store]: `url` has ")


def test_without_configuration_there_is_the_demo_model_and_a_store_in_this_folder() -> None:
    settings = GatewaySettings((UpstreamSettings("demo", "demo"),), store="sqlite:unbroken-gateway.db")
    assert settings_from_options() == settings


def test_options_need_no_file() -> None:
    settings = settings_from_options(
        ServeOptions(
            upstream="openai:gpt-5",
            alias="work",
            base_url="http://127.0.0.1:9/v1",
            api_key_env="WORK_KEY",
            wire="openai-responses",
            port=0,
            store="kept.db",
            serial=True,
            hold_timeout=5.0,
            keys=True,
            keys_file="keys.json",
        )
    )
    upstream = UpstreamSettings(
        "work", "openai:gpt-5", "http://127.0.0.1:9/v1", "WORK_KEY", wire="openai-responses", serial=True
    )
    assert settings == GatewaySettings(
        (upstream,), port=0, store="sqlite:kept.db", hold_timeout=5.0, keys=True, keys_file="keys.json"
    )


def test_options_override_the_file(tmp_path: Path) -> None:
    two = f'[server]\nport = 1\nhost = "::1"\n{MODELS}[[models]]\nmodel = "xai:grok"\n'
    settings = config(tmp_path, two, port=2, serial=True)
    assert (settings.host, settings.port) == ("::1", 2)
    assert [(upstream.alias, upstream.serial) for upstream in settings.upstreams] == [("gpt-5", True), ("grok", True)]
    assert [upstream.alias for upstream in config(tmp_path, two, upstream="demo").upstreams] == ["demo"]


def test_a_wrong_option_is_reported_by_its_own_name(tmp_path: Path) -> None:
    assert wrong_options(upstream="gpt-5") == [
        "--upstream has to be PROVIDER:MODEL like openai:gpt-5, python:module:function, or demo"
    ]
    assert wrong_options(base_url="http://x", alias="a") == [
        f"{option} goes with --upstream PROVIDER:MODEL, which is missing; a file has [[models]]"
        for option in ("--alias", "--base-url")
    ]
    assert wrong_options(upstream="openai:a", base_url="http://me:hunter2@x") == [
        "--base-url has a password or a key in it: put it into a variable, and use --api-key-env VARIABLE"
    ]
    assert wrong_options(workers=2, store="memory") == [
        "--workers cannot be 2 with memory: for a store, as each has its own: name a file or a server"
    ]
    told = mistakes(tmp_path, "[server]\nport = 'a'\nworkers = 0\n" + MODELS, port=99999)
    assert told == [
        "--port has to be a whole number from 0 to 65535",
        "unbroken.toml:3: [server]: `workers` has to be a whole number from 1 to 256",
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gateway.example"])
def test_another_address_without_keys_has_to_be_confirmed(tmp_path: Path, host: str) -> None:
    told = wrong_options(host=host)
    assert told[0].startswith("--host lets everybody who reaches this machine use your providers' keys: turn")
    assert "--keys on" in told[0]
    assert "--open-to-all" in told[0]
    assert wrong_options(host=host, keys=False) == told
    assert settings_from_options(ServeOptions(host=host, keys=False, open_to_all=True)).host == host
    assert settings_from_options(ServeOptions(host=host, keys=True)).host == host
    in_file = f'{MODELS}[server]\nhost = "{host}"\n'
    assert one_mistake(tmp_path, in_file).startswith("unbroken.toml:4: [server]: `host` lets everybody")
    assert config(tmp_path, in_file, keys=True).keys
    assert config(tmp_path, in_file + "open_to_all = true").open_to_all


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost"])
def test_local_addresses_need_no_keys(host: str) -> None:
    assert settings_from_options(ServeOptions(host=host)).host == host.strip("[]")


# Lines


def leaves(value: Any, path: Where = ()) -> Iterator[Where]:
    """The path of every key and every item."""
    items = (
        cast("dict[str, Any]", value).items()
        if isinstance(value, dict)
        else enumerate(cast("list[Any]", value))
        if isinstance(value, list)
        else ()
    )
    for key, one in items:
        yield (*path, key)
        yield from leaves(one, (*path, key))


ODD = r'''
a.b . "c d" = 1 # x = 2
"[[models]]" = """
[[models]] = "\"""
key = 1 """""
'lit\' = ['a', """
]""", {x.y = 1, z = [[1,
2], []]}, # ]
# [server]
2025-06-01 07:32:00, +inf, QQQ
xQQQ] #
[ one . "two" ] # [three]
k = { }
"\u006b2" = "}"
[[one.list]]
n = 1
[[one.list]]
[one.list.sub]
deep = true
[[one.list.more]]
q = 'a#b'
'''.replace("QQQ", "'''")


def test_every_key_in_an_unusual_file_is_found_in_its_line() -> None:
    found = lines_of(ODD)
    assert [path for path in leaves(tomllib.loads(ODD)) if path not in found] == []
    assert found["a", "b", "c d"] == 2
    assert found["[[models]]",] == 3
    assert found["lit\\", 2, "x", "y"] == 7
    assert found["lit\\", 2, "z", 0, 1] == 8
    assert found["one", "two", "k2"] == 14
    assert found["one", "list", 0, "n"] == 16
    assert found["one", "list", 1] == 17
    assert found["one", "list", 1, "sub", "deep"] == 19
    assert found["one", "list", 1, "more", 0, "q"] == 21


def test_if_the_scan_fails_what_was_found_is_used() -> None:
    assert lines_of('a = 1\nb 3\nc = "') == {("a",): 1, ("b",): 2}
    assert lines_of("a = 1\nb = " + "[" * 5000)["a",] == 1


NAMES = st.sampled_from(["a", "b-c", "d_1", '"e f"', "'g.h'", '"\\u0069"', "9"])
VALUES = st.recursive(
    st.sampled_from(["1", "-2.5", "true", '"t"', '"""m\n"\n"""', "'''\n[x]\n'''", "'#'", "2025-06-01", '"\\""']),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[ " + " ,\n # , ]\n".join(items) + " ]"),
        st.lists(inner, max_size=2).map(lambda items: f"[{','.join(items)}{',' if items else ''}]"),
        st.dictionaries(NAMES, inner, max_size=2).map(
            lambda items: "{" + ", ".join(f"{key} = {value}" for key, value in items.items()) + "}"
        ),
    ),
    max_leaves=5,
)
TABLE = st.tuples(
    st.sampled_from(["[{}]", "[[{}]]", "[ {} ] # [c]"]),
    st.lists(NAMES, min_size=1, max_size=2),
    st.dictionaries(NAMES, VALUES, max_size=3),
)


@given(st.lists(TABLE, max_size=5))
def test_the_scan_follows_any_valid_toml(tables: list[tuple[str, list[str], dict[str, str]]]) -> None:
    text = "\n# = [\n\n".join(
        "\n".join([head.format(".".join(path)), *(f"{key}={value} #'" for key, value in pairs.items())])
        for head, path, pairs in tables
    )
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # tables that clash
    found = lines_of(text)
    lines = text.splitlines()
    for path in leaves(document):
        assert path in found, text
        assert 1 <= found[path] <= len(lines)


GUARDED = MODELS + "[[models.guardrails]]\n"


def test_guardrails_and_hooks_are_read(tmp_path: Path) -> None:
    text = """
[guardrails]
hooks = "all.py"

[[models]]
model = "openai:gpt-5"
hook_timeout = "2s"

[[models.guardrails]]
use = "redact"
pattern = '\\d+'
by = "#"
arguments = true

[[models.guardrails]]
use = "check_calls"
name = "limits"
check = "rules:below"
tools = ["pay"]
"""
    (model,) = config(tmp_path, text).upstreams
    assert (model.hooks, model.hook_timeout) == (str(tmp_path / "all.py"), 2.0)
    assert model.guardrails == (
        GuardrailSettings("redact", pattern=r"\d+", by="#", arguments=True),
        GuardrailSettings("check_calls", "limits", check="rules:below", tools=("pay",)),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MODELS + "guardrails = 5", "has to be a list of tables"),
        (GUARDED + 'pattern = "x"', "`use` is missing"),
        (GUARDED + 'use = "redcat"', "did you mean `redact`?"),
        (GUARDED + 'use = "redact"', "`pattern` is missing"),
        (GUARDED + 'use = "redact"\npattern = "("', "is not a regular expression"),
        (GUARDED + 'use = "redact"\npattern = "x"\ntools = ["a"]', "`tools` is no option of redact"),
        (GUARDED + 'use = "check_input"', "it needs one of the two"),
        (GUARDED + 'use = "check_input"\ncheck = "a:b"\nveto = "x"', "it needs one of the two"),
        (GUARDED + 'use = "check_input"\ncheck = "nothing"', "has to be module:function"),
        (GUARDED + 'use = "python:nothing"', "or python:module:function"),
        (GUARDED + 'use = "check_input"\nveto = "x"\nparallel = true', "unknown key `parallel`"),
    ],
)
def test_a_mistake_in_a_guardrail_is_reported_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    told = one_mistake(tmp_path, text)
    assert told.startswith("unbroken.toml:")
    assert words in told
