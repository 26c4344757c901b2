"""Where the tokens of a sign-in are kept: in memory, in a file, or in a storage of the user.

What the package forgets between processes is kept beside the tokens: when they expire, and where they can be refreshed.
Without it an expired token would need a person again.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from mcp.client.auth import TokenStorage
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from pydantic import ValidationError

from unbroken.errors import UserError


def token_storage(url: str, storage: Any) -> TokenStorage:
    """For the server at `url`: `OAuth.storage`, or one of ours."""
    if storage is None:
        return StoredTokens()
    if isinstance(storage, str | Path):
        return _InFile(Path(storage).expanduser(), url)
    return storage


class StoredTokens:
    """In memory."""

    def __init__(self) -> None:
        self._context: OAuthContext | None = None
        self._kept: dict[str, Any] = {}

    def restore(self, context: OAuthContext) -> None:
        self._context = context
        kept = self._read()
        try:
            context.token_expiry_time = kept.get("expires_at")
            if found := kept.get("authorization_server"):
                context.oauth_metadata = OAuthMetadata.model_validate(found)
            if found := kept.get("protected_resource"):
                context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(found)
        except ValidationError:
            context.oauth_metadata = context.protected_resource_metadata = None

    async def get_tokens(self) -> OAuthToken | None:
        return _checked(OAuthToken, self._read().get("tokens"))

    async def set_tokens(self, tokens: OAuthToken) -> None:
        kept: dict[str, Any] = {"tokens": _dumped(tokens)}
        if tokens.expires_in is not None:
            kept["expires_at"] = time.time() + tokens.expires_in
        context = self._context
        if context is not None and context.oauth_metadata is not None:
            kept["authorization_server"] = _dumped(context.oauth_metadata)
        if context is not None and context.protected_resource_metadata is not None:
            kept["protected_resource"] = _dumped(context.protected_resource_metadata)
        client = self._read().get("client")
        self._write(kept | ({"client": client} if client else {}))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return _checked(OAuthClientInformationFull, self._read().get("client"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._write({**self._read(), "client": _dumped(client_info)})

    def _read(self) -> dict[str, Any]:
        return self._kept

    def _write(self, kept: dict[str, Any]) -> None:
        self._kept = kept


class _InFile(StoredTokens):
    """In a JSON file that only its owner can read, by the address of the server."""

    def __init__(self, path: Path, url: str) -> None:
        super().__init__()
        self._path = path
        self._url = url

    def _read(self) -> dict[str, Any]:
        found = self._everything().get(self._url)
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    def _write(self, kept: dict[str, Any]) -> None:
        everything = {**self._everything(), self._url: kept}
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(everything, file, indent=1)
            os.replace(name, self._path)
        except BaseException:
            os.unlink(name)
            raise

    def _everything(self) -> dict[str, Any]:
        try:
            found: Any = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UserError(f"OAuth(storage={str(self._path)!r}) cannot be read: {type(error).__name__}") from None
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _dumped(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def _checked(kind: Any, value: Any) -> Any:
    try:
        return None if value is None else kind.model_validate(value)
    except ValidationError:
        return None  # of another version; it is asked for again
