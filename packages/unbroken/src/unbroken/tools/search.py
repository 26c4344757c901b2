"""`ToolSearch`: hundreds of tools of which the model knows only the names. It finds those that it needs by calling
`search_tools`, and only these are sent with their descriptions and parameters."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import cast

from unbroken.errors import InvalidTool, UserError
from unbroken.tools.selection import servers_in
from unbroken.tools.tool import Tool, tool
from unbroken.tools.toolbox import SEARCH, Source, Toolbox
from unbroken_wires.messages import Assistant, Message, ToolMessage
from unbroken_wires.server_tools import DeferredTools
from unbroken_wires.validation import checked

FOUND = 5
"""Tools that one search returns."""
SHOWN = 600
"""Characters of a description that a search shows; the next request has all of it."""
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Chinese, Japanese, Korean, Thai and other letters that are not written as words with spaces."""
_RUNS = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_STEM = 4
"""Words that begin with the same letters are related: `book` and `booking`, `погода` and `погоду`."""


@checked
class ToolSearch:
    """`Agent(tools=[ToolSearch(many_tools, always=["help"])])`: offers `search_tools` and the tools in `always`. Tools
    that a search has found, or that the history calls, are offered from then on. What was found is read from the
    history, so a resumed run and the next turn of a conversation have it too.

    A model that has such a search itself uses its own in place of `search_tools`, unless `native=False`."""

    def __init__(self, *sources: Source, always: Collection[str] = (), found: int = FOUND, native: bool = True) -> None:
        if not sources:
            raise UserError("ToolSearch(): there are no tools to search; give them, as in ToolSearch(many_tools)")
        if found < 1:
            raise UserError(f"ToolSearch(found={found}): expected a number from 1")
        self.sources = sources
        self.servers = tuple(servers_in(sources))
        self._native = native
        self._always = tuple(always)
        self._found = found
        self._known: tuple[Toolbox, Tool] | None = None
        """All tools, and the one that finds them."""

    @property
    def all(self) -> list[Tool]:
        """All tools, found or not."""
        toolbox, search = self._tools()
        return [search, *toolbox]

    def offered(self, messages: Sequence[Message], native: bool = False) -> list[Source]:
        """The tools of the next request. `native`: the model searches tools itself."""
        toolbox, search = self._tools()
        if native and self._native:
            # What `search_tools` has found in this history is not deferred: the provider does not know of that search.
            deferred = frozenset(toolbox.names).difference(self._always, _found(messages))
            return [*toolbox, *toolbox.server_tools, *([DeferredTools(deferred)] if deferred else ())]
        wanted = dict.fromkeys((*self._always, *_loaded(messages)))
        loaded = [found for name in wanted if (found := toolbox.get(name)) is not None]
        return [search, *loaded, *toolbox.server_tools]

    def _tools(self) -> tuple[Toolbox, Tool]:
        known = self._known
        if known is not None and not self.servers:
            return known
        toolbox = Toolbox(*self.sources)  # those of a server may change
        if known is not None and toolbox.specs == known[0].specs:
            return toolbox, known[1]
        for name in self._always:
            if name not in toolbox:
                raise InvalidTool(f"ToolSearch(always=…): {toolbox.lacks(name)}")
        if SEARCH in toolbox:
            raise InvalidTool(f"a tool is called `{SEARCH}`, as the one that finds the others: rename it")
        self._known = toolbox, self._search(toolbox)
        return self._known

    def _search(self, toolbox: Toolbox) -> Tool:
        index = _Index(toolbox)

        @tool(name=SEARCH, effect="read", description=_DESCRIPTION.format(names=", ".join(toolbox.names)), repeat=True)
        async def search(query: str) -> str:
            found = index.find(query, self._found)
            if not found:
                return json.dumps({"tools": [], "hint": "nothing fits; use a name from the list, or other words"})
            told = [{"name": each.name, "description": _shown(each.spec.description)} for each in found]
            return json.dumps({"tools": told}, ensure_ascii=False)

        return search


_DESCRIPTION = (
    "Find tools by what they do, or by their names (several may be separated by commas). You can call those that it "
    "returns from then on. There are these tools: {names}"
)


def _shown(description: str) -> str:
    """So short that the result is never cut: it is read again to know what was found."""
    return description if len(description) <= SHOWN else f"{description[:SHOWN]}…"


def _loaded(messages: Sequence[Message]) -> Iterable[str]:
    """The tools that searches in the history have found, and those that it calls."""
    yield from _found(messages)
    for message in messages:
        if isinstance(message, Assistant):
            yield from (call.name for call in message.calls if call.name != SEARCH)


def _found(messages: Sequence[Message]) -> Iterable[str]:
    searches: set[str] = set()
    for message in messages:
        if isinstance(message, Assistant):
            searches = {call.id for call in message.calls if call.name == SEARCH}
        elif isinstance(message, ToolMessage) and searches:
            for result in message.results:
                if result.call_id in searches and not result.error:
                    yield from _names_in(result.text)


def _names_in(text: str) -> list[str]:
    try:
        found = json.loads(text)["tools"]
        return [str(each["name"]) for each in cast("list[dict[str, object]]", found)]
    except (ValueError, KeyError, TypeError):
        return []  # the text of a result may be shortened or redacted


class _Index:
    """Finds tools by the words of their names and descriptions. A rare word counts more than a common one."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._words: list[tuple[Tool, set[str], set[str]]] = [
            (each, _words(each.name), _words(each.spec.description)) for each in toolbox
        ]
        often = Counter(word for _, name, text in self._words for word in name | text)
        self._weights = {word: math.log(1 + len(self._words) / count) for word, count in often.items()}

    def find(self, query: str, most: int) -> list[Tool]:
        """The best first. Exact names come before everything else."""
        named = [found for part in query.split(",") if (found := self._toolbox.get(part.strip())) is not None]
        asked = _words(query)
        scores = [(self._score(asked, name, text), -place) for place, (_, name, text) in enumerate(self._words)]
        ranked = [self._words[-place][0] for score, place in sorted(scores, reverse=True) if score > 0]
        return list({each.name: each for each in (*named, *ranked)}.values())[: max(most, len(named))]

    def _score(self, asked: set[str], name: set[str], text: set[str]) -> float:
        return sum(
            self._weights.get(word, 0.0) * ((2 if word in name else 0) + (1 if word in text else 0)) for word in asked
        )


def _words(text: str) -> set[str]:
    """In small letters, without the plural s, and the beginnings of long ones. `getUserName` has the same as
    `get_user_name`."""
    found = {word.lower() for run in _RUNS.findall(text) for word in _split(run)}
    words = {word[:-1] if len(word) > 3 and word.endswith("s") else word for word in found}
    return words | {f"{word[:_STEM]}-" for word in words if len(word) >= _STEM}


def _split(run: str) -> Iterable[str]:
    """`HTTPServer2` has the words `HTTP`, `Server` and `2`."""
    start = 0
    for at in range(1, len(run)):
        before, here, after = run[at - 1], run[at], run[at + 1 : at + 2]
        if before.isdigit() != here.isdigit() or (here.isupper() and (not before.isupper() or after.islower())):
            yield run[start:at]
            start = at
    yield run[start:]
