"""gemini: `generateContent` and `streamGenerateContent`, of the Gemini API and of Vertex AI."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from unbroken_wires.wires.gemini.gemini_contents import mend_refused, sign_with_placeholder
from unbroken_wires.wires.gemini.gemini_decoder import MARKS, GeminiDecoder, recognises
from unbroken_wires.wires.gemini.gemini_encoder import GeminiEncoder, GeminiProviderWriter, error_body, error_event
from unbroken_wires.wires.gemini.gemini_parts import NAME, NAME_RULE
from unbroken_wires.wires.gemini.gemini_relay import HISTORY, RELAY, GeminiHttp, keep_first_call
from unbroken_wires.wires.gemini.gemini_requests import decode_request, encode_request
from unbroken_wires.wires.wire import Wire

if TYPE_CHECKING:
    from unbroken_wires.wires.crossing import Crossing
    from unbroken_wires.wires.event_shapes import ForTests
    from unbroken_wires.wires.rules import Rule
    from unbroken_wires.wires.server_tools import ServerTools


def _for_tests() -> ForTests:
    from unbroken_wires.wires.gemini.gemini_strict import FOR_TESTS  # noqa: PLC0415 - start-up time

    return FOR_TESTS


@cache
def _crossing() -> Crossing:
    from unbroken_wires.wires.gemini.gemini_crossing import CROSSING  # noqa: PLC0415 - start-up time

    return CROSSING


def _rules() -> tuple[Rule, ...]:
    from unbroken_wires.wires.gemini.gemini_rules import RULES  # noqa: PLC0415 - start-up time

    return RULES


def _server_tools() -> ServerTools:
    from unbroken_wires.wires.gemini.gemini_server_tools import SERVER_TOOLS  # noqa: PLC0415 - start-up time

    return SERVER_TOOLS


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
    for_tests=_for_tests,
    rules=_rules,
    crossing=_crossing,
    server_tools=_server_tools,
    lost_reasoning={"placeholder": sign_with_placeholder},
    mend_refused=mend_refused,
)

__all__ = ["WIRE", "GeminiDecoder", "GeminiEncoder"]
