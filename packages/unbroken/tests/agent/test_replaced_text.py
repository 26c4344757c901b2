"""A stream breaks and the retry produces different text: how each consumer of events handles it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text as RichText
from terminals import Terminal, in_pipe, invoke, write_tools

from unbroken import (
    Agent,
    Assistant,
    CallFinished,
    Event,
    Result,
    RetryingModel,
    ScriptedModel,
    ToolMessage,
    tool,
)
from unbroken.agent.sentences import sentences
from unbroken.agent.streaming import Collected
from unbroken.agent.ui_history import answers_from_ui_messages, from_ui_messages
from unbroken.agent.ui_messages import ui_messages
from unbroken.errors import ProviderError, RateLimited
from unbroken.events import RequestRetried, event_from_json
from unbroken.models.scripted import Answer, Break, Call, Fail, Say, Think
from unbroken_cli.live import REPLACEMENT_NOTE, LiveScreen
from unbroken_cli.printed_turn import PrintedTurn, rows_above
from unbroken_cli.terminal_text import retrying
from unbroken_cli.timeline import Timeline, Watch
from unbroken_testing import Cut, ScriptedServer, run_virtual, serve
from unbroken_wires.messages import Message, ToolCall


@tool(effect="read")
async def look(at: int, seconds: float = 0.0) -> str:
    """Look there."""
    await asyncio.sleep(seconds)
    return f"seen {at}"


@tool
async def put(at: int) -> str:
    """Put it there."""
    return f"put {at}"


def played(*script: Answer) -> tuple[Result, list[Event]]:
    events: list[Event] = []
    agent = Agent(RetryingModel(ScriptedModel(*script)), [look, put], sinks=[events.append])
    return run_virtual(agent.run("Look.")), events


async def as_stream(events: Sequence[Event]) -> AsyncIterator[Event]:
    for event in events:
        yield event


BROKEN: tuple[Answer, ...] = (
    [Think("Hm. "), Say("Let me look. It is beh"), Call("look", at=1), Call("look", at=2), Break()],
    [Think("So. "), Say("I will see. "), Call("look", at=1), Call("put", at=3)],
    "Done.",
)
"""Two reads start; one is repeated, and the id of the other is reused for a write."""


# Sentences


def spoken(*script: Answer) -> list[str]:
    _, events = played(*script)

    async def speak() -> list[str]:
        return [sentence async for sentence in sentences(as_stream(events))]

    return asyncio.run(speak())


def test_sentences_of_a_different_retry_follow_as_a_paragraph_without_the_half_sentence() -> None:
    assert spoken(*BROKEN) == ["Let me look. ", "\n\nI will see. ", "Done."]


def test_nothing_is_repeated_if_the_retry_begins_with_what_was_yielded() -> None:
    assert spoken([Say("One. Two th"), Break()], "One. Three.") == ["One. ", "Three."]


def test_an_answer_that_yielded_nothing_is_replaced_without_a_trace() -> None:
    assert spoken([Say("Half a sen"), Break()], "Another one. Yes.") == ["Another one. ", "Yes."]


def test_a_half_sentence_that_a_shorter_retry_lacks_is_not_yielded() -> None:
    assert spoken([Say("One. Two th"), Break()], "One. ") == ["One. "]


def test_an_existing_paragraph_break_is_not_repeated() -> None:
    assert spoken([Say("One.\n\nTwo. Th"), Break()], "Else.") == ["One.\n", "\nTwo. ", "\n\nElse."]
    assert spoken([Say("One.\nTw"), Break()], "Else.") == ["One.\n", "\nElse."]


def test_white_space_of_the_previous_turn_is_not_part_of_this_one() -> None:
    script = ([Say("Look.\n\n"), Call("look", at=1)], [Say("One. Two th"), Break()], "One. Three.")
    assert spoken(*script) == ["Look.\n", "\nOne. ", "Three."]


def test_code_that_broke_off_does_not_swallow_the_retry() -> None:
    assert spoken([Say("See:\n```\nx = 1\n"), Break()], "No code. Sorry.") == ["See:\n", "\nNo code. ", "Sorry."]


# Collected


def test_collect_has_the_final_answer_and_each_call_once() -> None:
    result, events = played(*BROKEN)
    collected = Collected.of(events)
    assert (collected.texts, collected.thoughts) == (["I will see. ", "Done."], ["I will see. "])
    assert (collected.text, collected.reasoning) == ("Done.", "So. ")
    assert [(call.name, call.arguments, call.text) for call in collected.calls] == [
        ("look", {"at": 1}, "seen 1"),
        ("put", {"at": 3}, "put 3"),
    ]
    assert [(call.early, call.adopted is not None) for call in collected.calls] == [(True, True), (False, False)]
    assert [(call.name, call.arguments) for call in collected.dropped] == [("look", {"at": 2})]
    assert [retry.kind for retry in collected.retries] == ["lost"]
    assert (collected.complete, collected.fallback_used, collected.attempts) == (True, True, 3)
    assert [verdict["kind"] for verdict in collected.verdicts] == ["lost"]
    assert result.text == collected.text


def test_reasoning_of_earlier_turns_is_not_replaced() -> None:
    _, events = played(
        [Think("First. "), Call("look", at=1)], [Think("Sec"), Say("A"), Break()], [Think("Other."), Say("B")]
    )
    assert Collected.of(events).reasoning == "First. \n\nOther."


def test_a_run_that_was_left_after_a_replacement_has_the_new_text() -> None:
    _, events = played([Say("Half an ans"), Break()], "Whole.")
    kinds = [type(event).__name__ for event in events]
    assert Collected.of(events[: kinds.index("TextReplaced") + 1]).text == "Whole."


# The UI message stream


def chunks_of(events: Sequence[Event]) -> list[dict[str, Any]]:
    async def read() -> list[str]:
        return [line async for line in ui_messages(as_stream(events))]

    return [json.loads(line.removeprefix("data: ")) for line in asyncio.run(read())[:-1]]


def as_posted(chunks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts of the message that the AI SDK builds from the chunks, and posts with the next question."""
    parts: list[dict[str, Any]] = []
    open_parts: dict[str, dict[str, Any]] = {}
    calls: dict[str, dict[str, Any]] = {}
    for chunk in chunks:
        kind = chunk["type"]
        if kind == "start-step":
            parts.append({"type": "step-start"})
            calls.clear()
        elif kind in ("text-start", "reasoning-start"):
            open_parts[chunk["id"]] = {"type": kind.removesuffix("-start"), "text": ""}
            parts.append(open_parts[chunk["id"]])
        elif kind in ("text-delta", "reasoning-delta"):
            open_parts[chunk["id"]]["text"] += chunk["delta"]
        elif kind in ("text-end", "reasoning-end"):
            del open_parts[chunk["id"]]
        elif kind == "tool-input-available":
            assert chunk["toolCallId"] not in calls
            part = {"type": f"tool-{chunk['toolName']}", "toolCallId": chunk["toolCallId"], "input": chunk["input"]}
            calls[chunk["toolCallId"]] = part
            parts.append(part)
        elif kind == "tool-output-available":
            calls[chunk["toolCallId"]] |= {"state": "output-available", "output": chunk["output"]}
        elif kind == "tool-output-error":
            calls[chunk["toolCallId"]] |= {"state": "output-error", "errorText": chunk["errorText"]}
        elif kind.startswith("data-") and not chunk.get("transient"):
            parts.append({"type": kind, "data": chunk["data"]})
    assert open_parts == {}
    assert all("state" in part for part in calls.values())
    return parts


