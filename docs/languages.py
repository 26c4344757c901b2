"""The pages in Chinese: `start.zh-CN.md` is the twin of `start.md`, and stands beside it.

A page in Chinese has the navigation, the words of the theme and the language of Chinese; its navigation is that of the
pages in English, and where there is no twin it leads to the page in English and says so. The header of each page links
to its twin, or to the home page of the other language. mkdocs-static-i18n does the same by building every page once
for each language, the reference included; here a page without a twin is built once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mkdocs.structure.files import Files
from mkdocs.structure.nav import Link, Navigation, Section
from mkdocs.structure.pages import Page

SECTION = "中文"
"""The part of the nav in mkdocs.yml that lists the pages in Chinese."""
IN_ENGLISH = "（英文）"
SUFFIX = ".zh-CN.md"
HOMES = ("index.md", "index.zh-CN.md")

TITLES = {
    "Guide": "指南",
    "Unbroken": "Unbroken",
    "Start here": "从这里开始",
    "The agent": "agent",
    "Tools": "工具",
    "Tools that the provider runs": "提供商执行的工具",
    "Schedules": "调度",
    "Background calls": "后台调用",
    "Limits": "限制",
    "The chain": "不会断裂的工具调用链",
    "Events": "事件",
    "Guardrails": "护栏",
    "Long runs": "长时间的运行",
    "Teams of agents": "多个 agent 协作",
    "Middleware": "中间件",
    "MCP servers": "MCP 服务器",
    "Serve agents over MCP": "通过 MCP 提供 agent",
    "Testing": "测试",
    "Evals": "评测",
    "Proof on public benchmarks": "在公开基准上验证",
    "Benchmarks": "性能测试",
    "The command line": "命令行",
    "Gateway": "网关",
    "gateway.md": "网关",
    "administration.md": "管理网关",
    "spend.md": "花费、预算与限制",
    "scale.md": "网关的容量",
    "Clients": "客户端",
    "Crossings": "API 之间的转换",
    "Providers": "提供商",
    "Probing an endpoint": "探测端点",
    "Faults": "故障",
    "Many machines": "多台机器",
    "Recordings": "录制与持久运行",
    "recordings.md": "录制",
    "Durable runs": "持久运行",
    "Watching durable runs": "观察持久运行",
    "exactly-once.md": "恰好一次",
    "The viewer": "查看器",
    "Metrics": "指标",
    "OpenTelemetry": "OpenTelemetry",
    "DPH": "DPH",
    "dph.md": "DPH",
    "Recipes": "实用示例",
    "recipes/index.md": "全部示例",
    "A first agent": "第一个 agent",
    "Run tools in parallel": "并行执行工具",
    "Approve before writing": "写入之前先批准",
    "Resume after a crash": "崩溃之后恢复",
    "Record a run and view it": "录制并查看一次运行",
    "Replay in tests": "在测试里重放",
    "Limits and cost": "限制与费用",
    "Local model": "本地模型",
    "Use an MCP server": "使用 MCP 服务器",
    "Serve the gateway": "启动网关",
    "Connect Claude Code": "连接 Claude Code",
    "Stream to a web page with FastAPI": "用 FastAPI 流式输出到网页",
    "Approve in a team chat": "在团队聊天里批准",
    "A nightly job that resumes": "中断后能继续的夜间任务",
    "A batch over a CSV file": "批量处理 CSV 文件",
    "An MCP server and its client": "MCP 服务器和它的客户端",
    "Guardrails in one program": "一个程序里的护栏",
    "Run tools in order": "依次执行工具",
    "Same file, one after another": "同一个文件，一个接一个",
    "A client that takes one call": "一次只接受一个调用的客户端",
    "Applications": "应用",
    "Overview": "概览",
    "The course assistant": "课程助手",
    "The command agent": "命令 agent",
    "Moving": "迁移",
    "moving/index.md": "迁移",
    "From a hand-written loop": "从手写的循环",
    "From an Anthropic loop": "从手写的 Anthropic 循环",
    "From Dolphin": "从 Dolphin",
    "From pydantic-ai": "从 pydantic-ai",
    "From openai-agents": "从 openai-agents",
    "From LiteLLM's proxy": "从 LiteLLM 的代理",
    "From LangGraph and LangChain": "从 LangGraph 和 LangChain",
    "How it works": "工作原理",
    "The loop": "循环",
    "Architecture": "架构",
    "Decoding": "解码",
    "The wires": "各种 wire",
    "Requests": "请求",
    "What providers refuse": "提供商拒绝什么",
    "Calls in the text": "文本中的调用",
    "The transcript": "对话记录",
    "What it does not do": "不做什么",
    "Names in the design documents": "设计文档中的名字",
    "The design documents, row by row": "设计文档逐条对照",
    "Reference": "参考",
    "reference/index.md": "参考",
    "Agent": "Agent",
    "Models": "模型",
    "Messages": "消息",
    "Deltas and decoding": "增量与解码",
    "Wires": "wire",
    "Recordings and metrics": "录制与指标",
    "Errors": "错误",
    "Time": "时间",
}
"""The titles of the nav in Chinese; of a page that has none in mkdocs.yml, by its file. What is missing stays in
English."""

_navs: dict[str, Navigation] = {}


def is_chinese(page: Any) -> bool:
    return page.file.src_uri.endswith(SUFFIX)


def divide(nav: Navigation) -> Navigation:
    """One nav for each language. Returns the complete one, of which mkdocs builds the pages."""
    (chinese,) = [item for item in nav.items if isinstance(item, Section) and item.title == SECTION]
    others = [item for item in nav.items if item is not chinese]
    twins = {page.file.src_uri.replace(SUFFIX, ".md"): page for page in chinese.children if isinstance(page, Page)}
    translated = [_translated(item, twins) for item in others]
    for language, items in (("en", others), ("zh", translated)):
        pages = [*_pages(items)]
        for before, page, after in zip([None, *pages[:-1]], pages, [*pages[1:], None], strict=True):
            page.previous_page, page.next_page = before, after
        _navs[language] = Navigation(items, pages)
        homes = [page for page in pages if page.file.src_uri in HOMES]
        _navs[language].homepage = homes[0]
    return nav


def _translated(item: Any, twins: dict[str, Page], parent: Section | None = None) -> Any:
    """The same with Chinese titles: a page that has no twin becomes a link to the page in English."""
    if isinstance(item, Section):
        found: Any = Section(TITLES.get(item.title, item.title), [])
        found.children = [_translated(child, twins, found) for child in item.children]
    elif item.file.src_uri in twins:
        found = twins[item.file.src_uri]
        found.title = _title(item)
    else:
        found = Link(f"{_title(item)}{IN_ENGLISH}", item.url)
    found.parent = parent
    return found


def _title(page: Page) -> str:
    given = page.title or page.file.src_uri  # a page that has no title in mkdocs.yml is not read yet
    heading = (page.file.content_string.splitlines() or [""])[0].lstrip("# ")
    return TITLES.get(given) or page.title or heading


def _pages(items: Iterable[Any]) -> Iterator[Page]:
    for item in items:
        if isinstance(item, Section):
            yield from _pages(item.children)
        elif isinstance(item, Page):
            yield item


def set_language(context: Any, page: Any, config: Any, files: Files) -> None:
    """For the templates of one page; `reset` undoes it."""
    language = "zh" if is_chinese(page) else "en"
    config.theme["language"] = language
    context["nav"] = _navs[language]
    names = {"en": "English", "zh": "中文"}
    config.extra["alternate"] = [
        {"name": name, "lang": lang, "link": _twin(page, lang, files)} for lang, name in names.items()
    ]


def reset(config: Any) -> None:
    config.theme["language"] = "en"


def _twin(page: Any, language: str, files: Files) -> str:
    english = page.file.src_uri.replace(SUFFIX, ".md")
    wanted = english.removesuffix(".md") + SUFFIX if language == "zh" else english
    found = files.get_file_from_path(wanted) or files.get_file_from_path(HOMES[language == "zh"])
    assert found is not None
    return found.url
