"""Is the response complete? The one place that decides, from several signals, because each is wrong for some provider.

The signals: the wire's terminal event, the finish reason, the arguments of every call, an error object, damaged events,
the token count; if there was no response, the error. The verdict is data (`verdicts.Verdict`) and includes whether a
retry may help; the caller decides about retries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias, cast

import orjson

from unbroken_wires.decoding.assembler import Assembler
from unbroken_wires.deltas import Meaning, Verdict, VerdictKind
from unbroken_wires.errors import ContextTooLong, ProviderError, RateLimited, TimedOut, Unavailable, Unreachable
from unbroken_wires.messages import Json, ToolCall
from unbroken_wires.wires.json_access import as_dict, as_list
from unbroken_wires.wires.jsontext import dump_arguments
from unbroken_wires.wires.sse import Framer

# Classifies a provider's error object, however it is worded: may a retry help?
#
# Pure data in, one word out. Where the error came from (a status, an event inside a 200) and what is done about it
# are decided elsewhere.
#
# An error names its kind in fields made for that (`code`, `type`, `status`): its marks. They count before the text of
# its message, with one exception: most providers report only in the text that the context is too long, with the mark of
# any other bad request. Fields that repeat the request (`input`, `failed_generation`) are not read, so that a user's
# text is not taken for the provider's.


Complaint: TypeAlias = Literal["too_long", "limited", "unavailable", "refused", ""]
"""The context is too long; too many requests; a problem of the provider; a permanent error; unknown."""

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
_ERROR_WORDS = {
    "message",
    "msg",
    "error",
    "error_msg",
    "error_message",
    "errormessage",
    "err_msg",
    "status_msg",
    "detail",
    "details",
    "description",
    "reason",
    "raw",
    "cause",
}
_INSIDE = {"error", "errors", "detail", "details", "metadata", "base_resp", "response", "inner_error", "innererror"}
_LONGEST = 600
"""Characters of one text, and ten times that of all together: an error is explained at its beginning."""


_Rows: TypeAlias = tuple[tuple[Complaint, str], ...]


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiled when the first error is read, not at import: most runs see none."""
    return re.compile(pattern)


@dataclass(frozen=True, slots=True)
class _Signs:
    marks: tuple[str, ...]
    words: str


# Of a mark only its letters and digits are left: `RESOURCE_EXHAUSTED`, `Throttling.RateQuota`, `429`. The first row
# that has one of the marks decides, so specific marks come before general ones.
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
# Go's wording of a time-out, where "context" means something else.
_OUT_OF_TIME = (
    r"context (?:deadline|cancel)|deadline[ _]?exceeded|\btime(?: ?limit|out)?\b[^\n.]{0,20} exceed"
    r"|exceed[^\n.]{0,20}\btime\b|concurrency limit"
)
_LENGTH = r"token|length|too long|too large"
# A limit of tokens per time, where waiting helps, unless this one request alone exceeds it.
_PER_TIME = r"rate[ _-]?limit|throttl|please wait|per (?:min|hour|day)|\b(?:tpm|tpd|rpm|rpd)\b|每分钟|每天"
_ALONE = r"request (?:is )?too large"
# Gemini uses the third of these for every limit, also for one that lasts a minute: its mark distinguishes them.
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
    """Takes an error object, a complete body, or plain text. Unknown is "": a retry may help."""
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
            if key in _ERROR_WORDS or " " in item:
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
        return key in _INSIDE or key in _ERROR_WORDS
    return key in _MARKS or key in _ERROR_WORDS


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


How: TypeAlias = Literal["unfinished", "lost", "silent", "late"]
"""How a body without its terminal event ended."""


@dataclass(slots=True)
class Evidence:
    """What was seen of a response when its body had ended."""

    received: Assembler
    framer: Framer
    recognised: bool
    """At least one event was of the wire."""
    cut: bool
    """The body ended in the middle of an event."""
    cause: str
    """Why the bytes ended, if it was not the provider that ended them."""
    how: How
    """The kind of that."""
    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    broken_calls: list[ToolCall]
    max_tokens: int | None

    @property
    def noise(self) -> str:
        """The first line that was not an event, for instance of an HTML page."""
        return self.framer.noise.decode("utf-8", "replace")


LONGEST = 500
"""Characters of a provider's own text."""
_HTML = re.compile(r"\s*<[!/a-zA-Z]")
_SAY_CALLS = ("tool_calls", "function_call", "tool_use")


