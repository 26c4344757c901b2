"""What a spelling is: the stretches of one scripted answer, and how a wire tells that each begins, grows and ends."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

from unbroken.messages import Json
from unbroken.models.script import Uses
from unbroken.verdicts import Meaning
from unbroken.wires.jsontext import dumps
from unbroken.wires.values import Object

Kind: TypeAlias = Literal["text", "reasoning", "call"]


@dataclass(slots=True, eq=False)
class Item:
    """One stretch of an answer: text, reasoning or a call. `id` empty: none is sent."""

    kind: Kind
    id: str = ""
    name: str = ""
    texts: list[str] = field(default_factory=list[str])
    whole: bool = True

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def arguments(self) -> Object | None:
        """A call's arguments as an object, None where they are not whole."""
        try:
            value: Json = json.loads(self.text)
        except ValueError:
            return None
        return cast("Object", value) if isinstance(value, dict) else None


class Spelling(ABC):
    """One answer on one wire. Items follow each other: `open`, `grow` as often as there are pieces, `close`."""

    def __init__(self, model: str, id: str) -> None:
        self.model = model
        self.id = id
        self.items: list[Item] = []
        self.usage: Uses | None = None

    @property
    def calls(self) -> list[Item]:
        return [item for item in self.items if item.kind == "call"]

    def begin(self) -> bytes:
        """What comes before the first item."""
        return b""

    def open(self, item: Item) -> bytes:
        self.items.append(item)
        return self._opened(item)

    def grow(self, text: str) -> bytes:
        self.items[-1].texts.append(text)
        return self._grown(self.items[-1], text)

    def close(self) -> bytes:
        return self._closed(self.items[-1])

    @abstractmethod
    def end(self, meaning: Meaning) -> bytes: ...

    @abstractmethod
    def body(self, meaning: Meaning) -> bytes: ...

    @abstractmethod
    def error(self, message: str) -> Object: ...

    def error_event(self, message: str) -> bytes:
        return data(self.error(message))

    def _opened(self, item: Item) -> bytes:
        return b""

    def _grown(self, item: Item, text: str) -> bytes:
        return b""

    def _closed(self, item: Item) -> bytes:
        return b""

    def _joined(self, kind: Kind) -> str:
        return "".join(item.text for item in self.items if item.kind == kind)


def data(event: Object) -> bytes:
    return b"data: " + dumps(event) + b"\n\n"


def named(event: Object) -> bytes:
    """An event that also has its type on a line of its own."""
    return b"event: " + event["type"].encode() + b"\n" + data(event)
