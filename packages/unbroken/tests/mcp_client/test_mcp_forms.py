"""Forms of hostile MCP servers: their schemas load nothing, take no time, and end in one line of the log."""

from __future__ import annotations

import json
import logging
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")

from in_loop import in_loop

from unbroken import Agent, Allow, Edit, MCPServer
from unbroken.mcp.client.forms import why_not
from unbroken.tools.approval import Approval
from unbroken_testing import Call, ScriptedModel

SERVER = r"""
import json
import sys


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


call = 0
for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        about = {"name": "desk", "version": "1"}
        send(id=id, result={"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about})
    elif method == "tools/list":
        send(id=id, result={"tools": [{"name": "ask", "inputSchema": {"type": "object", "properties": {}}}]})
    elif method == "tools/call":
        call = id
        form = {"message": "Well?", "requestedSchema": json.loads(sys.argv[1])}
        send(id="question", method="elicitation/create", params=form)
    elif id == "question":
        said = json.dumps(message.get("result") or message.get("error"))
        send(id=call, result={"content": [{"type": "text", "text": said}]})
    elif id is not None:
        send(id=id, error={"code": -32601, "message": "unknown"})
"""


def form(**one: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"one": one}}


async def said_by(folder: Path, schema: dict[str, Any], answer: Approval) -> Any:
    file = folder / "desk.py"
    file.write_text(SERVER)
    server = MCPServer([sys.executable, str(file), json.dumps(schema)])
    agent = Agent(ScriptedModel([Call("ask")], "Done."), tools=[server], on_approval=lambda _: answer)
    return json.loads((await agent.run("Go.")).calls[0].result.text)


@in_loop
async def test_a_form_that_refers_to_another_address_is_dismissed_and_nothing_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere, caplog.at_level(logging.WARNING):
        elsewhere.setblocking(False)
        schema = form(**{"$ref": f"http://127.0.0.1:{elsewhere.getsockname()[1]}/schema.json", "default": 1})
        assert await said_by(tmp_path, schema, Allow()) == {"action": "cancel"}
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    [record] = caplog.records
    assert record.getMessage() == (
        "The answer to a form of MCP server `desk` does not fit, and was not sent: its schema refers to something else "
        "than its own `$defs`, or contains itself"
    )
    assert record.exc_info is None


@in_loop
async def test_values_that_no_form_can_have_are_dismissed_with_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert await said_by(tmp_path, {"type": "object", "properties": {}}, Edit({"one": {"two": 2}})) == {
            "action": "cancel"
        }
    assert "a form takes texts, numbers, booleans and lists of texts" in caplog.text


def test_a_pattern_cannot_make_the_check_slow() -> None:
    began = time.perf_counter()
    schema = form(type="string", pattern="^(a+)+$")
    assert "does not match" in why_not(schema, {"one": "a" * 60 + "!"})
    assert why_not(schema, {"one": "a" * 60}) == ""
    assert time.perf_counter() - began < 5


FITS = {
    "email": ["ann@example.com", "a.b+c@mail.example.co.uk", "root@localhost"],
    "uri": ["https://example.com/a?b=c#d", "mailto:ann@example.com", "urn:isbn:0", "http://[::1]:80/%20"],
    "date": ["2024-02-29", "0001-01-01"],
    "date-time": ["2025-01-01t00:00:00.123456789+05:30", "2025-01-01T10:00:00-00:00"],
    "phone": ["anything"],
}
BREAKS = {
    "email": ["", "ann", "ann@", "@example.com", "a b@example.com", "a..b@example.com", "a@b..c", "a@example.com\n"],
    "uri": ["", "example.com", "/page", "https://", "https://a b", "http://[::1", "http:///x", "https://a/%zz", "a:"],
    "date": ["", "2025-02-29", "31.12.2025", "20251231", "2025-1-1", "2025-12-31T00:00:00Z", "２０２５-01-01"],
    "date-time": ["", "2025-12-31", "2025-12-31T10:00:00", "2025-12-31 10:00:00Z", "2025-12-31T25:00:00Z", "now"],
}


@pytest.mark.parametrize("format", FITS)
def test_a_value_has_the_format_that_its_field_asks_for(format: str) -> None:
    schema = form(type="string", format=format)
    assert [value for value in FITS[format] if why_not(schema, {"one": value})] == []
    assert [value for value in BREAKS.get(format, ()) if not why_not(schema, {"one": value})] == []
    assert why_not(form(type=["string", "integer"], format=format), {"one": 3}) == ""


@in_loop
async def test_a_value_that_breaks_its_format_is_not_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    schema = form(type="string", format="date-time", default="tomorrow")
    with caplog.at_level(logging.WARNING):
        assert await said_by(tmp_path, schema, Allow()) == {"action": "cancel"}
    assert "'tomorrow' is not a date and time with its zone, such as 2025-12-31T09:30:00Z" in caplog.text
    assert (await said_by(tmp_path, schema, Edit({"one": "2025-12-31T09:30:00Z"})))["action"] == "accept"


def test_definitions_cannot_double_with_each_step() -> None:
    definitions: dict[str, Any] = {"d0": {"type": "integer"}}
    for step in range(60):
        definitions[f"d{step + 1}"] = {"allOf": [{"$ref": f"#/$defs/d{step}"}] * 2}
    schema = {**form(**{"$ref": "#/$defs/d60"}), "$defs": definitions}
    assert "or contains itself" in why_not(schema, {"one": 1})


@pytest.mark.parametrize(
    ("one", "words"),
    [
        ({"$ref": "#/properties/one"}, "contains itself"),
        ({"$ref": "file:///etc/hostname"}, "refers to something else"),
        ({"type": "nonsense"}, "its schema is not valid: 'nonsense'"),
        ({"type": "string", "pattern": "("}, "its schema is not valid"),
        ({"type": "string", "pattern": "(?=a)a"}, "its schema cannot be checked: SchemaError"),
        ({"type": "integer", "minimum": "x"}, "its schema is not valid"),
        ({"type": "object", "patternProperties": {"a": {}}}, "patternProperties"),
    ],
)
def test_a_schema_that_cannot_be_checked_accepts_nothing(one: dict[str, Any], words: str) -> None:
    given: Any = {} if one.get("type") == "object" else "a"
    assert words in why_not(form(**one), {"one": given})


def test_a_form_may_use_definitions_of_its_own() -> None:
    schema = {**form(**{"$ref": "#/$defs/Size"}), "$defs": {"Size": {"enum": ["S", "L"]}}}
    assert why_not(schema, {"one": "S"}) == ""
    assert why_not(schema, {"one": "M"}) == "'M' is not one of ['S', 'L']"
