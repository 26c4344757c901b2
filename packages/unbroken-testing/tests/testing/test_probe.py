"""`unbroken probe` on servers that behave well and on those that do not: what it finds, and whether the printed profile
helps."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from terminals import Terminal, in_pipe, invoke

from unbroken import Agent, connect, tool
from unbroken.errors import ModelNotFound, ProviderError, Unauthorized, Unreachable
from unbroken.models.provider_files import write_profile
from unbroken.models.quirks import NOTHING_RUNS
from unbroken.models.scripted import Answer as Said
from unbroken.models.scripted import End, Fail, Raw
from unbroken_testing import Break, Call, Cut, ErrorInside, FaultyServer, Pause, ScriptedServer, Uses, serve, story
from unbroken_testing.probing import QUESTIONS, Report, probe
from unbroken_testing.probing.calling import damage_to
from unbroken_testing.probing.probe_client import COUNT, WORDS
from unbroken_testing.scenario import Chunks
from unbroken_wires.messages import OneTool, Request, System, ToolMessage, User
from unbroken_wires.wires import WIRES

NUMBERS = " ".join(map(str, range(1, 101)))
USES = Uses(20, 9)
AT_ONCE = (0.0, 0.0)
Behaviour = Callable[[Request, dict[str, Any]], Said | None]
"""What a server does differently; None: it answers this request well."""


@pytest.fixture(autouse=True)
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "providers.toml"
    file.write_text("")
    monkeypatch.setenv("UNBROKEN_PROVIDERS", str(file))
    return file


def well(request: Request) -> Said:
    """A model that follows its prompt, behind a server that follows its wire."""
    if isinstance(request.messages[-1], ToolMessage):
        return ["21 degrees. Report number 7342.", USES]
    system = "".join(message.text for message in request.messages if isinstance(message, System))
    asked = next(message.text for message in reversed(request.messages) if isinstance(message, User))
    if "BANANA" in system:
        return "BANANA"
    if request.tools and request.choice != "none" and not request.final and NOTHING_RUNS not in system:
        return [*_calls(request, asked), USES]
    if asked == COUNT and request.sampling.max_tokens == 16:
        return ["1 2 3 4 5 6 7 8", End("length"), USES]
    return [NUMBERS if asked == COUNT else "pong", USES]


def _calls(request: Request, asked: str) -> list[Call]:
    name = request.choice.name if isinstance(request.choice, OneTool) else request.tools[0].name
    match name:
        case "ping":
            return [Call("ping")]
        case "echo":
            return [Call("echo", text=asked.partition("\n")[2], pieces=40)]
        case _:
            several = "Madrid" in asked and request.parallel is not False
            return [Call(name, city=city) for city in (("Paris", "Berlin", "Madrid") if several else ("Paris",))]


def find(
    behaviour: Behaviour | None = None,
    wire: str = "openai-chat",
    wrap: Callable[[Chunks], Chunks] | None = None,
    **options: Any,
) -> Report:
    with behaving(behaviour, wrap=wrap) as server:
        return probed(server, wire, **options)


def behaving(behaviour: Behaviour | None = None, **options: Any) -> Any:
    """The context of a server that behaves so."""
    servers: list[ScriptedServer] = []

    def answer(request: Request) -> Said:
        otherwise = behaviour(request, servers[0].bodies[-1]) if behaviour else None
        return well(request) if otherwise is None else otherwise

    class Remembered:
        def __enter__(self) -> ScriptedServer:
            self.context = serve(answer, **options)
            servers.append(self.context.__enter__())
            return servers[0]

        def __exit__(self, *error: Any) -> None:
            self.context.__exit__(*error)

    return Remembered()


def probed(server: ScriptedServer, wire: str = "openai-chat", provider: str = "compatible") -> Report:
    model = connect(f"{provider}:m", base_url=server.base_url(wire), wire=wire, api_key="key", total=20)
    return asyncio.run(probe(model.model, waits=AT_ONCE))


def judged(report: Report) -> dict[str, str]:
    """Everything that did not simply work."""
    return {answer.name: answer.finding.judgement for answer in report.answers if answer.finding.judgement != "works"}


def words(report: Report, name: str) -> str:
    return next(answer.finding.words for answer in report.answers if answer.name == name)


def refuse(message: str) -> Fail:
    return Fail(ProviderError(message, status=400))


NO_WORD_FOR = {
    "gemini": ["parallel_off"],
    "ollama": ["none", "one", "parallel_off", "required"],
    "cohere-v2": ["parallel_off"],
    "bedrock-converse": ["final", "none", "parallel_off"],
}
"""What a wire cannot ask for: no call, a certain one, one only."""


@pytest.mark.parametrize("wire", WIRES)
def test_a_server_that_follows_its_wire_needs_no_quirks(wire: str) -> None:
    report = find(wire=wire)
    assert judged(report) == dict.fromkeys(NO_WORD_FOR.get(wire, ()), "differs")
    assert report.quirks == {}
    assert [answer.name for answer in report.answers] == [question.name for question in QUESTIONS]
    assert words(report, "long") == "4,099 characters"
    assert words(report, "results") == "accepted and used"


def test_the_profile_names_the_wire_if_it_is_not_the_providers_default() -> None:
    with serve(well) as server:
        profile = probed(server, "anthropic-messages").profile(server.url, "MY_KEY")
    assert (profile.name, profile.like) == ("local", "")
    assert profile.fields == {"base_url": server.url, "wire": "anthropic-messages", "keys": ("MY_KEY",)}


# Servers that differ


def ignores_choices(request: Request, _: dict[str, Any]) -> Said | None:
    return None if request.choice is None and not request.final else well(replace(request, choice=None, final=False))


def refuses_parallel(_: Request, body: dict[str, Any]) -> Said | None:
    return refuse("unknown field parallel_tool_calls") if "parallel_tool_calls" in body else None


def breaks_when_streaming_tools(request: Request, _: dict[str, Any]) -> Said | None:
    called = isinstance(request.messages[-1], ToolMessage)
    return ["Let me", ErrorInside("boom")] if request.stream and request.tools and not called else None


def tells_no_usage(request: Request, _: dict[str, Any]) -> Said | None:
    answer = well(request)
    return [step for step in answer if step is not USES] if isinstance(answer, list) else answer


def gives_no_ids(request: Request, _: dict[str, Any]) -> Said | None:
    answer = well(request)
    if not isinstance(answer, list):
        return answer
    return [Call(step.name, step.raw, id="") if isinstance(step, Call) else step for step in answer]


def writes_calls_as_text(request: Request, _: dict[str, Any]) -> Said | None:
    answer = well(request)
    if not isinstance(answer, list):
        return answer
    return [
        f'<tool_call>\n{{"name": "{step.name}", "arguments": {step.raw}}}\n</tool_call>\n'
        if isinstance(step, Call)
        else step
        for step in answer
    ]


def wants_completion_tokens(_: Request, body: dict[str, Any]) -> Said | None:
    return refuse("max_tokens is not supported, use max_completion_tokens") if "max_tokens" in body else None


def refuses_stream_options(_: Request, body: dict[str, Any]) -> Said | None:
    return refuse("stream_options: extra fields are not permitted") if "stream_options" in body else None


def refuses_strict(_: Request, body: dict[str, Any]) -> Said | None:
    return refuse("strict is not known") if '"strict"' in json.dumps(body) else None


def wants_short_ids(_: Request, body: dict[str, Any]) -> Said | None:
    ids = [message["tool_call_id"] for message in body["messages"] if "tool_call_id" in message]
    return refuse("tool call ids must be 9 letters and digits") if any(len(id) != 9 for id in ids) else None


def gives_one_unless_asked(request: Request, body: dict[str, Any]) -> Said | None:
    return well(replace(request, parallel=bool(body.get("parallel_tool_calls")))) if request.tools else None


def refuses_temperature(_: Request, body: dict[str, Any]) -> Said | None:
    return refuse("temperature is not supported with this model") if "temperature" in body else None


def refuses_choice_of_one(request: Request, _: dict[str, Any]) -> Said | None:
    return refuse("tool_choice must be a string") if isinstance(request.choice, OneTool) else None


BENDS: list[tuple[Behaviour, dict[str, str], dict[str, Any]]] = [
    (
        ignores_choices,
        {"required": "works", "one": "differs", "none": "differs", "final": "works"},
        {"choices": frozenset({"auto", "required"})},
    ),
    (refuses_parallel, {"parallel_off": "differs"}, {"drop": frozenset({"parallel_tool_calls"})}),
    (breaks_when_streaming_tools, {"stream_tools": "differs"}, {"stream_with_tools": False}),
    (tells_no_usage, {"usage": "differs"}, {}),
    (gives_no_ids, {"tools": "differs"}, {}),
    (writes_calls_as_text, {"tools": "differs"}, {}),
    (wants_completion_tokens, {"limit": "differs"}, {"rename": {"max_tokens": "max_completion_tokens"}}),
    (refuses_stream_options, {"stream": "differs", "usage": "differs"}, {"drop": frozenset({"stream_options"})}),
    (refuses_strict, {"strict": "differs"}, {"strict": False}),
    (wants_short_ids, {"results": "differs"}, {}),
    (gives_one_unless_asked, {"several": "differs"}, {"asks_for_several": True}),
    (refuses_temperature, {}, {}),
    (refuses_choice_of_one, {"one": "differs"}, {"choices": frozenset({"auto", "none", "required"})}),
]


@tool(effect="read")
async def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: 21 degrees"


@pytest.mark.parametrize(("behaviour", "expected", "quirks"), BENDS, ids=lambda value: getattr(value, "__name__", ""))
def test_differences_are_found_and_an_agent_with_the_profile_works(
    behaviour: Behaviour, expected: dict[str, str], quirks: dict[str, Any], user_file: Path
) -> None:
    with behaving(behaviour) as server:
        report = probed(server)
        assert judged(report) == {name: kind for name, kind in expected.items() if kind != "works"}
        assert quirks.items() <= report.quirks.items()
        assert not report.quirks or quirks or behaviour is wants_short_ids
        profile = report.profile(server.base_url())
        user_file.write_text(write_profile(profile))
        agent = Agent(connect(f"{profile.name}:m", attempts=1, max_tokens=400), [get_weather])
        result = asyncio.run(agent.run("What is the weather in Paris, Berlin and Madrid?"))
    assert result.text == "21 degrees. Report number 7342."
    assert [call.arguments["city"] for call in result.calls] == ["Paris", "Berlin", "Madrid"]


def test_the_profile_leaves_out_an_ignored_choice_and_the_final_request_still_returns_text() -> None:
    def calls_only_when_asked(request: Request, _: dict[str, Any]) -> Said | None:
        if request.tools and "hello" in str(request.messages[0]):
            return "Hello."
        return ignores_choices(request, {})

    report = find(calls_only_when_asked)
    assert report.quirks == {"choices": frozenset({"auto"})}
    assert words(report, "required") == "ignored"
    assert words(report, "final") == "with a system line instead of the tool choice"


def test_text_that_is_garbled_only_in_the_stream_is_requested_unstreamed() -> None:
    def mangle(chunks: Chunks) -> Chunks:
        for pause, data in chunks:
            yield pause, data.decode().encode("ascii", "replace") if data.startswith(b"data: ") else data

    report = find(wrap=mangle)
    assert judged(report) == {"unicode": "differs"}
    assert report.quirks == {"stream_with_tools": False}
    assert words(report, "unicode").startswith("only when streamed: non-ASCII characters became ?: Gr??e, ???")


def test_text_that_is_garbled_with_and_without_streaming_is_broken_and_no_profile_helps() -> None:
    report = find(wrap=lambda chunks: ((pause, data.decode().encode("ascii", "ignore")) for pause, data in chunks))
    assert judged(report) == {"unicode": "broken"}
    assert (report.judgement, report.quirks) == ("broken", {})


@pytest.mark.parametrize(
    ("came", "way"),
    [
        (WORDS.encode().decode("latin-1"), "Latin-1"),
        (WORDS.replace("🎉👩‍💻", "‍"), "beyond 16 bits"),
        (WORDS.replace("🎉", "�"), "cut in the middle"),
        (WORDS.encode("ascii", "backslashreplace").decode(), "escapes"),
        ("Hello", ""),
        ("Grüße, 日本語", ""),
    ],
)
def test_a_server_is_blamed_only_for_typical_server_damage(came: str, way: str) -> None:
    found = damage_to(WORDS, came)
    assert way in found
    assert bool(way) == bool(found)


def test_calls_that_break_only_in_the_stream_are_requested_unstreamed() -> None:
    def cuts_and_says_it_is_fine(request: Request, _: dict[str, Any]) -> Said | None:
        called = isinstance(request.messages[-1], ToolMessage)
        return (
            [Cut("get_weather", '{"city": "Pa'), End("done")]
            if request.stream and request.tools and not called
            else None
        )

    report = find(cuts_and_says_it_is_fine)
    assert report.quirks == {"stream_with_tools": False}
    assert judged(report) == {"stream_tools": "differs"}


def test_a_model_that_never_calls_is_not_a_server_fault() -> None:
    def only_talks(request: Request, _: dict[str, Any]) -> Said | None:
        forced = request.choice == "required" or isinstance(request.choice, OneTool)
        return None if not request.tools or forced else ["I would rather talk.", USES]

    report = find(only_talks)
    assert set(judged(report).values()) == {"unclear"}
    assert report.quirks == {}
    assert "one call only; that may be the model" not in words(report, "several")


def test_a_server_without_tools_is_not_tested_for_them_again() -> None:
    def refuses_tools(request: Request, _: dict[str, Any]) -> Said | None:
        return refuse("this model does not support tools") if request.tools else None

    report = find(refuses_tools)
    found = judged(report)
    assert found.pop("tools") == "broken"
    assert "this model does not support tools" in words(report, "tools")
    assert set(found.values()) == {"unclear"}
    assert words(report, "final") == "not tested: tool calls do not work"


def test_a_server_that_only_streams_is_broken() -> None:
    def only_streams(request: Request, _: dict[str, Any]) -> Said | None:
        return None if request.stream else Raw(b"<html>no</html>")

    report = find(only_streams)
    assert judged(report)["text"] == "broken"
    assert "stream" not in judged(report)


def test_a_rate_limit_is_waited_for() -> None:
    seen: list[Request] = []

    def limited(request: Request, _: dict[str, Any]) -> Said | None:
        seen.append(request)
        if len(seen) % 3 == 2:
            return Fail(ProviderError("slow down", status=429, retry_after=0))
        return None

    assert judged(find(limited)) == {}


# Temporary failures


def unavailable() -> Said:
    return Fail(ProviderError("overloaded", status=503))


PASSING: dict[str, Callable[[], Said]] = {
    "503": unavailable,
    "408": lambda: Fail(ProviderError("too slow", status=408)),
    "409": lambda: Fail(ProviderError("conflict", status=409)),
    "425": lambda: Fail(ProviderError("too early", status=425)),
    "no answer": lambda: Fail(ProviderError("gone")),
    "a lost connection": lambda: ["Let me", Break("gone")],
    "a page": lambda: Raw(b"<html>Bad gateway</html>"),
    "an empty body": lambda: Raw(b""),
    "an empty answer": list,
}


@pytest.mark.parametrize("failure", PASSING.values(), ids=PASSING)
@pytest.mark.parametrize("healthy_after", [1, 2])
def test_a_temporary_failure_is_not_a_refusal_and_adds_nothing_to_the_profile(
    failure: Callable[[], Said], healthy_after: int
) -> None:
    failed: dict[str, int] = {}

    def stumbles(_: Request, body: dict[str, Any]) -> Said | None:
        key = json.dumps(body)
        failed[key] = failed.get(key, 0) + 1
        return failure() if failed[key] % (healthy_after + 1) else None

    report = find(stumbles)
    assert judged(report) == {}
    assert report.quirks == {}


@pytest.mark.parametrize("fault", ["reset", "status_503", "html_page"])
def test_a_faulty_provider_is_judged_like_the_same_one_without_faults(fault: str) -> None:
    async def report(model: str) -> Report:
        async with FaultyServer(story) as server:
            base_url = server.base_url() if not model else f"{server.url}/fault/{model}/v1"
            return await probe(connect("compatible:m", base_url=base_url).model, waits=AT_ONCE)

    broken, healthy = asyncio.run(report(fault)), asyncio.run(report(""))
    assert judged(broken) == judged(healthy)
    assert broken.quirks == healthy.quirks
    count = [sum(answer.requests for answer in each.answers) for each in (broken, healthy)]
    assert count[0] > count[1]


FEATURES: dict[str, Callable[[Request, dict[str, Any]], bool]] = {
    "limit": lambda request, body: "max_tokens" in body and "1 to 100" in str(body) and not request.stream,
    "stream": lambda request, body: request.stream and not request.tools,
    "required": lambda request, body: request.choice == "required" and "hello" in str(body),
    "one": lambda request, body: isinstance(request.choice, OneTool) and len(request.tools) > 1,
    "none": lambda request, body: request.choice == "none" and not isinstance(request.messages[-1], ToolMessage),
    "parallel_off": lambda request, body: request.parallel is False,
    "strict": lambda request, body: '"strict"' in json.dumps(body),
    "results": lambda request, body: isinstance(request.messages[-1], ToolMessage) and not request.choice,
}


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_that_always_fails_while_plain_requests_work_is_broken_without_a_quirk(name: str) -> None:
    report = find(lambda request, body: unavailable() if FEATURES[name](request, body) else None)
    found = judged(report)
    assert found[name] == "broken"
    assert "overloaded" in words(report, name)
    assert report.quirks == {}


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_that_fails_when_plain_requests_fail_too_is_unclear(name: str) -> None:
    plain: list[Request] = []

    def bad_line(request: Request, body: dict[str, Any]) -> Said | None:
        if "pong" in str(body):
            plain.append(request)
            return unavailable() if len(plain) > 1 else None
        return unavailable() if FEATURES[name](request, body) else None

    report = find(bad_line)
    assert judged(report)[name] == "unclear"
    assert report.quirks == {}
    assert report.judgement == "unclear"


def test_streaming_that_loses_every_call_is_a_finding_unless_the_connection_is_bad() -> None:
    plain: list[Request] = []

    def loses_streams(request: Request, _: dict[str, Any]) -> Said | None:
        called = isinstance(request.messages[-1], ToolMessage)
        return ["Let me", Break("gone")] if request.stream and request.tools and not called else None

    def on_a_bad_line(request: Request, body: dict[str, Any]) -> Said | None:
        if "pong" in str(body):
            plain.append(request)
            return unavailable() if len(plain) > 1 else None
        return loses_streams(request, body)

    good = find(loses_streams)
    assert judged(good) == {"stream_tools": "differs"}
    assert good.quirks == {"stream_with_tools": False}
    bad = find(on_a_bad_line)
    assert judged(bad)["stream_tools"] == "unclear"
    assert bad.quirks == {}


def test_credit_that_runs_out_midway_is_not_a_refusal_of_the_feature() -> None:
    seen: list[Request] = []

    def runs_dry(request: Request, _: dict[str, Any]) -> Said | None:
        seen.append(request)
        return Fail(ProviderError("no credit left", status=402)) if len(seen) > 5 else None

    assert find(runs_dry).quirks == {}


def test_silence_is_reported_in_terms_of_the_option() -> None:
    with behaving(lambda request, body: [Pause(5), "…"]) as server:
        done = invoke("probe", "--model", "m", "--base-url", server.base_url(), "--timeout", "0.2")
    assert done.exit_code == 2
    assert "was not done within 0.2 s" in done.stderr
    assert "give it longer than --timeout 0.2" in done.stderr
    assert "total" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_slow_answer_is_inconclusive() -> None:
    def dawdles(request: Request, _: dict[str, Any]) -> Said | None:
        return ["Well", Pause(0.5), "…"] if request.tools and request.tools[0].name == "ping" else None

    with behaving(dawdles) as server:
        model = connect("compatible:m", base_url=server.base_url(), total=0.25).model
        report = asyncio.run(
            probe(model, [question for question in QUESTIONS if question.name in ("text", "no_arguments")])
        )
    assert judged(report) == {"no_arguments": "unclear"}
    assert words(report, "no_arguments") == "no answer within 0.25 s: give it more time"


def test_features_that_the_profile_leaves_out_are_not_tested() -> None:
    with serve(well) as server:
        report = probed(server, provider="ollama")
        assert all(body.get("tool_choice") is None for body in server.bodies)
    assert words(report, "one") == "left out, as in its profile"
    assert report.quirks == {}
    profile = report.profile(server.base_url())
    assert (profile.name, profile.like) == ("local", "ollama")


def test_a_missing_server_and_an_unknown_model_are_errors() -> None:
    with pytest.raises(Unreachable):
        asyncio.run(probe(connect("compatible:m", base_url="http://127.0.0.1:9").model, waits=AT_ONCE))
    with serve(well, models=["other"]) as server, pytest.raises(ModelNotFound):
        probed(server)
    with serve(well, api_key="right") as server, pytest.raises(Unauthorized):
        probed(server)
    with (
        behaving(lambda request, body: Raw(b"<html>")) as server,
        pytest.raises(ProviderError, match="with or without streaming"),
    ):
        probed(server)


# The command


def test_in_a_pipe_the_output_is_toml_that_can_be_appended(user_file: Path) -> None:
    with behaving(breaks_when_streaming_tools) as server:
        done = in_pipe("probe", "--base-url", server.base_url(), "--model", "m")
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert lines[:2] == ["# compatible:m on openai-chat", "# works   plain text"]
        assert any(line.startswith("# differs streaming with tools: only when streamed: error: ") for line in lines)
        rows = tomllib.loads(done.stdout)
        assert rows == {"providers": {"local": {"base_url": server.base_url(), "quirks": {"stream_with_tools": False}}}}
        user_file.write_text(done.stdout)
        said = in_pipe("run", "What is the weather in Paris?", "--model", "local:m")
    assert said.stdout == "pong\n"


def test_json_has_everything_and_something_broken_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-0123456789")

    def quotes_the_key(request: Request, _: dict[str, Any]) -> Said | None:
        return refuse("sk-secret-0123456789 may not use tools") if request.tools else None

    with behaving(quotes_the_key, api_key="sk-secret-0123456789") as server:
        done = in_pipe("probe", "--json", "--base-url", server.base_url(), "--model", "m", "--api-key-env", "MY_KEY")
    assert done.returncode == 1
    value = json.loads(done.stdout)
    assert (value["model"], value["wire"], value["judgement"]) == ("compatible:m", "openai-chat", "broken")
    assert value["answers"][0]["finding"] == {"judgement": "works", "words": "", "quirks": {}}
    assert tomllib.loads(value["profile"])["providers"]["local"]["keys"] == ["MY_KEY"]
    assert "sk-secret" not in done.stdout + done.stderr


def test_on_a_terminal_each_finding_has_its_mark() -> None:
    with (
        behaving(tells_no_usage) as server,
        Terminal("probe", "--base-url", server.base_url(), "--model", "m") as shown,
    ):
        shown.end()
    assert "✔ works" in shown.plain
    assert "≈ differs" in shown.plain
    assert "[providers.local]" in shown.plain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--base-url", "http://127.0.0.1:9/v1"], "cannot be reached at http://127.0.0.1:9/v1/chat/completions"),
        ([], "provider `compatible` has no address of its own: give --base-url"),
        (["--provider", "opnai"], "did you mean `openai`?"),
        (["--provider", "nope"], "there is no provider `nope`: there are: "),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "that variable is not set"),
        (["--timeout", "0"], "--timeout 0: give seconds above 0"),
        (["--base-url", "http://127.0.0.1:9", "--wire", "openai"], "there is no wire 'openai'"),
    ],
)
def test_if_it_cannot_be_tested_there_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = invoke("probe", "--model", "m", "--json", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_wrong_key_gives_one_line_and_the_profile_never_contains_secrets_from_the_base_url() -> None:
    with serve(well, api_key="right") as server:
        done = invoke("probe", "--model", "m", "--base-url", server.base_url())
        assert (done.exit_code, "401" in done.stderr) == (2, True)
        url = server.base_url().replace("http://", "http://me:secret-1@") + "?token=secret-2"
    report = Report("compatible:m", server.base_url(), "openai-chat", (), {})
    assert "secret" not in write_profile(report.profile(url))


@pytest.mark.parametrize(
    ("base_url", "provider", "name"),
    [
        ("https://api.example.com/v1", "compatible", "example"),
        ("https://api.deepseek.com/v1", "compatible", "my-deepseek"),
        ("http://192.168.1.5:8000/v1", "vllm", "local"),
        ("http://gpu:8000", "vllm", "local"),
        ("", "moonshot", "my-moonshot"),
    ],
)
def test_a_profile_is_named_after_its_host_and_never_like_a_built_in_one(
    base_url: str, provider: str, name: str
) -> None:
    assert Report(f"{provider}:m", "", "openai-chat", (), {}).profile(base_url).name == name


def test_the_rules_of_a_model_are_listed_without_a_request() -> None:
    asked = ["probe", "--rules", "--provider", "anthropic", "--model", "claude-opus-4-7"]
    told = invoke(*asked)
    assert told.exit_code == 0
    assert "`top_k` is not accepted (github.com/" in told.output
    known = json.loads(invoke(*asked, "--json").output)
    assert (known["model"], known["wire"]) == ("anthropic:claude-opus-4-7", "anthropic-messages")
    assert {"anthropic.no-top-k", "anthropic.no-temperature"} <= {rule["name"] for rule in known["rules"]}
    older = json.loads(invoke(*asked[:-1], "claude-sonnet-4-5", "--json").output)
    assert "anthropic.no-top-k" not in {rule["name"] for rule in older["rules"]}


@pytest.mark.parametrize(("model", "said"), [("m", "1 rule for"), ("claude-opus-4-7", " rules for")])
def test_the_number_of_rules_agrees_with_its_noun(model: str, said: str) -> None:
    told = invoke("probe", "--rules", "--provider", "anthropic", "--model", model)
    assert said in told.output.splitlines()[0]


def test_rules_of_an_unknown_provider_are_an_error() -> None:
    told = invoke("probe", "--rules", "--provider", "nobody", "--model", "x")
    assert told.exit_code == 2
    assert "nobody" in told.output
