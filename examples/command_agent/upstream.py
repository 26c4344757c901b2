"""Which model grants the wishes: a real one by its name, the scripted one, or the scripted one over a bad line.

Over a bad line it is a server of this process: its answers come over HTTP, in the protocol of a real provider, and
break on the way as real ones were seen to break.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from itertools import cycle, islice

from command_agent.scripted import script
from unbroken import Model, Request, RetryingModel, ScriptedModel, User, UserError, connect
from unbroken.testing import FAULTS, Fault, FaultyServer, Sent

PLAYED = "deepseek:deepseek-chat"
WIRE = "openai-chat"
ANOTHER_WISH = "big_integers"
"""It is decoded well, but asks for places far outside of the world."""
IDLE, FIRST_BYTE = 1.5, 4.0
"""Seconds of patience with a bad line: nobody wants to watch a minute of silence."""


class BadLine:
    """The first try at every response meets a fault, one after another of those given; the second one is well."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._next = cycle(faults)
        self._tries: dict[int, int] = {}

    def __call__(self, number: int, request: Request) -> Fault | None:
        if len(self._tries) > 10_000:
            self._tries.clear()
        asked = hash(repr(request.messages))  # not the text: it is the whole history, each time
        tries = self._tries[asked] = self._tries.get(asked, 0) + 1
        if tries % 2 == 0:
            return None
        fault = next(self._next)
        # What the model is told of, and nobody asks for again, would befall its answer to that too, and so on.
        return None if fault.outcome == "reported" and not isinstance(request.messages[-1], User) else fault


def faults_named(name: str) -> list[Fault]:
    """`all` are those that a stream of this wire can meet, and that end in an answer to what was wished."""
    fitting = {fault.name: fault for fault in FAULTS.values() if fault.fits(WIRE, True) and fault.longest is None}
    if name == "all":
        ending_well = [fault for fault in fitting.values() if ":" not in fault.outcome and fault.name != ANOTHER_WISH]
        return sorted(ending_well, key=lambda fault: not fault.damages)  # first those of which something is seen
    if name not in fitting:
        close = ", ".join(get_close_matches(name, fitting)) or ", ".join(islice(fitting, 20, 28))
        raise UserError(
            f"there is no fault {name!r} of a stream; say all, or a name of `unbroken faults list`, as in: {close}"
        )
    return [fitting[name]]


def bad_line(faults: str, *, reworded: bool = False, pace: float = 1.0) -> FaultyServer:
    def forget(sent: Sent) -> None:
        """A server may run for days. What is left is small: it looks up bodies by the numbers of their requests."""
        for kept in (server.requests, server.headers, server.wires, server.broken):
            kept.clear()
        server.bodies[sent.number] = {}
        sent.data.clear()
        sent.steps = ()

    server = FaultyServer(script(pace), plan=BadLine(faults_named(faults)), differs=reworded, on_sent=forget)
    return server


@asynccontextmanager
async def open_model(
    name: str = "", *, base_url: str = "", faults: str = "", reworded: bool = False, pace: float = 1.0
) -> AsyncGenerator[Model]:
    """The model, as long as it is wanted. `pace` is that of the scripted one; `reworded`: over a bad line, it says what
    it is asked to say again in other words, as models do."""
    if faults:
        if base_url:
            raise UserError("--faults plays its own server: leave out --base-url")
        async with bad_line(faults, reworded=reworded, pace=pace) as server:
            address = server.base_url(WIRE)
            yield connect(name or PLAYED, base_url=address, wire=WIRE, api_key="none", idle=IDLE, first_byte=FIRST_BYTE)
    elif name:
        yield connect(name, base_url=base_url or None)
    else:
        if base_url:
            raise UserError("--base-url is the address of a model: name it with --model, as in --model openai:my-model")
        yield RetryingModel(ScriptedModel(script(pace), name="scripted:wishes", keep=1))