def told(messages: Sequence[Message]) -> list[object]:
    """The content of messages without ids; a browser has the calls of a message in the order of their starts."""
    lines: list[object] = []
    for message in messages:
        if isinstance(message, Assistant):
            calls = sorted((call.name, json.dumps(call.arguments)) for call in message.calls)
            lines.append((message.text, message.reasoning, calls))
        elif isinstance(message, ToolMessage):
            lines.append(sorted((result.name, result.text, result.error) for result in message.results))
    return lines


def test_a_browser_gets_a_new_part_and_learns_which_one_it_replaces() -> None:
    result, events = played(*BROKEN)
    chunks = chunks_of(events)
    step = chunks[2 : [chunk["type"] for chunk in chunks].index("finish-step")]
    shown = [chunk for chunk in step if not chunk["type"].endswith(("-start", "-delta", "-end"))]
    assert [(chunk["type"], chunk.get("toolCallId")) for chunk in shown] == [
        ("tool-input-available", "call_r0c0"),
        ("tool-output-available", "call_r0c0"),
        ("tool-input-available", "call_r0c1"),
        ("data-retry", None),
        ("data-replaced", None),
        ("data-replaced", None),
        ("tool-output-error", "call_r0c1"),
        ("tool-input-available", "call_r0c1-2"),
        ("tool-output-available", "call_r0c1-2"),
        ("data-dropped", None),
    ]
    assert "connection" not in json.dumps(shown[3])
    assert (shown[4]["data"], shown[5]["data"]) == ({"part": "reasoning"}, {"part": "text"})
    assert shown[-1]["data"] == {"toolCallIds": ["call_r0c1"]}
    posted = from_ui_messages([{"role": "assistant", "parts": as_posted(chunks)}])
    assert told(posted) == told(result.messages)


