"""Messages that pydantic-ai stored: their chain is checked, and the chat continues, with a call that is still open.

The JSON is written by hand, after its documented form; `make test-moving` runs the same with the package itself.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from unbroken import (
    Agent,
    Assistant,
    Conversation,
    Policy,
    ScriptedModel,
    System,
    ToolCall,
    ToolMessage,
    User,
    UserError,
    tool,
)
from unbroken_testing import run_virtual
from unbroken_wires.messages import Media, Text
from unbroken_wires.transcript import Place
from unbroken_wires.wires.chain import chain_status, validate_tool_chain
from unbroken_wires.wires.pydantic_ai import read_stored

WHEN = "2026-11-18T18:00:00Z"


def request(*parts: dict[str, Any]) -> Any:
    return {"kind": "request", "parts": list(parts), "instructions": None, "timestamp": WHEN, "run_id": "r1"}


def response(*parts: dict[str, Any], **fields: Any) -> Any:
    return {"kind": "response", "parts": list(parts), "usage": {"input_tokens": 9}, "model_name": "m", **fields}


def part(kind: str, content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"part_kind": kind, "content": content, **fields}


def call(id: str, args: Any, name: str = "give") -> dict[str, Any]:
    return {"part_kind": "tool-call", "tool_name": name, "tool_call_id": id, "args": args}


def answer(id: str, content: Any, name: str = "give", **fields: Any) -> dict[str, Any]:
    return part("tool-return", content, tool_name=name, tool_call_id=id, timestamp=WHEN, **fields)


ASKED = [
    request(part("system-prompt", "Be brief."), part("user-prompt", "Two diamonds and the time.")),
    response(
        part("thinking", "First the diamonds."),
        part("text", "One moment. "),
        call("call_a", '{"item": "diamond"}'),
        call("call_b", {}, "time"),
    ),
]
ANSWERED = [
    *ASKED,
    request(answer("call_b", {"hour": 7}, "time"), answer("call_a", "given"), part("user-prompt", "And?")),
    response(part("text", "Done.")),
]


def as_objects(value: Any) -> Any:
    """The same as objects, with attributes. What a tool returned stays as it is."""
    if isinstance(value, list):
        return [as_objects(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if {"part_kind", "kind"} & fields.keys():
            return SimpleNamespace(**{name: as_objects(each) for name, each in fields.items()})
    return cast("object", value)


@pytest.mark.parametrize("read", [list, as_objects], ids=["json", "objects"])
def test_the_chain_of_a_stored_chat_is_checked_by_call(read: Any) -> None:
    status = chain_status(read(ASKED))
    assert (status.tool_calls, status.tool_returns, status.complete) == (2, 0, False)
    assert [(each.id, each.name, each.place) for each in status.open] == [
        ("call_a", "give", Place(1, 2)),
        ("call_b", "time", Place(1, 3)),
    ]
    assert validate_tool_chain(read(ANSWERED))
    status = chain_status(read([*ASKED, request(answer("call_b", 7, "time"), answer("call_z", 1))]))
    assert [each.id for each in status.open] == ["call_a"]
    assert [each.id for each in status.orphan] == ["call_z"]


def test_messages_without_a_kind_are_recognised_by_their_parts() -> None:
    called: Any = SimpleNamespace(parts=[SimpleNamespace(part_kind="tool-call")])
    returned: Any = SimpleNamespace(parts=[SimpleNamespace(part_kind="tool-return")])
    assert not validate_tool_chain([called])
    assert validate_tool_chain([called, returned])


@pytest.mark.parametrize("read", [list, as_objects], ids=["json", "objects"])
def test_messages_whose_parts_are_none_are_skipped(read: Any) -> None:
    silent = [{"kind": "response", "parts": None}]
    assert chain_status(read([*silent, *ASKED])).tool_calls == 2
    assert validate_tool_chain(read([*silent, *ANSWERED, *silent]))
    assert validate_tool_chain(read(silent))
    assert read_stored(read([*ANSWERED, *silent])) == read_stored(read(ANSWERED))
    without_a_kind: Any = SimpleNamespace(parts=None)
    assert validate_tool_chain([without_a_kind])


@pytest.mark.parametrize("read", [list, as_objects], ids=["json", "objects"])
def test_a_stored_chat_becomes_our_messages(read: Any) -> None:
    messages, left_out = read_stored(read(ANSWERED))
    assert left_out == ()
    assert messages[:3] == (
        System.of("Be brief."),
        User.of("Two diamonds and the time."),
        Assistant(
            "One moment. ",
            (
                ToolCall("call_a", "give", {"item": "diamond"}, '{"item": "diamond"}'),
                ToolCall("call_b", "time", {}, "{}", 1),
            ),
            "First the diamonds.",
        ),
    )
    (results,) = [message.results for message in messages if isinstance(message, ToolMessage)]
    assert [(each.call_id, each.name, each.text) for each in results] == [
        ("call_b", "time", '{"hour":7}'),
        ("call_a", "give", "given"),
    ]
    assert messages[4:] == (User.of("And?"), Assistant("Done."))


def test_results_say_how_their_calls_ended() -> None:
    ends = ["success", "failed", "denied", "interrupted", "retried"]
    retry = part("retry-prompt", [{"type": "missing", "loc": ["item"]}], tool_name="give", tool_call_id="c5")
    stored = [
        response(*(call(f"c{number}", {}) for number in range(6))),
        request(*(answer(f"c{number}", end, outcome=end) for number, end in enumerate(ends)), retry),
    ]
    messages, left_out = read_stored(stored)
    assert isinstance(messages[1], ToolMessage)
    assert left_out == ()
    assert [(each.error, each.outcome) for each in messages[1].results] == [
        (False, "done"),
        (True, "failed"),
        (True, "not_executed"),
        (True, "unknown"),
        (True, "retry"),
        (True, "retry"),
    ]
    assert messages[1].results[5].text == '[{"type":"missing","loc":["item"]}]'
    assert validate_tool_chain(stored)


def test_a_prompt_to_retry_without_a_tool_is_said_by_the_user() -> None:
    feedback = part("retry-feedback", "Please return text.", retry={"cause": "no_output"})
    messages, left_out = read_stored([request(part("retry-prompt", "Write a number."), feedback)])
    assert messages == (User.of("Write a number."), User.of("Please return text."))
    assert left_out == ()


CONTENT = [
    "Look: ",
    {"kind": "text-content", "content": "here", "metadata": {"from": "app"}},
    {"kind": "cache-point", "ttl": "1h"},
    {"kind": "image-url", "url": "https://example.org/a.png", "force_download": False},
    {"kind": "document-url", "url": "https://example.org/a?id=1", "media_type": "text/csv"},
    {"kind": "audio-url", "url": "https://example.org/sound"},
    {"kind": "video-url", "url": "https://example.org/a.webm?t=1"},
    {"kind": "binary", "data": "-_8", "media_type": "image/png"},
    {"kind": "structured-content", "content": "<state>1</state>", "value": {"n": 1}},
]


def test_a_prompt_keeps_its_files_and_cache_marks() -> None:
    messages, left_out = read_stored([request(part("user-prompt", CONTENT))])
    assert left_out == ()
    assert messages == (
        User(
            (
                Text("Look: "),
                Text("here", cache="1h"),
                Media("image/png", url="https://example.org/a.png"),
                Media("text/csv", url="https://example.org/a?id=1"),
                Media("audio/mpeg", url="https://example.org/sound"),
                Media("video/webm", url="https://example.org/a.webm?t=1"),
                Media("image/png", data="+/8="),
                Text("<state>1</state>"),
            )
        ),
    )


def test_a_result_keeps_its_files() -> None:
    picture = {"kind": "binary", "data": "+/8=", "media_type": "image/png"}
    messages, _ = read_stored([response(call("a", {})), request(answer("a", ["a map", picture, {"kind": "of stone"}]))])
    assert isinstance(messages[1], ToolMessage)
    assert messages[1].results[0].content == (
        Text("a map"),
        Media("image/png", data="+/8="),
        Text('{"kind":"of stone"}'),
    )


LEFT_OUT = [
    request(
        part("user-prompt", [{"kind": "cache-point"}, {"kind": "uploaded-file", "file_id": "f", "provider_name": "x"}]),
        part("system-prompt", "Budget: 3.", scope="request"),
        part("instruction-delta", None, id="i"),
        {"part_kind": "instruction-baseline", "instructions": []},
        {"part_kind": "tool-availability-delta", "tools_added": ["dig"]},
        {"part_kind": "capability-load-delta", "loaded": ["dig"]},
        {"part_kind": "model-settings-delta", "settings": {}},
        {"part_kind": "speech", "speaker": "user"},
        part("user-prompt", [{"kind": "binary", "data": "%", "media_type": "image/png", "vendor_metadata": {"d": 1}}]),
    ),
    response(
        part("text", "It rains.", citations=[{"url": "https://example.org"}]),
        part("thinking", "Hm.", signature="abc", provider_name="anthropic"),
        part("file", {"kind": "binary", "data": "AA==", "media_type": "image/png"}),
        {"part_kind": "builtin-tool-call", "tool_name": "web_search", "tool_call_id": "s1", "args": {"q": "rain"}},
        part("builtin-tool-return", {"found": 1}, tool_name="web_search", tool_call_id="s1"),
        part("compaction", None, provider_name="openai"),
        {"part_kind": "speech", "speaker": "assistant", "transcript": " Bye.", "audio": {"kind": "binary"}},
    ),
]


@pytest.mark.parametrize(
    "data", [{"kind": "binary", "size": 3}, {"kind": "image-url"}, {"kind": "uploaded-file", "id": 7}]
)
def test_data_of_a_tool_with_a_field_called_kind_is_not_taken_for_a_file(data: dict[str, Any]) -> None:
    messages, left_out = read_stored([*ASKED, request(answer("call_a", data))])
    (results,) = [message.results for message in messages if isinstance(message, ToolMessage)]
    assert (json.loads(results[0].text), left_out) == (data, ())


class StoredReturn(SimpleNamespace):
    """As the package's own part, it writes its content, and by default puts failures into an object."""

    def model_response_str(self, *, wrap_if_error: bool = True) -> str:
        text = "" if self.content in (None, []) else json.dumps(self.content, separators=(",", ":"))
        return json.dumps({"error": text}) if wrap_if_error and self.outcome == "failed" else text


