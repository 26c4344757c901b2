"""A text that ends by announcing a call is told from one that ends as an answer does. A doubt means no."""

from __future__ import annotations

import time

import pytest

from unbroken.agent.announcement import announces

TOOLS = ("get_weather", "search_docs", "run_sql")

ANNOUNCEMENTS = [
    "Let me look that up.",
    "Let me look that up for you!",
    "Sure! Let me check the weather in Oslo.",
    "I'll check the weather now:",
    "I’ll check the weather now…",
    "I will now call get_weather.",
    "I'll use `search_docs` to find it.",
    "Calling get_weather...",
    "Now using search_docs:",
    "One moment while I search…",
    "One moment, please.",
    "Please wait while I fetch the data.",
    "Give me a second to check.",
    "Hold on, let me verify that.",
    "Okay, let me search for flights to Lima.",
    "To answer that, I need to look up the current price.",
    "First, I'll search the documentation.",
    "Now let me read the file.",
    "I'm going to run the tests.",
    "I am going to fetch the latest numbers.",
    "Let me take a look.",
    "Let me take a closer look at the logs:",
    "Let me double-check that figure.",
    "Searching for restaurants nearby...",
    "Looking that up now.",
    "Fetching the results…",
    "I'm checking the inventory now.",
    "I found three hotels. Let me get the prices for them.",
    "The first file is fine.\n\nNext, I'll inspect the second one.",
    "**Let me search for that.**",
    "Let me search for that 🔍",
    "Great, let me pull up your order.",
    "I should verify this with the database.",
    "I'll use the weather tool for this.",
    "Let's look that up.",
    "Let me find the relevant section in the manual.",
    "I need to query the database first.",
    "Thanks for the details, I'll retrieve your invoice.",
    "I'll update the file now.",
    "Let me check https://example.com/status.",
    "Let me try to search with other words.",
    "I'll calculate both sums right away!",
    "I'll update the issue list for you.",
    "I'll help you find the opening hours.",
    "I will now call all five tools at once.",
    "Let me take a screenshot.",
    "我来查一下。",
    "好的，我来查一下。",
    "让我先搜索一下",
    "让我看看这个文件。",
    "正在为您查询…",
    "正在搜索相关资料……",
    "接下来我将调用 get_weather：",
    "接下来我将调用 get_weather 工具，查询北京的天气：",
    "我需要先查询一下数据库。",
    "我先读取配置文件。",
    "请稍等。",
    "我这就去查，请稍等。",
    "好的，请您稍候片刻…",
    "我会先检索文档，然后为您整理。",
    "我马上帮您查询航班信息。",
    "让我用搜索工具确认一下。",
    "为了回答这个问题，我需要获取最新的价格。",
    "第一个文件没有问题。\n\n接下来，我检查第二个：\n\n让我打开它。",
    "我现在为您查询订单状态！",
    "我来帮你找一下。",
    "查询中…",
    "现在使用 search_docs 检索。",
]

