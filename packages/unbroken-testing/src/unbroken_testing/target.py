"""Runs an external program behind the same faulty server, once for each case, and judges it from outside.

The program is a black box: it asks a model at the given address, with its own tools. It is judged by what the server
sees (was there a retry, did the result of each call come back, once and in order), what the program prints, and its
exit code.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from unbroken.errors import UserError
from unbroken.models.scripted import Answer, Call, Say, steps_of
from unbroken_testing.faults import Mode, Outcome
from unbroken_testing.faulty import FaultyServer, story
from unbroken_testing.matrix import Case, Ended, ignore_sent
from unbroken_testing.scenario import ASKED, CALLS, answer_scenario
from unbroken_wires.messages import Assistant, Request, ToolMessage
from unbroken_wires.wires import WIRES

MODEL = "test-model"
"""Not `demo`, which is a model of `unbroken run`: it would answer without a request."""
KEY = "not-a-key"
TIMEOUT = 30.0
AT_ONCE = 2
"""Programs that run at the same time."""

_BASE_URLS = {name: wire.http.base_url_variable for name, wire in WIRES.items()}


@dataclass(frozen=True, slots=True)
class Target:
    """`command` as in a shell, without one: `{base_url}`, `{model}` and `{prompt}` are filled in.

    The environment has the address and a key under the names that the clients of each provider look for
    (OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL and so on) and UNBROKEN_FAULT, UNBROKEN_WIRE, UNBROKEN_MODEL,
    UNBROKEN_PROMPT. The model calls `get_weather(city, days)`, `now()` and `save_note(text)` if these are offered, else
    two of what is. The program has to print the answer, once, and to exit with 0.
    """

    command: str
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            said = str(error).lower()
            raise UserError(f"--target {self.command}: {said}; quote it as in a shell") from None
        if not words:
            raise UserError("--target is empty: give the command that runs your program")

    async def rehearse(self, wire: str) -> Mode:
        """Runs the program once with nothing broken. Returns whether it streams; a program that already fails here
        cannot be judged."""
        async with FaultyServer(_tell, on_sent=ignore_sent) as server:
            exit = await self._run(wire, "", server)
            outcome = _judge(server, exit)
        if not server.requests:
            raise UserError(f"--target sent no request{_instead(wire, server, exit)}")
        if server.wires[0] != wire:
            raise UserError(f"--target uses {server.wires[0]}, not {wire}: give --wire {server.wires[0]}")
        if outcome != "answered":
            note = _note(server, exit)
            raise UserError(
                f"--target fails although nothing is broken: {outcome}{f': {note}' if note else ''}; "
                f"docs/faults.md describes what is expected of it"
            )
        return "streamed" if server.sent[0].stream else "unstreamed"

    async def play(self, case: Case) -> Ended:
        async with FaultyServer(_tell, fault=case.fault, on_sent=ignore_sent) as server:
            exit = await self._run(case.wire, case.fault.name, server)
            outcome = _judge(server, exit, again=case.fault.keeps_answer)
        expected = "gave up" if case.expected.startswith("typed:") else "answered"
        happened = () if server.broken else ("the fault did not happen",)
        return Ended(case, outcome, expected, happened, "" if outcome == "answered" else _note(server, exit))

    async def _run(self, wire: str, fault: str, server: FaultyServer) -> _Exit:
        base_url = server.base_url(wire)
        filled = {"base_url": base_url, "model": MODEL, "prompt": ASKED}
        words = [_fill(word, filled) for word in shlex.split(self.command)]
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **_environment(wire, fault, base_url)},
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"--target {words[0]} cannot be run: {error.strerror or error}") from None
        try:
            async with asyncio.timeout(self.timeout):
                out, err = await process.communicate()
        except TimeoutError:
            return _Exit(None, "", f"it did not end within {self.timeout:g} s; --timeout sets another limit")
        finally:
            with suppress(ProcessLookupError):  # with all processes that it started
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        lines = err.decode("utf-8", "replace").strip().splitlines()
        return _Exit(process.returncode, out.decode("utf-8", "replace"), lines[-1] if lines else "")


@dataclass(frozen=True, slots=True)
class _Exit:
    code: int | None
    """None: it did not end in time."""
    out: str
    words: str
    """The last line of standard error."""


def _fill(word: str, filled: dict[str, str]) -> str:
    """Not `str.format`: other braces belong to the program."""
    for name, value in filled.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _environment(wire: str, fault: str, base_url: str) -> dict[str, str]:
    keys = ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE")
    return {
        **{f"{name}_API_KEY": KEY for name in keys},
        **dict.fromkeys(_BASE_URLS.values(), base_url),
        "OPENAI_API_BASE": base_url,
        "NO_PROXY": "127.0.0.1",
        "UNBROKEN_FAULT": fault,
        "UNBROKEN_WIRE": wire,
        "UNBROKEN_MODEL": MODEL,
        "UNBROKEN_PROMPT": ASKED,
        "PYTHONIOENCODING": "utf-8",
    }


def _tell(request: Request) -> Answer:
    offered = {tool.name for tool in request.tools}
    return answer_scenario(request) if offered >= {call.name for call in CALLS} else story(request)


def _judge(server: FaultyServer, exit: _Exit, again: bool = False) -> Outcome:
    """`again`: the model calls again after it was answered that a call cannot run."""
    if exit.code is None:
        return "hung"
    if not server.requests:
        return "sent no request"
    if exit.code != 0:
        return "gave up"
    asked, last = server.requests[0], server.requests[-1]
    if not asked.tools:
        return "offered no tools"
    wanted = [step.name for step in steps_of(_tell(asked)) if isinstance(step, Call)]
    returned = [each.call_id for m in last.messages if isinstance(m, ToolMessage) for each in m.results]
    calls = [call for m in last.messages if isinstance(m, Assistant) for call in m.calls]
    names = Counter(call.name for call in calls if call.id in returned)
    if any(names[name] < count for name, count in Counter(wanted).items()):
        return "lost calls"
    if not again and names != Counter(wanted):
        return "repeated calls"
    if [call.id for call in calls] != returned:
        return "results out of order"
    texts = [_said(server, number) for number in range(len(server.sent))]
    answer = next((text for text in reversed(texts) if text), "")
    if not answer or answer.strip() not in exit.out:
        return "no answer"
    return "text twice" if any(text and exit.out.count(text.strip()) > 1 for text in texts) else "answered"


def _note(server: FaultyServer, exit: _Exit) -> str:
    refused = [sent for sent in server.sent if sent.refused]
    return f"a request was refused: {refused[0].refused}" if refused else exit.words


def _instead(wire: str, server: FaultyServer, exit: _Exit) -> str:
    """What a program that sent no request did."""
    if stray := next((stray for stray in server.strays if stray.status >= 400), None):
        return f" on {wire}: its {stray.method} {stray.path} was answered {stray.status}: {stray.words}"
    said = exit.words if exit.code is None else f"exit code {exit.code}{f', {exit.words}' if exit.words else ''}"
    return f": {said}; the address is in {_BASE_URLS[wire]}, and {{base_url}} in CMD"


def _said(server: FaultyServer, number: int) -> str:
    return "".join(step.text for step in server.sent[number].steps if isinstance(step, Say))