class OldStoredReturn(StoredReturn):
    def model_response_str(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return json.dumps(self.content, separators=(",", ":"))


@pytest.mark.parametrize("content", [None, [], {"why": [1]}, ["no"]])
def test_objects_and_json_of_a_failed_call_give_the_same_text(content: Any) -> None:
    stored = answer("call_a", content, outcome="failed")
    parts: list[Any] = [stored, StoredReturn(**stored), OldStoredReturn(**stored)]
    read = [read_stored([*ASKED, request(each)])[0] for each in parts]
    assert read[0] == read[1] == read[2]


def test_what_cannot_be_carried_is_reported_part_by_part(caplog: pytest.LogCaptureFixture) -> None:
    messages, left_out = read_stored(LEFT_OUT)
    assert [line.split(": ")[0:2] for line in left_out] == [
        ["message 0, part 0", "cache-point"],
        ["message 0, part 0", "uploaded-file (f of x)"],
        ["message 0, part 1", "system-prompt"],
        ["message 0, part 2", "instruction-delta"],
        ["message 0, part 3", "instruction-baseline"],
        ["message 0, part 4", "tool-availability-delta"],
        ["message 0, part 5", "capability-load-delta"],
        ["message 0, part 6", "model-settings-delta"],
        ["message 0, part 7", "speech"],
        ["message 0, part 8", "`vendor_metadata` of binary"],
        ["message 0, part 8", "binary (image/png)"],
        ["message 1, part 0", "`citations` of text"],
        ["message 1, part 1", "`signature` of thinking"],
        ["message 1, part 2", "file (image/png)"],
        ["message 1, part 3", "builtin-tool-call (web_search)"],
        ["message 1, part 4", "builtin-tool-return (web_search)"],
        ["message 1, part 5", "compaction"],
        ["message 1, part 6", "speech"],
    ]
    assert messages[0] == User.of("[uploaded-file (f of x): not available any more]")  # the model sees that it is gone
    assert messages[-1] == Assistant("It rains. Bye.", reasoning="Hm.")
    assert validate_tool_chain(LEFT_OUT)  # a provider's own tools are not in the chain

    with caplog.at_level(logging.WARNING, logger="unbroken.agent"):
        Conversation(Agent(ScriptedModel()), LEFT_OUT)
    (record,) = caplog.records
    assert all(line in record.getMessage() for line in left_out)


def test_texts_of_the_other_kinds_stay() -> None:
    stored = [
        request(
            part("compaction", "They met."),
            part("instruction-delta", "Be kind.", id="i"),
            {"part_kind": "speech", "speaker": "user", "transcript": "Hello."},
        ),
        response(part("compaction", "They met and spoke."), part("text", "Hi.")),
    ]
    messages, left_out = read_stored(stored)
    spoke = User.of("They met and spoke.")
    assert messages == (User.of("They met."), System.of("Be kind."), User.of("Hello."), spoke, Assistant("Hi."))
    assert left_out == ()


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ([request(part("tool-recall"))], "part 0: `part_kind` is 'tool-recall', which is not known in a request"),
        ([request(part("text", "Hi"))], "`part_kind` is 'text', which is not known in a request"),
        ([{"kind": "memo", "parts": [part("text")]}], "its kind is 'memo', not request or response"),
        ([request(answer("a", 1, outcome="lost"))], "the outcome of its result is 'lost'"),
        ([*ASKED, Assistant("Hello")], "message 2 is a value of the type `Assistant`"),
        ([request(part("text", "Hi")), {"role": "user", "content": "Hi"}], "message 0 has parts as pydantic-ai stores"),
    ],
)
def test_what_might_hide_a_call_is_refused(stored: list[Any], words: str) -> None:
    read: Any = read_stored if "outcome" in words else chain_status
    with pytest.raises(UserError) as caught:
        read(stored)
    assert words in str(caught.value)


