"""Compressed bodies of requests: gzip and deflate, with a limit on what comes out, so that a small body cannot fill the
memory."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from unbroken.asgi import Refused

ACCEPTED = "gzip, deflate"
_STEP = 256 << 10
_SHORT = 4 << 10
"""A compressed body up to this size is unpacked on the loop: at most 4 MB come out, in some milliseconds."""
_EITHER = 32 + zlib.MAX_WBITS
"""gzip or zlib, by the first bytes."""


async def decompressed(encoding: str, data: bytes, most: int, received: Callable[[int], None]) -> bytes:
    """The body without its `Content-Encoding`. `most` bytes may come out; `received` gets the number of bytes so far,
    and may raise."""
    name = encoding.strip().lower()
    if name == "identity" or not data:
        return data
    if name not in ("gzip", "x-gzip", "deflate"):
        words = f"the body is compressed with {encoding[:40]!r}: send it with {ACCEPTED}, or as it is"
        raise Refused(415, words, {"accept-encoding": ACCEPTED})
    if len(data) <= _SHORT:
        return _unpack(name, data, most, received)
    return await asyncio.to_thread(_unpack, name, data, most, received)


def _unpack(name: str, data: bytes, most: int, received: Callable[[int], None]) -> bytes:
    """Some clients send deflate without the header of zlib."""
    bare = name == "deflate" and (data[0] & 0x0F != 8 or int.from_bytes(data[:2]) % 31 != 0)
    unpacking = zlib.decompressobj(-zlib.MAX_WBITS if bare else _EITHER)
    parts: list[bytes] = []
    size, rest = 0, data
    try:
        while not unpacking.eof:
            part = unpacking.decompress(rest, _STEP)
            rest = unpacking.unconsumed_tail
            size += len(part)
            if size > most:
                words = f"the body has more than the {most:,} bytes that are allowed (`max_body`) after decompression"
                raise Refused(413, words)
            received(len(data) + size)
            parts.append(part)
            if not part and not rest:
                break
    except zlib.error:
        raise Refused(400, f"the body is not valid {name}") from None
    if not unpacking.eof or unpacking.unused_data:
        raise Refused(400, f"the body is not complete {name}, or something follows it")
    return b"".join(parts)
