"""anthropic-messages: the Messages API, where an answer is a list of blocks, each with its own begin and end.

One room for the wire: `decoder` and `encoder` are the corners of responses, `requests` has both corners of requests.
"""

from unbroken.wires.anthropic.decoder import MessagesDecoder
from unbroken.wires.anthropic.encoder import MessagesEncoder
from unbroken.wires.anthropic.parts import NAME
from unbroken.wires.anthropic.requests import decode_request, encode_request
from unbroken.wires.wire import Wire

WIRE = Wire(NAME, MessagesDecoder, MessagesEncoder, encode_request, decode_request, sign_is_last=True)

__all__ = ["WIRE", "MessagesDecoder", "MessagesEncoder"]
