"""The fault matrix: each fault on each wire, streamed and not, against our agent over HTTP; and that it would notice
mistakes.

Here each fault happens to one response, and the retry has a different text: the usual case. The other cases (the same
answer again, the last response, all responses) are run by `make faults`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkout import DOCS
from crowd import Crowd, Job
from terminals import in_pipe

from unbroken.errors import UserError
from unbroken.models.retrying import RetryingModel
from unbroken.models.scripted import Call, Say, Step
from unbroken_testing import FAULTS, FaultyServer, find_fault
from unbroken_testing.commands.faults import run_command
from unbroken_testing.faults import Fault
from unbroken_testing.matrix import (
    Case,
    cases,
    ignore_sent,
    make_page,
    open_model,
    play,
    play_case,
    until_over,
    wrong_in_words,
)
from unbroken_testing.scenario import ANNOUNCED, CALLS, NOTE, Evidence, answer_scenario, problems_of, run_scenario
from unbroken_testing.target import Target
from unbroken_wires.messages import Assistant, Request, ToolMessage
from unbroken_wires.wires import WIRES

PAGE = DOCS / "faults.md"


def test_the_page_matches_the_expectations_of_every_case() -> None:
    """The matrix writes it; if everything ends as expected, it is this."""
    assert PAGE.read_text("utf-8") == make_page(), "run: make faults"


def test_every_section_has_its_faults_and_every_wire_its_cases() -> None:
    assert {fault.row for fault in FAULTS.values()} == {*range(1, 20), 35, 36, 37}
    assert {(case.wire, case.mode) for case in cases()} == {
        (wire, mode) for wire in WIRES for mode in ("streamed", "unstreamed")
    }
    assert {case.fault.name for case in cases()} == set(FAULTS)


@pytest.mark.parametrize("wire", WIRES)
def test_every_fault_ends_as_expected(wire: str) -> None:
    chosen = [
        case
        for case in cases(wires=[wire], whens=("once", "reworded"))
        if (case.when == "reworded") == (case.fault.damages or case.fault.keeps_answer)
    ]
    ended = asyncio.run(play(chosen))
    assert len(ended) == len(chosen) > 80
    assert [wrong_in_words(each) for each in ended if not each.good] == []


@pytest.mark.parametrize("name", ["reset", "stall", "status_429", "empty_response", "too_long_openai", "cut_by_length"])
def test_a_lasting_fault_ends_in_the_expected_error(name: str) -> None:
    chosen = cases([find_fault(name)], ["openai-chat"], whens=("always",))
    ended = asyncio.run(play(chosen))
    assert {each.outcome for each in ended} == {find_fault(name).lasting}
    assert [each.problems for each in ended] == [()] * len(chosen)


def test_an_agent_without_retries_does_not_pass() -> None:
    async def main() -> Evidence:
        async with FaultyServer(answer_scenario, fault="reset") as server:
            return await run_scenario(open_model("openai-chat", server.base_url()))

    assert asyncio.run(main()).outcome == "typed:ChainBroken"


def test_a_fault_that_does_not_happen_is_noticed() -> None:
    case = Case(replace(find_fault("reset"), modes=("unstreamed",)), "openai-chat", "streamed")
    ended = asyncio.run(play_case(case))
    assert ended.problems == ("the fault did not happen",)
    assert not ended.good


def test_on_the_wire_of_claude_each_case_sends_back_thinking_that_is_bound_to_its_place() -> None:
    async def main() -> None:
        async with FaultyServer(answer_scenario, fault="no_ids") as server:
            http = open_model("anthropic-messages", server.base_url("anthropic-messages"))
            await run_scenario(RetryingModel(http, first_wait=0.01))
        said = next(message for message in server.requests[-1].messages if isinstance(message, Assistant))
        assert said.native is not None
        signatures = [block["signature"] for block in said.native.value if block["type"] == "thinking"]
        assert signatures
        assert all(signature.startswith("bound-") for signature in signatures)

    asyncio.run(main())


WEATHER, NOW, SAVE = CALLS


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("second", "outcome"),
    [
        ([Say("Rain, I guess.")], "answered"),
        ([Say(ANNOUNCED), SAVE], "answered"),
        ([Say(ANNOUNCED), NOW, WEATHER, SAVE], "answered"),
        ([Say(f"{ANNOUNCED}Soon."), *CALLS, Call("save_note", text="and this")], "answered"),
        ([WEATHER, WEATHER, WEATHER, Call("save_note", text="something else")], "answered"),
        ([Call("now", id="call_r0c0"), Call("save_note", text=NOTE, id="call_r0c1")], "answered"),
        ([Say(ANNOUNCED), Call("no_such_tool"), SAVE], "reported"),
    ],
    ids=["no calls", "fewer", "reordered", "more", "others", "ids of other calls", "unknown tool"],
)
def test_a_different_second_answer_is_accepted(second: list[Step], outcome: str, wire: str) -> None:
    def differs(steps: Sequence[Step]) -> Sequence[Step]:
        return second if any(isinstance(step, Call) for step in steps) else steps

    async def main() -> None:
        server = FaultyServer(answer_scenario, fault="error_at_the_end", differs=differs, on_sent=ignore_sent)
        async with server:
            run = await run_scenario(RetryingModel(open_model(wire, server.base_url(wire)), first_wait=0.01))
            run.requests, run.sent = server.requests, server.sent
            await until_over(run)
        assert run.outcome == outcome
        assert problems_of(run) == []
        assert len(run.sent) >= 2

    asyncio.run(main())


def well(answer: int, attempt: int, request: Request) -> Fault | None:
    return None


def run_well() -> Evidence:
    async def main() -> Evidence:
        runs = [done.run async for done in Crowd([Job("m", "openai-chat", well)]).run()]
        return runs[0]

    return asyncio.run(main())


def show_twice(run: Evidence) -> None:
    run.screen.said[-1] *= 2


def say_what_was_not_sent(run: Evidence) -> None:
    run.sent[-1].steps = run.sent[0].steps


def write_twice(run: Evidence) -> None:
    run.tool_log.ran.append(replace(run.tool_log.ran[-1], turn=1))


def read_twice(run: Evidence) -> None:
    run.tool_log.ran.append(run.tool_log.ran[0])


def write_something_else(run: Evidence) -> None:
    run.tool_log.ran[-1] = replace(run.tool_log.ran[-1], arguments='{"text": ""}')


def lose_a_result(run: Evidence) -> None:
    assert run.result is not None
    messages = [
        replace(message, results=message.results[:-1]) if isinstance(message, ToolMessage) else message
        for message in run.messages
    ]
    run.result = replace(run.result, messages=tuple(messages))


def refuse(run: Evidence) -> None:
    run.sent[1].status = 400


def leave_open(run: Evidence) -> None:
    run.sent[1].over = False


@pytest.mark.parametrize(
    ("spoil", "noticed"),
    [
        (show_twice, "shown was"),
        (say_what_was_not_sent, "was sent"),
        (write_twice, "ran 2 times, but has 1 results"),
        (read_twice, "ran 2 times in turn 0"),
        (write_something_else, "has a result but never ran"),
        (lose_a_result, "the history is not valid"),
        (refuse, "was refused"),
        (leave_open, "was left open"),
    ],
)
def test_forbidden_behaviour_is_noticed(spoil: Callable[[Evidence], None], noticed: str) -> None:
    run = run_well()
    assert problems_of(run) == []
    spoil(run)
    assert any(noticed in problem for problem in problems_of(run)), problems_of(run)


def unbroken(*arguments: str) -> subprocess.CompletedProcess[str]:
    return in_pipe("faults", "run", *arguments)


def test_the_command_prints_a_table_or_json() -> None:
    done = unbroken("--fault", "reset", "--wire", "gemini")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "row\tfault\tgemini\texpected\tif it lasts",
        "11\treset\tanswered\tanswered\ttyped: ChainBroken",
        "8 cases, all as expected",
    ]
    done = unbroken("--fault", "refusal-inside", "--wire", "openai-chat", "--json")
    told = json.loads(done.stdout)
    assert {(each["fault"], each["outcome"], each["good"]) for each in told} == {
        ("refusal_inside", "typed:ChainBroken", True)
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fault": ["rest"]}, "did you mean reset"),
        ({"fault": ["no_type"], "wire": ["gemini"]}, "nothing to run"),
        ({"fault": ["reset"], "write": Path("page.md")}, "--write needs the complete matrix"),
        ({"timeout": 0.0}, "--timeout 0"),
        ({"fault": ["reset"], "target": "no-such-program"}, "no-such-program cannot be run"),
        ({"fault": ["reset"], "target": " "}, "--target is empty"),
        ({"fault": ["reset"], "target": ""}, "--target is empty"),
        ({"fault": ["reset"], "target": "python 'unclosed"}, "--target python 'unclosed: no closing quotation"),
        ({"write": Path("-"), "json": True}, "--write - and --json both write to standard output"),
        ({"write": Path("page.md"), "target": ""}, "--write needs the complete matrix"),
    ],
)
def test_impossible_options_give_a_one_line_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        run_command(**options)
    assert "\n" not in str(raised.value)


GOOD = """
import os
from unbroken import Agent, connect

