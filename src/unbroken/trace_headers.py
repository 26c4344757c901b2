"""What goes along with requests that are sent from here: headers of a trace (`traceparent`, `tracestate`, `baggage`).

Whoever traces sets it while somebody else sends; who sends need not know of any tracing. Unset, it costs one look.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

CARRIED: ContextVar[Mapping[str, str] | None] = ContextVar("unbroken carried", default=None)
"""Headers by their names; None where nothing is traced."""
