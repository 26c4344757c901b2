"""The tools of an MCP server, some of them."""

import sys

from unbroken import Agent, MCPServer, ScriptedModel, Toolbox
from unbroken.tools.selection import select
from unbroken.tools.toolbox import ToolServer


def note(text: str) -> str:
    """Write a note."""
    return text


server = MCPServer([sys.executable, "server.py"], env={"HOME": "/tmp"}, timeout=10)
remote = MCPServer(url="https://example.com/mcp", headers={"Authorization": "Bearer key"})
chosen = select(server, only=["read_file"], approve=["read_file"], prefix="files_")
assert isinstance(chosen, ToolServer)
agent = Agent(ScriptedModel("Hello."), tools=[chosen, remote, note])
assert agent.name == "main" and len(Toolbox(note)) == 1


async def main() -> list[str]:
    async with server, agent:
        return [tool.name for tool in server.tools]
