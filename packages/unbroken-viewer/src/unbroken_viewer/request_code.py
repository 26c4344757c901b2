"""A recorded request as something to paste: a `curl` command that sends it again, or a Python program that continues
the run from it. Keys are named by their variables and never written. Texts of the recording are quoted, so that none
of them can be a command."""

from __future__ import annotations

import json
import shlex
from typing import Any, Literal, TypeAlias

from unbroken.errors import UnbrokenError, UserError
from unbroken.models.connect import connect
from unbroken.trajectory.lines import Line
from unbroken.trajectory.recording import RecordedRequest, Recording
from unbroken_viewer.gateway_turn import AGENT
from unbroken_wires.messages import OneTool, Request, Sampling, ToolSpec
from unbroken_wires.transcript import from_json
from unbroken_wires.wires import DEFAULT_WIRE, find_wire
from unbroken_wires.wires.json_access import as_dict

Language: TypeAlias = Literal["curl", "python"]
_UNKNOWN_URL = "http://127.0.0.1:8000/v1/chat/completions"
"""If the provider is not known here: a server of your own."""
_HELD = "x" * 24
"""Stands for the key while the request is written; it is not sent."""


def request_code(recording: Recording, number: int, language: Language) -> str:
    """The request with this number, counted from 0."""
    recorded = _recorded(recording, number)
    if language == "python":
        return _python(recording, number)
    try:
        return _curl(_model(recording), _request(recorded))
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # a recording may contain anything
        raise UserError(f"request {number + 1} of {recording.path.name} cannot be written: {error}") from None


def _recorded(recording: Recording, number: int) -> RecordedRequest:
    if not 0 <= number < len(recording.requests):
        raise UserError(f"{recording.path.name} has no request {number + 1}: it has {len(recording.requests)}")
    return recording.requests[number]


def replay_commands(recording: Recording, number: int, place: str) -> str:
    """Shell commands that replay the run until the round of this request has ended, and then continue it from there."""
    if "schedule" not in recording.settings:
        raise UserError("there is no agent to replay: it was recorded by a gateway, or by a test")
    turn = _recorded(recording, number).turn
    ended = {line["turn"] for line in recording.of("event") if line["event"] == "round_finished"}
    file, rounds = shlex.quote(place), sum(each <= turn for each in ended)
    if turn not in ended:
        return f"unbroken replay {file}\n"
    part = f"from-round-{rounds}.jsonl"
    return f"""\
unbroken replay {file} --until-round {rounds}

# Continue from there, with a model and tools:
unbroken replay {file} --until-round {rounds} --save {part}
unbroken resume {part} --tools tools.py
"""


def _model(recording: Recording) -> str:
    """Of a gateway's recording the model behind the alias."""
    behind = recording.settings.get("model")
    return behind if recording.agent_name == AGENT and isinstance(behind, str) else recording.model


def _curl(name: str, request: Request) -> str:
    try:
        model = connect(name, api_key=_HELD).model
        endpoint, body = model.endpoint, model.prepare(request).body
    except UnbrokenError:  # a provider of another machine, or a script
        url, headers, key = _UNKNOWN_URL, {}, "Authorization: Bearer $API_KEY"
        body, secrets = find_wire(DEFAULT_WIRE).encode_request(request), ()
    else:
        url = str(endpoint.stream_url if request.stream else endpoint.whole_url)
        headers, secrets = dict(endpoint.headers), endpoint.secrets
        key = f"{endpoint.key_header}: {endpoint.key_prefix}${endpoint.key_variable or 'API_KEY'}"
    parts = [f"curl -N {shlex.quote(url)}", "-H 'Content-Type: application/json'", f'-H "{key}"']
    parts += [f"-H {shlex.quote(f'{header}: {value}')}" for header, value in headers.items()]
    parts.append(f"-d {shlex.quote(json.dumps(body, ensure_ascii=False))}")
    command = " \\\n  ".join(parts)
    for secret in filter(None, secrets):
        command = command.replace(secret, "***")
    return command


def _python(recording: Recording, number: int) -> str:
    names = [str(tool.get("name")) for tool in recording.requests[number].tools]
    return f"""\
from unbroken import Agent
from unbroken.trajectory.recording import read_recording
from unbroken_wires.transcript import from_json

request = read_recording({recording.path.name!r}).requests[{number}]
agent = Agent({_model(recording)!r}, tools=[])  # the tools of the run: {names!r}
result = agent.run_sync(history=from_json(list(request.messages)))
print(result.text)
"""


def _request(recorded: RecordedRequest) -> Request:
    fields: Line = recorded.fields
    choice = fields.get("choice")
    sampling: dict[str, Any] = as_dict(fields.get("sampling"))
    if "stop" in sampling:
        sampling = {**sampling, "stop": tuple(sampling["stop"])}
    tools = [
        ToolSpec(str(tool.get("name")), str(tool.get("description") or ""), as_dict(tool.get("parameters")), strict)
        for tool in recorded.tools
        for strict in [tool.get("strict")]
    ]
    return Request(
        from_json(list(recorded.messages)),
        tuple(tools),
        OneTool(str(as_dict(choice).get("tool"))) if isinstance(choice, dict) else choice,
        fields.get("parallel"),
        fields.get("final", False),
        fields.get("stream", True),
        fields.get("reasoning"),
        fields.get("cache", False),
        Sampling(**sampling),
        as_dict(fields.get("extra")),
    )
