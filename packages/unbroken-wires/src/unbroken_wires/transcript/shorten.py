"""A history that was too long for its model, made about half as long by leaving out the middle of large tool results.

Only tool results are cut, never messages, calls, ids or the order, so the chain stays valid. The caller decides when
and how often.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from unbroken_wires.messages import Assistant, Media, Message, Part, Text, ToolMessage, ToolResult

SMALL = 1_000
"""Characters: a shorter result is not cut."""

LEAST = 500
"""Characters that stay of a result that is cut."""

_WORTH = 200
"""Characters: cutting less than that is not worthwhile."""

_WHY = "left out: the history was too long for the model"

_IMAGE = 6_000
"""An image costs about as much as this many characters, however long its base64 is."""

_PER_CHARACTER = 8
"""Characters of base64 of any other file that cost about as much as one of text."""


def shorten(messages: Sequence[Message]) -> tuple[Message, ...] | None:
    """The same history with its largest results cut in the middle, or None if there is nothing to cut.

    Results of earlier rounds are cut first, all to the same length; those of the last round only if that is not enough.
    A result that was cut before is not cut again.
    """
    last = max((at for at, message in enumerate(messages) if isinstance(message, ToolMessage)), default=-1)
    found = [result for message in messages if isinstance(message, ToolMessage) for result in message.results]
    total = sum(_said(message) for message in messages) + sum(size_of(result) for result in found)
    excess = total - total // 2
    cut: dict[tuple[int, int], ToolResult] = {}
    for rounds in (range(last), range(last, last + 1) if last >= 0 else range(0)):
        large = [one for at in rounds for one in _large(at, messages[at])]
        line = _line([one.size for one in large], excess)
        for one in large:
            if one.size - line >= _WORTH:
                cut[one.message, one.index] = _cut(one.result, line)
                excess -= one.size - line
        if excess <= total // 20:  # near enough
            break
    if not cut:
        return None
    return tuple(_with(message, at, cut) for at, message in enumerate(messages))


@dataclass(frozen=True, slots=True)
class _Large:
    """A result that may be cut, and where it is."""

    message: int
    index: int
    result: ToolResult
    size: int


def _large(at: int, message: Message) -> Iterable[_Large]:
    if isinstance(message, ToolMessage):
        for index, result in enumerate(message.results):
            size = size_of(result)
            if size >= SMALL and not any(isinstance(part, Text) and _WHY in part.text for part in result.content):
                yield _Large(at, index, result, size)


def _line(sizes: list[int], excess: int) -> int:
    """The length that all longer ones have to be cut to, to be shorter by `excess` together."""
    together = 0
    ordered = sorted(sizes, reverse=True)
    for count, (size, following) in enumerate(zip(ordered, (*ordered[1:], 0), strict=False), 1):
        together += size
        if together - count * following >= excess:
            return max(LEAST, (together - excess) // count)
    return LEAST


def _with(message: Message, at: int, cut: dict[tuple[int, int], ToolResult]) -> Message:
    if not isinstance(message, ToolMessage) or not any((at, index) in cut for index in range(len(message.results))):
        return message
    return ToolMessage(tuple(cut.get((at, index), result) for index, result in enumerate(message.results)))


def _said(message: Message) -> int:
    match message:
        case Assistant():
            return len(message.text) + len(message.reasoning) + sum(len(call.raw) for call in message.calls)
        case ToolMessage():
            return 0
        case _:
            return sum(_weight(part) for part in message.parts)


def size_of(result: ToolResult) -> int:
    """In characters of text that cost about as much."""
    return sum(_weight(part) for part in result.content)


def _weight(part: Part) -> int:
    if isinstance(part, Text):
        return len(part.text)
    if part.data and not part.mime.startswith("image/"):
        return len(part.data) // _PER_CHARACTER
    return min(len(part.data) or _IMAGE, _IMAGE)


def _cut(result: ToolResult, line: int) -> ToolResult:
    """Media are removed first if they are most of it. `native` would be sent unchanged, so it is always removed."""
    parts = result.content
    text = len(result.text)
    if size_of(result) > 2 * text:
        parts = _without_media(parts, line)
    left = sum(_weight(part) for part in parts if isinstance(part, Media))
    if left and line - left < LEAST:
        parts, left = _without_media(parts, 0), 0
    if text + left - line >= _WORTH:
        parts = without_middle(parts, max(LEAST, line - left), _WHY)
    return replace(result, content=parts, native=None)


def _without_media(parts: tuple[Part, ...], line: int) -> tuple[Part, ...]:
    """Replaces the largest ones by a note until the rest is no longer than the line."""
    size = sum(map(_weight, parts))
    kept = list(parts)
    media = [(at, part) for at, part in enumerate(parts) if isinstance(part, Media)]
    for at, part in sorted(media, key=lambda entry: _weight(entry[1]), reverse=True):
        if size <= line:
            break
        kept[at] = Text(f"[{_called(part)} {_WHY}]", part.cache)
        size -= _weight(part)
    return tuple(kept)


def _called(media: Media) -> str:
    what = "an image" if media.mime.startswith("image/") else "a file"
    about = ", ".join(word for word in (media.name, media.mime) if word)
    return f"{what} ({about})" if about else what


def without_middle(parts: Sequence[Part], kept: int, why: str) -> tuple[Part, ...]:
    """The parts with this many characters of text. The end is often what matters, so both ends are kept."""
    whole = "".join(part.text for part in parts if isinstance(part, Text))
    head = before_cluster(whole, kept - kept // 2)
    tail = before_cluster(whole, len(whole) - kept // 2)
    notice = f"\n\n[... {tail - head:,} characters {why} ...]\n\n"
    left: list[Part] = []
    at = 0
    for part in parts:
        if isinstance(part, Media):
            left.append(part)
            continue
        start, at = at, at + len(part.text)
        text = whole[start : min(at, head)] + (notice if start <= head < at else "") + whole[max(start, tail) : at]
        if text:
            left.append(Text(text, part.cache))
    return tuple(left)


def before_cluster(text: str, at: int) -> int:
    """The place at or shortly before `at` that does not split a grapheme cluster."""
    for place in range(at, max(at - 32, 0), -1):
        if place >= len(text) or not _joined(text, place):
            return place
    return at


def _joined(text: str, at: int) -> bool:
    before, after = text[at - 1], text[at]
    if before == "\u200d" or after == "\u200d":
        return True
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":
        return True
    if _is_flag(before) and _is_flag(after):
        run = 0
        while run < at and _is_flag(text[at - 1 - run]):
            run += 1
        return run % 2 == 1
    return unicodedata.category(after) in ("Mn", "Mc", "Me")


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


# How long a history is, in characters: for estimates, if tokens are not reported.


CHARACTERS_PER_TOKEN = 4
"""For estimates, where a provider reports no usage."""


def characters(message: Message) -> int:
    """For estimates. Media are left out: every provider counts them differently."""
    if isinstance(message, Assistant):
        count = len(message.text) + len(message.reasoning)
        for call in message.calls:
            count += len(call.name) + len(call.raw)
        return count
    if isinstance(message, ToolMessage):
        return _texts([part for result in message.results for part in result.content])
    return _texts(message.parts)


def _texts(parts: Sequence[Part]) -> int:
    return sum([len(part.text) for part in parts if isinstance(part, Text)])
