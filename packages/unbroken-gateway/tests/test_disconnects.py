"""A client that disconnects ends what is done for it, however the server reports it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from unbroken.asgi import CancelOnDisconnect, ClientConnection, ClientGone
from unbroken.errors import Unreachable
from unbroken.models.connect import connect
from unbroken.models.connections import Sent
from unbroken.models.http import HTTPModel
from unbroken_wires.messages import Request, User


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **given: Any) -> None:
        asyncio.run(test(*args, **given))

    return run


@in_a_loop
async def test_a_server_that_reports_disconnects_needs_no_polling_task() -> None:
    leaving = ClientConnection()
    asyncio.get_running_loop().call_later(0.01, lambda: leaving.then and leaving.then())
    with pytest.raises(ClientGone), CancelOnDisconnect({"extensions": {ClientConnection.NAME: leaving}}, _nobody_asks):
        await asyncio.sleep(5)
    assert leaving.then is None


@in_a_loop
async def test_any_other_server_is_polled() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone), CancelOnDisconnect({}, receive):
        await asyncio.sleep(5)


@in_a_loop
async def test_a_connected_client_is_not_disturbed() -> None:
    leaving = ClientConnection()
    with CancelOnDisconnect({"extensions": {ClientConnection.NAME: leaving}}, _nobody_asks):
        await asyncio.sleep(0)
    assert leaving.then is None


async def _nobody_asks() -> dict[str, Any]:
    raise AssertionError("the server says it by itself")


@in_a_loop
async def test_a_request_that_is_no_longer_needed_is_closed(scripted_upstream: Any) -> None:
    server = scripted_upstream("Hello.")
    model = connect("openai:m", base_url=f"{server.url}/v1", api_key="k").model
    sent = model.send({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}, {})
    sent.drop()
    with pytest.raises(asyncio.CancelledError):
        await sent.head()


@in_a_loop
async def test_a_failure_that_nobody_waits_for_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = connect("openai:m", base_url="http://127.0.0.1:9/v1", api_key="k").model
    sent = model.send({"model": "m", "stream": True, "messages": []}, {})
    with pytest.raises(Unreachable):
        await asyncio.shield(sent._posting)  # pyright: ignore[reportPrivateUsage]
    sent.drop()
    del sent
    await asyncio.sleep(0)
    assert not caplog.records


@in_a_loop
async def test_an_answer_that_has_begun_is_read_to_its_end(scripted_upstream: Any) -> None:
    server = scripted_upstream("Hello.")
    model: HTTPModel = connect("openai:m", base_url=f"{server.url}/v1", api_key="k").model
    sent: Sent = model.send({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}, {})
    batches = [deltas async for deltas in model.stream(Request((User.of("hi"),)), sent)]
    kinds = [type(delta).__name__ for deltas in batches for delta in deltas]
    sent.drop()
    assert kinds[-1] == "Ended"
    assert "TextDelta" in kinds
