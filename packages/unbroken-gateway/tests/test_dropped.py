"""`x-unbroken-dropped` names what the model's wire has no field for, on every pair of wires, streamed or not."""

from __future__ import annotations

from typing import Any

from gateway_client import PAIRS, Client, run, serving, settings_for, upstream_settings

from unbroken_testing import ScriptedServer
from unbroken_wires.messages import Message, User
from unbroken_wires.wires import WIRES


class OddClient(Client):
    def body(self, messages: list[Message] | None = None) -> dict[str, Any]:
        return {**super().body(messages), "x_odd": 1}


def test_a_field_that_no_other_wire_has_is_named_on_every_pair_of_wires() -> None:
    async def story() -> None:
        async with ScriptedServer("Hello.", loop_last=True) as server:
            upstreams = [upstream_settings(server, wire, alias=wire) for wire in WIRES]
            async with serving(settings_for(*upstreams)) as url:
                for client, upstream in PAIRS:
                    for stream in (False, True) if client != upstream else ():
                        reply = await OddClient(url, client, stream, parallel=None, model=upstream).ask(User.of("Hi?"))
                        named = reply.headers.get("x-unbroken-dropped", "")
                        assert named.replace("xOdd", "x_odd") == "x_odd", (client, upstream, stream)

    run(story)
