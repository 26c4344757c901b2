"""ollama: `/api/chat`, the native protocol of Ollama: JSON lines, calls complete and mostly without ids."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from unbroken_wires.wires.framing import JSON_LINES
from unbroken_wires.wires.ollama.ollama_decoder import MARKS, OllamaDecoder, recognises
from unbroken_wires.wires.ollama.ollama_encoder import OllamaEncoder, OllamaProviderWriter, error_body, error_event
from unbroken_wires.wires.ollama.ollama_messages import NAME
from unbroken_wires.wires.ollama.ollama_relay import HISTORY, RELAY, OllamaHttp, keep_first_call
from unbroken_wires.wires.ollama.ollama_requests import decode_request, encode_request
from unbroken_wires.wires.wire import Wire

if TYPE_CHECKING:
    from unbroken_wires.wires.crossing import Crossing
    from unbroken_wires.wires.event_shapes import ForTests
    from unbroken_wires.wires.rules import Rule


@cache
def _crossing() -> Crossing:
    from unbroken_wires.wires.ollama.ollama_crossing import CROSSING  # noqa: PLC0415 - start-up time

    return CROSSING


def _rules() -> tuple[Rule, ...]:
    from unbroken_wires.wires.ollama.ollama_rules import RULES  # noqa: PLC0415 - start-up time

    return RULES


@cache
def _for_tests() -> ForTests:
    from unbroken_wires.wires.event_shapes import ForTests  # noqa: PLC0415 - start-up time
    from unbroken_wires.wires.ollama.ollama_strict import (  # noqa: PLC0415 - start-up time
        OllamaEvents,
        check_request,
        check_shape,
    )

    return ForTests(check_shape, check_request, OllamaEvents())


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
    for_tests=_for_tests,
    crossing=_crossing,
    rules=_rules,
    framing=JSON_LINES,
    imitates="openai-chat",
    sign_is_last=True,
    calls_leak=True,
    native_has_text=False,
)

__all__ = ["WIRE", "OllamaDecoder", "OllamaEncoder"]
