"""openai-responses: OpenAI's Responses API, where an answer is a list of items.

One room for the wire: `decoder` (with `reports`) and `encoder` are the corners of responses, `requests` has both
corners of requests, whose history `outgoing` writes and `incoming` reads; `items` and `parts` are known to all.
"""

from unbroken.wires.openai_responses.decoder import ResponsesDecoder
from unbroken.wires.openai_responses.encoder import ResponsesEncoder
from unbroken.wires.openai_responses.items import NAME
from unbroken.wires.openai_responses.requests import decode_request, encode_request
from unbroken.wires.wire import Wire

WIRE = Wire(
    NAME, ResponsesDecoder, ResponsesEncoder, encode_request, decode_request, native_has_text=False, sign_is_last=True
)

__all__ = ["WIRE", "ResponsesDecoder", "ResponsesEncoder"]
