"""The scripted model: what it does with wishes, in English and Chinese, in as many responses as each needs."""

from __future__ import annotations

import pytest

from command_agent.scripted import script
from command_agent.tools import Here
from command_agent.watching import Watch
from command_agent.world import World
from unbroken import Assistant, Conversation, Result, ScriptedModel
from unbroken_testing import check_request, run_virtual


class Scene:
    def __init__(self, pace: float = 0.0) -> None:
        self.world = World()
        self.world.join("player1")
        self.model = ScriptedModel(script(pace))
        self.chat = Conversation(Watch().agent_for("player1", self.model), deps=Here(self.world, "player1"))

    def wish(self, *wishes: str) -> Result:
        async def main() -> Result:
            results = [await self.chat.say(wish) for wish in wishes]
            return results[-1]

        return run_virtual(main)

    @property
    def commands(self) -> list[str]:
        return [done.command for done in self.world.log]


@pytest.mark.parametrize(
    ("wish", "commands", "answer"),
    [
        ("Give me three diamonds, please", ["/give player1 diamond 3"], "Done. You have 3 × diamond now."),
        ("give me 2 oak planks", ["/give player1 oak_planks 2"], "Done. You have 2 × oak_planks now."),
        ("给我一个钻石", ["/give player1 diamond 1"], "完成了。你现在有 1 × diamond。"),
        ("给我 3 块面包", ["/give player1 bread 3"], "完成了。你现在有 3 × bread。"),
        (
            "build a tower of 3 stone at 1 64 1",
            ["/setblock 1 64 1 stone", "/setblock 1 65 1 stone", "/setblock 1 66 1 stone"],
            "The tower stands. At its top, 1 66 1, there is stone.",
        ),
        (
            "在 1 64 1 建一座 2 格高的石头塔",
            ["/setblock 1 64 1 stone", "/setblock 1 65 1 stone"],
            "塔建好了。最上面的 1 65 1 是 stone。",
        ),
        (
            "make it night and tell everyone",
            ["/time set night", "/say It is night now!"],
            "The clock says 19:00, night. Everybody knows.",
        ),
        ("make it noon", ["/time set noon"], "The clock says 12:00, day."),
        ("变成晚上并告诉大家", ["/time set night", "/say 现在是晚上了！"], "时间是 19:00, night。大家都知道了。"),
        ("teleport me to 5 64 5", ["/tp player1 5 64 5"], "Here we are: player1 is at 5 64 5; players here: player1."),
        ("把我传送到 5 64 5", ["/tp player1 5 64 5"], "到了。player1 is at 5 64 5; players here: player1。"),
        ("say good morning", ["/say good morning"], "I told everybody."),
        ("告诉大家你好", ["/say 你好"], "我告诉大家了。"),
        ("What do I have?", [], "You have nothing."),
        ("我有什么？", [], "你有 nothing。"),
        ("what time is it?", [], "It is 07:00, day."),
    ],
)
def test_a_wish_becomes_commands_and_an_answer(wish: str, commands: list[str], answer: str) -> None:
    scene = Scene()
    assert scene.wish(wish).text == answer
    assert scene.commands == commands


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ("build a tower of 30 stone at 1 64 1", "12 is as high as I build. A tower of 12 stone."),
        ("在 1 64 1 建一座 30 格高的石头塔", "我的塔最高 12 格。一座 12 格高的塔。"),
    ],
)
def test_a_tower_that_is_too_high_is_built_as_high_as_possible_and_the_answer_mentions_it(wish: str, why: str) -> None:
    scene = Scene()
    result = scene.wish(wish)
    assert len(scene.commands) == 12
    said = [message.text for message in result.messages if isinstance(message, Assistant)]
    assert said[0].startswith(why)


def test_a_house_takes_three_rounds_with_many_calls_each() -> None:
    scene = Scene()
    result = scene.wish("build a small house at 9 64 5")
    assert (result.rounds, result.requests, len(result.calls)) == (3, 4, 40)
    assert len(set(scene.commands)) == 40
    assert not any(record.error for record in result.calls)


def test_a_chain_continues_over_several_wishes() -> None:
    scene = Scene()
    result = scene.wish("give me two diamonds", "give me a torch", "what do I have?")
    assert result.text == "You have 2 × diamond, 1 × torch."
    assert [check_request("openai-chat", body) for body in scene.model.bodies] == [[]] * 8


def test_a_refusal_of_the_world_is_reported_in_its_own_words() -> None:
    scene = Scene()
    assert scene.wish("give me a unicorn").text.startswith("That did not work: there is no item `unicorn`; there are: ")
    assert scene.wish("build a tower of 3 stone at 99 64 1").text.startswith("That did not work: 99 64 1 is outside")
    assert scene.wish("把我传送到 99 64 1").text.startswith("没有成功：99 64 1 is outside")
    assert scene.commands == []


@pytest.mark.parametrize("wish", ["sing!", "唱歌", "give", "tower of at", "🙂", "a" * 2000, "give me 9999999 x"])
def test_a_wish_that_is_not_understood_is_answered_with_what_is_possible(wish: str) -> None:
    scene = Scene()
    text = scene.wish(wish).text
    assert "give me three diamonds" in text or "给我一个钻石" in text or "there is no item" in text
    assert scene.commands == []


def test_a_pace_takes_as_long_as_a_real_model() -> None:
    assert Scene().wish("give me a diamond").seconds == 0
    assert 1 < Scene(pace=1).wish("give me a diamond").seconds < 4
