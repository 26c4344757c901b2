"""Does an answer end by announcing a call that it does not make? "Let me look that up." is not an answer.

Only the last sentence counts, in English or Chinese. In doubt the result is no: a missed announcement costs one
unfinished answer, a false one asks a finished model to continue. The loop decides what to do about it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache

_LONGEST = {"en": 240, "zh": 60}
"""Maximum characters of a sentence that only announces something."""


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiled on first use: compiling all of them would take a tenth of the import time of an agent."""
    return re.compile(pattern)


def _any(*alternatives: str) -> str:
    return f"(?:{'|'.join(alternatives)})"


# What only a tool can do. Verbs of speaking (explain, list, show) are left out: they announce an answer.
_THE = "(?:the|that|this|these|those|it|them|your|some|another)"
_VERBS = _any(
    rf"look(?:ing)? (?:{_THE} up|up|into|for|at (?!an? |some )|through|inside|further|closely|around)",
    r"tak(?:e|ing) (?:a|another) (?:(?:quick|closer|brief|first|second|deeper) )*look",
    r"(?:(?:double|cross|re)-?)?check(?:ing)?(?! (?:in|back)\b)",
    r"(?:search|fetch|download|inspect|verify|gather|load|query)(?:ing)?",
    r"(?:retriev|brows|examin|investigat|comput|calculat)(?:e|ing)|tak(?:e|ing) an? screenshot",
    r"scan(?:ning)?|find(?:ing)?(?! you\b)",
    rf"pull(?:ing)? (?:up|in|{_THE})",
    rf"get(?:ting)? (?:{_THE}|more|current|all|a list)\b",
    rf"(?:read|open)(?:ing)? (?:up |through )?{_THE}\b",
    r"list(?:ing)? (?:the )?(?:files|director|contents)",
    rf"(?:run(?:ning)?|execut(?:e|ing)) (?:an?|{_THE})\b",
    r"(?:call|us|invok|try|runn?|execut)(?:e|ing)? (?:to use )?(?:the|my|a|your|this|these|all)"
    r" [^,]{0,40}\b(?:tool|function|api|search)s?\b",
    r"(?:writ|creat|updat|edit|modify|sav|delet|send|add|mak|fix|apply|book|schedul|submit)(?:e|ing)?"
    r" (?:the|that|this|it)\b[^,]{0,40}"
    r"(?:\bnow\b|\b(?:file|script|test|config|database|record|ticket|event|e?mail)|\bfor you[.!]*$)",
)
_SOON = rf"""(?:{
    _any(
        "now",
        "first",
        "just",
        "quickly",
        "then",
        "also",
        "next",
        "immediately",
        "actually",
        "simply",
        "carefully",
        "go ahead and",
        "go and",
        "help you",
        "start by",
        "begin by",
        "starting by",
        "proceed to",
        "try to",
        "need to",
    )
} )*"""
_FILLER = rf"""(?:{
    _any("so", "now", "then", "and", "but", "ok", "okay", "alright", "first", "next", "great", "sure", "well", "hmm")
},? )*"""
_LEAD = rf"(?:[^,;:—–]{{1,60}}[,;—–] ?)?{_FILLER}"
_I_WILL = _any(
    "let me",
    "i'll",
    "i will",
    "i shall",
    "i'm going to",
    "i am going to",
    "i'm",
    "i am",
    "i need to",
    "i have to",
    "i should",
    "i must",
    "i want to",
    "allow me to",
    "going to",
)
_MOMENT = r"(?:just )?(?:a|one) (?:quick )?(?:moment|second|sec|minute)|a few (?:moments|seconds)"
_ENGLISH = (
    rf"{_LEAD}{_I_WILL} {_SOON}{_VERBS}",
    rf"{_LEAD}let's {_SOON}(?:search|fetch|query|retrieve|look (?:it|that|this|them) up|look up)\b",
    rf"{_FILLER}{_SOON}(?=\w+ing\b)(?:{_VERBS}|calling|running|executing)[^.,]*?(?:…|\.\.\.|:|now[.!]?)$",
    (
        rf"{_LEAD}(?:(?:please )?(?:give me )?(?:{_MOMENT})|please (?:wait|hold on|bear with me|stand by)"
        r"|hold on|hang on|bear with me)(?:,? please| an? (?:moment|second))?"
        r"(?:,? (?:while|as) i .{0,120}|,? to (?:check|look|search|find|fetch).{0,100})?[.!…:]*$"
    ),
)
_NOT_NOW = _any(
    r"\bif you|\byou(?:'d| would) like\b|\bunless\b|\bwhenever\b|\bwould\b|\bfeel free|\byou (?:can|could)\b",
    r"\b(?:once|when|after|as soon as|until|before) you\b",
    r"\b(?:tomorrow|later|next time|next week|in the future|in the meantime|every|each|always|never|someday)\b",
    r"\bback to you|\blook(?:ing)? forward|\bwhat i can\b|\bif i can\b|\bthis straight",
    r"\brun(?:ning)? (?:through|you|into)\b|\b(?:an|some|for|another) examples?\b| = |\bsomething like\b",
)

