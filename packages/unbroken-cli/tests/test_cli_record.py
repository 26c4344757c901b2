"""`--record DIR` of `unbroken run` and `unbroken chat`: each run is a file there, and a line says which."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from terminals import Terminal, in_pipe, invoke, write_tools

from unbroken import Recorder
from unbroken.errors import ProviderError, UserError
from unbroken.events import RunFailed, RunFinished, event_from_json
from unbroken.trajectory.recording import list_recordings, read_recording
from unbroken_testing import Call, Fail, Say, ScriptedServer, serve
from unbroken_wires.wires.jsontext import loads


def at(server: ScriptedServer) -> list[str]:
    return ["--model", "openai:scripted", "--base-url", server.base_url()]


def test_a_run_is_recorded_and_standard_error_names_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    with serve([Say("Let me look."), Call("weather", city="Rome")], "It is sunny.") as server:
        done = in_pipe("run", "Rome?", *at(server), "--tools", write_tools(tmp_path), "--record", str(folder))
    assert (done.returncode, done.stdout) == (0, "It is sunny.\n")
    (file,) = folder.iterdir()
    assert done.stderr.splitlines()[-1] == f"recorded in {file}"
    assert "\x1b" not in done.stderr
    recording = read_recording(file)
    assert (recording.agent_name, recording.model, len(recording.requests)) == ("main", "openai:scripted", 2)
    assert isinstance(recording.ending, RunFinished)
    assert (recording.ending.text, recording.ending.calls) == ("It is sunny.", 1)


def test_on_a_terminal_the_line_is_dim_and_stays_one_line(tmp_path: Path) -> None:
    folder = tmp_path / ("a long name " * 10).strip()
    with serve("Hello.") as server, Terminal("run", "Hi", *at(server), "--record", str(folder)) as terminal:
        assert terminal.end() == 0
        (file,) = folder.iterdir()
        assert f"recorded in {file}" in terminal.plain
        assert re.search(r"\x1b\[2mrecorded in ", terminal.seen)


def test_with_json_standard_output_has_the_events_and_standard_error_nothing(tmp_path: Path) -> None:
    with serve("Hello.") as server:
        done = in_pipe("run", "Hi", *at(server), "--record", str(tmp_path), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = [event_from_json(loads(line.encode())) for line in done.stdout.splitlines()]
    (file,) = tmp_path.iterdir()
    recorded = read_recording(file).events
    assert [(type(event), event.seq) for event in recorded] == [(type(event), event.seq) for event in told]
    assert recorded[-1] == told[-1]


def test_a_failed_run_is_recorded_too(tmp_path: Path) -> None:
    with serve([Fail(ProviderError("no", status=403))]) as server:
        done = invoke("run", "Hi", *at(server), "--record", str(tmp_path))
    assert done.exit_code != 0
    (file,) = tmp_path.iterdir()
    where, why = done.stderr.splitlines()[-2:]
    assert where == f"recorded in {file}"
    assert why.startswith("unbroken: provider `openai`")
    assert isinstance(read_recording(file).ending, RunFailed)


def test_each_turn_of_a_chat_is_recorded_in_a_file(tmp_path: Path) -> None:
    with serve("Hello.", "Still here.") as server:
        done = in_pipe("chat", *at(server), "--record", str(tmp_path), stdin="Hi\nAnd now?\n")
    assert (done.returncode, done.stdout) == (0, "Hello.\nStill here.\n")
    summaries = sorted(list_recordings(tmp_path), key=lambda each: each.time)
    assert [(each.prompt, each.text) for each in summaries] == [("Hi", "Hello."), ("And now?", "Still here.")]
    told = [line for line in done.stderr.splitlines() if line.startswith("recorded in ")]
    assert told == [f"recorded in {each.path}" for each in summaries]
    roles = [message["role"] for message in read_recording(summaries[1].path).requests[0].messages]
    assert roles == ["user", "assistant", "user"]


@pytest.mark.parametrize("command", [("run", "Hi"), ("chat",)], ids=["run", "chat"])
def test_if_the_folder_cannot_be_created_one_line_is_printed_and_no_request_sent(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with serve("Hello.") as server:
        done = invoke(*command, *at(server), "--record", str(file / "runs"), stdin="Hi\n")
        assert server.requests == []
    assert (done.exit_code, done.stdout) == (2, "")
    assert re.fullmatch(r"unbroken: recording to \S+runs failed: [^;\n]+; name another place\n", done.stderr)


def test_a_file_instead_of_a_folder_is_called_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text("")
    for path in (file, file / "run.jsonl"):
        with pytest.raises(UserError) as refused:
            Recorder(path)
        assert str(refused.value) == (
            f"{file} is a file and no folder: name a folder, or a new file that ends in .jsonl"
        )


def test_a_run_can_be_recorded_in_a_named_file_which_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "this.jsonl"
    with serve("Hello.", "Hello.") as server:
        assert invoke("run", "Hi", *at(server), "--record", str(file)).exit_code == 0
        before = file.read_bytes()
        done = invoke("run", "Hi", *at(server), "--record", str(file))
        assert len(server.requests) == 1
    assert (done.exit_code, file.read_bytes()) == (2, before)
    assert done.stderr.startswith(f"unbroken: {file} exists already")
    assert "name another file, or a folder" in done.stderr


def test_a_chat_needs_a_folder(tmp_path: Path) -> None:
    done = invoke("chat", "--model", "openai:x", "--record", "this.jsonl", stdin="Hi\n")
    assert done.exit_code == 2
    assert done.stderr == ("unbroken: --record this.jsonl: each turn is recorded in a separate file; name a folder\n")
