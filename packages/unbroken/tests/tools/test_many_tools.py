"""Some of the tools of a source, and hundreds of tools that are found by searching."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from unbroken import Agent, Allow, Deny, MCPServer, ScriptedModel, tool
from unbroken.agent.recorded_agent import agent_of
from unbroken.errors import InvalidTool, UserError
from unbroken.tools.search import ToolSearch
from unbroken.tools.selection import select
from unbroken.tools.tool import Tool
from unbroken.tools.toolbox import Toolbox
from unbroken.trajectory.recording import read_recording
from unbroken_testing import Call, run_virtual
from unbroken_wires.messages import ToolCall


@tool(effect="read")
async def read_file(path: str) -> str:
    """Read a file."""
    return f"text of {path}"


@tool
async def write_file(path: str) -> str:
    """Write a file."""
    return f"wrote {path}"


@tool
async def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


FILES = [read_file, write_file, delete_file]


def test_a_selection_is_renamed_and_filtered() -> None:
    assert Toolbox(select(FILES, prefix="fs_", without=["delete_file"])).names == ("fs_read_file", "fs_write_file")
    assert Toolbox(select(FILES, only=["write_file"])).names == ("write_file",)
    assert Toolbox(select(FILES, keep=lambda each: each.effect == "read")).names == ("read_file",)
    model = ScriptedModel(Call("fs_read_file", path="a"), "Done.")
    result = run_virtual(Agent(model, [select(FILES, prefix="fs_")]).run("Go."))
    assert result.calls[0].result.text == "text of a"


def test_rules_for_approval_hold_for_the_selection() -> None:
    def in_etc(arguments: dict[str, Any]) -> bool:
        return str(arguments["path"]).startswith("/etc")

    def asked(approve: Any) -> list[str]:
        names: list[str] = []

        def approver(call: ToolCall) -> Allow | Deny:
            names.append(f"{call.name} {(call.arguments or {})['path']}")
            return Deny("no")

        calls = [Call(name, path=path) for name in ("read_file", "delete_file") for path in ("/etc/a", "b")]
        agent = Agent(ScriptedModel(calls, "Done."), [select(FILES, approve=approve)], on_approval=approver)
        run_virtual(agent.run("Go."))
        return names

    assert asked(None) == []
    assert asked(["delete_file"]) == ["delete_file /etc/a", "delete_file b"]
    assert asked(in_etc) == ["read_file /etc/a", "delete_file /etc/a"]
    assert len(asked(True)) == 4


def test_a_wrong_name_is_an_error_and_never_a_filter_that_lets_everything_through() -> None:
    with pytest.raises(InvalidTool, match=r"no tool `delet_file`: did you mean `delete_file`\? There are: read"):
        select(FILES, without=["delet_file"])
    with pytest.raises(InvalidTool, match=r"select\(only=\['read_file'\], without=\['read_file'\]\) leaves no tool"):
        select(FILES, only=["read_file"], without=["read_file"])
    with pytest.raises(UserError, match=r"ToolSearch\(\): there are no tools to search"):
        ToolSearch()
    with pytest.raises(InvalidTool, match="a tool cannot be called `fs/read_file`"):
        select(FILES, prefix="fs/")


SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("files")
@server.tool()
def read(path: str) -> str:
    "Read a file."
    return f"text of {path}"
@server.tool()
def delete(path: str) -> str:
    "Delete a file."
    return f"deleted {path}"
server.run()
"""


