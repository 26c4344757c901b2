"""The code "before" of docs/moving/ runs too: with the packages it is written for, against the scripted server.

`make test-moving` runs it, in an environment that has those packages; the default tests need none of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from unbroken import Request, ToolMessage
from unbroken.testing import Answer, Call, serve

PAGES = Path(__file__).parents[2] / "docs" / "moving"
PACKAGES = {"from-a-loop": "openai", "from-pydantic-ai": "pydantic_ai", "from-langchain": "langchain_openai"}


def weather(request: Request) -> Answer:
    if isinstance(request.messages[-1], ToolMessage):
        return "Go to Rome."
    return [Call("get_weather", city="Rome"), Call("get_weather", city="Oslo")]


@pytest.mark.filterwarnings("default")  # those of other packages are theirs
@pytest.mark.parametrize("page", PACKAGES)
def test_the_code_before_gives_the_same_answer(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(PACKAGES[page])
    text = (PAGES / f"{page}.md").read_text("utf-8")
    (before,) = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "__before__"}
    with serve(weather) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "any")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url())
        exec(compile(before, page, "exec", dont_inherit=True), names)
        results = server.requests[1].messages[-1]
    assert names["text"] == "Go to Rome."
    assert isinstance(results, ToolMessage)
    assert [result.text for result in results.results] == ["sunny", "snow"]
