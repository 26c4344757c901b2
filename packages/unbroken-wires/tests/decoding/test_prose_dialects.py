"""What is particular to single dialects of leaked calls: variants that are read, neighbours that stay text, and the
types of values. What all of them share is in test_prose.py."""

from __future__ import annotations

from typing import Any, cast

import pytest
from leaks import M3, NAMES, calls_in, dump, run, texts_in
from streams import chunk, sse

from unbroken import Request, User, decode
from unbroken_wires.decoding.leaked_calls import Prose, ProseCall
from unbroken_wires.messages import ToolSpec
from unbroken_wires.wires import find_wire

OSLO = [("get_weather", {"city": "Oslo"})]
CALL = dump({"name": "get_weather", "arguments": {"city": "Oslo"}})


def read(text: str, **properties: Any) -> list[tuple[str, dict[str, Any]]]:
    """The calls in a text, with the schema of `get_weather`; the same at every character."""
    schemas = {"get_weather": {"type": "object", "properties": properties}} if properties else {}
    found: list[list[Any]] = []
    for pieces in ([text], list(text)):
        prose = Prose(NAMES, schemas)
        found.append([item for piece in pieces for item in prose.feed(piece)] + prose.end())
    assert calls_in(found[0]) == calls_in(found[1])
    assert texts_in(found[0]) == texts_in(found[1])
    return calls_in(found[0])


# Variants that are read


