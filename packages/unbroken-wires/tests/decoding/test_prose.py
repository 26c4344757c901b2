"""Calls that leaked into text: every dialect, at every split; anything else stays text, character by character."""

from __future__ import annotations

import json

import pytest
from corpus import ABSENT, RECORDINGS, Recording
from hypothesis import given
from hypothesis import strategies as st
from leaks import FORMS, NAMES, ONE, TWO, Form, calls_in, everything, run, texts_in
from streams import chunk, sse
from thorough import some

from unbroken import decode
from unbroken_wires.decoding.leaked_calls import Prose, ProseCall
from unbroken_wires.decoding.leaked_calls.dialects import DIALECTS

every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.id)


# Every dialect


@every_form
def test_a_single_call_is_the_complete_text(form: Form) -> None:
    text = form.write(ONE)
    (call,) = run([text])
    assert isinstance(call, ProseCall)
    assert (call.dialect, call.text) == (form.dialect, text)
    assert calls_in([call]) == ONE


@every_form
def test_text_before_and_after_a_call_stays(form: Form) -> None:
    if form.bare:
        text = f"I look.\n{form.write(ONE)}"
        assert calls_in(run([text])) == []
        return
    before, call, after = run(["I look.\n", form.write(ONE), "\nDone <here>."])
    assert (before, after) == ("I look.\n", "\nDone <here>.")
    assert calls_in([call]) == ONE


@every_form
def test_two_calls_are_found_in_order(form: Form) -> None:
    if not form.several:
        assert calls_in(run([form.write(TWO)])) == []
        return
    items = run([form.write(TWO)])
    assert calls_in(items) == TWO
    assert texts_in(items).strip() == ""
    assert everything(items) == form.write(TWO)


@every_form
def test_a_tool_that_is_not_offered_is_not_called(form: Form) -> None:
    text = form.write([("drop_tables", {"city": "Beijing"})])
    assert run([text]) == [text]
    assert run([form.write(ONE)], names=["get_weathe", "get_weather2", "et_weather"]) == [form.write(ONE)]


@every_form
def test_an_incomplete_form_stays_text(form: Form) -> None:
    text = form.write(ONE)
    for cut in range(len(text)):
        items = run([text[:cut]])
        assert everything(items) == text[:cut]
        assert calls_in(items) == (ONE if form.is_whole(text, cut) else []), text[:cut]


@every_form
def test_every_split_yields_the_same(form: Form) -> None:
    calls = TWO if form.several else ONE
    text = form.write(calls) if form.bare else f"```\n[x] < =\n{form.write(calls)} <tool_call>"
    items = run([text])
    assert calls_in(items) == calls
    for split in some(range(len(text)), 3):
        assert run([text[:split], text[split:]]) == items
    for size in (1, 2, 3, 7):
        assert run(text[at : at + size] for at in range(0, len(text), size)) == items


def test_every_dialect_is_tested_and_has_an_origin() -> None:
    assert {form.dialect for form in FORMS} == {dialect.name for dialect in DIALECTS}
    assert all(len(dialect.origin) > 20 for dialect in DIALECTS)


def test_no_mark_begins_another() -> None:
    marks = {mark for dialect in DIALECTS for mark in dialect.marks if dialect.place != "start"}
    assert not [(a, b) for a in marks for b in marks if a != b and a.startswith(b)]


# What makes a call


@pytest.mark.parametrize(
    "arguments",
    ['{"n": 123456789012345678901234567890}', '{"n":1.10,  "m" : 1e3}', "{ }", '{"s": "\\u00e9 \\" } ] \\\\"}'],
)
def test_the_text_of_json_arguments_is_kept_unchanged(arguments: str) -> None:
    for text in (
        f'<tool_call>{{"name": "add", "arguments": {arguments} }}</tool_call>',
        f"<|tool_call_begin|>add<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
        f'[TOOL_CALLS][{{"id": "x", "type": "function", "parameters": {arguments}, "name": "add"}}]',
    ):
        (call,) = run([text])
        assert isinstance(call, ProseCall)
        assert call.arguments == arguments


