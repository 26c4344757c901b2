"""anthropic-messages, for tests: a server that binds thinking to what is before it, as that of newer models does."""

from __future__ import annotations

import re
from hashlib import sha256

from unbroken_wires.messages import Json
from unbroken_wires.wires.anthropic.messages_binding import drops_moved_thinking
from unbroken_wires.wires.anthropic.messages_content import THINKING, blocks_of
from unbroken_wires.wires.claude_models import PREFIX_CHECKED
from unbroken_wires.wires.json_access import Object, as_dict, as_list, as_text, dicts
from unbroken_wires.wires.jsontext import dumps

_SIGNATURE = re.compile(rb'("signature":")sig-[^"]*')
_MESSAGE = b'"type":"message",'
_REFUSED = (
    "{where}: Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the "
    'block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block". This setting requires the value '
    "`thinking-binding-controls-2026-08-01` in the `anthropic-beta` header."
)


class BoundThinking:
    """The thinking in one request. Its signatures name the account, and what was before it when it was written."""

    def __init__(self, body: Object, model: str, key: str = "") -> None:
        self._checks = model in PREFIX_CHECKED
        self.moved: list[str] = []
        """The places of the blocks that are not valid any more."""
        self._foreign = ""
        """The place of the first block that another account wrote."""
        if not self._checks:
            return
        account = f"bound-{sha256(key.encode()).hexdigest()[:8]}-"
        known = sha256(dumps([_plain(body.get("tools")), _plain(blocks_of(body.get("system")))]))
        for n, message in enumerate(dicts(body.get("messages"))):
            blocks = blocks_of(message.get("content"))
            expected = f"{account}{known.hexdigest()}"
            for at, block in enumerate(blocks):
                signature = as_text(block.get("signature"))
                if block.get("type") not in THINKING or not signature.startswith("bound-"):
                    continue
                if not signature.startswith(account):
                    self._foreign = self._foreign or f"messages.{n}.content.{at}"
                elif signature != expected:
                    self.moved.append(f"messages.{n}.content.{at}")
            known.update(dumps([message.get("role"), _plain(blocks)]))
        self._signature = f"{account}{known.hexdigest()}".encode()
        self._drops = drops_moved_thinking(body)

    @property
    def problem(self) -> str:
        """Why the request is refused."""
        if self._foreign:
            return f"{self._foreign}: Invalid `signature` in `thinking` block"
        return _REFUSED.format(where=self.moved[0]) if self.moved and not self._drops else ""

    def sign(self, data: bytes) -> bytes:
        """A piece of the answer, with the signatures of this server and a report of what it has dropped."""
        if not self._checks:
            return data
        if self.moved and _MESSAGE in data:
            reason = {"type": "thinking_dropped", "reason": "prefix_binding_mismatch"}
            report = dumps([{**reason, "path": path} for path in self.moved])
            data = data.replace(_MESSAGE, _MESSAGE + b'"input_transformations":' + report + b",", 1)
        return _SIGNATURE.sub(rb"\g<1>" + self._signature, data)


def _plain(value: Json) -> Json:
    """Without cache marks, which may change."""
    if isinstance(value, list):
        return [_plain(each) for each in as_list(value)]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in sorted(as_dict(value).items()) if key != "cache_control"}
    return value
