"""What the scripted model does with a wish: which commands, in which order, and how it describes their results.

English and Chinese, a handful of patterns. It does not parse language: a wish that matches no pattern has no plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from command_agent.world import BLOCKS, ITEMS, MOMENTS
from unbroken_testing import Call

CAN_DO = (
    'I can do this: "give me three diamonds", "build a tower of 3 stone at 1 64 1", "build a small house at 9 64 5", '
    '"make it night and tell everyone", "teleport me to 5 64 5", "say hello", "what do I have?", "where am I?", '
    '"what time is it?".'
)
CAN_DO_ZH = (
    "我会这些：“给我一个钻石”、“在 1 64 1 建一座 3 格高的石头塔”、“在 9 64 5 盖一座小房子”、“变成晚上并告诉大家”、"
    "“把我传送到 5 64 5”、“告诉大家你好”、“我有什么？”、“我在哪里？”、“几点了？”。"
)
NUMBERS = {"a": 1, "an": 1, "some": 4, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "ten": 10}
NUMBERS_ZH = {"一": 1, "两": 2, "二": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7, "八": 8, "九": 9, "十": 10}
MOMENTS_ZH = {"白天": "day", "早上": "day", "中午": "noon", "傍晚": "evening", "晚上": "night", "半夜": "midnight"}
ITEMS_ZH = {"钻石": "diamond", "苹果": "apple", "面包": "bread", "铁剑": "iron_sword", "指南针": "compass"}
BLOCKS_ZH = {"石头": "stone", "泥土": "dirt", "沙子": "sand", "砖": "brick", "玻璃": "glass", "火把": "torch"}
MADE_OF_ZH = {"木板": "oak_planks", "原木": "oak_log", "金块": "gold_block", "钻石块": "diamond_block"}
CHINESE = MOMENTS_ZH | ITEMS_ZH | BLOCKS_ZH | MADE_OF_ZH
HIGHEST = 12

Results = dict[str, str]
"""The last result of each command, by its name."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The text and the calls of one response."""

    words: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    stages: tuple[Stage, ...]
    answer: Callable[[Results], str]


def is_chinese(text: str) -> bool:
    return any("\u4e00" <= letter <= "\u9fff" for letter in text)


def understand(wish: str) -> Plan | None:
    for pattern, make in WISHES:
        if found := re.search(pattern, wish, re.IGNORECASE):
            said = {name: value.strip() for name, value in found.groupdict().items() if value}
            return make(said, is_chinese(wish))
    return None


def _give(said: dict[str, str], chinese: bool) -> Plan:
    count, item = _count(said.get("count", "1")), _item(said["item"], ITEMS)
    return Plan(
        (
            Stage(
                f"好的，给你 {count} 个 {item}。" if chinese else f"One moment: {count} × {item} for you. ",
                (Call("give", item=item, count=count),),
            ),
            Stage("", (Call("inventory"),)),
        ),
        lambda results: f"完成了。你现在有 {_list(results)}。" if chinese else f"Done. You have {_list(results)} now.",
    )


def _tower(said: dict[str, str], chinese: bool) -> Plan:
    wished, block = _count(said.get("count", "3")), _item(said["item"], BLOCKS)
    height = min(wished, HIGHEST)
    x, y, z = (int(said[axis]) for axis in "xyz")
    words = f"一座 {height} 格高的塔。马上就好。" if chinese else f"A tower of {height} {block}. Here it comes. "
    if height < wished:
        words = (f"我的塔最高 {HIGHEST} 格。" if chinese else f"{HIGHEST} is as high as I build. ") + words
    calls = tuple(Call("setblock", x=x, y=y + level, z=z, block=block) for level in range(height))
    top = y + height - 1

    def answer(results: Results) -> str:
        there = results.get("block_at", "?")
        if chinese:
            return f"塔建好了。最上面的 {x} {top} {z} 是 {there}。"
        return f"The tower stands. At its top, {x} {top} {z}, there is {there}."

    return Plan((Stage(words, calls), Stage("", (Call("block_at", x=x, y=top, z=z),))), answer)


def _house(said: dict[str, str], chinese: bool) -> Plan:
    x, y, z = (int(said.get(axis, at)) for axis, at in zip("xyz", ("9", "64", "5"), strict=True))
    edge = [(i, k) for i in range(4) for k in range(4) if i in (0, 3) or k in (0, 3)]
    walls = [
        Call("setblock", x=x + i, y=y + j, z=z + k, block="glass" if j and (i, k) in ((3, 1), (2, 3)) else "brick")
        for j in range(2)
        for i, k in edge
        if (i, k) != (1, 3)
    ]
    roof = [Call("setblock", x=x + i, y=y + 2, z=z + k, block="oak_planks") for i in range(4) for k in range(4)]
    told = "房子盖好了！" if chinese else "A new house stands!"
    return Plan(
        (
            Stage("先砌墙。" if chinese else "First the walls. ", tuple(walls)),
            Stage("然后是屋顶。" if chinese else "Then the roof. ", tuple(roof)),
            Stage("", (Call("setblock", x=x + 1, y=y + 3, z=z + 1, block="torch"), Call("say", text=told))),
        ),
        lambda _: "房子盖好了。祝你住得开心！" if chinese else "Your house is ready. The door is open: come in!",
    )


