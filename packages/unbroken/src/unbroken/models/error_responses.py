"""Turns an HTTP error into one typed error in one line: the cause, the provider's own message, the way out.

Pure: status, headers and body in, the error out. Keys are masked, because providers quote them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime

import orjson

from unbroken.errors import (
    ContextTooLong,
    ModelNotFound,
    ProviderError,
    RateLimited,
    RequestRefused,
    Unauthorized,
    Unavailable,
)
from unbroken.models.secrets import mask, mask_json
from unbroken_wires.decoding.verdict import Complaint, complaint_of, error_text, signs_of
from unbroken_wires.deltas import Verdict
from unbroken_wires.messages import Json
from unbroken_wires.wires.json_access import as_dict, as_text, dicts

LONGEST = 300
"""Maximum characters of the provider's own message."""

# Possessive, and no tag spans the next one: a page of nothing but `<` does not backtrack.
_TAG = re.compile(r"<(/?)([a-zA-Z]*+)[^<>]*+>")


@dataclass(frozen=True, slots=True)
class Asked:
    """The names that an error message needs: provider, model, address."""

    provider: str
    model: str
    address: str
    """Without secrets."""
    key_variable: str = ""
    key: str = field(default="", repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Further secrets that must not be shown."""

    def masked(self, text: str) -> str:
        """The text without keys."""
        return mask(text, (self.key, *self.secrets))

    def masked_body(self, body: bytes) -> bytes:
        """The same for a body, with JSON escapes decoded for the search."""
        value = _parse(body)
        if value is None:
            return self.masked(body.decode("utf-8", "replace")).encode()
        shown = mask_json(value, (self.key, *self.secrets))
        return body if shown == value else orjson.dumps(shown)

    def masked_verdict(self, verdict: Verdict) -> Verdict:
        """Providers also quote keys in errors inside a response."""
        error = mask_json(verdict.error, (self.key, *self.secrets))
        return replace(verdict, reason=self.masked(verdict.reason), error=error)


def read_failure(asked: Asked, status: int, headers: Mapping[str, str], body: bytes, now: float) -> ProviderError:
    """The error for an HTTP answer without a success status."""
    value = _parse(body)
    words = _words(asked, value, body)
    page = _is_page(value, body)
    told = value if value is not None or page else words
    said = f"{status}: {words}" if words else f"{status} without a word"
    kind, way_out = _kind(asked, status, signs_of(told), complaint_of(told), page)
    if 300 <= status < 400:
        to = asked.masked(headers.get("Location", "nowhere").split("?", 1)[0])
        said = f"{status} and points to {to}"
    message = f"provider `{asked.provider}` answered {said}"
    message = f"{message}; {way_out}" if way_out else message
    error = kind(message, status=status, retry_after=_retry_after(headers, value, now))
    if isinstance(error, Unauthorized):
        error.key_variable = asked.key_variable
    return error


_NO_MODEL = re.compile(
    r"model[_ ]not[_ ]?(?:found|exist)|invalid[_ ]model|unknown model|no such model"
    r"|model \S{1,80} (?:does not exist|not found)|does not exist or you do not have access"
)
_NO_KEY = re.compile(r"invalid[_ ]api[_ ]key|api[_ ]key[_ ](?:not[_ ]valid|invalid)|incorrect api key|authentication")
_NO_MONEY = re.compile(
    r"insufficient[_ ](?:quota|balance|credit|funds)|credit balance|exceeded_current_quota|arrear|余额不足|欠费"
)


def _kind(asked: Asked, status: int, signs: str, complaint: Complaint, page: bool) -> tuple[type[ProviderError], str]:
    check = f"check {asked.key_variable}" if asked.key_variable else "check api_key"
    if 300 <= status < 400:
        return (
            RequestRefused,
            "redirects are not followed, because the key would be sent there too: set base_url to that address",
        )
    if status in (401, 403) or (status == 400 and _NO_KEY.search(signs)):
        what = "the key is missing" if not asked.key else f"{check} and its permissions"
        return Unauthorized, what if asked.key else f"{what}: {check.replace('check', 'set')} or pass api_key=…"
    if status == 404 and (page or "model" not in signs):
        return (
            ModelNotFound,
            f"there is nothing at {asked.address}: check base_url (most end in /v1) and the model's name",
        )
    if status == 404 or (status in (400, 422) and _NO_MODEL.search(signs)):
        return ModelNotFound, f"check the name of model `{asked.model}` in the provider's list of models"
    if status == 402 or (status == 429 and _NO_MONEY.search(signs)):
        return RequestRefused, "the account has no credit left: retrying will not help"
    # Some local servers report it with a 500, and some limits of tokens per minute are below one request.
    if status == 413 or (complaint == "too_long" and (status in (400, 422, 429) or status >= 500)):
        return ContextTooLong, "send less: trim the history (trim=), cut results (result_limit=), or smaller images"
    if status == 429:
        return RateLimited, ""
    # The model wrote a call that its own server could not read (Groq): it may write a better one.
    if (status == 400 and "tool_use_failed" in signs) or status >= 500 or status in (408, 409, 425, 498, 499):
        return Unavailable, ""
    if status == 405:
        return RequestRefused, f"{asked.address} accepts no requests: check base_url"
    return RequestRefused, ""


def _parse(body: bytes) -> Json:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _is_page(value: Json, body: bytes) -> bool:
    return value is None and body.lstrip()[:1] == b"<"


def _words(asked: Asked, value: Json, body: bytes) -> str:
    if value is None:
        text = _without_tags(body.decode("utf-8", "replace"))
    elif value in ({}, []):
        text = ""
    else:
        text = error_text(value)
    text = " ".join(asked.masked(text).split())  # a secret may span lines
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _without_tags(page: str) -> str:
    """The text of a page, without scripts and styles."""
    said, end, hidden = list[str](), 0, ""
    for tag in _TAG.finditer(page):
        closing, name = tag[1], tag[2].lower()
        if not hidden:
            said.append(page[end : tag.start()])
            hidden = name if name in ("script", "style") and not closing else ""
        elif closing and name == hidden:
            hidden = ""
        end = tag.end()
    if not hidden:
        said.append(page[end:])
    return " ".join(said)


def _retry_after(headers: Mapping[str, str], value: Json, now: float) -> float | None:
    """Seconds, from `retry-after-ms`, `retry-after` (seconds or a date), or Gemini's own field."""
    if (seconds := _number(headers.get("retry-after-ms", ""))) is not None:
        return seconds / 1000
    text = headers.get("retry-after", "").strip()
    if (seconds := _number(text)) is not None:
        return seconds
    if text:
        try:
            return _honest(max(0.0, parsedate_to_datetime(text).timestamp() - now))
        except (ValueError, OverflowError):  # not a date, or an impossible one
            pass
    for error in [value, *(value if isinstance(value, list) else [])]:  # pyright: ignore[reportUnknownVariableType] - any JSON
        for detail in dicts(as_dict(as_dict(error).get("error")).get("details")):
            if (seconds := _number(as_text(detail.get("retryDelay")).removesuffix("s"))) is not None:
                return seconds
    return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return _honest(number)


def _honest(seconds: float) -> float | None:
    return seconds if 0 <= seconds < 1e9 else None
