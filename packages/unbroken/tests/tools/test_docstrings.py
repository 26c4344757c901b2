"""Parameters from docstrings, in three styles, in two languages, and in none."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbroken.tools.parameters import read_docstring

GOOGLE = """Find flights.

    Only direct ones.

    Args:
        origin (str): Where from, as
            an airport's code.
        when (datetime.date, optional): The day: local time.
        *stops: Unused.
        callback (Callable[[int], str]): Called
            with (each) flight.

    Returns:
        A list.

    Args that are not a section: stay.
    """

NUMPY = """Find flights.

    Only direct ones.

    Parameters
    ----------
    origin : str
        Where from, as
        an airport's code.
    when : datetime.date, optional
        The day: local time.
    low, high : float
        The limits.
    bare
        No type.

    Returns
    -------
    list
        The flights.
    """

REST = """Find flights.

    Only direct ones.

    :param origin: Where from, as
        an airport's code.
    :type origin: str
    :param datetime.date when: The day: local time.
    :returns: A list.
    :raises ValueError: never
    """


def test_google_style() -> None:
    doc = read_docstring(GOOGLE)
    assert doc.parameters == {
        "origin": "Where from, as an airport's code.",
        "when": "The day: local time.",
        "stops": "Unused.",
        "callback": "Called with (each) flight.",
    }
    assert doc.description == (
        "Find flights.\n\nOnly direct ones.\n\nReturns:\n    A list.\n\nArgs that are not a section: stay."
    )


def test_numpy_style() -> None:
    doc = read_docstring(NUMPY)
    assert doc.parameters == {
        "origin": "Where from, as an airport's code.",
        "when": "The day: local time.",
        "low": "The limits.",
        "high": "The limits.",
        "bare": "No type.",
    }
    assert doc.description == "Find flights.\n\nOnly direct ones.\n\nReturns\n-------\nlist\n    The flights."


def test_rest_style() -> None:
    doc = read_docstring(REST)
    assert doc.parameters == {"origin": "Where from, as an airport's code.", "when": "The day: local time."}
    assert doc.description == "Find flights.\n\nOnly direct ones.\n\n:returns: A list.\n:raises ValueError: never"


def test_chinese_docstring_with_wide_colons() -> None:
    doc = read_docstring(
        """查询天气。

        参数：
            city（str）：城市的名字，
                用中文。
            days: 天数 up to
                seven 天

        返回：
            文本
        """
    )
    assert doc.description == "查询天气。\n\n返回：\n    文本"
    assert doc.parameters == {"city": "城市的名字，用中文。", "days": "天数 up to seven 天"}


def test_chinese_rest() -> None:
    assert read_docstring("查询。\n\n:param city: 城市\n").parameters == {"city": "城市"}


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ("- city: A city.", "A city."),
        ("`city`: A city.", "A city."),
        ("city -- A city.", "A city."),
        ("city(str): A city.", "A city."),
        ("city: https://example.org", "https://example.org"),
    ],
)
def test_entries_in_various_spellings(entry: str, text: str) -> None:
    assert read_docstring(f"Do.\n\nArgs:\n    {entry}\n").of("city") == text


@pytest.mark.parametrize(
    "text", [None, "", "   \n ", "Args:", "Args:\nnothing below", "Parameters\n---", ":param:", "\t:"]
)
def test_unusual_docstrings_have_no_parameters(text: str | None) -> None:
    doc = read_docstring(text)
    assert not doc.parameters
    assert doc.of("x") == ""


def test_a_docstring_that_begins_with_its_parameters() -> None:
    doc = read_docstring("Args:\n        city: A city,\n            or a town.\n        days: How many.\n    ")
    assert (doc.of("city"), doc.of("days"), doc.description) == ("A city, or a town.", "How many.", "")


@pytest.mark.parametrize("header", ["Example:", "Usage::", "示例："])
def test_parameters_inside_an_example_are_not_those_of_the_function(header: str) -> None:
    example = f"{header}\n    Args:\n        city: In the example.\n    :param days: Too."
    assert read_docstring(f"Do.\n\n{example}").description == f"Do.\n\n{example}"
    doc = read_docstring(f"Do.\n\n{example}\n\nArgs:\n    city: A city.\n")
    assert (doc.of("city"), doc.of("days")) == ("A city.", "")


def test_a_summary_alone_is_the_description() -> None:
    assert read_docstring("Add two numbers.").description == "Add two numbers."


LINES = st.sampled_from(
    [
        "",
        "text",
        "Args:",
        "    x: one",
        "        more",
        "Parameters",
        "----------",
        "x : int",
        "    deep",
        ":param x: one",
    ]
)


@given(st.lists(LINES | st.text(max_size=8), max_size=12))
def test_nothing_is_added_to_the_docstring(lines: list[str]) -> None:
    text = "\n".join(lines)
    doc = read_docstring(text)
    known = "".join(inspect.cleandoc(text).split())
    for word in (
        *doc.description.split(),
        *(word for said in (doc.parameters or {}).values() for word in said.split()),
    ):
        assert word in known
    assert len("".join(doc.description.split())) <= len(known)
