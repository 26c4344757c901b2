"""cohere-v2: the Chat API v2 of Cohere, where a call often follows a plan in words (`tool_plan`)."""

from __future__ import annotations

from unbroken_wires.wires.cohere.cohere_decoder import MARKS, CohereDecoder, recognises
from unbroken_wires.wires.cohere.cohere_encoder import CohereEncoder, CohereProviderWriter, error_body, error_event
from unbroken_wires.wires.cohere.cohere_messages import NAME
from unbroken_wires.wires.cohere.cohere_relay import HISTORY, RELAY, CohereHttp, keep_first_call
from unbroken_wires.wires.cohere.cohere_requests import decode_request, encode_request
from unbroken_wires.wires.wire import Wire, on_demand

WIRE = Wire(
    name=NAME,
    http=CohereHttp(),
    encode_request=encode_request,
    decode_request=decode_request,
    id_rule=None,
    history=HISTORY,
    decoder=CohereDecoder,
    encoder=CohereEncoder,
    provider_writer=CohereProviderWriter,
    error_body=error_body,
    error_event=error_event,
    keep_first_call=keep_first_call,
    relay=RELAY,
    recognises=recognises,
    marks=MARKS,
    for_tests=on_demand(f"{__name__}.cohere_strict", "FOR_TESTS"),
    crossing=on_demand(f"{__name__}.cohere_crossing", "CROSSING"),
    rules=on_demand(f"{__name__}.cohere_rules", "RULES"),
    imitates="openai-chat",
    sign_is_last=True,
    native_has_text=False,
)

__all__ = ["WIRE", "CohereDecoder", "CohereEncoder"]