def test_an_answer_that_continues_where_it_stopped_is_one_part() -> None:
    _, events = played([Say("It is "), Break()], "It is sunny.")
    parts = [part for part in as_posted(chunks_of(events)) if part["type"] != "step-start"]
    assert parts == [{"type": "text", "text": "It is sunny."}]


def test_an_approval_is_found_even_if_its_id_belonged_to_a_dropped_call() -> None:
    waits = ToolCall("a", "delete", {"path": "x"}, "", 0)
    lost: dict[str, Any] = {"type": "tool-look", "toolCallId": "a", "state": "output-error", "errorText": "Error: lost"}
    asked: dict[str, Any] = {
        "type": "tool-delete",
        "toolCallId": "a-2",
        "state": "approval-responded",
        "input": {"path": "x"},
    }
    message: dict[str, Any] = {
        "role": "assistant",
        "parts": [lost, {**asked, "approval": {"id": "a", "approved": True}}],
    }
    answers = answers_from_ui_messages([message], [waits])
    assert list(answers) == ["a"]
    assert type(answers["a"]).__name__ == "Allow"
    undecided: dict[str, Any] = {"role": "assistant", "parts": [lost, {**asked, "state": "approval-requested"}]}
    assert answers_from_ui_messages([undecided], [waits]) == {}


@pytest.mark.parametrize("data", [None, 5, [], {"part": 7}, {"toolCallIds": 5}, {"toolCallIds": [None]}])
def test_unknown_marks_of_a_browser_are_ignored(data: object) -> None:
    parts = [
        {"type": "text", "text": "Hi."},
        *({"type": f"data-{kind}", "data": data} for kind in ("replaced", "dropped")),
    ]
    assert told(from_ui_messages([{"role": "assistant", "parts": parts}])) == [("Hi.", "", [])]


# Any break


Wanted = tuple[str, int, float, int]
"""A call of a script: its tool, where, how long a look takes, and the number in its id."""

wanted_calls = st.lists(
    st.tuples(
        st.sampled_from(["look", "look", "put"]),
        st.integers(0, 2),
        st.sampled_from([0.0, 1.0, 5.0]),
        st.integers(0, 3),
    ),
    max_size=4,
    unique_by=lambda wanted: wanted[3],
)


def answer_of(text: str, wanted: Sequence[Wanted], *end: Break) -> list[Say | Call | Break]:
    calls = [
        Call(name, {"at": at, "seconds": seconds} if name == "look" else {"at": at}, id=f"c{id}", over=0.5)
        for name, at, seconds, id in wanted
    ]
    return [Say(text), *calls, *end]