@pytest.mark.parametrize(
    "text",
    [
        # the content of an object
        dump({"tool_name": "get_weather", "parameters": {"city": "Oslo"}, "tool_call_id": "7"}),
        dump({"function": "get_weather", "parameters": {"city": "Oslo"}, "type": "function"}),
        dump({"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}),
        dump({"tool_call": {"name": "get_weather", "arguments": {"city": "Oslo"}}}),
        dump({"function_call": {"arguments": {"city": "Oslo"}, "name": "get_weather"}}),
        dump({"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"}}),
        f'{{"tool_calls": [ {CALL} ] }}',
        # what stands around one
        f"<function_call>{CALL}</function_call>",
        f"<tool>\n  {CALL}\n</tool>",
        f"<JSON>{CALL}</JSON>",
        f"```xml\n<tool_call>\n{CALL}\n</tool_call>\n```",
        f"```JSON\n{CALL}\n```",
        f"<|tool_call|>[{CALL}]<|/tool_call|>",
        f"<|tool_call|> {CALL}</s>",
        f"{CALL}<|eot_id|>\n",
        f"<longcat_tool_call>\n{CALL}",
        "<longcat_tool_call>get_weather<longcat_arg_key>city</longcat_arg_key>"
        "<longcat_arg_value>Oslo</longcat_arg_value></longcat_tool_call>",
        # reasoning before a bare one
        f"<think>It is cold.</think>\n\n{CALL}",
        f"It is cold.\n</think>\n[{CALL}]",
        '[THINK]cold?[/THINK][get_weather(city="Oslo")]',
        # names and what follows them
        'get_weather{"city": "Oslo"}',
        'get_weather[ARGS]{"city": "Oslo"}',
        'get_weather\n{"city": "Oslo"}\n',
        '[TOOL_CALLS] get_weather [ARGS] {"city": "Oslo"}</s>',
        '<｜tool▁calls｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Oslo"}\n```<｜tool▁calls▁end｜>',
        f"<tool_call>\n```json\n{CALL}\n```\n</tool_call>",
        '<｜tool calls begin｜>function<｜tool▁sep｜>get_weather\n```\n{"city": "Oslo"}\n```<｜tool▁call▁end｜>',
        "<｜tool\\_calls\\_begin｜><｜tool\\_call\\_begin｜>get_weather"
        '<｜tool\\_sep｜>{"city": "Oslo"}<｜tool\\_call\\_end｜>',
        '<|channel|>commentary to=functions.get_weather<|constrain|>json<|message|>{"city": "Oslo"}',
        '<|channel|>analysis to=get_weather code<|message|>{"city": "Oslo"}<|end|>',
        'commentary to=functions.get_weather json{"city": "Oslo"}',
        '<use_mcp_tool>\n<tool_name>get_weather</tool_name>\n<arguments>{"city": "Oslo"}</arguments></use_mcp_tool>',
        # tags
        '<invoke name="get_weather"><parameter name="city" string="true">Oslo</parameter></invoke>',
        "<invoke name='get_weather'><parameter name='city'>Oslo</parameter></invoke>",
        '<function_calls><invoke name="get_weather">{"city": "Oslo"}</invoke></function_calls>',
        '<｜DSML｜invoke name="get_weather">{"city": "Oslo"}</｜DSML｜invoke>',
        '<function name="get_weather">\n{"city": "Oslo"}\n</function>',
        '<function name="get_weather"><param name="city"><![CDATA[Oslo]]></param></function>',
        '<tool_call><invoke name="get_weather"><parameter name="city">Oslo</parameter></invoke></tool_call>',
        "<ifm|tool_call>" + CALL + "</ifm|tool_call>",
        '<|open|>call tool="get_weather"<|sep|><|open|>argument key="city"<|sep|>Oslo<|close|>argument<|sep|>'
        "<|close|>call<|sep|>",
        f'{M3} <invoke name="get_weather">{M3}\n<city>Oslo{M3} </city>{M3}</invoke>',
        # Python and Gemma
        '[get_weather(city="Oslo")]',
        "[ get_weather( city = 'Oslo' ) ]\n",
        "<|tool_call_start|>get_weather(city='Oslo')<|tool_call_end|>",
        "<|python_start|>[get_weather(city='''Oslo''')]",
        "```tool_code\nget_weather(city='Oslo')\n```",
        '<|tool_call>call:get_weather{city:"Oslo"}<tool_call|>',
        '<|tool_call>call:get_weather{"city": "Oslo"}<tool_call|>',
        "<start_function_call>call:get_weather{city:Oslo}<end_function_call>",
    ],
)
def test_variants_are_read(text: str) -> None:
    assert read(text) == OSLO
    rest = texts_in(run([text])).strip()
    assert rest in ("", "<think>It is cold.</think>", "It is cold.\n</think>", "[THINK]cold?[/THINK]")


@pytest.mark.parametrize(
    "text",
    [
        f"{CALL}; {CALL}",
        f"{CALL}\n\n{CALL}",
        f"<tool_call>{CALL}\n{CALL}</tool_call>",
        f"<tool_call>[{CALL},\n{CALL}]</tool_call>",
        "[get_weather(city='Oslo'), get_weather(city='Oslo')]",
        "<function_calls>\nget_weather(city='Oslo')\n\nget_weather(city='Oslo')\n</function_calls>",
        "<function_calls>[get_weather(city='Oslo'),get_weather(city='Oslo')]</function_calls>",
        f"functools[{CALL}, {CALL}]",
        f"<dots_function_call>{CALL}</dots_function_call>\n<tool_calls>[{CALL}]</tool_calls>",
    ],
)
def test_several_calls_in_one_form(text: str) -> None:
    assert read(text) == OSLO * 2
    assert texts_in(run([text])).strip() == ""


def test_functools_counts_at_the_start_of_the_text_or_of_a_line() -> None:
    assert read(f" functools[{CALL}]") == OSLO
    assert read(f"I look.\nfunctools[{CALL}]\nMore?") == OSLO
    assert read(f"import functools[{CALL}]") == []
    prose = Prose(NAMES)
    assert prose.feed("the end of\nfun") == ["the end of\n"]
    assert prose.feed(" for all") == ["fun for all"]
    assert prose.feed(" of") == [" of"]


def test_a_tool_without_arguments() -> None:
    for text in (
        '<invoke name="get"/>',
        '<｜DSML｜invoke name="get" />',
        "[get()]",
        "<|tool_call>call:get{}<tool_call|>",
        '<|open|>call tool="get" index="1"<|sep|><|close|>call<|sep|>',
        f'{M3}<invoke name="get">{M3}</invoke>',
        '<function name="get"></function>',
        "<tool_calls><tool_call>get<tool_sep></tool_call></tool_calls>",
    ):
        assert calls_in(run([text])) == [("get", {})]


# Neighbours that stay text


@pytest.mark.parametrize(
    "text",
    [
        # a bare call that is not the whole message
        f"Here: {CALL}",
        f"{CALL}\nis how it is done.",
        "[get_weather(city='Oslo')] is how it is done.",
        "Use [get_weather(city='Oslo')].",
        "get_weather(city='Oslo')",
        'get_weather: {"city": "Oslo"}',
        'get_weather{"city": "Oslo"} and so on',
        # quotations
        f"```python\nwrite('<tool_call>{CALL}</tool_call>')\n```\n",
        f"```text\n<|python_tag|>{CALL}\n```",
        f"Write `<tool_call>{CALL}</tool_call>` for a call.",
        f"Write `functools[{CALL}]`.",
        # definitions of tools
        '<tools>{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}}</tools>',
        '```json\n{"type": "function", "function": {"name": "get_weather", "parameters": '
        '{"type": "object", "properties": {}}}}\n```',
        # Python that is more than literals with names
        "[get_weather('Oslo')]",
        "[get_weather(city=name)]",
        "[get_weather(city={'Oslo'})]",
        "[get_weather(city=('Oslo',))]",
        "[get_weather(city='Os' 'lo')]",
        "[get_weather(city=f'Oslo')]",
        "[get_weather(city=07)]",
        "[get_weather(city='Oslo', city='Rome')]",
        "[get_weather(**{'city': 'Oslo'})]",
        "[get_weather(city={'a'=1})]",
        "[get_weather(city='\\N{BULLET}')]",
        "[get_weather(city='\\ud83d')]",
        "[get_weather(city='Oslo'), drop(city='Oslo')]",
        "[get_weather(city='Oslo') get_weather(city='Rome')]",
        "[]",
        "<function_calls></function_calls>",
        "<function_calls>get_weather(city='Oslo')",
        "<|tool_call_start|>[get_weather(city='it's')]<|tool_call_end|>",
        # tags and marks that do not fit
        '<invoke name="get_weather"><parameter name="city">Oslo</invoke>',
        '<invoke name="get_weather"><parameter>Oslo</parameter></invoke>',
        '<invoke name="get_weather"><parameter name="city">a</parameter><parameter name="city">b</parameter></invoke>',
        '<invoke name="get_weather"><parameter name="city" string="false">Oslo</parameter></invoke>',
        f'{M3}<invoke name="get_weather">Oslo{M3}</invoke>',
        f'{M3}<invoke name="get_weather">{M3}<city>Oslo{M3}</town>{M3}</invoke>',
        '<|open|>call tool="get_weather"<|sep|><|open|>argument key="x" type="number"<|sep|>one<|close|>argument<|sep|>'
        "<|close|>call<|sep|>",
        '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,city:<|"|>Rome<|"|>}<tool_call|>',
        '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>]<tool_call|>',
        '<|tool_call>call:get_weather{city:<|"|>Oslo',
        "functools[]",
        f"functools[{CALL}",
        f"functools{CALL}",
        '<|channel|>final to=functions.get_weather<|message|>{"city": "Oslo"}',
        '<|channel|>commentary<|message|>{"city": "Oslo"}<|call|>',
        'to=functions.drop<|channel|>commentary<|message|>{"city": "Oslo"}<|call|>',
        '<|tools_prefix|>[{"get_weather": {"city": "Oslo"}, "get": {}}]<|tools_suffix|>',
        f"<|message_sep|>\n\nassistant<|role_sep|>\n{CALL}",
        f"<tool_calls>[{CALL}]</tool_call>",
        f"<|START_ACTION|>{CALL} more<|END_ACTION|>",
    ],
)
def test_what_only_looks_like_a_form_stays_text(text: str) -> None:
    assert read(text) == []
    assert texts_in(run([text])) == text


def test_a_form_behind_a_code_block_is_read() -> None:
    for block in ("```python\nprint(1)\n```", "```python\nprint(1)```", "``` \nx\n```", "`<tool_call>`"):
        assert read(f"{block}\n<tool_call>{CALL}</tool_call>") == OSLO


# Python's literals


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("'it\\'s'", "it's"),
        ("'a\"b'", 'a"b'),
        ("'two\nlines'", "two\nlines"),
        ("'nul\x00'", "nul\x00"),
        ("'tab\\t new\\n \\x41 \\u00e9 \\U0001F600 \\101 \\\\'", "tab\t new\n A é 😀 A \\"),
        ("'\\d+ \\,'", "\\d+ \\,"),
        ("'''say 'hi' '''", "say 'hi' "),
        ("'brackets ]) {'", "brackets ]) {"),
        ("-1.5e3", -1500.0),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("True", True),
        ("null", None),
        ("[None, {'a': [false, 2]}]", [None, {"a": [False, 2]}]),
        ("{}", {}),
        ("''", ""),
    ],
)
def test_python_literals_become_json(written: str, value: object) -> None:
    assert read(f"<|tool_call_start|>[add(x={written}, y=1)]<|tool_call_end|>") == [("add", {"x": value, "y": 1})]


