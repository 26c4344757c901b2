"""`Agent[Deps, Output]` is generic: what a type checker infers for these programs is what they get.

`make types` checks that pyright infers it, as it does for all tests; tests/test_validation.py that it rejects mistakes.
"""

from __future__ import annotations

from typing import Any

import pytest
import typed_agents


@pytest.mark.parametrize(
    "program",
    [
        typed_agents.plain,
        typed_agents.with_a_type,
        typed_agents.with_a_way_to_answer,
        typed_agents.with_one_of_several_types,
        typed_agents.with_deps,
    ],
)
def test_type_checkers_infer_the_real_types(program: Any) -> None:
    program()
