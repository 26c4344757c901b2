"""gemini, the parts of a content in both directions: text, media, parts that only this wire knows, streamed arguments.

`Parts` keeps parts as they came, `plain` tests whether our own fields cover them, `PartialArguments` collects arguments
that arrive as values at JSON paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from unbroken_wires.messages import Json, Media, Native, Part, Text
from unbroken_wires.wires.content_parts import FOREIGN, foreign_text, from_data_url, is_foreign, is_passage, own_native
from unbroken_wires.wires.json_access import IdRule, Object, as_dict, as_text, dicts
from unbroken_wires.wires.jsontext import MAX_DEPTH, dump_arguments

NAME = "gemini"
NAME_RULE = IdRule(64, "[a-zA-Z0-9_.:-]", first="[a-zA-Z_]")
"""Names of functions. Vertex AI accepts no longer ones."""


def encode_part(part: Part) -> Object:
    if isinstance(part, Text):
        return {"text": part.text}
    if native := as_dict(own_native(part, NAME)):
        return native
    if is_foreign(part):
        return {"text": FOREIGN}
    if is_passage(part):  # its title and source would be lost in a file
        return {"text": foreign_text(part)}
    if part.url.startswith("data:"):
        inline = from_data_url(part.url)
        part = inline if inline.data else part
    # A file's name is left out: Vertex takes `displayName`, the Gemini API refuses it.
    if part.data:
        return {"inlineData": {"mimeType": part.mime, "data": part.data}}
    return {"fileData": {"fileUri": part.url, **({"mimeType": part.mime} if part.mime else {})}}


def decode_parts(parts: Sequence[Object]) -> tuple[Part, ...]:
    return tuple(_decode_part(part) for part in parts if says_something(part))


def _decode_part(part: Object) -> Part:
    inline, file = as_dict(part.get("inlineData")), as_dict(part.get("fileData"))
    data, url = as_text(inline.get("data")), as_text(file.get("fileUri"))
    mime = as_text((inline or file).get("mimeType"))
    blob = inline if data and mime else file
    if not (data and mime) and not url:
        text = part.get("text")
        return Text(text) if isinstance(text, str) else Media(native=Native(NAME, part))
    said_all = len(part) == 1 and blob.keys() <= {"mimeType", "data" if blob is inline else "fileUri"}
    return Media(
        mime=mime,
        data=data if blob is inline else "",
        url=url if blob is file else "",
        name=as_text(blob.get("displayName")),
        native=None if said_all else Native(NAME, part),
    )


def parts_of(content: Json) -> list[Object]:
    """The parts of a content, with their names in camelCase. One part may stand alone, a text without its part."""
    if isinstance(content, str):
        return [{"text": content}]
    parts = as_dict(content).get("parts")
    parts = [{"text": parts}] if isinstance(parts, str) else listed(parts)
    return [camel_part(part) for part in dicts(parts)]


def listed(value: Json) -> list[Json]:
    return cast("list[Json]", value) if isinstance(value, list) else [value] if isinstance(value, dict) else []


Path: TypeAlias = tuple[str | int, ...]

GROUNDING = "groundingMetadata"
"""What an answer cites. It comes beside the parts, is kept as the last of them, and is not sent back."""
TEXT_KEYS = frozenset(("text", "thought"))

_HUMP = re.compile(r"_([a-z])")


def camel(value: Object) -> Object:
    """The names of one level in camelCase: the API takes both spellings, and some of its clients and proxies write
    responses in the other one."""
    return {_HUMP.sub(_upper, key): item for key, item in value.items()}


def _upper(found: re.Match[str]) -> str:
    return found.group(1).upper()


def camel_part(part: Object) -> Object:
    """A part with its own names and those of the object in it; never those of arguments and results. Without the
    fields that are null: the client libraries print every field that a part could have."""
    return {
        key: camel(cast("Object", item)) if isinstance(item, dict) else item
        for key, item in camel(part).items()
        if item is not None
    }


def says_something(part: Object) -> bool:
    """Has it any data? The API refuses a part without ("required oneof field 'data'"), but not an empty text that
    carries a signature."""
    return not part.keys() <= TEXT_KEYS or bool(part.get("text"))


class Parts:
    """Parts in the order in which they came. Texts of one kind that follow each other become one part; a part that
    carries anything else (a signature) is kept by itself, because the signature belongs to exactly that part."""

    def __init__(self) -> None:
        self._done: list[Object] = []
        self._run: list[str] = []
        self._thought = False

    def text(self, text: str, thought: bool = False) -> None:
        if not text:
            return  # Vertex refuses an empty text in a request
        if thought is not self._thought:
            self._end_run()
            self._thought = thought
        self._run.append(text)

    def add(self, part: Object) -> None:
        self._end_run()
        self._done.append(part)

    def whole(self) -> list[Object]:
        self._end_run()
        return self._done

    def kept(self) -> object:
        """The same, before the last text has ended."""
        return self._done, self._run

    def _end_run(self) -> None:
        if self._run:
            part: Object = {"text": "".join(self._run)}
            if self._thought:
                part["thought"] = True
            self._done.append(part)
            self._run = []


def plain(parts: Sequence[Object]) -> bool:
    """Nothing but one text, then calls: our own fields cover it, nothing has to be kept."""
    texts = calls = 0
    for part in parts:
        if len(part) != 1:
            return False
        if isinstance(part.get("text"), str):
            texts += 1
            if calls or texts > 1:
                return False
            continue
        call = part.get("functionCall")
        if not isinstance(call, dict):
            return False
        call = cast("Object", call)
        if not {"name", "args"} <= call.keys() <= {"name", "args", "id"} or not isinstance(call["args"], dict):
            return False
        calls += 1
    return True


class PartialArguments:
    """One object from `partialArgs`: values at JSON paths, a string in several pieces where it has `willContinue`.

    Strict: a path that cannot be, a value given twice, or a value that goes on elsewhere raises ValueError. While the
    values come in the order of the document, as they do, `feed` also gives the JSON text that each of them adds.
    """

    def __init__(self) -> None:
        self.value: Object = {}
        self._path_text = ""
        self._last: Path = ()
        self._string: list[str] | None = None
        self._in_order = True

    def feed(self, partial: Json) -> str:
        if not isinstance(partial, dict):
            raise ValueError("a partial argument is not an object")
        partial = cast("Object", partial)
        path_text = partial.get("jsonPath")
        path = self._last if path_text == self._path_text and self._last else parse_path(path_text)
        goes_on = partial.get("willContinue") is True
        text = ""
        if self._string is None or path != self._last:
            if self._string is not None:
                raise ValueError(f"the string at {self._path_text} said that it would go on, but another value began")
            value = _value(partial)
            text += self._put(path, value, "" if isinstance(value, str) else json.dumps(value, allow_nan=False))
            self._path_text = cast("str", path_text)
            if not isinstance(value, str):
                if goes_on:
                    raise ValueError(f"only a string can go on, but the value at {path_text} says that it will")
                return self._told(text)
            self._string = [value]
            text += f'"{_escaped(value)}'
        else:
            piece = partial.get("stringValue", "")
            if not isinstance(piece, str) or any(key in partial for key in _VALUES if key != "stringValue"):
                raise ValueError(f"the string at {path_text} goes on as something else")
            self._string.append(piece)
            text = _escaped(piece)
        if not goes_on:
            text += self._end_string()
        return self._told(text)

    def feed_object(self, arguments: Object) -> str:
        """Complete arguments in a part of a streamed call."""
        text = ""
        if self._string is not None:
            raise ValueError(f"the string at {self._path_text} said that it would go on, but it did not")
        for key, value in arguments.items():
            if key not in self.value:
                text += self._put((key,), value, dump_arguments(value) or "")
            elif self.value[key] != value:
                raise ValueError(f"the argument {key} is given twice")
        return self._told(text)

    def end(self) -> str | None:
        """The text that closes the object, or None if a value was to continue."""
        if self._string is not None:
            return None
        return self._told(_closing(self._last, 0) + "}")

    def text(self) -> str | None:
        """The complete text, where the values did not come in the order of the document; None where `feed` gave it."""
        return None if self._in_order else dump_arguments(self.value)

    def _told(self, text: str) -> str:
        return text if self._in_order else ""

    def _end_string(self) -> str:
        if self._string is None:
            return ""
        container: Any = self.value
        for step in self._last[:-1]:
            container = container[step]
        container[self._last[-1]] = "".join(self._string)
        self._string = None
        return '"'

    def _put(self, path: Path, value: Json, value_text: str) -> str:
        """Set the value; give the text that leads to it from the value before."""
        container: Any = self.value
        fresh = len(path) - 1
        for depth, step in enumerate(path[:-1]):
            if _is_new(container, step):
                fresh = min(fresh, depth)
                _set(container, step, [] if isinstance(path[depth + 1], int) else {})
            container = container[step]
        if not _is_new(container, path[-1]):
            raise ValueError(f"the value at {path} is given twice")
        _set(container, path[-1], value)
        last, self._last = self._last, path
        common = 0
        while common < min(len(last), len(path)) - 1 and last[common] == path[common]:
            common += 1
        if fresh > common:
            self._in_order = False
        return _closing(last, common) + ("," if last else "") + _opening(path, common) + value_text


def _is_new(container: Any, step: str | int) -> bool:
    """Is there nothing yet at this place? Raises where the container is of another kind or the place is too far."""
    if isinstance(step, str) and isinstance(container, dict):
        return step not in container
    if isinstance(step, int) and isinstance(container, list) and step <= len(cast("list[Json]", container)):
        return step == len(cast("list[Json]", container))
    raise ValueError(f"there is no place for {step!r}")


def _set(container: Any, step: str | int, value: Json) -> None:
    if isinstance(step, int):
        container.append(value)
    else:
        container[step] = value


def _opening(path: Path, depth: int) -> str:
    text: list[str] = []
    for at in range(depth, len(path)):
        step = path[at]
        if isinstance(step, str):
            text.append(f'"{_escaped(step)}":')
        if at + 1 < len(path):
            text.append("[" if isinstance(path[at + 1], int) else "{")
    return "".join(text)


def _closing(path: Path, depth: int) -> str:
    return "".join("]" if isinstance(step, int) else "}" for step in reversed(path[depth + 1 :]))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _value(partial: Object) -> Json:
    match {key: partial[key] for key in _VALUES if key in partial}:
        case {"stringValue": str(value)} as only if len(only) == 1:
            return value
        case {"boolValue": bool(value)} as only if len(only) == 1:
            return value
        case {"numberValue": int() | float() as value} as only if len(only) == 1 and not isinstance(value, bool):
            return value
        case {"nullValue": _} as only if len(only) == 1:
            return None
        case _:
            raise ValueError(f"a partial argument has no single value: {sorted(partial)}")


_VALUES = ("stringValue", "numberValue", "boolValue", "nullValue")

_STEP = re.compile(r"""\.([^.\[\]'"]+)|\[(\d{1,7})\]|\['((?:[^'\\]|\\.)*+)'\]|\[("(?:[^"\\]|\\.)*+")\]""", re.DOTALL)


def parse_path(path: Json) -> Path:
    """The steps of a path like `$.a.b[0]['c d']`: what RFC 9535 calls a normalized path, and the dotted short form."""
    if not isinstance(path, str) or path[:1] != "$":
        raise ValueError(f"not a JSON path: {str(path)[:100]}")
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None or len(steps) == MAX_DEPTH:
            raise ValueError(f"not a JSON path that names one value: {path[:100]}")
        at = found.end()
        dotted, index, single, double = found.groups()
        if index is not None:
            steps.append(int(index))
        elif dotted is not None:
            steps.append(dotted)
        else:
            if double is None:
                single = re.sub(r'\\.|"', lambda m: {"\\'": "'", '"': '\\"'}.get(m.group(), m.group()), single)
                double = f'"{single}"'
            steps.append(cast("str", json.JSONDecoder(strict=False).decode(double)))
    if not steps or not isinstance(steps[0], str):
        raise ValueError(f"not a path to an argument: {path[:100]}")
    return tuple(steps)