@given(
    breaks=st.lists(
        st.tuples(st.sampled_from(["One. ", "Two. Th", "One. Two."]), wanted_calls), min_size=1, max_size=2
    ),
    text=st.sampled_from(["One. Two. ", "Else. "]),
    last=wanted_calls,
)
def test_whatever_breaks_every_reader_ends_with_what_the_history_has(
    breaks: list[tuple[str, list[Wanted]]], text: str, last: list[Wanted]
) -> None:
    broken = [answer_of(said, wanted, Break()) for said, wanted in breaks]
    result, events = played(*broken, answer_of(text, last), "Done.")
    collected = Collected.of(events)
    assert collected.texts == [message.text for message in result.messages if isinstance(message, Assistant)]
    assert [(call.id, call.name, call.arguments, call.text) for call in collected.calls] == [
        (record.id, record.name, record.arguments, record.result.text) for record in result.calls
    ]
    posted = from_ui_messages([{"role": "assistant", "parts": as_posted(chunks_of(events))}])
    assert told(posted) == told(result.messages)
    lines = without_colours(drawn(events, width=120, height=50)).splitlines()
    for record in result.calls:
        assert any(line[:1] in "✔=" and record.name in line and record.result.text in line for line in lines)


# A terminal


def drawn(events: Sequence[Event], width: int = 60, height: int = 20) -> str:
    """What a terminal is sent."""
    console = Console(force_terminal=True, width=width, height=height, highlight=False, color_system=None)
    screen = LiveScreen(console, can_ask=False)
    with console.capture() as capture:
        for event in events:
            screen.show(event)
        screen.close()
    return capture.get()


def without_colours(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def at(server: ScriptedServer) -> list[str]:
    return ["--model", "openai:scripted", "--base-url", server.base_url()]


ERASED = re.compile(r"(?<!\x1b\[\?2026h)\r(?:\x1b\[(\d+)A)?\x1b\[J")
"""Printed text is erased."""
CLOSED = re.compile(r"\x1b\[\?2026h\r(?:\x1b\[(\d+)A)?\x1b\[J")
"""The area below it is erased."""


def test_a_terminal_redraws_replaced_text() -> None:
    with serve([Say("Half an\nans"), Break()], "Whole.") as server, Terminal("run", "Hi", *at(server)) as terminal:
        assert terminal.end() == 0
    before, _, after = terminal.seen.rpartition("Half an")
    assert "retrying…" in before  # the open paragraph is below the line that says what happened
    erased = CLOSED.search(after)
    assert erased is not None
    assert erased[1] == "1"  # from its second line
    assert "Whole." in after[erased.end() :]


def test_text_between_lines_of_tools_is_not_erased(tmp_path: Path) -> None:
    script = (
        [Say("Let me look. "), Call("weather", city="Rome"), Break()],
        [Say("So. "), Call("weather", city="Rome")],
    )
    with (
        serve(*script, "Done.") as server,
        Terminal("run", "Hi", *at(server), "--tools", write_tools(tmp_path)) as terminal,
    ):
        assert terminal.end() == 0
    assert ERASED.search(terminal.seen) is None
    assert f"{REPLACEMENT_NOTE}So." in terminal.plain
    assert terminal.plain.rstrip().splitlines()[-2] == "Done."


def test_a_terminal_shows_how_long_it_waits() -> None:
    _, events = played(Fail(RateLimited("429: slow down", status=429, retry_after=12.0)), "Whole.")
    assert "too many requests (429: slow down); retrying in 12 s…\n" in drawn(events, width=80)


@pytest.mark.parametrize(
    ("kind", "reason", "told"),
    [
        (
            "unreachable",
            "provider `openai` cannot be reached at http://127.0.0.1:9/v1: Connect call failed; check base_url",
            "the provider cannot be reached (http://127.0.0.1:9/v1: Connect call failed; check base_…); retrying…",
        ),
        ("limited", "provider `openai` answered 429: slow down", "too many requests (429: slow down); retrying…"),
        (
            "unanswered",
            "provider `openai` sent nothing within first_byte=3 s",
            "there was no answer (sent nothing within first_byte=3 s); retrying…",
        ),
        ("error", "the provider sent an error: provider `x` answered 5", None),
    ],
)
def test_a_retry_prints_nothing_twice(kind: str, reason: str, told: str | None) -> None:
    line = retrying(RequestRetried("run", 0, 0, 0.0, attempt=1, kind=kind, reason=reason))
    assert line == (told or f"the stream broke with an error ({reason}); retrying…")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", 0),
        ("abc", 0),
        ("abcdefghij", 0),  # the cursor waits at the edge
        ("abcdefghijk", 1),
        ("abcdefghij\n", 1),
        ("a\n\nb", 2),
        ("中中中中中", 0),
        ("a中中中中中", 1),  # half a character does not fit
        ("e\u0301", None),
        ("a\tb", None),
        ("👩\u200d👧", None),
        ("\U0001f1ee\U0001f1f9", None),
    ],
)
def test_rows_are_counted_as_a_terminal_wraps_them(text: str, rows: int | None) -> None:
    assert rows_above(text, 10) == rows


