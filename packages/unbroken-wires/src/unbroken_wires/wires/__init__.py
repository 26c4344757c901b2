"""The wires, which are providers' protocols, by name. Each is a package of its own; a new one needs its lines here.

A wire is imported when it is first used, because a program uses one or two of them and each takes some milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from unbroken_wires.errors import UnknownWire
from unbroken_wires.wires.wire import Wire


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


class _Wires(Mapping[str, Wire]):
    """Their names are known without importing them."""

    def __getitem__(self, name: str) -> Wire:
        if name not in _imported:
            _imported[name] = _IMPORTS[name]()
        return _imported[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_IMPORTS)

    def __len__(self) -> int:
        return len(_IMPORTS)

    def __contains__(self, name: object) -> bool:
        return name in _IMPORTS


WIRES: Mapping[str, Wire] = _Wires()


def find_wire(name: str) -> Wire:
    """The wire of that name; the error lists the known names."""
    if (wire := _imported.get(name)) is not None:
        return wire
    try:
        return WIRES[name]
    except KeyError:
        raise UnknownWire(f"there is no wire {name!r}; there are: {', '.join(WIRES)}") from None


__all__ = ["DEFAULT_WIRE", "WIRES", "Wire", "find_wire"]
