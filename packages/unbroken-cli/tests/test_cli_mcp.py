"""`unbroken mcp serve`, as a user runs it; `packages/unbroken/tests/mcp_serving` has what it serves."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from checkout import SUPPORT

pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")

from loaded_command import relayed, run
from terminals import COMMAND, environment, invoke

LOADED = ("unbroken.mcp", "uvicorn", "anyio._backends._asyncio")
APP = SUPPORT / "served_app.py"
TOOLS = '@tool(effect="read")\ndef greet(name: str) -> str:\n    "Say hello."\n    return f"Hello, {name}."\n'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["app.py"], "app.py is no file"),
        (["nothing:agent"], "importing nothing failed"),
        ([f"{APP}:nobody"], "has no `nobody`"),
        (
            [f"{APP}:NUMBER"],
            f"mcp serve {APP}:NUMBER: it has the type `int`, and must be an agent, a dict of agents by name, or",
        ),
        ([f"{APP}:MIXED"], f"mcp serve {APP}:MIXED: expected agents by name, got 'number': int; give tools as a list"),
        ([f"{APP}:ODD"], f"mcp serve {APP}:ODD: `my agent!` cannot be the name of an MCP tool; use 1 to 64 letters"),
        ([f"{APP}:agent", "--name", "a b"], "`a b` cannot be the name of an MCP tool"),
        ([f"{APP}:agent", "--http", "somewhere"], "give HOST:PORT"),
        ([f"{APP}:agent", "--http", "0.0.0.0:0"], "other machines can reach it; give --key-env VARIABLE"),
        ([f"{APP}:agent", "--http", "127.0.0.1:0", "--key-env", "NO_SUCH_KEY"], "is not set, or empty"),
        ([f"{APP}:TOOLS", "--http", "127.0.0.1:0", "--name", "x"], "for one agent"),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], words: str) -> None:
    done = invoke("mcp", "serve", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = invoke("mcp", "serve", f"{APP}:agent", "--http", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.exit_code == 2
    assert "in use" in done.stderr


@pytest.mark.parametrize("options", [(), ("--http", "127.0.0.1:0")], ids=["pipes", "http"])
def test_a_server_behind_it_that_does_not_start_is_one_line(tmp_path: Path, options: tuple[str, ...]) -> None:
    file = tmp_path / "behind.py"
    command = [sys.executable, "-IS", "-c", "raise SystemExit('no disk')"]
    file.write_text(f"from unbroken import MCPServer\n\ntools = [MCPServer({command!r}, name='disk')]\n")
    done = run("mcp", "serve", f"{file}:tools", *options, env=environment(), load=LOADED)
    assert (done.returncode, done.stdout) == (3, b"")
    assert b"Traceback" not in done.stderr
    assert b"unbroken: the server could not start: MCP server `disk`" in done.stderr


def test_a_file_of_tools_over_http_with_a_key(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(f"from unbroken import tool\nprint('loading')\n\n{TOOLS}")
    command = relayed("mcp", "serve", str(file), "--http", "127.0.0.1:0", "--key-env", "OUR_KEY", load=LOADED)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment({"OUR_KEY": "our-key"})
    ) as process:
        assert process.stdout is not None
        found = re.fullmatch(r"listens on (http://127\.0\.0\.1:\d+/mcp)\n", process.stdout.readline())
        assert found is not None
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(urllib.request.Request(found[1], method="POST", data=b"{}"))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130)


def test_what_an_application_prints_while_it_is_loaded_is_not_sent_to_the_client(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(f"from unbroken import tool\nprint('loading')\n\n{TOOLS}")
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    done = subprocess.run(
        [*COMMAND, "mcp", "serve", str(file)],
        input=json.dumps(hello) + "\n",
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    [answer] = done.stdout.splitlines()
    assert json.loads(answer)["result"]["serverInfo"]["name"] == "unbroken"
    assert done.stderr == "loading\n"
