"""Decoding alone: the bytes of a response become complete calls."""

from unbroken import CallReady, Decoder, Ended, decode, validate_tool_chain
from unbroken_wires.wires import find_wire

BODY = b'{"choices": [{"message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}]}'
response = decode(BODY)
assert response.text == "Hello." and [call.name for call in response.calls if call.complete] == []
decoder = Decoder("openai-chat")
deltas = [*decoder.feed(BODY), *decoder.end()]
assert [delta.verdict.whole for delta in deltas if isinstance(delta, Ended)] == [True]
assert not [delta.call.args for delta in deltas if isinstance(delta, CallReady)]
assert find_wire("openai-chat").name == "openai-chat" and validate_tool_chain([{"role": "user", "content": "Hi."}])