def test_text_that_scrolled_away_is_not_redrawn() -> None:
    _, events = played([Say("a line\n\n" * 100), Break()], "Whole.")
    shown = drawn(events)
    assert ERASED.search(shown) is None
    assert f"{REPLACEMENT_NOTE}Whole." in without_colours(shown).replace("\r", "")


def test_one_part_is_removed_and_the_others_are_kept() -> None:
    console = Console(force_terminal=True, width=40, height=20, color_system=None)
    page = PrintedTurn(console)
    with console.capture() as capture:
        page.print(RichText("said"), "text")
        page.end_line()
        page.print(RichText("a note\n"), "note")
        assert page.remove("text")
    assert not page.has("text")
    assert capture.get().endswith("\r\x1b[2A\x1b[Ja note\n")


def test_an_adopted_call_is_one_line_and_a_dropped_one_is_marked() -> None:
    _, events = played(
        [Call("look", at=1, seconds=1, over=0.1), Call("look", at=2, seconds=9, over=0.1), Break()],
        [Call("look", at=1, seconds=1, id="other"), Call("put", at=3, id="call_r0c1", over=0.1)],
        "Done.",
    )
    lines = [
        line for line in without_colours(drawn(events, width=120)).splitlines() if line[:1] in "✔✘–" and "(" in line
    ]
    assert [line.split(")")[0] for line in lines][-3:] == [
        "✔ look(at=1, seconds=1",
        "– look(at=2, seconds=9",
        "✔ put(at=3",
    ]


# A pipe


def test_in_a_pipe_the_retry_is_on_standard_error_and_only_the_answer_on_standard_output(tmp_path: Path) -> None:
    script = (
        [Say("Let me look. "), Call("weather", city="Rome"), Break()],
        [Say("So. "), Call("weather", city="Rome")],
    )
    with serve(*script, "Done.") as server:
        done = in_pipe("run", "Hi", *at(server), "--tools", write_tools(tmp_path))
    assert (done.returncode, done.stdout) == (0, "Done.\n")
    told = done.stderr.splitlines()
    assert any(re.fullmatch(r"retry: the stream broke \(.*\); retrying…", line) for line in told)
    assert "thought: So." in told
    assert any(re.fullmatch(r"reused: weather \d\.\d\d s: Rome: sunny", line) for line in told)


def test_json_lines_are_the_events_as_they_are() -> None:
    with serve([Say("Half an ans"), Break()], "Whole.") as server:
        done = invoke("run", "Hi", *at(server), "--json")
    collected = Collected.of([event_from_json(json.loads(line)) for line in done.stdout.splitlines()])
    assert (collected.text, [retry.kind for retry in collected.retries]) == ("Whole.", ["lost"])
    assert '"event":"text_replaced"' in done.stdout


def test_a_run_that_fails_after_a_replacement_reports_its_latest_text() -> None:
    with serve([Say("Half an ans"), Break()], [Say("Whole."), Break()]) as server:
        done = in_pipe("run", "Hi", *at(server), "--attempts", "2")
    assert (done.returncode, done.stdout) == (3, "")
    assert "broke off, at 2 tries" in done.stderr.splitlines()[-1]
    assert "text so far: Half an ans" in done.stderr


# Options


def test_one_attempt_means_one_request() -> None:
    with serve(Fail(ProviderError("overloaded", status=500)), "Never.") as server:
        done = invoke("run", "Hi", *at(server), "--attempts", "1")
        assert len(server.bodies) == 1
    assert (done.exit_code, done.stdout, "retry:" in done.stderr) == (3, "", False)