_ZH_VERBS = _any(
    "查",
    "搜",
    "检索",
    "找",
    "看看",
    "看一",
    "看下",
    "获取",
    "调用",
    "读取",
    "读一下",
    "运行",
    "执行",
    "打开",
    "确认",
    "核实",
    "核对",
    "验证",
    "检查",
    "访问",
    "浏览",
    "抓取",
    "拉取",
    "下载",
    "定位",
    "翻一",
    "列出(?:文件|目录)",
    "计算一下",
    "算一下",
    "分析一下",
    "试一下",
    "试试",
    "(?:使|利)?用[^，。]{0,20}(?:工具|函数|接口|搜索)",
)
_ZH_SOON = rf"""{
    _any(
        "先",
        "再",
        "来",
        "去",
        "就",
        "马上",
        "立即",
        "立刻",
        "现在",
        "这就",
        "首先",
        "接着",
        "继续",
        "开始",
        "直接",
        "尝试",
        "需要",
        "快速",
        "仔细",
        "重新",
        "进一步",
        "[帮为给替][您你]",
        " ",
    )
}*(?:(?:通过|用|对|把|从|在)[^，。]{{0,16}}?)?"""
_ZH_I_WILL = _any(
    "让我(?!们)",
    "我来",
    "我先",
    "我去",
    "我再",
    "我这就",
    "我马上",
    "我立即",
    "我立刻",
    "我现在",
    "我需要",
    "我得",
    "我要",
    "容我",
    "我帮",
    "我为",
    "我给",
    "我替",
    "我将",
    "我准备",
    "我打算",
    "我会(?=先|马上|立即|立刻|现在|这就|首先)",
)
_CHINESE = (
    rf"{_ZH_I_WILL}[您你]?{_ZH_SOON}{_ZH_VERBS}",
    rf"我?(?:现在)?正在{_ZH_SOON}{_ZH_VERBS}[^的]{{0,25}}$",
    rf"{_ZH_VERBS}[^的]{{0,16}}中$",
)
_ZH_WAIT = r"请?[您你]?稍(?:等|候)(?:片刻|一下|一会儿?)?$|请?等我?一下$"
_ZH_LEAD = r"(?:好的?|嗯|那么?|首先|接下来|接着|然后|现在(?!正在)|下面|下一步|所以|因此|当然|没问题|\s)+"
_ZH_AFTER = r"请?稍[等候]|请?等|然后|以便?|再|看|[为给][您你]|并|来|确认|了解|获取|查"
_ZH_SAYS = r"解释|说明|介绍|总结|回答|解答"
_ZH_NOT_NOW = (
    r"如果|若|的话|假如|是否需要|需要我|要我|可以帮|[您你]可以|告诉|明天|以后|下次|今后|随时|每次"
    r"|一直|举例|例子|为例|[吗么呢]$|好不好|行不行"
)

_DECORATION = ' \t*_~"”’」)）】`'
_NO_PROSE = r"(?:#|//|>|\||\$|<|[-*+•] |\d+[.)、] ?|    |\t)"
_SENTENCE_END = r"(?<=[.!?…])[*_]*\s+|(?<=[。！？])"
_CJK = r"[\u4e00-\u9fff]"


def announces(text: str, tools: Collection[str] = ()) -> bool:
    """Whether the text ends in an announcement, also of one of these tools by its name."""
    sentence = _last_sentence(text)
    if not sentence or sentence.endswith(("?", "？")):
        return False
    bare = sentence.rstrip(".!…:。！： ~～")
    if re.search(r":(?:\s|[\u4e00-\u9fff])|：", bare):  # the announced text follows
        return False
    if _compiled(_CJK).search(sentence):
        return len(sentence) <= _LONGEST["zh"] and _in_chinese(bare, tools)
    return len(sentence) <= _LONGEST["en"] and _in_english(sentence.lower().replace("’", "'"), tools)


def _last_sentence(text: str) -> str:
    """The last sentence of the last line, without emphasis marks; empty if that line is not prose."""
    text = text.rstrip()
    if text.endswith(("```", '"', "”", "」", "』", "'")) or text.count("```") % 2:
        return ""
    line = text.rsplit("\n", 1)[-1]
    if _compiled(_NO_PROSE).match(line):
        return ""
    line = "".join(character for character in line if character.isascii() or not _is_picture(character))
    line = line.strip(_DECORATION)[-2 * _LONGEST["en"] :]
    sentences = [sentence for sentence in _compiled(_SENTENCE_END).split(line) if sentence.strip(_DECORATION)]
    return sentences[-1].strip(_DECORATION) if sentences else ""


def _is_picture(character: str) -> bool:
    return character >= "\U0001f000" or "\u2600" <= character <= "\u27bf" or character in "\ufe0f\u200d"


def _in_english(sentence: str, tools: Collection[str]) -> bool:
    if _compiled(_NOT_NOW).search(sentence):
        return False
    return any(pattern.match(sentence) for pattern in (*map(_compiled, _ENGLISH), *map(_calling, tools)))


def _calling(tool: str) -> re.Pattern[str]:
    verbs = r"(?:call|us|invok|runn?|try|execut|query)(?:e|ing)?"
    name = rf"(?:the |my )?(?:tool |function )?[`*_]*{re.escape(tool.lower())}(?!\w)"
    return re.compile(
        rf"{_LEAD}(?:{_I_WILL} {_SOON}{verbs} {name}|(?=\w+ing\b){verbs} {name}[^.]*(?:…|\.\.\.|:|now\.?)?$)"
    )


def _in_chinese(sentence: str, tools: Collection[str]) -> bool:
    if _compiled(_ZH_NOT_NOW).search(sentence):
        return False
    clauses = [_compiled(_ZH_LEAD).sub("", clause, count=1).strip() for clause in re.split(r"[，,；;]", sentence)]
    if _compiled(_ZH_WAIT).match(clauses[-1]):
        return True
    calls = [re.compile(rf".{{0,12}}(?:调用|使用|用|执行|运行)\s*[`「“]?{re.escape(name)}") for name in tools]
    for at, clause in enumerate(clauses):
        if any(pattern.match(clause) for pattern in (*map(_compiled, _CHINESE), *calls)):
            return not _compiled(_ZH_SAYS).search(clause) and all(
                _compiled(_ZH_AFTER).match(after) for after in clauses[at + 1 :]
            )
    return False
