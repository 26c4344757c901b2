"""Selects the model that grants the wishes: a real one by its name, the scripted one, or the scripted one with faults.

With faults it runs in a server in this process: its answers are sent over HTTP, in the protocol of a real provider, and
break in ways that were seen with real ones.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from itertools import cycle, islice

from command_agent.scripted import script
from command_agent.tools import TOOL_CHAIN_CONTINUE_PROMPT
from unbroken import Model, Request, RetryingModel, ScriptedModel, System, User, UserError, connect
from unbroken_testing import FAULTS, Fault, FaultyServer, Sent

PLAYED = "deepseek:deepseek-chat"
WIRE = "openai-chat"
ANOTHER_WISH = "big_integers"
"""Its integers are decoded correctly, but lie far outside of the world."""
_PLAYER = re.compile(r"You serve the player (\w+);")
IDLE, FIRST_BYTE = 1.5, 4.0
"""Time-outs with faults, in seconds: nobody wants to watch a minute of silence."""


MAX_TOOL_FALLBACK_ATTEMPTS = 3
"""How often an answer that broke is requested again, after the stream."""


class FaultLog:
    """What was broken on purpose, for each player, until it is taken."""

    def __init__(self) -> None:
        self._happened: dict[str, list[Fault]] = {}

    def add(self, request: Request, fault: Fault) -> None:
        instructions = request.messages[0]
        if isinstance(instructions, System) and (served := _PLAYER.search(instructions.text)):
            self._happened.setdefault(served[1], []).append(fault)

    def take(self, player: str) -> list[Fault]:
        return self._happened.pop(player, [])


class FaultOnEachFirstAttempt:
    """The first attempt at every response has a fault, each of the given ones in turn; the second attempt is good."""

    def __init__(self, faults: Sequence[Fault], log: FaultLog | None = None) -> None:
        self._next = cycle(faults)
        self._log = log
        self._tries: dict[int, int] = {}

    def __call__(self, number: int, request: Request) -> Fault | None:
        if len(self._tries) > 10_000:
            self._tries.clear()
        asked = hash(repr(request.messages))  # a hash, because the text is the complete history each time
        tries = self._tries[asked] = self._tries.get(asked, 0) + 1
        if tries % 2 == 0:
            return None
        fault = next(self._next)
        # If the fault only leads to an error result, the model's next answer would have it too, and so on.
        if fault.outcome == "reported" and not isinstance(request.messages[-1], User):
            return None
        if self._log:
            self._log.add(request, fault)
        return fault


def faults_named(name: str) -> list[Fault]:
    """`all` selects the faults of a stream that this wire can have and that still end with the wish granted."""
    fitting = {fault.name: fault for fault in FAULTS.values() if fault.fits(WIRE, True) and fault.longest is None}
    if name == "all":
        ending_well = [fault for fault in fitting.values() if ":" not in fault.outcome and fault.name != ANOTHER_WISH]
        return sorted(ending_well, key=lambda fault: not fault.damages)  # first those that are visible
    if name not in fitting:
        close = ", ".join(get_close_matches(name, fitting)) or ", ".join(islice(fitting, 20, 28))
        raise UserError(
            f"there is no stream fault {name!r}; use all, or a name from `unbroken faults list`, such as {close}"
        )
    return [fitting[name]]


def faulty_server(
    faults: str, *, reworded: bool = False, pace: float = 1.0, log: FaultLog | None = None
) -> FaultyServer:
    def forget(sent: Sent) -> None:
        """A server may run for days, so it forgets what it sent. What remains is small: it finds bodies by request
        number."""
        for kept in (server.requests, server.headers, server.wires, server.broken):
            kept.clear()
        server.bodies[sent.number] = {}
        sent.data.clear()
        sent.steps = ()

    server = FaultyServer(
        script(pace), plan=FaultOnEachFirstAttempt(faults_named(faults), log), differs=reworded, on_sent=forget
    )
    return server


@asynccontextmanager
async def open_model(
    name: str = "",
    *,
    base_url: str = "",
    faults: str = "",
    reworded: bool = False,
    pace: float = 1.0,
    raw_log: str = "",
    log: FaultLog | None = None,
    fallbacks: int = MAX_TOOL_FALLBACK_ATTEMPTS,
) -> AsyncGenerator[Model]:
    """The model, inside the `with` block. `pace` is the speed of the scripted model; `reworded`: with faults, a retry
    produces different text, as real models do. `raw_log` is a file for the bytes that were sent and received.
    `fallbacks` is how often an answer that broke is requested again."""
    if faults:
        if base_url:
            raise UserError("--faults uses its own server: leave out --base-url")
        async with faulty_server(faults, reworded=reworded, pace=pace, log=log) as server:
            played = connect(
                name or PLAYED,
                base_url=server.base_url(WIRE),
                wire=WIRE,
                api_key="none",
                idle=IDLE,
                first_byte=FIRST_BYTE,
                raw_log=raw_log or None,
            )
            yield _persistent(played, fallbacks)
    elif name:
        yield _persistent(connect(name, base_url=base_url or None, raw_log=raw_log or None), fallbacks)
    else:
        if base_url:
            raise UserError("--base-url needs a model: name it with --model, for example --model openai:my-model")
        if raw_log:
            raise UserError(
                "--raw-log needs a model that is reached over HTTP: add --model, or --faults for the script"
            )
        yield _persistent(ScriptedModel(script(pace), name="scripted:wishes", keep=1), fallbacks)


def _persistent(model: Model, fallbacks: int) -> Model:
    """An answer that broke is requested again this often; from the second time on, with the request to continue."""
    return RetryingModel(model, 1 + fallbacks, continue_prompt=TOOL_CHAIN_CONTINUE_PROMPT)