def test_gemma_nests() -> None:
    text = '<|tool_call>call:add{a:{b:[<|"|>x, y<|"|>,-2,{c:true}]},d:null,e:<|"|>}<tool_call|><|"|>}<tool_call|>'
    assert read(text) == [("add", {"a": {"b": ["x, y", -2, {"c": True}]}, "d": None, "e": "}<tool_call|>"})]


# Types from the schema

FORMS = (
    "<function=get_weather><parameter=x>{}</parameter></function>",
    "<tool_call>get_weather<arg_key>x</arg_key><arg_value>{}</arg_value></tool_call>",
    '<invoke name="get_weather"><parameter name="x">{}</parameter></invoke>',
    '<function name="get_weather"><param name="x">{}</param></function>',
    M3 + '<invoke name="get_weather">' + M3 + "<x>{}" + M3 + "</x>" + M3 + "</invoke>",
)


@pytest.mark.parametrize(
    ("written", "schema", "value"),
    [
        ("3", {"type": "string"}, "3"),
        ("null", {"type": "string"}, "null"),
        ("3", {"type": "integer"}, 3),
        ("007", {"type": "integer"}, 7),
        ("many", {"type": "integer"}, "many"),
        ("2.50", {"type": "number"}, 2.5),
        ("True", {"type": "boolean"}, True),
        ("True", {"type": ["boolean", "string"]}, "True"),
        ("None", {"anyOf": [{"type": "object"}, {"type": "null"}]}, None),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string", "nullable": True}, None),
        ("Oslo", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "Oslo"),
        ('{"a": 1}', {"$ref": "#/properties/y"}, {"a": 1}),
        ('{"a": 1}', {"type": "string"}, '{"a": 1}'),
        ("[1]", {"oneOf": [{"type": "array"}, {"type": "string"}]}, [1]),
        ("1", {"enum": ["1", "2"]}, "1"),
        ("1", {}, 1),
        ("1", {"type": "frobnicate"}, 1),
    ],
)
def test_the_schema_decides_what_a_value_is(written: str, schema: dict[str, Any], value: object) -> None:
    for form in FORMS:
        assert read(form.format(written), x=schema, y={"type": "object"}) == [("get_weather", {"x": value})]


