"""An agent that uses the server of one scenario, as any agent would: it signs in if it has to, and calls each tool. The
runner appends the address to the command, and names the scenario and what it gives the client in the environment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from unbroken import Agent, Allow, MCPServer
from unbroken.errors import InvalidTool
from unbroken.mcp import OAuth
from unbroken_testing import Call, ScriptedModel

DOCUMENT = "https://conformance-test.local/client-metadata.json"
EXAMPLES: dict[str, Any] = {"number": 2, "integer": 2, "string": "a", "boolean": True, "array": [], "object": {}}


def browse(url: str) -> None:
    """A browser with a user who says yes: it follows the redirect back to us."""
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(url, timeout=10).read()


def sign_in(url: str, given: dict[str, Any]) -> OAuth:
    if "client_secret" not in given:
        return OAuth(show=browse, client_metadata_url=DOCUMENT)
    client = {"client_id": given["client_id"], "client_secret": given["client_secret"]}
    if "issuer" in given:
        return OAuth(show=browse, issuer=given["issuer"], **client)
    return OAuth(grant="client_credentials", issuer=issuer_of(url), **client)


def issuer_of(url: str) -> str:
    """Whoever has a secret knows whose it is; the runner does not say it."""
    parts = urlsplit(url)
    metadata = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}"
    return json.load(urllib.request.urlopen(metadata, timeout=10))["authorization_servers"][0]


def calls_of(server: MCPServer, given: dict[str, Any]) -> list[Call]:
    if wanted := given.get("toolCalls"):
        return [Call(each["name"], **each["arguments"]) for each in wanted]
    seen = {tool.name: tool.spec.parameters for tool in server.tools}
    if "json_schema_echo" in seen:
        return [Call("json_schema_echo", schema=seen["json_schema_2020_12_tool"])]
    return [Call(name, **arguments(schema)) for name, schema in seen.items()]


def arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = schema.get("properties") or {}
    return {name: EXAMPLES.get(field.get("type"), "a") for name, field in fields.items()}


async def main(url: str) -> None:
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    auth = sign_in(url, given) if os.environ["MCP_CONFORMANCE_SCENARIO"].startswith("auth/") else None
    async with MCPServer(url=url, auth=auth) as server:
        model = ScriptedModel(*([call] for call in calls_of(server, given)), "Done.")
        result = await Agent(model, tools=[server], on_approval=lambda call: Allow()).run("Go.")
    for call in result.calls:
        sys.stdout.write(f"{call.name}: {call.result.text}\n")


try:
    asyncio.run(main(sys.argv[1]))
except InvalidTool as error:
    sys.exit(str(error))
