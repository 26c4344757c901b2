"""ollama: `/api/chat`, the native protocol of Ollama: JSON lines, calls complete and mostly without ids."""

from __future__ import annotations

from unbroken_wires.wires.framing import JSON_LINES
from unbroken_wires.wires.ollama.ollama_decoder import MARKS, OllamaDecoder, recognises
from unbroken_wires.wires.ollama.ollama_encoder import OllamaEncoder, OllamaProviderWriter, error_body, error_event
from unbroken_wires.wires.ollama.ollama_messages import NAME
from unbroken_wires.wires.ollama.ollama_relay import HISTORY, RELAY, OllamaHttp, keep_first_call
from unbroken_wires.wires.ollama.ollama_requests import decode_request, encode_request
from unbroken_wires.wires.wire import Wire, on_demand

WIRE = Wire(
    name=NAME,
    http=OllamaHttp(),
    encode_request=encode_request,
    decode_request=decode_request,
    id_rule=None,
    history=HISTORY,
    decoder=OllamaDecoder,
    encoder=OllamaEncoder,
    provider_writer=OllamaProviderWriter,
    error_body=error_body,
    error_event=error_event,
    keep_first_call=keep_first_call,
    relay=RELAY,
    recognises=recognises,
    marks=MARKS,
    for_tests=on_demand(f"{__name__}.ollama_strict", "FOR_TESTS"),
    crossing=on_demand(f"{__name__}.ollama_crossing", "CROSSING"),
    rules=on_demand(f"{__name__}.ollama_rules", "RULES"),
    framing=JSON_LINES,
    imitates="openai-chat",
    sign_is_last=True,
    calls_leak=True,
    native_has_text=False,
)

__all__ = ["WIRE", "OllamaDecoder", "OllamaEncoder"]
