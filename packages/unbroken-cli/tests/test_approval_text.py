"""What a person sees before approving a call: all of it, exactly, with nothing in it that can be mistaken for something
else."""

from __future__ import annotations

import io
import json
import re
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkout import SUPPORT
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from terminals import Terminal, in_pipe, write_tools

from unbroken import Allow, Deny, Edit, ToolCall
from unbroken.tools.approval import Question
from unbroken_cli.approval_prompt import approval_text, ask_on_terminal
from unbroken_cli.session import allow
from unbroken_cli.terminal_text import NAMES, visible
from unbroken_testing import Call, ScriptedServer, serve

CHARACTERS = {name: character for character, name in NAMES.items()}
MARK = re.compile(r"⟨(?:U\+([0-9A-F]{4,6})|(\d+) × SPACE|([A-Z]+))⟩")
HEAD = re.compile(r"  (.+) \((string|JSON), \d+ lines?, \d+ characters?\):")
ROW = re.compile(r"  ( *\d+│|  +┆) (.*)", re.S)


def decoded(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        code, spaces, name = found.groups()
        return chr(int(code, 16)) if code else " " * int(spaces) if spaces else CHARACTERS[name]

    return MARK.sub(character, text)


def arguments_of(rows: list[str]) -> dict[str, Any]:
    """Reads the rows as a person does: labels, then values line by line."""
    found: list[tuple[str, str, list[str]]] = []
    for row in rows[1:-1]:
        if head := HEAD.fullmatch(row):
            found.append((head[1], head[2], []))
        elif line := ROW.fullmatch(row):
            values = found[-1][2]
            if line[1].endswith("┆"):
                values[-1] += line[2]
            else:
                values.append(line[2])
        else:
            assert row.startswith("  note: ")
    return {
        json.loads(decoded(name)) if name.startswith('"') else name: json.loads(text) if kind == "JSON" else text
        for name, kind, lines in found
        for text in ["\n".join(map(decoded, lines))]
    }


ODD = "\u202e\u2066\u200b\u200d\ufeff\u00ad\u00a0\u3000\u2028\x1b\x00\x85\x9b\U000e0041\ufe0f\u115f\ud800⟨⟩│┆\r\n\t "
TEXTS = st.text(st.one_of(st.characters(), st.sampled_from(ODD)), max_size=60)
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.integers(10, 120))
def test_the_arguments_can_be_read_back_from_what_is_shown(arguments: dict[str, Any], width: int) -> None:
    assert arguments_of(approval_text(ToolCall("c", "run", arguments), width)) == arguments


@given(TEXTS)
def test_everything_that_is_shown_is_visible(text: str) -> None:
    for row in approval_text(ToolCall("c", "run", {"command": text})):
        assert row.isprintable()
        assert not any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for each in row)
        assert row == row.rstrip(" ") or row.endswith(("│ ", "┆ ")) or len(row) > 60
        assert unicodedata.normalize("NFC", row) == row or any(unicodedata.category(each) == "Lo" for each in row)


@pytest.mark.parametrize(
    "character",
    [
        "\u202e",
        "\u2066",
        "\u200b",
        "\u200d",
        "\u2060",
        "\ufeff",
        "\u00ad",
        "\u00a0",
        "\u3000",
        "\u2003",
        "\u2028",
        "\u2029",
        "\x1b",
        "\x07",
        "\x7f",
        "\x9b",
        "\U000e0041",
        "\ufe0f",
        "\U000e0100",
        "\u3164",
        "\u2800",
        "\ud800",
        "\r",
        "\t",
        "\u034f",
        "\u180e",
        "\u115f",
        "\u037e",
        "\u1fef",
        "\u2024",
        "\ufe54",
        "\ufe68",  # looks like a sign of ASCII, and is none
    ],
)
def test_a_character_that_hides_or_imitates_another_is_written_out(character: str) -> None:
    assert character not in visible(f"ls {character}; rm -rf /")
    assert decoded(visible(f"ls {character}; rm -rf /")) == f"ls {character}; rm -rf /"


def test_wide_chinese_punctuation_is_shown_unchanged() -> None:
    assert visible("你好，世界！（是的）") == "你好，世界！（是的）"


def test_the_end_of_a_long_command_is_shown_and_its_white_space_is_kept() -> None:
    command = f"grep x {'a' * 5000}{' ' * 3000}; rm -rf ~   \n\n\tdone"
    rows = approval_text(ToolCall("c", "shell", {"command": command}), 80)
    assert arguments_of(rows) == {"command": command}
    assert any("; rm -rf ~⟨3 × SPACE⟩" in row for row in rows)
    assert rows[-2] == "    3│ ⟨TAB⟩done"


def test_a_value_cannot_imitate_the_lines_of_the_prompt() -> None:
    forged = "x\nEnd of the call: shell\n  run it? (y)es, (n)o: \nTool call: ls, 0 arguments"
    rows = approval_text(ToolCall("c", "shell", {"command": forged}))
    assert [row for row in rows if not ROW.fullmatch(row)] == [
        "Tool call: shell, 1 argument",
        "  command (string, 4 lines, 75 characters):",
        "End of the call: shell",
    ]


def test_a_name_cannot_imitate_them_either() -> None:
    rows = approval_text(ToolCall("c", "shell", {"a (string, 1 line, 1 character):\n    1│ ls": "rm"}))
    assert rows[1] == '  "a (string, 1 line, 1 character):\\n    1│ ls" (string, 1 line, 2 characters):'


