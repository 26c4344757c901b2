"""One round trip: a scripted upstream, the gateway in front of it, the client as a process with its own home folder,
and the checks afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from install import Installed
from rows import CHAT, GEMINI, MESSAGES, RESPONSES, Client
from story import FILES, FINAL, IMAGE, PROMPT, SLOW_SECONDS, Slow, Story, named_calls
from tap import Exchange, Tap
from text_story import TextStory

from unbroken import Request, Response, decode
from unbroken_gateway.app import Gateway
from unbroken_gateway.http.uvicorn_server import running
from unbroken_gateway.settings import GatewaySettings, UpstreamSettings
from unbroken_testing import ScriptedServer, serve
from unbroken_wires.wires import find_wire

PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 60.0
"""The most that a client may take, besides the time that a slow upstream takes."""
KEY = "of-the-gateway"
MODELS = {
    CHAT: "openai-chat:gpt-5.2",
    RESPONSES: "openai-responses:gpt-5.2",
    MESSAGES: "anthropic:claude-opus-4-6",
    GEMINI: "gemini:gemini-3-pro-preview",
}
"""Of each wire: the upstream refuses what this model refuses."""


@dataclass(frozen=True, slots=True)
class Trip:
    client: Client
    upstream: str
    """Its wire."""
    serial: bool = False
    stream: bool = True
    slow: Slow = ""
    rich: bool = False
    """With an image in the question and an answer of a given shape."""

    @property
    def seconds(self) -> float:
        """The most that the client may take."""
        return SECONDS + (SLOW_SECONDS if self.slow else 0.0)

    @property
    def told_upstream(self) -> bool:
        """Whether the upstream is asked for one call at a time too: every wire but one can express it."""
        return self.serial and self.upstream != GEMINI

    def __str__(self) -> str:
        mode = "serial" if self.serial else "plain"
        slow = f", slow {self.slow}" if self.slow else ""
        how = "streamed" if self.stream else "unstreamed"
        rich = ", image and JSON answer" if self.rich else ""
        return f"{self.client.name}: {mode}, {how}, {self.upstream} upstream{slow}{rich}"


@dataclass(frozen=True, slots=True)
class Outcome:
    trip: Trip
    seconds: float
    problems: list[str]


@dataclass(slots=True)
class _Ran:
    """A client that has exited."""

    code: int | None
    """None: it was still running when its time was up."""
    out: str = ""
    seen: str = ""
    """The end of its output."""
    files: dict[str, str] = field(default_factory=dict[str, str])


def travel(trip: Trip, installed: Installed, direct: bool = False) -> Outcome:
    """`direct` leaves out the gateway: checks whether the client itself does what is expected."""
    started = time.monotonic()
    with TemporaryDirectory(prefix="unbroken-client-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        # Most providers give unique ids, some restart counting in each answer: the chain must work with both.
        ids = tuple(f"call_{uuid4().hex[:24]}" for _ in FILES) if trip.upstream != trip.client.wire else (None,) * 3
        story = (TextStory if trip.client.in_text else Story)(
            trip.client.tool, str(home / "work"), ids, trip.slow, trip.rich
        )
        exchanges: list[Exchange] = []
        with serve(story.answer) as upstream:
            if direct:
                ran = _run(trip, installed, home, upstream.url)
            else:
                with _gateway(trip, upstream, exchanges) as url:
                    ran = _run(trip, installed, home, url)
    problems = _problems_of_client(ran, trip.seconds)
    if trip.rich:
        problems += _problems_with_shape(story, trip.upstream, upstream)
    if direct:
        problems += _problems_of_upstream(story, upstream)
    else:
        # A Responses provider without storage knows no reasoning by its id, and the script encrypts none.
        problems += _problems_of_upstream(story, upstream, reasoning=trip.upstream != RESPONSES)
        problems += _problems_of_gateway(trip, story, upstream.requests, exchanges)
        if trip.client.thinks and trip.upstream == trip.client.wire:
            problems += _problems_with_thinking(story, upstream, exchanges)
    return Outcome(trip, time.monotonic() - started, problems)


@contextmanager
def _gateway(trip: Trip, upstream: ScriptedServer, exchanges: list[Exchange]) -> Generator[str]:
    client = trip.client
    settings = GatewaySettings(
        upstreams=(
            UpstreamSettings(
                alias=client.model,
                model=MODELS[trip.upstream],
                base_url=upstream.base_url(trip.upstream),
                options={"attempts": 1},
            ),
        ),
        clients=(client.profile,) if trip.serial and client.profile else (),
        port=0,
        store="memory:",
    )

    def make(settings: GatewaySettings) -> Tap:
        return Tap(Gateway(settings), exchanges)

    with running(settings, app=make) as url:
        yield url


def _run(trip: Trip, installed: Installed, home: Path, url: str) -> _Ran:
    client = trip.client
    values = {
        "url": url,
        "key": KEY,
        "model": client.model,
        "prompt": PROMPT,
        "programs": str(PROGRAMS),
        "python": installed.python,
        "node": installed.folder,
        "bin": f"{installed.folder}/node_modules/.bin",
    }
    for folder in ("work", "tmp"):
        (home / folder).mkdir()
    for path, text in client.files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(_filled(text, values), "utf-8")
    # Nothing of the caller's environment: no keys, no settings of clients.
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home / "tmp"), "LANG": "C.UTF-8"}
    environment |= {name: _filled(value, values) for name, value in client.environment.items()}
    if client.kind != "agent":
        environment |= {f"GATEWAY_{name.upper()}": values[name] for name in ("url", "key", "model", "prompt")}
        environment |= {"GATEWAY_WIRE": client.wire}
        environment |= {"GATEWAY_SERIAL": str(int(trip.serial)), "GATEWAY_STREAM": str(int(trip.stream))}
        environment |= {"GATEWAY_IMAGE": IMAGE} if trip.rich else {}
    return _ended([_filled(word, values) for word in client.command], home, environment, trip.seconds)


def _filled(text: str, values: Mapping[str, str]) -> str:
    return Template(text).substitute(values)


def _ended(command: list[str], home: Path, environment: dict[str, str], seconds: float) -> _Ran:
    log, out = home / "stderr", home / "stdout"
    with open(out, "wb") as stdout, open(log, "wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=home / "work",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_group(process)
    said, seen = (path.read_text("utf-8", "replace") for path in (out, log))
    files = {name: home / "work" / name for name in FILES}
    found = {name: path.read_text("utf-8", "replace") for name, path in files.items() if path.exists()}
    return _Ran(code, said, f"{seen[-600:]}{said[-600:]}".strip(), found)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The client and everything it has started: it leads its own session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _problems_of_client(ran: _Ran, seconds: float) -> list[str]:
    problems: list[str] = []
    if ran.code is None:
        problems.append(f"still running after {seconds:g} s: {ran.seen}")
    elif ran.code:
        problems.append(f"exit code {ran.code}: {ran.seen}")
    elif FINAL not in ran.out:
        problems.append(f"the final text was not printed: {ran.seen}")
    if ran.files != FILES:
        problems.append(f"the files are {ran.files}")
    return problems


def _problems_of_upstream(story: Story, upstream: ScriptedServer, reasoning: bool = False) -> list[str]:
    refused = [f"the upstream refused request {sent.number}: {sent.refused}" for sent in upstream.sent if sent.refused]
    lost = [f"the upstream was asked {stray.method} {stray.path}" for stray in upstream.strays]
    return refused + lost + story.problems_with_requests(upstream.requests, reasoning)


def _problems_with_shape(story: Story, wire: str, upstream: ScriptedServer) -> list[str]:
    """Every request has the schema of the answer, where its wire has it."""
    sent = zip(upstream.bodies, upstream.requests, strict=True)
    schemas = [schema_in(body, wire) for body, request in sent if story.is_told_in(request)]
    wrong = [schema for schema in schemas if list(schema.get("properties", {})) != story.fields]
    return [f"the schema of the answer is {schema}" for schema in wrong]


def schema_in(body: Mapping[str, Any], wire: str) -> dict[str, Any]:
    paths = {
        CHAT: ("response_format", "json_schema", "schema"),
        RESPONSES: ("text", "format", "schema"),
        MESSAGES: ("output_config", "format", "schema"),
        GEMINI: ("generationConfig", "responseJsonSchema"),
    }
    value: Any = body
    for key in paths[wire]:
        value = value.get(key, {})
    return value


def _problems_of_gateway(trip: Trip, story: Story, requests: list[Request], exchanges: list[Exchange]) -> list[str]:
    flags = {request.parallel for request in requests if story.is_told_in(request)}
    problems = ["the upstream was not told: one call at a time"] if trip.told_upstream and flags != {False} else []
    deleted = tuple(exchange.path for exchange in exchanges if exchange.method == "DELETE")
    problems += [
        f"{exchange.method} {exchange.path} was answered {exchange.status}: {bytes(exchange.answered[:300])!r}"
        for exchange in exchanges
        if exchange.status >= 400
        and not (exchange.status == 404 and exchange.method == "GET" and exchange.path.startswith(deleted))
    ]
    problems += [
        f"{exchange.path} needed a repair: {repairs}"
        for exchange in exchanges
        if (repairs := exchange.headers.get("x-unbroken-repairs"))
    ]
    told = [exchange for exchange in exchanges if _is_told_in(story, trip.client.wire, exchange)]
    answers = [decode(bytes(exchange.answered), trip.client.wire) for exchange in told]
    expected = story.counts(trip.serial)
    if (counts := [len(answer.calls) for answer in answers]) != expected:
        problems.append(f"the answers had {counts} calls and not {expected}")
    if trip.client.in_text:
        return problems
    handed = [call for answer in answers for call in named_calls(answer.calls)]
    if handed != story.wanted:
        problems.append(f"the client was handed {handed}")
    turns = [exchange.headers.get("x-unbroken-turn", "") for exchange in told]
    # The head of a stream is sent before it is known how many calls it will contain.
    if trip.serial and (turns[1:] != ["handed 2/3", "handed 3/3", ""] or turns[0] not in ("", "handed 1/3")):
        problems.append(f"x-unbroken-turn said {turns}")
    return problems + _problems_with_usage(answers)


def _problems_with_thinking(story: Story, upstream: ScriptedServer, exchanges: list[Exchange]) -> list[str]:
    """What the client asks of Claude's thinking reaches Anthropic unchanged: first and last request."""
    asked = [json.loads(exchange.asked) for exchange in exchanges if _is_told_in(story, MESSAGES, exchange)]
    sent = zip(upstream.bodies, upstream.requests, strict=True)
    reached = [body for body, request in sent if story.is_told_in(request)]
    problems: list[str] = []
    for name in ("thinking", "context_management"):
        wanted, found = ([body.get(name) for body in bodies] for bodies in ([asked[0], asked[-1]], reached))
        if found != wanted or not all(wanted):
            problems.append(f"{name}: the client sent {wanted}, the upstream got {found}")
    if any(body["thinking"].get("type") != "adaptive" for body in asked):
        problems.append(f"the client did not ask for adaptive thinking: {asked[0]['thinking']}")
    return problems


def _is_told_in(story: Story, wire: str, exchange: Exchange) -> bool:
    if exchange.method != "POST" or "count" in exchange.path or not exchange.asked:
        return False
    body = json.loads(exchange.asked)
    return "previous_response_id" in body or story.is_told_in(find_wire(wire).decode_request(body))


def _problems_with_usage(answers: list[Response]) -> list[str]:
    """The usage of the held answers adds up to that of the upstream. (A client need not have asked for it.)"""
    reported = [answer.usage for answer in answers if answer.usage is not None]
    total = (sum(usage.input_tokens for usage in reported), sum(usage.output_tokens for usage in reported))
    return [] if not reported or total == (830, 74) else [f"the usage adds up to {total} and not to (830, 74)"]