given: list[str] = []


@tool
def give(item: str) -> str:
    """Give an item."""
    given.append(item)
    return f"gave {item}"


@tool
def time() -> str:
    """The time."""
    given.append("time")
    return "noon"


def test_an_open_call_of_a_stored_chat_runs_once_and_the_chat_continues(tmp_path: Path) -> None:
    given.clear()
    stored = [*ASKED, request(answer("call_b", "morning", "time"))]
    (tmp_path / "chat.json").write_text(json.dumps(stored), "utf-8")
    model = ScriptedModel("You have a diamond.", "Bye.")
    chat = Conversation.load(Agent(model, [give, time]), tmp_path / "chat.json")
    assert run_virtual(chat.say()).text == "You have a diamond."
    assert run_virtual(chat.say("Bye.")).text == "Bye."
    assert given == ["diamond"]
    (results,) = [message.results for message in chat.messages if isinstance(message, ToolMessage)]
    assert [(each.call_id, each.text) for each in results] == [("call_a", "gave diamond"), ("call_b", "morning")]
    assert validate_tool_chain(chat.messages)
    assert Conversation.from_json(chat.agent, chat.to_json()).messages == chat.messages


def test_a_new_prompt_answers_an_open_call_as_not_executed() -> None:
    given.clear()
    chat = Conversation(Agent(ScriptedModel("As you like."), [give, time]), as_objects(ASKED))
    assert run_virtual(chat.say("Never mind.")).text == "As you like."
    assert given == []
    assert validate_tool_chain(chat.messages)
    refusing = Conversation(Agent(ScriptedModel(), [give], policy=Policy(open_calls="error")), ASKED)
    with pytest.raises(UserError, match="ends in calls without results: `call_a`"):
        run_virtual(refusing.say())
    saved = Conversation(chat.agent, [*ASKED, request(answer("call_b", "morning", "time"))]).to_json()
    assert saved["messages"][-1]["results"][0]["content"] == [{"type": "text", "text": "morning"}]


