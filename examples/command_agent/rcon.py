"""RCON, the remote console of Minecraft's Java edition (Source RCON as that server speaks it): a packet is its length,
an id, a type and a text, in little-endian integers of 32 bits.

The server reads one packet at a time and drops a second one that arrives with it, so commands are sent one by one. As
with the other edition, a command is sent once, and one without an answer has an unknown outcome.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from command_agent.game_errors import NotExecuted, OutcomeUnknown
from unbroken import UserError

LOGIN, COMMAND, UNKNOWN_TYPE = 3, 2, 100
LONGEST = 1446
"""Bytes of a command; the server closes the connection at a longer one."""
FULL = 4096
"""Characters of a packet of an answer: if one is full, another follows. One with as many bytes may be full."""
LARGEST = 64 * 1024
ANSWERS_IN = 10.0
_SYNTAX_ERROR = "<--[HERE]"


class RconGame:
    """A connection that has logged in. `await game.run("say hello")` returns its answer as `statusMessage`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers_in: float) -> None:
        self._reader = reader
        self._writer = writer
        self._answers_in = answers_in
        self._ids = count(1)
        self._turn = asyncio.Lock()
        self._lost = ""

    async def run(self, line: str) -> dict[str, Any]:
        """Sends one command, without its slash. Raises `NotExecuted` or `OutcomeUnknown`."""
        if (size := len(line.encode())) > LONGEST:
            raise NotExecuted(f"the command was not sent: it has {size} bytes, and the server reads {LONGEST}")
        async with self._turn:
            if self._lost:
                raise NotExecuted(f"`/{line}` was not sent: {self._lost}")
            self._lost = "an earlier command was cancelled"  # whose answer would be taken for the next one's
            try:
                text = await asyncio.wait_for(self._ask(line), self._answers_in)
            except TimeoutError:
                self._lost = f"the server did not answer for {self._answers_in:g} seconds"
                raise OutcomeUnknown(line, self._lost) from None
            except (OSError, EOFError, ValueError):
                self._lost = "the connection was lost"
                raise OutcomeUnknown(line, self._lost) from None
            self._lost = ""
        if _SYNTAX_ERROR in text:
            raise NotExecuted(text)
        return {"statusMessage": text}

    async def log_in(self, password: str) -> bool:
        id = next(self._ids)
        await self._write(id, LOGIN, password)
        while True:
            answered, kind, _ = await self._read()
            if kind == COMMAND:  # some servers send an empty answer before it
                return answered == id

    async def _ask(self, line: str) -> str:
        id = next(self._ids)
        await self._write(id, COMMAND, line)
        data = last = await self._answer(id)
        end = 0
        while len(last) >= FULL:
            if not end:  # the answer to a packet of an unknown type comes after the rest
                await self._write(end := next(self._ids), UNKNOWN_TYPE, "")
            answered, _, last = await self._read()
            if answered == end:
                return data.decode(errors="replace")
            if answered != id:
                raise ValueError(f"an answer to {answered}, not to {id}")
            data += last
        if end:
            await self._answer(end)
        return data.decode(errors="replace")

    async def _answer(self, id: int) -> bytes:
        answered, _, data = await self._read()
        if answered != id:
            raise ValueError(f"an answer to {answered}, not to {id}")
        return data

    async def _write(self, id: int, kind: int, text: str) -> None:
        data = text.encode() + b"\0\0"
        self._writer.write(struct.pack("<iii", 8 + len(data), id, kind) + data)
        await self._writer.drain()

    async def _read(self) -> tuple[int, int, bytes]:
        (length,) = struct.unpack("<i", await self._reader.readexactly(4))
        if not 10 <= length <= LARGEST:
            raise ValueError(f"a packet of {length} bytes")
        packet = await self._reader.readexactly(length)
        id, kind = struct.unpack_from("<ii", packet)
        return id, kind, packet[8:-2]


@asynccontextmanager
async def rcon_game(host: str, port: int, password: str, answers_in: float = ANSWERS_IN) -> AsyncGenerator[RconGame]:
    """Connects and logs in."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), answers_in)
    except (OSError, TimeoutError) as error:
        raise UserError(f"--world: there is no RCON server at {host}:{port}: {error or 'no answer'}") from None
    try:
        game = RconGame(reader, writer, answers_in)
        try:
            accepted = await asyncio.wait_for(game.log_in(password), answers_in)
        except (OSError, EOFError, ValueError, TimeoutError):
            raise UserError(f"--world: {host}:{port} does not speak RCON") from None
        if not accepted:
            raise UserError(f"--world: {host}:{port} refused the password: it is read from RCON_PASSWORD")
        yield game
    finally:
        writer.close()
