"""What kind of thing a provider complains of, read from its error object in any of many spellings: may another try do?

Pure data in, one word out. Where the error came from (a status, an event inside a 200) and what is done about it are
decided elsewhere.

An error names its kind in fields made for that (`code`, `type`, `status`): its marks. They count before the words of
its message, with one exception: that the context is too long is said in words by most, under the mark of any other bad
request. Fields that give the request back (`input`, `failed_generation`) are not looked into, so that what a user wrote
is not taken for what the provider says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

import orjson

from unbroken.messages import Json
from unbroken.wires.values import as_dict, as_list

Complaint: TypeAlias = Literal["too_long", "limited", "unavailable", "refused", ""]
"""The context is too long; too many requests; the provider's own trouble; this request will never do; not known."""

_MARKS = {
    "code",
    "type",
    "status",
    "reason",
    "error_code",
    "errorcode",
    "err_code",
    "error_type",
    "status_code",
    "__type",
}
_WORDS = {
    *("message", "msg", "error", "error_msg", "error_message", "errormessage", "err_msg", "status_msg"),
    *("detail", "details", "description", "reason", "raw", "cause"),
}
_INSIDE = {"error", "errors", "detail", "details", "metadata", "base_resp", "response", "inner_error", "innererror"}
_LONGEST = 600
"""Characters of one sentence, and ten times that of all together: what an error says, it says at its beginning."""


_Rows: TypeAlias = tuple[tuple[Complaint, str], ...]


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """When the first error is read and not at import: most runs see none."""
    return re.compile(pattern)


@dataclass(frozen=True, slots=True)
class _Signs:
    marks: tuple[str, ...]
    words: str


# Of a mark only its letters and digits are left: `RESOURCE_EXHAUSTED`, `Throttling.RateQuota`, `429`. The first row
# that has one of the marks decides, so what is sure stands above what is said of everything.
_BY_MARK: _Rows = (
    (
        "too_long",
        (
            r"context(?:length|window|size|limit)\w*exceed|exceed\w*context|(?:prompt|input|context|request)too(?:long|large)"
            r"|(?:payload|entity)toolarge|tokenslimitreached"
        ),
    ),
    ("refused", r"insufficient|billing|arrear|paymentrequired|currentquota|creditbalance|^402$"),
    (
        "limited",
        r"ratelimit|toomanyrequests|resourceexhausted|throttl|ratequota|limit(?:requests|burst)|concurrency|^429$",
    ),
    # The model wrote a call that its own server could not read: Groq refuses that as if it were the request.
    ("unavailable", r"toolusefailed"),
    (
        "refused",
        (
            r"invalid|auth|permission|denied|forbidden|notfound|notexist|unsupported|notsupported|badrequest|validation"
            r"|unprocessable|failedprecondition|outofrange|missing|contentfilter|contentpolicy|policyviolation|safety"
            r"|moderation|sensitive|inspection|^4(?!08|09|25|29|98|99)\d\d$"
        ),
    ),
    (
        "unavailable",
        (
            r"overload|unavailable|servererror|internal|timeout|timedout|deadline|badgateway|apierror|abort|notready"
            r"|upstream|capacity|^5\d\d$|^4(?:08|09|25|98|99)$"
        ),
    ),
)

