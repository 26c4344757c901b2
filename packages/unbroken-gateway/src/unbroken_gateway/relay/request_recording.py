"""Records requests of clients: each request that reached a model is one recording in the format of an agent's run
(`trajectory`), so the same tools read it.

It contains the model's request and answer; of the client's headers only its `User-Agent`, and no key. A held call that
is released without asking a model makes no recording. Loaded only by a gateway that records. Nothing here may fail a
request: a recording that cannot be written is logged once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import shutil
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from unbroken.agent.result import verdict_to_json
from unbroken.clock import current_clock
from unbroken.errors import UnbrokenError, UserError
from unbroken.events import (
    CallDropped,
    CallWritten,
    Event,
    ReasoningAdded,
    ReasoningReplaced,
    RequestRetried,
    RequestSent,
    RunFailed,
    RunFinished,
    RunStarted,
    TextAdded,
    TextFinished,
    TextReplaced,
    ToolCallsDetected,
)
from unbroken.middleware import Ask, RunStart
from unbroken.models.model import Model, closing
from unbroken.models.pricing import find_prices, load_prices
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import SUFFIX
from unbroken.trajectory.run_recorder import RunRecorder
from unbroken_gateway.http.routes import ClientRequest
from unbroken_gateway.settings import GatewaySettings
from unbroken_wires.decoding.assembler import Shown
from unbroken_wires.deltas import (
    AttemptFailed,
    CallReady,
    CallWithdrawn,
    Delta,
    Ended,
    PartialResponse,
    ReasoningDelta,
    Restarted,
    TextDelta,
    UsageReported,
    Verdict,
)
from unbroken_wires.messages import Assistant, Json, Message, Request, System, ToolCall, ToolMessage, Usage

log = logging.getLogger("unbroken.gateway")

AGENT = "gateway"
"""The agent's name in these recordings."""
BY_CLIENT = "client"
"""In place of a schedule: the client decides how to run the calls."""
LEFT_FREE = 64 << 20
"""Bytes to leave free on the disk: the store may be there too."""
SHORTEST_KEY = 12
"""Minimum characters of a secret: without a key, clients send some word in its place, which may occur in any text."""
MOST_RECORDERS = 64
LONGEST_AGENT = 200
"""Characters that are recorded of the client's `User-Agent`."""
LOOK_AGAIN = 60.0
"""Seconds until the folder is checked again after a failed write."""


