"""A model behind HTTP: sends a request, feeds the bytes of the answer to the decoder, yields deltas. `request_writer`
writes what is sent, `response_body` reads what comes back.

It does not retry: a provider that does not answer raises a typed error, a response that broke off ends with an `Ended`
whose verdict has the reason. The one exception is a kept connection that turns out to be dead before anything came
back: the server closed it while it was idle, so the request is sent again on a new one, as all clients do. A server
that read the request and then closed without an answer gets it twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import inf
from typing import Any, Self, TypeAlias

from aiohttp import ClientError, ClientResponse
from multidict import CIMultiDict
from yarl import URL

from unbroken.clock import RealClock
from unbroken.errors import ProviderError, RequestRefused, StreamError, Unavailable
from unbroken.models import secrets
from unbroken.models.addresses import Endpoint, Key, KeySource, Timeouts, shown
from unbroken.models.connect import Settings
from unbroken.models.connection_errors import cause_of, refused_by_proxy
from unbroken.models.connections import ExchangeTimeout, HeadTimeout, Sent, Transport, Waiting
from unbroken.models.error_responses import Asked, read_failure
from unbroken.models.model import CARRIED, RESPONSE_HEAD, RESPONSE_LIMIT, Observer
from unbroken.models.quirks import Quirks, fit_spelled
from unbroken.models.raw_log import Logged, RawLog
from unbroken.models.relay import PassingDecoder, RelayRequest
from unbroken.models.request_writer import RequestWriter, Written
from unbroken.models.response_body import ResponseBody
from unbroken.models.structured_output import explain_refusal
from unbroken_wires.decoding import Decoder
from unbroken_wires.decoding.verdict import How
from unbroken_wires.deltas import Delta, Ended, Verdict
from unbroken_wires.messages import Json, Request
from unbroken_wires.validation import checked
from unbroken_wires.wires import find_wire
from unbroken_wires.wires.json_pieces import write_json
from unbroken_wires.wires.server_tools import with_betas
from unbroken_wires.wires.sse import MAX_ANSWER

BETA = "anthropic-beta"
"""A list: what a request needs is added to what the user has set."""
_MOST_OF_AN_ERROR = 64 * 1024
_UNFINISHED: tuple[str, How] = "", "unfinished"
_LONGEST_ERROR = 10.0
"""Seconds to read the body of an error: its status alone is enough."""


_Head: TypeAlias = tuple[ClientResponse, ExchangeTimeout, str, Logged | None, tuple[str, ...]]
"""Of an answer: what comes, the time-out of its body, the key that was sent, the log, what the request went without."""


@checked
class HTTPModel:
    """Made by `connect`. Not bound to a loop: one object serves any number of runs, loops and threads at once."""

    def __init__(
        self,
        endpoint: Endpoint,
        key: Key = None,
        *,
        stream: bool = True,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - frozen
        settings: Settings = Settings(),  # noqa: B008 - frozen
        raw_log: RawLog | None = None,
        max_answer: int = MAX_ANSWER,
    ) -> None:
        self.endpoint = endpoint
        self.name = f"{endpoint.provider}:{endpoint.model}"
        """Provider and model: `openai:gpt-5`."""
        self.timeouts = timeouts
        self.max_answer = max_answer
        self.settings = settings
        self.observer: Observer | None = None
        self.label = ""
        """The name of its deployment, if there are several."""
        self._key = KeySource(key, endpoint.provider)
        if endpoint.key_header in CIMultiDict(settings.headers):
            self._key = KeySource(None, endpoint.provider)  # a header that the user sets comes before the key
        self._streams = stream
        self._raw_log = raw_log
        self._wire = find_wire(endpoint.wire)
        self._transport = Transport(endpoint, timeouts)
        self._secrets = (*endpoint.secrets, *secrets.collect(self._transport.secrets))
        self._recovers = endpoint.quirks.prose and find_wire(endpoint.wire).calls_leak
        # Built once, not for each request; a key that changes is filled in later.
        self._prepared: tuple[Request | None, Written | None] = (None, None)
        self._stream_headers = self._write_headers(stream=True)
        self._whole_headers = self._write_headers(stream=False)
        self._writer = RequestWriter(endpoint, settings, stream, self._stream_headers)

    def with_quirks(self, quirks: Quirks) -> HTTPModel:
        """The same model, as if its provider had these quirks."""
        model = copy(self)
        model.endpoint = replace(self.endpoint, quirks=quirks)
        model._prepared = None, None
        model._writer = RequestWriter(model.endpoint, self.settings, self._streams, self._stream_headers)
        return model

    def __repr__(self) -> str:
        return f"HTTPModel({self.name!r}, {shown(self.endpoint.stream_url)!r})"

    @property
    def origin(self) -> str:
        """Where its answers come from: only the same origin accepts its signatures."""
        url = self.endpoint.stream_url
        origin = f"{self.endpoint.provider} at {url.host}:{url.port}"
        bound = self.endpoint.model in self._wire.http.account_bound
        account = (self._key.account or self.label) if bound else ""
        return f"{origin}, account {account}" if account else origin

    @property
    def wire(self) -> str:
        """The protocol that it speaks, by name in `WIRES`."""
        return self.endpoint.wire

    @property
    def manages(self) -> frozenset[str]:
        """What the provider can do by itself with a long history: `compact` it, `clear` results (`Request.managed`)."""
        return self._writer.manages

    @property
    def finds_tools(self) -> bool:
        """Whether the model searches deferred tools itself (`ToolSearch`)."""
        return self._writer.finds_tools

    @property
    def later_system(self) -> bool:
        """Whether the model reads new instructions where they stand between the messages, so that the old ones may
        stay as they are."""
        return self._writer.later_system

    @property
    def passes_bodies(self) -> bool:
        """May a client's body of this wire be sent unchanged? Not if the model's settings belong in it, or if calls are
        recovered from the text of the answer."""
        return self.settings.leave_bodies_alone and not self._recovers and self._streams

    @property
    def logs(self) -> bool:
        """Whether it has a raw log."""
        return self._raw_log is not None

    @property
    def secrets(self) -> tuple[str, ...]:
        """Its key, if known by now, and its other secrets."""
        signer = self.endpoint.signer
        return (*self._key.known, *(signer.known if signer is not None else ()), *self._secrets)

    async def aclose(self) -> None:
        """Nothing to do: connections belong to the loop and close with it. Here so that any model may be closed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def headers(self) -> CIMultiDict[str]:
        """The headers of each request to this provider, including its key: for forwarded requests."""
        key = self._key.fixed if self._key.fixed is not None else await self._key.ask()
        headers = CIMultiDict(self._headers_for(False, key, {}))
        headers.pop("Content-Type", None)
        return headers

    @property
    def proxy(self) -> URL | None:
        """The proxy to the provider."""
        return self._transport.proxy

    @property
    def proxy_headers(self) -> Mapping[str, str] | None:
        """The credentials for the proxy, which are secret. None if it needs none."""
        return self._transport.proxy_headers

    def conclude(self, deltas: Sequence[Delta]) -> None:
        """Masks its keys in the error that a response ended with: providers quote them. Reports how it ended."""
        if not isinstance(last := deltas[-1], Ended):
            return
        if not last.verdict.whole:
            last.verdict = self._asked("").masked_verdict(last.verdict)
        if self.observer is not None:
            _report(self.observer, last.verdict)

    def masked(self, text: str) -> str:
        """The text without its keys, if known by now."""
        return self._asked("").masked(text)

    def masked_body(self, body: bytes) -> bytes:
        """An error's body without its keys. A body without keys stays unchanged."""
        return self._asked("").masked_body(body)

    def failure(self, status: int, headers: Mapping[str, str]) -> ProviderError:
        """The error for a response without a success status whose body is passed on."""
        return read_failure(self._asked(""), status, headers, b"", RealClock().now())

    def write(self, request: Request) -> tuple[Request, bytes]:
        """The request adapted to this provider, and its body. Pure; this is what `stream` sends."""
        written = self.prepare(request)
        return written.request, write_json(written.body)

    def prepare(self, request: Request) -> Written:
        """The request adapted to this provider, and how it was changed. Asked twice for the same request, it does the
        work once: a gateway reports the changes before it sends the request."""
        asked, written = self._prepared
        if asked is not request or written is None:
            written = self._writer.write(request)
            self._prepared = request, written
        return written

    async def stream(
        self, request: Request, sent: Sent | RequestRefused | None = None
    ) -> AsyncIterator[Sequence[Delta]]:
        """One batch of deltas for each read of the connection. `sent` is what `send` returned, if the request was sent
        already, or the error that `fetch` raised."""
        if sent is not None:
            decoder = self._decoder_for(request)
            response, timeout, key, log, left_out = await self._head_of(request, sent)
        else:
            written, asked = self.prepare(request), request
            self._prepared = None, None
            request, body, left_out = written.request, write_json(written.body), written.left_out
            headers = written.headers
            del written
            decoder = self._decoder_for(request)
            try:
                response, timeout, key, log = await self._send(request, body, headers)
            except RequestRefused as error:
                if request.output is not None:
                    explain_refusal(error)
                response, timeout, key, log, left_out = await self._send_mended(asked, error)
            del body  # no longer needed, and may be long
        answer, feed = ResponseBody(response, timeout, self.timeouts, log, stream=request.stream), decoder.feed
        try:
            while chunk := await answer.read():
                try:
                    deltas = await asyncio.to_thread(feed, chunk) if answer.is_long else feed(chunk)
                except StreamError as error:
                    if error.verdicts:
                        raise  # a retry would be too large as well
                    break  # beyond a limit: `end` reports it in its verdict
                if deltas:
                    yield deltas
                if decoder.terminal:
                    answer.waits_for_end(bool(deltas), decoder.done or self._wire.sign_is_last)
                elif not answer.waits_for_more(chunk, bool(deltas)):
                    break
        finally:
            answer.close()
            if log is not None and (answer.lost is None or answer.received):
                log.end(*(self._cause(key, answer.lost, timeout.expired) if answer.lost else _UNFINISHED))
        last = self._conclude(decoder, key, answer, timeout.expired, log)
        if left_out and isinstance(end := last[-1], Ended):
            end.verdict = replace(end.verdict, left_out=(*left_out, *end.verdict.left_out))
        yield last

    def _conclude(
        self, decoder: Decoder | PassingDecoder, key: str, answer: ResponseBody, late: Waiting, log: Logged | None
    ) -> list[Delta]:
        """The last deltas of an answer. Raises if there was a head, and then no byte of the answer."""
        lost = answer.lost
        if lost is not None and not answer.received:
            failure = self._failed(key, lost, late)
            if log is not None:
                log.fail(failure)
            if self.observer is not None:
                self.observer.failed(None)
            raise failure from cause_of(lost)
        deltas = _end(decoder, *(self._cause(key, lost, late) if lost else _UNFINISHED))
        self.conclude(deltas)
        return deltas

    async def _send(
        self, request: Request, body: bytes, more: Mapping[str, str]
    ) -> tuple[ClientResponse, ExchangeTimeout, str, Logged | None]:
        """The head of the answer, the time-out of its body, the key that was sent, and the log."""
        deadline = self._transport.deadline()
        key = self._key.fixed if self._key.fixed is not None else await self._key.ask()
        log = self._begin_log(self._raw_log, request, key, body) if self._raw_log is not None else None
        try:
            headers = self._headers_for(request.stream, key, more)
            return *await self._post(request.stream, headers, key, body, deadline, log), key, log
        except BaseException as error:
            if log is not None:
                log.fail(error)
            raise

    async def _head_of(self, request: Request, sent: Sent | RequestRefused) -> _Head:
        if not isinstance(sent, RequestRefused):
            try:
                return *await sent.head(), None, ()
            except RequestRefused as error:
                sent = error
        return await self._send_mended(request, sent)

    async def _send_mended(self, request: Request, refused: RequestRefused) -> _Head:
        """Sends a refused request once more, without what the provider says it does not know; raises its error again
        if that is something else."""
        written = self.prepare(request)
        self._prepared = None, None
        mend = self._wire.mend_refused
        mended = mend(written.body, str(refused)) if mend is not None else None
        if mended is None:
            raise refused
        body, names = mended
        if (head := RESPONSE_HEAD.get()) is not None:
            head.left_out = tuple(names)
        sent = await self._send(written.request, write_json(body), written.headers)
        return *sent, (*written.left_out, *names)

    def _decoder_for(self, request: Request) -> Decoder | PassingDecoder:
        wire, limit = self.endpoint.wire, RESPONSE_LIMIT.get()
        limits: dict[str, Any] = {"max_answer": self.max_answer}
        if limit is not None:  # of a server, for all bytes
            limits = {"max_answer": inf, "max_calls": limit.max_calls}
        elif self.max_answer > MAX_ANSWER:  # also in one body, and in pieces that are small beside their events
            limits |= {"max_event": 2 * self.max_answer, "max_body": 16 * self.max_answer}
        if isinstance(request, RelayRequest) and request.raw_wire == wire:
            # Bytes that are passed on unchanged are not searched for calls in the text. In serial mode only the first
            # of several calls, and everything before it, may be passed on.
            decoder = Decoder(wire, None, request, keeps_ids=not find_wire(wire).history.unique, **limits)
            return PassingDecoder(decoder, request.stream, apart=request.parallel is False)
        offered = {tool.name: tool.parameters for tool in request.tools} if self._recovers and request.tools else None
        return Decoder(wire, offered, request, **limits)

    def send(self, body: Mapping[str, Json], headers: Mapping[str, str]) -> Sent:
        """Sends a client's body of this wire, for a stream; `stream` continues from there. The request can be decoded
        while its answer is awaited."""
        return Sent(asyncio.create_task(self._post_spelled(True, body, headers)))

    async def fetch(self, body: Mapping[str, Json], headers: Mapping[str, str]) -> bytes:
        """The bytes of the non-streaming answer to a client's body of this wire, not decoded. If the connection is lost
        or never closed, the bytes so far: the caller has to check whether they are complete."""
        response, timeout, key = await self._post_spelled(False, body, headers)
        answer = ResponseBody(response, timeout, self.timeouts, stream=False)
        data = await answer.read_all()
        if answer.lost is not None and not data:
            if self.observer is not None:
                self.observer.failed(None)
            raise self._failed(key, answer.lost, timeout.expired) from cause_of(answer.lost)
        return data

    async def _post_spelled(
        self, stream: bool, body: Mapping[str, Json], headers: Mapping[str, str]
    ) -> tuple[ClientResponse, ExchangeTimeout, str]:
        spelled = {**body, "model": self.endpoint.model} if "model" in body else {**body}
        data = write_json(fit_spelled(spelled, self.endpoint.quirks))
        deadline = self._transport.deadline()
        key = self._key.fixed if self._key.fixed is not None else await self._key.ask()
        return *await self._post(stream, self._headers_for(stream, key, headers), key, data, deadline, None), key

    def _begin_log(self, raw_log: RawLog, request: Request, key: str, body: bytes) -> Logged:
        e = self.endpoint
        return raw_log.begin(
            model=self.name,
            wire=e.wire,
            url=e.stream_url if request.stream else e.whole_url,
            body=body,
            stream=request.stream,
            recovers=self._recovers,
            secrets=(key, *self._secrets, *(each for tool in request.server_tools for each in tool.secrets)),
        )

    def _headers_for(self, stream: bool, key: str, more: Mapping[str, str]) -> CIMultiDict[str]:
        headers = self._stream_headers if stream else self._whole_headers
        carried = CARRIED.get()
        if more or carried or (key and self._key.fixed is None):
            headers = CIMultiDict(headers)
            if BETA in more and BETA in headers:
                more = {**more, BETA: with_betas(headers[BETA], more[BETA].split(","))}
            headers.update(more)
            if carried:
                headers.update(carried)
            if key:
                headers[self.endpoint.key_header] = self.endpoint.key_prefix + key
        return headers

    def _post(
        self, stream: bool, headers: CIMultiDict[str], key: str, body: bytes, deadline: float, log: Logged | None
    ) -> Coroutine[Any, Any, tuple[ClientResponse, ExchangeTimeout]]:
        """Sends the request and waits for the head of the answer; also returns the time-out of its body."""
        if self.observer is not None:
            return self._post_observed(self.observer, stream, headers, key, body, deadline, log)
        return self._post_signed(stream, headers, key, body, deadline, log)

    async def _post_observed(
        self,
        observer: Observer,
        stream: bool,
        headers: CIMultiDict[str],
        key: str,
        body: bytes,
        deadline: float,
        log: Logged | None,
    ) -> tuple[ClientResponse, ExchangeTimeout]:
        time = asyncio.get_running_loop().time
        began = time()
        observer.asked()
        try:
            response, timeout = await self._post_signed(stream, headers, key, body, deadline, log)
        except BaseException as error:
            if isinstance(error, ProviderError):
                observer.failed(error)
            observer.ended()
            raise
        observer.answered(time() - began)
        timeout.on_end = observer.ended
        return response, timeout

    async def _post_signed(
        self, stream: bool, headers: CIMultiDict[str], key: str, body: bytes, deadline: float, log: Logged | None
    ) -> tuple[ClientResponse, ExchangeTimeout]:
        endpoint, head = self.endpoint, RESPONSE_HEAD.get()
        if head is not None and head.attempts is not None and (carried := head.attempts.begin(self)):
            headers = CIMultiDict(headers)
            headers.update(carried)
        if endpoint.signer is not None:
            url = endpoint.stream_url if stream else endpoint.whole_url
            headers = CIMultiDict(headers)
            headers.update(await endpoint.signer.sign(url, body))
        if head is not None:
            head.asked = self.name
        try:
            answer = await self._transport.post(stream, headers, body, deadline)
            if answer is None:
                if log is not None:
                    log.resent()
                answer = await self._transport.post(stream, headers, body, deadline, fresh=True)
        except (ClientError, OSError) as error:  # a TimeoutError is an OSError
            lost = error
        else:
            assert answer is not None, "a fresh connection cannot be a dead kept one"
            if log is not None:
                log.head(answer[0].status, answer[0].headers)
            if head is not None:
                head.model, head.upstream, head.headers = self.name, self.label or self.name, answer[0].headers
            if answer[0].status >= 300:
                if head is not None:
                    head.asked = ""
                answer[1].end()
                raise await self._read_failure(key, answer[0], deadline, log)
            return answer
        if head is not None:
            head.asked = ""
        late = lost.waiting_for if isinstance(lost, HeadTimeout) else ""
        # Outside of the except: aiohttp's error may hold the key, and would be the context of ours.
        raise self._failed(key, lost, late) from cause_of(lost)

    def _write_headers(self, stream: bool) -> CIMultiDict[str]:
        endpoint = self.endpoint
        headers = CIMultiDict[str]({"Content-Type": "application/json", "User-Agent": "unbroken"})
        if stream:
            headers["Accept-Encoding"] = "identity"  # a compressing proxy buffers events until its block is full
        headers.update(endpoint.headers)
        if self._key.fixed:
            headers[endpoint.key_header] = endpoint.key_prefix + self._key.fixed
        if self._transport.proxy_headers and endpoint.stream_url.scheme == "http":
            headers.update(self._transport.proxy_headers)  # without a tunnel, the proxy reads the request itself
        headers.update(self.settings.headers)
        return headers

    def _asked(self, key: str) -> Asked:
        e = self.endpoint
        sent = key or self._stream_headers.get(e.key_header, "")
        return Asked(e.provider, e.model, shown(e.stream_url), e.key_variable, sent, self.secrets)

    async def _read_failure(
        self, key: str, response: ClientResponse, deadline: float, log: Logged | None
    ) -> ProviderError:
        if response.status == 407 and self.proxy is not None:
            response.close()
            return refused_by_proxy(self.endpoint.stream_url, self.proxy, 407)
        body = b""
        read = response.content.readany if log is None else log.reading(response.content.readany)
        try:
            async with asyncio.timeout_at(min(deadline, asyncio.get_running_loop().time() + _LONGEST_ERROR)):
                while len(body) < _MOST_OF_AN_ERROR and (chunk := await read()):
                    body += chunk
        except (ClientError, OSError):
            pass
        finally:
            response.close()
        return read_failure(self._asked(key), response.status, response.headers, body, RealClock().now())

    def _failed(self, key: str, error: Exception, late: Waiting) -> ProviderError:
        """`late`: which time-out was reached, if any."""
        return self._transport.failed(self._asked(key), error, late)

    def _cause(self, key: str, error: Exception, late: Waiting) -> tuple[str, How]:
        return self._transport.cause(self._asked(key), error, late)


def _report(observer: Observer, verdict: Verdict) -> None:
    if not verdict.failed or not (verdict.retryable or verdict.kind == "late"):
        observer.succeeded()  # it may have refused the request, as it should
    else:
        # An error in a response counts as if its status had said it.
        observer.failed(Unavailable(verdict.reason, status=503) if verdict.kind == "error" else None)


def _end(decoder: Decoder | PassingDecoder, cause: str, how: How) -> list[Delta]:
    try:
        return decoder.end(cause, how)
    except StreamError:  # the last event was beyond a limit; the second call reports that in the verdict
        return decoder.end(cause, how)
