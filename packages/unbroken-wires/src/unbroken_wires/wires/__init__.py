"""The wires, which are providers' protocols, by name. Each is a package of its own; a new one needs its lines here,
or it is in another distribution, which names it in an entry point.

A wire is imported when it is first used, because a program uses one or two of them and each takes some milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from unbroken_wires.errors import UnknownWire
from unbroken_wires.plugins import load, misnamed, plugins
from unbroken_wires.wires.wire import Wire

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def _openai_chat() -> Wire:
    from unbroken_wires.wires.openai_chat import WIRE  # noqa: PLC0415 - start-up time

    return WIRE


def _openai_responses() -> Wire:
    from unbroken_wires.wires.openai_responses import WIRE  # noqa: PLC0415 - start-up time

    return WIRE


def _anthropic() -> Wire:
    from unbroken_wires.wires.anthropic import WIRE  # noqa: PLC0415 - start-up time

    return WIRE


def _gemini() -> Wire:
    from unbroken_wires.wires.gemini import WIRE  # noqa: PLC0415 - start-up time

    return WIRE


def _ollama() -> Wire:
    from unbroken_wires.wires.ollama import WIRE  # noqa: PLC0415 - start-up time

    return WIRE


def _cohere() -> Wire:
    from unbroken_wires.wires.cohere import WIRE  # noqa: PLC0415 - start-up time

    return WIRE


def _bedrock() -> Wire:
    from unbroken_wires.wires.bedrock import WIRE  # noqa: PLC0415 - start-up time

    return WIRE


DEFAULT_WIRE = "openai-chat"
"""The wire that other servers imitate: assumed where none is named, and the one that quirks are made for."""

_IMPORTS: dict[str, Callable[[], Wire]] = {
    DEFAULT_WIRE: _openai_chat,
    "openai-responses": _openai_responses,
    "anthropic-messages": _anthropic,
    "gemini": _gemini,
    "ollama": _ollama,
    "cohere-v2": _cohere,
    "bedrock-converse": _bedrock,
}
_imported: dict[str, Wire] = {}

GROUP = "unbroken.wires"
"""The entry points by which other packages add wires."""
_TITLE = "wire `{}`"


class _Wires(Mapping[str, Wire]):
    """Names are known without importing what they name."""

    def __getitem__(self, name: str) -> Wire:
        if name not in _imported:
            _imported[name] = _IMPORTS[name]() if name in _IMPORTS else _added(name)
        return _imported[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_IMPORTS)

    def __len__(self) -> int:
        return len(_IMPORTS)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in _IMPORTS or name in _plugins())


def _plugins() -> Mapping[str, EntryPoint]:
    return plugins(GROUP, _TITLE, _IMPORTS, "unbroken-wires")


def _added(name: str) -> Wire:
    point = _plugins()[name]
    wire = load(point, _TITLE)
    if not isinstance(wire, Wire) or wire.name != name:
        raise misnamed(point, _TITLE, Wire)
    return wire


WIRES: Mapping[str, Wire] = _Wires()
"""By name. Iteration gives those that are built in; any other name is looked for among the entry points."""


def find_wire(name: str) -> Wire:
    """The wire of that name; the error lists the known names."""
    if (wire := _imported.get(name)) is not None:
        return wire
    try:
        return WIRES[name]
    except KeyError:
        raise UnknownWire(f"there is no wire {name!r}; there are: {', '.join([*WIRES, *_plugins()])}") from None


__all__ = ["DEFAULT_WIRE", "WIRES", "Wire", "find_wire"]