def test_tools_of_an_mcp_server_are_selected_when_it_is_open(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    (tmp_path / "server.py").write_text(SERVER)
    server = MCPServer([sys.executable, str(tmp_path / "server.py")])

    async def main() -> None:
        async with server:
            model = ScriptedModel(Call("fs_read", path="a"), "Done.")
            result = await Agent(model, [select(server, prefix="fs_", without=["delete"])]).run("Go.")
            assert [spec.name for spec in model.requests[0].tools] == ["fs_read"]
            assert result.calls[0].result.text == "text of a"
            with pytest.raises(InvalidTool, match="no tool `remove`"):
                await Agent(ScriptedModel("Hi."), [select(server, without=["remove"])]).run("Go.")
            asked: list[str] = []

            def approver(call: ToolCall) -> Deny:
                asked.append(call.name)
                return Deny("no")

            model = ScriptedModel([Call("fs_delete", path=path) for path in ("/etc/a", "b")], "Done.")
            rule = select(server, prefix="fs_", approve=lambda arguments: str(arguments["path"]).startswith("/etc"))
            result = await Agent(model, [rule], on_approval=approver).run("Go.")
            assert asked == ["fs_delete"]
            assert [record.outcome for record in result.calls] == ["not_executed", "done"]
            model = ScriptedModel(Call("search_tools", query="delete"), Call("delete", path="a"), "Done.")
            result = await Agent(model, ToolSearch(server)).run("Go.")
            assert result.calls[1].result.text == "deleted a"

    asyncio.run(main())


def many(count: int) -> list[Tool]:
    def make(number: int) -> Tool:
        async def use(amount: int) -> str:
            return f"tool {number} used {amount}"

        kinds = ("invoice", "customer", "order", "refund", "report")
        verbs = ("create", "find", "delete", "update")
        kind, verb = kinds[number % 5], verbs[number // 5 % 4]
        return tool(name=f"{verb}_{kind}_{number}", description=f"{verb.title()} a {kind} in system {number}.")(use)

    return [make(number) for number in range(count)]


def test_hundreds_of_tools_are_found_by_searching_and_offered_from_then_on(tmp_path: Path) -> None:
    tools = many(500)
    name = "delete_refund_13"
    model = ScriptedModel(Call("search_tools", query="delete a refund in system 13"), Call(name, amount=7), "Done.")
    agent = Agent(model, [ToolSearch(tools, always=["find_order_7"], found=3), read_file], record=tmp_path)
    result = run_virtual(agent.run("Go."))
    offered = [[spec.name for spec in request.tools] for request in model.requests]
    assert offered[0] == ["search_tools", "find_order_7", "read_file"]
    assert (name in offered[1], len(offered[1]), offered[2]) == (True, 6, offered[1])
    assert result.calls[1].result.text == "tool 13 used 7"
    assert "create_invoice_0, create_customer_1" in model.requests[0].tools[0].description
    (file,) = tmp_path.iterdir()
    assert agent.replay(file).messages == agent_of(read_recording(file)).replay(file).messages == result.messages
    model = ScriptedModel("Still there.")
    again = Agent(model, [ToolSearch(tools)])
    run_virtual(again.run("And now?", history=result.messages))
    assert name in [spec.name for spec in model.requests[0].tools]


def test_a_tool_that_was_not_searched_for_is_unknown_and_the_model_reads_why() -> None:
    model = ScriptedModel(Call("delete_refund_13", amount=7), "Done.")
    result = run_virtual(Agent(model, [ToolSearch(many(100))]).run("Go."))
    assert result.calls[0].result.text == (
        "Error: unknown tool `delete_refund_13`; there are: search_tools; "
        "find others with `search_tools`, before you call them"
    )


def test_exact_names_come_first_and_nothing_found_is_said() -> None:
    search = ToolSearch(many(100))
    find: Any = search.offered(())[0].function

    async def names(query: str) -> str:
        return await find(query)

    assert '"name": "create_invoice_0"' in run_virtual(names("create_invoice_0, find_order_7")).split("},")[0]
    assert "find_order_7" in run_virtual(names("create_invoice_0, find_order_7"))
    assert "nothing fits" in run_virtual(names("xyzzy"))


def test_wrong_use_of_a_search_is_named() -> None:
    with pytest.raises(InvalidTool, match=r"no tool `nope`; there are: create_invoice_0, .* and 70 more$"):
        ToolSearch(many(100), always=["nope"]).offered(())
    with pytest.raises(UserError, match="found=0"):
        ToolSearch(FILES, found=0)

    @tool(name="search_tools")
    async def search() -> str:
        """Mine."""
        return ""

    with pytest.raises(InvalidTool, match="rename it"):
        ToolSearch(search).offered(())


def named(name: str, description: str) -> Tool:
    async def run() -> str:
        return name

    return tool(name=name, description=description)(run)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("погода", ["show_ru"]),
        ("письмо", ["mail_ru"]),
        ("Größe", ["size_de"]),
        ("天气怎么样", ["weather_zh"]),
        ("sending", ["send_mail"]),
        ("http server", ["startHTTPServer"]),
        ("!?", []),
    ],
)
def test_tools_are_found_in_any_language_and_by_the_beginnings_of_words(query: str, expected: list[str]) -> None:
    tools = [
        named("show_ru", "Показывает погоду в городе"),
        named("mail_ru", "Отправляет письмо человеку"),
        named("size_de", "Zeigt die Größe einer Straße"),
        named("weather_zh", "查询城市的天气"),
        named("send_mail", "Deliver a message."),
        named("startHTTPServer", "Starts it."),
    ]
    model = ScriptedModel(Call("search_tools", query=query), "Done.")
    run_virtual(Agent(model, [ToolSearch(*tools)]).run("Go."))
    assert [spec.name for spec in model.requests[1].tools] == ["search_tools", *expected]


def test_what_is_found_is_offered_however_long_its_descriptions_are() -> None:
    tools = [named(f"fly_{number}", "Books a flight. " * 2000) for number in range(5)]
    model = ScriptedModel(Call("search_tools", query="flight"), "Done.")
    run_virtual(Agent(model, [ToolSearch(*tools)]).run("Go."))
    assert len(model.requests[1].tools) == 6


def test_tools_that_cannot_be_offered_together_are_refused_before_anything_runs() -> None:
    model = ScriptedModel("Done.")
    with pytest.raises(InvalidTool, match="two tools are called `read_file`"):
        Agent(model, [ToolSearch(read_file), named("read_file", "Another one.")])
    with pytest.raises(UserError, match="there are two `ToolSearch`"):
        Agent(model, [ToolSearch(read_file), ToolSearch(write_file)])
    with pytest.raises(InvalidTool, match="there is no tool `nothing`"):
        Agent(model, [ToolSearch(read_file, always=["nothing"])])
