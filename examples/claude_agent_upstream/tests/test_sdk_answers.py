"""An answer of the SDK as the client gets it, from the events of the SDK's stream; without the SDK."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain

import pytest

from claude_agent_upstream.answer import MAX_ROUNDS, Answer
from claude_agent_upstream.conversation import PREFIX, Object
from unbroken.errors import Unavailable
from unbroken_wires.deltas import CallReady, Delta, Ended, TextDelta, UsageReported
from unbroken_wires.messages import Assistant, Request, ToolSpec, User

REQUEST = Request((User.of("Hello."),), (ToolSpec("weather"), ToolSpec("clock")))
TOOLS = frozenset({PREFIX + "weather", PREFIX + "clock"})


def message(*blocks: Object, stop: str = "end_turn", output: int = 5) -> list[Object]:
    usage = {"input_tokens": 10, "output_tokens": 1}
    events: list[Object] = [{"type": "message_start", "message": {"id": "m", "role": "assistant", "usage": usage}}]
    for index, block in enumerate(blocks):
        start: Object = {**block, "text": ""} if block["type"] == "text" else {**block, "input": dict[str, str]()}
        delta: Object = {"type": "input_json_delta", "partial_json": block.get("input")}
        if block["type"] == "text":
            delta = {"type": "text_delta", "text": block["text"]}
        events += [
            {"type": "content_block_start", "index": index, "content_block": start},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    return [
        *events,
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": output}},
        {"type": "message_stop"},
    ]


def say(text: str) -> Object:
    return {"type": "text", "text": text}


def call(name: str, id: str, arguments: str = '{"city": "Rome"}') -> Object:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def read(events: Iterable[Object]) -> tuple[Answer, list[Delta]]:
    answer = Answer(REQUEST, TOOLS)
    return answer, list(chain.from_iterable(map(answer.feed, events)))


def test_calls_get_the_names_of_the_client_and_ids_that_nobody_can_guess() -> None:
    calls = [call(PREFIX + "weather", "toolu_1"), call(PREFIX + "clock", "toolu_2")]
    answer, deltas = read(message(say("Let me look."), *calls, stop="tool_use"))
    assert answer.outcome == "calls"
    ready = [delta.call for delta in deltas if isinstance(delta, CallReady)]
    assert [(each.name, each.arguments) for each in ready] == [
        ("weather", {"city": "Rome"}),
        ("clock", {"city": "Rome"}),
    ]
    assert [answer.calls[each.id] for each in ready] == ["toolu_1", "toolu_2"]
    assert all(len(each.id) >= 32 and each.id not in ("toolu_1", "toolu_2") for each in ready)
    usage, ended = answer.end(("temperature",))
    assert isinstance(usage, UsageReported)
    assert (usage.usage.input_tokens, usage.usage.output_tokens) == (10, 5)
    assert isinstance(ended, Ended)
    assert ended.verdict.whole
    assert ended.verdict.left_out == ("temperature",)
    assert ended.message == answer.message
    assert answer.message.calls == tuple(ready)
    assert PREFIX not in json.dumps(answer.message.native.value if answer.message.native else None)


def test_calls_that_the_sdk_answers_itself_are_not_shown_and_their_tokens_are_counted() -> None:
    first = message(say("I try."), call("Bash", "a"), call(PREFIX + "nothing", "b"), stop="tool_use", output=7)
    answer, deltas = read([*first, *message(say("There is nothing."))])
    assert answer.outcome == "text"
    assert answer.hidden
    assert not answer.calls
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "I try.\n\nThere is nothing."
    usage, ended = answer.end()
    assert isinstance(usage, UsageReported)
    assert (usage.usage.input_tokens, usage.usage.output_tokens) == (20, 12)
    assert isinstance(ended, Ended)
    assert ended.message == Assistant("I try.\n\nThere is nothing.")


def test_an_answer_that_only_calls_what_does_not_exist_ends() -> None:
    with pytest.raises(Unavailable, match="tools that do not exist"):
        read(chain.from_iterable(message(call("Bash", "a"), stop="tool_use") for _ in range(MAX_ROUNDS + 1)))


@pytest.mark.parametrize(
    "events",
    [
        message(say("The beginning of"), stop="max_tokens"),
        message(say("No."), stop="refusal"),
        message(call(PREFIX + "weather", "a", '{"city": "Ro'), stop="tool_use"),
        message(call(PREFIX + "weather", "a"), call(PREFIX + "clock", "b", '{"ci'), stop="max_tokens"),
    ],
)
def test_after_a_cut_answer_the_session_is_not_used_again(events: list[Object]) -> None:
    assert read(events)[0].outcome == "cut"


def test_an_answer_that_the_sdk_begins_again_is_not_joined_to_its_first_half() -> None:
    events = message(say("The first half"))
    with pytest.raises(Unavailable, match="began its answer again"):
        read([*events[:3], *events])


def test_an_answer_that_breaks_off_says_so() -> None:
    answer, deltas = read(message(say("The first half"))[:3])
    assert answer.outcome == "open"
    assert answer.began
    assert [delta.text for delta in deltas if isinstance(delta, TextDelta)] == ["The first half"]
    ended = answer.break_off("the process has ended")[-1]
    assert isinstance(ended, Ended)
    assert ended.verdict.kind == "lost"
    assert "the process has ended" in ended.verdict.reason
