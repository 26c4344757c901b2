"""A response is decoded without the library."""

import sys

from unbroken_wires.decoding import decode

body = b'{"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}'
assert decode(body, stream=False).message.text == "hello"
assert not {"unbroken", "pydantic", "aiohttp"} & {*sys.modules}