def test_a_form_that_names_a_type_is_overruled_only_where_it_cannot_be_right() -> None:
    form = (
        '<|DSML|invoke name="get_weather"><|DSML|parameter name="x" string="true">{}</|DSML|parameter></|DSML|invoke>'
    )
    assert read(form.format("3"), x={"type": "integer"}) == [("get_weather", {"x": 3})]
    assert read(form.format("3"), x={"type": ["integer", "string"]}) == [("get_weather", {"x": "3"})]
    assert read(form.format("three"), x={"type": "integer"}) == [("get_weather", {"x": "three"})]
    assert read(form.format("3")) == [("get_weather", {"x": "3"})]


def test_elements_nest_as_the_schema_says() -> None:
    def element(name: str, inner: str) -> str:
        return f"{M3}<{name}>{inner}{M3}</{name}>"

    text = f'{M3}<invoke name="get_weather">' + element(
        "places", element("item", element("zip", "0150")) + element("item", element("zip", "1"))
    )
    text += element("tags", element("tag", "a") + element("tag", "b")) + f"{M3}</invoke>"
    zips = {"type": "array", "items": {"type": "object", "properties": {"zip": {"type": "string"}}}}
    assert read(text, places=zips) == [
        ("get_weather", {"places": [{"zip": "0150"}, {"zip": "1"}], "tags": {"tag": ["a", "b"]}})
    ]