def test_a_run_takes_a_stored_chat_as_its_history() -> None:
    given.clear()
    result = run_virtual(Agent(ScriptedModel("There."), [give, time]).run(history=ASKED))
    assert given == ["diamond", "time"]
    assert result.text == "There."


@pytest.mark.parametrize(
    ("args", "state"), [('{"item": "dia', "complete"), ("", "interrupted"), (" ", "interrupted"), (None, "incomplete")]
)
def test_a_stored_call_that_was_cut_never_runs(args: Any, state: str) -> None:
    given.clear()
    stored = [request(part("user-prompt", "The time?")), response(call("a", args, "time"), state=state)]
    chat = Conversation(Agent(ScriptedModel("Say it again."), [give, time]), stored)
    assert run_virtual(chat.say()).text == "Say it again."
    assert given == []


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ([{"role": "user", "content": "Two diamonds."}], "message 0 .* it has no parts"),
        ([*ASKED, None], "message 2 .* it has no parts"),
        ([request(part("user-prompt", {"text": "Two diamonds."}))], "its content is dict, not a text or a list"),
        ([request(part("user-prompt", 2))], "its content is int, not a text or a list"),
    ],
)
def test_no_message_is_read_as_nothing(stored: list[Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_stored(stored)


def test_what_is_no_stored_chat_is_refused_with_the_way_out() -> None:
    with pytest.raises(UserError, match="is a list of messages, not str"):
        read_stored("[]")
    with pytest.raises(UserError, match="neither our messages nor stored ones of pydantic-ai"):
        Conversation(Agent(ScriptedModel()), [{"role": "user", "content": "Hi"}])  # pyright: ignore[reportArgumentType] - refused, too
