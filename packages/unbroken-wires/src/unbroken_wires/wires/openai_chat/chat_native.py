"""openai-chat, what goes back to the provider with its answer, unchanged: reasoning under its various names, its
signatures, ids beyond our rule."""

from __future__ import annotations

from unbroken_wires.messages import Json
from unbroken_wires.wires.json_access import Object, as_list, as_text

KEPT = ("reasoning_opaque", "thinking_blocks", "provider_specific_fields")
"""GitHub Copilot's and LiteLLM's: not to be read, only to be given back."""


class ChatNative:
    """Collects it from the messages and chunks of one response."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}
        """Reasoning, by the name of its field."""
        self.long_ids = False
        self._kept: Object = {}
        self._details: _Pieces | None = None
        self._thinking: _Pieces | None = None
        self._begun: list[tuple[Object, Json, bool]] = []
        """Calls that were begun: each with its name, and whether it was in a complete message."""
        self._has_extras = False

    def add_call(self, call: Object, name: Json, whole: bool) -> None:
        self._begun.append((call, name, whole))
        self._has_extras = self._has_extras or "extra_content" in call

    def add_detail(self, detail: Object, whole: bool) -> None:
        details = self._details or _Pieces(("index", "type"), ("text", "summary", "data"))
        details.add(detail, apart=whole)  # raises if it has a place that cannot be one: then there is nothing to keep
        self._details = details

    def add_thinking(self, part: Object) -> None:
        thinking = self._thinking or _Pieces(("type",), ("thinking",))
        thinking.add(part)
        self._thinking = thinking

    def keep(self, message: Object) -> None:
        for name in KEPT:
            if message.get(name):
                self._kept[name] = message[name]
        if message.get("annotations"):
            known: list[Json] = self._kept.setdefault("annotations", [])
            # Some servers repeat all of them in each chunk.
            known += [one for one in as_list(message["annotations"]) if one not in known]

    def value(self) -> Json:
        value: Object = {}
        if self.texts or self._kept:
            value = {name: "".join(texts) for name, texts in self.texts.items()} | self._kept
        if self._details is not None:
            value["reasoning_details"] = self._details.whole()
        if self._thinking is not None:
            thinking = self._thinking.whole()
            value["content"] = [{**part, "thinking": [{"type": "text", "text": part["thinking"]}]} for part in thinking]
        if self._has_extras:
            extras = _Extras()
            for begun in self._begun:
                extras.add(*begun)
            if any(by_call := extras.by_call()):
                value["tool_calls"] = by_call
        # Ids beyond the rule have to travel back as they are.
        return value or ({} if self.long_ids else None)


class _Pieces:
    """Objects that come in pieces: those that agree in `place` are one, their `texts` grow, the rest is kept.

    OpenRouter sends `reasoning_details` so, Mistral its thinking. An object without its place, or with another id than
    the one at its place, stands for itself.
    """

    def __init__(self, place: tuple[str, ...], texts: tuple[str, ...]) -> None:
        self._place = place
        self._texts = texts
        self._all: list[tuple[Object, dict[str, list[str]]]] = []
        self._at: dict[tuple[Json, ...], tuple[Object, dict[str, list[str]]]] = {}

    def add(self, piece: Object, apart: bool = False) -> None:
        place = tuple(piece.get(key) for key in self._place)
        known = None if apart or None in place else self._at.get(place)
        if known is None or (piece.get("id") and known[0].get("id") and piece["id"] != known[0]["id"]):
            known = self._at[place] = ({}, {})
            self._all.append(known)
        fields, grown = known
        for key, value in piece.items():
            if key in self._texts and isinstance(value, str):
                grown.setdefault(key, []).append(value)
                fields.setdefault(key, "")
            elif value is not None or key not in fields:
                fields[key] = value

    def whole(self) -> list[Object]:
        return [{**fields, **{key: "".join(texts) for key, texts in grown.items()}} for fields, grown in self._all]


class _Extras:
    """Fields beside a call that have to go back with it: Gemini's thought signature in its OpenAI-compatible
    interface."""

    def __init__(self) -> None:
        self._by_key: dict[str, Object | None] = {}
        self._key_at: dict[Json, str] = {}

    def add(self, call: Object, name: Json, apart: bool = False) -> None:
        index, id = call.get("index"), as_text(call.get("id"))
        if apart:
            id = index = f"#{len(self._by_key)}"
        key = self._key_at.get(index, "") if not id or self._key_at.get(index) == id else id
        if not key or (name and key not in self._by_key):
            key = id or f"#{len(self._by_key)}"
        self._key_at[index] = key
        extra = call.get("extra_content")
        if extra or key not in self._by_key:
            self._by_key[key] = {"extra_content": extra} if extra else None

    def by_call(self) -> list[Object | None]:
        return list(self._by_key.values())
