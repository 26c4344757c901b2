"""Long results are sent in part, and `read_more` reads the rest: of this conversation alone, also after a resume."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from unbroken import Agent, Policy, Recorder, Request, ScriptedModel, UserError, tool
from unbroken.read_more import LEAST, ReadMore
from unbroken_testing import Call, run_virtual
from unbroken_wires.messages import Assistant, Message, ToolCall, ToolMessage, ToolResult, User

LINES = "".join(f"line {number}\n" for number in range(1000))
FAMILY = "👩‍👩‍👧‍👦"


@tool(effect="read")
def read_log() -> str:
    """The log."""
    return LINES


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [result.text for each in messages if isinstance(each, ToolMessage) for result in each.results]


def agent_for(model: ScriptedModel, shown: int = 2_000, **options: Any) -> Agent:
    more = ReadMore(shown)
    return Agent(model, [read_log, more.tool], middleware=[more], **options)


def next_part(request: Request) -> list[Call]:
    """What a model does that follows the notes in the last result."""
    last = texts(request.messages)[-1]
    if note := re.search(r"read_more\(result='(.+?)', start=(\d+)\)", last):
        return [Call("read_more", result=note[1], start=int(note[2]))]
    at = re.match(r"\[characters \d+ to \d+ of \d+, then start=(\d+)\]", last)
    return [Call("read_more", result="call_r0c0", start=int(at[1]) if at else -1)]


def test_the_model_reads_all_of_a_long_result_in_parts() -> None:
    model = ScriptedModel([Call("read_log")], *[next_part] * 5, "Read.")
    result = run_virtual(agent_for(model).run("Read it."))
    sent = texts(model.requests[-1].messages)
    head, _, tail = sent[0].partition("\n\n[... ")
    assert LINES.startswith(head)
    assert LINES.endswith(tail.partition(" ...]\n\n")[2])
    assert head + "".join(each.partition("\n")[2] for each in sent[1:]) == LINES
    assert sent[-1].startswith("[characters 8600 to 8890 of 8890, the end]")
    assert all(len(each) < 2_100 for each in sent)
    assert result.calls[0].result.text == LINES  # the history has it all


def test_each_request_begins_like_the_one_before() -> None:
    model = ScriptedModel([Call("read_log")], next_part, [Call("read_log")], "Read.")
    run_virtual(agent_for(model).run("Read it."))
    for before, after in pairwise(model.requests):
        assert before.tools == after.tools
        assert after.messages[: len(before.messages)] == before.messages


def test_a_part_never_splits_a_letter_of_several_characters() -> None:
    @tool(effect="read")
    def families() -> str:
        """Families."""
        return FAMILY * 200

    more = ReadMore(LEAST)
    model = ScriptedModel([Call("families")], next_part, "Read.")
    run_virtual(Agent(model, [families, more.tool], middleware=[more]).run("Read."))
    first, part = texts(model.requests[-1].messages)
    assert first.partition("\n")[0].strip(FAMILY) == ""
    assert part.partition("\n")[2].replace(FAMILY, "") == ""


def test_what_is_kept_at_all_has_the_limit_of_the_policy() -> None:
    model = ScriptedModel([Call("read_log")], [Call("read_more", result="call_r0c0", start=2_900)], "Read.")
    run_virtual(agent_for(model, policy=Policy(result_limit=3_000)).run("Read it."))
    assert texts(model.requests[-1].messages)[1].endswith(LINES[-50:])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"result": "call_9"}, "this conversation has no result `call_9`"),
        ({"result": "call_r0c0", "start": 10_000}, "`start` is 10000, and the result `call_r0c0` has 8,890 characters"),
        ({"result": "call_r0c0", "start": -1}, "`start` is -1"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_why(given: dict[str, Any], words: str) -> None:
    result = run_virtual(agent_for(ScriptedModel([Call("read_log")], [Call("read_more", **given)], "Oh.")).run("Go."))
    assert result.calls[1].error
    assert words in result.calls[1].result.text


def test_another_run_of_the_same_agent_cannot_read_it_and_the_next_turn_can() -> None:
    read = [Call("read_more", result="call_r0c0", start=1_000)]
    agent = agent_for(ScriptedModel([Call("read_log")], "Read.", read, "No.", read, "Yes."))
    first = run_virtual(agent.run("Read it."))
    stranger = run_virtual(agent.run("Read it."))
    assert "has no result" in stranger.calls[0].result.text
    following = run_virtual(agent.run("And the rest?", history=first.messages))
    assert following.calls[0].result.text.startswith("[characters 1000 to 2900 of 8890")


def test_a_resumed_run_reads_what_its_process_had_not_sent(tmp_path: Path) -> None:
    model = ScriptedModel([Call("read_log")], [Call("read_more", result="call_r0c0", start=1_000)], "Read.")
    run_virtual(agent_for(model, record=Recorder(tmp_path)).run("Read it."))
    [path] = tmp_path.glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    cut = next(at for at, line in enumerate(lines) if b'"read_more"' in line and b"arguments" in line)
    path.write_bytes(b"".join(lines[:cut]))  # killed in the second answer
    again = ScriptedModel([Call("read_more", result="call_r0c0", start=1_000)], "Read.")
    result = run_virtual(agent_for(again).resume(path))
    assert texts(again.requests[0].messages) == [texts(model.requests[1].messages)[0]]
    assert result.calls[-1].result.text.startswith("[characters 1000 to 2900 of 8890")


def test_without_its_tool_or_its_middleware_it_says_what_is_missing() -> None:
    with pytest.raises(UserError, match=r"give it to the agent, tools=\[…, more.tool\]"):
        run_virtual(Agent(ScriptedModel("Hi."), [read_log], middleware=[ReadMore()]).run("Go."))
    alone = Agent(ScriptedModel([Call("read_more", result="call_r0c0")], "Oh."), [ReadMore().tool])
    assert "middleware=[…]" in run_virtual(alone.run("Go.")).calls[0].result.text
    with pytest.raises(UserError, match="from 200"):
        ReadMore(20)


def test_an_id_that_two_results_of_a_foreign_history_have_reads_neither() -> None:
    call = ToolCall("call_0", "read_log", {})
    rounds = [Assistant(calls=(call,)), ToolMessage((ToolResult.of(call, LINES),))]
    agent = agent_for(ScriptedModel([Call("read_more", result="call_0")], "Oh."))
    result = run_virtual(agent.run("Go.", history=[User.of("Read."), *rounds, User.of("Again."), *rounds]))
    assert "2 results `call_0`; call the tool again" in result.calls[0].result.text
