"""The usage in an answer that is passed through: of a JSON body, or of the last event of a stream that has one."""

from __future__ import annotations

from collections.abc import Sequence

from unbroken.errors import StreamError
from unbroken_gateway.http.large_requests import off_loop
from unbroken_wires.messages import Json, Usage
from unbroken_wires.wires.json_access import Object, as_dict, as_int
from unbroken_wires.wires.jsontext import loads

MOST = 32 << 20
"""An answer with more bytes is not read."""


class PassedUsage:
    """Feed it the bytes of an answer, as they are sent to the client."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._is_text = True
        self.events = 0
        """How many events of a stream have arrived."""

    def feed(self, data: bytes) -> None:
        if not self._size and data:
            self._is_text = data.lstrip()[:1] in (b"{", b"d", b"e", b":")  # an object or events, and not audio
        self._size += len(data)
        if self._size > MOST or not self._is_text:
            self._parts.clear()
        else:
            self._parts.append(data)
            self.events += data.count(b"data:")

    async def read(self) -> Usage | None:
        """None if the answer has no usage in tokens."""
        return await off_loop(self._size, self._read) if self._parts else None

    def _read(self) -> Usage | None:
        data = b"".join(self._parts)
        if b'"usage"' not in data:
            return None
        if data.lstrip()[:1] == b"{":
            return usage_in(data)
        events = (line[5:] for line in reversed(data.splitlines()) if line.startswith(b"data:") and b'"usage"' in line)
        return next((usage for event in events if (usage := usage_in(event)) is not None), None)


def usage_in(data: bytes, kinds: Sequence[str] = ()) -> Usage | None:
    """`kinds`: the types of events that report usage; of any other it is None."""
    try:
        body = as_dict(loads(data))
    except StreamError:
        return None
    if kinds and body.get("type") not in kinds:
        return None
    return read_usage(as_dict(body.get("usage") or as_dict(body.get("response")).get("usage")))


def read_usage(raw: Object) -> Usage | None:
    """OpenAI has three sets of names. None if none of them is there, as for audio that is paid by the second."""
    into = as_dict(_first(raw, "input_tokens_details", "prompt_tokens_details", "input_token_details"))
    out = as_dict(_first(raw, "output_tokens_details", "completion_tokens_details", "output_token_details"))
    read, written, total = raw.get("input_tokens", raw.get("prompt_tokens")), _written(raw), raw.get("total_tokens")
    if read is None and total is None:
        return None
    return Usage(
        input_tokens=as_int(read) if read is not None else as_int(total) - written,
        output_tokens=written,
        cached_tokens=as_int(into.get("cached_tokens")),
        reasoning_tokens=as_int(out.get("reasoning_tokens")),
        raw=raw,
    )


def _first(raw: Object, *names: str) -> Json:
    return next((raw[name] for name in names if raw.get(name)), None)


def _written(raw: Object) -> int:
    written: Json = raw.get("output_tokens", raw.get("completion_tokens"))
    return as_int(written) if written is not None else 0
