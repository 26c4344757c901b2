"""Notices when tools that declare nothing ran one after another and cost time by it, and names the declaration to add.

A hint only: it changes nothing about when calls run.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from unbroken.tools.caller import Prepared

LOG = logging.getLogger("unbroken.tools")

WORTH_SAYING = 0.5
"""Seconds that overlapping would have saved in one round, at least."""

HINT = (
    "{count} calls of {tools} ran one after another and took {total:.1f} s; side by side {longest:.1f} s. Tools that "
    'declare nothing keep their order. Declare @tool(effect="read") if a tool changes nothing, key= or overlap=True if '
    'the order of its calls does not matter, or effect="write" to keep the order without this hint.'
)

_logged: set[str] = set()
"""Tools that the log of this process has named."""


class OrderHint:
    """One for each agent. `text` is its first hint, or empty."""

    def __init__(self) -> None:
        self.text = ""

    def note(self, calls: Sequence[Prepared], took: Sequence[float]) -> None:
        """The calls of one round and how many seconds each ran."""
        if sum(took) < WORTH_SAYING:
            return
        timed = zip(calls, took, strict=True)
        waited = [(each.call.name, seconds) for each, seconds in timed if seconds and _declares_nothing(each)]
        if len(waited) < 2:
            return
        total, longest = sum(seconds for _, seconds in waited), max(seconds for _, seconds in waited)
        if total - longest < WORTH_SAYING:
            return
        names = dict.fromkeys(name for name, _ in waited)
        tools = ", ".join(f"`{name}`" for name in names)
        text = HINT.format(count=len(waited), tools=tools, total=total, longest=longest)
        self.text = self.text or text
        if not _logged.issuperset(names):
            _logged.update(names)
            LOG.warning("%s", text)


def _declares_nothing(prepared: Prepared) -> bool:
    tool = prepared.tool
    return tool is not None and tool.effect == "write" and tool.overlap is None and prepared.key is None
