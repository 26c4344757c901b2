"""Reads a YAML file into values that know their line. Hostile files end in an error that names the line: repeated keys,
aliases that multiply or contain themselves, tags that create Python objects, and nesting without end.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from unbroken.errors import UserError, needs_extra

Scalar: TypeAlias = str | int | float | bool | None

LARGEST_FILE = 4 << 20
MOST_VALUES = 50_000
"""All files together, with each alias counted as often as it is used."""
DEEPEST = 100
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the file; `path` is how you find it there, like `model_list[0].litellm_params.api_key`."""

    data: dict[str, Value] | list[Value] | Scalar
    file: str
    line: int
    path: str = ""

    def items(self) -> Iterator[tuple[str, Value]]:
        """The items of a mapping; nothing if it is none."""
        return iter(self.data.items() if isinstance(self.data, dict) else ())

    def get(self, key: str) -> Value | None:
        """The value of a key; None if it is missing, or empty (`key:` alone, or `null`)."""
        found = self.data.get(key) if isinstance(self.data, dict) else None
        return None if found is None or found.data is None else found

    def __iter__(self) -> Iterator[Value]:
        """The items of a list; nothing if it is none."""
        return iter(self.data if isinstance(self.data, list) else ())

    @property
    def plain(self) -> Any:
        """As Python has it, without lines."""
        if isinstance(self.data, dict):
            return {key: value.plain for key, value in self.data.items()}
        return [item.plain for item in self.data] if isinstance(self.data, list) else self.data


def read_yaml(path: str) -> Value:
    """The file, with the files that its `include` names. Raises `UserError`."""
    budget = [MOST_VALUES]
    root = _read_file(path, budget)
    return _with_includes(root, {str(Path(path).resolve())}, budget)


def _with_includes(root: Value, seen: set[str], budget: list[int]) -> Value:
    """Merges as LiteLLM does: lists are joined, the included file's value replaces any other. A file is read once."""
    merged = dict(root.items())
    named = merged.pop("include", None)
    if named is not None and not (isinstance(named.data, list) and all(isinstance(item.data, str) for item in named)):
        raise UserError(f"{named.file}:{named.line}: include has to be a list of file names")
    for item in named or ():
        file = Path(root.file).parent / str(item.data)
        if str(file.resolve()) in seen:
            continue
        seen.add(str(file.resolve()))
        if not file.is_file():
            raise UserError(f"{item.file}:{item.line}: {item.path} names {file}, which is not a file")
        for key, value in _with_includes(_read_file(str(file), budget), seen, budget).items():
            before = merged.get(key)
            if before is not None and isinstance(before.data, list) and isinstance(value.data, list):
                together = (*before, *value)
                value = Value([_at(each, f"{key}[{n}]") for n, each in enumerate(together)], before.file, before.line)
            merged[key] = value
    return Value(merged, root.file, root.line)


def _at(value: Value, path: str) -> Value:
    """The same value at another place of the document."""
    data = value.data
    if isinstance(data, dict):
        data = {key: _at(inner, f"{path}.{key}") for key, inner in data.items()}
    elif isinstance(data, list):
        data = [_at(inner, f"{path}[{n}]") for n, inner in enumerate(data)]
    return Value(data, value.file, value.line, path)


def _read_file(path: str, budget: list[int]) -> Value:
    text = _text(path)
    try:
        yaml: Any = importlib.import_module("yaml")
    except ModuleNotFoundError:
        raise needs_extra(f"{path}: YAML", "the package PyYAML", "yaml") from None
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None or root.id != "mapping":
            raise UserError(f"{path}: this is not a configuration of LiteLLM: it must be a mapping with model_list")
        return _Reader(loader, path, budget).read(root, "", ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # Not the whole message: it quotes the text, which may be a key.
        words = error.problem if error.problem and len(error.problem) < 80 else "it cannot be parsed"
        raise UserError(f"{path}:{mark.line + 1 if mark else 1}: this is not YAML: {words}") from None
    except yaml.YAMLError:
        raise UserError(f"{path}: this is not YAML: it has characters that YAML does not allow") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply") from None
    finally:
        if loader is not None:
            loader.dispose()


def _text(path: str) -> str:
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder: name the file in it") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > LARGEST_FILE:
        raise UserError(f"{path} has more than {LARGEST_FILE >> 20} MiB: this is hardly a configuration")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text") from None


class _Reader:
    def __init__(self, loader: Any, file: str, budget: list[int]) -> None:
        self._loader = loader
        self._file = file
        self._budget = budget

    def read(self, node: Any, path: str, above: tuple[int, ...]) -> Value:
        line: int = node.start_mark.line + 1
        self._budget[0] -= 1
        if self._budget[0] < 0:
            raise UserError(f"{self._file}:{line}: more than {MOST_VALUES} values: aliases (*name) multiply here")
        if id(node) in above:
            raise UserError(f"{self._file}:{line}: {path or 'it'} contains itself, by an alias (*name)")
        if len(above) > DEEPEST:
            raise UserError(f"{self._file}:{line}: nested too deeply")
        if node.id != "scalar" and node.tag not in _PLAIN_TAGS:
            raise UserError(f"{self._file}:{line}: this is not YAML: the tag of {path or 'it'} is not allowed")
        above = (*above, id(node))
        if node.id == "mapping":
            return Value(self._mapping(node, path, above), self._file, line, path)
        if node.id == "sequence":
            data = [self.read(each, f"{path}[{n}]", above) for n, each in enumerate(node.value)]
            return Value(data, self._file, line, path)
        try:
            scalar = self._loader.construct_object(node)
        except ValueError:  # a number or a date that is none, like 99:99:99 or 2024-13-45
            scalar = node.value
        return Value(scalar if isinstance(scalar, Scalar) else str(scalar), self._file, line, path)

    def _mapping(self, node: Any, path: str, above: tuple[int, ...]) -> dict[str, Value]:
        found: dict[str, Value] = {}
        merged: list[Any] = []
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.id != "scalar":
                raise UserError(f"{self._file}:{line}: a key has to be a text")
            name = str(key.value)
            if key.tag == "tag:yaml.org,2002:merge":
                merged += value.value if value.id == "sequence" else [value]
                continue
            if name in found:
                raise UserError(f"{self._file}:{line}: `{name}` is there twice")
            found[name] = self.read(value, f"{path}.{name}" if path else name, above)
        for node_merged in merged:
            if node_merged.id != "mapping":
                raise UserError(f"{self._file}:{node_merged.start_mark.line + 1}: << has to name a mapping")
            inner = self.read(node_merged, path, above)
            for name, value in inner.items():
                found.setdefault(name, value)
        return found


def as_mapping(value: Value | None) -> Mapping[str, Value]:
    return cast("Mapping[str, Value]", value.data) if value is not None and isinstance(value.data, dict) else {}