@pytest.mark.parametrize(
    "written",
    [
        '{"name": "add", "arguments": {"a": 1}',
        '{"name": "add", "arguments": {"a": 1}}}',
        '{"name": "add", "arguments": {"a": NaN}}',
        '{"name": "add", "arguments": {"a": 1,}}',
        "{'name': 'add', 'arguments': {'a': 1}}",
        '{"name": "add", "arguments": {"a": "line\nbreak"}}',
        '{"name": "add", "arguments": [1]}',
        '{"name": "add", "arguments": null}',
        '{"name": "add", "arguments": "not an object"}',
        '{"name": "add", "arguments": "\\"{}\\""}',
        '{"name": "add"}',
        '{"arguments": {}}',
        '{"arguments": {}, "name": ["add"]}',
        '{"name": "add", "arguments": {}, "parameters": {}}',
        '{"name": "add", "name": "get", "arguments": {}}',
        '{"name": "add", "arguments": {}, "comment": 1}',
        '{"name": " add", "arguments": {}}',
        '{"name": "add", "type": "message", "arguments": {}}',
        '{"name": "add", "arguments": {}} {"name": "add", "arguments": {}}',
        '{"name": "add" "arguments": {}}',
        '{"name": "add", "arguments": {"a": ' + "[" * 600 + "]" * 600 + "}}",
    ],
)
def test_anything_but_one_strict_object_stays_text(written: str) -> None:
    for text in (f"<tool_call>\n{written}\n</tool_call>", f"```json\n{written}\n```", written):
        assert run([text]) == [text]
        assert run(text) == [text]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Beijing", "Beijing"),
        ("\n two \n\nlines \n", " two \n\nlines "),
        ("\n42\n", 42),
        ("-1.5e3", -1500.0),
        ("true", True),
        ("null", None),
        ('\n{"a": [1]}\n', {"a": [1]}),
        ("[1, 2", "[1, 2"),
        ("[NaN]", "[NaN]"),
        ("007", "007"),
        ("True", "True"),
        ('"quoted"', '"quoted"'),
        ("", ""),
        ("a </b> <c> & <tool_call>", "a </b> <c> & <tool_call>"),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("[" * 600 + "]" * 600, "[" * 600 + "]" * 600),
    ],
)
def test_untyped_values_are_json_if_strictly_valid_and_text_otherwise(value: str, expected: object) -> None:
    (call,) = run([f"<function=add><parameter=x>{value}</parameter></function>"])
    assert calls_in([call]) == [("add", {"x": expected})]


def test_a_tool_without_arguments_is_called_with_an_empty_object() -> None:
    for text in (
        "<tool_call>get</tool_call>",
        "<tool_call>get\n</tool_call>",
        "<function=get></function>",
        '<｜DSML｜invoke name="get">\n</｜DSML｜invoke>',
    ):
        assert calls_in(run([text])) == [("get", {})]


def test_dsml_distinguishes_text_from_json_and_refuses_invalid_json() -> None:
    form = '<|DSML|invoke name="add"><|DSML|parameter name="x" string="{}">{}</|DSML|parameter></|DSML|invoke>'
    assert calls_in(run([form.format("true", "12")])) == [("add", {"x": "12"})]
    assert calls_in(run([form.format("false", ' "12"\n')])) == [("add", {"x": "12"})]
    assert calls_in(run([form.format("false", "twelve")])) == []
    assert calls_in(run([form.format("maybe", "12")])) == []
    assert calls_in(run([form.format("true", "12").replace('"add"', '" add"')])) == []


