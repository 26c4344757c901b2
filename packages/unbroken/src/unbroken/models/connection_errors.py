"""Errors without an HTTP answer: a connection that was refused, lost or too slow, a proxy in between, bytes that are
not HTTP. One typed error each, in one line. `error_responses` reads answers that are errors.

Pure: what happened in, the error out.
"""

from __future__ import annotations

import re

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientHttpProxyError,
    ClientPayloadError,
    ClientProxyConnectionError,
    ClientResponseError,
    ClientSSLError,
    ServerDisconnectedError,
)
from yarl import URL

from unbroken.errors import ProviderError, TimedOut, Unauthorized, Unreachable
from unbroken.models.addresses import Timeouts, shown
from unbroken.models.error_responses import Asked

_QUOTED = re.compile(r"Error\(\d+, '([^']+)'\)")


def unreachable(asked: Asked, url: URL, proxy: URL | None, error: Exception) -> ProviderError:
    provider, words = f"provider `{asked.provider}`", in_words(asked, error)
    match error:
        case ClientHttpProxyError():
            return refused_by_proxy(url, proxy, error.status)
        case ServerDisconnectedError():
            return Unreachable(f"{provider} closed the connection without an answer ({asked.address})")
        case ClientResponseError() | ClientPayloadError():
            return Unreachable(
                f"{provider} sent an answer that cannot be read ({asked.address}): {words}; "
                f"check base_url and its port, and any proxy in between"
            )
        case ClientProxyConnectionError():
            way_out = f"the proxy {_named(proxy)} does not answer: check {_variable(url)} or set NO_PROXY"
        case ClientConnectorCertificateError() | ClientSSLError():
            way_out = "set SSL_CERT_FILE to the certificates that this network uses, or check https:// in base_url"
        case _:
            way_out = "check base_url, and that the server runs"
    return Unreachable(f"{provider} cannot be reached at {asked.address}: {words}; {way_out}")


def refused_by_proxy(url: URL, proxy: URL | None, status: int) -> ProviderError:
    words = f"the proxy {_named(proxy)} answered {status}: check {_variable(url)} or set NO_PROXY"
    return (Unauthorized if status == 407 else Unreachable)(words, status=status)


def not_in_time(asked: Asked, url: URL, timeouts: Timeouts, waiting_for: str) -> TimedOut:
    provider, at = f"provider `{asked.provider}`", asked.address
    match waiting_for:
        case "total":
            error = TimedOut(f"{provider} was not done within total={timeouts.total} s ({at})")
            error.total = True
            return error
        case "connect":
            words = f"no connection to {provider} within connect_timeout={timeouts.connect} s ({at})"
            if (
                url.scheme == "https" and url.explicit_port is not None
            ):  # the user's own server, which waits for a request
                words += "; if that server does not speak https, write http:// in base_url"
            return TimedOut(words)
        case _:
            return TimedOut(
                f"{provider} sent nothing within first_byte={timeouts.first_byte} s ({at}); "
                f"a slow model needs a larger first_byte"
            )


def in_words(asked: Asked, error: Exception) -> str:
    match error:
        case ClientResponseError():
            text = error.message
        case ClientConnectorError() if not isinstance(error, ClientConnectorCertificateError):
            text = str(error.os_error)  # its own text contains "ssl:default" even without TLS
        case ClientPayloadError():
            text = _of_the_system(error) or "it ended in the middle of the body"
        case _:
            text = str(error)
    return " ".join(asked.masked(text).split())[:200] or type(error).__name__


def _of_the_system(error: BaseException) -> str:
    """The system's message, without the library's text about its own parser."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, OSError) and behind.strerror:
            return behind.strerror
        behind = behind.__cause__ or behind.__context__
    quoted = _QUOTED.search(str(error))  # aiohttp 3.14 has it only in its message
    return quoted[1] if quoted else ""


def cause_of(error: Exception) -> Exception | None:
    """The `__cause__` of our error. Not an error that holds the request's headers, and so the key, and not our own
    time-out."""
    return None if isinstance(error, (ClientResponseError, TimeoutError)) else error


def _named(proxy: URL | None) -> str:
    return shown(proxy) if proxy is not None else "in between"


def _variable(url: URL) -> str:
    return f"{url.scheme.upper()}_PROXY"