def test_a_form_of_plain_xml_needs_the_keys_of_the_tool() -> None:
    form = '<function name="get_weather"><param name="{}">Oslo</param></function>'
    assert read(form.format("city"), city={"type": "string"}) == OSLO
    assert read(form.format("town"), city={"type": "string"}) == []
    assert read(form.format("city")) == OSLO


def test_the_decoder_has_the_schemas_of_the_request_or_of_a_mapping() -> None:
    text = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>7</arg_value></tool_call>"
    body = sse(chunk({"content": text}), chunk({}, "stop"))
    schema: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
    request = Request((User.of("?"),), (ToolSpec("get_weather", "", schema),))
    assert decode(body, tools=["get_weather"]).calls[0].arguments == {"city": 7}
    assert decode(body, tools=["get_weather"], request=request).calls[0].arguments == {"city": "7"}
    assert decode(body, tools={"get_weather": schema}).calls[0].arguments == {"city": "7"}
    assert decode(body, request=request).calls == ()


def test_a_name_that_was_sent_in_a_shorter_form_has_the_schema_of_its_tool() -> None:
    name = "get weather"  # no wire allows the space
    schema: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
    request = Request((User.of("?"),), (ToolSpec(name, "", schema),))
    sent = find_wire("openai-chat").encode_request(request)["tools"]
    short = cast("list[dict[str, Any]]", sent)[0]["function"]["name"]
    text = f"<tool_call>{short}<arg_key>city</arg_key><arg_value>7</arg_value></tool_call>"
    (call,) = decode(sse(chunk({"content": text}), chunk({}, "stop")), tools=[name], request=request).calls
    assert (short != name, call.name, call.arguments) == (True, name, {"city": "7"})


# Through the decoder


def test_calls_and_text_of_one_read_come_in_order() -> None:
    texts = ["One ", f"<tool_call>{CALL}</tool_call>", " two ", "`", "x` ", f"<tool_call>{CALL}</tool_call>", " three"]
    body = sse(*(chunk({"content": text}) for text in texts), chunk({}, "stop"))
    response = decode(body, tools=NAMES)
    assert response.text == "One  two `x`  three"
    assert [call.arguments for call in response.calls] == [{"city": "Oslo"}] * 2


def test_a_call_of_the_wire_and_its_text_are_one_call_in_any_order() -> None:
    entry = {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
    }
    said, called = chunk({"content": f"<tool_call>{CALL}</tool_call>"}), chunk({"tool_calls": [entry]})
    for events in ([said, called], [called, said], [said, chunk({"content": "."}), called]):
        response = decode(sse(chunk({"content": "Hi "}), *events, chunk({}, "tool_calls")), tools=NAMES)
        assert [(call.name, call.arguments) for call in response.calls] == OSLO


def test_the_name_of_the_dialect_is_given() -> None:
    (call,) = run(["[get_weather(city='Oslo')]"])
    assert isinstance(call, ProseCall)
    assert call.dialect == "pythonic"
