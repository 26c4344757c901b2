"""The conformance runner of the protocol's own project, over our client and our server: `make test-mcp` installs it.

Each scenario that it lists is run, at each revision below that it applies to, and has to pass without a warning: one
that a later version of the runner adds, too. `NOT_SUPPORTED` names those that cannot pass, and why. One of them that
passes is a failure, so that the list stays true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`: pip install 'unbroken[mcp]'")

FOLDER = Path(os.environ.get("UNBROKEN_MCP", "")) / "node_modules"
HERE = Path(__file__).parent
INSTALLED = "UNBROKEN_MCP" in os.environ
pytestmark = pytest.mark.skipif(not INSTALLED, reason="needs the conformance runner: make test-mcp")

REVISIONS = ("2025-11-25", "2026-07-28")
CLIENT = f"{sys.executable} {HERE / 'client.py'}"
SECONDS = 60

Side: TypeAlias = Literal["client", "server"]

_TOOLS_ONLY = "our server offers tools, and neither resources, prompts nor completions"
_APPROVALS_ONLY = "a tool that we serve asks its user for an approval, and nothing else"
_NO_LOGGING = "our server sends no log messages"
_NO_TASKS = "our server answers its calls directly"
_SECRETS_ONLY = "programs sign in with a client secret"
_NO_SKILLS = "skills are not supported"

NOT_SUPPORTED: dict[str, str] = {
    "auth/client-credentials-jwt": _SECRETS_ONLY,
    "auth/enterprise-managed-authorization": _SECRETS_ONLY,
    "auth/wif-jwt-bearer": _SECRETS_ONLY,
    "auth/dpop": "tokens are bearer tokens",
    "auth/dpop-nonce": "tokens are bearer tokens",
    "caching:sep-2549-prompts-list-caching-hints": _TOOLS_ONLY,
    "caching:sep-2549-resources-list-caching-hints": _TOOLS_ONLY,
    "caching:sep-2549-resources-templates-list-caching-hints": _TOOLS_ONLY,
    "completion-complete": _TOOLS_ONLY,
    "elicitation-sep1034-defaults": _APPROVALS_ONLY,
    "elicitation-sep1330-enums": _APPROVALS_ONLY,
    "input-required-result-basic-elicitation": _APPROVALS_ONLY,
    "input-required-result-basic-list-roots": _APPROVALS_ONLY,
    "input-required-result-basic-sampling": _APPROVALS_ONLY,
    "input-required-result-capability-check": _APPROVALS_ONLY,
    "input-required-result-ignore-extra-params": _APPROVALS_ONLY,
    "input-required-result-multi-round": _APPROVALS_ONLY,
    "input-required-result-multiple-input-requests": _APPROVALS_ONLY,
    "input-required-result-non-tool-request": _TOOLS_ONLY,
    "logging-set-level": _NO_LOGGING,
    "prompts-get-embedded-resource": _TOOLS_ONLY,
    "prompts-get-simple": _TOOLS_ONLY,
    "prompts-get-with-args": _TOOLS_ONLY,
    "prompts-get-with-image": _TOOLS_ONLY,
    "prompts-list": _TOOLS_ONLY,
    "resources-list": _TOOLS_ONLY,
    "resources-read-binary": _TOOLS_ONLY,
    "resources-read-text": _TOOLS_ONLY,
    "resources-subscribe": _TOOLS_ONLY,
    "resources-templates-read": _TOOLS_ONLY,
    "resources-unsubscribe": _TOOLS_ONLY,
    "sep-2164-resource-not-found": _TOOLS_ONLY,
    "server-sse-polling": "our server does not end streams early to be polled",
    "server-stateless:sep-2575-missing-capability-http-400": _APPROVALS_ONLY,
    "server-stateless:sep-2575-server-rejects-undeclared-capability": _APPROVALS_ONLY,
    "tools-call-sampling": _APPROVALS_ONLY,
    "tools-call-with-logging": _NO_LOGGING,
    **dict.fromkeys(
        ("sep-2640-skills-directory", "sep-2640-skills-enumeration", "sep-2640-skills-manifest"), _NO_SKILLS
    ),
    **{f"sep-2640-client-{name}": _NO_SKILLS for name in ("no-prefetch", "verify-digest", "verify-size")},
    "sep-2640-client-verify-frontmatter": _NO_SKILLS,
    **{
        f"tasks-{name}": _NO_TASKS
        for name in (
            "lifecycle",
            "capability-negotiation",
            "wire-fields",
            "request-state-removal",
            "mrtr-input",
            "request-headers",
            "dispatch-and-envelope",
            "status-notifications",
            "required-task-error",
            "mrtr-composition",
        )
    },
}


def runner(*arguments: str) -> subprocess.CompletedProcess[str]:
    entry = FOLDER / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    command = [str(FOLDER / ".bin" / "node"), str(entry), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=False)


def scenarios() -> list[tuple[Side, str, str]]:
    """Each with the revisions at which it is run. Extensions belong to none: they are run at the newest."""
    found: list[tuple[Side, str, str]] = []
    sides: dict[str, Side] = {"Server": "server", "Client": "client"}
    side: Side | None = None
    for line in runner("list").stdout.splitlines() if INSTALLED else ():
        if heading := re.match(r"(\w+).* scenarios", line):
            side = sides.get(heading[1])
        elif side is not None and (one := re.fullmatch(r"  - (\S+) \[(.*)\]", line)):
            dates = one[2].replace("extension", REVISIONS[-1]).split(",")
            for date in [date for date in dates if date in REVISIONS] or dates[-1:]:
                found.append((side, one[1], date))
    return found


def run(side: Side, scenario: str, revision: str, target: str, results: Path) -> tuple[set[str], set[str]]:
    """The checks of the scenario itself that passed, and all that did not."""
    option = ("--command" if side == "client" else "--url", target)
    limit = ("--timeout", str(SECONDS * 1000))
    version = ("--scenario", scenario, "--spec-version", revision, "--force")
    done = runner(side, *option, *version, *limit, "--output-dir", str(results))
    files = list(results.rglob("checks.json"))
    assert files, f"the runner wrote no result:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    checks: list[dict[str, Any]] = json.loads(files[0].read_text())
    failed = {each["id"] for each in checks if each["status"] in ("FAILURE", "WARNING")}
    passed = {each["id"] for each in checks if each["status"] == "SUCCESS"} - failed - {"wire-schema-valid"}
    return passed, failed


@pytest.fixture(scope="module")
def server() -> Generator[str]:
    with subprocess.Popen([sys.executable, str(HERE / "server.py")], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.mark.parametrize(("side", "scenario", "revision"), scenarios())
def test_each_scenario_of_what_is_supported_passes(
    side: Side, scenario: str, revision: str, server: str, tmp_path: Path
) -> None:
    passed, failed = run(side, scenario, revision, CLIENT if side == "client" else server, tmp_path)
    if scenario in NOT_SUPPORTED:
        assert failed or not passed, f"`{scenario}` passes: take it out of NOT_SUPPORTED ({NOT_SUPPORTED[scenario]})"
        return
    excused = {check for each in NOT_SUPPORTED for name, _, check in [each.partition(":")] if name == scenario}
    assert failed == excused
    assert passed


def test_what_is_not_supported_is_something_that_the_runner_knows() -> None:
    assert {name.partition(":")[0] for name in NOT_SUPPORTED} <= {scenario for _, scenario, _ in scenarios()}


def test_a_client_that_does_nothing_and_a_server_without_the_tool_fail(server: str, tmp_path: Path) -> None:
    _, failed = run("client", "tools_call", REVISIONS[-1], f"{sys.executable} --version", tmp_path / "client")
    assert failed
    _, failed = run("server", "tools-call-simple-text", REVISIONS[-1], f"{server}/nowhere", tmp_path / "server")
    assert failed
