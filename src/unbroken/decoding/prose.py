"""placeholder"""
from __future__ import annotations
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProseCall:
    name: str
    arguments: str
    dialect: str
    text: str


class Prose:
    def __init__(self, names: object) -> None:
        pass

    def feed(self, text: str) -> list[str | ProseCall]:
        return [text]

    def end(self) -> list[str | ProseCall]:
        return []