ANSWERS = [
    "",
    "   \n",
    "It is 4 degrees in Oslo.",
    "Let me know if you need more.",
    "Let me know what you find!",
    "I'll be happy to help.",
    "I'll be here if you need anything else.",
    "Let me explain: the stack grows down.",
    "Let me explain.",
    "Let me summarise the results:",
    "Shall I look it up?",
    "Would you like me to check the weather?",
    "Should I search for more?",
    "Do you want me to run the tests?",
    "Let me check, is that right?",
    "Let me look that up. It is 4 degrees in Oslo.",
    "Let me check the weather.\n\nIt is 4 degrees and raining.",
    "Let me check: it is 4 degrees.",
    "I'll check the weather now:\n\n- Oslo: 4 degrees",
    "I'll search again if you like.",
    "If you want, I'll check the other file too.",
    "I'll look it up once you give me the city.",
    "I'll check again tomorrow.",
    "I'll look into it later.",
    "I'll get back to you.",
    "I look forward to hearing from you.",
    "I'm looking forward to it!",
    "I'll keep that in mind.",
    "I'll do my best.",
    "I'll see what I can do.",
    "I will find you.",
    "I'll call you tomorrow.",
    "I'll use Python.",
    "Let me think about it.",
    "Let me get this straight.",
    "Let's look at an example.",
    "Let's check in next week.",
    "Let's begin.",
    "Let me run through the steps.",
    "Let me walk you through the code:",
    "Let me give you an overview.",
    "Checking the weather is easy.",
    "Searching takes about two seconds.",
    "I checked the weather: 4 degrees.",
    "I have searched the documents and found nothing.",
    "I can check that for you.",
    "I could look it up.",
    "You can look that up in the manual.",
    "You should check the logs.",
    "Run the tests, then check the logs.",
    "Please wait five minutes before you try again.",
    'She said, "Let me look that up."',
    "Use this:\n\n```python\nprint('Let me check the weather')\n```",
    "Use this:\n\n```\nLet me check the weather.",
    "Run this:\n\n    I'll check the weather now",
    "# I'll check the weather now",
    "> Let me look that up.",
    "Steps:\n1. I'll check the weather.\n2. I'll search the docs.",
    "- Let me check the weather",
    "| I'll check | now |",
    "I was not able to find the file.",
    "I'm sorry, I cannot search the web.",
    "I'm not going to run the tests.",
    "I won't check that.",
    "Thank you for waiting.",
    "The moment I search, it fails.",
    "I'll help you with that.",
    "I'll calculate it: 15 * 8 = 120.",
    "Looking at the messages, they say the following:",
    "Let me compute this: 2 + 2 = 4.",
    "get_weather returned nothing.",
    "I used get_weather for this.",
    "You can call get_weather yourself.",
    "北京今天晴，最高 25 度。",
    "要我查一下吗？",
    "需要我帮您查询吗",
    "如果需要，我可以帮您查询。",
    "如果您愿意，我来查一下。",
    "我来解释一下。",
    "让我为您介绍一下这个产品。",
    "让我们一起学习吧。",
    "我来查一下，北京今天晴。",
    "让我查一下：北京今天晴。",
    "我来查一下。北京今天晴。",
    "我会尽力帮助您。",
    "我会一直在这里。",
    "我已经查询了数据库，没有结果。",
    "我查询了天气，今天有雨。",
    "您可以查看日志。",
    "请稍后再试。",
    "请告诉我城市，我来查一下。",
    "有什么可以帮您的吗",
    "正在查询的订单共有 3 个。",
    "我明天再查。",
    "他说：“让我查一下。”",
]


@pytest.mark.parametrize("text", ANNOUNCEMENTS)
def test_an_announcement_without_its_call(text: str) -> None:
    assert announces(text, TOOLS)


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_announces_nothing(text: str) -> None:
    assert not announces(text, TOOLS)


def test_a_name_counts_only_if_it_is_a_tools_name() -> None:
    assert announces("I will now call get_weather.", ["get_weather"])
    assert not announces("I will now call grandmother.", ["get_weather"])
    assert not announces("I will now call get_weather_report_office.", ["get_weather"])


def test_a_name_may_be_spelled_as_a_pattern_is() -> None:
    assert announces("I will now call a.b(c.", ["a.b(c"])
    assert not announces("I will now call axb.", ["a.b"])


@pytest.mark.parametrize(
    "piece", ["so ", "let me ", "用", "我来", "a, ", "now ", "。", "now let me first ", "...", "look "]
)
def test_any_text_is_read_in_no_time(piece: str) -> None:
    start = time.process_time()
    for length in (50, 230, 100_000):
        announces((piece * length)[:length], TOOLS)
        announces("x" * 100_000 + "\n" + (piece * length)[:length], TOOLS)
    assert time.process_time() - start < 0.5
