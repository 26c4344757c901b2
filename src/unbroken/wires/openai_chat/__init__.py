"""openai-chat: Chat Completions, the protocol that most servers imitate and each bends in its own way.

One room for the wire: `decoder` and `encoder` are the corners of responses, `requests` has both corners of requests.
"""

from unbroken.wires.openai_chat.decoder import ChatDecoder
from unbroken.wires.openai_chat.encoder import ChatEncoder
from unbroken.wires.openai_chat.plain import read_plain
from unbroken.wires.openai_chat.requests import NAME, decode_request, encode_request
from unbroken.wires.wire import Wire

WIRE = Wire(
    NAME,
    ChatDecoder,
    ChatEncoder,
    encode_request,
    decode_request,
    done_ends=True,
    native_has_text=False,
    plain=read_plain,
)

__all__ = ["WIRE", "ChatDecoder", "ChatEncoder"]
