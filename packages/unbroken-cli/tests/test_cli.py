"""The command line, run as a user runs it: a process of its own, its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import loaded_command
import pytest
from checkout import ROOT
from terminals import in_terminal

from unbroken import __version__

STREAMS = ROOT / "examples" / "streams"


def unbroken(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return loaded_command.run(*arguments, stdin=stdin, env=os.environ)


def test_the_version_is_printed_without_loading_a_command() -> None:
    program = (
        "import sys; from unbroken_cli import main; sys.argv = ['unbroken', '--version']; main(); "
        "print(sorted({'typer', 'rich', 'pydantic', 'aiohttp'} & set(sys.modules)))"
    )
    printed = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert printed == f"unbroken {__version__}\n[]\n"


def test_python_runs_the_package_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "unbroken", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"unbroken {__version__}\n"


def test_one_command_is_loaded_without_the_others() -> None:
    program = (
        "import sys; from unbroken_cli.commands import build; build('decode'); "
        "print(sorted(name for name in sys.modules if name in ('unbroken.agent', 'unbroken.gateway', 'aiohttp')))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"


def test_a_complete_response_is_printed_plainly_in_a_pipe() -> None:
    done = unbroken("decode", str(STREAMS / "three_calls.sse"))
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()
    assert lines[1] == "wire: openai-chat"
    assert 'call: get_weather {"city": "Shanghai", "days": 3} id=call_s1 complete' in lines
    assert lines[-1] == "complete; finish: tool_calls, 212 tokens in, 61 out"
    assert b"\x1b" not in done.stdout


def test_a_broken_response_exits_with_1_and_the_reason() -> None:
    done = unbroken("decode", str(STREAMS / "cut_call_that_says_it_is_fine.sse"))
    assert done.returncode == 1
    assert "broken: cut_call: the finish reason is 'tool_calls', but" in done.stdout.decode()


def test_json_on_request() -> None:
    done = unbroken("decode", "--json", str(STREAMS / "thinking_then_two_calls.sse"))
    value = json.loads(done.stdout)
    assert [call["arguments"] for call in value["calls"]] == [{"city": "Lima"}, {"city": "Quito"}]
    assert (value["wire"], value["verdict"]["whole"], value["usage"]["output_tokens"]) == (
        "anthropic-messages",
        True,
        88,
    )


def test_colour_and_a_table_on_a_terminal() -> None:
    seen = in_terminal("decode", str(STREAMS / "three_calls.sse"))
    assert "\x1b[" in seen
    assert "arguments" in seen
    assert "✔" in seen


def test_calls_are_followed_as_they_complete() -> None:
    done = unbroken("decode", "--follow", "--chunk", "1", str(STREAMS / "three_calls.sse"))
    marks = [line[0] for line in done.stdout.decode().splitlines() if line and line[0] in "…✔✘"]
    assert marks == ["…", "✔", "…", "…", "✔", "✔"]


def test_a_leaked_call_is_recovered_for_offered_tools() -> None:
    file = str(STREAMS / "call_in_the_text.sse")
    assert b"call: get_weather" in unbroken("decode", "--tools", "get_weather", file).stdout
    assert b"call: get_weather" not in unbroken("decode", "--tools", "get_news", file).stdout
    assert b"call: get_weather" not in unbroken("decode", file).stdout


def test_a_pipe_is_followed_while_it_is_written() -> None:
    body = (STREAMS / "three_calls.sse").read_bytes()
    middle = body.index(b"jing") + 200
    command = [sys.executable, "-u", "-m", "unbroken", "decode", "--follow", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(body[:middle])
        process.stdin.flush()
        seen = b""
        while b"Beijing" not in seen:  # it comes although the rest has not been written
            seen += process.stdout.readline()
        process.stdin.write(body[middle:])
        process.stdin.close()
        rest = process.stdout.read()
    assert b"Shanghai" not in seen
    assert b"Shanghai" in rest


def test_json_and_follow_exclude_each_other() -> None:
    done = unbroken("decode", "--json", "--follow", str(STREAMS / "three_calls.sse"))
    assert (done.returncode, b"choose one of them" in done.stderr) == (2, True)


def test_a_bare_error_body_is_read_without_naming_the_wire() -> None:
    assert unbroken("decode", "-", stdin=b'{"error": {"message": "overloaded"}}').returncode == 1


def test_standard_input_is_read() -> None:
    done = unbroken("decode", "-", stdin=(STREAMS / "one_json_array.json").read_bytes())
    assert done.returncode == 0
    assert b"wire: gemini" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["no/such/file"], b"", "reading no/such/file failed: there is no such file"),
        (["."], b"", "it is a folder"),
        (["--wire", "openai", "-"], b"{}", "there is no wire 'openai'; there are: openai-chat"),
        (["-"], b"", "decoding - failed: the body is empty"),
        (["-"], b"<html>", "its wire was not recognised; name it with --wire"),
        (["--wire", "gemini", "-"], b"<html>", "the body is HTML, not a response"),
    ],
)
def test_bad_input_gives_one_clear_line_and_exit_code_2(arguments: list[str], stdin: bytes, message: str) -> None:
    done = unbroken("decode", *arguments, stdin=stdin)
    assert done.returncode == 2
    assert message in done.stderr.decode()
    assert len(done.stderr.decode().strip().splitlines()) == 1


def test_control_characters_in_a_response_do_not_reach_the_terminal() -> None:
    body = b'data: {"choices": [{"delta": {"content": "a\\u001b[2Jb"}, "finish_reason": "stop"}]}\n\n'
    for options in ([], ["--follow"]):
        assert b"\x1b[2J" not in unbroken("decode", *options, "-", stdin=body).stdout


def test_json_output_is_valid_whatever_the_numbers_are() -> None:
    chunk = b'{"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}], "usage": {"x": NaN, "y": 1e999}}'
    body = b"data: " + chunk + b"\n\n"
    assert json.loads(unbroken("decode", "--json", "-", stdin=body).stdout)["usage"]["raw"] == {"x": None, "y": None}


def test_version_is_printed() -> None:
    assert unbroken("--version").stdout.startswith(f"unbroken {__version__}\n".encode())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "Hi.", "--limit", "3"], "no such option: --limit; `unbroken run --help` lists the options"),
        (["serve", "--wokers", "2"], "no such option: --wokers"),
        (["run"], "missing argument 'PROMPT'; `unbroken run --help`"),
        (["keys", "create"], "missing argument 'NAME'; `unbroken keys create --help`"),
        (["run", "Hi.", "--rounds", "x"], "invalid value for '--rounds': "),
        (["nope"], "no such command 'nope'; `unbroken --help`"),
    ],
)
def test_a_wrong_option_gives_one_line_with_a_hint(arguments: list[str], words: str) -> None:
    done = unbroken(*arguments)
    (line,) = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout, line.startswith(f"unbroken: {words}")) == (2, b"", True), line


INTERRUPTED_AT_START = """
import sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
sys.argv = ["unbroken", "eval"]
from unbroken_cli.main import main

main()
"""


def test_ctrl_c_while_a_command_is_loaded_prints_no_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED_AT_START], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
