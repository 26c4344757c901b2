"""Signs requests to Amazon (SigV4) with botocore, which also finds the credentials: variables, profiles, SSO, roles.

botocore is the optional extra `bedrock`. It is imported when a model is connected that needs it, and used on a thread:
credentials may have to be fetched, and a body is hashed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from yarl import URL

from unbroken.errors import Unauthorized, needs_extra

SERVICE = "bedrock"
HOSTS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
"""How the hosts end that check signatures."""


class AwsSigner:
    """Signs requests to one region."""

    def __init__(self, provider: str, region: str) -> None:
        try:  # by name: it has no types, and is an optional extra
            auth, awsrequest, session = map(import_module, ("botocore.auth", "botocore.awsrequest", "botocore.session"))
        except ImportError:
            what = f"provider `{provider}`, without an API key in AWS_BEARER_TOKEN_BEDROCK,"
            raise needs_extra(what, "botocore to sign its requests", "bedrock") from None
        self.region = region
        self._provider = provider
        self._auth: Any = auth.SigV4Auth
        self._request: Any = awsrequest.AWSRequest
        self._session: Any = session.Session()
        self._credentials: Any = None
        self.known: tuple[str, ...] = ()
        """The secrets that were used last: they must not be shown."""

    async def sign(self, url: URL, body: bytes) -> Mapping[str, str]:
        """The headers that prove who sends this body there."""
        return await asyncio.to_thread(self._sign, str(url), body)

    def _sign(self, url: str, body: bytes) -> dict[str, str]:
        request = self._request("POST", url, data=body, headers={"Content-Type": "application/json"})
        self._auth(self._frozen(), SERVICE, self.region).add_auth(request)
        return {str(name): str(value) for name, value in request.headers.items() if name.lower() != "content-type"}

    def _frozen(self) -> Any:
        """The credentials as they are now; those of a role are renewed before they expire."""
        problem = "none were found"
        try:
            if self._credentials is None:
                self._credentials = self._session.get_credentials()
            if self._credentials is not None:
                frozen = self._credentials.get_frozen_credentials()
                self.known = tuple(filter(None, (frozen.secret_key, frozen.token)))
                return frozen
        except Exception as error:  # noqa: BLE001 - each source of credentials has errors of its own
            problem = f"{type(error).__name__}: {error}"
        raise Unauthorized(
            f"there are no AWS credentials for provider `{self._provider}`: {problem}; set AWS_BEARER_TOKEN_BEDROCK to "
            f"an API key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in with the AWS command line"
        )


def region_in(host: str) -> str:
    """The region in the name of a host of Amazon; empty if there is none."""
    words = host.split(".")
    return next((word for word in words if word.count("-") >= 2 and word[-1:].isdigit()), "")
