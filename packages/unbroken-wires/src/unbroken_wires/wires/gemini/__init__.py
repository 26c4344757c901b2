"""gemini: `generateContent` and `streamGenerateContent`, of the Gemini API and of Vertex AI."""

from __future__ import annotations

from unbroken_wires.wires.gemini.gemini_contents import mend_refused, sign_with_placeholder
from unbroken_wires.wires.gemini.gemini_decoder import MARKS, GeminiDecoder, recognises
from unbroken_wires.wires.gemini.gemini_encoder import GeminiEncoder, GeminiProviderWriter, error_body, error_event
from unbroken_wires.wires.gemini.gemini_parts import NAME, NAME_RULE
from unbroken_wires.wires.gemini.gemini_relay import HISTORY, RELAY, GeminiHttp, keep_first_call
from unbroken_wires.wires.gemini.gemini_requests import decode_request, encode_request
from unbroken_wires.wires.wire import Wire, on_demand

WIRE = Wire(
    name=NAME,
    http=GeminiHttp(),
    encode_request=encode_request,
    decode_request=decode_request,
    id_rule=None,
    name_rule=NAME_RULE,
    history=HISTORY,
    decoder=GeminiDecoder,
    encoder=GeminiEncoder,
    provider_writer=GeminiProviderWriter,
    error_body=error_body,
    error_event=error_event,
    keep_first_call=keep_first_call,
    relay=RELAY,
    recognises=recognises,
    marks=MARKS,
    for_tests=on_demand(f"{__name__}.gemini_strict", "FOR_TESTS"),
    rules=on_demand(f"{__name__}.gemini_rules", "RULES"),
    crossing=on_demand(f"{__name__}.gemini_crossing", "CROSSING"),
    server_tools=on_demand(f"{__name__}.gemini_server_tools", "SERVER_TOOLS"),
    lost_reasoning={"placeholder": sign_with_placeholder},
    mend_refused=mend_refused,
)

__all__ = ["WIRE", "GeminiDecoder", "GeminiEncoder"]