def test_zero_attempts_are_refused() -> None:
    done = invoke("run", "Hi", "--model", "openai:x", "--base-url", "http://127.0.0.1:9", "--attempts", "0")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--attempts 0: give a number from 1" in done.stderr


def test_another_model_continues_where_the_first_failed() -> None:
    failing = Fail(ProviderError("overloaded", status=500))
    with serve(failing) as first, serve("From the other.") as second:
        variables = {"OPENAI_BASE_URL": second.base_url(), "OPENAI_API_KEY": "sk-other"}
        options = ("--model", "deepseek:x", "--base-url", first.base_url(), "--attempts", "1")
        done = invoke("run", "Hi", *options, "--fallback", "openai:y", env=variables)
        assert [request.model for request in second.requests] == ["y"]
    assert (done.exit_code, done.stdout) == (0, "From the other.\n")


def test_a_raw_log_can_be_decoded(tmp_path: Path) -> None:
    file = tmp_path / "raw.jsonl"
    with serve([Say("Half an ans"), Break()], "Whole.") as server:
        assert invoke("run", "Hi", *at(server), "--raw-log", str(file)).exit_code == 0
    decoded = invoke("decode", str(file)).stdout
    assert "broken: lost" in decoded
    assert "text: Whole." in decoded


def test_a_raw_log_that_cannot_be_written_gives_one_clear_line(tmp_path: Path) -> None:
    options = (
        "--model",
        "openai:x",
        "--base-url",
        "http://127.0.0.1:9",
        "--raw-log",
        str(tmp_path / "no" / "raw.jsonl"),
    )
    done = invoke("run", "Hi", *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"unbroken: --raw-log {tmp_path}")
    assert len(done.stderr.splitlines()) == 1


# The timeline


def test_an_adopted_call_is_one_line_of_the_picture() -> None:
    watch = Watch()
    model = ScriptedModel(
        [Call("look", at=1, seconds=2, over=0.5), Call("look", at=2, seconds=9, over=0.5), Break()],
        [Call("look", at=1, seconds=2, id="other"), Call("put", at=3, id="call_r0c1")],
        "Done.",
    )
    run_virtual(Agent(RetryingModel(model), [look, put], middleware=[watch]).run("Look."))
    lost, kept, put_there = watch.turns(watch.view.ended or 0.0)[0].calls
    assert lost.arguments is not None
    assert (json.loads(lost.arguments.text)["at"], lost.error) == (2, True)
    assert (kept.id, kept.early, kept.error, round((kept.ended or 0) - (kept.started or 0), 3)) == (
        "other",
        True,
        False,
        2.0,
    )
    assert (put_there.name, put_there.error) == ("put", False)
    lines = [line.plain for line in Timeline(watch).lines(80)]
    assert "╳" in lines[1]
    assert [line.split()[0] for line in lines] == ["EAGER", "round", "look", "look", "put", "answer"]


def test_waiting_for_a_retry_is_not_shown_as_time_in_which_the_model_writes() -> None:
    watch = Watch()
    limited = Fail(RateLimited("slow down", status=429, retry_after=2.0))
    model = RetryingModel(ScriptedModel(limited, [Say("Done.", chunks=5, over=1.0)]))
    run_virtual(Agent(model, middleware=[watch]).run("Hi"))
    answer = Timeline(watch).lines(80)[1].plain
    assert re.fullmatch(r"answer +─╳ {20,}─+ +3\.00 s", answer)


def test_incomplete_calls_break_nothing() -> None:
    _, events = played([Call("look", at=1), Cut("look", '{"at": '), Break()], [Call("look", at=1)], "Done.")
    finished = [event for event in events if isinstance(event, CallFinished)]
    assert [event.text for event in finished][-1] == "seen 1"
    assert [call.text for call in Collected.of(events).calls] == ["seen 1"]


def test_a_retry_with_another_model_mentions_it() -> None:
    failed = RequestRetried("r", 0, 3, 0.0, 1, "unavailable", "busy", 0.0, "a:x", True)
    assert retrying(failed) == "the provider is not available (busy); trying another model…"
