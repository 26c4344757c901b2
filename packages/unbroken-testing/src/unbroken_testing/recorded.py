"""A model for tests: the first run asks a real one and records its answers, later runs replay them.

The requests to the model and its answers are recorded; the tools of the test run each time. A request gets the answer
that was recorded for an equal one, so runs may overlap; a request without an equal one raises `ReplayDiverged` with the
difference. A recording with an error in it, or of a test that fails, is discarded.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from unbroken.clock import current_clock
from unbroken.errors import MissingKey, UserError
from unbroken.middleware import RunStart
from unbroken.models.connect import connect
from unbroken.models.model import Model
from unbroken.trajectory.divergence import compare_requests
from unbroken.trajectory.lines import read_delta, read_error
from unbroken.trajectory.recorded_inputs import Exchange, read_inputs
from unbroken.trajectory.recorder import Recorder
from unbroken.trajectory.recording import read_recording
from unbroken.trajectory.replay import ReplayDiverged
from unbroken.trajectory.run_recorder import RunRecorder
from unbroken_wires.deltas import Delta, Ended, PartialResponse
from unbroken_wires.messages import Request

Recordable: TypeAlias = str | Model | Callable[[], Model]
"""A model, its name, or a function that creates it: used only if there is something to record."""

AGAIN = "run it with --rerecord to record new answers"


class RecordedModel:
    """Replays the recording at `path`; if there is none, or with `rerecord`, it asks `model` and records."""

    def __init__(self, model: Recordable, path: Path, rerecord: bool = False) -> None:
        self.path = path
        self._given = model
        self._model: Model | None = None
        self._recorder: RunRecorder | None = None
        self._new = path.with_suffix(".new.jsonl")
        self._number = 0
        self._unfinished = 0
        """Answers that failed, broke off, or were not read to their end."""
        self.records = rerecord or not path.exists()
        self._left: list[Exchange] = [] if self.records else read_inputs(read_recording(path)).exchanges
        self.name = model if isinstance(model, str) else getattr(model, "name", "recorded")

    def stream(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        return self._record(request) if self.records else self._play(request)

    def end(self, complete: bool = True) -> None:
        """The test is over. If it is `complete` (it did not fail), a good recording is kept, and every recorded answer
        must have been used."""
        if self._recorder is not None:
            self._recorder.end()
            if self._unfinished or not complete:
                self._new.unlink()
            else:
                os.replace(self._new, self.path)
        elif self._left and complete:
            left = "1 request" if len(self._left) == 1 else f"{len(self._left)} requests"
            raise ReplayDiverged(f"{self.path} has {left} more than the test made: {AGAIN}")

    async def _record(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        model, recorder = self._open()
        recorder.turn = self._number
        self._number += 1
        self._unfinished += 1
        async for deltas in recorder.recorded(model)(request):
            last = deltas[-1]
            if isinstance(last, Ended) and last.verdict.whole:
                self._unfinished -= 1
            yield deltas

    def _open(self) -> tuple[Model, RunRecorder]:
        if self._model is None:
            try:
                self._model = self._make()
            except MissingKey as error:
                raise MissingKey(
                    f"there is no recording {self.path} yet, and the model cannot be used: {error}"
                ) from None
        if self._recorder is None:
            self._new.unlink(missing_ok=True)
            model = self._model
            head = RunStart(
                self.path.stem, "recorded", model.name, current_clock(), secrets=lambda: getattr(model, "secrets", ())
            )
            self._recorder = Recorder(self._new).start(head)
        return self._model, self._recorder

    def _make(self) -> Model:
        if isinstance(self._given, str):
            return connect(self._given)
        if hasattr(self._given, "stream"):
            return cast("Model", self._given)
        if not callable(self._given):
            raise UserError(f"recorded({self._given!r}): give a model, its name, or a function that returns one")
        return self._given()

    async def _play(self, request: Request) -> AsyncIterator[Sequence[Delta]]:
        exchange = self._find(request)
        if not exchange.whole:
            raise ReplayDiverged(
                f"{self.path} is incomplete: it has only a part of the answer to this request; {AGAIN}"
            )
        so_far = PartialResponse()
        for each in exchange.inputs:
            await asyncio.sleep(0)  # lets other tasks run, as between the pieces of a real stream
            if each.line["line"] == "failed":
                raise read_error(each.line)
            if each.line["line"] == "closed":
                return
            delta = read_delta(each.line, so_far)
            so_far.feed(delta)
            yield (delta,)

    def _find(self, request: Request) -> Exchange:
        if not self._left:
            raise ReplayDiverged(f"the test sends more requests than {self.path} has: {AGAIN}")
        words = ""
        for place, exchange in enumerate(self._left):
            other = compare_requests(exchange.request, request, exchange.request.turn)
            if not other:
                return self._left.pop(place)
            words = words or other
        raise ReplayDiverged(f"{words}\n{self.path} has no answer to this request: {AGAIN}")


def file_of(folder: Path, test: str, number: int) -> Path:
    """`recordings/test_weather/test_the_city[Oslo].jsonl`, next to the test; the file of a second model has a
    number."""
    module, _, name = test.partition("::")
    kept = "".join(letter if letter.isalnum() or letter in "-_.[]" else "_" for letter in name.replace("::", "."))[:100]
    if kept != name:  # two names may have become the same
        kept += "-" + hashlib.sha1(test.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:8]
    ending = f"-{number}" if number > 1 else ""
    return folder / "recordings" / Path(module).stem / f"{kept}{ending}.jsonl"
