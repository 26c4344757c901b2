"""`unbroken chat`: one history over many turns, that survives what happens to a turn."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import SUPPORT
from loaded_command import relayed
from terminals import PATIENCE, Terminal, environment, in_pipe, write_tools

from unbroken.errors import ProviderError
from unbroken.models.scripted import Answer
from unbroken_testing import Call, Fail, ScriptedServer, check_request, serve
from unbroken_wires.messages import Request, User


def counted(request: Request) -> Answer:
    """An answer that says how much it was told."""
    said = [message.text for message in request.messages if isinstance(message, User)]
    return f"You said: {'; '.join(said)}."


def at(server: ScriptedServer) -> list[str]:
    return ["--model", "openai:scripted", "--base-url", server.base_url()]


def test_in_a_pipe_each_line_is_a_turn() -> None:
    with serve(counted) as server:
        done = in_pipe("chat", *at(server), stdin="one\n\ntwo\n/exit\nthree\n")
    assert (done.returncode, done.stdout) == (0, "You said: one.\nYou said: one; two.\n")
    assert "\x1b" not in done.stderr


def test_a_turn_is_answered_before_the_next_line_is_written() -> None:
    with serve(counted) as server:
        command = relayed("chat", *at(server))
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"You said: one.\n"
            process.stdin.close()
            assert process.wait(timeout=PATIENCE) == 0


def test_a_saved_chat_can_be_continued(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    with serve(counted) as server:
        in_pipe("chat", *at(server), "--save", str(file), stdin="one\n")
        done = in_pipe("chat", *at(server), "--save", str(file), stdin="two\n")
        assert done.stdout == "You said: one; two.\n"
        done = in_pipe("chat", *at(server), stdin=f"/load {file}\nthree\n/save {tmp_path / 'other.json'}\n")
        assert done.stdout == "You said: one; two; three.\n"
    assert len(json.loads((tmp_path / "other.json").read_text("utf-8"))["messages"]) == 6


def test_commands_and_tools_are_listed(tmp_path: Path) -> None:
    with serve() as server:
        done = in_pipe("chat", *at(server), "--tools", write_tools(tmp_path), stdin="/help\n/tools\n")
    assert (done.returncode, done.stdout) == (0, "")
    assert "/save FILE" in done.stderr
    assert "delete                   Delete a file." in done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/nope", "there is no command /nope; /help lists the commands"),
        ("/save", "/save needs the name of a file"),
        ("/load no/such.json", "'no/such.json' cannot be loaded"),
        ("/save no/such/folder.json", "cannot be saved in no/such/folder.json"),
    ],
)
def test_a_wrong_command_gives_one_clear_line(line: str, message: str) -> None:
    done = in_pipe("chat", "--model", "openai:x", "--base-url", "http://127.0.0.1:9", stdin=f"{line}\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_in_a_pipe_a_failing_turn_ends_the_chat() -> None:
    with serve(Fail(ProviderError("overloaded", status=500)), "Never said.") as server:
        done = in_pipe("chat", *at(server), "--attempts", "1", stdin="one\ntwo\n")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines()[-1].startswith("unbroken: provider `openai` answered 500")


def test_on_a_terminal_a_failing_turn_does_not_end_the_chat() -> None:
    with (
        serve(Fail(ProviderError("overloaded", status=500)), counted) as server,
        Terminal("chat", *at(server), "--attempts", "1") as chat,
    ):
        chat.wait_for("> ")
        chat.type("one\n")
        chat.wait_for("answered 500")
        chat.type("two\n")
        chat.wait_for("You said: one; two.")
        chat.wait_for("> ")
        chat.type("\x04")
        assert chat.end() == 0


def test_ctrl_c_ends_the_turn_and_not_the_chat(tmp_path: Path) -> None:
    with (
        serve([Call("hang"), Call("weather", city="Rome")], counted) as server,
        Terminal("chat", *at(server), "--tools", write_tools(tmp_path)) as chat,
    ):
        chat.wait_for("> ")
        chat.type("one\n")
        chat.wait_for("hang(")
        chat.interrupt()
        chat.wait_for("interrupted; the conversation continues")
        chat.type("two\n")
        chat.wait_for("You said: one; two.")
        chat.type("/exit\n")
        assert chat.end() == 0
        assert check_request("openai-chat", server.bodies[1]) == []
        answered = [message["content"] for message in server.bodies[1]["messages"] if message["role"] == "tool"]
    assert len(answered) == 2
    assert answered[0] == "Error: cancelled: the run was cancelled"


def test_ctrl_c_at_the_prompt_ends_the_chat() -> None:
    with serve() as server, Terminal("chat", *at(server)) as chat:
        chat.wait_for("> ")
        chat.interrupt()
        assert chat.end() == 0
    assert "Traceback" not in chat.plain


def test_an_interrupt_in_a_pipe_ends_the_chat(tmp_path: Path) -> None:
    with serve([Call("hang")]) as server:
        command = relayed("chat", *at(server), "--tools", write_tools(tmp_path), "--json")
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            while b"call_started" not in process.stdout.readline():
                pass
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert b'"call_finished"' in rest


def test_servers_stay_open_from_turn_to_turn() -> None:
    pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")
    program = f"{sys.executable} {SUPPORT.joinpath('mcp_server.py')}"
    with serve([Call("process")], "First.", [Call("process")], "Second.") as server:
        done = in_pipe("chat", *at(server), "--mcp", program, stdin="one\ntwo\n")
        assert (done.returncode, done.stdout) == (0, "First.\nSecond.\n")
        numbers = [message["content"] for message in server.bodies[3]["messages"] if message["role"] == "tool"]
    assert len(numbers) == 2
    assert numbers[0] == numbers[1]
