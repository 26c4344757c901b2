"""No package grows without a decision: budgets.toml changes in the same commit. And what a token is."""

from __future__ import annotations

import pytest
from sizes import count_tokens, count_values, packages, read_budgets, size_of

BUDGETS = read_budgets()


@pytest.mark.parametrize("package", packages())
def test_a_package_is_not_larger_than_its_line_allows(package: str) -> None:
    size, budget = size_of(package), BUDGETS[package]
    assert (size.tokens <= budget["tokens"], size.files <= budget["files"]) == (True, True), (
        f"{package} has {size}, its line in budgets.toml {budget}: make it smaller, or change the line and say what"
        " users get for it"
    )


def test_every_package_has_a_line_that_says_what_users_get() -> None:
    assert sorted(BUDGETS) == packages()
    assert all(budget["why"] for budget in BUDGETS.values())


@pytest.mark.parametrize(
    ("code", "tokens"),
    [
        ("x = 3", 3),
        ("x: dict[str, int] = 3", 3),
        ("x: (\n    int\n)\n", 1),
        ("x = [1, (2, 3),]  # why", 5),
        ("f(1, b=2)", 3),
        ("f(\n    1,\n    2,\n)\n", 3),
        ("class A(B, metaclass=M):\n    '''Doc.'''\n    x: int\n    '''Doc.'''\n", 6),
        ("def f(é: 'é', *b: int, c: str = 'd') -> list[int]:\n    return b\n", 11),
        ("async def f() -> None: pass", 5),
        ("é = f(é=f(ü=1), **e)", 7),
        ("f'{x!r:>{width}} and {f(y=1)}'", 1),
        ("lambda x, y=1: x", 7),
        ("x = y[1:2]", 6),
    ],
)
def test_tokens_are_counted_without_what_only_shapes_the_code(code: str, tokens: int) -> None:
    assert count_tokens(code) == tokens


def test_folding_lines_and_naming_arguments_change_nothing() -> None:
    folded = "if ready: run(1, 2)\n"
    spread = "if ready:\n    run(\n        first=1,\n        second=2,\n    )\n"
    assert count_tokens(folded) == count_tokens(spread) == 6


def test_keys_and_values_of_data_files_count() -> None:
    assert count_values({"rules": [{"name": "a", "values": [1, 2, True]}], "none": []}) == 8