@pytest.mark.parametrize(
    "text",
    [
        "<function=add><parameter=x>1</parameter><parameter=x>2</parameter></function>",
        "<function=add><parameter=x>1<parameter=y>2</parameter></function>",
        "<function=add><parameter=x>1</function>",
        "<tool_call>add<arg_key>x</arg_key><arg_value>1<arg_key>y</arg_key><arg_value>2</arg_value></tool_call>",
        "<tool_call>add<arg_key>x</arg_key></tool_call>",
        "<|tool_call_begin|>functions.add:x<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "[TOOL_CALLS]add[ARGS]{}}",
        '[TOOL_CALLS][{"name": "add", "arguments": {}}, {"name": "sub", "arguments": {}}]',
        '[TOOL_CALLS][{"name": "add", "arguments": {}}',
        "say =>#add: {}",
        "=>#add {}",
        '```python\n{"name": "add", "arguments": {}}\n```',
        '```json\n{"name": "add", "arguments": {}}\nand more\n```',
        '{"name": "add", "parameters": {}} is how to call it',
        'Call: {"name": "add", "parameters": {}}',
        '<|python_tag|>add.call(payload={"name": "add", "parameters": {}})',
    ],
)
def test_ambiguous_or_misplaced_calls_stay_text(text: str) -> None:
    assert run([text]) == [text]
    assert run(text) == [text]


def test_a_complete_call_after_a_broken_one_is_found() -> None:
    call = '<tool_call>{"name": "get", "arguments": {}}</tool_call>'
    for broken in (
        '<tool_call>{"name": "get", "arguments": {"a": 1}</tool_call>',
        '<tool_call>{"name": "get", "arguments": {"a": "cut\n',
        "<tool_call>",
        "<tool_call><",
        "<tool_call>get<arg_key>",
        "<function=get><parameter=x>1</function>",
        '<|python_tag|>{"name": "x", ',
        "```json\n[",
        "[TOOL_CALLS]",
        "<｜DSML｜function_calls>",
    ):
        items = run([broken + call])
        assert calls_in(items) == [("get", {})]
        assert items[0] == broken


def test_calls_of_a_list_share_its_text() -> None:
    first, second = run(['```json\n[{"name": "add", "arguments": {}} , {"name": "get", "arguments": {}}]\n```'])
    assert isinstance(first, ProseCall)
    assert isinstance(second, ProseCall)
    assert first.text == '```json\n[{"name": "add", "arguments": {}}'
    assert second.text == ' , {"name": "get", "arguments": {}}]\n```'


# What is held back


def test_text_is_held_back_only_while_it_can_be_a_mark() -> None:
    prose = Prose(NAMES)
    assert prose.feed("a < b, c <") == ["a < b, c "]
    assert prose.feed("tool") == []
    assert prose.feed("box> [") == ["<toolbox> "]
    assert prose.feed("TOOL_CALLS]g") == []
    assert prose.feed("ot") == ["[TOOL_CALLS]got"]
    assert prose.feed(" = ") == [" = "]
    assert prose.feed("\n=") == ["\n"]
    assert prose.feed("> no") == ["=> no"]
    assert prose.feed("<｜DSML｜inv") == []
    assert prose.end() == ["<｜DSML｜inv"]


def test_json_that_cannot_be_a_call_is_not_held_back() -> None:
    prose = Prose(NAMES)
    assert prose.feed(" \n") == [" \n"]
    assert prose.feed('{"city') == ['{"city']
    prose = Prose(NAMES)
    assert prose.feed('{ "name": "g') == []
    assert prose.feed("reg") == ['{ "name": "greg']
    assert prose.feed('", "age": 5}') == ['", "age": 5}']
    assert prose.feed('\n```json\n{"b') == ['\n```json\n{"b']


def test_a_call_is_yielded_with_the_piece_that_completes_it() -> None:
    prose = Prose(NAMES)
    assert prose.feed('<tool_call>{"name": "get", "arguments": {}}</tool_call') == []
    assert calls_in(prose.feed("> and")) == [("get", {})]
    assert prose.feed(" so on") == [" so on"]


def test_an_open_form_that_grows_too_long_is_released_and_the_text_flows_again() -> None:
    start = '<tool_call>{"name": "get", "arguments": {"x": "'
    prose = Prose(NAMES, max_held=1000)
    pieces = [start, *("y" * 100 for _ in range(12))]
    given = [prose.feed(piece) for piece in pieces]
    assert given[:10] == [[]] * 10
    assert given[10] == ["".join(pieces[:11])]
    assert given[11:] == [["y" * 100], ["y" * 100]]
    assert prose.end() == []