class Recordings:
    """The folder of recordings. `chance` returns a number from 0 to 1 for each request and so decides which are
    recorded."""

    def __init__(self, settings: GatewaySettings, chance: Callable[[], float] = random.random) -> None:
        self.folder = Path(settings.record).expanduser()
        self._share = settings.record_share
        self._chance = chance
        self._key_files = [
            Path(row.api_key_file).expanduser()
            for upstream in settings.upstreams
            for row in (upstream, *upstream.deployments)
            if row.api_key_file
        ]
        self._most = settings.record_bytes
        self._workers = settings.workers
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"recording to {self.folder} failed: {reason}; name another folder") from None
        self._recorders: OrderedDict[str, Recorder] = OrderedDict()
        """By the client's key: each redacts only that key, not those of all clients."""
        self._left, _ = self._look()
        self._looked = current_clock().elapsed()
        self._logged = False

    def sample(self, secret: str = "", user_agent: str = "") -> RequestRecording | None:
        """A recording for a new request, if it is sampled. `secret`: the key that the client sent."""
        return RequestRecording(self, secret, user_agent) if self._chance() < self._share else None

    def keys_of(self, model: Model) -> tuple[str, ...]:
        """The providers' keys to redact. A key in a file may change, and a model knows it only from its first request
        on."""
        return (*getattr(model, "secrets", ()), *_read(self._key_files))

    async def open(self, head: RunStart, secret: str) -> RunRecorder | None:
        """A file; None if there can be none, which was logged."""
        if not await self._has_space():
            return None
        try:
            recorder = self._recorder(secret if len(secret) >= SHORTEST_KEY else "").start(head)
        except UserError as error:
            self._stop(str(error))
            return None
        if self._logged:
            self._logged = False
            log.info("requests are recorded again, in %s", self.folder)
        return recorder

    def _recorder(self, secret: str) -> Recorder:
        found = self._recorders.pop(secret, None) or Recorder(
            self.folder, secrets=(secret,) if secret else (), on_failure="continue"
        )
        self._recorders[secret] = found
        if len(self._recorders) > MOST_RECORDERS:
            self._recorders.popitem(last=False)
        return found

    def close(self, recorder: RunRecorder) -> None:
        recorder.end()
        if recorder.broken:
            self._stop(f"{recorder.path} could not be written")
            return
        with suppress(OSError):  # it was moved already
            self._left -= os.stat(recorder.path).st_size

    async def _has_space(self) -> bool:
        if self._left > 0:
            return True
        now = current_clock().elapsed()
        if self._logged and now - self._looked < LOOK_AGAIN:
            return False
        self._looked = now  # concurrent requests do not check too
        self._left, why = await asyncio.to_thread(self._look)
        if self._left <= 0:
            self._stop(why)
        return self._left > 0

    def _stop(self, why: str) -> None:
        self._left = 0
        self._looked = current_clock().elapsed()
        if not self._logged:
            self._logged = True
            log.warning("requests are not recorded any more: %s", why)

    def _look(self) -> tuple[int, str]:
        """How many bytes this process may still write, and why there are none."""
        try:
            with os.scandir(self.folder) as entries:
                files = [entry.stat().st_size for entry in entries if entry.name.endswith(SUFFIX)]
            free = shutil.disk_usage(self.folder).free - LEFT_FREE
        except OSError as error:
            return 0, f"{self.folder} cannot be read: {error.strerror or error}"
        left = self._most - sum(files)
        if left <= 0:
            return 0, f"{self.folder} holds {sum(files):,} bytes, and `max_bytes` in [record] is {self._most:,}"
        if free <= 0:
            return 0, f"the disk of {self.folder} is nearly full"
        return max(min(left, free) // self._workers, 1), ""


class RequestRecording:
    """The recording of one request. It has a file once a model is asked."""

    def __init__(self, recordings: Recordings, secret: str, user_agent: str = "") -> None:
        self.name = ""
        """The name of its file, once it has one."""
        self._recordings = recordings
        self._secret = secret
        self._user_agent = user_agent[:LONGEST_AGENT]
        self._clock = current_clock()
        self._began = self._clock.elapsed()
        self._run = secrets.token_hex(6)
        self._seq = 0
        self._recorder: RunRecorder | None = None
        self._history: tuple[Message, ...] = ()
        """The messages of the request without the instructions; at the end also the answer."""
        self._partial = PartialResponse()
        self._shown: tuple[Shown, Shown] | None = None
        """Text and reasoning of an answer that broke off; the difference is recorded when the retry ends."""
        self._verdicts: list[Verdict] = []
        self._attempts = 1
        self._elsewhere = False
        self._spent = Usage()
        self._usage = Usage()
        self._costs: list[float | None] = []
        """What each attempt cost that used tokens; None if that is not known."""
        self._asked = ""
        """The model behind the alias."""
        self._calls: dict[tuple[int, str], tuple[int, ToolCall]] = {}
        """The calls of this answer with their numbers, by index and id."""
        self._next_call = 0
        self._ended: Ended | None = None
        self._error: Exception | None = None

    async def model(
        self, incoming: ClientRequest, request: Request, serial: bool, model: Model, headers: Mapping[str, str]
    ) -> Model:
        """Wraps the model so that its answer is recorded. `headers`: those that report to the client what was repaired,
        lost or left out."""
        upstream = incoming.upstream
        settings: dict[str, Json] = {
            "client": incoming.wire,
            "upstream": upstream.wire,
            "model": upstream.model.name,
            "key": incoming.key,
            "serial": serial,
            "stream": request.stream,
            "user_agent": self._user_agent,
            "headers": {**headers},
        }
        said = request.messages
        self._history = history = said[1:] if said and isinstance(said[0], System) else said
        head = RunStart(
            self._run,
            AGENT,
            upstream.alias,
            self._clock,
            settings,
            history,
            history=lambda: self._history,
            secrets=lambda: self._recordings.keys_of(upstream.model),
        )
        self._asked = upstream.model.name
        await load_prices(self._asked, self._clock.now())
        self._recorder = await self._recordings.open(head, self._secret)
        if self._recorder is None:
            return model
        self.name = os.path.basename(self._recorder.path)
        self._emit(RunStarted, upstream.alias, BY_CLIENT)
        return _RecordedModel(model.name, self._recorder.recorded(model), self)

    # The model's answer

    def incoming(self, request: Request) -> None:
        self._emit(RequestSent, len(request.messages), len(request.tools), False)

    def on_delta(self, delta: Delta) -> None:
        match delta:
            case TextDelta() | ReasoningDelta() if self._shown is None:
                self._seq += 1  # the number of the event that is derived from the delta
            case UsageReported(usage):
                self._usage = usage if usage.total_tokens else self._usage  # some servers report zeros for unknown
            case AttemptFailed(verdict, wait, elsewhere):
                self._note_attempt(verdict, wait, elsewhere)
            case CallReady(call):
                self._number(call)
            case CallWithdrawn(index):
                self._drop("it was no call of its own", {known for known in self._calls if known[0] == index})
            case Restarted():
                self._drop("the answer broke off", {*self._calls})
                if self._shown is None:
                    said = self._partial.message
                    self._shown = Shown(said.text), Shown(said.reasoning)
            case Ended():
                self._end_answer(delta)
            case _:
                pass
        self._partial.feed(delta)

    def failed(self, error: Exception) -> None:
        self._error = error

    def _note_attempt(self, verdict: Verdict, wait: float, elsewhere: bool) -> None:
        self._attempts += 1
        self._elsewhere = self._elsewhere or elsewhere
        self._verdicts.append(verdict)
        self._spend(verdict.model)
        self._emit(RequestRetried, verdict.attempt, verdict.kind, verdict.reason, wait, verdict.model, elsewhere)

    def _spend(self, model: str = "") -> None:
        """Counts the tokens of an attempt that has ended, with what they cost."""
        usage = self._usage
        if usage.total_tokens or usage.cost is not None:
            prices = find_prices(model or self._asked, self._clock.now())
            known = usage.cost if usage.cost is not None or prices is None else prices.of(usage)
            self._costs.append(known)
        self._spent, self._usage = self._spent + usage, Usage()

    @property
    def _cost(self) -> float | None:
        known = [cost for cost in self._costs if cost is not None]
        return sum(known) if known and len(known) == len(self._costs) else None

    def _end_answer(self, ended: Ended) -> None:
        self._ended = ended
        self._spend(ended.verdict.model)
        if not ended.verdict.whole:
            self._verdicts.append(ended.verdict)
        if ended.verdict.failed:
            return
        message = self._message
        if self._shown is not None:
            text, reasoning = (shown.compare(said) for shown, said in zip(self._shown, _said(message), strict=True))
            for rest, added, replaced in (
                (reasoning, ReasoningAdded, ReasoningReplaced),
                (text, TextAdded, TextReplaced),
            ):
                if rest.replaced or rest.text:
                    self._emit(replaced if rest.replaced else added, rest.text)
        if message.text:
            self._emit(TextFinished, message.text, not message.calls, cost=self._cost)
        if message.calls:
            calls = message.calls
            listed = self._call_fields(calls)
            self._drop("it is not in the message", {*self._calls} - {(call.index, call.id) for call in calls})
            self._emit(ToolCallsDetected, len(calls), [call.name for call in calls], listed, cost=self._cost)

    def _number(self, call: ToolCall) -> int:
        """The number of a call. One that was never complete gets its number at the end of the answer."""
        known = self._calls.get((call.index, call.id))
        if known is not None:
            return known[0]
        number, self._next_call = self._next_call, self._next_call + 1
        self._calls[call.index, call.id] = number, call
        self._emit(CallWritten, number, call.id, call.name, call.arguments)
        return number

    def _drop(self, reason: str, calls: set[tuple[int, str]]) -> None:
        for known in sorted(calls):
            number, call = self._calls.pop(known)
            self._emit(CallDropped, number, call.id, call.name, reason)

    def _call_fields(self, calls: Iterable[ToolCall]) -> list[dict[str, Json]]:
        return [
            {"call": self._number(call), "id": call.id, "name": call.name, "arguments": call.arguments}
            for call in calls
        ]

    @property
    def _message(self) -> Assistant:
        """The complete message of the model."""
        said = self._ended.message if self._ended is not None else None
        return said or self._partial.message

    # How it ended

    def end(self, error: BaseException | None = None, words: str = "") -> None:
        """`error` is why the client did not get its answer; `words` is the message if the error has none."""
        recorder = self._recorder
        if recorder is None:
            return
        error = self._error or error
        ended = self._ended
        if error is not None or ended is None or ended.verdict.failed:
            self._drop("the answer broke off", {*self._calls})
        self._spend()
        if error is not None:
            verdicts = error.verdicts if isinstance(error, UnbrokenError) else ()
            self._emit(
                RunFailed,
                type(error).__name__,
                str(error) or words,
                [*map(verdict_to_json, verdicts)],
                requests=1,
                cost=self._cost,
            )
        elif ended is None or ended.verdict.failed:
            reason = ended.verdict.reason if ended is not None else "the model stopped without an end"
            verdicts = [*map(verdict_to_json, self._verdicts)]
            self._emit(RunFailed, "ChainBroken", reason, verdicts, requests=1, cost=self._cost)
        else:
            self._emit_finished()
        self._recorder = None
        self._recordings.close(recorder)

    def _emit_finished(self) -> None:
        message = self._message
        self._history = (*self._history, message)
        made = sum(len(said.calls) for said in self._history if isinstance(said, Assistant))
        returned = sum(len(said.results) for said in self._history if isinstance(said, ToolMessage))
        usage = self._spent.to_json()
        self._emit(
            RunFinished,
            message.text,
            "waiting" if message.calls else "answered",
            1 if message.calls else 0,
            1,
            len(message.calls),
            usage,
            round(self._clock.elapsed() - self._began, 9),
            self._call_fields(call for call in message.calls if not call.problem),
            made == returned,
            made,
            returned,
            self._elsewhere or self._shown is not None,
            self._attempts,
            [*map(verdict_to_json, self._verdicts)],
            cost=self._cost,
        )

    def _emit(self, kind: type[Event], *fields: Any, **more: Any) -> None:
        if self._recorder is not None:
            self._recorder.on_event(kind(self._run, 0, self._seq, self._clock.now(), *fields, **more))
            self._seq += 1


class _RecordedModel:
    """A model whose answers are passed to a recording."""

    def __init__(self, name: str, ask: Ask, recording: RequestRecording) -> None:
        self.name = name
        self._ask = ask
        self._recording = recording

    async def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        recording = self._recording
        recording.incoming(request)
        try:
            async with closing(self._ask(request)) as batches:
                async for deltas in batches:
                    for delta in deltas:
                        recording.on_delta(delta)
                    yield deltas
        except Exception as error:
            recording.failed(error)
            raise


def _said(message: Assistant) -> tuple[str, str]:
    return message.text, message.reasoning


def _read(files: Iterable[Path]) -> Iterable[str]:
    for file in files:
        with suppress(OSError, UnicodeDecodeError):
            yield file.read_text("utf-8").strip()