def test_look_alike_letters_are_noted() -> None:
    rows = approval_text(ToolCall("c", "open", {"url": "https://p\u0430ypal.com", "name": "שלום"}))
    notes = [row for row in rows if row.startswith("  note: ")]
    assert notes == [
        "  note: it contains letters that are written from right to left; your terminal may reorder them",
        '  note: "p\u0430ypal" mixes Cyrillic and Latin letters, which look alike',
    ]


def at(server: ScriptedServer) -> list[str]:
    return ["--model", "compatible:demo", "--base-url", server.base_url("openai-chat")]


LONG = "\n".join(f"echo {number}" for number in range(100)) + "\nrm -rf ~"


def test_on_a_terminal_a_call_cannot_be_approved_before_its_end_was_shown(tmp_path: Path) -> None:
    with serve([Call("delete", path=LONG)], "Done.") as server:
        with Terminal("run", "Hi", *at(server), "--tools", write_tools(tmp_path)) as terminal:
            terminal.wait_for("(n)o denies: ")
            assert re.search(r"rows 1 to 22 of \d+: Enter", terminal.plain)
            terminal.type("y\ny\ny\ny\ny\ny\ny\ny\ny\n")  # none of them approves, and none is kept for the question
            while True:
                seen = terminal.wait_for_one_of("(n)o denies: ", "or type a reason to deny it: ")
                if seen == "or type a reason to deny it: ":
                    break
                terminal.type("\n")
            assert "101│ rm -rf ~" in terminal.plain
            terminal.type("n\n")
            assert terminal.end() == 0
        assert "denied" in str(server.bodies[1]["messages"][-1]["content"])


@pytest.mark.parametrize(("typed", "told"), [("n", "denied"), ("a", "deleted")])
def test_the_pager_can_deny_or_show_the_rest(typed: str, told: str, tmp_path: Path) -> None:
    with serve([Call("delete", path=LONG)], "Done.") as server:
        with Terminal("run", "Hi", *at(server), "--tools", write_tools(tmp_path)) as terminal:
            terminal.wait_for("(n)o denies: ")
            terminal.type(f"{typed}\n")
            if typed == "a":
                terminal.wait_for("or type a reason to deny it: ")
                terminal.type("y\n")
            assert terminal.end() == 0
        assert told in str(server.bodies[1]["messages"][-1]["content"])


def test_in_a_pipe_the_call_is_shown_completely_too(tmp_path: Path) -> None:
    with serve([Call("delete", path=f"{LONG}\u202e")], "Done.") as server:
        told = in_pipe("run", "Hi", *at(server), "--tools", write_tools(tmp_path)).stderr
    assert "101│ rm -rf ~⟨U+202E⟩" in told
    rows = told[told.index("Tool call: ") :].split("\nEnd of")[0].splitlines()
    assert arguments_of([*rows, "End of the call"]) == {"path": f"{LONG}\u202e"}


def test_a_question_of_a_server_is_shown_with_its_form_and_the_answer_so_far() -> None:
    schema = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
    question = Question(
        "c",
        "elicitation/create",
        {"message": "End of the question"},
        kind="form",
        message="Who are you?\nEnd of the question",
        schema=schema,
        server="MCP server `x`",
        tool="book",
    )
    rows = approval_text(question)
    assert rows[0] == "Question of MCP server `x` during a call of book"
    assert rows[-1] == "End of the question"
    assert rows.count("End of the question") == 1
    assert arguments_of(rows) == {
        "message": "Who are you?\nEnd of the question",
        "form.message (required)": '{"type": "string"}',
        "answer.message": "End of the question",
    }


def test_a_value_that_breaks_its_format_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp", reason="needs the extra `mcp`")
    schema = {"type": "object", "properties": {"when": {"type": "string", "format": "date"}}}
    typed = ["e", '{"when": "soon"}', "y", "e", '{"when": "2025-12-31"}', "y"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(typed)))
    shown = Console(file=io.StringIO(), width=100)
    asked = Question("c", "elicitation/create", {}, kind="form", schema=schema, server="x", tool="book")
    assert ask_on_terminal(shown, asked) == Edit({"when": "2025-12-31"})
    assert isinstance(shown.file, io.StringIO)
    assert shown.file.getvalue().count("these values do not fit: 'soon' is not a date, such as 2025-12-31") == 1


def test_yes_answers_forms_with_their_defaults_and_opens_no_page() -> None:
    asked = Question("c", "elicitation/create", {})
    assert isinstance(allow(replace(asked, kind="form")), Allow)
    assert isinstance(allow(replace(asked, kind="url", url="https://pay.example")), Deny)


def test_on_a_terminal_a_person_answers_the_form_of_a_server() -> None:
    pytest.importorskip("mcp", reason="needs the extra `mcp`")
    program = SUPPORT / "mcp_library.py"
    with serve([Call("book", day="Monday")], "Done.") as server:
        with Terminal("run", "Hi", *at(server), "--mcp", f"{sys.executable} {program}") as terminal:
            terminal.wait_for("(e)dit them: ")
            assert "How many guests, and which table?" in terminal.plain
            terminal.type("e\n")
            terminal.wait_for("new: ")
            terminal.type('{"number": 2}\n')
            terminal.wait_for("(e)dit them: ")
            terminal.type("y\n")
            assert terminal.end() == 0
        assert "accept Guests(number=2" in str(server.bodies[1]["messages"][-1]["content"])