_TOO_LONG = (
    r"max(?:imum)?[ _](?:context|prompt|model|sequence)[ _](?:length|size|window)"
    r"|context[ _-]?(?:length|window|size|limit)[^\n.]{0,40}(?:exceed|too (?:long|small)|is only|overflow|full\b)"
    r"|(?:exceed\w*|(?:longer|larger|greater|more) than|too (?:long|large) for)[^\n.]{0,60}\bcontext\b"
    r"|context[^\n.]{0,20}overflow|(?:configured|available) context size|context length of only"
    r"|(?:prompt|inputs?|messages?|conversation|history|context)(?: length)?(?: is| are)? too long"
    r"|(?:prompt|input)[^\n.]{0,40} is too long"
    r"|(?:request(?: body| entity| payload)?|payload|prompt|context)(?: is)? too (?:large|big)"
    r"|\.(?:content|output|text)[\w.\[\]]*['\"`]?: string too long"
    r"|(?:input|prompt) token count[^\n.]{0,40}(?:exceed|\bbut\b|greater|larger)"
    r"|(?:prompt|input|request|messages?)\b[^\n.]{0,40}(?:tokens?|length)\b[^\n.]{0,30}\bexceed"
    r"|prompt exceeds|tokens in request more than|request payload size exceeds|request exceeds the maximum"
    r"|exceed\w* (?:the )?(?:model'?s? )?(?:max(?:imum)? )?(?:number of )?(?:input|prompt) (?:token|length)"
    r"|exceed\w* (?:the )?(?:model|maximum) (?:token limit|number of tokens)"
    r"|too many (?:input |prompt |total )?tokens(?!,? (?:please wait|per\b))"
    r"|(?:please|try) (?:reduc|shorten)\w* (?:the length of )?(?:the|your) (?:messages?|prompt|input|conversation)"
    r"|range of input length should be|`?inputs`? (?:tokens \+|must have less than)"
    r"|上下文[^\n。]{0,20}(?:超|过长)|(?:输入|提示词|prompt)[^\n。]{0,12}(?:过长|超长|超过|超出|超限)"
    r"|超(?:过|出|限)[^\n。]{0,16}(?:上下文|最大长度|长度限制|输入长度)|长度超限|请求体?过大"
)
# Go's own word for a time-out, which speaks of a context that is none of ours.
_OUT_OF_TIME = (
    r"context (?:deadline|cancel)|deadline[ _]?exceeded|\btime(?: ?limit|out)?\b[^\n.]{0,20} exceed"
    r"|exceed[^\n.]{0,20}\btime\b|concurrency limit"
)
_LENGTH = r"token|length|too long|too large"
# A limit of tokens in a time, which a wait cures, unless this one request alone is above it.
_PER_TIME = r"rate[ _-]?limit|throttl|please wait|per (?:min|hour|day)|\b(?:tpm|tpd|rpm|rpd)\b|每分钟|每天"
_ALONE = r"request (?:is )?too large"
# Gemini says the third of these of every limit, also of one that is over in a minute: its mark tells.
_NO_MONEY = (
    r"insufficient (?:quota|balance|credit|funds)|credit balance|exceeded your current quota|out of credits"
    r"|no credits? (?:left|remaining)|in arrears|余额不足|欠费"
)
_BY_WORDS: _Rows = (
    ("limited", r"too many (?:requests|tokens)|quota exceeded|concurrency|频繁|限流|速率|并发|频率"),
    (
        "unavailable",
        (
            r"overload|unavailable|server[ _]error|internal (?:server )?error|time[- ]?out|timed out|upstream|capacity"
            r"|try again(?! with)|loading model|is (?:currently |still )?loading|server (?:is )?busy|bad gateway"
            r"|繁忙|过载|超时|稍后|访问量过大|服务器|内部错误"
        ),
    ),
    (
        "refused",
        (
            r"invalid|unauthori[sz]ed|authentication|api[ _]key|permission|not[ _]found|does not exist|not supported"
            r"|unsupported|content (?:policy|filter)|content management policy|flagged|sensitive|unsafe"
            r"|is required|not allowed"
            r"|无效|参数错误|敏感|违规|鉴权|身份验证|不存在|权限|不支持"
        ),
    ),
)


def complaint_of(error: Json) -> Complaint:
    """An error object, a whole body, or plain words. What nobody knows is "": another try may do."""
    signs = _read(error)
    by_mark = _first(_BY_MARK, tuple(map(_plain, signs.marks)))
    if by_mark == "too_long":
        return "too_long"
    if by_mark != "limited" and _compiled(_NO_MONEY).search(signs.words):
        return "refused"
    if _compiled(_OUT_OF_TIME).search(signs.words) and not _compiled(_LENGTH).search(signs.words):
        return by_mark or _first(_BY_WORDS, (signs.words,)) or "unavailable"
    in_time = by_mark == "limited" or _compiled(_PER_TIME).search(signs.words)
    if _compiled(_ALONE if in_time else _TOO_LONG).search(signs.words):
        return "too_long"
    if by_mark or not in_time:
        return by_mark or _first(_BY_WORDS, (signs.words,))
    return "limited"


def _first(rows: _Rows, said: tuple[str, ...]) -> Complaint:
    for kind, pattern in rows:
        if any(map(_compiled(pattern).search, said)):
            return kind
    return ""


def signs_of(value: Json) -> str:
    """Everything in the error that may name its kind, in lower case."""
    signs = _read(value)
    return " ".join((*signs.marks, signs.words))


def _read(value: Json) -> _Signs:
    marks: list[str] = []
    words: list[str] = []
    stack: list[tuple[str, Json]] = [("message", value)]
    for _ in range(200):
        if not stack:
            break
        key, item = stack.pop()
        if isinstance(item, str):
            if key == "raw" and (inner := _parsed(item)) is not None:  # OpenRouter: the provider's own body
                stack.append(("error", inner))
                continue
            if key in _MARKS:
                marks.append(item[:100].lower())
            if key in _WORDS or " " in item:
                words.append(_unquoted(item[:_LONGEST].lower()))
        elif isinstance(item, int) and not isinstance(item, bool):
            if key in _MARKS:
                marks.append(str(item)[:20])
        elif isinstance(item, dict):
            fields = as_dict(item).items()
            stack.extend((name.lower(), one) for name, one in reversed(fields) if _telling(name.lower(), one))
        else:
            stack.extend((key, one) for one in reversed(as_list(item)))
    return _Signs(tuple(marks), "\n".join(words)[: 10 * _LONGEST])


def _telling(key: str, value: Json) -> bool:
    if isinstance(value, dict | list):
        return key in _INSIDE or key in _WORDS
    return key in _MARKS or key in _WORDS


def _parsed(text: str) -> Json:
    try:
        value = orjson.loads(text[:20_000])
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType] - any JSON


def _plain(mark: str) -> str:
    return "".join(filter(str.isalnum, mark))


# What a validation quotes of the request.
_QUOTED = r"input_value=[^\n]*?(?=, input_type|$)|\"[^\"{}\n]{40,}\""


def _unquoted(words: str) -> str:
    return words if "{" in words else _compiled(_QUOTED).sub("…", words)