def test_a_call_too_long_to_be_held_back_is_text_at_every_split() -> None:
    call = '<tool_call>{"name": "get", "arguments": {"x": "' + "y<" * 50 + '"}}</tool_call>'
    text = f"{call} <tool_call>get</tool_call>"
    assert calls_in(run([text], max_held=len(call))) == [("get", {"x": "y<" * 50}), ("get", {})]
    for limit in range(20, len(call), 7):
        items = run([text], max_held=limit)
        assert calls_in(items) == ([("get", {})] if limit >= 26 else [])
        assert run(text, max_held=limit) == items


# Any text at all

FRAGMENTS = sorted(
    {mark for dialect in DIALECTS for mark in dialect.marks if "DSML" not in mark}
    | {
        '"name"',
        ": ",
        "get",
        "add",
        '"get"',
        '"arguments": {}',
        "{",
        "}",
        "[",
        "]",
        ",",
        '"',
        "\\",
        "\n",
        " ",
        "<",
        "`",
    }
    | {"</tool_call>", "<parameter=x>", "</parameter>", "</function>", ">", "1", "é", "[ARGS]", "functions.get:0", "=>"}
    | {"<|tool_call_argument_begin|>{}<|tool_call_end|>", "<arg_key>k</arg_key>", "<arg_value>v</arg_value>", ";"}
    | {"<｜DSML｜", "</｜DSML｜", 'invoke name="get">', "invoke>", 'parameter name="k" string="true">', "parameter>"}
    | {form.write([("get", {"k": "v"})]) for form in FORMS}
    | {form.write([("get", {"k": "v"})])[:-3] for form in FORMS}
)


@given(st.data(), st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.sampled_from([25, 60, 1 << 20]))
def test_nothing_is_lost_and_no_split_changes_anything(data: st.DataObject, parts: list[str], max_held: int) -> None:
    text = "".join(parts)
    items = run([text], max_held=max_held)
    assert everything(items) == text
    assert run(text, max_held=max_held) == items
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(pieces, max_held=max_held) == items
    for item in items:
        if isinstance(item, ProseCall):
            assert item.name in NAMES
            assert isinstance(json.loads(item.arguments), dict)


@given(st.text())
def test_any_text_is_returned_unchanged(text: str) -> None:
    assert everything(run([text])) == text
    assert run(text) == run([text])


# Through the decoder


def test_a_leaked_call_becomes_a_call_of_the_response() -> None:
    text = 'I add.\n<tool_call>{"name": "add", "arguments": {"n": 123456789012345678901234567890}}</tool_call>'
    body = sse(*(chunk({"content": character}) for character in text), chunk({}, "stop"))
    response = decode(body, tools=NAMES)
    assert response.text == "I add.\n"
    assert [(call.name, call.arguments, call.complete) for call in response.calls] == [
        ("add", {"n": 123456789012345678901234567890}, True)
    ]
    assert decode(body).text == text


LEAKED = {
    "openai-chat-llama-cpp-j-40256a7c": [("subtract", {"x": 2, "y": 5})],
    "openai-chat-ollama-s-2832fd2f": [],
    "openai-chat-ollama-s-506518a6": [],
}
"""The two of ollama have the tag, but what follows it names no tool: it is text."""

OFFERING = [recording for recording in RECORDINGS if recording.tools]


@pytest.mark.skipif(not RECORDINGS, reason=ABSENT)
@pytest.mark.parametrize("recordings", [OFFERING[at : at + 30] for at in range(0, len(OFFERING), 30)], ids=lambda _: "")
def test_recordings_have_the_leaked_calls_and_no_others(recordings: list[Recording]) -> None:
    for recording in recordings:
        plain = decode(recording.body, recording.wire)
        response = decode(recording.body, recording.wire, tools=recording.tools)
        expected = LEAKED.get(recording.id, [])
        assert [(call.name, call.arguments) for call in response.calls] == [
            *((call.name, call.arguments) for call in plain.calls),
            *expected,
        ], recording.id
        assert response.text == ("" if expected else plain.text), recording.id
