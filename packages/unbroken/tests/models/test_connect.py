"""`connect`: names, addresses, keys and settings, and a one-line error for each mistake."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from unbroken.errors import MissingKey, Unauthorized, UnknownProvider, UnknownWire, UserError
from unbroken.models.addresses import find_proxy, join, read_base
from unbroken.models.connect import connect
from unbroken.models.http import HTTPModel
from unbroken.models.providers import PROFILES
from unbroken_wires.messages import Request, Sampling, User

HELLO = Request((User.of("Hi"),))


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for profile in PROFILES:
        for variable in (*profile.keys, *profile.base_url_variables, *profile.version_variables):
            monkeypatch.delenv(variable, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def bare(model: str, **settings: Any) -> HTTPModel:
    return connect(model, **settings).model


def address(model: HTTPModel, stream: bool = True) -> str:
    return str(model.endpoint.stream_url if stream else model.endpoint.whole_url)


def body(model: HTTPModel, request: Request = HELLO) -> dict[str, Any]:
    return json.loads(model.write(request)[1])


# Names and wires


@pytest.mark.parametrize(
    ("settings", "told"), [({"base_url": ""}, "base_url is empty"), ({"max_tokens": -5}, "max_tokens=-5")]
)
def test_invalid_settings_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        connect("openai:gpt-5", api_key="k", **settings)


def test_the_model_name_may_contain_colons_and_slashes() -> None:
    model = bare("openrouter:meta/llama:free", api_key="k")
    assert body(model)["model"] == "meta/llama:free"
    assert model.name == "openrouter:meta/llama:free"


def test_openai_uses_its_best_wire_and_other_servers_chat() -> None:
    assert bare("openai:gpt-5", api_key="k").wire == "openai-responses"
    assert address(bare("openai:gpt-5", api_key="k")) == "https://api.openai.com/v1/responses"
    assert bare("openai:gpt-5", api_key="k", wire="openai-chat").wire == "openai-chat"
    assert bare("openai-chat:gpt-5", api_key="k").wire == "openai-chat"
    elsewhere = bare("openai:m", base_url="http://127.0.0.1:8000/v1")
    assert elsewhere.wire == "openai-chat"
    assert address(elsewhere) == "http://127.0.0.1:8000/v1/chat/completions"
    assert bare("openai:m", base_url="http://h/v1", wire="openai-responses").wire == "openai-responses"
    assert bare("openai-responses:m", base_url="http://h/v1").wire == "openai-responses"


def test_another_wire_of_a_provider_has_its_own_address_and_key_header() -> None:
    model = bare("deepseek:m", api_key="k", wire="anthropic-messages")
    assert address(model) == "https://api.deepseek.com/anthropic/v1/messages"
    assert model.endpoint.key_header == "x-api-key"
    assert ("anthropic-version", "2023-06-01") in model.endpoint.headers


def test_gemini_has_the_model_and_streaming_in_its_address() -> None:
    model = bare("gemini:gemini-2.5-flash", api_key="k")
    start = "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-flash"
    assert address(model) == f"{start}:streamGenerateContent?alt=sse"
    assert address(model, stream=False) == f"{start}:generateContent"
    assert address(bare("gemini:models/gemini-2.5-flash", api_key="k")) == address(model)


def test_vertex_is_found_by_project_and_location() -> None:
    with pytest.raises(UserError, match=r"needs its project: pass project=… or set GOOGLE_CLOUD_PROJECT"):
        bare("vertex:m", api_key="k")
    model = bare("vertex:m", api_key="k", project="p", location="l")
    start = "https://l-aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/google"
    assert address(model) == f"{start}/models/m:streamGenerateContent?alt=sse"
    assert model.endpoint.key_prefix == "Bearer "


@pytest.mark.parametrize(
    "endpoint",
    ["https://r.openai.azure.com", "https://r.openai.azure.com/openai/v1/", "https://r.openai.azure.com/openai"],
)
def test_azure_is_addressed_by_deployment_with_or_without_a_version(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", endpoint)
    model = bare("azure:my-gpt", api_key="k")
    assert address(model) == "https://r.openai.azure.com/openai/v1/chat/completions"
    assert body(model)["model"] == "my-gpt"
    assert model.endpoint.key_header == "api-key"


def test_azure_is_addressed_by_date(monkeypatch: pytest.MonkeyPatch) -> None:
    dated = bare("azure:my-gpt", base_url="https://r.openai.azure.com", api_key="k", api_version="2024-10-21")
    path = "/openai/deployments/my-gpt/chat/completions?api-version=2024-10-21"
    assert address(dated) == f"https://r.openai.azure.com{path}"
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://r.openai.azure.com")
    with pytest.raises(MissingKey, match="AZURE_OPENAI_API_KEY"):
        bare("azure:my-gpt")
    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT")
    with pytest.raises(UserError, match=r"pass base_url=… or set AZURE_OPENAI_ENDPOINT"):
        bare("azure:my-gpt", api_key="k")


def test_ollama_is_found_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address(bare("ollama:qwen3:4b")) == "http://127.0.0.1:11434/v1/chat/completions"
    monkeypatch.setenv("OLLAMA_HOST", "0.0.0.0:9999")
    assert address(bare("ollama:qwen3:4b")) == "http://127.0.0.1:9999/v1/chat/completions"


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("0.0.0.0", "127.0.0.1:11434"),
        ("localhost", "localhost:11434"),
        (":9999", "127.0.0.1:9999"),
        ("[::1]:9999", "[::1]:9999"),
        ("::", "[::1]:11434"),
        ("http://box", "box"),
    ],
)
def test_ollamas_variable_is_read_as_by_ollama(host: str, reached: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    assert address(bare("ollama:m")) == f"http://{reached}/v1/chat/completions"


@pytest.mark.parametrize(
    ("base", "reached"),
    [
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1/chat/completions"),
        ("bücher.example/v1", "http://xn--bcher-kva.example/v1/chat/completions"),
        ("  http://h/v1\n", "http://h/v1/chat/completions"),
        ("localhost", "http://localhost/chat/completions"),
        ("server:8000", "http://server:8000/chat/completions"),
        (":8000/v1", "http://127.0.0.1:8000/v1/chat/completions"),
        ("http://h/a%2Fb/v1", "http://h/a%2Fb/v1/chat/completions"),
    ],
)
def test_a_base_url_may_be_written_in_many_ways(base: str, reached: str) -> None:
    assert address(bare("compatible:m", base_url=base)) == reached


@pytest.mark.parametrize(
    "base", [" ", "a b", "foo", "openai", "http://h\n/v1", "http://h:abc", "h:99999", "http://", "://"]
)
def test_an_invalid_web_address_is_refused_in_one_line(base: str) -> None:
    with pytest.raises(UserError, match=r"^base_url of provider `compatible` is not a web address: [^\n]+$"):
        bare("compatible:m", base_url=base)


@pytest.mark.parametrize("provider", ["ollama", "azure"])
def test_another_wire_on_your_own_server_has_its_version_once_in_the_path(provider: str) -> None:
    for wire, path in (("anthropic-messages", "/v1/messages"), ("gemini", "/v1beta/models/m:generateContent")):
        model = bare(f"{provider}:m", base_url="http://h", api_key="k", wire=wire)
        assert address(model, stream=False) == f"http://h{path}"
    own = {"ollama": "/v1/responses", "azure": "/openai/v1/responses"}[provider]
    model = bare(f"{provider}:m", base_url="http://h", api_key="k", wire="openai-responses")
    assert address(model) == f"http://h{own}"


@pytest.mark.parametrize(
    ("base", "path", "joined"),
    [
        ("https://h", "/v1/messages", "https://h/v1/messages"),
        ("https://h/v1", "/v1/messages", "https://h/v1/messages"),
        ("https://h/v1/", "/chat/completions", "https://h/v1/chat/completions"),
        ("https://h/v1/chat/completions", "/chat/completions", "https://h/v1/chat/completions"),
        ("https://h:8443/a/v1?key=1", "/v1/messages", "https://h:8443/a/v1/messages?key=1"),
    ],
)
def test_a_part_shared_by_base_and_path_appears_once(base: str, path: str, joined: str) -> None:
    assert str(join(read_base(base, "p"), path)) == joined


# Mistakes, in one line


@pytest.mark.parametrize("name", ["gpt-5", "openai:", "http://127.0.0.1:8000/v1", ""])
def test_a_string_without_a_model_explains_the_format(name: str) -> None:
    with pytest.raises(UserError, match="provider:model"):
        bare(name)


def test_a_missing_key_is_reported_with_its_variable() -> None:
    with pytest.raises(MissingKey) as caught:
        bare("openai:gpt-5")
    assert str(caught.value) == "provider `openai` needs a key: set OPENAI_API_KEY or pass api_key=…"
    with pytest.raises(MissingKey, match=r"provider `vertex` needs a key: pass api_key=…"):
        bare("vertex:m", project="p", location="l")


def test_a_server_of_your_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    bare("openai:m", base_url="http://127.0.0.1:1")
    bare("anthropic:m", base_url="http://127.0.0.1:1")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert bare("openai:m").wire == "openai-chat"


def test_an_unknown_provider_wire_or_setting_is_reported_with_suggestions() -> None:
    with pytest.raises(UnknownProvider, match="did you mean `openai`"):
        bare("opnai:gpt-5")
    with pytest.raises(UnknownWire):
        bare("openai:gpt-5", api_key="k", wire="chat")
    with pytest.raises(UserError, match=r"no option `temprature`: did you mean `temperature`\?"):
        bare("openai:gpt-5", api_key="k", temprature=1)
    with pytest.raises(UserError, match="expected 'none', 'minimal'"):
        bare("openai:gpt-5", api_key="k", reasoning="huge")
    with pytest.raises(UserError, match="does not speak gemini: it speaks anthropic-messages"):
        bare("anthropic:m", api_key="k", wire="gemini")
    with pytest.raises(UserError, match="`compatible` has no address of its own: pass base_url="):
        bare("compatible:m")
    with pytest.raises(UserError, match="not a web address: ftp://h"):
        bare("compatible:m", base_url="ftp://user:secret@h/?key=1")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"first_byte": "5"}, r"first_byte='5'\): expected a number or None, got str"),
        ({"connect_timeout": -1}, r"connect_timeout=-1 is not a time-out"),
        ({"idle": float("nan")}, r"idle=nan\): expected a number or None, got nan"),
        ({"total": True}, r"total=True\): expected a number or None, got bool"),
        ({"headers": {"X": None}}, r"headers=\{'X': …\} of connect has to hold texts, not NoneType"),
        ({"headers": {"X": "a\nb"}}, r"header 'X' of connect cannot be sent"),
        ({"headers": {"a b": "c"}}, r"header 'a b' of connect cannot be sent"),
        ({"query": {"a": True}}, r"query=\{'a': …\} of connect has to hold texts, not bool"),
        ({"query": {5: "a"}}, r"query=…\): expected a dict, got dict with int in it"),
        ({"api_key": 5}, r"api_key=5\): expected a string, a function or None, got int"),
        ({"temperature": "hot"}, r"temperature='hot'\): expected a number or None, got str"),
        ({"max_tokens": 1.5}, r"max_tokens=1\.5\): expected an int or None, got float"),
        ({"stop": ["a", 1]}, r"stop=…\): expected a string, a list of strings or None, got list with int in it"),
        ({"organization": 3}, r"organization=3\): expected a string or None, got int"),
        ({"extra": {"a": {1}}}, r"setting `extra` of connect cannot be sent"),
    ],
)
def test_invalid_values_are_refused_before_the_first_request(settings: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"api_key": "k", **settings}
    with pytest.raises(UserError, match=words):
        bare("openai:m", **given)


def test_omitted_settings_may_be_none_and_numbers_are_converted() -> None:
    model = bare("openai:m", api_key="k", organization=None, stop=None, temperature=None, query={"v": 2})
    assert address(model).endswith("/responses?v=2")
    body(model)


def test_a_key_with_invalid_characters_is_refused_without_being_shown() -> None:
    for key in ("sk-…", "sk-a\nb"):
        with pytest.raises(Unauthorized) as caught:
            bare("openai:gpt-5", api_key=key)
        assert key not in str(caught.value)
    assert bare("openai:gpt-5", api_key="  sk-fine\n").name == "openai:gpt-5"


def test_repr_shows_neither_key_nor_query_nor_password() -> None:
    model = bare(
        "anthropic:m",
        api_key="sk-secret-1",
        base_url="https://me:secret-2@h/v1?key=secret-3",
        headers={"X-Key": "secret-4"},
        query={"token": "secret-5"},
        extra={"token": "secret-6"},
    )
    assert repr(model) == "HTTPModel('anthropic:m', 'https://h/v1/messages')"
    assert repr(model.endpoint) == "Endpoint('anthropic:m', 'anthropic-messages', 'https://h/v1/messages')"
    assert "secret" not in repr(model.settings)


def test_a_user_in_the_base_url_becomes_a_header() -> None:
    model = bare("compatible:m", base_url="https://me:pass@h/v1")
    assert address(model) == "https://h/v1/chat/completions"
    assert ("Authorization", "Basic " + b64encode(b"me:pass").decode()) in model.endpoint.headers


def test_a_user_in_the_base_url_and_a_key_for_the_same_header_are_refused() -> None:
    for key in ("sk-given", lambda: "sk-given"):
        with pytest.raises(UserError, match=r"has a user, and there is an api_key: .* give one of them") as caught:
            bare("openai:m", base_url="https://me:pass@h/v1", api_key=key)
        assert "pass" not in str(caught.value)


# Settings


def test_settings_apply_to_each_request_and_the_request_overrides_them() -> None:
    model = bare("groq:m", api_key="k", temperature=0.5, top_p=0.9, max_tokens=9, stop="END", seed=7, reasoning="low")
    said = body(model)
    assert (said["temperature"], said["top_p"], said["max_tokens"], said["stop"]) == (0.5, 0.9, 9, ["END"])
    assert (said["seed"], said["reasoning_effort"]) == (7, "low")
    own = Request((User.of("Hi"),), sampling=Sampling(temperature=0.0, stop=("X",)), reasoning="high")
    said = body(model, own)
    assert (said["temperature"], said["top_p"], said["stop"], said["reasoning_effort"]) == (0.0, 0.9, ["X"], "high")


def test_extra_is_merged_into_the_body_and_the_requests_own_extra_wins() -> None:
    model = bare("groq:m", api_key="k", extra={"a": 1, "b": 2})
    assert body(model)["a"] == 1
    said = body(model, Request((User.of("Hi"),), extra={"b": 3}))
    assert (said["a"], said["b"]) == (1, 3)
    foreign = body(model, Request((User.of("Hi"),), extra={"b": 3}, wire="gemini"))
    assert (foreign["a"], foreign["b"]) == (1, 2)


def test_query_organization_and_project_are_sent() -> None:
    model = bare("openai:m", api_key="k", query={"v": "1"}, organization="org", project="proj")
    assert address(model).endswith("/responses?v=1")
    assert ("OpenAI-Organization", "org") in model.endpoint.headers
    assert ("OpenAI-Project", "proj") in model.endpoint.headers


def test_an_unstreamed_model_sends_unstreamed_requests() -> None:
    assert "stream" not in body(bare("groq:m", api_key="k", stream=False))


def test_anthropic_gets_a_limit_and_cache_marks_on_request() -> None:
    said = body(bare("anthropic:m", api_key="k", cache=True))
    assert said["max_tokens"] > 4000
    assert "cache_control" in json.dumps(said)


# Proxies


def test_the_proxy_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:p%40ss@proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "internal.example")
    proxy = find_proxy(read_base("https://api.example/v1", "p"))
    assert proxy is not None
    assert str(proxy.url) == "http://proxy.example:3128"
    assert proxy.authorization == "Basic " + b64encode(b"me:p@ss").decode()
    assert repr(proxy) == "Proxy('http://proxy.example:3128')"
    assert find_proxy(read_base("https://internal.example", "p")) is None
    assert find_proxy(read_base("https://127.0.0.1", "p")) is None
    assert find_proxy(read_base("http://api.example", "p")) is None


def test_an_unsupported_proxy_is_refused_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://me:secret@proxy.example:1080")
    with pytest.raises(UserError, match=r"socks5://proxy\.example:1080 .* only http and https proxies") as caught:
        bare("openai:m", api_key="k")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["http://", "bad host:1", "http://h:abc"])
def test_an_invalid_proxy_address_is_refused_with_a_message(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(UserError, match=r"from the environment cannot be used, .* set HTTPS_PROXY"):
        bare("openai:m", api_key="k")


def test_a_misspelled_parameter_gets_a_suggestion() -> None:
    with pytest.raises(
        UserError, match=r"no option `atempts`: did you mean `attempts`\? It accepts model, base_url, .*raw_log"
    ):
        bare("openai:m", api_key="k", atempts=3)


def test_stream_with_tools_must_be_true_or_false() -> None:
    with pytest.raises(UserError, match="expected True, False or None, got str"):
        bare("openai:m", api_key="k", stream_with_tools="no")