def get_weather(city: str, days: int): return "rain"
def now(): return "12:00"
def save_note(text: str): return "saved"

model = connect("openai:" + os.environ["UNBROKEN_MODEL"])
print(Agent(model, tools=[get_weather, now, save_note]).run_sync(os.environ["UNBROKEN_PROMPT"]).text)
"""

TRUSTING = """
import json, os, sys
from urllib.request import Request, urlopen

TOOLS = {"get_weather": ["city", "days"], "now": [], "save_note": ["text"]}
specs = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "properties": {field: {} for field in fields}}}} for name, fields in TOOLS.items()]
messages = [{"role": "user", "content": sys.argv[2]}]
while True:
    body = {"model": "demo", "messages": messages, "tools": specs, "stream": True}
    head = {"Content-Type": "application/json"}
    text, calls = "", {}
    try:
        for line in urlopen(Request(sys.argv[1] + "/chat/completions", json.dumps(body).encode(), head)):
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
                    for piece in choice["delta"].get("tool_calls") or []:
                        call = calls.setdefault(piece["index"], {"id": piece.get("id"), "type": "function",
                            "function": {"name": piece["function"].get("name"), "arguments": ""}})
                        call["function"]["arguments"] += piece["function"].get("arguments") or ""
    except OSError:
        pass
    print(text)
    whole = []
    for call in calls.values():
        try:
            json.loads(call["function"]["arguments"]); whole.append(call)
        except ValueError:
            pass
    message = {"role": "assistant", "content": text or "..."}
    messages.append({**message, "tool_calls": whole} if whole else message)
    if not whole:
        break
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": "fine"} for call in whole]
"""
"""It takes everything that arrived as complete."""


@pytest.mark.parametrize(
    ("program", "fault", "outcome"),
    [
        (GOOD, "reset", "answered"),
        (GOOD, "refusal_inside", "gave up"),
        (TRUSTING, "crlf", "answered"),
        (TRUSTING, "clean_end_without_finish", "answered"),
        (TRUSTING, "cut_by_lost_connection", "lost calls"),
        (TRUSTING, "status_500", "lost calls"),
        (TRUSTING.replace("print(text)", "pass"), "crlf", "no answer"),
        (TRUSTING.replace("print(text)", "print(text, text)"), "crlf", "text twice"),
        ("import time; time.sleep(60)", "reset", "hung"),
        ("", "reset", "sent no request"),
    ],
)
def test_an_external_program_is_judged_from_outside(program: str, fault: str, outcome: str, tmp_path: Path) -> None:
    file = tmp_path / "target.py"
    file.write_text(program, "utf-8")
    target = Target(f"{sys.executable} {file} {{base_url}} {{prompt}}", timeout=0.5 if outcome == "hung" else 30.0)
    ended = asyncio.run(target.play(Case(find_fault(fault), "openai-chat", "streamed")))
    assert ended.outcome == outcome, ended


WHOLE = """
import json, os
from urllib.request import Request, urlopen