def judge(seen: Evidence) -> Verdict:
    kind, reason = _kind(seen)
    received = seen.received
    # Some servers report that they were done although the token limit cut them.
    meaning = "length" if kind == "cut_call" and _met_its_limit(seen) else received.meaning
    if received.has_refusal and meaning == "done" and not seen.calls:
        meaning = "refused"  # OpenAI's finish reason for it is "stop"
    again = kind != "whole" and _again(kind, meaning, seen)
    names = tuple([call.name for call in seen.broken_calls])
    size = seen.framer.bytes_seen
    return Verdict(
        kind,
        reason,
        received.finish_reason,
        meaning,
        size,
        len(seen.text),
        names,
        received.failure,
        again,
        left_out=received.fields_left_out,
    )


def judge_failure(error: ProviderError) -> Verdict:
    """The verdict where there was no response at all, or none that can be read."""
    match error:
        case RateLimited():
            kind = "limited"
        case Unavailable():
            kind = "unavailable"
        case Unreachable():
            kind = "unreachable"
        case TimedOut():
            kind = "late" if error.total else "unanswered"
        case ContextTooLong():
            return Verdict("too_long", str(error))
        case _:
            return Verdict("refused", str(error))
    return Verdict(kind, str(error), again=kind != "late")


def _again(kind: VerdictKind, meaning: Meaning, seen: Evidence) -> bool:
    if kind == "error":
        return complaint_of(seen.received.failure) != "refused"
    if kind == "cut_call":
        # The limit would cut it again; and complete but wrong arguments are the model's mistake, which it reads as an
        # error.
        return (seen.received.calls.unfinished or not seen.broken_calls) and meaning != "length"
    return kind not in ("late", "too_long")


def _met_its_limit(seen: Evidence) -> bool:
    usage, limit = seen.received.last_usage, seen.max_tokens
    return seen.received.meaning == "length" or (
        limit is not None and usage is not None and usage.output_tokens >= limit
    )


def _kind(seen: Evidence) -> tuple[VerdictKind, str]:
    received, framer = seen.received, seen.framer
    if received.failure is not None:
        kind = "too_long" if complaint_of(received.failure) == "too_long" else "error"
        return kind, f"the provider sent an error: {error_text(received.failure)[:LONGEST]}"
    if framer.bytes_seen == 0:
        kind = "foreign" if seen.how == "unfinished" else seen.how
        return kind, f"the body is empty{f': {seen.cause}' if seen.cause else ''}"
    if not seen.recognised and not seen.cut and (framer.noise or not received.damaged):
        return "foreign", _foreign(seen)
    if received.damaged:
        return "damaged", received.damaged
    if not received.terminal:
        calls = f"; calls not complete: {_names(seen)}" if seen.broken_calls else ""
        end = seen.cause or "the body ended without the terminal sign of its wire"
        return seen.how, f"{end}{calls}"
    if framer.noise and _HTML.match(seen.noise):
        return "damaged", f"the stream contains HTML: {seen.noise}"
    finish = received.finish_reason
    if seen.broken_calls:
        if _met_its_limit(seen):
            return "cut_call", f"the token limit cut the call: {_names(seen)} (finish reason {finish!r})"
        if received.calls.unfinished:
            return "cut_call", f"the finish reason is {finish!r}, but the arguments are not complete: {_names(seen)}"
        problem = f"{_names(seen)}: {seen.broken_calls[0].problem}"
        return "cut_call", f"the finish reason is {finish!r}, but not every call can run: {problem}"
    if seen.calls or received.server_calls:
        return "whole", ""
    if finish in _SAY_CALLS:
        return "cut_call", f"the finish reason is {finish!r}, but no call came"
    if not (seen.text.strip() or received.said_otherwise) and received.meaning in ("done", "other"):
        what = "only reasoning" if seen.reasoning else "nothing"
        return "empty", f"the response ended as it should and says {what}"
    return "whole", ""


def _names(seen: Evidence) -> str:
    return ", ".join([call.name or "a call without a name" for call in seen.broken_calls])


def _foreign(seen: Evidence) -> str:
    if _HTML.match(seen.noise):
        return f"the body is HTML, not a response: {seen.noise}"
    if seen.noise:
        return f"the body is not a response of this wire: {seen.noise}"
    return "the body holds no event of this wire"


_WORDS = ("message", "error", "msg", "error_msg", "detail", "reason")


def error_text(error: Json) -> str:
    """The text of a provider's error object, whatever its shape."""
    found = error
    for _ in range(5):  # as deep as errors are seen inside errors
        if isinstance(found, str) and found:
            return found
        if isinstance(found, list):
            found = next(iter(cast("list[Json]", found)), None)
        elif isinstance(found, dict):
            fields = cast("dict[str, Json]", found)
            found = next((fields[word] for word in _WORDS if fields.get(word)), None)
    return (dump_arguments(error) or "an error object")[:200]
