"""gemini: `generateContent` and `streamGenerateContent`, of the Gemini API and of Vertex AI.

One room for the wire: `decoder` and `encoder` are the corners of responses, `requests` has both corners of requests.
"""

from unbroken.wires.gemini.decoder import GeminiDecoder
from unbroken.wires.gemini.encoder import GeminiEncoder
from unbroken.wires.gemini.media import NAME
from unbroken.wires.gemini.requests import decode_request, encode_request
from unbroken.wires.wire import Wire

WIRE = Wire(NAME, GeminiDecoder, GeminiEncoder, encode_request, decode_request)

__all__ = ["WIRE", "GeminiDecoder", "GeminiEncoder"]