def _time(said: dict[str, str], chinese: bool) -> Plan:
    to = _item(said["time"].lower(), tuple(MOMENTS))
    words = (f"现在是{said['time']}了！" if chinese else f"It is {to} now!") if said.get("tell") else ""
    announce = (Call("say", text=words),) if words else ()
    return Plan(
        (
            Stage("好的。" if chinese else f"Let it be {to}. ", (Call("time", to=to), *announce)),
            Stage("", (Call("what_time"),)),
        ),
        lambda results: (
            f"时间是 {results['what_time']}。{'大家都知道了。' if words else ''}"
            if chinese
            else f"The clock says {results['what_time']}.{' Everybody knows.' if words else ''}"
        ),
    )


def _teleport(said: dict[str, str], chinese: bool) -> Plan:
    to = {axis: int(said[axis]) for axis in "xyz"}
    return Plan(
        (Stage("抓紧了！" if chinese else "Hold on! ", (Call("teleport", dict(to)),)), Stage("", (Call("where_is"),))),
        lambda results: f"到了。{results['where_is']}。" if chinese else f"Here we are: {results['where_is']}.",
    )


def _say(said: dict[str, str], chinese: bool) -> Plan:
    return Plan(
        (Stage("", (Call("say", text=said["words"]),)),),
        lambda _: "我告诉大家了。" if chinese else "I told everybody.",
    )


def _look(tool: str, english: str, chinese_words: str) -> Callable[[dict[str, str], bool], Plan]:
    def make(said: dict[str, str], chinese: bool) -> Plan:
        found = chinese_words if chinese else english
        return Plan((Stage("", (Call(tool),)),), lambda results: found.format(_list(results, tool)))

    return make


def _list(results: Results, tool: str = "inventory") -> str:
    text = results.get(tool, "?")
    try:
        return ", ".join(f"{count} × {item}" for item, count in json.loads(text).items())
    except (ValueError, AttributeError):
        return text


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else (NUMBERS | NUMBERS_ZH).get(text.lower(), 1)


def _item(text: str, known: tuple[str, ...]) -> str:
    """The world's name for it; an unknown item is passed on unchanged, so that the world refuses it."""
    name = CHINESE.get(text) or re.sub(r"\s+", "_", text.lower())
    return next((each for each in (name, name.removesuffix("s"), name.removesuffix("es")) if each in known), name)


_PLACE = r"(?P<x>\d{1,4})[\s,]+(?P<y>\d{1,4})[\s,]+(?P<z>\d{1,4})"
_MANY = rf"(?P<count>\d{{1,4}}|{'|'.join(NUMBERS)})"
_MANY_ZH = rf"(?P<count>\d{{1,4}}|[{''.join(NUMBERS_ZH)}])"
_MOMENT = "|".join(MOMENTS)
_MOMENT_ZH = "|".join(MOMENTS_ZH)

WISHES: tuple[tuple[str, Callable[[dict[str, str], bool], Plan]], ...] = (
    (rf"\btower of {_MANY} (?P<item>[a-z_ ]{{1,30}}?)(?: blocks?)? at {_PLACE}", _tower),
    (rf"在\s*{_PLACE}\s*[建盖]一?座?\s*{_MANY_ZH}\s*格高的(?P<item>\w{{1,6}}?)塔", _tower),
    (rf"\bbuild (?:me )?an? (?:small )?house(?: at {_PLACE})?", _house),
    (rf"(?:在\s*{_PLACE}\s*)?[建盖]一?座?小?房子", _house),
    (rf"\bgive me (?:{_MANY} )?(?P<item>[a-z_ ]{{1,30}})", _give),
    (rf"给我\s*(?:{_MANY_ZH}\s*[个块把片]?)?\s*(?P<item>\w{{1,12}})", _give),
    (rf"\bmake it (?P<time>{_MOMENT})\b(?P<tell>.*\btell\b)?", _time),
    (rf"变成?(?P<time>{_MOMENT_ZH})(?P<tell>.*告诉)?", _time),
    (rf"\b(?:teleport|take|bring) me to {_PLACE}", _teleport),
    (rf"传送到?\s*{_PLACE}", _teleport),
    (r"\b(?:what do i have|my inventory)\b", _look("inventory", "You have {}.", "你有 {}。")),
    (r"我有(?:什么|哪些)", _look("inventory", "You have {}.", "你有 {}。")),
    (r"\bwhere am i\b", _look("where_is", "{}.", "{}。")),
    (r"我在哪", _look("where_is", "{}.", "{}。")),
    (r"\bwhat time\b", _look("what_time", "It is {}.", "现在是 {}。")),
    (r"几点", _look("what_time", "It is {}.", "现在是 {}。")),
    (r"\b(?:say|tell everyone)[ :]+(?P<words>.{1,200})", _say),
    (r"(?:告诉大家|说)[：:，,\s]*(?P<words>.{1,200})", _say),
)
