"""`unbroken run`: what is printed where, in a pipe, on a terminal and as JSON; and how it ends."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import SUPPORT
from terminals import COMMAND, Terminal, environment, in_pipe, invoke, write_tools

from unbroken.errors import ProviderError
from unbroken.events import event_from_json
from unbroken_testing import Break, Call, Fail, Say, ScriptedServer, Think, Uses, serve
from unbroken_wires.messages import Media

MODEL = ("--model", "openai:scripted")
LONG = " ".join(f"word{number}" for number in range(600))
COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7]|38)[;m]")


def at(server: ScriptedServer) -> list[str]:
    return [*MODEL, "--base-url", server.base_url()]


def two_rounds() -> list[list[Any]]:
    return [
        [Say("Let me look."), Call("weather", city="Rome"), Call("fail", reason="no luck"), Uses(10, 5)],
        [Say("It is sunny.\n\nGood bye."), Uses(20, 7)],
    ]


# In a pipe


def test_standard_output_has_the_answer_and_nothing_else(tmp_path: Path) -> None:
    with serve(*two_rounds()) as server:
        done = in_pipe("run", "Rome?", *at(server), "--tools", write_tools(tmp_path))
    assert (done.returncode, done.stdout) == (0, "It is sunny.\n\nGood bye.\n")
    told = done.stderr.splitlines()
    assert 'call: weather(city="Rome")' in told
    assert "thought: Let me look." in told
    assert "a tool prints this" in told
    assert any(re.fullmatch(r"done: weather \d\.\d\d s: Rome: sunny", line) for line in told)
    assert any(line.startswith("failed: fail ") and line.endswith("Error: no luck") for line in told)
    assert re.fullmatch(r"end: answered · 1 round, 2 calls · 30 tokens in, 12 out · \d\.\d\d s", told[-1])
    assert "\x1b" not in done.stdout + done.stderr


def test_undeclared_tools_that_cost_time_are_named_after_the_answer(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\nfrom unbroken import tool\n\n"
        "@tool\ndef wait(n: int) -> str:\n    'Wait.'\n    time.sleep(0.6)\n    return 'waited'\n"
    )
    with serve([Call("wait", n=1), Call("wait", n=2)], "Done.") as server:
        done = in_pipe("run", "Wait.", *at(server), "--tools", str(tmp_path / "slow.py"))
    assert done.stdout == "Done.\n"
    assert re.search(r"^hint: 2 calls of `wait` ran one after another", done.stderr, re.MULTILINE)


def test_json_prints_every_event_on_a_line(tmp_path: Path) -> None:
    with serve(*two_rounds()) as server:
        done = invoke("run", "Rome?", *at(server), "--tools", write_tools(tmp_path), "--json")
    events = [event_from_json(json.loads(line)) for line in done.stdout.splitlines()]
    assert [event.seq for event in events] == list(range(len(events)))
    names = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert (names[0], names[-1], names.count("call_finished")) == ("run_started", "run_finished", 2)
    assert done.exit_code == 0


def test_the_prompt_can_be_read_from_standard_input() -> None:
    with serve("Hello.") as server:
        done = invoke("run", "-", *at(server), stdin="What is\nthis?\n")
        assert done.stdout == "Hello.\n"
        assert server.bodies[0]["messages"][-1]["content"] == "What is\nthis?\n"


def test_the_model_can_be_named_by_a_variable() -> None:
    with serve("Hello.") as server:
        variables = {"UNBROKEN_MODEL": "openai:from-the-environment", "KEY": "sk-of-mine"}
        options = ("--base-url", server.base_url(), "--api-key-env", "KEY")
        assert invoke("run", "Hi", *options, env=variables).exit_code == 0
        assert server.requests[0].model == "from-the-environment"
        assert server.headers[0]["authorization"] == "Bearer sk-of-mine"


@pytest.mark.parametrize(
    ("provider", "wire"),
    [
        ("openai", "openai-chat"),
        ("openai", "openai-responses"),
        ("anthropic", "anthropic-messages"),
        ("gemini", "gemini"),
    ],
)
def test_every_wire_works(provider: str, wire: str, tmp_path: Path) -> None:
    with serve(*two_rounds()) as server:
        options = ("--model", f"{provider}:x", "--base-url", server.base_url(wire), "--wire", wire)
        done = invoke("run", "Rome?", *options, "--tools", write_tools(tmp_path))
        assert (done.exit_code, done.stdout) == (0, "It is sunny.\n\nGood bye.\n")
        assert server.wires == [wire, wire]


def test_options_reach_the_request(tmp_path: Path) -> None:
    image, words = tmp_path / "a.png", tmp_path / "words.txt"
    image.write_bytes(b"\x89PNG")
    words.write_text("Be brief.", "utf-8")
    with serve([Call("todo_write", todos=[])], "Hello.") as server:
        options = ("--image", str(image), "--instructions", f"@{words}", "--one-call", "--todo", "--no-stream")
        done = invoke("run", "Hi", *at(server), *options, "--schedule", "sequential", "--rounds", "3")
        assert (done.exit_code, done.stdout) == (0, "Hello.\n")
        request = server.requests[0]
    assert [tool.name for tool in request.tools] == ["todo_write"]
    assert (request.stream, request.parallel) == (False, False)
    assert any(isinstance(part, Media) for part in request.messages[-1].parts)  # type: ignore[union-attr] - a user's
    assert server.bodies[0]["messages"][0]["content"].startswith("Be brief.")
    assert "at most 3 replies" in server.bodies[0]["messages"][0]["content"]


def test_tools_can_come_from_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tools(tmp_path)
    (tmp_path / "tools.py").rename(tmp_path / "my_cli_tools.py")
    monkeypatch.chdir(tmp_path)
    with serve([Call("weather", city="Oslo")], "Sunny.") as server:
        done = invoke("run", "Hi", *at(server), "--tools", "my_cli_tools")
    assert (done.exit_code, "Oslo: sunny" in done.stderr) == (0, True)


def test_tools_can_come_from_an_mcp_server() -> None:
    pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")
    program = f"{sys.executable} {SUPPORT.joinpath('mcp_server.py')}"
    with serve([Call("greet", name="Ada")], "Greeted.") as server:
        done = in_pipe("run", "Hi", *at(server), "--mcp", program)
    assert (done.returncode, done.stdout, "Hello, Ada." in done.stderr) == (0, "Greeted.\n", True)


def test_a_module_that_exits_gives_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_that_exits.py").write_text("import sys\nsys.exit()\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    done = invoke("run", "Hi", *MODEL, "--base-url", "http://127.0.0.1:9", "--tools", "module_that_exits")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--tools module_that_exits: importing this module failed: SystemExit; give the path" in done.stderr


def test_a_timeline_on_request_is_not_a_part_of_the_answer(tmp_path: Path) -> None:
    with serve([Call("weather", city="Rome")], "Sunny.") as server:
        done = invoke("run", "Hi", *at(server), "--tools", write_tools(tmp_path), "--timeline")
    assert done.stdout == "Sunny.\n"
    assert "\nround 1 " in done.stderr
    assert "  weather Rome" in done.stderr


# Closed streams


def redirected(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = f"{shlex.join([*COMMAND, *arguments])} {redirection}"
    return subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, timeout=30, env=environment()
    )


@pytest.mark.parametrize("json_too", [[], ["--json"]], ids=["plain", "json"])
def test_a_closed_standard_output_is_reported_before_any_request(json_too: list[str]) -> None:
    with serve("Fine.") as server:
        done = redirected(">&-", "run", "Hi", *at(server), *json_too)
        assert not server.requests
    assert done.returncode == 2
    assert done.stderr == "unbroken: standard output is closed; if you do not need it, redirect it to /dev/null\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("json_too", [[], ["--json"]], ids=["plain", "json"])
def test_a_full_disk_gives_one_clear_line(json_too: list[str]) -> None:
    with serve("Fine.") as server:
        done = redirected("> /dev/full", "run", "Hi", *at(server), *json_too)
    assert (done.returncode, done.stderr) == (
        2,
        "unbroken: standard output cannot be written to: No space left on device\n",
    )


def test_with_a_closed_standard_error_the_answer_is_still_printed(tmp_path: Path) -> None:
    with serve(*two_rounds()) as server:
        done = redirected("2>&-", "run", "Rome?", *at(server), "--tools", write_tools(tmp_path))
    assert (done.returncode, done.stdout) == (0, "It is sunny.\n\nGood bye.\n")


# How it ends


NO_ANSWER = "The run ended (round_limit) before the model gave an answer.\n"


@pytest.mark.parametrize(
    ("script", "options", "code", "answer"),
    [
        (["Fine."], [], 0, "Fine.\n"),
        ([Fail(ProviderError("overloaded", status=500))], [], 3, ""),
        ([[Say("Half an"), Break()]], [], 3, ""),
        ([[Call("weather", city="Rome")], "So far so good."], ["--rounds", "1"], 0, "So far so good.\n"),
        ([[Call("weather", city="Rome")], "So far so good."], ["--calls", "1"], 0, "So far so good.\n"),
        ([[Call("weather", city="Rome")], *[[Call("weather", city="Oslo")]] * 3], ["--rounds", "1"], 4, NO_ANSWER),
        ([[Call("pick")]], [], 5, ""),
    ],
    ids=["answered", "provider failed", "broken off", "round limit", "call limit", "no answer", "waiting"],
)
def test_the_exit_code_shows_how_it_ended(
    script: list[Any], options: list[str], code: int, answer: str, tmp_path: Path
) -> None:
    with serve(*script) as server:
        done = invoke("run", "Hi", *at(server), "--tools", write_tools(tmp_path), *options)
    assert (done.exit_code, done.stdout) == (code, answer)
    assert "Traceback" not in done.stderr


def test_the_exit_codes_are_documented() -> None:
    shown = " ".join(invoke("run", "--help").stdout.split())
    assert "Exit codes: 0 answered, also at a limit; 2 wrong use" in shown
    assert "130 interrupted" in shown


def test_text_before_a_failure_is_reported() -> None:
    with serve([Say("Half an answer"), Break()]) as server:
        done = invoke("run", "Hi", *at(server))
    assert "text so far: Half an answer" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("unbroken: ")


def test_an_interrupt_ends_the_run_with_every_call_answered(tmp_path: Path) -> None:
    with serve([Call("weather", city="Rome"), Call("hang"), Call("hang", seconds=61)]) as server:
        # In parallel: else the second `hang` would start when the first has timed out.
        options = ["--tools", write_tools(tmp_path), "--schedule", "parallel", "--json"]
        command = [*COMMAND, "run", "Hi", *at(server), *options]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            lines: list[str] = []
            while sum('"call_started"' in line for line in lines) < 3:
                lines.append(process.stdout.readline())
                assert lines[-1], f"it ended: {lines}"
            process.send_signal(signal.SIGINT)
            # Not `communicate`: it would pass by what `readline` has read ahead.
            rest, told = process.stdout.read(), process.stderr.read()
    events = [json.loads(line) for line in [*lines, *rest.splitlines()]]
    started = {event["call_id"] for event in events if event["event"] == "call_started"}
    finished = [event["call_id"] for event in events if event["event"] == "call_finished"]
    assert sorted(finished) == sorted(started)
    assert (events[-1]["event"], events[-1]["error"]) == ("run_failed", "CancelledError")
    assert (process.returncode, told) == (130, "a tool prints this\nunbroken: interrupted\n")


def test_the_demo_model_needs_no_key(tmp_path: Path) -> None:
    tools = tmp_path / "tools.py"
    tools.write_text("from unbroken import tool\n\n@tool\ndef weather(city: str) -> str:\n    return city\n")
    done = in_pipe("run", "Hello", "--model", "demo", "--tools", str(tools), "--timeline")
    assert done.returncode == 0
    assert done.stdout.startswith("I have all the results: ")
    assert done.stderr.count("\ncall: ") + done.stderr.startswith("call: ") == 3
    assert "the call is being written" in done.stderr


# Wrong use


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nope:x"], "there is no provider `nope`"),
        (["--model", "gpt-5"], "write provider:model, for example openai:gpt-5"),
        ([], "no model was given; use --model PROVIDER:MODEL"),
        (["--model", "openai:gpt-5"], "set OPENAI_API_KEY or name a variable that holds one with --api-key-env"),
        (
            ["--model", "openai:gpt-5", "--api-key-env", "NOT_SET_ANYWHERE"],
            "NOT_SET_ANYWHERE: that variable is not set",
        ),
        ([*MODEL, "--base-url", "http://127.0.0.1:9", "--schedule", "fast"], "there are: sequential, parallel, eager"),
        ([*MODEL, "--base-url", "http://127.0.0.1:9", "--wire", "soap"], "there is no wire 'soap'"),
        ([*MODEL, "--base-url", "http://127.0.0.1:9", "--rounds", "-1"], "--rounds -1: a limit is 0 or more"),
        ([*MODEL, "--base-url", "http://127.0.0.1:9", "--seconds", "nan"], "--seconds nan: a limit is 0 or more"),
        ([*MODEL, "--base-url", "http://127.0.0.1:9", "--image", "no.png"], "--image no.png cannot be read"),
        ([*MODEL, "--base-url", "http://127.0.0.1:9", "--image", "/"], "--image / cannot be read: it is a folder"),
        (
            [*MODEL, "--base-url", "http://127.0.0.1:9", "--image", __file__],
            "text/x-python is not an image; give a file whose name ends in .png",
        ),
        ([*MODEL, "--base-url", "http://127.0.0.1:9", "--instructions", "@no.txt"], "the file cannot be read"),
        ([*MODEL, "--base-url", "http://127.0.0.1:9", "--tools", "no/such.py"], "no/such.py is no file"),
        ([*MODEL, "--base-url", "http://127.0.0.1:9", "--tools", "no_such_module"], "importing this module failed"),
        ([*MODEL, "--base-url", "http://127.0.0.1:9", "--mcp", "no-such-program"], "was not found; install it"),
        ([*MODEL, "--base-url", "http://127.0.0.1:9", "--mcp", "'open"], "No closing quotation"),
        ([*MODEL, "--json", "--timeline"], "choose one of them"),
    ],
)
def test_wrong_use_gives_one_clear_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = invoke("run", "Hi", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(): pass", "has no tools; mark its functions with @tool"),
        ("def f(:", ":1: invalid syntax"),
        ("1 / 0", "ZeroDivisionError"),
        (
            "import threading\nfrom unbroken import tool\n@tool\ndef f(x: threading.Thread) -> str:\n    return ''",
            "parameter `x` has the type `Thread`, which cannot become a JSON Schema",
        ),
    ],
    ids=["no tools", "syntax error", "it raises", "no schema"],
)
def test_a_file_without_tools_gives_one_clear_line(source: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source, "utf-8")
    done = invoke("run", "Hi", *MODEL, "--base-url", "http://127.0.0.1:9", "--tools", str(file))
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert "mine.py" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_two_tools_with_one_name_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("from unbroken import tool\n@tool\ndef weather() -> str:\n    return ''", "utf-8")
    files = ("--tools", write_tools(tmp_path), "--tools", str(other))
    done = invoke("run", "Hi", *MODEL, "--base-url", "http://127.0.0.1:9", *files)
    assert (done.exit_code, "two tools are called `weather`" in done.stderr) == (2, True)


def test_a_wrong_key_is_reported_with_its_variable_and_never_shown() -> None:
    with serve("Hello.", api_key="sk-right-0123456789") as server:
        done = invoke("run", "Hi", *at(server), "--api-key-env", "MY_KEY", env={"MY_KEY": "sk-wrong-0123456789"})
    assert done.exit_code == 2
    assert "answered 401" in done.stderr
    assert "check MY_KEY and its permissions" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "sk-wrong" not in done.output


def test_a_model_that_does_not_exist_is_reported() -> None:
    with serve("Hello.", models=["another"]) as server:
        done = invoke("run", "Hi", *at(server))
    assert done.exit_code == 2
    assert "check the name of model `scripted`" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_debug_shows_the_traceback_and_what_happened(tmp_path: Path) -> None:
    with serve([Call("weather", city="Rome")], Fail(ProviderError("overloaded", status=500))) as server:
        done = in_pipe("run", "Hi", *at(server), "--tools", write_tools(tmp_path), "--debug")
    assert done.returncode == 3
    assert "Traceback (most recent call last)" in done.stderr
    assert "INFO unbroken.tools: Detected 1 tool call in single response" in done.stderr


# Approval


@pytest.mark.parametrize(("options", "told"), [([], "needs an approval"), (["--yes"], "deleted a.txt")])
def test_in_a_pipe_nothing_is_approved_without_yes(options: list[str], told: str, tmp_path: Path) -> None:
    with serve([Call("delete", path="a.txt")], "Done.") as server:
        invoke("run", "Hi", *at(server), "--tools", write_tools(tmp_path), *options)
        assert told in server.bodies[1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["y"], "deleted a.txt"),
        (["n"], "not executed: denied"),
        (["it is mine"], "not executed: denied: it is mine"),
        (["e", '{"path": "b.txt"}', "y"], "deleted b.txt"),
        (["e", '{"path": "b.txt"}', "n"], "not executed: denied"),
        (["e", "nonsense", "y"], "deleted a.txt"),
    ],
    ids=["yes", "no", "a reason", "edited", "edited and refused", "no JSON at first"],
)
def test_on_a_terminal_a_person_is_asked(typed: list[str], told: str, tmp_path: Path) -> None:
    with serve([Call("delete", path="a.txt")], "Done.") as server:
        with Terminal("run", "Hi", *at(server), "--tools", write_tools(tmp_path)) as terminal:
            for line in typed:
                terminal.wait_for("new: " if line.startswith(("{", "nonsense")) else "or type a reason to deny it: ")
                terminal.type(f"{line}\n")
            assert terminal.end() == 0
        assert told in str(server.bodies[1]["messages"][-1]["content"])


# On a terminal


def test_a_terminal_shows_calls_and_the_complete_answer(tmp_path: Path) -> None:
    steps = [{"content": "look", "status": "completed"}, {"content": "answer", "status": "in_progress"}]
    script = [
        [Think("Hm."), Say("Let me look."), Call("weather", city="Rome"), Call("fail", reason="[no] luck")],
        [Call("todo_write", todos=steps)],
        [Say(LONG), Uses(20, 7)],
    ]
    with (
        serve(*script) as server,
        Terminal("run", "Hi", *at(server), "--todo", "--tools", write_tools(tmp_path)) as terminal,
    ):
        assert terminal.end() == 0
    lines = terminal.plain.splitlines()
    assert COLOUR.search(terminal.seen)
    assert any(re.match(r'✔ weather\(city="Rome"\) .* early  Rome: sunny', line) for line in lines)
    assert any(re.match(r'✘ fail\(reason="\[no\] luck"\) .* Error: \[no\] luck', line) for line in lines)
    assert any("✔ look" in line for line in lines)
    words = " ".join(terminal.plain.split())  # the answer is wrapped
    assert LONG in words
    assert lines[-1].startswith("✔ answered · 2 rounds, 3 calls")
    assert words.index("Hm.") < words.index("Let ") < words.index(LONG)


def test_a_terminal_shows_the_arguments_of_a_call_that_is_refused(tmp_path: Path) -> None:
    script = [[Call("weather", town="Rome"), Call("wether", city="Oslo")], "Done."]
    with serve(*script) as server, Terminal("run", "Hi", *at(server), "--tools", write_tools(tmp_path)) as terminal:
        assert terminal.end() == 0
    assert '– weather(town="Rome") ' in terminal.plain
    assert '– wether(city="Oslo") ' in terminal.plain


def test_no_color_is_honoured(tmp_path: Path) -> None:
    with (
        serve(*two_rounds()) as server,
        Terminal("run", "Hi", *at(server), "--tools", write_tools(tmp_path), env={"NO_COLOR": "1"}) as terminal,
    ):
        assert terminal.end() == 0
    assert "✔ weather" in terminal.plain
    assert not COLOUR.search(terminal.seen)


def test_text_that_arrives_while_calls_run_is_not_lost(tmp_path: Path) -> None:
    script = [[Call("weather", city="Rome"), Say("And while it runs,\nI go on talking.")], "Good."]
    with (
        serve(*script) as server,
        Terminal("run", "Hi", *at(server), "--tools", write_tools(tmp_path)) as terminal,
    ):
        assert terminal.end() == 0
    assert "And while it runs,\nI go on talking.\n" in terminal.plain


def test_control_characters_do_not_reach_the_terminal() -> None:
    with serve("a\x1b[2Jb") as server, Terminal("run", "Hi", *at(server)) as terminal:
        assert terminal.end() == 0
    assert "a␛[2Jb" in terminal.plain


def test_ctrl_c_on_a_terminal_ends_with_one_line(tmp_path: Path) -> None:
    with (
        serve([Call("hang")]) as server,
        Terminal("run", "Hi", *at(server), "--tools", write_tools(tmp_path)) as terminal,
    ):
        terminal.wait_for("hang(")
        terminal.interrupt()
        assert terminal.end() == 130
    lines = terminal.plain.splitlines()
    assert lines[-1] == "unbroken: interrupted"
    assert any(re.match(r"✘ hang\(\) .*Error: cancelled: the run was cancelled", line) for line in lines)


def test_ctrl_c_at_a_question_answers_the_call_and_ends(tmp_path: Path) -> None:
    with (
        serve([Call("delete", path="a.txt")]) as server,
        Terminal("run", "Hi", *at(server), "--tools", write_tools(tmp_path)) as terminal,
    ):
        terminal.wait_for("or type a reason to deny it: ")
        terminal.interrupt()
        assert terminal.end() == 130
    lines = terminal.plain.splitlines()
    assert any(re.match(r'– delete\(path="a.txt"\) .*not executed: the run was', line) for line in lines)
    assert lines[-1] == "unbroken: interrupted"


def test_a_second_interrupt_does_not_wait_for_a_tool_that_will_not_end(tmp_path: Path) -> None:
    file = tmp_path / "stubborn.py"
    file.write_text(
        "import asyncio, sys\nfrom unbroken import tool\n@tool\nasync def stay() -> str:\n    while True:\n"
        "        try:\n            await asyncio.sleep(60)\n        except asyncio.CancelledError:\n"
        "            sys.stdout.write('no\\n')\n",
        "utf-8",
    )
    with serve([Call("stay")]) as server:
        command = [*COMMAND, "run", "Hi", *at(server), "--tools", str(file)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
            assert process.stderr is not None
            for awaited in ("call: stay()", "no"):
                while process.stderr.readline().rstrip() != awaited:
                    assert process.poll() is None
                process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
    assert (process.returncode, rest.splitlines()[-1]) == (130, "unbroken: interrupted")


def test_lines_about_calls_show_characters_that_would_hide_or_reorder_a_part(tmp_path: Path) -> None:
    city = "Rome\u202e\u200b\ufe0f\u00e9"
    with serve([Call("weather", city=city)], "Done.") as server:
        done = in_pipe("run", "Rome?", *at(server), "--tools", write_tools(tmp_path))
    told = done.stderr.splitlines()
    assert 'call: weather(city="Rome⟨U+202E⟩⟨U+200B⟩⟨U+FE0F⟩\u00e9")' in told
    assert any(line.endswith(": Rome⟨U+202E⟩⟨U+200B⟩\ufe0f\u00e9: sunny") for line in told)


def test_an_answer_keeps_the_characters_its_language_needs(tmp_path: Path) -> None:
    words = "\u200fשלום \U0001f468\u200d\U0001f469 می\u200cخواهم"
    with serve(words) as server:
        assert in_pipe("run", "Hi", *at(server)).stdout == f"{words}\n"


def test_the_singular_is_used_for_one_token() -> None:
    with serve(["Hello.", Uses(1, 1)]) as server:
        done = invoke("run", "Hi.", "--model", "openai:m", "--base-url", server.base_url())
    assert " · 1 token in, 1 out · " in done.stderr
