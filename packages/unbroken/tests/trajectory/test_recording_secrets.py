"""No secret is in any byte of a recording, wherever it came from; and everything else is recorded unchanged."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from base64 import b64encode, encodebytes, urlsafe_b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import a_long_run
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unbroken import (
    Agent,
    Assistant,
    CallContext,
    Deny,
    ProviderError,
    RetryingModel,
    ScriptedModel,
    ToolFailed,
    connect,
    tool,
)
from unbroken.events import Event, ReasoningAdded, TextAdded, TextFinished, TextReplaced
from unbroken.models.scripted import Answer, Break, Call, ErrorInside, Fail, Say, Think
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import Recording, read_recording
from unbroken.trajectory.redaction import secrets_in_environment
from unbroken_testing import ScriptedServer, run_virtual
from unbroken_wires.messages import ToolCall, User

PLAIN = "sk-proof-0123456789abcdef"
SECRETS = {
    "plain": PLAIN,
    "with quotes": 'pa"ss\\wo"rd-17',
    "with slashes": "abc/def+ghi/jkl==",
    "not ASCII": "пароль-Zürich-😀",
    "several lines": "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQ\n-----END KEY-----",
    "digits": "8675309867",
    "an escape": "nabcdefgh",
    "a word of the schema": "call_started",
    "with blanks": "correct horse battery staple",
}
each_secret = pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS.keys())


def spellings(secret: str) -> set[bytes]:
    """Plain, and as JSON, also as JSON in JSON."""
    found = {secret}
    for _ in range(3):
        found |= {json.dumps(each, ensure_ascii=ascii)[1:-1] for each in found for ascii in (True, False)}
    return {each.encode() for each in found}


def assert_hidden(path: Path, secret: str, *, own_word: bool = False) -> Recording:
    """It is nowhere in the file, and the file is complete. (A secret that is a word of the schema is there as such.)"""
    data = path.read_bytes()
    if own_word:
        data = data.replace(f'"event":"{secret}"'.encode(), b"")
    assert [spelling for spelling in spellings(secret) if spelling in data] == []
    recording = read_recording(path)
    assert recording.problems == []
    assert list(recording.of("note")) == []
    return recording


def said(recording: Recording) -> tuple[str, str]:
    """The text of all deltas, and that of all events."""
    deltas = "".join(line["text"] for line in recording.of("delta") if line["delta"] == "text")
    return deltas, "".join(event.text for event in recording.events if isinstance(event, TextAdded))


@tool
async def tell(what: Any, how: str = "") -> Any:
    """Returns it: plain, in a dict, in JSON, in an error."""
    match how:
        case "dict":
            return {"it is": what, "and": [what]}
        case "json":
            return json.dumps({"it is": what})
        case "error":
            raise ToolFailed(f"cannot say {what}")
        case _:
            return what


@each_secret
def test_it_is_hidden_everywhere(secret: str, tmp_path: Path) -> None:
    @tool(description=f"Uses {secret}.", approve=True)
    async def ask(context: CallContext[Any], why: str) -> str:
        context.report(f"asking with {secret}")
        return "asked"

    async def refuse(call: ToolCall) -> Deny:
        return Deny(f"not with {secret}")

    path = tmp_path / "run.jsonl"
    hows = ("", "dict", "json", "error")
    model = ScriptedModel(
        [Think(f"I think {secret}."), Say(f"I say {secret}."), *(Call("tell", what=secret, how=how) for how in hows)],
        [Call("tell", {"what": {secret: [secret]}}), Call("ask", why=secret), Call(f"no_{secret}")],
        f"It is {secret}, I said {secret}.",
    )
    agent = Agent(
        model, [tell, ask], f"Your key is {secret}.", on_approval=refuse, record=Recorder(path, secrets=[secret])
    )
    history = [User.of(f"Mine is {secret}."), Assistant(f"So it is {secret}.")]
    heard: list[Event] = []
    result = run_virtual(lambda: agent.run(f"What is {secret}?", history=history, sinks=[heard.append]))
    assert result.text == f"It is {secret}, I said {secret}."
    recording = assert_hidden(path, secret, own_word=True)
    assert [type(event) for event in recording.events] == [type(event) for event in heard]
    assert recording.events[-1].text == "It is ***, I said ***."  # pyright: ignore[reportAttributeAccessIssue,reportUnknownMemberType] - the last event has one
    assert len(recording.requests) == 3


@each_secret
def test_it_is_hidden_in_errors(secret: str, tmp_path: Path) -> None:
    for number, last in enumerate(
        (Fail(ProviderError(f"bad {secret}")), ErrorInside(f"bad {secret}"), Fail(KeyError(secret)))
    ):
        path = tmp_path / f"{number}.jsonl"
        agent = Agent(ScriptedModel(last), record=Recorder(path, secrets=[secret]))

        async def main(agent: Agent = agent) -> None:
            with suppress(Exception):
                await agent.run("Go.")

        run_virtual(main)
        assert assert_hidden(path, secret, own_word=True).ending is not None


@pytest.mark.parametrize("how", ["raw", "escaped"])
def test_it_is_hidden_wherever_a_stream_splits_it(how: str, tmp_path: Path) -> None:
    secret = 'ab"cd\\ef-12345'
    spelled = secret if how == "raw" else json.dumps(secret)[1:-1]
    for at in range(1, len(spelled)):
        path = tmp_path / f"{at}.jsonl"
        first, second = spelled[:at], spelled[at:]
        steps = [Say(f"It is {first}", chunks=1), Say(f"{second}, you see", chunks=1)]
        agent = Agent(ScriptedModel([*steps]), record=Recorder(path, secrets=[secret]))
        run_virtual(lambda agent=agent: agent.run("Go."))
        recording = assert_hidden(path, secret)
        assert said(recording) == ("It is ***, you see", "It is ***, you see")


@given(
    st.lists(
        st.sampled_from(["abcd1234", "abcd1234efgh", "x", " ", "ab", "cd12", "34ef", "gh", "bcd1234ab"]), max_size=9
    ),
    st.sampled_from([1, 2, 3, 5, 8]),
)
@example(["abcd1234", "ef"], 1)
def test_a_secret_that_begins_like_another_is_hidden_in_any_pieces(words: list[str], size: int) -> None:
    text = "".join(words).strip() or "x"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    secrets = ("abcd1234efgh", "abcd1234", "bcd1234abcd")
    with TemporaryPath() as path:
        steps: list[Any] = [Say(piece, chunks=1) for piece in pieces]
        agent = Agent(ScriptedModel(steps), record=Recorder(path, secrets=secrets))
        run_virtual(lambda: agent.run("Go."))
        data = path.read_bytes()
        assert [secret for secret in secrets if secret.encode() in data] == []
        recording = read_recording(path)
        for told in said(recording):
            assert not any(secret in told for secret in secrets)
            if not any(secret[:6] in text for secret in secrets):
                assert told == text


class TemporaryPath(tempfile.TemporaryDirectory[str]):
    def __enter__(self) -> Path:  # pyright: ignore[reportIncompatibleMethodOverride] - the same, as a path of a file
        return Path(super().__enter__()) / "run.jsonl"


BREAKS: dict[str, tuple[Answer, ...]] = {
    "before": ([Say(f"It is {PLAIN[:12]}", chunks=1), Break()], [Say(f"It is {PLAIN}.", chunks=3)]),
    "after": ([Say(f"It is {PLAIN}.", chunks=4), Break()], [Say("It is gone.", chunks=2)]),
    "the rest": ([Say("And ", chunks=1), Break()], [Say("And the rest.", chunks=1)]),
    "what follows is no end of it": (
        [Say(f"It is {PLAIN[:12]}", chunks=1), Break()],
        [Say(PLAIN[12:] + " x", chunks=1)],
    ),
}


@pytest.mark.parametrize("script", BREAKS.values(), ids=BREAKS.keys())
def test_it_is_hidden_if_an_answer_breaks_and_is_retried(script: tuple[Answer, ...], tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    heard: list[Event] = []
    model = RetryingModel(ScriptedModel(*script), first_wait=0.0, jitter=lambda: 0.0)
    agent = Agent(model, sinks=[heard.append], record=Recorder(path, secrets=[PLAIN]))
    run_virtual(lambda: agent.run("Go."))
    recording = assert_hidden(path, PLAIN)
    assert PLAIN[:10].encode() not in path.read_bytes()
    told = [event for event in heard if isinstance(event, TextReplaced | TextFinished)]
    again = [event for event in recording.events if isinstance(event, TextReplaced | TextFinished)]
    assert [event.text for event in again] == [event.text.replace(PLAIN, "***") for event in told]


# Text that is not a secret


def test_other_text_is_recorded_unchanged(tmp_path: Path) -> None:
    """Whatever a secret begins with, text that only looks like its beginning is kept."""
    a_long_run.play(tmp_path / "plain.jsonl")
    plain = read_recording(tmp_path / "plain.jsonl")
    letters = "LASweatmhilnoRbu;.\"' "
    masking = Recorder(tmp_path / "masked.jsonl", secrets=[f"{letter}{letter}-not-in-it" for letter in letters])
    heard: list[Event] = []
    a_long_run.play(sinks=[heard.append, masking])
    masked = read_recording(tmp_path / "masked.jsonl")
    assert masked.events == heard == plain.events
    assert masked.requests == plain.requests
    assert [line for line in masked.lines if line["line"] != "delta"] == [
        line for line in plain.lines if line["line"] != "delta"
    ]
    assert said(masked) == said(plain)


@pytest.mark.parametrize("text", ["It is s", "It is sk-", "sk-proof-012345678", "s", "sk-proof-0123456789abcdeX"])
@pytest.mark.parametrize("chunks", [1, 3, 99])
def test_text_that_ends_like_the_beginning_of_a_secret_is_not_lost(text: str, chunks: int, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    agent = Agent(ScriptedModel([Say(text, chunks=chunks)]), record=Recorder(path, secrets=[PLAIN]))
    run_virtual(lambda: agent.run("Go."))
    deltas, events = said(read_recording(path))
    if PLAIN.startswith(text) and len(text) > 6:
        assert deltas in (text, "***")  # so much of it says which one it is
    else:
        assert (deltas, events) == (text, text)


def test_reasoning_and_text_are_held_back_separately(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    steps = [
        Think("Is it s", chunks=1),
        Say("k-proof? No, s", chunks=1),
        Think("o be it.", chunks=1),
        Say("ee.", chunks=1),
    ]
    agent = Agent(ScriptedModel([*steps], wire="anthropic-messages"), record=Recorder(path, secrets=[PLAIN]))
    heard: list[Event] = []
    run_virtual(lambda: agent.run("Go.", sinks=[heard.append]))
    recording = read_recording(path)
    for kind in (TextAdded, ReasoningAdded):
        told = "".join(event.text for event in recording.events if isinstance(event, kind))
        assert told == "".join(event.text for event in heard if isinstance(event, kind))


def test_lines_with_a_secret_keep_everything_else(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    arguments = f'{{"what": [123456789012345678901234567890, 0.1, -0.0, "é\\ud83d\\ude00\\ud800", null, "{PLAIN}"]}}'
    agent = Agent(ScriptedModel([Call("tell", arguments)], "Done."), [tell], record=Recorder(path, secrets=[PLAIN]))
    run_virtual(lambda: agent.run("Go."))
    recording = assert_hidden(path, PLAIN)
    (call,) = [line["call"] for line in recording.of("delta") if line["delta"] == "call_ready"]
    assert call["arguments"]["what"] == [123456789012345678901234567890, 0.1, -0.0, "é😀\ud800", None, "***"]


@pytest.mark.parametrize("depth", [100, 300, 450])
def test_deep_arguments_with_a_secret_do_no_harm(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    arguments = f'{{"what": {"[" * depth}"{PLAIN}", 123456789012345678901234567890{"]" * depth}}}'
    agent = Agent(ScriptedModel([Call("tell", arguments)], "Done."), [tell], record=Recorder(path, secrets=[PLAIN]))
    assert run_virtual(lambda: agent.run("Go.")).text == "Done."
    assert PLAIN.encode() not in path.read_bytes()
    assert read_recording(path).ending is not None


def test_a_numeric_secret_is_hidden_and_other_numbers_stay(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    agent = Agent(
        ScriptedModel([Call("tell", what=[8675309867, 867530986, 1.5])], "Done."),
        [tell],
        record=Recorder(path, secrets=["8675309867"]),
    )
    run_virtual(lambda: agent.run("Go."), 1_700_000_000.0)
    recording = assert_hidden(path, "8675309867")
    (call,) = [line["call"] for line in recording.of("delta") if line["delta"] == "call_ready"]
    assert call["arguments"]["what"][1:] == [867530986, 1.5]


# Sources of secrets


def test_a_single_secret_may_be_given_without_a_list(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    run_virtual(lambda: Agent(ScriptedModel("Done."), record=Recorder(path, secrets=PLAIN)).run(f"It is {PLAIN}."))
    assert_hidden(path, PLAIN)


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "github_token", "DB_PASSWORD", "MY_SECRET", "AWS_CREDENTIALS"])
@pytest.mark.parametrize("around", ["", "\n", "  "])
def test_variables_that_are_named_like_secrets_are_hidden(
    name: str, around: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, f"{around}{PLAIN}{around}")
    path = tmp_path / "run.jsonl"
    run_virtual(lambda: Agent(ScriptedModel(f"It is {PLAIN}."), record=path).run(f"Is it {PLAIN}?"))
    recording = assert_hidden(path, PLAIN)
    assert said(recording) == ("It is ***.", "It is ***.")


def test_variables_of_other_names_are_not_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EDITOR", "KEYBOARD", "TOKENIZERS_PARALLELISM", "SHORT_KEY"):
        monkeypatch.setenv(name, "short" if name == "SHORT_KEY" else "my-own-editor")
    path = tmp_path / "run.jsonl"
    run_virtual(lambda: Agent(ScriptedModel("It is short, as in my-own-editor."), record=path).run("Go."))
    assert said(read_recording(path))[0] == "It is short, as in my-own-editor."


@pytest.mark.parametrize("given", ["text", "function"])
@pytest.mark.parametrize("guarded", [True, False])
def test_the_key_of_a_connected_model_is_hidden(given: str, guarded: bool, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    async def main() -> None:
        answers: list[Answer] = [[Say(f"Let me tell {PLAIN}."), Call("tell", what=PLAIN)], f"It is {PLAIN}."]
        async with ScriptedServer(*answers) as server:
            key: Any = PLAIN if given == "text" else (lambda: PLAIN)
            model = connect("openai:demo", base_url=server.base_url("openai-chat"), api_key=key)
            agent = Agent(model if guarded else model.model, [tell], record=path)
            # What a function will give is not known before it is asked.
            result = await agent.run(f"What is {PLAIN}?" if given == "text" else "What is it?")
            assert result.text == f"It is {PLAIN}."

    asyncio.run(main())
    recording = assert_hidden(path, PLAIN)
    assert said(recording)[0] == "Let me tell ***.It is ***."


def test_the_keys_of_all_fallbacks_are_hidden(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    other, query = "another-key-4711-0815", "query-key-98765"

    async def main() -> None:
        async with ScriptedServer(f"{PLAIN} {other} {query}") as server:
            url = server.base_url("openai-chat")
            first = connect("openai:demo", base_url="http://127.0.0.1:9/v1", api_key=PLAIN)
            second = connect("openai:demo", base_url=url, api_key=other, query={"key": query})
            guarded = RetryingModel(first, 2, fallback=[second], first_wait=0.0)
            await Agent(guarded, record=path).run(f"Are they {PLAIN}, {other}, {query}?")

    asyncio.run(main())
    for secret in (PLAIN, other, query):
        assert_hidden(path, secret)


def test_a_recorder_does_not_show_its_secrets(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, secrets=[PLAIN])
    assert PLAIN not in repr(recorder)
    assert PLAIN not in str(recorder)


def encodings(secret: str) -> dict[str, str]:
    """As programs pass a secret on."""
    data = secret.encode()
    found = {
        "percent": quote(secret, safe=""),
        "percent in lower case": re.sub("%[0-9A-F]{2}", lambda each: each[0].lower(), quote(secret, safe="")),
        "percent throughout": "".join(f"%{byte:02X}" for byte in data),
        "percent throughout in lower case": "".join(f"%{byte:02x}" for byte in data),
        "form": quote_plus(secret),
        "hex": data.hex(),
        "hex in capitals": data.hex().upper(),
        "JSON": json.dumps(secret)[1:-1],
    }
    for user in ("", "u", "me", "user:"):
        found[f"base64 after {user!r}"] = b64encode(user.encode() + data + b"!").decode()
        found[f"base64 for addresses after {user!r}"] = urlsafe_b64encode(user.encode() + data).decode()
    return found


@each_secret
def test_an_encoded_secret_is_hidden_in_text_of_any_pieces_and_in_tool_results(secret: str, tmp_path: Path) -> None:
    clear = {name: each for name, each in encodings(secret).items() if len(each) >= 6}

    @tool
    def leak(what: str) -> str:
        return f"Basic {clear[what]}"

    for number, (name, encoded) in enumerate(clear.items()):
        path = tmp_path / f"{number}.jsonl"
        model = ScriptedModel([Call("leak", what=name)], [Say(f"It is {encoded}, yes.", chunks=7 + number)])
        agent = Agent(model, [leak], record=Recorder(path, secrets=[secret]))
        run_virtual(lambda agent=agent: agent.run("Go."))
        core = encoded[4:-4]
        text = path.read_text()
        assert text.count("***") >= 2, name
        assert len(core) < 6 or core not in text, name
        heard = "".join(event.text for event in read_recording(path).events if isinstance(event, TextAdded))
        assert core not in heard
        assert "***" in heard, name


def test_a_password_with_an_at_sign_in_an_address_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSN", "postgres://me:p@ss-word1@host/db")
    assert "p@ss-word1" in secrets_in_environment()


def test_a_password_is_hidden_both_encoded_and_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://me:p%40ssW0rd-long@host/db")
    assert {"p%40ssW0rd-long", "p@ssW0rd-long"} <= {*secrets_in_environment()}


@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("chunks", [1, 9])
def test_a_secret_in_base64_with_line_breaks_is_hidden(before: int, chunks: int, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    encoded = encodebytes(b"x" * (45 + before) + PLAIN.encode() + b"!").decode()
    assert "\n" in encoded[60:-1]

    @tool
    def leak(what: str) -> str:
        return f"Basic {what}"

    calls = [Say(f"It is {encoded}.", chunks=chunks), Call("leak", {"what": encoded}, pieces=chunks)]
    agent = Agent(ScriptedModel(calls, "Done."), [leak], record=Recorder(path, secrets=[PLAIN]))
    run_virtual(lambda: agent.run(f"Is it {encoded}?"))
    text = path.read_text().replace("\\n", "\n").replace("\\", "")
    assert text.count("***") >= 4
    assert encoded[66:74] not in text
    assert encoded[78:84] not in text
    recording = read_recording(path)
    assert said(recording)[0].endswith("***\n.Done.") or "***" in said(recording)[0]
