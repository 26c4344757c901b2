"""`OpenTelemetry`: a sink that makes spans and metrics of runs, by the semantic conventions for generative AI.

This is only its face, and needs nothing; `run` makes the spans of one run, needs the extra `otel`, and is loaded
with the first object. What becomes of spans and metrics (where they go, how many are kept) is the business of the
providers, which belong to the program.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from unbroken.errors import UserError
from unbroken.events import Event
from unbroken.trajectory.companion import Companion, RunHead

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


class OpenTelemetry:
    """Give it to an agent as one of its `sinks`; one object serves any number of agents and runs.

    Without providers it uses those of the program (`trace.set_tracer_provider`). `content` puts what was said into the
    spans too: prompts, answers, arguments and results. Keys of models, and values of variables that are named like a
    secret, are masked there.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        content: bool = False,
    ) -> None:
        try:
            otel_run = importlib.import_module("unbroken.trajectory.otel.run")
        except ImportError as error:
            if not (error.name or "").startswith("opentelemetry"):
                raise
            raise UserError(
                f"OpenTelemetry() needs the package `opentelemetry-api` ({error}); pip install 'unbroken[otel]'"
            ) from error
        self._accompany: Callable[[RunHead], Companion] = otel_run.accompanying(
            tracer_provider, meter_provider, content
        )
        self._content = content
        self._last: RunHead | None = None

    def __repr__(self) -> str:
        return f"OpenTelemetry(content={self._content})"

    def __call__(self, event: Event) -> None:
        """Events alone make no trace: an agent asks for a companion at the start of each run (`accompany`)."""

    def accompany(self, head: RunHead) -> Companion:
        """What traces one run. An agent asks for it when a run begins."""
        if head is self._last:  # it is twice among the sinks: of the agent and of the run
            return Companion()
        self._last = head
        return self._accompany(head)