TOOLS = {"get_weather": ["city", "days"], "now": [], "save_note": ["text"]}
specs = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "properties": {field: {} for field in fields}}}} for name, fields in TOOLS.items()]
messages = [{"role": "user", "content": os.environ["UNBROKEN_PROMPT"]}]
while messages[-1]["role"] != "assistant":
    body = {"model": "demo", "messages": messages, "tools": specs}
    with urlopen(Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())) as answer:
        message = json.load(answer)["choices"][0]["message"]
    messages.append({name: value for name, value in message.items() if value is not None})
    calls = message.get("tool_calls") or []
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": "fine"} for call in calls]
print(messages[-1]["content"])
"""


def program(folder: Path, text: str) -> str:
    file = folder / "program.py"
    file.write_text(text, "utf-8")
    return f"{sys.executable} {file}"


def test_a_program_without_streaming_is_not_tested_with_faults_of_streams(tmp_path: Path) -> None:
    chosen = ("--fault", "crlf", "--fault", "several_calls", "--fault", "refusal_inside")
    done = unbroken("--target", program(tmp_path, WHOLE), *chosen, "--json")
    assert done.stderr == (
        "unbroken: --target sends requests to openai-chat without streaming: "
        "faults that only happen to streams are skipped (1)\n"
    )
    ended = [(each["fault"], each["mode"], each["outcome"], each["good"]) for each in json.loads(done.stdout)]
    assert ended == [
        ("several_calls", "unstreamed", "answered", True),
        ("refusal_inside", "unstreamed", "gave up", True),
    ]
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "--target sent no request: exit code 0; the address is in OPENAI_BASE_URL"),
        ("1/0", {}, "--target sent no request: exit code 1, ZeroDivisionError: division by zero; the address"),
        ("import time; time.sleep(60)", {"timeout": 0.5}, "--target sent no request: it did not end within 0.5 s"),
        (
            WHOLE.replace("/chat/completions", "/completions"),
            {},
            "--target sent no request on openai-chat: its POST /v1/completions was answered 404: there is no such path",
        ),
        (WHOLE, {"wire": ["openai-responses"]}, "--target uses openai-chat, not openai-responses: give --wire"),
        (
            WHOLE.replace('"tools": specs', '"tools": "none"'),
            {},
            "--target fails although nothing is broken: gave up: a request was refused: tools: it is a text",
        ),
        (WHOLE.replace("print(messages[-1]", "print(messages[0]"), {}, "fails although nothing is broken: no answer"),
        (WHOLE, {"fault": ["crlf"]}, "nothing to run"),
    ],
    ids=["silent", "crash", "hangs", "path", "wire", "refused", "no answer", "only streams"],
)
def test_a_program_that_fails_without_any_fault_is_reported_once_and_not_judged(
    text: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as raised:
        run_command(target=program(tmp_path, text), **options)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


TOOLS_FILE = """
from unbroken import tool

@tool
def save_note(text: str): return "saved"
"""


def test_the_command_line_takes_the_model_and_the_address_of_the_faulty_server(tmp_path: Path) -> None:
    tools = tmp_path / "tools.py"
    tools.write_text(TOOLS_FILE)
    ask = f"{sys.executable} -m unbroken run '{{prompt}}' --tools {tools}"
    done = unbroken("--target", f"{ask} --model openai:{{model}}", "--fault", "reset", "--json")
    assert [(each["fault"], each["outcome"]) for each in json.loads(done.stdout)] == [("reset", "answered")]

    done = unbroken("--target", ask, "--fault", "reset")  # UNBROKEN_MODEL names no provider, and no model of ours
    assert done.stderr.startswith(
        "unbroken: --target sent no request: exit code 2, unbroken: `test-model` does not name"
    )
    assert done.returncode == 2
